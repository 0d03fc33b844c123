// Implements WorkerService's RPCs: reports this worker's identity, load and prefix cache to every
// router, and passes the routers' drains and flushes on to the worker.
#ifndef BATON_COMMON_WORKER_WATCH_SERVICE_H_
#define BATON_COMMON_WORKER_WATCH_SERVICE_H_

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "common/base/clock.h"
#include "common/security/shared_secret.h"
#include "common/worker/cache_journal.h"
#include "common/worker/watch_report.h"

namespace baton::worker {

// What an operator asks of a worker while the worker's process runs.
struct WorkerControls {
  // Calls `applied` once the worker has published the change; not if it returns an error.
  std::function<absl::Status(bool draining, std::function<void()> applied)> set_draining;
  // Calls `done` with the number of blocks that were evicted.
  std::function<void(std::function<void(int)> done)> flush_cache;
  // No call of a router or a decode worker is open: the last byte of each has been sent.
  std::function<bool()> no_open_calls;
};

// The error of a worker that is about to end: UNAVAILABLE (DRAINING).
absl::Status ShuttingDown();

// Thread-safe.
class WatchService final : public internal::v1::WorkerService::CallbackService {
 public:
  // Callers must have `secret`, unless it is null. All references must outlive it.
  WatchService(internal::v1::WorkerCard card, const CacheJournal& journal, const Clock& clock,
               security::SharedSecret* secret = nullptr);
  ~WatchService() override;

  // Call once, before the service is served.
  void SetControls(WorkerControls controls);

  // Calls `accepted` once, from this service's thread, when as many routers as `routers` says hold
  // the worker's card and cache. A router that refuses the worker ends its stream at once; one
  // whose stream is still open after kAcceptedAfter has accepted it. This service's thread asks
  // `routers` for the number until then, at least every kHeartbeat; nothing: it is not known yet.
  // `routers` must neither wait nor call the service. Call at most once, before Stop().
  void OnAccepted(std::function<std::optional<int>()> routers, std::function<void()> accepted);
  static constexpr absl::Duration kAcceptedAfter = absl::Seconds(2);

  // The period is well below the second for which a worker may pause without an alarm in a router.
  static constexpr absl::Duration kHeartbeat = absl::Milliseconds(250);
  // Call from the loop whenever something may have changed. It is cheap: a thread of this service
  // sends the reports, no more often than every 20 ms, and repeats the last one every kHeartbeat.
  // Reports therefore show that the process is alive. That its loop is alive shows in the
  // heartbeats of its streams.
  void Publish(const WorkerLoad& load);
  // Ends all Watch streams and waiting calls with UNAVAILABLE, so that the server can stop.
  // Idempotent.
  void Stop();

  const internal::v1::WorkerCard& card() const { return card_; }

  grpc::ServerWriteReactor<internal::v1::WatchResponse>* Watch(
      grpc::CallbackServerContext* context, const internal::v1::WatchRequest* request) override;
  // Returns the number of blocks in each state, as of the last Publish. Leak checks call it.
  grpc::ServerUnaryReactor* GetBlockCounts(grpc::CallbackServerContext* context,
                                           const internal::v1::GetBlockCountsRequest* request,
                                           internal::v1::GetBlockCountsResponse* response) override;
  grpc::ServerUnaryReactor* SetDraining(grpc::CallbackServerContext* context,
                                        const internal::v1::SetDrainingRequest* request,
                                        internal::v1::SetDrainingResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const internal::v1::FlushCacheRequest* request,
                                       internal::v1::FlushCacheResponse* response) override;

 private:
  class Watcher;
  // A SetDraining call that is answered when the worker is drained.
  struct DrainWait {
    grpc::CallbackServerContext* context;
    grpc::ServerUnaryReactor* reactor;
    internal::v1::SetDrainingResponse* response;
  };

  void Run();
  absl::Status CheckEpoch(uint64_t epoch) const;
  // The loop has published the change that the call asks for.
  void OnDrainingSet(const DrainWait& call, bool wait);
  // The last load, drained only if no call is open.
  WorkerLoad Load() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Ends the calls that wait for a drain that is over, one way or another.
  void EndDrainWaits(const WorkerLoad& load) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasNews() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || news_; }
  // OnAccepted's function, once it is to be called; else null.
  std::function<void()> TakeOnAccepted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends a report. False, sending nothing, if the watcher has not read all earlier reports.
  bool Report(Watcher& watcher, const WorkerLoad& load);

  const internal::v1::WorkerCard card_;
  const CacheJournal& journal_;
  const Clock& clock_;
  WorkerControls controls_;  // constant once served
  security::SharedSecret* const secret_;
  absl::Mutex mutex_;
  WorkerLoad load_ ABSL_GUARDED_BY(mutex_);
  bool news_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // How many routers on_accepted_ waits for.
  std::function<std::optional<int>()> accepting_routers_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_accepted_ ABSL_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
  std::list<DrainWait> drain_waits_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_WATCH_SERVICE_H_
