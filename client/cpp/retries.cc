#include "client/cpp/retries.h"

#include <algorithm>
#include <utility>

#include "client/cpp/client.h"
#include "common/base/error.h"

namespace baton::client {

bool IsRetryable(const absl::Status& error) {
  return absl::IsUnavailable(error) ||
         (absl::IsResourceExhausted(error) && ErrorRetryAfter(error).has_value()) ||
         (absl::IsCancelled(error) && ErrorReason(error).empty());
}

Retries::Retries(absl::Duration timeout, int max_retries, const Clock& clock,
                 std::function<double()> random)
    : clock_(clock),
      random_(std::move(random)),
      deadline_(clock.SinceStart() + timeout),
      left_(max_retries) {}

absl::Duration Retries::TimeLeft() const {
  return std::max(absl::ZeroDuration(), deadline_ - clock_.SinceStart());
}

std::optional<absl::Duration> Retries::PauseAfter(const absl::Status& error) {
  if (left_ <= 0 || !IsRetryable(error)) return std::nullopt;
  const absl::Duration asked =
      std::max(absl::ZeroDuration(), ErrorRetryAfter(error).value_or(absl::ZeroDuration()));
  const absl::Duration pause = asked + backoff_ * random_();
  if (pause >= TimeLeft()) return std::nullopt;
  --left_;
  backoff_ = std::min(kMaxBackoff, 2 * backoff_);
  return pause;
}

}  // namespace baton::client
