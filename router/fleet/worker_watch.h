// Keeps one Watch stream open to every worker of the roster, and passes each event to the roster.
#ifndef BATON_ROUTER_FLEET_WORKER_WATCH_H_
#define BATON_ROUTER_FLEET_WORKER_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/rpc/channel.h"
#include "router/fleet/channel_user.h"
#include "router/fleet/roster.h"

namespace baton::router {

// Start and Stop once each, by the owner.
class WorkerWatch {
 public:
  // `on_change(ready)` is called on the watch's thread after any event that may have changed the
  // roster; `ready` is Roster::Ready(): the router can serve requests. `channel_user` keeps the
  // channels to workers, which are made with `security`, and frees what it keeps of a worker that
  // has left the roster. The referenced arguments must outlive the WorkerWatch.
  WorkerWatch(Roster& roster, ChannelUser& channel_user, const Clock& clock,
              std::function<void(bool ready)> on_change, ChannelSecurity security = {});
  ~WorkerWatch();

  void Start();
  // Ends all streams and joins the thread. Channels stay connected.
  void Stop();
  // Makes the thread apply changes of the roster now, not at its next periodic check. Thread-safe.
  void Wake();
  // Returns the stub of a worker that is watched, else null. Thread-safe. The caller keeps a hold
  // on the worker, and releases it after the stub: the watch's thread must be the one that ends the
  // channel.
  std::shared_ptr<internal::v1::WorkerService::Stub> Stub(int worker);

 private:
  class Stream;
  // One worker that is watched.
  struct Slot {
    std::shared_ptr<internal::v1::WorkerService::Stub> stub;
    std::unique_ptr<Stream> stream;
    bool ended = false;       // no callback of the stream comes any more: it may be destroyed
    absl::Duration retry_at;  // on `clock_`
    absl::Duration backoff;
  };

  void Run();
  void FollowRoster() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseDeparted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReapEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OpenDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnyOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // was_established: the worker had sent something, so the next attempt starts with the shortest
  // backoff. was_refused: the roster refused what the worker sent (another model, say).
  void OnEnded(int worker, bool was_established, bool was_refused);

  Roster& roster_;
  ChannelUser& channel_user_;
  const Clock& clock_;
  const std::function<void(bool)> on_change_;
  const ChannelSecurity security_;

  absl::Mutex mutex_;
  absl::CondVar wake_;
  std::map<int, Slot> slots_ ABSL_GUARDED_BY(mutex_);  // by the worker's number
  int64_t roster_version_ ABSL_GUARDED_BY(mutex_) = -1;
  bool awake_ ABSL_GUARDED_BY(mutex_) = true;  // the first streams are due at once
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_WORKER_WATCH_H_
