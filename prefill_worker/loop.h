// The prefill worker's compute loop: takes jobs, runs steps, sends layers as they are written. It
// runs on a thread of its own, or is turned by its owner, who then holds all of its time.
#ifndef BATON_PREFILL_WORKER_LOOP_H_
#define BATON_PREFILL_WORKER_LOOP_H_

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mailbox.h"
#include "common/engine/engine.h"
#include "common/worker/cache_journal.h"
#include "common/worker/intake.h"
#include "common/worker/step_cost.h"
#include "common/worker/throughput.h"
#include "common/worker/watch_service.h"
#include "prefill_worker/metrics.h"
#include "prefill_worker/scheduler.h"

namespace baton::prefill_worker {

struct LoopOptions {
  SchedulerOptions scheduler;
  bool enable_prefix_caching = true;
  // Without: nothing happens but in Turn() and Stop().
  bool own_thread = true;
};

// Submit, Cancel and Drain are thread-safe; everything else happens on the loop's own thread, or on
// the one that turns it.
class PrefillLoop {
 public:
  // All references must outlive the loop. `publish` is called on the loop thread.
  PrefillLoop(const LoopOptions& options, engine::Engine& engine, worker::CacheJournal& journal,
              const Clock& clock, PrefillMetrics& metrics,
              std::function<void(const worker::WorkerLoad&)> publish);
  ~PrefillLoop();

  // The job's sender gets the KV, or a status. The loop Finishes it, exactly once, perhaps before
  // Submit returns: what the queue has no room for is refused at once.
  void Submit(std::unique_ptr<PrefillJob> job);
  void Cancel(uint64_t job_id);
  // Refuses new jobs with UNAVAILABLE; those inside go on.
  void Drain();
  // Ends all jobs with UNAVAILABLE and joins the thread. Idempotent.
  void Stop();

  // REQUIRES of what follows: !own_thread.
  // Takes what was submitted and cancelled, waiting up to `wait` for it, starts jobs, and runs at
  // most one step. True if it ran one: otherwise, only a message can give it something to do.
  bool Turn(absl::Duration wait);
  // Ends the process unless pool, cache and scheduler agree with themselves and each other.
  void CheckIntegrity() const;
  const kv::BlockCounts& block_counts() const { return pool_.counts(); }

 private:
  class LayerSender;
  void Run();
  bool TakeTurn(absl::Duration wait);
  void EndAll();
  void Admit(std::unique_ptr<PrefillJob> job);
  void Start(PrefillJob& job);
  void Step(const std::vector<Chunk>& chunks);
  void Complete(PrefillJob& job, const engine::StepResult& result);
  void End(uint64_t job_id, const absl::Status& status);
  void Publish();

  const LoopOptions options_;
  engine::Engine& engine_;
  const Clock& clock_;
  PrefillMetrics& metrics_;
  const std::function<void(const worker::WorkerLoad&)> publish_;
  kv::BlockPool pool_;
  std::unique_ptr<kv::RadixCache> cache_;
  PrefillScheduler scheduler_;
  worker::Intake intake_;
  worker::Throughput throughput_;
  worker::StepCost cost_{worker::kPrefillShape};
  absl::Duration taken_in_at_;
  // Leases of jobs that have started, until nothing refers to their bytes any more: a job that
  // ended may still have frames in gRPC's buffers.
  absl::flat_hash_map<uint64_t, kv::BlockLease> leases_;
  bool draining_ = false;
  bool stopping_ = false;
  bool ended_ = false;
  // Shared with the pins of frames in flight, which may outlive the loop.
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::thread thread_;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_LOOP_H_
