// The part of Roster that knows which workers are listed, and which numbers they have.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "router/fleet/roster.h"

namespace baton::router {

absl::Status Roster::SetWorkers(absl::Span<const WorkerAddress> listed) {
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
  // Removals first: a worker that is listed again is compared with those that stay.
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

int Roster::TakeNumber() {
  if (!free_.empty()) {
    const int number = free_.back();
    free_.pop_back();
    return number;
  }
  workers_.emplace_back();
  const int count = static_cast<int>(workers_.size());
  index_.Grow(count);
  observer_->OnWorkerCount(count);
  return count - 1;
}

void Roster::Add(const WorkerAddress& worker) {
  const int number = TakeNumber();
  Worker& w = workers_[number];
  w.hold = std::make_shared<const int>(number);
  w.listed = true;
  w.role = worker.role;
  w.address = worker.address;
  ++roster_version_;
}

void Roster::SetListed(int worker, bool listed) {
  Worker& w = workers_[worker];
  if (w.listed == listed) return;
  w.listed = listed;
  // Workers of another model may have been established meanwhile.
  if (const absl::Status fits =
          w.card && listed ? CheckSameModel(worker, *w.card) : absl::OkStatus();
      !fits.ok()) {
    Forget(worker);
    SetState(worker, v1::WORKER_STATE_REFUSED, std::string(fits.message()));
  } else if (w.state == v1::WORKER_STATE_READY || w.state == v1::WORKER_STATE_DRAINING) {
    SetServingState(worker);
  } else {
    // A suspect worker that is not listed gets no request even where all are suspect.
    if (!listed) observer_->OnUnavailable(worker);
    BATON_LOG(Info) << RoleName(w.role) << " worker " << w.address
                    << (listed ? " is listed again" : " is no longer listed");
  }
}

std::vector<int> Roster::Watched() const {
  absl::MutexLock lock(&mutex_);
  std::vector<int> watched;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    if (workers_[i].hold != nullptr) watched.push_back(i);
  }
  return watched;
}

int64_t Roster::roster_version() const {
  absl::MutexLock lock(&mutex_);
  return roster_version_;
}

std::vector<int> Roster::Departed() const {
  absl::MutexLock lock(&mutex_);
  std::vector<int> departed;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    const Worker& w = workers_[i];
    // The last hold is the roster's: observers keep none of a worker that is not listed.
    if (w.hold != nullptr && !w.listed && w.hold.use_count() == 1) departed.push_back(i);
  }
  return departed;
}

bool Roster::Release(int worker) {
  absl::MutexLock lock(&mutex_);
  Worker& w = workers_[worker];
  if (w.listed || w.hold.use_count() != 1) return false;
  Forget(worker);
  index_.SetCapacity(worker, 0);
  w = Worker();
  free_.push_back(worker);
  return true;
}

int Roster::worker_count() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(workers_.size());
}

std::string Roster::address(int worker) const {
  absl::MutexLock lock(&mutex_);
  return workers_[worker].address;
}

}  // namespace baton::router
