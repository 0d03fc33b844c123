// The compute loop of a worker that only computes prompts: its steps are those of its jobs.
#ifndef BATON_COMMON_PREFILL_LOOP_H_
#define BATON_COMMON_PREFILL_LOOP_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/engine/engine.h"
#include "common/prefill/jobs.h"
#include "common/prefill/metrics.h"
#include "common/worker/cache_journal.h"
#include "common/worker/step_cost.h"
#include "common/worker/watch_service.h"
#include "common/worker/worker_loop.h"

namespace baton::prefill {

struct LoopOptions : worker::WorkerLoopOptions, JobsOptions {};

// Thread-safety is as in WorkerLoop, and of jobs() as in PrefillJobs.
class PrefillLoop final : public worker::WorkerLoop {
 public:
  // All references must outlive the loop. `publish` is called on the loop thread.
  PrefillLoop(const LoopOptions& options, engine::Engine& engine, worker::CacheJournal& journal,
              const Clock& clock, PrefillMetrics& metrics,
              std::function<void(const worker::WorkerLoad&)> publish);
  ~PrefillLoop() override { Stop(); }

  PrefillJobs& jobs() { return jobs_; }
  absl::Duration UntilNextHeartbeat() const override;

  // The methods below REQUIRE !own_thread.
  void CheckIntegrity() const override;
  const kv::BlockCounts& block_counts() const { return pool_.counts(); }

 private:
  void RefuseNew(bool draining) override { jobs_.RefuseNew(draining); }
  bool Work() override;
  void EndRequests() override { jobs_.EndAll(); }
  bool quiet() const override { return jobs_.quiet(); }
  void OnEnded() override { jobs_.OnLoopEnded(); }
  void FillLoad(worker::WorkerLoad* load) override;
  void OnPublished(const worker::WorkerLoad& load) override;

  const int max_num_batched_tokens_;
  PrefillMetrics& metrics_;
  worker::StepCost cost_{worker::kPrefillShape};
  PrefillJobs jobs_;
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_LOOP_H_
