#include "simulator/watch_wire.h"

namespace baton::simulator {

int WatchWire::Send(int worker, uint64_t epoch, const internal::v1::WatchResponse& event) {
  int slot;
  if (free_messages_.empty()) {
    slot = static_cast<int>(messages_.size());
    messages_.emplace_back();
  } else {
    slot = free_messages_.back();
    free_messages_.pop_back();
  }
  messages_[slot] = event;
  if (event.has_card()) heard_epoch_[worker] = epoch;
  return slot;
}

void WatchWire::Deliver(int worker, uint64_t epoch, int message, int64_t now_us) {
  if (heard_epoch_[worker] == epoch) {
    const internal::v1::WatchResponse& event = messages_[message];
    for (auto& router : routers_) {
      if (event.has_card()) router->OnStreamStarted(worker, now_us);
      router->OnEvent(worker, event, now_us);
    }
  }
  free_messages_.push_back(message);
}

void WatchWire::Lose(int worker, uint64_t epoch, int64_t now_us) {
  if (heard_epoch_[worker] == epoch) heard_epoch_[worker] = 0;
  for (auto& router : routers_) router->OnStreamLost(worker, now_us);
}

}  // namespace baton::simulator
