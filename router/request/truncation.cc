#include "router/request/truncation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "router/request/answer_length.h"

namespace baton::router {
namespace {

constexpr float kRetentionRatio = 0.8f;
constexpr float kLeastRetentionRatio = 0.1f;
constexpr int kMostTokensToKeep = 1 << 30;
constexpr int kAnswersShare = 16;  // of the context, one part

}  // namespace

absl::Status CheckTruncation(const v1::GenerateRequest& request) {
  if (!request.has_truncation()) return absl::OkStatus();
  const v1::Truncation& truncation = request.truncation();
  BATON_RETURN_IF_ERROR(
      CheckRange("truncation.keep_first", truncation.keep_first(), 0, kMostTokensToKeep));
  BATON_RETURN_IF_ERROR(
      CheckRange("truncation.keep_last", truncation.keep_last(), 0, kMostTokensToKeep));
  if (request.has_messages() && (truncation.keep_first() > 0 || truncation.keep_last() > 0)) {
    return InvalidField(
        "NOT_WITH_MESSAGES",
        truncation.keep_first() > 0 ? "truncation.keep_first" : "truncation.keep_last",
        "given for messages, of which whole ones are dropped");
  }
  const float ratio = truncation.retention_ratio();
  if (!truncation.has_retention_ratio() || (ratio >= kLeastRetentionRatio && ratio <= 1)) {
    return absl::OkStatus();
  }
  return OutOfRange("truncation.retention_ratio", absl::StrCat(ratio),
                    absl::StrCat(kLeastRetentionRatio, " to 1 expected"));
}

int ContextOf(const ModelInfo& model, const RequestClass& request_class) {
  if (request_class.max_context_tokens <= 0) return model.max_model_len;
  return std::min(model.max_model_len, request_class.max_context_tokens);
}

int RoomForPrompt(const v1::StopConditions& stop, const ModelInfo& model,
                  const RequestClass& request_class) {
  const int context = ContextOf(model, request_class);
  int answer =
      stop.has_max_tokens() ? stop.max_tokens() : DefaultAnswerTokens(model, request_class);
  if (answer == 0) answer = context / kAnswersShare;
  return context - std::max({answer, stop.min_tokens(), 1});
}

int TruncationStep(const v1::Truncation& truncation, int room) {
  const float ratio =
      truncation.has_retention_ratio() ? truncation.retention_ratio() : kRetentionRatio;
  const int64_t step = std::lround((1.0 - static_cast<double>(ratio)) * room);
  // What is to be kept must fit after a step.
  const int64_t kept = int64_t{truncation.keep_first()} + truncation.keep_last();
  return static_cast<int>(std::max<int64_t>(1, std::min(step, room - kept)));
}

absl::StatusOr<int> TokensToDrop(const v1::Truncation& truncation, int64_t tokens, int room) {
  if (tokens <= room) return 0;
  const int64_t kept = int64_t{truncation.keep_first()} + truncation.keep_last();
  if (room < 1 || kept > room) {
    return OutOfRange("truncation",
                      absl::StrCat(truncation.keep_first(), " first and ", truncation.keep_last(),
                                   " last tokens to keep"),
                      absl::StrCat("at most ", std::max(0, room),
                                   " in all expected, which the answer leaves of the context"));
  }
  const int64_t step = TruncationStep(truncation, room);
  return static_cast<int>((tokens - room + step - 1) / step * step);
}

}  // namespace baton::router
