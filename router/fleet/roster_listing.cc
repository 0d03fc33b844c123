// The part of Roster that knows which workers are listed, and which numbers they have.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "router/fleet/capabilities.h"
#include "router/fleet/roster.h"
#include "router/fleet/worker_costs.h"

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
  } else if (Serving(w.state)) {
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

v1::WorkerStatus Roster::StatusOf(int worker) const {
  const Worker& w = workers_[worker];
  v1::WorkerStatus status;
  status.set_address(w.address);
  status.set_role(w.role);
  status.set_state(w.state);
  status.set_detail(w.detail);
  if (w.card) {
    status.set_worker_id(w.card->worker_id());
    status.set_epoch(w.card->epoch());
    status.set_total_blocks(w.card->total_blocks());
    status.set_pool(w.card->pool());
    for (const auto capability : {v1::WORKER_CAPABILITY_COMPUTE, v1::WORKER_CAPABILITY_SCORE,
                                  v1::WORKER_CAPABILITY_ANSWER}) {
      if (Can(*w.card, capability)) status.add_capabilities(capability);
    }
  } else if (w.state == v1::WORKER_STATE_REFUSED) {
    status.set_worker_id(w.refused_id);
  }
  status.set_running(w.load.running());
  status.set_queued(w.load.queued());
  status.set_free_blocks(w.load.free_blocks());
  status.set_indexed_blocks(index_.key_count(worker));
  return status;
}

v1::WorkerStatus Roster::Status(int worker) const {
  absl::MutexLock lock(&mutex_);
  return StatusOf(worker);
}

std::vector<v1::WorkerStatus> Roster::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::WorkerStatus> list;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    if (workers_[i].hold != nullptr) list.push_back(StatusOf(i));
  }
  return list;
}

std::vector<v1::WorkerLoad> Roster::Loads() const {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_.SinceStart();
  std::vector<v1::WorkerLoad> loads;
  for (const Worker& w : workers_) {
    if (w.hold == nullptr) continue;
    v1::WorkerLoad& load = loads.emplace_back();
    load.set_address(w.address);
    load.set_role(w.role);
    load.set_state(w.state);
    if (!w.card || !w.load_at) continue;
    load.set_worker_id(w.card->worker_id());
    load.set_running(w.load.running());
    load.set_queued(w.load.queued());
    load.set_queued_tokens(w.load.queued_tokens());
    load.set_context_tokens(w.load.context_tokens());
    load.set_remaining_work_ms(static_cast<double>(w.load.remaining_work_us()) / 1000);
    load.set_total_blocks(w.card->total_blocks());
    load.set_cached_blocks(w.load.cached_blocks());
    load.set_active_blocks(w.load.active_blocks());
    load.set_held_blocks(w.load.held_blocks());
    load.set_retained_blocks(w.load.retained_blocks());
    load.set_free_blocks(load.total_blocks() - load.cached_blocks() - load.active_blocks() -
                         load.held_blocks());
    load.set_open_transfers(w.load.open_transfers());
    load.set_computed_prompt_tokens(w.load.computed_prompt_tokens());
    load.set_generated_tokens(w.load.generated_tokens());
    load.set_draft_tokens(w.load.draft_tokens());
    load.set_accepted_draft_tokens(w.load.accepted_draft_tokens());
    load.set_epoch(w.card->epoch());
    *load.mutable_costs() = WorkerCostsOf(*w.card, w.load, w.link_bytes_per_second);
    // An idle loop reads nothing anew until a request comes.
    const bool idle = w.load.running() + w.load.queued() == 0;
    load.set_age_ms((idle ? 0 : static_cast<double>(w.load.age_us()) / 1000) +
                    absl::ToDoubleMilliseconds(now - *w.load_at));
  }
  return loads;
}

absl::StatusOr<WorkerTarget> Roster::Find(absl::string_view name) const {
  absl::MutexLock lock(&mutex_);
  const Worker* found = nullptr;
  for (const Worker& w : workers_) {
    if (w.hold == nullptr || (w.address != name && (!w.card || w.card->worker_id() != name))) {
      continue;
    }
    // One address in two roles: the role that it has now counts.
    if (found == nullptr || w.listed) found = &w;
  }
  if (found == nullptr) {
    return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_WORKER",
                     absl::StrCat("this router knows no worker \"", name.substr(0, 300),
                                  "\"; an address or a worker id of ListWorkers expected"));
  }
  if (!found->card) {
    return MakeError(absl::StatusCode::kUnavailable, "NO_WORKER",
                     absl::StrCat("the worker at ", found->address, " is ", StateName(found->state),
                                  ": ", found->detail));
  }
  return found->Target();
}

std::string Roster::address(int worker) const {
  absl::MutexLock lock(&mutex_);
  return workers_[worker].address;
}

}  // namespace baton::router
