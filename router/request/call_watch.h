// Ticks every live request several times a second.
#ifndef BATON_ROUTER_REQUEST_CALL_WATCH_H_
#define BATON_ROUTER_REQUEST_CALL_WATCH_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton::router {

class WatchedCall {
 public:
  virtual ~WatchedCall() = default;
  // On the watch's thread, or the one that calls Turn().
  virtual void OnTick() = 0;
};

// One thread for all requests: a timer per request would have to be reset with every token.
// Thread-safe, except Turn and Stop, which are for the owner.
class CallWatch {
 public:
  // Without a thread, `period` means nothing and the owner calls Turn().
  explicit CallWatch(absl::Duration period, bool own_thread = true);
  ~CallWatch() { Stop(); }

  // Ticks the call until it is destroyed. Admission bounds the number of live calls.
  void Add(std::weak_ptr<WatchedCall> call);
  // One look at every live call.
  void Turn();
  // Joins the thread.
  void Stop();

 private:
  void Run();

  const absl::Duration period_;
  absl::Mutex mutex_;
  std::vector<std::weak_ptr<WatchedCall>> calls_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_CALL_WATCH_H_
