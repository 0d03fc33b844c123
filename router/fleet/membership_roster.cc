// The part of Membership that knows who is listed, and which numbers workers have.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "router/fleet/membership.h"

namespace baton::router {

Membership::Membership(const std::vector<std::string>& prefill_addresses,
                       const std::vector<std::string>& decode_addresses,
                       uint64_t tokenizer_fingerprint, Policy& policy, const Clock& clock,
                       const RouteOptions& options)
    : tokenizer_fingerprint_(tokenizer_fingerprint),
      clock_(clock),
      options_(options),
      policy_(policy),
      health_(clock),
      started_(clock.SinceStart()) {
  std::vector<WorkerAddress> listed;
  for (const std::string& address : prefill_addresses) {
    listed.push_back({v1::WORKER_ROLE_PREFILL, address});
  }
  for (const std::string& address : decode_addresses) {
    listed.push_back({v1::WORKER_ROLE_DECODE, address});
  }
  const absl::Status set = SetWorkers(listed);
  BATON_CHECK(set.ok()) << set;
}

absl::Status Membership::SetWorkers(absl::Span<const WorkerAddress> listed) {
  absl::MutexLock lock(&mutex_);
  std::map<WorkerAddress, int> known;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    if (workers_[i].hold != nullptr) known[{workers_[i].role, workers_[i].address}] = i;
  }
  std::map<absl::string_view, v1::WorkerRole> seen;
  int64_t fresh = 0;
  for (const WorkerAddress& worker : listed) {
    if (!seen.emplace(worker.address, worker.role).second) {
      return MakeError(absl::StatusCode::kInvalidArgument, "LISTED_TWICE",
                       absl::StrCat(worker.address, " is listed twice; a worker has one role"));
    }
    fresh += known.count(worker) == 0 ? 1 : 0;
  }
  if (static_cast<int64_t>(known.size()) + fresh > kMaxWorkers) {
    return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_WORKERS",
                     absl::StrCat(listed.size(), " workers listed beside ", known.size(),
                                  " known ones, at most ", kMaxWorkers, " together expected"));
  }
  // Those that leave go first: who comes back is compared with those who stay.
  for (const bool to_list : {false, true}) {
    for (const auto& [worker, number] : known) {
      const auto found = seen.find(worker.address);
      const bool is_listed = found != seen.end() && found->second == worker.role;
      if (is_listed == to_list) SetListed(number, to_list);
    }
  }
  for (const WorkerAddress& worker : listed) {
    if (known.count(worker) == 0) Add(worker);
  }
  return absl::OkStatus();
}

int Membership::TakeNumber() {
  if (!free_.empty()) {
    const int number = free_.back();
    free_.pop_back();
    return number;
  }
  workers_.emplace_back();
  const int count = static_cast<int>(workers_.size());
  index_.Grow(count);
  dispatched_.Grow(count);
  fleet_.Grow(count);
  return count - 1;
}

void Membership::Add(const WorkerAddress& worker) {
  const int number = TakeNumber();
  Worker& w = workers_[number];
  w.hold = std::make_shared<const int>(number);
  w.listed = true;
  w.role = worker.role;
  w.address = worker.address;
  ++roster_version_;
}

void Membership::SetListed(int worker, bool listed) {
  Worker& w = workers_[worker];
  if (w.listed == listed) return;
  w.listed = listed;
  // Others may have come meanwhile, of another model.
  if (const absl::Status fits =
          w.card && listed ? CheckSameModel(worker, *w.card) : absl::OkStatus();
      !fits.ok()) {
    DropKnowledge(worker);
    SetState(worker, v1::WORKER_STATE_REFUSED, std::string(fits.message()));
  } else if (w.state == v1::WORKER_STATE_READY || w.state == v1::WORKER_STATE_DRAINING) {
    SetServingState(worker);
  } else {
    // Not even when all are suspect.
    if (!listed) fleet_.Rests(worker);
    // Its state says how it is with the worker itself.
    BATON_LOG(Info) << RoleName(w.role) << " worker " << w.address
                    << (listed ? " is listed again" : " is no longer listed");
  }
}

std::vector<int> Membership::Watched() const {
  absl::MutexLock lock(&mutex_);
  std::vector<int> watched;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    if (workers_[i].hold != nullptr) watched.push_back(i);
  }
  return watched;
}

int64_t Membership::roster_version() const {
  absl::MutexLock lock(&mutex_);
  return roster_version_;
}

std::vector<int> Membership::Departed() const {
  absl::MutexLock lock(&mutex_);
  std::vector<int> departed;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    const Worker& w = workers_[i];
    // Ours is the last hold: others are made here, of listed workers, or are copies.
    if (w.hold != nullptr && !w.listed && w.hold.use_count() == 1) departed.push_back(i);
  }
  return departed;
}

bool Membership::Release(int worker) {
  absl::MutexLock lock(&mutex_);
  Worker& w = workers_[worker];
  if (w.listed || w.hold.use_count() != 1) return false;
  DropKnowledge(worker);
  index_.SetCapacity(worker, 0);
  w = Worker();
  free_.push_back(worker);
  return true;
}

int Membership::worker_count() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(workers_.size());
}

std::string Membership::address(int worker) const {
  absl::MutexLock lock(&mutex_);
  return workers_[worker].address;
}

}  // namespace baton::router
