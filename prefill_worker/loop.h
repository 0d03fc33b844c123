// The prefill worker's compute loop: schedules jobs, runs steps, sends each layer's KV as it is
// written.
#ifndef BATON_PREFILL_WORKER_LOOP_H_
#define BATON_PREFILL_WORKER_LOOP_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/engine/engine.h"
#include "common/worker/cache_journal.h"
#include "common/worker/kv_service.h"
#include "common/worker/step_cost.h"
#include "common/worker/throughput.h"
#include "common/worker/watch_service.h"
#include "common/worker/worker_loop.h"
#include "prefill_worker/kv_fetcher.h"
#include "prefill_worker/kv_tiers.h"
#include "prefill_worker/metrics.h"
#include "prefill_worker/scheduler.h"

namespace baton::prefill_worker {

struct LoopOptions : worker::WorkerLoopOptions {
  SchedulerOptions scheduler;
  KvFetcherOptions kv_fetch;
  KvTiersOptions kv_tiers;
};

// Submit, Cancel and Offer are thread-safe. The rest is as in WorkerLoop.
class PrefillLoop final : public worker::WorkerLoop {
 public:
  // Offers that the loop has not answered; more are refused.
  static constexpr int kMostOffers = 32;

  // All references must outlive the loop. `publish` is called on the loop thread.
  PrefillLoop(const LoopOptions& options, engine::Engine& engine, worker::CacheJournal& journal,
              const Clock& clock, PrefillMetrics& metrics,
              std::function<void(const worker::WorkerLoad&)> publish);
  ~PrefillLoop() override { Stop(); }

  // The job's sink gets its results, and its Finish, perhaps before Submit returns: a full queue
  // refuses at once.
  void Submit(std::unique_ptr<PrefillJob> job);
  // The same for the items of one call, which count as one request.
  void Submit(std::vector<std::unique_ptr<PrefillJob>> items);
  void Cancel(uint64_t job_id);
  // Answers at once or from the loop's thread. RESOURCE_EXHAUSTED (QUEUE_FULL), UNAVAILABLE
  // (DRAINING).
  void Offer(worker::KvOffer offer, worker::AnswerOffer answer);
  absl::Duration UntilNextHeartbeat() const override;

  // The methods below REQUIRE !own_thread.
  void CheckIntegrity() const override;
  const kv::BlockCounts& block_counts() const { return pool_.counts(); }
  bool tiers_idle() const { return tiers_.idle(); }
  bool tiers_probing() const { return tiers_.probing(); }

 private:
  class LayerSender;
  bool Work() override;
  void EndRequests() override;
  bool quiet() const override { return fetcher_.idle() && tiers_.idle(); }
  void OnEnded() override { sending_.clear(); }
  void FillLoad(worker::WorkerLoad* load) override;
  void OnPublished(const worker::WorkerLoad& load) override;
  void AdmitAll(std::vector<std::unique_ptr<PrefillJob>> jobs);
  void Admit(std::unique_ptr<PrefillJob> job);
  void Start(PrefillJob& job);
  void Step(const std::vector<Chunk>& chunks);
  // Scores the labels of the prompts that the step has completed. Those of several tokens take
  // further steps.
  void CompleteScoring(const std::vector<std::pair<PrefillJob*, engine::StepResult*>>& scored);
  void Complete(PrefillJob& job, const engine::StepResult& result);
  void EndCompleted(PrefillJob& job);
  void End(uint64_t job_id, const absl::Status& status);
  void SendHeartbeats();

  const LoopOptions options_;
  PrefillMetrics& metrics_;
  KvFetcher fetcher_;
  KvTiers tiers_;
  std::atomic<int> offers_{0};  // not answered
  PrefillScheduler scheduler_;
  worker::Throughput throughput_;
  worker::StepCost cost_{worker::kPrefillShape};
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
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_LOOP_H_
