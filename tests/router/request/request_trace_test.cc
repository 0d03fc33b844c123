#include "router/request/request_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/common/tracing/fake_collector.h"
#include "tests/router/call_harness.h"

namespace baton::router {
namespace {

using ::baton::testing::FakeCollector;
using ::baton::testing::FakeSink;
using ::baton::testing::kSocketClosed;
using nlohmann::json;
using ::testing::ElementsAre;

class RequestTraceTest : public baton::testing::CallHarness {
 protected:
  void StartTracing(double ratio = 1) {
    tracing::TracerOptions options;
    options.sample_ratio = ratio;
    options.exporter.own_thread = false;
    own_.emplace(options, clock_, absl::UnixEpoch(), collector_.Transport(), collector_.Events());
    tracer_ = &*own_;
  }
  // All spans of that name, oldest first.
  std::vector<json> Spans(const std::string& name) {
    own_->Stop(absl::Seconds(1));
    std::vector<json> found;
    for (const json& body : collector_.bodies) {
      for (const json& span : FakeCollector::Spans(body)) {
        if (span["name"] == name) found.push_back(span);
      }
    }
    return found;
  }
  static std::vector<std::string> Events(const json& span) {
    std::vector<std::string> names;
    for (const json& event : span.value("events", json::array())) names.push_back(event["name"]);
    return names;
  }

  FakeCollector collector_;
  std::optional<tracing::Tracer> own_;
};

constexpr char kRootName[] = "text_completion tiny";

TEST_F(RequestTraceTest, ARetryIsAnEventAndASecondStream) {
  StartTracing();
  caller_.trace = {0xa, 0xb, 0xc, 1, "v=1"};
  FakeSink& sink = Start(Request());
  stream(0).End(kSocketClosed);
  stream(1).Finish("ab");
  ASSERT_TRUE(sink.End().ok());
  const std::vector<json> streams = Spans("decode_stream");
  ASSERT_EQ(streams.size(), 2u);
  const json root = Spans(kRootName).at(0);
  EXPECT_THAT(Events(root), ElementsAre("retry", "first_token"));
  EXPECT_EQ(root["parentSpanId"], "000000000000000c");
  EXPECT_FALSE(root.contains("status"));
  EXPECT_EQ(FakeCollector::Attribute(root, "gen_ai.usage.output_tokens"), "2");
  EXPECT_EQ(
      FakeCollector::Attribute(root, "gen_ai.response.finish_reasons")["values"][0]["stringValue"],
      "length");
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_EQ(streams[i]["parentSpanId"], root["spanId"]);
    const TraceContext& passed = stream(i).trace;
    EXPECT_EQ(streams[i]["spanId"], SpanIdText(passed.span_id));
    EXPECT_EQ(streams[i]["traceId"], TraceIdText(passed));
    EXPECT_EQ(passed.state, "v=1");
    EXPECT_EQ(passed.flags, 1);
  }
  EXPECT_EQ(streams[0]["status"]["code"], 2);
  EXPECT_FALSE(streams[1].contains("status"));
  EXPECT_EQ(Spans("route").size(), 2u);
}

TEST_F(RequestTraceTest, AFailoverIsAnEvent) {
  StartTracing();
  FakeSink& sink = Start(Request());
  stream(0).SayTokens("a");
  stream(0).End(kSocketClosed);
  stream(1).Finish("b");
  ASSERT_TRUE(sink.End().ok());
  const json root = Spans(kRootName).at(0);
  EXPECT_THAT(Events(root), ElementsAre("first_token", "failover"));
  EXPECT_FALSE(root.contains("parentSpanId"));
}

TEST_F(RequestTraceTest, ACancelIsAnEventAndAnError) {
  StartTracing();
  FakeSink& sink = Start(Request());
  stream(0).SayTokens("a");
  clock_.Advance(absl::Seconds(2));
  call().Cancel();
  EXPECT_TRUE(absl::IsCancelled(sink.End()));
  const json root = Spans(kRootName).at(0);
  EXPECT_THAT(Events(root), ElementsAre("first_token", "cancel"));
  EXPECT_EQ(root["status"]["code"], 2);
  EXPECT_EQ(FakeCollector::Attribute(root, "error.type"), "CANCELLED");
  EXPECT_EQ(Spans("decode_stream").at(0)["endTimeUnixNano"], root["endTimeUnixNano"]);
}

TEST_F(RequestTraceTest, ARefusedRequestHasItsReason) {
  StartTracing();
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_temperature(-1);
  EXPECT_FALSE(Start(request).End().ok());
  const json root = Spans(kRootName).at(0);
  EXPECT_EQ(FakeCollector::Attribute(root, "error.type"), "OUT_OF_RANGE");
  EXPECT_EQ(FakeCollector::Attribute(root, "rpc.grpc.status_code"), "3");
}

TEST_F(RequestTraceTest, AnUnsampledRequestPassesItsTraceOnAndHasNoSpans) {
  StartTracing(/*ratio=*/0);
  FakeSink& own = Start(Request());
  stream(0).Finish("a");
  ASSERT_TRUE(own.End().ok());
  EXPECT_TRUE(stream(0).trace.valid());
  EXPECT_NE(stream(0).trace.span_id, 0u) << "else the worker would begin a trace itself";
  EXPECT_FALSE(stream(0).trace.sampled());
  caller_.trace = {0xa, 0xb, 0xc, 0, "v=1"};
  FakeSink& given = Start(Request());
  stream(1).Finish("a");
  ASSERT_TRUE(given.End().ok());
  EXPECT_EQ(stream(1).trace, caller_.trace);
  EXPECT_TRUE(Spans(kRootName).empty());
  EXPECT_TRUE(collector_.bodies.empty());
}

TEST_F(RequestTraceTest, WithoutATracerACallersTraceIsPassedOn) {
  FakeSink& none = Start(Request());
  stream(0).Finish("a");
  ASSERT_TRUE(none.End().ok());
  EXPECT_FALSE(stream(0).trace.valid());
  caller_.trace = {0xa, 0xb, 0xc, 1, ""};
  FakeSink& given = Start(Request());
  stream(1).Finish("a");
  ASSERT_TRUE(given.End().ok());
  EXPECT_EQ(stream(1).trace, caller_.trace);
}

}  // namespace
}  // namespace baton::router
