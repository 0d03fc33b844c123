// Tokens that are matched in the text before the model encodes it, such as <|eot_id|>.
// The rules are those of Hugging Face `tokenizers`, tokenizer/added_vocabulary. Thread-safe once
// built.
#ifndef BATON_COMMON_TOKENIZER_ADDED_TOKENS_H_
#define BATON_COMMON_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/byte_range.h"

namespace baton::tokenizer {

struct AddedToken {
  int32_t id;
  std::string content;
  // The text to find: the content, or its normalised form for tokens with `normalized`, which are
  // searched for in normalised text.
  std::string pattern;
  bool single_word;  // not beside a word character
  bool lstrip;       // takes the white space before it
  bool rstrip;       // takes the white space after it
  bool normalized;
  bool special;
};

// Finds added tokens in a text, from left to right; of those that start at one place, the longest.
class AddedTokenFinder {
 public:
  // The longest pattern a file may have; bounds the work for each byte of text.
  static constexpr size_t kMaxPatternBytes = 1024;

  // Adds a token. False, changing nothing, if another token has the same pattern.
  // REQUIRES: 0 < pattern bytes <= kMaxPatternBytes. The token must outlive the finder.
  bool Add(const AddedToken* token);

  // A part of a text: an added token, or the text between two of them.
  struct Part {
    const AddedToken* token;  // null for text
    size_t begin;
    size_t end;
    // That the parts up to this one begin where they do follows from the text before this byte; it
    // is behind the text if it follows from the text's end, too.
    size_t read;
  };
  // Visits the parts in order; none of the texts is empty. A special token with a byte in `split`
  // is text; a token that it would have covered is found. Stops at the first error.
  absl::Status ForEachPart(absl::string_view text, absl::Span<const ByteRange> split,
                           absl::FunctionRef<absl::Status(const Part&)> visit) const;

 private:
  struct Match {
    const AddedToken* token;
    size_t end;
  };
  // `read` becomes the end of what the answer follows from, if that is beyond it.
  std::optional<Match> LongestAt(absl::string_view text, size_t begin,
                                 absl::Span<const ByteRange> split, size_t* read) const;

  // A trie: node 0 is the root, children_ maps (node, byte) to a node, tokens_ is by node.
  std::vector<const AddedToken*> tokens_ = {nullptr};
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  std::array<bool, 256> is_first_byte_ = {};
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_ADDED_TOKENS_H_
