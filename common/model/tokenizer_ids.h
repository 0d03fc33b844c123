// Counts the ids in tokenizer.json. common/tokenizer reads the rest, which workers do not need.
#ifndef BATON_COMMON_MODEL_TOKENIZER_IDS_H_
#define BATON_COMMON_MODEL_TOKENIZER_IDS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::model {

// Returns the highest id of model.vocab and added_tokens, plus one.
absl::StatusOr<int> CountTokens(absl::string_view tokenizer_json, absl::string_view file);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_TOKENIZER_IDS_H_
