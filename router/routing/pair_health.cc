#include "router/routing/pair_health.h"

#include <algorithm>

namespace baton::router {

void PairHealth::CountFailure(Record& record, int failures_to_avoid) {
  const absl::Duration now = clock_.SinceStart();
  if (record.open && !record.trying && now < record.avoided_until) return;
  // What is avoided fails as seldom as it is tried: that is no reason to forget it.
  const bool in_a_row = now - record.last_failure <= kFailureMemory;
  if (record.failures > 0 && !record.open && !in_a_row) record = Record();
  record.trying = false;
  ++record.failures;
  record.last_failure = now;
  if (!record.open && record.failures < failures_to_avoid) return;
  record.open = true;
  record.avoided_until = now + record.avoidance;
  record.avoidance = std::min(2 * record.avoidance, kLongestAvoidance);
}

void PairHealth::CountPartner(int worker, int partner) {
  std::set<int>& partners = partners_[worker];
  partners.insert(partner);
  if (partners.size() >= kFailuresToAvoid) CountFailure(workers_[worker], 1);
}

void PairHealth::OnPairFailed(int computes, int answers) {
  if (computes == answers) return OnWorkerFailed(answers);
  CountFailure(pairs_[{computes, answers}], kFailuresToAvoid);
  CountPartner(computes, answers);
  CountPartner(answers, computes);
}

void PairHealth::OnWorkerFailed(int worker) { CountFailure(workers_[worker], kFailuresToAvoid); }

void PairHealth::OnPairWorked(int computes, int answers) {
  if (computes == answers) {  // which shows nothing of any pair
    workers_.erase(answers);
    return;
  }
  pairs_.erase({computes, answers});
  for (int worker : {computes, answers}) {
    workers_.erase(worker);
    partners_.erase(worker);
  }
}

bool PairHealth::Usable(const Record& record) const {
  return !record.open || clock_.SinceStart() >= record.avoided_until;
}

bool PairHealth::all_usable() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [this](const auto& entry) { return Usable(entry.second); });
}

bool PairHealth::WorkerUsable(int worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() || Usable(found->second);
}

bool PairHealth::PairUsable(int computes, int answers) const {
  const auto found = pairs_.find({computes, answers});
  return found == pairs_.end() || Usable(found->second);
}

// Chosen although it is avoided, as there is nothing else, a request is no try.
void PairHealth::Probe(Record& record) {
  if (!record.open || !Usable(record)) return;
  record.trying = true;
  record.avoided_until = clock_.SinceStart() + std::max(record.avoidance, kTryMayTake);
}

void PairHealth::OnChosen(int computes, int answers) {
  if (const auto pair = pairs_.find({computes, answers}); pair != pairs_.end()) {
    Probe(pair->second);
  }
  for (int worker : {computes, answers}) {
    if (const auto found = workers_.find(worker); found != workers_.end()) Probe(found->second);
  }
}

void PairHealth::Forget(int worker) {
  for (auto it = pairs_.begin(); it != pairs_.end();) {
    const bool concerned = it->first.first == worker || it->first.second == worker;
    it = concerned ? pairs_.erase(it) : std::next(it);
  }
  workers_.erase(worker);
  partners_.erase(worker);
  for (auto& [other, partners] : partners_) partners.erase(worker);
}

}  // namespace baton::router
