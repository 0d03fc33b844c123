// The way of what workers tell to all routers of a simulation.
#ifndef BATON_SIMULATOR_WATCH_WIRE_H_
#define BATON_SIMULATOR_WATCH_WIRE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "baton/internal/v1/worker.pb.h"
#include "simulator/sim_router.h"

namespace baton::simulator {

// Holds messages from the moment they are sent until the simulation says that they have come.
class WatchWire {
 public:
  // `routers` must outlive it.
  WatchWire(std::vector<std::unique_ptr<SimRouter>>* routers, int workers)
      : routers_(*routers), heard_epoch_(workers) {}

  // A process sends: the number of the message, for Deliver.
  int Send(int worker, uint64_t epoch, const internal::v1::WatchResponse& event);
  // It has come. What a dead process has sent may still come, but not after the loss of its stream.
  void Deliver(int worker, uint64_t epoch, int message, int64_t now_us);
  // Routers see that the stream of a process has ended.
  void Lose(int worker, uint64_t epoch, int64_t now_us);

 private:
  std::vector<std::unique_ptr<SimRouter>>& routers_;
  std::vector<uint64_t> heard_epoch_;  // by worker; 0: its stream has ended
  std::vector<internal::v1::WatchResponse> messages_;
  std::vector<int> free_messages_;
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_WATCH_WIRE_H_
