// What the model room needs of tokenizer.json: how many ids there are. (The tokenizer room reads
// the rest; workers, which see ids only, do without it.)
#ifndef BATON_COMMON_MODEL_TOKENIZER_IDS_H_
#define BATON_COMMON_MODEL_TOKENIZER_IDS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::model {

// One more than the highest id of model.vocab and added_tokens.
absl::StatusOr<int> CountTokens(absl::string_view tokenizer_json, absl::string_view file);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_TOKENIZER_IDS_H_
