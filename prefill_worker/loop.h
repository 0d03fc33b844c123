// The prefill worker's compute loop: schedules jobs, runs steps, sends each layer's KV as it is
// written. The loop runs on its thread, or the owner calls Turn(), as the simulation does.
#ifndef BATON_PREFILL_WORKER_LOOP_H_
#define BATON_PREFILL_WORKER_LOOP_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mailbox.h"
#include "common/engine/engine.h"
#include "common/worker/cache_journal.h"
#include "common/worker/kv_holder.h"
#include "common/worker/kv_service.h"
#include "common/worker/step_cost.h"
#include "common/worker/submission_limit.h"
#include "common/worker/throughput.h"
#include "common/worker/watch_service.h"
#include "prefill_worker/kv_fetcher.h"
#include "prefill_worker/kv_tiers.h"
#include "prefill_worker/metrics.h"
#include "prefill_worker/scheduler.h"

namespace baton::prefill_worker {

struct LoopOptions {
  SchedulerOptions scheduler;
  bool enable_prefix_caching = true;
  double max_retained_share = 0.25;  // of the pool's blocks
  worker::KvHolderOptions kv_holder;
  KvFetcherOptions kv_fetch;
  KvTiersOptions kv_tiers;
  // False: the loop works only in Turn() and Stop().
  bool own_thread = true;
};

// Submit, Cancel, SetDraining, FlushCache, Offer and kv_holder() are thread-safe. The rest runs on
// the loop's thread, or on the thread that calls Turn().
class PrefillLoop {
 public:
  // The sinks of jobs that wait or run get one each time.
  static constexpr absl::Duration kHeartbeat = absl::Seconds(1);
  // Offers that the loop has not answered; more are refused.
  static constexpr int kMostOffers = 32;

  // All references must outlive the loop. `publish` is called on the loop thread.
  PrefillLoop(const LoopOptions& options, engine::Engine& engine, worker::CacheJournal& journal,
              const Clock& clock, PrefillMetrics& metrics,
              std::function<void(const worker::WorkerLoad&)> publish);
  ~PrefillLoop();

  // The job's sink gets its results, and its Finish, perhaps before Submit returns: a full queue
  // refuses at once.
  void Submit(std::unique_ptr<PrefillJob> job);
  // The same for the items of one call, which count as one request.
  void Submit(std::vector<std::unique_ptr<PrefillJob>> items);
  void Cancel(uint64_t job_id);
  // While draining, refuses new jobs with UNAVAILABLE; accepted jobs are completed. Calls `applied`
  // on the loop's thread after it has published the change, or at once if it has ended.
  void SetDraining(
      bool draining, std::function<void()> applied = [] {});
  // Evicts the cached blocks that nothing uses. Calls `done`, as above, with their number.
  void FlushCache(std::function<void(int)> done);
  // Answers at once or from the loop's thread. RESOURCE_EXHAUSTED (QUEUE_FULL), UNAVAILABLE
  // (DRAINING).
  void Offer(worker::KvOffer offer, worker::AnswerOffer answer);
  worker::KvHolder& kv_holder() { return holder_; }
  // Ends all jobs with UNAVAILABLE, waits until no gRPC thread writes fetched KV any more, and
  // joins the thread. Idempotent. Without own_thread, REQUIRES that all fetches have ended.
  void Stop();

  // The methods below REQUIRE !own_thread.
  // Handles submissions and cancels, waiting up to `wait` for the first, starts jobs, and runs at
  // most one step. True if it ran one; if not, there is nothing to do until the next message.
  bool Turn(absl::Duration wait);
  // Ends the process unless pool, cache and scheduler are consistent.
  void CheckIntegrity() const;
  const kv::BlockCounts& block_counts() const { return pool_.counts(); }
  bool tiers_idle() const { return tiers_.idle(); }
  bool tiers_probing() const { return tiers_.probing(); }

 private:
  class LayerSender;
  void Run();
  bool TakeTurn(absl::Duration wait);
  void EndAll();
  void AdmitAll(std::vector<std::unique_ptr<PrefillJob>> jobs);
  void Admit(std::unique_ptr<PrefillJob> job);
  void Start(PrefillJob& job);
  void Step(const std::vector<Chunk>& chunks);
  // Of the prompts that the step has completed. Labels of several tokens take further steps.
  void CompleteScoring(const std::vector<std::pair<PrefillJob*, engine::StepResult*>>& scored);
  void Complete(PrefillJob& job, const engine::StepResult& result);
  void EndCompleted(PrefillJob& job);
  void End(uint64_t job_id, const absl::Status& status);
  void SendHeartbeats();
  void Publish();

  const LoopOptions options_;
  engine::Engine& engine_;
  const Clock& clock_;
  PrefillMetrics& metrics_;
  const std::function<void(const worker::WorkerLoad&)> publish_;
  // Shared with the pins of frames in flight and with fetches, which may outlive the loop.
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  kv::BlockPool pool_;
  std::unique_ptr<kv::RadixCache> cache_;
  worker::KvHolder holder_;
  KvFetcher fetcher_;
  KvTiers tiers_;
  std::atomic<int> offers_{0};  // not answered
  PrefillScheduler scheduler_;
  worker::SubmissionLimit submission_limit_;
  worker::Throughput throughput_;
  worker::StepCost cost_{worker::kPrefillShape};
  absl::Duration last_accepted_at_;
  absl::Duration last_heartbeat_at_;
  std::optional<absl::Duration> step_ended_at_;  // unless there was no work after it
  int64_t computed_tokens_ = 0;                  // since the start
  // What started jobs send, kept until nothing refers to their blocks: an ended job may still have
  // frames in gRPC's buffers.
  struct Sending {
    kv::BlockLease lease;
    std::optional<absl::Duration> computed_at;  // the prompt; then `bytes` is set
    int64_t bytes = 0;                          // of KV, sent before or after
    transfer::Plane plane = transfer::Plane::kGrpc;
  };
  void OnSent(uint64_t job_id);
  absl::flat_hash_map<uint64_t, Sending> sending_;
  bool draining_ = false;
  bool stopping_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_LOOP_H_
