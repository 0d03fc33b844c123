#include "common/prefill/loop.h"

#include <utility>
#include <vector>

namespace baton::prefill {

PrefillLoop::PrefillLoop(const LoopOptions& options, engine::Engine& engine,
                         worker::CacheJournal& journal, const Clock& clock, PrefillMetrics& metrics,
                         std::function<void(const worker::WorkerLoad&)> publish)
    : WorkerLoop(options, "prefill", engine, journal, clock, metrics.worker(),
                 metrics.kv_exchange(), std::move(publish)),
      max_num_batched_tokens_(options.scheduler.max_num_batched_tokens),
      metrics_(metrics),
      jobs_(options, parts(), cost_, metrics.jobs(), metrics.kv_exchange()) {
  StartThread();
}

absl::Duration PrefillLoop::UntilNextHeartbeat() const {
  return jobs_.empty() ? absl::InfiniteDuration() : kHeartbeat;
}

bool PrefillLoop::Work() {
  const bool steps = jobs_.Plan({});
  if (steps) {
    engine::Batch batch;
    jobs_.AddTo(batch);
    const PrefillWork work = jobs_.planned_work();
    model::LayerObserver* const observer = jobs_.OnStepBegins();
    const absl::Duration begin = clock_.SinceStart();
    absl::Duration end;  // not that of a message that is handled
    std::vector<engine::StepResult> results = mid_step_->During([&] {
      auto of_step = engine_.Step(batch, observer);
      end = clock_.SinceStart();
      return of_step;
    });
    cost_.AddStep({1, work.tokens, work.pairs}, end - begin, end);
    jobs_.OnStepEnded(absl::MakeSpan(results));
  }
  jobs_.Tick();
  return steps;
}

void PrefillLoop::CheckIntegrity() const {
  WorkerLoop::CheckIntegrity();
  jobs_.CheckIntegrity();
}

void PrefillLoop::FillLoad(worker::WorkerLoad* load) {
  load->running = jobs_.running_count();
  load->queued = jobs_.waiting_count();
  load->queued_tokens = jobs_.queued_tokens();
  load->prefill_cost = worker::ToPrefillCost(cost_, load->read_at);
  const PrefillWork remaining = jobs_.remaining_work();
  if (remaining.tokens > 0) {
    load->remaining_work = absl::Seconds(
        cost_.Seconds(worker::PrefillTerms(remaining, max_num_batched_tokens_), load->read_at));
  }
  load->open_transfers = jobs_.open_transfers();
  load->computing_transfers = jobs_.computing_transfers();
  load->drained = draining() && jobs_.empty() && load->open_transfers == 0 &&
                  load->counts.active + load->counts.held == 0;
  load->computed_prompt_tokens = jobs_.computed_tokens();
  load->tier_load_time = jobs_.tier_load_time();
}

void PrefillLoop::OnPublished(const worker::WorkerLoad& load) {
  metrics_.SetLoad(load);
  jobs_.ReportUsage();
}

}  // namespace baton::prefill
