// Encodes spans as the JSON of OTLP/HTTP: ExportTraceServiceRequest, with trace and span ids in hex
// and enums as numbers, and reads the answer, as
// https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding has it.
#ifndef BATON_COMMON_TRACING_OTLP_JSON_H_
#define BATON_COMMON_TRACING_OTLP_JSON_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/tracing/span.h"

namespace baton::tracing {

// The attributes of the process, e.g. {"service.name", "baton-router"}.
using Resource = std::vector<std::pair<std::string, std::string>>;

// Longer strings are cut to this many bytes of JSON.
inline constexpr size_t kMaxAttributeBytes = 4096;

// `wall_at_zero`: the wall-clock time at which the spans' clock was zero.
std::string ToOtlpJson(const Resource& resource, absl::Span<const SpanGroup> groups,
                       absl::Time wall_at_zero);

// What a collector did not take of the spans that it was sent.
struct PartialSuccess {
  int64_t rejected_spans = 0;  // whatever the collector wrote
  std::string message;         // escaped, and cut to a length that fits a log line
};
// From the JSON of ExportTraceServiceResponse. Nothing is rejected if `body` is anything else.
PartialSuccess ReadPartialSuccess(absl::string_view body);

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_OTLP_JSON_H_
