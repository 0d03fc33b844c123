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
  // A Replace's pattern can give up even now, on a run of bytes that a byte fallback before it ends
  // only here. Its text is then lost; what came before has been passed on.
  if (!stream_.Finish(&text).ok()) text.clear();
  return text;
}

}  // namespace baton::tokenizer
