#include "common/tracing/tracer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace baton::tracing {
namespace {

// The bits of a trace id that are random in every standard.
constexpr int kRandomBits = 56;
constexpr uint64_t kRandomMask = (uint64_t{1} << kRandomBits) - 1;

}  // namespace

absl::Time WallAtZero(const Clock& clock) {
  // The reading with the least time around it is the best of a few.
  absl::Time best;
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i < 8; ++i) {
    const absl::Duration before = clock.SinceStart();
    const absl::Time wall = clock.Now();
    const absl::Duration after = clock.SinceStart();
    if (after - before >= least) continue;
    least = after - before;
    best = wall - before - least / 2;
  }
  return best;
}

Tracer::Tracer(TracerOptions options, const Clock& clock, absl::Time wall_at_zero,
               std::unique_ptr<SpanTransport> transport, ExportEvents events)
    : options_(std::move(options)),
      clock_(clock),
      exporter_(options_.exporter, options_.resource, clock, wall_at_zero, std::move(transport),
                std::move(events)) {}

TraceContext Tracer::Join(const TraceContext& caller) const {
  if (caller.valid()) return caller;
  TraceContext trace;
  trace.trace_high = options_.random();
  trace.trace_low = options_.random();
  const double threshold = std::ldexp(1 - options_.sample_ratio, kRandomBits);
  const bool sampled = static_cast<double>(trace.trace_low & kRandomMask) >= threshold;
  trace.flags = TraceContext::kRandomTraceId | (sampled ? TraceContext::kSampled : 0);
  if (!sampled) trace.span_id = options_.random();
  return trace;
}

std::unique_ptr<RequestSpans> RequestSpans::Begin(Tracer* tracer, const TraceContext& trace,
                                                  std::string name, SpanKind kind,
                                                  absl::Duration begin) {
  if (tracer == nullptr || !trace.sampled()) return nullptr;
  std::unique_ptr<RequestSpans> spans(new RequestSpans(*tracer, trace));
  spans->spans_.reserve(16);
  Span& root = spans->spans_.emplace_back();
  root.id = tracer->NewSpanId();
  root.parent = trace.span_id;
  root.name = std::move(name);
  root.kind = kind;
  root.begin = begin;
  root.end = absl::InfiniteDuration();
  return spans;
}

RequestSpans::Index RequestSpans::Add(const char* name, SpanKind kind, absl::Duration begin,
                                      Index parent) {
  if (spans_.size() >= kMaxSpans) {
    ++dropped_spans_;
    surplus_ = Span();
    surplus_.id = spans_[kRoot].id;  // what it calls is a child of the root
    return spans_.size();
  }
  const uint64_t parent_id = at(parent).id;
  Span& span = spans_.emplace_back();
  span.id = tracer_.NewSpanId();
  span.parent = parent_id;
  span.name = name;
  span.kind = kind;
  span.begin = begin;
  span.end = absl::InfiniteDuration();
  return spans_.size() - 1;
}

RequestSpans::Index RequestSpans::AddStage(const char* name, absl::Duration begin,
                                           absl::Duration end, Index parent) {
  const Index stage = Add(name, SpanKind::kInternal, begin, parent);
  at(stage).end = end;
  return stage;
}

TraceContext RequestSpans::ContextOf(Index i) {
  TraceContext context = trace_;
  context.span_id = at(i).id;
  return context;
}

void RequestSpans::End(absl::Duration end) {
  if (std::exchange(ended_, true)) return;
  if (dropped_spans_ > 0) root().Set("baton.dropped_spans", dropped_spans_);
  for (Span& span : spans_) span.end = std::max(span.begin, std::min(span.end, end));
  SpanGroup group;
  group.trace = trace_;
  group.spans = std::exchange(spans_, {});
  surplus_ = Span();
  tracer_.Export(std::move(group));
}

}  // namespace baton::tracing
