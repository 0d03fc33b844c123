#include "router/request/request_trace.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::router {
namespace {

using tracing::RequestSpans;
using tracing::SpanKind;

constexpr char kRequestId[] = "baton.request.id";

void SetWorkers(const Route& route, tracing::Span& span) {
  span.Set("baton.computes.worker_id", route.computes.worker_id);
  span.Set("baton.answers.worker_id", route.answers.worker_id);
}

const char* FinishReasonName(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_LENGTH ? "length" : "stop";
}

}  // namespace

RequestTrace::RequestTrace(tracing::Tracer* tracer, const TraceContext& caller,
                           const std::string& model, bool chat, absl::Duration received)
    : context_(tracing::JoinTrace(tracer, caller)), received_(received), stage_begin_(received) {
  if (tracer == nullptr || !context_.sampled()) return;
  const char* operation = chat ? "chat" : "text_completion";
  spans_ = RequestSpans::Begin(tracer, context_, absl::StrCat(operation, " ", model),
                               SpanKind::kServer, received);
  tracing::Span& root = spans_->root();
  root.Set("gen_ai.operation.name", operation);
  root.Set("gen_ai.provider.name", "baton");
  root.Set("gen_ai.request.model", model);
}

void RequestTrace::SetRequestId(const std::string& request_id) {
  request_id_ = request_id;
  spans_->root().Set(kRequestId, request_id);
}

void RequestTrace::Describe(const v1::GenerateRequest& request) {
  SetRequestId(request.request_id());
  tracing::Span& root = spans_->root();
  if (!request.tenant().empty()) root.Set("baton.tenant", request.tenant());
  if (request.has_n()) root.Set("gen_ai.request.choice.count", int64_t{request.n()});
  if (request.stop().has_max_tokens()) {
    root.Set("gen_ai.request.max_tokens", int64_t{request.stop().max_tokens()});
  }
  const v1::SamplingParams& sampling = request.sampling();
  if (sampling.has_temperature()) {
    root.Set("gen_ai.request.temperature", double{sampling.temperature()});
  }
  if (sampling.has_top_p()) root.Set("gen_ai.request.top_p", double{sampling.top_p()});
  if (sampling.has_top_k()) root.Set("gen_ai.request.top_k", double(sampling.top_k()));
  if (sampling.has_seed()) root.Set("gen_ai.request.seed", static_cast<int64_t>(sampling.seed()));
}

void RequestTrace::Rendered(absl::Duration begin, absl::Duration end) {
  if (spans_ == nullptr) return;
  Admitted(begin);
  spans_->AddStage("render", begin, end);
  stage_begin_ = end;
}

void RequestTrace::Admitted(absl::Duration now) {
  if (spans_ == nullptr) return;
  spans_->AddStage("admission", stage_begin_, now);
  stage_begin_ = now;
}

void RequestTrace::Tokenized(int prompt_tokens, absl::Duration now) {
  if (spans_ == nullptr) return;
  const RequestSpans::Index stage = spans_->AddStage("tokenize", stage_begin_, now);
  spans_->at(stage).Set("baton.prompt_tokens", int64_t{prompt_tokens});
  spans_->root().Set("gen_ai.usage.input_tokens", int64_t{prompt_tokens});
  stage_begin_ = now;
}

void RequestTrace::RouteChosen(const absl::StatusOr<Route>& route, absl::string_view policy,
                               absl::Duration begin, absl::Duration now) {
  if (spans_ == nullptr) return;
  tracing::Span& span = spans_->at(spans_->AddStage("route", begin, now));
  span.Set("baton.route.policy", std::string(policy));
  if (!route.ok()) return span.Fail(route.status());
  span.Set("baton.route.decision", route->decision);
  span.Set("baton.route.matched_blocks", int64_t{route->matched_blocks});
  span.Set("baton.route.predicted_ttft", absl::ToDoubleSeconds(route->predicted_ttft));
  SetWorkers(*route, span);
}

TraceContext RequestTrace::Opened(int stream, const Attempt& attempt, absl::Duration now) {
  if (spans_ == nullptr) return context_;
  const RequestSpans::Index index = spans_->Add("decode_stream", SpanKind::kClient, now);
  streams_[stream] = index;
  tracing::Span& span = spans_->at(index);
  span.Set(kRequestId, request_id_);
  span.Set("server.address", attempt.route.answers.address);
  SetWorkers(attempt.route, span);
  if (!attempt.whole) span.Set("baton.choice", int64_t{attempt.choices.front()});
  return spans_->ContextOf(index);
}

void RequestTrace::Retried(bool begun, const std::string& reason, absl::Duration now) {
  if (spans_ == nullptr) return;
  spans_->root().AddEvent(begun ? "failover" : "retry", now, {{"error.type", reason}});
}

void RequestTrace::FirstToken(absl::Duration now) {
  if (spans_ == nullptr) return;
  spans_->root().AddEvent("first_token", now);
  spans_->root().Set("gen_ai.server.time_to_first_token", absl::ToDoubleSeconds(now - received_));
}

void RequestTrace::ChoiceEnded(v1::FinishReason reason) {
  if (spans_ != nullptr) finish_reasons_.emplace_back(FinishReasonName(reason));
}

void RequestTrace::StreamLost(int stream, const absl::Status& error, absl::Duration now) {
  if (spans_ == nullptr) return;
  const auto found = streams_.extract(stream);
  if (found.empty()) return;
  spans_->at(found.mapped()).end = now;
  spans_->at(found.mapped()).Fail(error);
}

void RequestTrace::StreamDone(int stream, const Attempt& attempt, absl::Duration now) {
  if (spans_ == nullptr) return;
  const auto found = streams_.extract(stream);
  if (found.empty()) return;
  tracing::Span& span = spans_->at(found.mapped());
  span.end = now;
  span.Set("baton.cached_tokens", int64_t{attempt.cached_tokens});
  span.Set("baton.kv_bytes", attempt.kv_bytes);
}

void RequestTrace::Failed(const absl::Status& error, absl::Duration now) {
  if (spans_ == nullptr) return;
  if (absl::IsCancelled(error)) {
    spans_->root().AddEvent("cancel", now, {{"error.type", ErrorReason(error)}});
  }
  spans_->root().Fail(error);
}

void RequestTrace::Ended(const v1::Usage& usage, absl::Duration now) {
  if (spans_ == nullptr) return;
  tracing::Span& root = spans_->root();
  root.Set("gen_ai.usage.output_tokens", int64_t{usage.generated_tokens()});
  root.Set("gen_ai.usage.cache_read.input_tokens", int64_t{usage.cached_prompt_tokens()});
  root.Set("baton.cached_tokens", int64_t{usage.cached_prompt_tokens()});
  root.Set("baton.kv_bytes", int64_t{usage.kv_bytes()});
  if (!finish_reasons_.empty()) {
    root.Set("gen_ai.response.finish_reasons", std::move(finish_reasons_));
  }
  spans_->End(now);
  spans_ = nullptr;
}

}  // namespace baton::router
