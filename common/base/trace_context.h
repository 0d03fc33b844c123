// The place of a request in a distributed trace, as W3C's headers traceparent and tracestate carry
// it: https://www.w3.org/TR/trace-context/.
#ifndef BATON_COMMON_BASE_TRACE_CONTEXT_H_
#define BATON_COMMON_BASE_TRACE_CONTEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace baton {

inline constexpr char kTraceparent[] = "traceparent";
inline constexpr char kTracestate[] = "tracestate";

struct TraceContext {
  uint64_t trace_high = 0;  // the trace id; all zero: there is no trace
  uint64_t trace_low = 0;
  uint64_t span_id = 0;  // the caller's span; 0: none, a new trace begins here
  uint8_t flags = 0;     // only the bits below
  std::string state;     // tracestate, passed on as it is; empty: none

  static constexpr uint8_t kSampled = 1;
  static constexpr uint8_t kRandomTraceId = 2;

  bool valid() const { return (trace_high | trace_low) != 0; }
  bool sampled() const { return valid() && (flags & kSampled) != 0; }
  bool operator==(const TraceContext&) const = default;
};

// Returns an invalid context if `traceparent` is malformed, as the standard requires of receivers.
// A tracestate that is malformed, or larger than all must pass on (512 bytes, 32 members), is
// dropped alone.
TraceContext ParseTraceContext(absl::string_view traceparent, absl::string_view tracestate);

// The value of traceparent. REQUIRES: valid, with a span.
std::string Traceparent(const TraceContext& context);
// 32 and 16 lower-case hex digits.
std::string TraceIdText(const TraceContext& context);
std::string SpanIdText(uint64_t span_id);

}  // namespace baton

#endif  // BATON_COMMON_BASE_TRACE_CONTEXT_H_
