#include "decode_worker/call_trace.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/base/error.h"
#include "tests/common/tracing/fake_collector.h"
#include "tests/decode_worker/loop_harness.h"

namespace baton::decode_worker {
namespace {

using testing::FakeCollector;

class CallTraceTest : public LoopTest {
 protected:
  CallTraceTest() {
    options_.exporter.own_thread = false;
    tracer_ = std::make_unique<tracing::Tracer>(options_, clock_, absl::UnixEpoch(),
                                                collector_.Transport(), collector_.Events());
    internal::v1::DecodeRequest request;
    request.set_request_id("test");
    trace_ = CallTrace::Begin(tracer_.get(), {0xa, 0xb, 0xc, 1, "v=1"}, request);
    Make(64, ByHand());
  }
  // What ends spans goes before the tracer does.
  ~CallTraceTest() override {
    loop_.reset();
    trace_.reset();
  }
  // The spans by name, once the call has ended, as its service would end the trace.
  std::map<std::string, nlohmann::json> Spans(const FakeStream& stream) {
    EXPECT_TRUE(stream.finish.has_value());
    trace_->End(*stream.finish);
    tracer_->Stop(absl::Seconds(1));
    return collector_.ByName();
  }
  static int64_t Nanos(const nlohmann::json& span, const char* field) {
    return std::stoll(span[field].get<std::string>());
  }
  static absl::Duration Length(const nlohmann::json& span) {
    return absl::Nanoseconds(Nanos(span, "endTimeUnixNano") - Nanos(span, "startTimeUnixNano"));
  }

  FakeCollector collector_;
  tracing::TracerOptions options_;
  std::unique_ptr<tracing::Tracer> tracer_;
};

constexpr char kDecodeSpan[] = "baton.internal.v1.DecodeService/Decode";

TEST_P(CallTraceTest, StagesOfACallWhoseKvIsTransferred) {
  const auto stream = Ask({.prompt = Prompt(40), .max_tokens = 4, .remote = true});
  Turn();
  ASSERT_EQ(transfers_.size(), 1u);
  clock_.Advance(absl::Seconds(2));
  SendFirstToken(*transfers_[0]);
  Turn();
  clock_.Advance(absl::Seconds(1));
  SendKv(*transfers_[0]);
  Turn();
  clock_.Advance(absl::Seconds(4));
  Run();
  const TraceContext passed = transfers_[0]->plan.trace;
  auto spans = Spans(*stream);
  EXPECT_EQ(passed.trace_low, 0xbu);
  EXPECT_EQ(passed.state, "v=1");
  EXPECT_EQ(spans["kv_transfer"]["spanId"], SpanIdText(passed.span_id));
  EXPECT_EQ(spans[kDecodeSpan]["parentSpanId"], "000000000000000c");
  for (const char* stage : {"decode_queue", "kv_transfer", "decode"}) {
    EXPECT_EQ(spans[stage]["parentSpanId"], spans[kDecodeSpan]["spanId"]) << stage;
  }
  EXPECT_EQ(spans["first_step"]["parentSpanId"], spans["decode"]["spanId"]);
  EXPECT_FALSE(spans.contains("prefill_compute"));
  EXPECT_EQ(Length(spans["kv_transfer"]), absl::Seconds(3));
  EXPECT_EQ(Length(spans["decode"]), absl::Seconds(4));
  EXPECT_EQ(Length(spans[kDecodeSpan]), absl::Seconds(7));
  EXPECT_EQ(FakeCollector::Attribute(spans["decode"], "gen_ai.usage.output_tokens"), "4");
  EXPECT_FALSE(spans[kDecodeSpan].contains("status"));
}

TEST_P(CallTraceTest, StagesOfACallThatComputesItsPrompt) {
  const auto stream = Ask({.prompt = Prompt(40), .max_tokens = 3});
  clock_.Advance(absl::Seconds(1));
  Run();
  auto spans = Spans(*stream);
  EXPECT_EQ(spans.size(), 5u);
  for (const char* stage : {"decode_queue", "prefill_compute", "decode"}) {
    EXPECT_EQ(spans[stage]["parentSpanId"], spans[kDecodeSpan]["spanId"]) << stage;
  }
  EXPECT_EQ(spans["first_step"]["parentSpanId"], spans["decode"]["spanId"]);
  EXPECT_EQ(spans[kDecodeSpan]["events"][0]["name"], "first_token");
}

TEST_P(CallTraceTest, AFailedTransferHasItsReason) {
  const auto stream = Ask({.prompt = Prompt(40), .max_tokens = 3, .remote = true});
  Turn();
  Fail(*transfers_[0], MakeError(absl::StatusCode::kUnavailable, "PREFILL_LOST", "gone"));
  Turn();
  auto spans = Spans(*stream);
  for (const char* name : {"kv_transfer", kDecodeSpan}) {
    EXPECT_EQ(spans[name]["status"]["code"], 2) << name;
    EXPECT_EQ(FakeCollector::Attribute(spans[name], "error.type"), "PREFILL_LOST") << name;
  }
  EXPECT_FALSE(spans.contains("decode"));
}

TEST_P(CallTraceTest, AnUnsampledTraceIsPassedOnAsItCame) {
  trace_ = CallTrace::Begin(tracer_.get(), {1, 2, 3, 0, ""}, {});
  EXPECT_EQ(trace_, nullptr);
  trace_context_ = {1, 2, 3, 0, "v=1"};
  const auto stream = Ask({.prompt = Prompt(40), .max_tokens = 3, .remote = true});
  Turn();
  ASSERT_EQ(transfers_.size(), 1u);
  EXPECT_EQ(transfers_[0]->plan.trace, trace_context_);
  Commit(*transfers_[0]);
  Run();
  EXPECT_EQ(stream->finish, absl::OkStatus());
  tracer_->Stop(absl::Seconds(1));
  EXPECT_EQ(collector_.exported, 1) << "only the one of the constructor, which was not used";
}

INSTANTIATE_TEST_SUITE_P(RunsAhead, CallTraceTest, ::testing::Bool());

}  // namespace
}  // namespace baton::decode_worker
