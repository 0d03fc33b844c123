#include "decode_worker/loop.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/worker/throughput.h"
#include "decode_worker/call_trace.h"
#include "decode_worker/response.h"

namespace baton::decode_worker {
namespace {

// For so long after the last job, answers receive into no more than half of the pool: jobs come in
// bursts, and each would else evict what came in between.
constexpr absl::Duration kReserveAfterJobs = absl::Seconds(5);

using internal::v1::DecodeResponse;

DecodeScheduler::Events SchedulerEvents(std::function<void(Sequence&)> before_preemption,
                                        const worker::KvHolder& holder,
                                        const prefill::PrefillJobs& jobs) {
  DecodeScheduler::Events events;
  events.before_preemption = std::move(before_preemption);
  events.cancel_transfer = [](Sequence& sequence) {
    if (sequence.transfer_call != nullptr) sequence.transfer_call->Cancel();
  };
  // What jobs still send counts, too: its blocks are in use until it has left.
  events.lent_blocks = [&holder, &jobs] {
    return holder.pinned_pages() + jobs.running_count() + jobs.open_transfers() +
           static_cast<int>(jobs.reserved_pages());
  };
  events.lent_slots = [&jobs] { return jobs.running_count(); };
  return events;
}

}  // namespace

DecodeLoop::DecodeLoop(const LoopOptions& options, engine::Engine& engine,
                       worker::CacheJournal& journal, const Clock& clock, DecodeMetrics& metrics,
                       StartPrefill start_prefill,
                       std::function<void(const worker::WorkerLoad&)> publish)
    : WorkerLoop(options, "decode", engine, journal, clock, metrics.worker(), metrics.kv_exchange(),
                 std::move(publish)),
      options_(options),
      metrics_(metrics),
      submission_limit_(
          "decode", {options.scheduler.max_queued_requests, options.scheduler.max_queued_tokens}),
      start_prefill_(std::move(start_prefill)),
      offers_(options.kv_offers, engine, clock, metrics.kv_exchange(), mailbox_),
      prompt_budget_(options.scheduler.block_tokens, options.scheduler.max_num_batched_tokens),
      step_times_(DecodeShapeOf(engine.config(), /*on_gpu=*/engine.kv_pool().copier != nullptr)),
      host_kv_(engine, clock, estimate_, metrics, options.host_kv_bytes),
      jobs_(options.jobs, parts(), step_times_.prompts(), metrics.jobs(), metrics.kv_exchange()),
      scheduler_(options.scheduler, pool_, cache_.get(),
                 SchedulerEvents(
                     [this](Sequence& sequence) {
                       swapped_preemptions_ += host_kv_.SwapOut(sequence) ? 1 : 0;
                       if (CallTrace* trace = sequence.call->trace.get()) {
                         trace->Preempted(clock_.SinceStart());
                       }
                     },
                     holder_, jobs_)),
      speculation_(options.speculation, options.draft_engine,
                   {.on_gpu = engine.kv_pool().copier != nullptr,
                    .enable_prefix_caching = options.enable_prefix_caching},
                   clock),
      link_meter_(std::make_shared<transfer::LinkMeter>(clock)) {
  StartThread();
}

void DecodeLoop::Submit(std::unique_ptr<Sequence> sequence) {
  const std::shared_ptr<DecodeStream> stream = sequence->call->stream;
  if (const absl::Status entered = submission_limit_.Reserve(
          static_cast<int64_t>(sequence->tokens.size()), sequence->call->continuation);
      !entered.ok()) {
    metrics_.Refused(ErrorReason(entered));
    stream->Finish(entered);
    return;
  }
  // Only a prompt that another worker computes gains by not waiting for the end of a step.
  const bool posted =
      sequence->call->prefill.address.empty()
          ? mailbox_->Post(
                [this, sequence = std::move(sequence)]() mutable { Accept(std::move(sequence)); })
          : mid_step_->Post([this, sequence = std::move(sequence)](bool mid_step) mutable {
              Accept(std::move(sequence));
              if (mid_step) AdmitMidStep();
            });
  if (!posted) stream->Finish(Draining());
}

void DecodeLoop::RefuseNew(bool draining) {
  submission_limit_.SetDraining(draining);
  jobs_.RefuseNew(draining);
}

void DecodeLoop::Cancel(uint64_t call_id) {
  mailbox_->Post([this, call_id] {
    const auto it = calls_.find(call_id);
    if (it != calls_.end()) EndCall(it->second, absl::CancelledError("cancelled by the caller"));
  });
}

void DecodeLoop::EndRequests() {
  while (!calls_.empty()) EndCall(calls_.begin()->second, Draining());
  while (!inflight_.empty()) Complete();
  jobs_.EndAll();
  // Also those that have committed: the peer may leave its stream open.
  for (const auto& [number, call] : open_transfers_) call->Cancel();
  offers_.CancelAll();
}

bool DecodeLoop::quiet() const {
  return scheduler_.receiving_count() == 0 && open_transfers_.empty() && offers_.idle() &&
         jobs_.quiet();
}

bool DecodeLoop::Work() {
  EndExpired();
  EnqueueBrought();
  AdmitAll();
  if (scheduler_.waiting_count() > 0) {
    estimate_.OnQueueNonEmpty(clock_.SinceStart());
  } else {
    estimate_.OnQueueEmpty();
  }
  submission_limit_.Update({scheduler_.waiting_count() + static_cast<int>(bringing_.size()),
                            scheduler_.waiting_tokens()},
                           estimate_.tokens_per_second());
  const bool stepped = Step();
  jobs_.Tick();
  SendHeartbeats();
  // The load that is published next has these requests: so must the time up to which it has all.
  if (mid_step_->TakeHandled()) TakeMessages();
  return stepped;
}

void DecodeLoop::AdmitAll() {
  const absl::Duration now = clock_.SinceStart();
  if (!jobs_.empty()) last_job_at_ = now;
  scheduler_.BoundReceiving(last_job_at_ && now - *last_job_at_ < kReserveAfterJobs);
  bool admitted = false;
  // What is free now is for the job that waits for it.
  while (!jobs_.blocked()) {
    Sequence* const sequence = scheduler_.Admit();
    if (sequence == nullptr) break;
    Admitted(*sequence);
    admitted = true;
  }
  if (admitted || scheduler_.waiting_count() == 0) {
    head_waits_since_.reset();
  } else if (!head_waits_since_) {
    head_waits_since_ = now;
  }
}

void DecodeLoop::AdmitMidStep() {
  while (!jobs_.blocked()) {
    Sequence* const sequence = scheduler_.AdmitReceiving();
    if (sequence == nullptr) return;
    Admitted(*sequence);
    head_waits_since_.reset();
  }
}

absl::Duration DecodeLoop::UntilNextHeartbeat() const {
  absl::Duration next = absl::InfiniteDuration();
  if (!jobs_.empty()) next = clock_.SinceStart() + kHeartbeat;
  for (const auto& [id, call] : calls_) next = std::min(next, call->last_message_at + kHeartbeat);
  if (next == absl::InfiniteDuration()) return next;
  return std::max(next - clock_.SinceStart(), absl::Milliseconds(1));
}

// gRPC ends calls whose caller set a deadline; all others end here, within a heartbeat.
void DecodeLoop::EndExpired() {
  const absl::Time now = clock_.Now();
  std::vector<std::shared_ptr<Call>> late;
  for (const auto& [id, call] : calls_) {
    if (call->deadline <= now) late.push_back(call);
  }
  for (const std::shared_ptr<Call>& call : late) {
    EndCall(call, MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
                            "the request's deadline passed before its last token"));
  }
}

void DecodeLoop::Accept(std::unique_ptr<Sequence> sequence) {
  const std::shared_ptr<Call> call = sequence->call;
  const absl::Duration now = clock_.SinceStart();
  call->submitted_at = now;
  call->last_message_at = now;
  call->open_choices = call->n;
  sequence->id = ++last_sequence_id_;
  absl::Status status = draining() ? Draining() : absl::OkStatus();
  submission_limit_.OnQueued(static_cast<int64_t>(sequence->tokens.size()));
  const int64_t ahead = scheduler_.waiting_tokens_ahead(*call);
  const std::optional<absl::Duration> wait = estimate_.TimeToAdmit(ahead);
  if (status.ok() && wait && ahead > 0 && clock_.Now() + *wait > call->deadline) {
    status = MakeError(absl::StatusCode::kResourceExhausted, "DEADLINE_UNREACHABLE",
                       "the queue before this request takes longer than its deadline allows");
  }
  if (!status.ok()) return Refuse(*call, std::move(status));
  calls_.emplace(call->id, call);
  if (jobs_.brings() && call->prefill.address.empty()) {
    std::unique_ptr<prefill::Prompt> prompt = PromptOf(*sequence);
    jobs_.Bring(*prompt);
    if (prompt->fetching) {
      bringing_.emplace(call->id, Bringing{std::move(sequence), std::move(prompt)});
      return;
    }
  }
  Enqueue(std::move(sequence));
}

void DecodeLoop::Refuse(const Call& call, absl::Status status) {
  if (ErrorReason(status) != "KV_POOL_TOO_SMALL" && ErrorReason(status) != "TOO_MANY_CHOICES" &&
      absl::IsResourceExhausted(status)) {
    // Until as many tokens as this request has are admitted.
    status = WithRetryAfter(status,
                            worker::RetryAfter(call.request_tokens, estimate_.tokens_per_second()));
  }
  metrics_.Refused(ErrorReason(status));
  call.stream->Finish(status);
}

void DecodeLoop::Enqueue(std::unique_ptr<Sequence> sequence) {
  const std::shared_ptr<Call> call = sequence->call;
  absl::Status status = scheduler_.Submit(std::move(sequence));
  if (status.ok()) return;
  calls_.erase(call->id);
  Refuse(*call, std::move(status));
}

void DecodeLoop::EnqueueBrought() {
  for (auto it = bringing_.begin(); it != bringing_.end();) {
    if (it->second.prompt->fetching) {
      ++it;
      continue;
    }
    std::unique_ptr<Sequence> sequence = std::move(it->second.sequence);
    it = bringing_.erase(it);
    Enqueue(std::move(sequence));
  }
}

std::unique_ptr<prefill::Prompt> DecodeLoop::PromptOf(const Sequence& sequence) const {
  const Call& call = *sequence.call;
  auto prompt = std::make_unique<prefill::Prompt>();
  prompt->request_id = call.request_id;
  prompt->trace_context = call.trace_context;
  prompt->tokens.assign(sequence.tokens.begin(), sequence.tokens.begin() + call.request_tokens);
  prompt->root = call.root;
  prompt->cache_salt = call.cache_salt;
  prompt->kv_hint = call.kv_hint;
  prompt->deadline = call.deadline;
  prompt->prompt_logprobs = call.prompt_logprobs;
  prompt->keys = kv::PrefixKeys(call.root, prompt->tokens, options_.scheduler.block_tokens);
  return prompt;
}

void DecodeLoop::OnComputedHere(const Sequence& sequence) {
  Call& call = *sequence.call;
  if (call.computed_at) return;
  call.computed_at = clock_.SinceStart();
  // The tiers of the worker that sent a prompt's KV have learned of it there.
  if (!options_.jobs.kv_tiers.stores.empty() && call.prefill.address.empty()) {
    jobs_.Used(*PromptOf(sequence));
  }
}

void DecodeLoop::Admitted(Sequence& sequence) {
  Call& call = *sequence.call;
  const absl::Duration now = clock_.SinceStart();
  estimate_.OnAdmitted(static_cast<int64_t>(sequence.tokens.size()), scheduler_.waiting_count() > 0,
                       now);
  if (!call.admitted_at) {
    call.admitted_at = now;
    metrics_.PrefixCache(static_cast<int64_t>(sequence.tokens.size()), sequence.computed_tokens);
    metrics_.Admitted(now - call.submitted_at, call.priority);
    if (call.continuation) metrics_.Recomputed(DecodeMetrics::Recompute::kFailover);
    call.transfer.cached_prompt_tokens = sequence.computed_tokens;
    if (call.trace != nullptr) call.trace->Admitted(call.submitted_at, now);
  } else if (call.trace != nullptr) {
    call.trace->Resumed(now);
  }
  if (!call.answered) call.computed_prompt_logprobs.clear();
  host_kv_.SwapIn(sequence);
  if (sequence.preemptions > 0 && sequence.remaining_tokens() > 1) {
    metrics_.Recomputed(DecodeMetrics::Recompute::kPreemption);
  }
  if (sequence.state == Sequence::State::kReceiving) StartTransfer(sequence);
}

void DecodeLoop::Send(Call& call, DecodeResponse response) {
  call.last_message_at = clock_.SinceStart();
  call.stream->Push(std::move(response));
}

void DecodeLoop::EndChoice(Sequence& sequence) {
  const std::shared_ptr<Call> call = sequence.call;
  const bool running = sequence.state == Sequence::State::kRunning;
  if (running && !draining()) offers_.Ended(sequence);
  Drop(sequence);
  if (--call->open_choices > 0) return;
  calls_.erase(call->id);
  metrics_.Ended(absl::StatusCode::kOk);
  call->stream->Finish(absl::OkStatus());
}

void DecodeLoop::EndCall(std::shared_ptr<Call> call, const absl::Status& status) {
  if (calls_.erase(call->id) == 0) return;
  metrics_.Ended(status.code());
  BATON_REQUEST_LOG(Info, call->request_id, call->trace_context)
      << "decode ended: " << status.ToString();
  for (Sequence* sequence : scheduler_.SequencesOf(*call)) Drop(*sequence);
  if (const auto brought = bringing_.find(call->id); brought != bringing_.end()) {
    jobs_.Leave(*brought->second.prompt);
    bringing_.erase(brought);
  }
  // Before the next admission: the time since the queue became empty must not count as waiting.
  if (scheduler_.waiting_count() == 0) estimate_.OnQueueEmpty();
  call->stream->Finish(status);
}

void DecodeLoop::Drop(Sequence& sequence) {
  speculation_.Ended(sequence);
  host_kv_.Drop(sequence);
  if (sequence.call->grammar != nullptr) options_.structured_output->Close(sequence.id);
  if (sequence.state == Sequence::State::kReceiving ||
      sequence.state == Sequence::State::kEvicted) {
    // The transfer may still be writing: OnTransferEnd frees the blocks.
    scheduler_.Evict(sequence, /*ended=*/true);
  } else {
    scheduler_.Remove(sequence);
  }
}

void DecodeLoop::SendHeartbeats() {
  const absl::Duration now = clock_.SinceStart();
  for (const auto& [id, call] : calls_) {
    if (now - call->last_message_at >= kHeartbeat) Send(*call, DecodeResponse());
  }
}

void DecodeLoop::FillLoad(worker::WorkerLoad* load) {
  load->running = scheduler_.running_count() + scheduler_.receiving_count();
  load->receiving = scheduler_.receiving_count();
  load->queued = scheduler_.waiting_count() + static_cast<int>(bringing_.size());
  load->running_jobs = jobs_.running_count();
  load->waiting_jobs = jobs_.waiting_count();
  load->queued_tokens = scheduler_.waiting_tokens();
  load->open_transfers = scheduler_.receiving_count() + jobs_.open_transfers();
  load->drained = draining() && calls_.empty() && scheduler_.All().empty() && jobs_.empty() &&
                  jobs_.open_transfers() == 0 && open_transfers_.empty() &&
                  load->counts.active + load->counts.held == 0;
  load->computed_prompt_tokens = computed_prompt_tokens_ + jobs_.computed_tokens();
  load->tier_load_time = jobs_.tier_load_time();
  load->generated_tokens = generated_tokens_;
  load->draft_tokens = draft_tokens_;
  load->accepted_draft_tokens = accepted_draft_tokens_;
  step_times_.Report(scheduler_.All(), jobs_.remaining_work(),
                     options_.scheduler.max_num_batched_tokens, load->read_at, load);
  ReportLinks(*load);
}

void DecodeLoop::OnPublished(const worker::WorkerLoad& load) {
  metrics_.SetLoad(load);
  jobs_.ReportUsage();
}

// The list is built when a transfer has changed it, not in each of the steps between.
void DecodeLoop::ReportLinks(worker::WorkerLoad& load) {
  const auto measured = link_meter_->Measured();
  if (measured != measured_links_) {
    measured_links_ = measured;
    auto links = std::make_shared<std::vector<worker::LinkRate>>();
    std::vector<double> rates;
    for (const transfer::MeasuredLink& link : *measured) {
      links->push_back(
          {link.peer.worker_id, link.peer.epoch, link.bytes_per_second, link.measured_at});
      rates.push_back(link.bytes_per_second);
    }
    reported_links_ = std::move(links);
    metrics_.SetLinks(std::move(rates));
  }
  load.links = reported_links_;
}

void DecodeLoop::CheckIntegrity() const {
  WorkerLoop::CheckIntegrity();
  scheduler_.CheckIntegrity();
  speculation_.CheckIntegrity();
  jobs_.CheckIntegrity();
}

}  // namespace baton::decode_worker
