#include "router/score/score_trace.h"

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::router {

ScoreTrace::ScoreTrace(tracing::Tracer* tracer, const TraceContext& caller,
                       const std::string& model, absl::Duration received)
    : context_(tracing::JoinTrace(tracer, caller)), received_(received), stage_begin_(received) {
  if (tracer == nullptr || !context_.sampled()) return;
  spans_ = tracing::RequestSpans::Begin(tracer, context_, absl::StrCat("score ", model),
                                        tracing::SpanKind::kServer, received);
  tracing::Span& root = spans_->root();
  root.Set("gen_ai.operation.name", "score");
  root.Set("gen_ai.provider.name", "baton");
  root.Set("gen_ai.request.model", model);
}

void ScoreTrace::Started(const std::string& request_id, const std::string& tenant) {
  if (spans_ == nullptr) return;
  spans_->root().Set("baton.request.id", request_id);
  if (!tenant.empty()) spans_->root().Set("baton.tenant", tenant);
}

void ScoreTrace::Admitted(absl::Duration now) {
  if (spans_ == nullptr) return;
  spans_->AddStage("admission", stage_begin_, now);
  stage_begin_ = now;
}

void ScoreTrace::Tokenized(int prefix_tokens, absl::Duration now) {
  if (spans_ == nullptr) return;
  const auto stage = spans_->AddStage("tokenize", stage_begin_, now);
  spans_->at(stage).Set("baton.prompt_tokens", int64_t{prefix_tokens});
}

TraceContext ScoreTrace::Opened(int stream, const Route& route, int items, absl::Duration now) {
  if (spans_ == nullptr) return context_;
  const auto index = spans_->Add("score_stream", tracing::SpanKind::kClient, now);
  streams_[stream] = index;
  tracing::Span& span = spans_->at(index);
  span.Set("baton.items", int64_t{items});
  span.Set("server.address", route.answers.address);
  span.Set("baton.computes.worker_id", route.computes.worker_id);
  span.Set("baton.route.decision", route.decision);
  span.Set("baton.route.matched_blocks", int64_t{route.matched_blocks});
  span.Set("baton.route.predicted_ttft", absl::ToDoubleSeconds(route.predicted_ttft));
  return spans_->ContextOf(index);
}

void ScoreTrace::BatchLost(int stream, const absl::Status& error, absl::Duration now) {
  if (spans_ == nullptr) return;
  const auto found = streams_.extract(stream);
  if (found.empty()) return;
  spans_->at(found.mapped()).end = now;
  spans_->at(found.mapped()).Fail(error);
}

void ScoreTrace::BatchDone(int stream, absl::Duration now) {
  if (spans_ == nullptr) return;
  const auto found = streams_.extract(stream);
  if (!found.empty()) spans_->at(found.mapped()).end = now;
}

void ScoreTrace::Retried(const std::string& reason, absl::Duration now) {
  if (spans_ != nullptr) spans_->root().AddEvent("retry", now, {{"error.type", reason}});
}

void ScoreTrace::FirstResult(absl::Duration now) {
  if (spans_ == nullptr) return;
  spans_->root().AddEvent("first_result", now);
  spans_->root().Set("gen_ai.server.time_to_first_token", absl::ToDoubleSeconds(now - received_));
}

void ScoreTrace::Failed(const absl::Status& error, absl::Duration now) {
  if (spans_ == nullptr) return;
  if (absl::IsCancelled(error)) {
    spans_->root().AddEvent("cancel", now, {{"error.type", ErrorReason(error)}});
  }
  spans_->root().Fail(error);
}

void ScoreTrace::Ended(const v1::ScoreUsage& usage, absl::Duration now) {
  if (spans_ == nullptr) return;
  tracing::Span& root = spans_->root();
  root.Set("baton.items", int64_t{usage.items()});
  root.Set("baton.failed_items", int64_t{usage.failed_items()});
  root.Set("gen_ai.usage.input_tokens", int64_t{usage.prompt_tokens()});
  root.Set("gen_ai.usage.cache_read.input_tokens", int64_t{usage.cached_prompt_tokens()});
  root.Set("baton.cached_tokens", int64_t{usage.cached_prompt_tokens()});
  spans_->End(now);
  spans_ = nullptr;
}

}  // namespace baton::router
