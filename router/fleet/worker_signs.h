// What is known of whether a worker's process still lives.
#ifndef BATON_ROUTER_FLEET_WORKER_SIGNS_H_
#define BATON_ROUTER_FLEET_WORKER_SIGNS_H_

#include "absl/time/time.h"
#include "router/fleet/worker.h"

namespace baton::router {

// Thread-safe.
class WorkerSigns {
 public:
  virtual ~WorkerSigns() = default;
  // True if more than one lost stream speaks against the process; false for kNoWorker.
  virtual bool LooksDead(const WorkerTarget& target) const = 0;
  // Time since the last message of the process that has the worker's number. REQUIRES: not
  // kNoWorker.
  virtual absl::Duration SilenceOf(int worker) const = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_WORKER_SIGNS_H_
