#include "router/request/loss_record.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "router/request/retry_budget.h"

namespace baton::router {

void LossRecord::Add(Loss loss) {
  ++count_;
  unproven_.push_back(std::move(loss));
}

void LossRecord::Settle(const WorkerSigns& signs, absl::Duration now) {
  const auto proven = [&](const Loss& loss) {
    if (now - loss.at > kProofWithin) return false;
    const auto dead = absl::c_find_if(loss.suspects, [&signs](const Loss::Suspect& suspect) {
      return signs.LooksDead(suspect.worker);
    });
    if (dead == loss.suspects.end()) return false;
    if (loss.ran && dead->sudden) ++deaths_;
    return true;
  };
  unproven_.erase(std::remove_if(unproven_.begin(), unproven_.end(), proven), unproven_.end());
}

int LossRecord::possible_deaths() const {
  const auto may_be_one = [](const Loss& loss) {
    return loss.ran && absl::c_any_of(loss.suspects, [](const auto& each) { return each.sudden; });
  };
  return deaths_ + static_cast<int>(absl::c_count_if(unproven_, may_be_one));
}

absl::Status WorkersDied() {
  return MakeError(absl::StatusCode::kInternal, "WORKERS_DIED",
                   absl::StrCat(kMaxDeaths,
                                " workers in a row ended while they ran the request and "
                                "before its next token: it may be the cause"));
}

}  // namespace baton::router
