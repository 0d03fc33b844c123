// The spans of one call from a decode worker or router: the call itself, its wait and its
// computing.
#ifndef BATON_COMMON_PREFILL_JOB_TRACE_H_
#define BATON_COMMON_PREFILL_JOB_TRACE_H_

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/tracing/tracer.h"

namespace baton::prefill {

// Exists only for a sampled call. Its service begins it, then it goes with the job; times are of
// the tracer's clock.
class JobTrace {
 public:
  // Null unless there is a tracer and the trace is sampled.
  static std::shared_ptr<JobTrace> Begin(
      tracing::Tracer* tracer, const TraceContext& trace,
      const char* name = "baton.internal.v1.PrefillService/Prefill") {
    if (tracer == nullptr || !trace.sampled()) return nullptr;
    return std::shared_ptr<JobTrace>(
        new JobTrace(*tracer, tracing::RequestSpans::Begin(
                                  tracer, trace, name, tracing::SpanKind::kServer, tracer->Now())));
  }

  tracing::Span& root() { return spans_->root(); }
  absl::Duration Now() const { return tracer_.Now(); }
  void Started(absl::Duration submitted, absl::Duration now) {
    spans_->AddStage("prefill_queue", submitted, now);
  }
  // `tokens`: those of the prompt; `cached`: of these, not computed. Before the commit is sent.
  void Computed(int tokens, int cached, absl::Duration started, absl::Duration now) {
    const auto stage = spans_->AddStage("prefill_compute", started, now);
    spans_->at(stage).Set("baton.prompt_tokens", int64_t{tokens});
    spans_->at(stage).Set("baton.cached_tokens", int64_t{cached});
    computed_at_ = now;
  }
  // The stream gets its status next. Exports the spans.
  void End(const absl::Status& status) {
    root().Fail(status);
    // The caller may see the commit before this runs: the call ends before it.
    spans_->End(status.ok() && computed_at_ ? *computed_at_ : tracer_.Now());
  }

 private:
  JobTrace(tracing::Tracer& tracer, std::unique_ptr<tracing::RequestSpans> spans)
      : tracer_(tracer), spans_(std::move(spans)) {}

  tracing::Tracer& tracer_;
  const std::unique_ptr<tracing::RequestSpans> spans_;
  std::optional<absl::Duration> computed_at_;
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_JOB_TRACE_H_
