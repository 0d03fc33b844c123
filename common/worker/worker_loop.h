// What the compute loops of both workers share: messages, the KV pool and its prefix cache, drains,
// reports, and an end after which nothing writes into the pool. What a step is, the worker says.
#ifndef BATON_COMMON_WORKER_WORKER_LOOP_H_
#define BATON_COMMON_WORKER_WORKER_LOOP_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mailbox.h"
#include "common/engine/engine.h"
#include "common/kv/block_pool.h"
#include "common/kv/radix_cache.h"
#include "common/worker/cache_journal.h"
#include "common/worker/kv_exchange_metrics.h"
#include "common/worker/kv_holder.h"
#include "common/worker/mid_step_mailbox.h"
#include "common/worker/watch_service.h"
#include "common/worker/worker_metrics.h"

namespace baton::worker {

struct WorkerLoopOptions {
  bool enable_prefix_caching = true;
  double max_retained_share = 0.25;  // of the pool's blocks
  double max_snapshot_share = 0.5;   // of its pages: RetentionLimits
  bool superseded_first = true;      // likewise
  KvHolderOptions kv_holder;
  // False: the loop works only in Turn() and Stop(), as in the simulation.
  bool own_thread = true;
};

// What the parts of a loop use of it. They live within the loop; only the mailbox may outlive it.
struct LoopParts {
  engine::Engine& engine;
  const Clock& clock;
  CacheJournal& journal;
  const std::shared_ptr<Mailbox> mailbox;
  kv::BlockPool& pool;
  kv::RadixCache* const cache;  // null: without prefix caching
  const std::string role;       // "prefill" or "decode"
  const bool& draining;         // the loop's thread reads it
};

// What a worker that drains says to new requests: UNAVAILABLE (DRAINING).
absl::Status DrainingError(absl::string_view role);

// SetDraining, FlushCache, Stop and kv_holder() are thread-safe. The rest runs on the loop's
// thread, or on the thread that calls Turn().
class WorkerLoop {
 public:
  // What waits or runs here sends a sign of life to its caller after this time without a message.
  static constexpr absl::Duration kHeartbeat = absl::Seconds(1);

  WorkerLoop(const WorkerLoop&) = delete;
  WorkerLoop& operator=(const WorkerLoop&) = delete;
  // REQUIRES: Stop() has been called.
  virtual ~WorkerLoop();

  // While draining, refuses new requests with UNAVAILABLE; accepted ones are completed. Calls
  // `applied` on the loop's thread after it has published the change, or at once if it has ended.
  void SetDraining(
      bool draining, std::function<void()> applied = [] {});
  // Evicts the cached blocks that nothing uses. Calls `done`, as above, with their number.
  void FlushCache(std::function<void(int)> done);
  KvHolder& kv_holder() { return holder_; }
  // Ends all requests with UNAVAILABLE, waits until no gRPC thread writes into the pool any more,
  // and joins the thread. Idempotent. Without own_thread, REQUIRES that nothing writes.
  void Stop();

  // REQUIRES: !own_thread. Handles messages, waiting up to `wait` for the first, admits, and runs
  // at most one step. True if it ran one; if not, there is nothing to do until the next message or
  // heartbeat.
  bool Turn(absl::Duration wait);
  // After a Turn that ran no step, pass at most this as the next `wait`, so that heartbeats are on
  // time.
  virtual absl::Duration UntilNextHeartbeat() const = 0;
  // For tests, between calls of Turn: ends the process unless pool and cache are consistent.
  virtual void CheckIntegrity() const;

 protected:
  // role: "prefill" or "decode". All references must outlive the loop. `publish` is called on the
  // loop's thread.
  WorkerLoop(const WorkerLoopOptions& options, const std::string& role, engine::Engine& engine,
             CacheJournal& journal, const Clock& clock, WorkerMetrics& metrics,
             KvExchangeMetrics& kv_exchange, std::function<void(const WorkerLoad&)> publish);
  // The last statement of the worker's constructor.
  void StartThread();

  // From now on Submit refuses at once, or no more. Thread-safe.
  virtual void RefuseNew(bool draining) = 0;
  // Messages have been handled: admits requests and runs at most one step. True if it ran one.
  virtual bool Work() = 0;
  // Ends all requests with Draining(), and cancels the calls that write into the pool.
  virtual void EndRequests() = 0;
  // No call writes into the pool, and none is open.
  virtual bool quiet() const = 0;
  // The loop has ended, and no message will come any more.
  virtual void OnEnded() {}
  // Adds to what the loop knows: counts, free and retained blocks, draining, times.
  virtual void FillLoad(WorkerLoad* load) = 0;
  // Evicts what nothing uses of caches that are not the loop's own.
  virtual void FlushFurtherCaches() {}
  // `load` has been published.
  virtual void OnPublished(const WorkerLoad& load) = 0;

  absl::Status Draining() const { return DrainingError(role_); }
  // True while draining, and from Stop() on.
  bool draining() const { return draining_; }
  void Publish();
  // Handles the messages that are there. For Work(), where it has accepted requests itself.
  void TakeMessages();
  LoopParts parts() {
    return {engine_, clock_, journal_, mailbox_, pool_, cache_.get(), role_, draining_};
  }

  engine::Engine& engine_;
  const Clock& clock_;
  // Shared with open transfers and with pins of frames in flight, which may outlive the loop.
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  // It has what cannot wait for the end of a step, whose engine runs in mid_step_->During().
  const std::shared_ptr<MidStepMailbox> mid_step_;
  kv::BlockPool pool_;
  const std::unique_ptr<kv::RadixCache> cache_;  // null: without prefix caching
  KvHolder holder_;

 private:
  void Run();
  bool TakeTurn(absl::Duration wait);
  void EndAll();

  const WorkerLoopOptions options_;
  const std::string role_;
  CacheJournal& journal_;
  const std::function<void(const WorkerLoad&)> publish_;
  absl::Duration last_accepted_at_;  // when requests were last accepted; reported to routers
  bool draining_ = false;
  bool stopping_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_WORKER_LOOP_H_
