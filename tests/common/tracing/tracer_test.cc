#include "common/tracing/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix64.h"
#include "tests/common/tracing/fake_collector.h"
#include "tests/router/fake_clock.h"

namespace baton::tracing {
namespace {

using baton::testing::FakeCollector;

class TracerTest : public ::testing::Test {
 protected:
  TracerTest() {
    options_.exporter.own_thread = false;
    options_.random = [this] { return NextSplitMix64(&state_) | 1; };
  }
  Tracer& Start() {
    // Zero of the clock is second 5000 of Unix time.
    tracer_.emplace(options_, clock_, absl::FromUnixSeconds(5000), collector_.Transport(),
                    collector_.Events());
    return *tracer_;
  }
  std::map<std::string, nlohmann::json> Spans() {
    tracer_->Stop(absl::Seconds(1));
    return collector_.ByName();
  }

  uint64_t state_ = 1;
  TracerOptions options_;
  baton::testing::FakeClock clock_;
  FakeCollector collector_;
  std::optional<Tracer> tracer_;
};

TEST_F(TracerTest, ACallersTraceIsContinuedAndItsDecisionKept) {
  options_.sample_ratio = 0;
  Tracer& none = Start();
  const TraceContext sampled = {1, 2, 3, 1, "v=1"};
  EXPECT_EQ(none.Join(sampled), sampled);
  EXPECT_FALSE(none.Join({}).sampled());
  EXPECT_NE(none.Join({}).span_id, 0u) << "the decision against it can be passed on";
  options_.sample_ratio = 1;
  Tracer& all = Start();
  const TraceContext unsampled = {1, 2, 3, 0, ""};
  EXPECT_EQ(all.Join(unsampled), unsampled);
  const TraceContext fresh = all.Join({});
  EXPECT_TRUE(fresh.sampled());
  EXPECT_EQ(fresh.span_id, 0u);
  EXPECT_EQ(JoinTrace(nullptr, sampled), sampled);
  EXPECT_FALSE(JoinTrace(nullptr, {}).valid());
}

TEST_F(TracerTest, TheRatioIsTheShareOfNewTraces) {
  options_.sample_ratio = 0.25;
  Tracer& tracer = Start();
  int sampled = 0;
  for (int i = 0; i < 10'000; ++i) sampled += tracer.Join({}).sampled() ? 1 : 0;
  EXPECT_NEAR(sampled, 2500, 250) << "SplitMix64 with seed 1";
}

TEST_F(TracerTest, AnUnsampledRequestHasNoSpans) {
  Tracer& tracer = Start();
  const TraceContext unsampled = {1, 2, 3, 0, ""};
  EXPECT_EQ(RequestSpans::Begin(&tracer, unsampled, "r", SpanKind::kServer, {}), nullptr);
  EXPECT_EQ(RequestSpans::Begin(nullptr, {1, 2, 3, 1, ""}, "r", SpanKind::kServer, {}), nullptr);
  EXPECT_EQ(RequestSpans::Begin(&tracer, {}, "r", SpanKind::kServer, {}), nullptr);
  EXPECT_TRUE(Spans().empty());
}

TEST_F(TracerTest, StagesAreChildrenWithinTheRoot) {
  Tracer& tracer = Start();
  const TraceContext caller = {0xaa, 0xbb, 0xcc, 1, "v=1"};
  const absl::Duration t0 = clock_.SinceStart();
  auto spans = RequestSpans::Begin(&tracer, caller, "request", SpanKind::kServer, t0);
  spans->AddStage("queue", t0, t0 + absl::Seconds(1));
  const auto call = spans->Add("call", SpanKind::kClient, t0 + absl::Seconds(1));
  const TraceContext passed = spans->ContextOf(call);
  EXPECT_EQ(TraceIdText(passed), TraceIdText(caller));
  EXPECT_EQ(passed.state, "v=1");
  EXPECT_TRUE(passed.sampled());
  spans->AddStage("late", t0 + absl::Seconds(2), t0 + absl::Seconds(99), call);
  EXPECT_TRUE(collector_.bodies.empty());
  clock_.Advance(absl::Seconds(3));
  spans.reset();  // ends now
  auto sent = Spans();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(sent["request"]["parentSpanId"], "00000000000000cc");
  EXPECT_EQ(sent["queue"]["parentSpanId"], sent["request"]["spanId"]);
  EXPECT_EQ(sent["call"]["parentSpanId"], sent["request"]["spanId"]);
  EXPECT_EQ(sent["call"]["spanId"], SpanIdText(passed.span_id));
  EXPECT_EQ(sent["late"]["parentSpanId"], sent["call"]["spanId"]);
  for (const auto& [name, span] : sent) {
    EXPECT_EQ(span["traceId"], TraceIdText(caller));
  }
  // FakeClock begins at 1000 s.
  EXPECT_EQ(sent["request"]["startTimeUnixNano"], "6000000000000");
  EXPECT_EQ(sent["queue"]["endTimeUnixNano"], "6001000000000");
  for (const char* name : {"request", "call", "late"}) {
    EXPECT_EQ(sent[name]["endTimeUnixNano"], "6003000000000") << name;
  }
}

TEST_F(TracerTest, ARequestHasABoundedNumberOfSpans) {
  Tracer& tracer = Start();
  auto spans = RequestSpans::Begin(&tracer, {1, 2, 0, 1, ""}, "request", SpanKind::kServer, {});
  for (int i = 0; i < 1000; ++i) {
    const auto call = spans->Add("call", SpanKind::kClient, absl::ZeroDuration());
    spans->at(call).Set("i", int64_t{i});
    EXPECT_NE(spans->ContextOf(call).span_id, 0u);
  }
  spans->End(absl::ZeroDuration());
  spans->root().Set("late", true);
  spans->Add("late", SpanKind::kClient, absl::ZeroDuration());
  spans.reset();
  auto sent = Spans();
  EXPECT_EQ(collector_.exported, static_cast<int>(RequestSpans::kMaxSpans));
  EXPECT_EQ(FakeCollector::Attribute(sent["request"], "baton.dropped_spans"), "745");
  EXPECT_FALSE(sent.contains("late"));
}

TEST_F(TracerTest, TheWallClockAtZeroIsTheDifferenceOfTheClocks) {
  EXPECT_EQ(WallAtZero(clock_), absl::UnixEpoch());
  const Clock& real = Clock::Real();
  const absl::Duration apart = (WallAtZero(real) + real.SinceStart()) - real.Now();
  EXPECT_LT(absl::AbsDuration(apart), absl::Minutes(1));
}

}  // namespace
}  // namespace baton::tracing
