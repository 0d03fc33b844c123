// Implements WorkerService's RPCs: reports this worker's identity, load and prefix cache to every
// router.
#ifndef BATON_COMMON_WORKER_WATCH_SERVICE_H_
#define BATON_COMMON_WORKER_WATCH_SERVICE_H_

#include <list>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "common/base/clock.h"
#include "common/security/shared_secret.h"
#include "common/worker/cache_journal.h"
#include "common/worker/watch_report.h"

namespace baton::worker {

// Thread-safe.
class WatchService final : public internal::v1::WorkerService::CallbackService {
 public:
  // Callers must have `secret`, unless it is null. All references must outlive it.
  WatchService(internal::v1::WorkerCard card, const CacheJournal& journal, const Clock& clock,
               security::SharedSecret* secret = nullptr);
  ~WatchService() override;

  // Call from the loop whenever something may have changed. Cheap: a thread of this service sends
  // the reports, no more often than every 20 ms, and repeats the last one every second. Reports
  // therefore show that the process is alive. That its loop is alive shows in the heartbeats of its
  // streams.
  void Publish(const WorkerLoad& load);
  // Ends all Watch streams with UNAVAILABLE, so that the server can stop. Idempotent.
  void Stop();

  const internal::v1::WorkerCard& card() const { return card_; }

  grpc::ServerWriteReactor<internal::v1::WatchResponse>* Watch(
      grpc::CallbackServerContext* context, const internal::v1::WatchRequest* request) override;
  // Returns the number of blocks in each state, as of the last Publish. Leak checks call it.
  grpc::ServerUnaryReactor* GetBlockCounts(grpc::CallbackServerContext* context,
                                           const internal::v1::GetBlockCountsRequest* request,
                                           internal::v1::GetBlockCountsResponse* response) override;

 private:
  class Watcher;
  void Run();
  bool HasNews() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || news_; }
  // Sends a report. False, sending nothing, if the watcher has not read all earlier reports.
  bool Report(Watcher& watcher, const WorkerLoad& load);

  const internal::v1::WorkerCard card_;
  const CacheJournal& journal_;
  const Clock& clock_;
  security::SharedSecret* const secret_;
  absl::Mutex mutex_;
  WorkerLoad load_ ABSL_GUARDED_BY(mutex_);
  bool news_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_WATCH_SERVICE_H_
