#include "common/tokenizer/incremental_detokenizer.h"

#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/tokenizer_parts.h"

namespace baton::tokenizer {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                                               TextPosition position)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      stream_(tokenizer.parts_->pipeline, position) {}

absl::StatusOr<std::string> IncrementalDetokenizer::Append(absl::Span<const int32_t> ids) {
  BATON_CHECK(!flushed_) << "Append after Flush";
  BATON_ASSIGN_OR_RETURN(const std::vector<absl::string_view> tokens,
                         tokenizer_.TokensToDecode(ids, skip_special_tokens_));
  std::string text;
  for (const absl::string_view token : tokens) BATON_RETURN_IF_ERROR(stream_.Push(token, &text));
  return text;
}

std::string IncrementalDetokenizer::Flush() {
  std::string text;
  if (std::exchange(flushed_, true)) return text;
  // Only a Replace can fail, on a whole token, and none is left: it is always done with its token.
  const absl::Status status = stream_.Finish(&text);
  BATON_CHECK(status.ok()) << status.ToString();
  return text;
}

}  // namespace baton::tokenizer
