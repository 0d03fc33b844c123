// The prefill worker's one compute thread: takes jobs, runs steps, sends layers as they are
// written.
#ifndef BATON_PREFILL_WORKER_LOOP_H_
#define BATON_PREFILL_WORKER_LOOP_H_

#include <functional>
#include <memory>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "common/base/clock.h"
#include "common/base/mailbox.h"
#include "common/engine/engine.h"
#include "common/worker/cache_journal.h"
#include "common/worker/watch_service.h"
#include "prefill_worker/metrics.h"
#include "prefill_worker/scheduler.h"

namespace baton::prefill_worker {

struct LoopOptions {
  SchedulerOptions scheduler;
  bool enable_prefix_caching = true;
};

// Submit and Cancel are thread-safe; everything else happens on the loop's own thread.
class PrefillLoop {
 public:
  // All references must outlive the loop. `publish` is called on the loop thread.
  PrefillLoop(const LoopOptions& options, engine::Engine& engine, worker::CacheJournal& journal,
              const Clock& clock, PrefillMetrics& metrics,
              std::function<void(const worker::WorkerLoad&)> publish);
  ~PrefillLoop();

  // The job's sender gets the KV, or a status. The loop Finishes it, exactly once.
  void Submit(std::unique_ptr<PrefillJob> job);
  void Cancel(uint64_t job_id);
  // Refuses new jobs with UNAVAILABLE; those inside go on.
  void Drain();
  // Ends all jobs with UNAVAILABLE and joins the thread. Idempotent.
  void Stop();

 private:
  class LayerSender;
  void Run();
  void Admit(std::unique_ptr<PrefillJob> job);
  void Start(PrefillJob& job);
  bool Step();
  void Complete(PrefillJob& job, const engine::StepResult& result);
  void End(uint64_t job_id, const absl::Status& status);
  void Publish();

  engine::Engine& engine_;
  const Clock& clock_;
  PrefillMetrics& metrics_;
  const std::function<void(const worker::WorkerLoad&)> publish_;
  kv::BlockPool pool_;
  std::unique_ptr<kv::RadixCache> cache_;
  PrefillScheduler scheduler_;
  // Leases of jobs that have started, until nothing refers to their bytes any more: a job that
  // ended may still have frames in gRPC's buffers.
  absl::flat_hash_map<uint64_t, kv::BlockLease> leases_;
  bool draining_ = false;
  bool stopping_ = false;
  // Shared with the pins of frames in flight, which may outlive the loop.
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::thread thread_;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_LOOP_H_
