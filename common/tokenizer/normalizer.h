// Runs the normalizers of a Pipeline. Thread-safe.
#ifndef BATON_COMMON_TOKENIZER_NORMALIZER_H_
#define BATON_COMMON_TOKENIZER_NORMALIZER_H_

#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_range.h"
#include "common/tokenizer/pipeline.h"

namespace baton::tokenizer {

// Texts made by a step; their addresses are stable while the scratch lives.
using Scratch = std::deque<std::string>;

// A part of the text on its way through the steps.
struct Piece {
  absl::string_view text;
  // True if it starts with the first byte of the input, which Metaspace's "first" asks for.
  bool at_start;
};

// Replaces piece->text, if it changes, by a text in `scratch`. `split`, which may be null, has
// parts of the text; they become the parts that the normalizers make of them. What is made of
// several bytes is all in `split` if one of the bytes was. REQUIRES: valid UTF-8.
absl::Status Normalize(const std::vector<Normalizer>& normalizers, Piece* piece, Scratch* scratch,
                       ByteRanges* split);

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_NORMALIZER_H_
