// Reads tokenizer.json's model and added_tokens. INVALID_ARGUMENT with the path for everything that
// is missing, of the wrong type, contradictory, or not understood.
#ifndef BATON_COMMON_TOKENIZER_MODEL_READER_H_
#define BATON_COMMON_TOKENIZER_MODEL_READER_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/json_cursor.h"

namespace baton::tokenizer {

// `root` is the whole file. Refuses ids that would make the table by id far larger than the file.
absl::StatusOr<BpeSpec> ReadModel(const JsonCursor& root);

// Sets patterns to the contents, for the caller to normalise, and ids to those of the file. Refuses
// a content that the model has under another id, and an id that the model gives to another token.
absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const JsonCursor& root,
                                                        const Vocabulary& model);

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_MODEL_READER_H_
