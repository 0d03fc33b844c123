#include "common/tracing/otlp_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "common/base/error.h"

namespace baton::tracing {
namespace {

using nlohmann::json;

TEST(OtlpJson, ASpanHasAllOfItsFields) {
  SpanGroup group;
  group.trace = {0xa1, 0xb2, 7, 1, "v=1"};
  Span& span = group.spans.emplace_back();
  span.id = 0xc3;
  span.parent = 7;
  span.name = "decode \"x\"";
  span.kind = SpanKind::kServer;
  span.begin = absl::Seconds(1) + absl::Nanoseconds(5);
  span.end = absl::Seconds(2);
  span.Set("text", std::string("a\nb\xff"));
  span.Set("number", int64_t{1} << 60);
  span.Set("real", 0.1);
  span.Set("truth", true);
  span.Set("list", std::vector<std::string>{"stop", "length"});
  span.AddEvent("retry", absl::Seconds(1), {{"reason", std::string("LOST")}});
  const std::string text =
      ToOtlpJson({{"service.name", "s"}}, {group}, absl::FromUnixSeconds(1'700'000'000));
  const json expected = json::parse(R"({"resourceSpans": [{
    "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "s"}}]},
    "scopeSpans": [{"scope": {"name": "baton", "version": "VERSION"}, "spans": [{
      "traceId": "00000000000000a100000000000000b2", "spanId": "00000000000000c3",
      "parentSpanId": "0000000000000007", "traceState": "v=1", "flags": 1,
      "name": "decode \"x\"", "kind": 2,
      "startTimeUnixNano": "1700000001000000005", "endTimeUnixNano": "1700000002000000000",
      "attributes": [
        {"key": "text", "value": {"stringValue": "a\nb?"}},
        {"key": "number", "value": {"intValue": "1152921504606846976"}},
        {"key": "real", "value": {"doubleValue": 0.1}},
        {"key": "truth", "value": {"boolValue": true}},
        {"key": "list", "value": {"arrayValue": {"values": [
          {"stringValue": "stop"}, {"stringValue": "length"}]}}}],
      "events": [{"timeUnixNano": "1700000001000000000", "name": "retry",
                  "attributes": [{"key": "reason", "value": {"stringValue": "LOST"}}]}]
    }]}]}]})");
  json actual = json::parse(text);
  EXPECT_FALSE(actual["resourceSpans"][0]["scopeSpans"][0]["scope"]["version"].empty());
  actual["resourceSpans"][0]["scopeSpans"][0]["scope"]["version"] = "VERSION";
  EXPECT_EQ(actual, expected) << text;
}

TEST(OtlpJson, WhatIsAbsentIsLeftOut) {
  SpanGroup group;
  group.trace = {0, 1, 0, 1, ""};
  group.spans.emplace_back().id = 1;
  const json body = json::parse(ToOtlpJson({}, {group, group}, absl::UnixEpoch()));
  const json& spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"];
  ASSERT_EQ(spans.size(), 2u);
  for (const char* field :
       {"parentSpanId", "traceState", "attributes", "events", "status", "droppedEventsCount"}) {
    EXPECT_FALSE(spans[1].contains(field)) << field;
  }
}

TEST(OtlpJson, AnErrorHasItsCodeAndReason) {
  SpanGroup group;
  group.trace = {0, 1, 0, 1, ""};
  Span& span = group.spans.emplace_back();
  span.Fail(absl::OkStatus());
  EXPECT_FALSE(span.failed);
  span.Fail(MakeError(absl::StatusCode::kUnavailable, "WORKER_LOST", "gone"));
  for (int i = 0; i < 70; ++i) span.AddEvent("e", absl::ZeroDuration());
  span.Set("nan", std::numeric_limits<double>::quiet_NaN());
  const json body = json::parse(ToOtlpJson({}, {group}, absl::UnixEpoch()));
  const json& sent = body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(sent["status"], json::parse(R"({"code": 2, "message": "gone"})"));
  EXPECT_EQ(sent["attributes"], json::parse(R"([
    {"key": "error.type", "value": {"stringValue": "WORKER_LOST"}},
    {"key": "rpc.grpc.status_code", "value": {"intValue": "14"}},
    {"key": "nan", "value": {"doubleValue": "NaN"}}])"));
  EXPECT_EQ(sent["events"].size(), 64u);
  EXPECT_EQ(sent["droppedEventsCount"], 6);
}

TEST(OtlpJson, LongStringsAreCut) {
  SpanGroup group;
  group.spans.emplace_back().Set("k", std::string(1 << 20, '\x01'));
  EXPECT_LT(ToOtlpJson({}, {group}, absl::UnixEpoch()).size(), 2 * kMaxAttributeBytes);
}

TEST(OtlpJson, ReadsWhatACollectorRejected) {
  const auto read = [](absl::string_view body) { return ReadPartialSuccess(body).rejected_spans; };
  EXPECT_EQ(read(R"({"partialSuccess":{"rejectedSpans":"7"}})"), 7);
  EXPECT_EQ(read(R"({"partialSuccess":{"rejectedSpans":7,"errorMessage":"m"}})"), 7);
  EXPECT_EQ(ReadPartialSuccess(R"({"partialSuccess":{"errorMessage":"a\nb"}})").message, R"(a\nb)");
  for (const char* nothing :
       {"", "{}", "{", "[7]", "null", R"({"partialSuccess":7})", R"({"partialSuccess":{}})",
        R"({"partialSuccess":{"rejectedSpans":"x"}})",
        R"({"partialSuccess":{"rejectedSpans":[7]}})", R"({"partialSuccess":{"rejectedSpans":7)"}) {
    EXPECT_EQ(read(nothing), 0) << nothing;
  }
}

}  // namespace
}  // namespace baton::tracing
