// Decides which requests are traced, and collects the spans of each. A process that does not trace
// has no Tracer, and a request that is not sampled has no RequestSpans: both are null pointers.
#ifndef BATON_COMMON_TRACING_TRACER_H_
#define BATON_COMMON_TRACING_TRACER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/random_id.h"
#include "common/base/trace_context.h"
#include "common/tracing/span.h"
#include "common/tracing/span_exporter.h"

namespace baton::tracing {

// The wall-clock time at which clock.SinceStart() was zero.
absl::Time WallAtZero(const Clock& clock);

struct TracerOptions {
  double sample_ratio = 1;  // of traces that begin here
  Resource resource;
  ExporterOptions exporter;
  std::function<uint64_t()> random = RandomId64;  // never 0. Thread-safe
};

// Thread-safe, except Stop, which is for the owner.
class Tracer {
 public:
  // `clock` must outlive it.
  Tracer(TracerOptions options, const Clock& clock, absl::Time wall_at_zero,
         std::unique_ptr<SpanTransport> transport, ExportEvents events);

  // The trace of a request: the caller's, if it is in one, else a new one. The sampled flag of a
  // caller is honoured. A new trace has no span yet, unless it is not sampled: then it has one that
  // is recorded nowhere, so that the decision can be passed on. Of new traces, those are sampled
  // whose id is at least the threshold of the ratio, as in OpenTelemetry's consistent probability
  // sampling: https://opentelemetry.io/docs/specs/otel/trace/tracestate-probability-sampling/.
  TraceContext Join(const TraceContext& caller) const;

  absl::Duration Now() const { return clock_.SinceStart(); }
  uint64_t NewSpanId() const { return options_.random(); }
  void Export(SpanGroup group) { exporter_.Add(std::move(group)); }
  // As SpanExporter's.
  void Stop(absl::Duration grace) { exporter_.Stop(grace); }
  void Cut() { exporter_.Cut(); }

 private:
  const TracerOptions options_;
  const Clock& clock_;
  SpanExporter exporter_;
};

// The trace that a process passes on: the tracer's decision, or the caller's as it is if nothing is
// traced here.
inline TraceContext JoinTrace(const Tracer* tracer, const TraceContext& caller) {
  return tracer != nullptr ? tracer->Join(caller) : caller;
}

// The spans of one request in this process: a root, whose parent is the caller's span, and its
// stages. Unsynchronized.
class RequestSpans {
 public:
  static constexpr size_t kMaxSpans = 256;  // further ones are counted only

  // Null unless there is a tracer and the trace is sampled. `tracer` must outlive it.
  static std::unique_ptr<RequestSpans> Begin(Tracer* tracer, const TraceContext& trace,
                                             std::string name, SpanKind kind, absl::Duration begin);
  // Exports the spans, unless End has.
  ~RequestSpans() { End(tracer_.Now()); }
  RequestSpans(const RequestSpans&) = delete;
  RequestSpans& operator=(const RequestSpans&) = delete;

  using Index = size_t;
  static constexpr Index kRoot = 0;
  // Begins a child of `parent`. It ends with the root unless its `end` is set.
  Index Add(const char* name, SpanKind kind, absl::Duration begin, Index parent = kRoot);
  // A stage that is over.
  Index AddStage(const char* name, absl::Duration begin, absl::Duration end, Index parent = kRoot);
  // The references are valid until the next Add.
  Span& at(Index i) { return i < spans_.size() ? spans_[i] : surplus_; }
  Span& root() { return at(kRoot); }
  bool ended() const { return ended_; }

  // For calls that this span makes.
  TraceContext ContextOf(Index i);

  // Ends the root and what is open, and exports all. Later changes have no effect. Idempotent.
  void End(absl::Duration end);

 private:
  RequestSpans(Tracer& tracer, const TraceContext& trace) : tracer_(tracer), trace_(trace) {}

  Tracer& tracer_;
  const TraceContext trace_;
  std::vector<Span> spans_;
  Span surplus_;  // stands for those beyond kMaxSpans
  int64_t dropped_spans_ = 0;
  bool ended_ = false;
};

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_TRACER_H_
