#include "common/tracing/otlp_json.h"

#include <cmath>
#include <cstdio>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_string.h"
#include "common/base/version.h"
#include "common/json/json.h"

namespace baton::tracing {
namespace {

// Appends to one text; members and elements are separated here.
class Writer {
 public:
  std::string Take() { return std::move(out_); }

  Writer& Name(absl::string_view name) {
    Separate();
    absl::StrAppend(&out_, "\"", name, "\":");
    first_ = true;  // its value follows
    return *this;
  }
  void Open(char bracket) {
    Separate();
    out_.push_back(bracket);
    first_ = true;
  }
  void Close(char bracket) {
    out_.push_back(bracket);
    first_ = false;
  }
  void String(absl::string_view text) {
    Separate();
    AppendJsonString(text, &out_, kMaxAttributeBytes);
  }
  void Int(int64_t value) {
    Separate();
    absl::StrAppend(&out_, value);
  }
  // Protobuf's JSON has 64-bit integers as strings.
  void Int64(int64_t value) {
    Separate();
    absl::StrAppend(&out_, "\"", value, "\"");
  }
  void Bool(bool value) {
    Separate();
    out_ += value ? "true" : "false";
  }
  void Double(double value) {
    if (std::isnan(value)) return String("NaN");
    if (std::isinf(value)) return String(value > 0 ? "Infinity" : "-Infinity");
    Separate();
    // The shortest text with all of the digits.
    char text[32];
    const int size = std::snprintf(text, sizeof(text), "%.17g", value);
    out_.append(text, static_cast<size_t>(size));
  }

 private:
  void Separate() {
    if (!first_) out_.push_back(',');
    first_ = false;
  }
  std::string out_;
  bool first_ = true;
};

void WriteValue(Writer& w, const AttributeValue& value) {
  w.Open('{');
  if (const auto* text = std::get_if<std::string>(&value)) {
    w.Name("stringValue").String(*text);
  } else if (const auto* number = std::get_if<int64_t>(&value)) {
    w.Name("intValue").Int64(*number);
  } else if (const auto* real = std::get_if<double>(&value)) {
    w.Name("doubleValue").Double(*real);
  } else if (const auto* truth = std::get_if<bool>(&value)) {
    w.Name("boolValue").Bool(*truth);
  } else {
    w.Name("arrayValue").Open('{');
    w.Name("values").Open('[');
    for (const std::string& one : std::get<std::vector<std::string>>(value)) WriteValue(w, one);
    w.Close(']');
    w.Close('}');
  }
  w.Close('}');
}

void WriteAttribute(Writer& w, absl::string_view key, const AttributeValue& value) {
  w.Open('{');
  w.Name("key").String(key);
  w.Name("value");
  WriteValue(w, value);
  w.Close('}');
}

void WriteAttributes(Writer& w, const Attributes& attributes) {
  if (attributes.empty()) return;
  w.Name("attributes").Open('[');
  for (const Attribute& one : attributes) WriteAttribute(w, one.key, one.value);
  w.Close(']');
}

void WriteSpan(Writer& w, const TraceContext& trace, const Span& span, absl::Time wall_at_zero) {
  const auto nanos = [wall_at_zero](absl::Duration time) {
    return absl::ToUnixNanos(wall_at_zero + time);
  };
  w.Open('{');
  w.Name("traceId").String(TraceIdText(trace));
  w.Name("spanId").String(SpanIdText(span.id));
  if (span.parent != 0) w.Name("parentSpanId").String(SpanIdText(span.parent));
  if (!trace.state.empty()) w.Name("traceState").String(trace.state);
  w.Name("flags").Int(trace.flags);
  w.Name("name").String(span.name);
  w.Name("kind").Int(static_cast<int>(span.kind));
  w.Name("startTimeUnixNano").Int64(nanos(span.begin));
  w.Name("endTimeUnixNano").Int64(nanos(span.end));
  WriteAttributes(w, span.attributes);
  if (!span.events.empty()) {
    w.Name("events").Open('[');
    for (const SpanEvent& event : span.events) {
      w.Open('{');
      w.Name("timeUnixNano").Int64(nanos(event.time));
      w.Name("name").String(event.name);
      WriteAttributes(w, event.attributes);
      w.Close('}');
    }
    w.Close(']');
  }
  if (span.dropped_events > 0) w.Name("droppedEventsCount").Int(span.dropped_events);
  if (span.failed) {
    w.Name("status").Open('{');
    w.Name("code").Int(2);  // STATUS_CODE_ERROR
    w.Name("message").String(span.status_message);
    w.Close('}');
  }
  w.Close('}');
}

}  // namespace

std::string ToOtlpJson(const Resource& resource, absl::Span<const SpanGroup> groups,
                       absl::Time wall_at_zero) {
  Writer w;
  w.Open('{');
  w.Name("resourceSpans").Open('[');
  w.Open('{');
  w.Name("resource").Open('{');
  w.Name("attributes").Open('[');
  for (const auto& [key, value] : resource) WriteAttribute(w, key, value);
  w.Close(']');
  w.Close('}');
  w.Name("scopeSpans").Open('[');
  w.Open('{');
  w.Name("scope").Open('{');
  w.Name("name").String("baton");
  w.Name("version").String(Version());
  w.Close('}');
  w.Name("spans").Open('[');
  for (const SpanGroup& group : groups) {
    for (const Span& span : group.spans) WriteSpan(w, group.trace, span, wall_at_zero);
  }
  w.Close(']');
  w.Close('}');
  w.Close(']');
  w.Close('}');
  w.Close(']');
  w.Close('}');
  return w.Take();
}

PartialSuccess ReadPartialSuccess(absl::string_view body) {
  PartialSuccess read;
  const absl::StatusOr<json::Value> answer = json::Parse(body, "the collector's answer");
  if (!answer.ok()) return read;
  const json::Value* partial = answer->Find("partialSuccess");
  if (partial == nullptr) return read;
  if (const json::Value* rejected = partial->Find("rejectedSpans")) {
    const json::Scalar& count = rejected->scalar;
    // Protobuf's JSON has 64-bit integers as strings, and accepts both.
    if (!absl::SimpleAtoi(count.text, &read.rejected_spans)) read.rejected_spans = count.integer;
  }
  if (const json::Value* message = partial->Find("errorMessage")) {
    read.message = json::Printable(message->scalar.text);
  }
  return read;
}

}  // namespace baton::tracing
