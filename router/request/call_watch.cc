#include "router/request/call_watch.h"

#include <utility>

namespace baton::router {

CallWatch::CallWatch(absl::Duration period, bool own_thread) : period_(period) {
  if (own_thread) thread_ = std::thread([this] { Run(); });
}

void CallWatch::Add(std::weak_ptr<WatchedCall> call) {
  absl::MutexLock lock(&mutex_);
  calls_.push_back(std::move(call));
}

void CallWatch::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

std::vector<std::shared_ptr<WatchedCall>> CallWatch::Live() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<WatchedCall>> live;
  std::vector<std::weak_ptr<WatchedCall>> kept;
  for (std::weak_ptr<WatchedCall>& call : calls_) {
    std::shared_ptr<WatchedCall> strong = call.lock();
    if (strong == nullptr) continue;
    live.push_back(std::move(strong));
    kept.push_back(std::move(call));
  }
  calls_ = std::move(kept);
  return live;
}

void CallWatch::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), period_)) return;
    }
    Turn();
  }
}

void CallWatch::Turn() {
  for (const auto& call : Live()) call->OnTick();
}

}  // namespace baton::router
