// Reads tokenizer.json's normalizer, pre_tokenizer, post_processor and decoder into a Pipeline.
#ifndef BATON_COMMON_TOKENIZER_PIPELINE_READER_H_
#define BATON_COMMON_TOKENIZER_PIPELINE_READER_H_

#include "absl/status/statusor.h"
#include "common/tokenizer/json_cursor.h"
#include "common/tokenizer/pipeline.h"

namespace baton::tokenizer {

// `root` is the whole file. INVALID_ARGUMENT with the path for any component, option or order of
// components that Baton does not run exactly as Hugging Face `tokenizers` does.
absl::StatusOr<Pipeline> ReadPipeline(const JsonCursor& root);

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_PIPELINE_READER_H_
