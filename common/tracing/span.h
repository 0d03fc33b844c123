// What a finished span holds, with OpenTelemetry's words:
// https://opentelemetry.io/docs/specs/otel/.
#ifndef BATON_COMMON_TRACING_SPAN_H_
#define BATON_COMMON_TRACING_SPAN_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/trace_context.h"

namespace baton::tracing {

using AttributeValue = std::variant<std::string, int64_t, double, bool, std::vector<std::string>>;

// Keys are string literals, which outlive every span.
struct Attribute {
  absl::string_view key;
  AttributeValue value;
};
using Attributes = std::vector<Attribute>;

struct SpanEvent {
  absl::string_view name;  // a literal
  absl::Duration time;     // of the clock, as all times here
  Attributes attributes;
};

enum class SpanKind { kInternal = 1, kServer = 2, kClient = 3 };  // as OTLP numbers them

struct Span {
  static constexpr size_t kMaxEvents = 64;  // further ones are counted only

  uint64_t id = 0;
  uint64_t parent = 0;  // 0: the span is the root of its trace
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  absl::Duration begin, end;
  Attributes attributes;
  std::vector<SpanEvent> events;
  int dropped_events = 0;
  bool failed = false;  // status ERROR, else UNSET
  std::string status_message;

  void Set(absl::string_view key, AttributeValue value) {
    attributes.push_back({key, std::move(value)});
  }
  void AddEvent(absl::string_view event, absl::Duration time, Attributes of_event = {}) {
    if (events.size() >= kMaxEvents) {
      ++dropped_events;
    } else {
      events.push_back({event, time, std::move(of_event)});
    }
  }
  // Status ERROR with the message; attributes error.type (the reason, or the code's name) and
  // rpc.grpc.status_code. OK changes nothing.
  void Fail(const absl::Status& status);
};

// Spans of one trace. `trace.span_id` and the sampled flag are not used.
struct SpanGroup {
  TraceContext trace;
  std::vector<Span> spans;
};

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_SPAN_H_
