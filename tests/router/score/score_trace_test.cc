#include "router/score/score_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/common/tracing/fake_collector.h"
#include "tests/router/score/score_harness.h"

namespace baton::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

class ScoreTraceTest : public ScoreCallTest {
 protected:
  void StartTracing() {
    tracing::TracerOptions options;
    options.exporter.own_thread = false;
    own_.emplace(options, clock_, absl::UnixEpoch(), collector_.Transport(), collector_.Events());
    tracer_ = &*own_;
  }
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

TEST_F(ScoreTraceTest, ABatchIsASpanAndALossAnEvent) {
  StartTracing();
  caller_.trace = {0xa, 0xb, 0xc, 1, "v=1"};
  Start(40);
  batch(1);
  batch(0).Score(0);
  batch(0).End(kSocketClosed);
  batch(1).ScoreAll();
  batch(2).ScoreAll();
  ASSERT_TRUE(sink().End().ok());
  const json root = Spans("score tiny").at(0);
  EXPECT_EQ(root["parentSpanId"], "000000000000000c");
  EXPECT_THAT(Events(root), ElementsAre("first_result", "retry"));
  EXPECT_FALSE(root.contains("status"));
  EXPECT_EQ(FakeCollector::Attribute(root, "baton.request.id"), "judge");
  EXPECT_EQ(FakeCollector::Attribute(root, "baton.items"), "40");
  EXPECT_EQ(FakeCollector::Attribute(root, "baton.failed_items"), "0");
  const std::vector<json> streams = Spans("score_stream");
  ASSERT_EQ(streams.size(), 3u);
  const int items[] = {32, 8, 31};
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_EQ(streams[i]["parentSpanId"], root["spanId"]);
    EXPECT_EQ(streams[i]["spanId"], SpanIdText(batch(i).trace.span_id));
    EXPECT_EQ(streams[i]["traceId"], TraceIdText(batch(i).trace));
    EXPECT_EQ(batch(i).trace.state, "v=1");
    EXPECT_EQ(FakeCollector::Attribute(streams[i], "baton.items"), std::to_string(items[i]));
    EXPECT_EQ(streams[i].contains("status"), i == 0);
  }
  EXPECT_EQ(FakeCollector::Attribute(streams[0], "error.type"), "WORKER_LOST");
  EXPECT_EQ(Spans("admission").size(), 1u);
  EXPECT_EQ(FakeCollector::Attribute(Spans("tokenize").at(0), "baton.prompt_tokens"), "24");
}

TEST_F(ScoreTraceTest, ACancelAndARefusalAreErrors) {
  StartTracing();
  router::ScoreCall& call = Start(2);
  batch(0);
  call.Cancel();
  ASSERT_FALSE(sink().End().ok());
  Start(2, {});
  ASSERT_FALSE(sink(1).End().ok());
  const std::vector<json> roots = Spans("score tiny");
  ASSERT_EQ(roots.size(), 2u);
  EXPECT_THAT(Events(roots[0]), ElementsAre("cancel"));
  EXPECT_EQ(FakeCollector::Attribute(roots[0], "error.type"), "CANCELLED");
  EXPECT_EQ(Spans("score_stream").at(0)["endTimeUnixNano"], roots[0]["endTimeUnixNano"]);
  EXPECT_EQ(FakeCollector::Attribute(roots[1], "error.type"), "OUT_OF_RANGE");
}

}  // namespace
}  // namespace baton::testing
