#include "decode_worker/loop.h"

#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/random_id.h"
#include "common/transfer/checksum.h"
#include "common/worker/token_sampling.h"

namespace baton::decode_worker {
namespace {

using internal::v1::DecodeResponse;

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                   "this decode worker is shutting down");
}

// What a failed transfer means to the router: nothing is wrong with the request, try elsewhere. A
// cancel, a deadline and a full queue stay what they are.
absl::Status ForRouter(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kInvalidArgument:
      return status;
    default:
      return WithDetails(absl::UnavailableError(status.message()), ErrorReason(status),
                         ErrorField(status), ErrorRetryAfter(status));
  }
}

}  // namespace

DecodeLoop::DecodeLoop(const LoopOptions& options, engine::Engine& engine, const Clock& clock,
                       DecodeMetrics& metrics, StartPrefill start_prefill,
                       std::function<void(const worker::WorkerLoad&)> publish)
    : engine_(engine),
      options_(options),
      clock_(clock),
      metrics_(metrics),
      start_prefill_(std::move(start_prefill)),
      publish_(std::move(publish)),
      pool_(engine.kv_pool().block_count),
      scheduler_(options.scheduler, pool_) {
  thread_ = std::thread([this] { Run(); });
}

DecodeLoop::~DecodeLoop() { Stop(); }

void DecodeLoop::Submit(std::unique_ptr<Sequence> sequence) {
  const std::shared_ptr<DecodeStream> stream = sequence->stream;
  if (!mailbox_->Post(
          [this, sequence = std::move(sequence)]() mutable { Accept(std::move(sequence)); })) {
    stream->Finish(Draining());
  }
}

void DecodeLoop::Cancel(uint64_t sequence_id) {
  mailbox_->Post(
      [this, sequence_id] { End(sequence_id, absl::CancelledError("cancelled by the caller")); });
}

void DecodeLoop::Drain() {
  mailbox_->Post([this] { draining_ = true; });
}

void DecodeLoop::Stop() {
  if (!thread_.joinable()) return;
  mailbox_->Post([this] { stopping_ = true; });
  thread_.join();
}

void DecodeLoop::Run() {
  bool stepped = false;
  while (true) {
    // Without a step to run, only a message can change anything.
    mailbox_->RunPending(stepped ? absl::ZeroDuration() : absl::InfiniteDuration());
    if (stopping_) break;
    while (Sequence* sequence = scheduler_.Admit()) StartTransfer(*sequence);
    stepped = Step();
    Publish();
  }
  draining_ = true;
  for (const uint64_t id : scheduler_.SequenceIds()) End(id, Draining());
  // Blocks are freed only after their last writer has stopped, channels after their last call.
  while (scheduler_.receiving_count() > 0 || open_calls_ > 0) {
    mailbox_->RunPending(absl::InfiniteDuration());
  }
  mailbox_->Close();
  mailbox_->RunPending(absl::ZeroDuration());
}

void DecodeLoop::Accept(std::unique_ptr<Sequence> sequence) {
  const std::shared_ptr<DecodeStream> stream = sequence->stream;
  sequence->submitted_at = clock_.SinceStart();
  const absl::Status status = draining_ ? Draining() : scheduler_.Submit(std::move(sequence));
  if (!status.ok()) {
    metrics_.Refused(ErrorReason(status));
    stream->Finish(status);
  }
}

void DecodeLoop::StartTransfer(Sequence& sequence) {
  sequence.admitted_at = clock_.SinceStart();
  metrics_.Admitted(sequence.admitted_at - sequence.submitted_at);
  internal::v1::PrefillRequest request;
  request.set_request_id(sequence.request_id);
  request.set_transfer_id(RandomId64());
  request.set_model_fingerprint(engine_.config().fingerprint);
  request.set_kv_layout_fingerprint(engine_.kv_layout().Fingerprint());
  request.set_prefill_epoch(sequence.prefill.epoch);
  request.set_decode_worker_id(options_.worker_id);
  request.mutable_tokens()->Add(sequence.tokens.begin(), sequence.tokens.end());
  request.set_cache_salt(sequence.cache_salt);
  *request.mutable_sampling() = worker::ToProto(sequence.sampling);
  request.set_checksum(transfer::RequestChecksum(request));

  transfer::TransferPlan plan;
  plan.transfer_id = request.transfer_id();
  plan.sender_epoch = sequence.prefill.epoch;
  plan.layout = engine_.kv_layout();
  plan.pool = engine_.kv_pool();
  plan.first_block = 0;
  const std::vector<kv::BlockId>& blocks = sequence.blocks.ids();
  plan.blocks.assign(blocks.begin(), blocks.begin() + scheduler_.PromptBlocks(sequence));
  plan.token_count = engine_.config().token_count;
  plan.logprobs = sequence.sampling.logprobs;

  const uint64_t id = sequence.id;
  transfer::PrefillEvents events;
  events.on_first_token = [this, id, mailbox = mailbox_](transfer::FirstToken first) {
    mailbox->Post([this, id, first = std::move(first)] { OnFirstToken(id, first); });
  };
  events.on_end = [this, id, mailbox = mailbox_](absl::Status status,
                                                 const transfer::TransferSummary& summary) {
    mailbox->Post([this, id, status, summary] { OnTransferEnd(id, status, summary); });
  };
  events.on_closed = [this, mailbox = mailbox_] { mailbox->Post([this] { --open_calls_; }); };
  ++open_calls_;
  sequence.call = start_prefill_(sequence.prefill, request, sequence.deadline, std::move(plan),
                                 std::move(events));
}

void DecodeLoop::OnFirstToken(uint64_t id, const transfer::FirstToken& first) {
  Sequence* sequence = scheduler_.Find(id);
  if (sequence == nullptr || sequence->abandoned) return;
  sequence->first_token_at = clock_.SinceStart();
  sequence->transfer.cached_prompt_tokens = first.cached_prompt_tokens;
  Append(*sequence, first.token_id);
}

void DecodeLoop::OnTransferEnd(uint64_t id, const absl::Status& status,
                               const transfer::TransferSummary& summary) {
  Sequence* sequence = scheduler_.Find(id);
  if (sequence == nullptr) return;
  sequence->call = nullptr;
  if (sequence->abandoned) {
    scheduler_.Remove(id);  // the writer has stopped: now its blocks are free
    return;
  }
  if (!status.ok()) {
    metrics_.TransferFailed(transfer::AbortReasonOf(status));
    BATON_LOG(Warning) << "decode " << sequence->request_id << ": transfer from "
                       << sequence->prefill.address << " failed: " << status.ToString();
    End(id, ForRouter(status));
    return;
  }
  sequence->transfer = summary;
  sequence->committed_at = clock_.SinceStart();
  metrics_.TransferCommitted(sequence->committed_at - sequence->admitted_at, summary.kv_bytes);
  scheduler_.Commit(*sequence);
}

bool DecodeLoop::Step() {
  if (scheduler_.running_count() == 0) return false;
  const absl::Duration begin = clock_.SinceStart();
  engine::Batch batch;
  std::vector<Sequence*> sequences;
  for (const std::unique_ptr<Sequence>& sequence : scheduler_.running()) {
    engine::BatchEntry entry;
    entry.tokens = absl::MakeConstSpan(sequence->tokens).last(1);
    entry.context = static_cast<int>(sequence->tokens.size()) - 1;
    entry.blocks = sequence->blocks.ids();
    entry.sample = true;
    entry.sampling = &sequence->sampling;
    entry.history = {.tokens = sequence->tokens, .prompt_tokens = sequence->prompt_tokens};
    batch.entries.push_back(entry);
    sequences.push_back(sequence.get());
  }
  const std::vector<engine::StepResult> results = engine_.Step(batch);
  metrics_.Stepped(clock_.SinceStart() - begin, static_cast<int>(sequences.size()));
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (results[i].tokens.ok()) {
      Append(*sequences[i], results[i].tokens->front().token_id);
    } else {
      End(sequences[i]->id, results[i].tokens.status());
    }
  }
  return true;
}

void DecodeLoop::Append(Sequence& sequence, int32_t token) {
  sequence.tokens.push_back(token);
  const bool first = sequence.generated_tokens() == 1;
  const bool stop = sequence.stop_token_ids.contains(token);
  const bool full = sequence.generated_tokens() == sequence.max_tokens;
  // The first token overtakes the last layers' KV; a sequence that goes on must wait for them, and
  // one that ends here needs them no more.
  DecodeResponse response;
  response.add_token_ids(token);
  if (first || stop || full) {
    response.mutable_usage()->set_cached_prompt_tokens(sequence.transfer.cached_prompt_tokens);
    response.mutable_usage()->set_kv_bytes(sequence.transfer.kv_bytes);
  }
  if (stop || full) {
    const absl::Duration now = clock_.SinceStart();
    response.set_finish(stop ? DecodeResponse::FINISH_STOP : DecodeResponse::FINISH_LENGTH);
    auto* timings = response.mutable_timings();
    timings->set_queue_ms(absl::ToDoubleMilliseconds(sequence.admitted_at - sequence.submitted_at) +
                          sequence.transfer.queue_ms);
    timings->set_prefill_ms(sequence.transfer.prefill_ms);
    if (sequence.committed_at > absl::ZeroDuration()) {
      timings->set_kv_transfer_ms(
          absl::ToDoubleMilliseconds(sequence.committed_at - sequence.first_token_at));
      timings->set_decode_ms(absl::ToDoubleMilliseconds(now - sequence.committed_at));
    }
  }
  sequence.stream->Push(std::move(response));
  if (stop || full) End(sequence.id, absl::OkStatus());
}

void DecodeLoop::End(uint64_t id, const absl::Status& status) {
  Sequence* sequence = scheduler_.Find(id);
  if (sequence == nullptr || sequence->abandoned) return;
  sequence->stream->Finish(status);
  metrics_.Ended(status.code());
  if (!status.ok()) {
    BATON_LOG(Info) << "decode " << sequence->request_id << " ended: " << status.ToString();
  }
  if (sequence->call != nullptr) {
    // The transfer may still be writing: OnTransferEnd frees the blocks.
    sequence->abandoned = true;
    sequence->call->Cancel();
    return;
  }
  scheduler_.Remove(id);
}

void DecodeLoop::Publish() {
  worker::WorkerLoad load;
  load.running = scheduler_.running_count() + scheduler_.receiving_count();
  load.queued = scheduler_.waiting_count();
  load.queued_tokens = scheduler_.waiting_tokens();
  load.counts = pool_.counts();
  load.free_blocks = load.counts.free;
  load.open_transfers = scheduler_.receiving_count();
  load.draining = draining_;
  publish_(load);
  metrics_.SetLoad(load);
}

}  // namespace baton::decode_worker
