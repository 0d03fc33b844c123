#include "router/request/retry_budget.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"

namespace baton::router {

RetryBudget::RetryBudget(const Limits& limits)
    : limits_(limits), level_(std::min(limits.reserve, limits.capacity)) {}

void RetryBudget::OnRequest(int sequences) {
  absl::MutexLock lock(&mutex_);
  level_ = std::min(limits_.capacity, level_ + limits_.share * sequences);
}

bool RetryBudget::TryTake(int sequences) {
  absl::MutexLock lock(&mutex_);
  // A share such as 0.1 is not exact: ten of them must make one.
  if (level_ + 1e-6 < sequences) return false;
  level_ = std::max(0.0, level_ - sequences);
  return true;
}

void RetryBudget::GiveBack(int sequences) {
  absl::MutexLock lock(&mutex_);
  level_ = std::min(limits_.capacity, level_ + sequences);
}

void RetryBudget::Charged(int sequences, std::vector<Incarnation> suspects, absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  Forget(now);
  if (charges_.size() >= kMaxCharges) charges_.pop_front();
  charges_.push_back({sequences, std::move(suspects), now});
}

int RetryBudget::OnDeath(const Incarnation& dead, absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  Forget(now);
  int sequences = 0;
  const auto first = std::remove_if(charges_.begin(), charges_.end(), [&](const Charge& charge) {
    if (!absl::c_linear_search(charge.suspects, dead)) return false;
    sequences += charge.sequences;
    return true;
  });
  charges_.erase(first, charges_.end());
  level_ = std::min(limits_.capacity, level_ + sequences);
  return sequences;
}

double RetryBudget::level() const {
  absl::MutexLock lock(&mutex_);
  return level_;
}

void RetryBudget::Forget(absl::Duration now) {
  while (!charges_.empty() && now - charges_.front().at > kProofWithin) charges_.pop_front();
}

}  // namespace baton::router
