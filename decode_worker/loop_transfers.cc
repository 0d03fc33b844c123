// The part of the loop that has prompts computed by other workers.
#include <utility>

#include "common/base/error.h"
#include "common/base/log.h"
#include "decode_worker/call_trace.h"
#include "decode_worker/loop.h"
#include "decode_worker/response.h"
#include "decode_worker/transfer_request.h"

namespace baton::decode_worker {
namespace {

// The status of a failed transfer for the router: UNAVAILABLE, so that it tries another pair. A
// cancel, a deadline and a full queue keep their codes, and so does a failed computation, which
// would fail anywhere.
absl::Status ForRouter(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kInvalidArgument:
      return status;
    case absl::StatusCode::kInternal:
      // Without a reason it comes from the transport.
      if (!ErrorReason(status).empty()) return status;
      [[fallthrough]];
    default:
      return WithDetails(absl::UnavailableError(status.message()), ErrorReason(status),
                         ErrorField(status), ErrorRetryAfter(status));
  }
}

}  // namespace

void DecodeLoop::StartTransfer(Sequence& sequence) {
  TransferRequest wanted = MakeTransferRequest(sequence, engine_, options_.worker_id,
                                               {options_.shared_pools, options_.device_links});
  metrics_.TransferStarted(wanted.plane);
  const uint64_t id = sequence.id;
  transfer::PrefillEvents events;
  events.on_first_token = [this, id, mid_step = mid_step_](transfer::FirstToken first) {
    mid_step->Post([this, id, first = std::move(first)](bool) { OnFirstToken(id, first); });
  };
  events.on_end = [this, id, mailbox = mailbox_](absl::Status status,
                                                 const transfer::TransferSummary& summary) {
    mailbox->Post([this, id, status, summary] { OnTransferEnd(id, status, summary); });
  };
  const uint64_t transfer = ++last_transfer_;
  events.on_closed = [this, transfer, mailbox = mailbox_] {
    mailbox->Post([this, transfer] { open_transfers_.erase(transfer); });
  };
  sequence.first_token_arrived_at.reset();
  const Call& call = *sequence.call;
  wanted.plan.link = link_meter_->Begin({call.prefill.worker_id, call.prefill.epoch});
  wanted.plan.trace = call.trace == nullptr
                          ? call.trace_context
                          : call.trace->BeginTransfer(id, call.prefill.worker_id,
                                                      call.prefill.address, clock_.SinceStart());
  sequence.transfer_call =
      start_prefill_(sequence.call->prefill, wanted.request, sequence.call->deadline,
                     std::move(wanted.plan), std::move(events));
  open_transfers_.emplace(transfer, sequence.transfer_call);
}

void DecodeLoop::OnFirstToken(uint64_t id, const transfer::FirstToken& first) {
  Sequence* sequence = scheduler_.Find(id);
  if (sequence == nullptr || sequence->state != Sequence::State::kReceiving) return;
  sequence->first_token_arrived_at = clock_.SinceStart();
  Call& call = *sequence->call;
  if (!call.answered) {
    if (sequence->at_first_admission()) {
      call.transfer.cached_prompt_tokens = first.cached_prompt_tokens;
    }
    call.computed_prompt_logprobs = first.prompt_logprobs;
  }
  // Several choices, beams, and answers of a grammar are drawn here, once the KV has come.
  if (sequence->draws_here()) return;
  const size_t wanted = sequence->sampling.logprobs ? 1 : 0;
  Append(*sequence, absl::MakeConstSpan(&first.token_id, 1),
         absl::MakeConstSpan(&first.logprobs, wanted), /*drafted=*/false);
}

void DecodeLoop::OnTransferEnd(uint64_t id, const absl::Status& status,
                               const transfer::TransferSummary& summary) {
  Sequence* sequence = scheduler_.Find(id);
  if (sequence == nullptr) return;
  sequence->transfer_call = nullptr;
  const std::shared_ptr<Call> call = sequence->call;
  const absl::Duration now = clock_.SinceStart();
  if (call->trace != nullptr) call->trace->EndTransfer(id, status, summary, now);
  if (sequence->state == Sequence::State::kReceiving && !status.ok()) {
    metrics_.TransferFailed(transfer::AbortReasonOf(status));
    BATON_REQUEST_LOG(Warning, call->request_id, call->trace_context)
        << "transfer from " << call->prefill.address << " failed: " << status.ToString();
    if (sequence->preemptions > 0 && !absl::IsCancelled(status) &&
        !absl::IsDeadlineExceeded(status)) {
      // The answer has begun: its prompt is computed here rather than lost to another worker.
      sequence->compute_here = true;
      metrics_.Recomputed(DecodeMetrics::Recompute::kTransferFailed);
      scheduler_.OnTransferEnd(*sequence);
      return;
    }
    EndCall(call, ForRouter(status));
  }
  if (sequence->state == Sequence::State::kEvicted) {
    scheduler_.OnTransferEnd(*sequence);  // the writer has stopped: its blocks are freed
    return;
  }
  metrics_.TransferCommitted(now - sequence->first_token_arrived_at.value_or(now), summary);
  call->transfer.kv_bytes += summary.kv_bytes;
  if (!call->computed_at) {
    call->computed_at = now;
    call->transfer.queue_ms = summary.queue_ms;
    call->transfer.prefill_ms = summary.prefill_ms;
    const int64_t computed = call->request_tokens - summary.cached_prompt_tokens;
    estimate_.Prefilled(std::max<int64_t>(computed, 0), absl::Milliseconds(summary.prefill_ms));
  }
  // A router that ends the answer itself, at a stop string, or loses this worker gets no last
  // message.
  internal::v1::DecodeResponse so_far;
  so_far.set_choice(static_cast<int>(sequence->sampling.choice));
  FillUsage(*call, so_far);
  FillTimings(*call, now, so_far);
  Send(*call, std::move(so_far));
  scheduler_.Commit(*sequence);
}

}  // namespace baton::decode_worker
