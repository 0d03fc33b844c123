#include "common/prefill/jobs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/prefill/job_trace.h"
#include "common/prefill/label_rows.h"
#include "common/transfer/kv_sender.h"
#include "common/worker/token_sampling.h"

namespace baton::prefill {
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

void PrefillJobs::LayerSender::OnLayerWritten(int layer,
                                              std::shared_ptr<const backend::Event> event) {
  const kv::KvLayout& layout = jobs_.loop_.engine.kv_layout();
  const int block_tokens = layout.block_tokens;
  const kv::KvLayout::Chunks parts = layout.ChunksOf(layer);
  for (const Chunk& chunk : jobs_.planned_) {
    if (!chunk.job->transfer) continue;
    const KvTransfer& transfer = *chunk.job->transfer;
    const int needed = layout.FirstNeededBlock(
        parts.first, chunk.job->reusable_blocks(block_tokens), chunk.job->blocks.size());
    const int begin = std::max({chunk.begin / block_tokens, transfer.first_block, needed});
    const int end = (chunk.end + block_tokens - 1) / block_tokens;
    if (begin >= end) continue;
    for (int part = parts.first; part < parts.end; ++part) {
      transfer.sender->SendLayer(part, begin, end - begin, transfer.pinned, event);
    }
  }
}

void PrefillJobs::LayerSender::OnStateWritten(int layer,
                                              std::shared_ptr<const backend::Event> event) {
  const int first_piece = jobs_.loop_.engine.kv_layout().attention_layers();
  const auto behind = jobs_.pieces_behind_.begin() + layer;
  for (const Chunk& chunk : jobs_.planned_) {
    const PrefillJob& job = *chunk.job;
    // A state crosses once, when the prompt is computed.
    if (!chunk.last() || job.blocks_to_send() == 0) continue;
    for (int piece = layer == 0 ? 0 : behind[-1]; piece < *behind; ++piece) {
      job.transfer->sender->SendLayer(first_piece + piece, job.blocks.size() - 1, 1,
                                      job.transfer->pinned, event);
    }
  }
}

PrefillJobs::PrefillJobs(const JobsOptions& options, const worker::LoopParts& loop,
                         worker::StepCost& cost, JobMetrics& metrics,
                         worker::KvExchangeMetrics& kv_exchange)
    : options_(options),
      loop_(loop),
      cost_(cost),
      metrics_(metrics),
      submission_limit_(loop.role,
                        {options.scheduler.max_queued_requests,
                         std::max(options.scheduler.max_queued_tokens, kMostPostedTokens)}),
      fetcher_(options.kv_fetch, loop.engine, loop.pool, loop.cache, loop.clock, kv_exchange,
               loop.mailbox),
      tiers_(options.kv_tiers, loop.engine, loop.pool, loop.cache, loop.clock, metrics.tiers(),
             loop.journal, loop.mailbox),
      scheduler_(options.scheduler, loop.pool, loop.cache),
      throughput_(loop.clock),
      pieces_behind_(loop.engine.kv_layout().Pages().pieces_behind),
      last_heartbeat_at_(loop.clock.SinceStart()) {}

void PrefillJobs::Submit(std::unique_ptr<PrefillJob> job) {
  std::vector<std::unique_ptr<PrefillJob>> jobs;
  jobs.push_back(std::move(job));
  Submit(std::move(jobs));
}

void PrefillJobs::Submit(std::vector<std::unique_ptr<PrefillJob>> items) {
  std::vector<std::shared_ptr<JobSink>> sinks;
  int64_t tokens = 0;
  for (const std::unique_ptr<PrefillJob>& job : items) {
    sinks.push_back(job->sink());
    tokens += job->size();
  }
  absl::Status entered = submission_limit_.Reserve(tokens);
  if (!entered.ok()) {
    metrics_.Refused(ErrorReason(entered));
  } else if (!loop_.mailbox->Post(
                 [this, jobs = std::move(items)]() mutable { AdmitAll(std::move(jobs)); })) {
    entered = worker::DrainingError(loop_.role);
  }
  if (entered.ok()) return;
  for (const auto& sink : sinks) sink->Finish(entered);
}

void PrefillJobs::Cancel(uint64_t job_id) {
  loop_.mailbox->Post(
      [this, job_id] { End(job_id, absl::CancelledError("cancelled by the caller")); });
}

void PrefillJobs::Offer(worker::KvOffer offer, worker::AnswerOffer answer) {
  if (offers_.fetch_add(1) >= kMostOffers) {
    offers_.fetch_sub(1);
    answer(MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                     absl::StrCat(kMostOffers, " offers wait for this worker, its bound")));
    return;
  }
  const bool posted = loop_.mailbox->Post([this, offer = std::move(offer), answer] {
    offers_.fetch_sub(1);
    answer(fetcher_.TakeOffer(offer, /*busy=*/loop_.draining || scheduler_.waiting_count() > 0));
  });
  if (posted) return;
  offers_.fetch_sub(1);
  answer(worker::DrainingError(loop_.role));
}

void PrefillJobs::Bring(Prompt& prompt) {
  const int step = options_.scheduler.max_num_batched_tokens;
  tiers_.Consider(prompt, cost_, step, [this, step](Prompt& lacking) {
    if (!loop_.draining) fetcher_.Consider(lacking, cost_, step);
  });
}

void PrefillJobs::Leave(Prompt& prompt) {
  tiers_.Leave(prompt);
  fetcher_.Leave(prompt);
}

bool PrefillJobs::Plan(const StepRoom& room) {
  StepPlan plan = scheduler_.NextStep(room);
  for (PrefillJob* job : plan.started) Start(*job);
  UpdateLimit();
  planned_ = std::move(plan.chunks);
  for (const Chunk& chunk : planned_) PinWindows(chunk);
  planned_work_ = PrefillWork();
  for (const Chunk& chunk : planned_) planned_work_.Add(chunk.end - chunk.begin, chunk.begin);
  if (planned_.empty()) {
    if (scheduler_.waiting_count() > 0) fetcher_.CancelOffers();
    step_ended_at_.reset();
    return false;
  }
  // A step with room for more work says nothing of the rate under load.
  const int most = std::min(room.tokens, options_.scheduler.max_num_batched_tokens);
  int ready = 0;  // jobs that wait, but not for KV that comes
  scheduler_.ForEachJob(
      [&ready](const PrefillJob& job) { ready += job.running() || job.fetching ? 0 : 1; });
  full_step_ = ready > 0 || planned_tokens() + options_.scheduler.block_tokens > most;
  return true;
}

int PrefillJobs::planned_tokens() const { return static_cast<int>(planned_work_.tokens); }

void PrefillJobs::AddTo(engine::Batch& batch) const {
  for (const Chunk& chunk : planned_) {
    engine::BatchEntry entry;
    entry.tokens =
        absl::MakeConstSpan(chunk.job->tokens).subspan(chunk.begin, chunk.end - chunk.begin);
    entry.context = chunk.begin;
    engine::SetBlocks(chunk.job->blocks, &entry, options_.scheduler.block_tokens);
    const bool scores = chunk.job->scoring != nullptr;
    entry.sample = chunk.last() && !scores;
    if (chunk.last() && scores) {
      entry.labels = chunk.job->scoring->first_tokens;
      entry.embed = chunk.job->scoring->embeds();
    }
    entry.sampling = &chunk.job->sampling;
    entry.history.tokens = chunk.job->tokens;
    entry.history.prompt_tokens = chunk.job->prompt_tokens;
    entry.history.suppressed = chunk.job->suppressed;
    entry.prompt_logprobs = chunk.job->prompt_logprobs;
    entry.targets = Targets(chunk);
    batch.entries.push_back(entry);
  }
}

model::LayerObserver* PrefillJobs::OnStepBegins() {
  if (full_step_) throughput_.StepBegins();
  step_began_at_ = loop_.clock.SinceStart();
  if (step_ended_at_) metrics_.StepGap(step_began_at_ - *step_ended_at_);
  return &layer_sender_;
}

void PrefillJobs::OnStepEnded(absl::Span<engine::StepResult> results) {
  BATON_CHECK_EQ(results.size(), planned_.size());
  if (full_step_) throughput_.StepEnds(planned_tokens());
  const absl::Duration end = loop_.clock.SinceStart();
  step_ended_at_ = end;
  computed_tokens_ += planned_tokens();
  const std::vector<Chunk> chunks = std::exchange(planned_, {});
  std::vector<std::pair<PrefillJob*, engine::StepResult*>> scored;
  for (size_t i = 0; i < chunks.size(); ++i) {
    PrefillJob& job = *chunks[i].job;
    job.computing += end - step_began_at_;
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
      scheduler_.MoveWindows(job);
    } else if (job.scoring != nullptr) {
      scored.emplace_back(&job, &results[i]);
    } else {
      Complete(job, results[i]);
    }
  }
  if (!scored.empty()) CompleteScoring(scored);
}

// Only the scheduler knows how much of a posted prompt is cached, so it applies its bound on tokens
// itself.
void PrefillJobs::UpdateLimit() {
  submission_limit_.Update({scheduler_.waiting_requests(), 0}, throughput_.tokens_per_second());
}

void PrefillJobs::Tick() {
  RefuseBlocked();
  UpdateLimit();
  tiers_.Tick();
  SendHeartbeats();
}

void PrefillJobs::RefuseBlocked() {
  // On a prefill worker, what is being sent, fetched or loaded leaves its blocks by itself, however
  // slow the link is. On a decode worker, answers may take them whenever they become free.
  const bool frees_blocks = scheduler_.running_count() > 0 ||
                            (loop_.role == "prefill" && open_transfers() + reserved_pages() > 0);
  const PrefillJob* const job = frees_blocks ? nullptr : scheduler_.held_up();
  const absl::Duration now = loop_.clock.SinceStart();
  if (job == nullptr || job->id != blocked_job_) {
    blocked_job_ = job != nullptr ? job->id : 0;
    blocked_since_ = now;
  } else if (now - blocked_since_ >= kLongestWait) {
    const absl::Status refusal = WithRetryAfter(
        MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                  absl::StrCat("answers have left no room here for the prompt of ", job->size(),
                               " tokens for ", absl::FormatDuration(kLongestWait))),
        worker::RetryAfter(job->tokens_to_compute(), throughput_.tokens_per_second()));
    metrics_.Refused(ErrorReason(refusal));
    End(job->id, refusal);
  }
}

void PrefillJobs::EndAll() {
  std::vector<uint64_t> ids;
  scheduler_.ForEachJob([&ids](const PrefillJob& job) { ids.push_back(job.id); });
  for (const uint64_t id : ids) End(id, worker::DrainingError(loop_.role));
  fetcher_.CancelAll();
  tiers_.CancelAll();
}

void PrefillJobs::AdmitAll(std::vector<std::unique_ptr<PrefillJob>> jobs) {
  int64_t tokens = 0;
  for (const std::unique_ptr<PrefillJob>& job : jobs) tokens += job->size();
  submission_limit_.OnQueued(tokens);
  for (std::unique_ptr<PrefillJob>& job : jobs) Admit(std::move(job));
}

void PrefillJobs::Admit(std::unique_ptr<PrefillJob> job) {
  const std::shared_ptr<JobSink> sink = job->sink();
  job->submitted_at = loop_.clock.SinceStart();
  PrefillJob* const submitted = job.get();
  const absl::Status status = loop_.draining ? worker::DrainingError(loop_.role)
                                             : scheduler_.Submit(std::move(job), loop_.clock.Now(),
                                                                 throughput_.tokens_per_second());
  if (!status.ok()) {
    metrics_.Refused(ErrorReason(status));
    sink->Finish(status);
    return;
  }
  if (submitted->scoring == nullptr) Bring(*submitted);
}

void PrefillJobs::Start(PrefillJob& job) {
  job.started_at = loop_.clock.SinceStart();
  metrics_.Started(job);
  if (job.trace != nullptr) job.trace->Started(job.submitted_at, job.started_at);
  job.sink()->OnStarted();
  if (!job.transfer) return;
  KvTransfer& transfer = *job.transfer;
  transfer.sender->SendAccepted(job.blocks_to_send(), job.cached_tokens);
  if (job.blocks_to_send() == 0) return;
  const uint64_t id = job.id;
  transfer.pinned = std::make_shared<transfer::PinnedBlocks>(
      job.blocks.Tables(0, job.blocks.size()), [this, id, mailbox = loop_.mailbox]() mutable {
        Mailbox& target = *mailbox;
        target.Post([this, id] { OnSent(id); });
      });
  const kv::KvLayout& layout = loop_.engine.kv_layout();
  const int whole = job.reusable_blocks(layout.block_tokens);
  // The state is not there yet: PinWindows.
  const kv::BlockShape shape = job.blocks.shape();
  sending_[id].lease =
      job.blocks.Share(0, job.blocks.size(), kv::BlockUse::kHeld,
                       shape.recurrent ? job.blocks.size() : shape.FirstWindowBlock(whole));
  // What was cached here and is missing there goes out at once.
  const int cached_blocks = job.cached_tokens / layout.block_tokens;
  std::vector<transfer::LayerBlocks> cached;
  for (int layer = 0; layer < layout.layers; ++layer) {
    const int begin =
        std::max(transfer.first_block, layout.FirstNeededBlock(layer, whole, job.blocks.size()));
    if (begin < cached_blocks) cached.push_back({layer, begin, cached_blocks});
  }
  transfer.sender->SendCached(cached, transfer.pinned);
}

// The blocks of the chunk have got window pages since the job started.
void PrefillJobs::PinWindows(const Chunk& chunk) {
  const PrefillJob& job = *chunk.job;
  const kv::BlockShape shape = job.blocks.shape();
  if (!shape.windowed() || !job.transfer || job.transfer->pinned == nullptr) return;
  if (shape.recurrent && !chunk.last()) return;
  const int block_tokens = options_.scheduler.block_tokens;
  const int needed = shape.recurrent ? job.blocks.size() - 1
                                     : shape.FirstWindowBlock(job.reusable_blocks(block_tokens));
  const int begin = std::max(chunk.begin / block_tokens, needed);
  const int end = (chunk.end + block_tokens - 1) / block_tokens;
  if (begin >= end) return;
  sending_.at(job.id).lease.ShareWindows(job.blocks, begin, end);
  job.transfer->pinned->SetPages(begin, job.blocks.Tables(begin, end), shape.pages());
}

void PrefillJobs::CompleteScoring(
    const std::vector<std::pair<PrefillJob*, engine::StepResult*>>& scored) {
  std::vector<LabelledJob> jobs;
  for (const auto& [job, result] : scored) {
    jobs.push_back({job, result->label_logprobs.status()});
    if (job->scoring->embeds() &&
        !absl::c_all_of(result->hidden_state, [](float value) { return std::isfinite(value); })) {
      jobs.back().status = MakeError(absl::StatusCode::kInternal, "NON_FINITE_LOGITS",
                                     "the prompt's hidden state has infinities or NaNs");
    }
    if (!result->label_logprobs.ok()) continue;
    for (const float logprob : *result->label_logprobs) job->scoring->logprobs.push_back({logprob});
  }
  const absl::Duration begin = loop_.clock.SinceStart();
  computed_tokens_ += ComputeLabelRows(loop_.engine, jobs);
  const absl::Duration computing = loop_.clock.SinceStart() - begin;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const LabelledJob& labelled = jobs[i];
    PrefillJob& job = *labelled.job;
    job.computing += computing;
    metrics_.Computed(job.computing);
    if (!labelled.status.ok()) {
      End(job.id, labelled.status);
      continue;
    }
    metrics_.Scored();
    if (job.scoring->embeds()) {
      job.scoring->sink->OnEmbedding(std::move(scored[i].second->hidden_state), job.cached_tokens);
    } else {
      job.scoring->sink->OnScores(std::move(job.scoring->logprobs), job.cached_tokens);
    }
    EndCompleted(job);
  }
}

void PrefillJobs::Complete(PrefillJob& job, const engine::StepResult& result) {
  const absl::Duration now = loop_.clock.SinceStart();
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
    sending.bytes = loop_.engine.kv_layout().NeededBytes(
        job.transfer->first_block, job.blocks.size(),
        job.reusable_blocks(loop_.engine.kv_layout().block_tokens));
    sending.plane = job.transfer->sender->plane();
  }
  EndCompleted(job);
}

void PrefillJobs::EndCompleted(PrefillJob& job) {
  scheduler_.InsertIntoCache(job);
  tiers_.Used(job);
  End(job.id, absl::OkStatus());
}

int PrefillJobs::computing_transfers() const {
  int computing = 0;
  scheduler_.ForEachJob([&](const PrefillJob& job) { computing += sending_.contains(job.id); });
  return computing;
}

void PrefillJobs::OnSent(uint64_t job_id) {
  const Sending& sending = sending_.at(job_id);
  if (sending.computed_at && sending.bytes > 0) {
    metrics_.Sent(loop_.clock.SinceStart() - *sending.computed_at, sending.bytes, sending.plane);
  }
  sending_.erase(job_id);
}

void PrefillJobs::End(uint64_t job_id, const absl::Status& status) {
  const std::unique_ptr<PrefillJob> job = scheduler_.Remove(job_id);
  if (job == nullptr) return;  // ended before
  Leave(*job);
  job->sink()->Finish(status);
  if (!status.ok()) {
    if (job->running()) metrics_.TransferFailed(transfer::AbortReasonOf(status));
    BATON_REQUEST_LOG(Info, job->request_id, job->trace_context)
        << "prefill ended: " << status.ToString();
  }
}

void PrefillJobs::SendHeartbeats() {
  const absl::Duration now = loop_.clock.SinceStart();
  if (now - last_heartbeat_at_ < worker::WorkerLoop::kHeartbeat) return;
  last_heartbeat_at_ = now;
  scheduler_.ForEachJob([now](const PrefillJob& job) { job.sink()->OnHeartbeat(now); });
}

}  // namespace baton::prefill
