#include "decode_worker/load_estimate.h"

namespace baton::decode_worker {
namespace {

constexpr double kKeep = 0.9;             // of the past, at each new measurement
constexpr double kDefaultCopyRate = 2e9;  // bytes a second: one core's memcpy on an old machine

}  // namespace

void LoadEstimate::Rate::Add(int64_t more, absl::Duration took) {
  amount = amount * kKeep + static_cast<double>(more);
  seconds = seconds * kKeep + absl::ToDoubleSeconds(took);
}

void LoadEstimate::OnQueueNonEmpty(absl::Duration now) {
  if (!waiting_since_) waiting_since_ = now;
}

void LoadEstimate::OnAdmitted(int64_t tokens, bool more, absl::Duration now) {
  if (waiting_since_) queue_.Add(tokens, now - *waiting_since_);
  waiting_since_.reset();
  if (more) waiting_since_ = now;
}

std::optional<absl::Duration> LoadEstimate::TimeToAdmit(int64_t tokens) const {
  const double rate = queue_.PerSecond();
  if (rate <= 0) return std::nullopt;
  return absl::Seconds(static_cast<double>(tokens) / rate);
}

bool LoadEstimate::CopyIsCheaper(int64_t bytes, int64_t tokens) const {
  const double copy_rate = copy_.PerSecond() > 0 ? copy_.PerSecond() : kDefaultCopyRate;
  const double prefill_rate = prefill_.PerSecond();
  if (prefill_rate <= 0) return true;
  return 2 * static_cast<double>(bytes) / copy_rate < static_cast<double>(tokens) / prefill_rate;
}

}  // namespace baton::decode_worker
