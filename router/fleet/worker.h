// How the router names a worker: its number, its address, and one process at that address.
#ifndef BATON_ROUTER_FLEET_WORKER_H_
#define BATON_ROUTER_FLEET_WORKER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/string_view.h"
#include "baton/v1/admin.pb.h"

namespace baton::router {

// Workers have numbers, small and dense: see Roster. No worker has this one.
inline constexpr int kNoWorker = -1;

// While any copy exists, the number of its worker is not given to another worker.
using WorkerHold = std::shared_ptr<const int>;

// One process among those that have a worker's number one after the other.
struct Incarnation {
  int worker = kNoWorker;
  uint64_t epoch = 0;

  friend bool operator==(const Incarnation& a, const Incarnation& b) {
    return a.worker == b.worker && a.epoch == b.epoch;
  }
};

// A process that a request can be sent to.
struct WorkerTarget {
  int worker = kNoWorker;
  std::string address;
  std::string worker_id;
  uint64_t epoch = 0;
  WorkerHold hold;
  bool takes_fixed_tokens = false;  // as in its card

  Incarnation incarnation() const { return {worker, epoch}; }
};

// Where a worker is listed, and in which role.
struct WorkerAddress {
  v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
  std::string address;  // host:port

  friend bool operator==(const WorkerAddress& a, const WorkerAddress& b) {
    return a.role == b.role && a.address == b.address;
  }
  friend bool operator<(const WorkerAddress& a, const WorkerAddress& b) {
    return std::tie(a.role, a.address) < std::tie(b.role, b.address);
  }
};

// "prefill", "decode"; "ready", "suspect", ...: as in logs and metric labels.
absl::string_view RoleName(v1::WorkerRole role);
absl::string_view StateName(v1::WorkerState state);

// The worker's Watch stream is established, and not silent.
inline bool Serving(v1::WorkerState state) {
  return state == v1::WORKER_STATE_READY || state == v1::WORKER_STATE_DRAINING ||
         state == v1::WORKER_STATE_DRAINED;
}

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_WORKER_H_
