// The jobs of a worker's loop: prompts that it computes for their sinks (job_sink.h). It schedules
// them, adds their chunks to the loop's steps, sends each layer's KV as it is written, and brings
// cached KV from tiers and other workers before they start.
//
// A prefill worker's steps have nothing else (loop.h); a decode worker's have answers, too.
#ifndef BATON_COMMON_PREFILL_JOBS_H_
#define BATON_COMMON_PREFILL_JOBS_H_

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/prefill_work.h"
#include "common/engine/engine.h"
#include "common/prefill/kv_fetcher.h"
#include "common/prefill/kv_tiers.h"
#include "common/prefill/metrics.h"
#include "common/prefill/scheduler.h"
#include "common/worker/kv_service.h"
#include "common/worker/step_cost.h"
#include "common/worker/submission_limit.h"
#include "common/worker/throughput.h"
#include "common/worker/watch_service.h"
#include "common/worker/worker_loop.h"

namespace baton::prefill {

struct JobsOptions {
  SchedulerOptions scheduler;
  KvFetcherOptions kv_fetch;
  KvTiersOptions kv_tiers;
};

// Submit, Cancel, Offer and RefuseNew are thread-safe. The rest runs on the loop's thread.
class PrefillJobs {
 public:
  // Offers that the loop has not answered; more are refused.
  static constexpr int kMostOffers = 32;
  // A job that could not start for so long while no job runs is refused (scheduler.h).
  static constexpr absl::Duration kLongestWait = absl::Seconds(5);

  // `cost`: of prompts on this worker; the loop adds its steps. All references must outlive it.
  PrefillJobs(const JobsOptions& options, const worker::LoopParts& loop, worker::StepCost& cost,
              JobMetrics& metrics, worker::KvExchangeMetrics& kv_exchange);

  // The job's sink gets its results, and its Finish, perhaps before Submit returns: a full queue
  // refuses at once.
  void Submit(std::unique_ptr<PrefillJob> job);
  // The same for the items of one call, which count as one request.
  void Submit(std::vector<std::unique_ptr<PrefillJob>> items);
  void Cancel(uint64_t job_id);
  // Answers at once or from the loop's thread. RESOURCE_EXHAUSTED (QUEUE_FULL), UNAVAILABLE
  // (DRAINING).
  void Offer(worker::KvOffer offer, worker::AnswerOffer answer);
  // Does for jobs what WorkerLoop::RefuseNew asks for.
  void RefuseNew(bool draining) { submission_limit_.SetDraining(draining); }

  // For a prompt that is computed otherwise than as a job: brings KV of it that tiers or another
  // worker have, if that is sooner than computing it. prompt.fetching is true until that has ended,
  // during a message or Tick(). The prompt must stay where it is until then, or Leave.
  void Bring(Prompt& prompt);
  void Leave(Prompt& prompt);
  // The prompt's KV is in the prefix cache.
  void Used(const Prompt& prompt) { tiers_.Used(prompt); }
  // False: Bring has nowhere to look.
  bool brings() const { return !options_.kv_tiers.stores.empty() || options_.kv_fetch.start; }

  // Starts jobs and plans their part of a step. False: they have none.
  bool Plan(const StepRoom& room);
  int planned_tokens() const;
  const PrefillWork& planned_work() const { return planned_work_; }
  // Adds an entry for each planned chunk; they stay valid until OnStep.
  void AddTo(engine::Batch& batch) const;
  // The step of the plan begins: to be passed to Engine::Step.
  model::LayerObserver* OnStepBegins();
  // The step has ended. `results`: of the entries that AddTo added. Runs further steps for labels
  // of several tokens.
  void OnStepEnded(absl::Span<engine::StepResult> results);
  // Once a turn of the loop, after its step, if any.
  void Tick();

  // As PrefillScheduler::blocked: no answer may take the blocks that such a job waits for.
  bool blocked() const { return scheduler_.blocked() != nullptr; }

  // Ends all jobs with DRAINING, and cancels the calls that write into the pool.
  void EndAll();
  bool quiet() const { return fetcher_.idle() && tiers_.idle(); }
  // The loop has ended, and no message will come any more.
  void OnLoopEnded() { sending_.clear(); }

  bool empty() const { return scheduler_.empty(); }
  int running_count() const { return scheduler_.running_count(); }
  int waiting_count() const { return scheduler_.waiting_count(); }
  int64_t queued_tokens() const { return scheduler_.queued_tokens(); }
  PrefillWork remaining_work() const { return scheduler_.remaining_work(); }
  // Held by fetches and for tiers: they become free by themselves.
  int64_t reserved_pages() const { return fetcher_.reserved_pages() + tiers_.reserved_pages(); }
  int open_transfers() const { return static_cast<int>(sending_.size()); }
  int computing_transfers() const;  // of them, those whose jobs still run
  int64_t computed_tokens() const { return computed_tokens_; }  // since the start
  absl::Duration tier_load_time() const { return tiers_.load_time(); }
  void ReportUsage() { tiers_.ReportUsage(); }

  // For tests.
  void CheckIntegrity() const { scheduler_.CheckIntegrity(); }
  bool tiers_idle() const { return tiers_.idle(); }
  bool tiers_probing() const { return tiers_.probing(); }

 private:
  // Sends each layer of the planned chunks whose KV another worker needs, while the next layer
  // computes.
  class LayerSender final : public model::LayerObserver {
   public:
    explicit LayerSender(const PrefillJobs& jobs) : jobs_(jobs) {}
    void OnLayerWritten(int layer, std::shared_ptr<const backend::Event> event) override;
    // Sends the pieces of the prompt's state that are whole with this layer.
    void OnStateWritten(int layer, std::shared_ptr<const backend::Event> event) override;

   private:
    const PrefillJobs& jobs_;
  };

  void AdmitAll(std::vector<std::unique_ptr<PrefillJob>> jobs);
  void Admit(std::unique_ptr<PrefillJob> job);
  void Start(PrefillJob& job);
  void PinWindows(const Chunk& chunk);
  // Scores the labels of the prompts that the step has completed. Those of several tokens take
  // further steps.
  void CompleteScoring(const std::vector<std::pair<PrefillJob*, engine::StepResult*>>& scored);
  void Complete(PrefillJob& job, const engine::StepResult& result);
  void EndCompleted(PrefillJob& job);
  void End(uint64_t job_id, const absl::Status& status);
  void UpdateLimit();
  void RefuseBlocked();
  void SendHeartbeats();

  const JobsOptions options_;
  const worker::LoopParts loop_;
  worker::StepCost& cost_;
  JobMetrics& metrics_;
  worker::SubmissionLimit submission_limit_;
  KvFetcher fetcher_;
  KvTiers tiers_;
  std::atomic<int> offers_{0};  // not answered
  PrefillScheduler scheduler_;
  worker::Throughput throughput_;
  LayerSender layer_sender_{*this};
  const std::vector<int> pieces_behind_;  // KvPages
  std::vector<Chunk> planned_;
  PrefillWork planned_work_;
  bool full_step_ = false;  // the planned step has no room for more work
  absl::Duration step_began_at_;
  std::optional<absl::Duration> step_ended_at_;  // unless there was no work after it
  uint64_t blocked_job_ = 0;                     // since blocked_since_; 0: none
  absl::Duration blocked_since_;
  absl::Duration last_heartbeat_at_;
  int64_t computed_tokens_ = 0;
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
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_JOBS_H_
