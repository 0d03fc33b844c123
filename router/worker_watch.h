// Keeps one Watch stream open to every worker and feeds what it says to the Membership.
#ifndef BATON_ROUTER_WORKER_WATCH_H_
#define BATON_ROUTER_WORKER_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "common/base/clock.h"
#include "router/membership.h"

namespace baton::router {

// Start and Stop once each, by the owner.
class WorkerWatch {
 public:
  // One channel per worker, numbered as in `membership`. `on_change(ready)` is called on the
  // watch's own thread after anything may have changed; `ready` as in Membership::Ready().
  WorkerWatch(Membership& membership, std::vector<std::shared_ptr<grpc::Channel>> channels,
              const Clock& clock, std::function<void(bool ready)> on_change);
  ~WorkerWatch();

  void Start();
  // Ends all streams and joins the thread.
  void Stop();

 private:
  class Stream;
  struct Slot {
    std::unique_ptr<internal::v1::WorkerService::Stub> stub;
    std::unique_ptr<Stream> stream;
    bool ended = false;  // the stream has said its last word and may be destroyed
    absl::Duration retry_at;
    absl::Duration backoff;
  };

  void Run();
  void ReapEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OpenDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnyOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake();
  void OnEnded(int worker, bool was_established, bool was_refused);

  Membership& membership_;
  const Clock& clock_;
  const std::function<void(bool)> on_change_;

  absl::Mutex mutex_;
  absl::CondVar wake_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  bool awake_ ABSL_GUARDED_BY(mutex_) = true;  // the first streams are due at once
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_WATCH_H_
