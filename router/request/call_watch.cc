#include "router/request/call_watch.h"

#include <iterator>
#include <utility>

#include "common/base/named_thread.h"

namespace baton::router {

CallWatch::CallWatch(absl::Duration period, bool own_thread) : period_(period) {
  if (own_thread) thread_ = NamedThread("call-watch", [this] { Run(); });
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

void CallWatch::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), period_)) return;
    }
    Turn();
  }
}

// Without the lock, which Add would wait for while ten thousand are looked at.
void CallWatch::Turn() {
  std::vector<std::weak_ptr<WatchedCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    calls.swap(calls_);
  }
  std::erase_if(calls, [](const std::weak_ptr<WatchedCall>& watched) {
    const std::shared_ptr<WatchedCall> call = watched.lock();
    if (call != nullptr) call->OnTick();
    return call == nullptr;
  });
  absl::MutexLock lock(&mutex_);  // the older ones first
  calls.insert(calls.end(), std::make_move_iterator(calls_.begin()),
               std::make_move_iterator(calls_.end()));
  calls.swap(calls_);
}

}  // namespace baton::router
