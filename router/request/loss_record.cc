#include "router/request/loss_record.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "router/request/retry_budget.h"
#include "router/request/worker_error.h"

namespace baton::router {

StreamEnd::StreamEnd(absl::Status error, const Route& route, bool heard, absl::Duration sent_at,
                     absl::Duration at)
    : error(std::move(error)),
      blame(BlameFor(this->error)),
      heard(heard),
      sent_at(sent_at),
      at(at) {
  suspects.push_back(route.answers);
  if (blame != Blame::kAnswers && !route.together()) suspects.push_back(route.computes);
}

void LossRecord::Add(const StreamEnd& end, const WorkerSigns& signs) {
  if (!IsLoss(end.error)) return;
  Loss& loss = unproven_.emplace_back();
  loss.error = end.error;
  loss.at = end.at;
  // A process that ends as it receives the request sends no message before. A process that was
  // silent for longer than kAnswerTime had the request in its queue.
  loss.ran = end.heard || end.at - end.sent_at <= kAnswerTime;
  if (ErrorReason(end.error) == "STALE_EPOCH") loss.ran = false;  // the request met another process
  for (const WorkerTarget& worker : end.suspects) {
    const bool sudden = !IsSilence(end.error) && signs.SilenceOf(worker.worker) <= kSuddenWithin;
    loss.suspects.push_back({worker, sudden});
  }
}

void LossRecord::Settle(const WorkerSigns& signs, absl::Duration now) {
  const auto proven = [&](const Loss& loss) {
    if (now - loss.at > kProofWithin) return false;
    const auto dead = absl::c_find_if(loss.suspects, [&signs](const Suspect& suspect) {
      return signs.LooksDead(suspect.worker);
    });
    if (dead == loss.suspects.end()) return false;
    if (loss.ran && dead->sudden) ++deaths_;
    return true;
  };
  unproven_.erase(std::remove_if(unproven_.begin(), unproven_.end(), proven), unproven_.end());
}

absl::Status LossRecord::Verdict(const WorkerSigns& signs, absl::Duration now) {
  Settle(signs, now);
  if (deaths_ >= kMaxDeaths) return WorkersDied();
  if (unproven() < kMaxLosses) return absl::OkStatus();
  const Loss& last = unproven_.back();
  if (unclear() && now - last.at < kSameWorkerPause) return absl::OkStatus();
  return last.error;
}

bool LossRecord::unclear() const {
  const auto may_be_one = [](const Loss& loss) {
    return loss.ran && absl::c_any_of(loss.suspects, [](const auto& each) { return each.sudden; });
  };
  return deaths_ + absl::c_count_if(unproven_, may_be_one) >= kMaxDeaths;
}

absl::Status WorkersDied() {
  return MakeError(absl::StatusCode::kInternal, "WORKERS_DIED",
                   absl::StrCat(kMaxDeaths,
                                " workers in a row ended while they ran the request and "
                                "before its next token: it may be the cause"));
}

}  // namespace baton::router
