#include "decode_worker/call_trace.h"

#include <utility>

#include "common/worker/request_tokens.h"

namespace baton::decode_worker {

using tracing::RequestSpans;
using tracing::SpanKind;

std::shared_ptr<CallTrace> CallTrace::Begin(tracing::Tracer* tracer, const TraceContext& trace,
                                            const internal::v1::DecodeRequest& request) {
  if (tracer == nullptr || !trace.sampled()) return nullptr;
  auto spans = RequestSpans::Begin(tracer, trace, "baton.internal.v1.DecodeService/Decode",
                                   SpanKind::kServer, tracer->Now());
  tracing::Span& root = spans->root();
  root.Set("baton.request.id", request.request_id());
  root.Set("baton.prompt_tokens", int64_t{worker::TokensOf(request).size()});
  if (request.continuation()) root.Set("baton.continuation", true);
  return std::shared_ptr<CallTrace>(new CallTrace(*tracer, std::move(spans)));
}

void CallTrace::Admitted(absl::Duration submitted, absl::Duration now) {
  admitted_at_ = now;
  spans_->AddStage("decode_queue", submitted, now);
}

void CallTrace::Preempted(absl::Duration now) { spans_->root().AddEvent("preempted", now); }

void CallTrace::Resumed(absl::Duration now) { spans_->root().AddEvent("resumed", now); }

TraceContext CallTrace::BeginTransfer(uint64_t sequence, const std::string& worker_id,
                                      const std::string& address, absl::Duration now) {
  const RequestSpans::Index index = spans_->Add("kv_transfer", SpanKind::kClient, now);
  transfers_[sequence] = index;
  tracing::Span& span = spans_->at(index);
  span.Set("baton.computes.worker_id", worker_id);
  span.Set("server.address", address);
  span.Set("baton.transport", "grpc");
  return spans_->ContextOf(index);
}

void CallTrace::EndTransfer(uint64_t sequence, const absl::Status& status,
                            const transfer::TransferSummary& summary, absl::Duration now) {
  const auto found = transfers_.extract(sequence);
  if (found.empty()) return;
  transferred_ = transferred_ || status.ok();
  tracing::Span& span = spans_->at(found.mapped());
  span.end = now;
  span.Fail(status);
  if (!status.ok()) return;
  span.Set("baton.kv_bytes", summary.kv_bytes);
  span.Set("baton.cached_tokens", int64_t{summary.cached_prompt_tokens});
}

void CallTrace::Tokens(int count, const std::optional<absl::Duration>& computed_at,
                       absl::Duration now) {
  if (tokens_ == 0) spans_->root().AddEvent("first_token", now);
  // A prompt that is computed here has its first token with its KV, before the first step.
  if (computed_at && !first_step_end_ && (transferred_ || tokens_ > 0)) first_step_end_ = now;
  computed_at_ = computed_at;
  tokens_ += count;
  last_token_at_ = now;
}

void CallTrace::End(const absl::Status& status) {
  // The caller may see the last token before this runs: an answer ends with it.
  const absl::Duration end = status.ok() && tokens_ > 0 ? last_token_at_ : tracer_.Now();
  if (computed_at_) {
    if (!transferred_ && admitted_at_) {
      const RequestSpans::Index prefill =
          spans_->AddStage("prefill_compute", *admitted_at_, *computed_at_);
      spans_->at(prefill).Set("baton.transport", "none");
    }
    const RequestSpans::Index decode = spans_->AddStage("decode", *computed_at_, end);
    spans_->at(decode).Set("gen_ai.usage.output_tokens", tokens_);
    if (first_step_end_) spans_->AddStage("first_step", *computed_at_, *first_step_end_, decode);
  }
  spans_->root().Set("gen_ai.usage.output_tokens", tokens_);
  spans_->root().Fail(status);
  spans_->End(end);
}

}  // namespace baton::decode_worker
