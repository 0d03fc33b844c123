#include "prefill_worker/loop.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/transfer/kv_sender.h"
#include "common/worker/token_sampling.h"
#include "prefill_worker/job_trace.h"
#include "prefill_worker/label_rows.h"

namespace baton::prefill_worker {
namespace {

// Prompts that came during a step, before it is known what of them is cached: 4 MiB.
constexpr int64_t kMostPostedTokens = 1 << 20;

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

// The prompt's tokens that follow those of the chunk.
absl::Span<const int32_t> Targets(const Chunk& chunk) {
  const int end = std::min(chunk.end + 1, chunk.job->prompt_tokens);
  const int begin = std::min(chunk.begin + 1, end);
  return absl::MakeConstSpan(chunk.job->tokens).subspan(begin, end - begin);
}

}  // namespace

// Sends each layer of the jobs in the step whose KV another worker needs, while the next layer
// computes.
class PrefillLoop::LayerSender final : public model::LayerObserver {
 public:
  LayerSender(const std::vector<Chunk>& chunks, int block_tokens)
      : chunks_(chunks), block_tokens_(block_tokens) {}

  void OnLayerWritten(int layer, std::shared_ptr<const backend::Event> event) override {
    for (const Chunk& chunk : chunks_) {
      if (!chunk.job->transfer) continue;
      const KvTransfer& transfer = *chunk.job->transfer;
      const int begin = std::max(chunk.begin / block_tokens_, transfer.first_block);
      const int end = (chunk.end + block_tokens_ - 1) / block_tokens_;
      if (begin >= end) continue;
      transfer.sender->SendLayer(layer, begin, end - begin, transfer.pinned, event);
    }
  }

 private:
  const std::vector<Chunk>& chunks_;
  const int block_tokens_;
};

PrefillLoop::PrefillLoop(const LoopOptions& options, engine::Engine& engine,
                         worker::CacheJournal& journal, const Clock& clock, PrefillMetrics& metrics,
                         std::function<void(const worker::WorkerLoad&)> publish)
    : WorkerLoop(options, "prefill",
                 {options.scheduler.max_queued_requests,
                  std::max(options.scheduler.max_queued_tokens, kMostPostedTokens)},
                 engine, journal, clock, metrics.worker(), metrics.kv_exchange(),
                 std::move(publish)),
      options_(options),
      metrics_(metrics),
      fetcher_(options.kv_fetch, engine, pool_, cache_.get(), clock, metrics.kv_exchange(),
               mailbox_),
      tiers_(options.kv_tiers, engine, pool_, cache_.get(), clock, metrics.tiers(), journal,
             mailbox_),
      scheduler_(options.scheduler, pool_, cache_.get()),
      throughput_(clock),
      last_heartbeat_at_(clock.SinceStart()) {
  StartThread();
}

void PrefillLoop::Submit(std::unique_ptr<PrefillJob> job) {
  std::vector<std::unique_ptr<PrefillJob>> jobs;
  jobs.push_back(std::move(job));
  Submit(std::move(jobs));
}

void PrefillLoop::Submit(std::vector<std::unique_ptr<PrefillJob>> items) {
  std::vector<std::shared_ptr<JobSink>> sinks;
  int64_t tokens = 0;
  for (const std::unique_ptr<PrefillJob>& job : items) {
    sinks.push_back(job->sink());
    tokens += job->size();
  }
  absl::Status entered = submission_limit_.Reserve(tokens);
  if (!entered.ok()) {
    metrics_.Refused(ErrorReason(entered));
  } else if (!mailbox_->Post(
                 [this, jobs = std::move(items)]() mutable { AdmitAll(std::move(jobs)); })) {
    entered = Draining();
  }
  if (entered.ok()) return;
  for (const auto& sink : sinks) sink->Finish(entered);
}

void PrefillLoop::Cancel(uint64_t job_id) {
  mailbox_->Post([this, job_id] { End(job_id, absl::CancelledError("cancelled by the caller")); });
}

void PrefillLoop::Offer(worker::KvOffer offer, worker::AnswerOffer answer) {
  if (offers_.fetch_add(1) >= kMostOffers) {
    offers_.fetch_sub(1);
    answer(MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                     absl::StrCat(kMostOffers, " offers wait for the prefill worker, its bound")));
    return;
  }
  const bool posted = mailbox_->Post([this, offer = std::move(offer), answer] {
    offers_.fetch_sub(1);
    answer(fetcher_.TakeOffer(offer, /*busy=*/draining() || scheduler_.waiting_count() > 0));
  });
  if (posted) return;
  offers_.fetch_sub(1);
  answer(Draining());
}

absl::Duration PrefillLoop::UntilNextHeartbeat() const {
  return scheduler_.empty() ? absl::InfiniteDuration() : kHeartbeat;
}

bool PrefillLoop::Work() {
  const StepPlan plan = scheduler_.NextStep();
  for (PrefillJob* job : plan.started) Start(*job);
  if (plan.chunks.empty() && scheduler_.waiting_count() > 0) fetcher_.CancelOffers();
  // Only the scheduler knows how much of a posted prompt is cached, so it applies its bound on
  // tokens itself.
  submission_limit_.Update({scheduler_.waiting_requests(), 0}, throughput_.tokens_per_second());
  if (!plan.chunks.empty()) {
    Step(plan.chunks);
  } else {
    step_ended_at_.reset();
  }
  tiers_.Tick();
  SendHeartbeats();
  return !plan.chunks.empty();
}

void PrefillLoop::EndRequests() {
  std::vector<uint64_t> ids;
  scheduler_.ForEachJob([&ids](const PrefillJob& job) { ids.push_back(job.id); });
  for (const uint64_t id : ids) End(id, Draining());
  fetcher_.CancelAll();
  tiers_.CancelAll();
}

void PrefillLoop::CheckIntegrity() const {
  WorkerLoop::CheckIntegrity();
  scheduler_.CheckIntegrity();
}

void PrefillLoop::AdmitAll(std::vector<std::unique_ptr<PrefillJob>> jobs) {
  int64_t tokens = 0;
  for (const std::unique_ptr<PrefillJob>& job : jobs) tokens += job->size();
  submission_limit_.OnQueued(tokens);
  for (std::unique_ptr<PrefillJob>& job : jobs) Admit(std::move(job));
}

void PrefillLoop::Admit(std::unique_ptr<PrefillJob> job) {
  const std::shared_ptr<JobSink> sink = job->sink();
  job->submitted_at = clock_.SinceStart();
  PrefillJob* const submitted = job.get();
  const absl::Status status =
      draining() ? Draining()
                 : scheduler_.Submit(std::move(job), clock_.Now(), throughput_.tokens_per_second());
  if (!status.ok()) {
    metrics_.Refused(ErrorReason(status));
    sink->Finish(status);
    return;
  }
  if (submitted->scoring == nullptr) {
    const int step = options_.scheduler.max_num_batched_tokens;
    tiers_.Consider(*submitted, cost_, step, [this, step](PrefillJob& job) {
      if (!draining()) fetcher_.Consider(job, cost_, step);
    });
  }
}

void PrefillLoop::Start(PrefillJob& job) {
  job.started_at = clock_.SinceStart();
  metrics_.Started(job);
  if (job.trace != nullptr) job.trace->Started(job.submitted_at, job.started_at);
  job.sink()->OnStarted();
  if (!job.transfer) return;
  KvTransfer& transfer = *job.transfer;
  transfer.sender->SendAccepted(job.blocks_to_send(), job.cached_tokens);
  if (job.blocks_to_send() == 0) return;
  const uint64_t id = job.id;
  transfer.pinned = std::make_shared<transfer::PinnedBlocks>(
      job.blocks.ids(), [this, id, mailbox = mailbox_]() mutable {
        Mailbox& target = *mailbox;
        target.Post([this, id] { OnSent(id); });
      });
  const int block_tokens = engine_.kv_layout().block_tokens;
  sending_[id].lease = job.blocks.Share(0, job.blocks.size(), kv::BlockUse::kHeld);
  // What was cached here and is missing there goes out at once.
  const int cached_blocks = job.cached_tokens / block_tokens;
  if (cached_blocks > transfer.first_block) {
    for (int layer = 0; layer < engine_.kv_layout().layers; ++layer) {
      transfer.sender->SendLayer(layer, transfer.first_block, cached_blocks - transfer.first_block,
                                 transfer.pinned, nullptr);
    }
  }
}

void PrefillLoop::Step(const std::vector<Chunk>& chunks) {
  engine::Batch batch;
  for (const Chunk& chunk : chunks) {
    engine::BatchEntry entry;
    entry.tokens =
        absl::MakeConstSpan(chunk.job->tokens).subspan(chunk.begin, chunk.end - chunk.begin);
    entry.context = chunk.begin;
    entry.blocks = chunk.job->blocks.ids();
    const bool scores = chunk.job->scoring != nullptr;
    entry.sample = chunk.last() && !scores;
    if (chunk.last() && scores) entry.labels = chunk.job->scoring->first_tokens;
    entry.sampling = &chunk.job->sampling;
    entry.history.tokens = chunk.job->tokens;
    entry.history.prompt_tokens = chunk.job->prompt_tokens;
    entry.history.suppressed = chunk.job->suppressed;
    entry.prompt_logprobs = chunk.job->prompt_logprobs;
    entry.targets = Targets(chunk);
    batch.entries.push_back(entry);
  }
  PrefillWork work;
  for (const Chunk& chunk : chunks) work.Add(chunk.end - chunk.begin, chunk.begin);
  LayerSender sender(chunks, engine_.kv_layout().block_tokens);
  // A step with room for more work says nothing of the rate under load.
  const bool full =
      scheduler_.waiting_count() > fetcher_.waiting_jobs() + tiers_.waiting_jobs() ||
      batch.rows() + options_.scheduler.block_tokens > options_.scheduler.max_num_batched_tokens;
  if (full) throughput_.StepBegins();
  const absl::Duration begin = clock_.SinceStart();
  if (step_ended_at_) metrics_.StepGap(begin - *step_ended_at_);
  std::vector<engine::StepResult> results = engine_.Step(batch, &sender);
  if (full) throughput_.StepEnds(batch.rows());
  const absl::Duration end = clock_.SinceStart();
  step_ended_at_ = end;
  cost_.AddStep({1, work.tokens, work.pairs}, end - begin, end);
  computed_tokens_ += batch.rows();
  std::vector<std::pair<PrefillJob*, engine::StepResult*>> scored;
  for (size_t i = 0; i < chunks.size(); ++i) {
    PrefillJob& job = *chunks[i].job;
    job.computing += end - begin;
    scheduler_.Computed(chunks[i]);
    if (const auto& logprobs = results[i].prompt_logprobs; !logprobs.ok()) {
      End(job.id, logprobs.status());
      continue;
    } else if (!logprobs->empty()) {
      // Only a job that draws a token asks for them.
      job.token_sink->OnPromptLogprobs(chunks[i].begin + 1, worker::ToProto(*logprobs));
    }
    if (!chunks[i].last()) {
      // At once: other jobs may wait for this prefix.
      scheduler_.InsertIntoCache(job);
    } else if (job.scoring != nullptr) {
      scored.emplace_back(&job, &results[i]);
    } else {
      Complete(job, results[i]);
    }
  }
  if (!scored.empty()) CompleteScoring(scored);
}

void PrefillLoop::CompleteScoring(
    const std::vector<std::pair<PrefillJob*, engine::StepResult*>>& scored) {
  std::vector<LabelledJob> jobs;
  for (const auto& [job, result] : scored) {
    jobs.push_back({job, result->label_logprobs.status()});
    if (!result->label_logprobs.ok()) continue;
    for (const float logprob : *result->label_logprobs) job->scoring->logprobs.push_back({logprob});
  }
  const absl::Duration begin = clock_.SinceStart();
  computed_tokens_ += ComputeLabelRows(engine_, jobs);
  const absl::Duration computing = clock_.SinceStart() - begin;
  for (const LabelledJob& labelled : jobs) {
    PrefillJob& job = *labelled.job;
    job.computing += computing;
    metrics_.Computed(job.computing);
    if (!labelled.status.ok()) {
      End(job.id, labelled.status);
      continue;
    }
    metrics_.Scored();
    job.scoring->sink->OnScores(std::move(job.scoring->logprobs), job.cached_tokens);
    EndCompleted(job);
  }
}

void PrefillLoop::Complete(PrefillJob& job, const engine::StepResult& result) {
  const absl::Duration now = clock_.SinceStart();
  metrics_.Computed(job.computing);
  if (!result.tokens.ok()) {
    End(job.id, result.tokens.status());
    return;
  }
  if (job.trace != nullptr) {
    job.trace->Computed(job.size(), job.cached_tokens, job.started_at, now);
  }
  const model::SampledToken& token = result.tokens->front();
  job.token_sink->OnFirstToken(
      {.token_id = token.token_id,
       .logprobs = job.sampling.logprobs ? worker::ToProto(token) : v1::TokenLogprobs(),
       .cached_prompt_tokens = job.cached_tokens,
       .queue_ms = Milliseconds(job.started_at - job.submitted_at),
       .prefill_ms = Milliseconds(now - job.started_at)});
  if (job.blocks_to_send() > 0) {
    Sending& sending = sending_.at(job.id);
    sending.computed_at = now;
    sending.bytes = engine_.kv_layout().BlockBytes() * job.blocks_to_send();
    sending.plane = job.transfer->sender->plane();
  }
  EndCompleted(job);
}

void PrefillLoop::EndCompleted(PrefillJob& job) {
  scheduler_.InsertIntoCache(job);
  tiers_.Used(job);
  End(job.id, absl::OkStatus());
}

void PrefillLoop::OnSent(uint64_t job_id) {
  const Sending& sending = sending_.at(job_id);
  if (sending.computed_at && sending.bytes > 0) {
    metrics_.Sent(clock_.SinceStart() - *sending.computed_at, sending.bytes, sending.plane);
  }
  sending_.erase(job_id);
}

void PrefillLoop::End(uint64_t job_id, const absl::Status& status) {
  const std::unique_ptr<PrefillJob> job = scheduler_.Remove(job_id);
  if (job == nullptr) return;  // ended before
  tiers_.Leave(*job);
  fetcher_.Leave(*job);
  job->sink()->Finish(status);
  if (!status.ok()) {
    if (job->running()) metrics_.TransferFailed(transfer::AbortReasonOf(status));
    BATON_REQUEST_LOG(Info, job->request_id, job->trace_context)
        << "prefill ended: " << status.ToString();
  }
}

void PrefillLoop::SendHeartbeats() {
  const absl::Duration now = clock_.SinceStart();
  if (now - last_heartbeat_at_ < kHeartbeat) return;
  last_heartbeat_at_ = now;
  scheduler_.ForEachJob([now](const PrefillJob& job) { job.sink()->OnHeartbeat(now); });
}

void PrefillLoop::FillLoad(worker::WorkerLoad* load) {
  load->running = scheduler_.running_count();
  load->queued = scheduler_.waiting_count();
  load->queued_tokens = scheduler_.queued_tokens();
  load->prefill_cost = worker::ToPrefillCost(cost_, load->read_at);
  const PrefillWork remaining = scheduler_.remaining_work();
  if (remaining.tokens > 0) {
    load->remaining_work = absl::Seconds(cost_.Seconds(
        worker::PrefillTerms(remaining, options_.scheduler.max_num_batched_tokens), load->read_at));
  }
  load->open_transfers = static_cast<int>(sending_.size());
  load->drained = draining() && load->running + load->queued == 0 && sending_.empty() &&
                  load->counts.active + load->counts.held == 0;
  load->computed_prompt_tokens = computed_tokens_;
  load->tier_load_time = tiers_.load_time();
}

void PrefillLoop::OnPublished(const worker::WorkerLoad& load) {
  metrics_.SetLoad(load);
  tiers_.ReportUsage();
}

}  // namespace baton::prefill_worker
