// What a Tokenizer is made of. For tokenizer.cc and the detokenizer only.
#ifndef BATON_COMMON_TOKENIZER_TOKENIZER_PARTS_H_
#define BATON_COMMON_TOKENIZER_TOKENIZER_PARTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/pipeline.h"
#include "common/tokenizer/tokenizer.h"

namespace baton::tokenizer {

struct Tokenizer::Parts {
  Parts(Pipeline pipeline_read, BpeSpec model, std::vector<AddedToken> added)
      : pipeline(std::move(pipeline_read)),
        bpe(std::move(model), pipeline.byte_level),
        added_tokens(std::move(added)) {}

  const Pipeline pipeline;
  const Bpe bpe;
  std::vector<AddedToken> added_tokens;  // never resized: the members below point into it
  absl::flat_hash_map<int32_t, const AddedToken*> added_by_id;
  absl::flat_hash_map<absl::string_view, const AddedToken*> added_by_content;
  absl::flat_hash_set<absl::string_view> special_contents;
  AddedTokenFinder raw_finder;          // searches the unchanged text
  AddedTokenFinder normalized_finder;   // searches the normalised text between those matches
  bool has_normalized_special = false;  // a special token is in normalized_finder
  int vocab_size = 0;
  uint64_t fingerprint = 0;
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_TOKENIZER_PARTS_H_
