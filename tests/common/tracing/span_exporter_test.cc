#include "common/tracing/span_exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "absl/synchronization/notification.h"
#include "tests/common/tracing/fake_collector.h"
#include "tests/router/fake_clock.h"

namespace baton::tracing {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using Reply = SpanTransport::Reply;

SpanGroup Group(int spans) {
  SpanGroup group;
  group.trace = {1, 2, 0, 1, ""};
  for (int i = 0; i < spans; ++i) {
    Span& span = group.spans.emplace_back();
    span.id = static_cast<uint64_t>(i) + 1;
    span.name = "s";
  }
  return group;
}

class SpanExporterTest : public ::testing::Test {
 protected:
  SpanExporterTest() {
    options_.own_thread = false;
    options_.queue_spans = 20;
    options_.batch_spans = 8;
  }
  SpanExporter& Start() {
    exporter_.emplace(options_, Resource{{"service.name", "test"}}, clock_, absl::UnixEpoch(),
                      collector_.Transport(), collector_.Events());
    return *exporter_;
  }
  size_t LastBatch() { return testing::FakeCollector::Spans(collector_.bodies.back()).size(); }

  ExporterOptions options_;
  baton::testing::FakeClock clock_;
  baton::testing::FakeCollector collector_;
  std::optional<SpanExporter> exporter_;
};

TEST_F(SpanExporterTest, ABatchIsSentOnceItIsFullOrOld) {
  SpanExporter& exporter = Start();
  EXPECT_EQ(exporter.Turn(), absl::InfiniteDuration());
  exporter.Add(Group(3));
  EXPECT_EQ(exporter.Turn(), absl::Seconds(1));
  clock_.Advance(absl::Milliseconds(400));
  exporter.Add(Group(3));
  EXPECT_EQ(exporter.Turn(), absl::Milliseconds(600)) << "the age of the oldest counts";
  EXPECT_TRUE(collector_.bodies.empty());
  clock_.Advance(absl::Milliseconds(600));
  EXPECT_EQ(exporter.Turn(), absl::ZeroDuration());
  EXPECT_EQ(LastBatch(), 6u);
  exporter.Add(Group(4));
  exporter.Add(Group(4));
  exporter.Turn();
  EXPECT_EQ(LastBatch(), 8u) << "full";
  EXPECT_EQ(collector_.exported, 14);
  EXPECT_TRUE(collector_.dropped.empty());
}

TEST_F(SpanExporterTest, ABatchHoldsWholeGroupsAndNoMoreSpansThanItsBound) {
  SpanExporter& exporter = Start();
  exporter.Add(Group(5));
  exporter.Add(Group(5));
  exporter.Add(Group(10));
  exporter.Turn();
  EXPECT_EQ(LastBatch(), 5u);
  exporter.Turn();
  EXPECT_EQ(LastBatch(), 5u);
  exporter.Turn();
  EXPECT_EQ(LastBatch(), 10u) << "one group that is larger than a batch";
}

TEST_F(SpanExporterTest, AFullQueueDropsNewSpansAndCountsThem) {
  SpanExporter& exporter = Start();
  exporter.Add(Group(12));
  exporter.Add(Group(9));
  exporter.Add(Group(8));
  EXPECT_THAT(collector_.dropped, ElementsAre(Pair("queue_full", 9)));
  while (exporter.Turn() == absl::ZeroDuration()) {
  }
  EXPECT_EQ(collector_.exported, 20);
}

TEST_F(SpanExporterTest, WhatMayBeRetriedIsSentAgainWithGrowingPauses) {
  options_.attempts = 5;
  SpanExporter& exporter = Start();
  collector_.replies = {Reply{503, {}}, Reply{429, absl::Seconds(7)},
                        absl::UnavailableError("refused"), Reply{502, absl::Hours(9)}};
  exporter.Add(Group(8));
  for (const int pause_s : {1, 7, 4, 30}) {
    EXPECT_EQ(exporter.Turn(), absl::ZeroDuration());
    EXPECT_EQ(exporter.Turn(), absl::Seconds(pause_s));
    clock_.Advance(absl::Seconds(pause_s) - absl::Milliseconds(1));
    EXPECT_EQ(exporter.Turn(), absl::Milliseconds(1));
    clock_.Advance(absl::Milliseconds(1));
  }
  exporter.Turn();
  ASSERT_EQ(collector_.bodies.size(), 5u);
  EXPECT_EQ(collector_.bodies.front(), collector_.bodies.back());
  EXPECT_EQ(collector_.exported, 8);
  EXPECT_TRUE(collector_.dropped.empty());
}

TEST_F(SpanExporterTest, ABatchIsDroppedAfterItsLastAttemptOrAStatusThatStands) {
  options_.attempts = 2;
  SpanExporter& exporter = Start();
  collector_.replies = {Reply{504, {}}, absl::DeadlineExceededError("slow"), Reply{400, {}},
                        Reply{301, {}}};
  exporter.Add(Group(8));
  exporter.Turn();
  clock_.Advance(absl::Seconds(1));
  exporter.Turn();
  EXPECT_THAT(collector_.dropped, ElementsAre(Pair("export_failed", 8)));
  exporter.Add(Group(8));
  exporter.Turn();
  exporter.Add(Group(8));
  exporter.Turn();
  EXPECT_THAT(collector_.dropped, ElementsAre(Pair("export_failed", 24)));
  EXPECT_EQ(collector_.bodies.size(), 4u);
  exporter.Add(Group(8));
  exporter.Turn();
  EXPECT_EQ(collector_.exported, 8) << "the next batch has its own chance";
}

// Whatever the collector claims, a batch is counted once.
TEST_F(SpanExporterTest, SpansThatTheCollectorRejectsAreDropped) {
  SpanExporter& exporter = Start();
  const auto answered = [](const std::string& count) {
    return Reply{
        200, {}, R"({"partialSuccess":{"rejectedSpans":)" + count + R"(,"errorMessage":"x"}})"};
  };
  collector_.replies = {answered(R"("3")"), answered("2"), answered("0"), answered("-4"),
                        answered(R"("9223372036854775807")")};
  for (int i = 0; i < 5; ++i) {
    exporter.Add(Group(8));
    exporter.Turn();
  }
  EXPECT_THAT(collector_.dropped, ElementsAre(Pair("rejected", 3 + 2 + 8)));
  EXPECT_EQ(collector_.exported, 5 + 6 + 8 + 8);
  EXPECT_EQ(collector_.bodies.size(), 5u) << "none is sent again";
}

TEST_F(SpanExporterTest, StopSendsWhatWaits) {
  SpanExporter& exporter = Start();
  collector_.replies = {Reply{503, {}}};
  exporter.Add(Group(8));
  exporter.Turn();  // to be sent again later
  exporter.Add(Group(5));
  exporter.Add(Group(5));
  exporter.Stop(absl::Seconds(2));
  EXPECT_EQ(collector_.exported, 18);
  EXPECT_THAT(collector_.timeouts,
              ElementsAre(absl::Seconds(10), absl::Seconds(2), absl::Seconds(2), absl::Seconds(2)));
  exporter.Add(Group(1));
  EXPECT_THAT(collector_.dropped, ElementsAre(Pair("shutdown", 1)));
  exporter.Stop(absl::Seconds(2));
}

TEST_F(SpanExporterTest, StopTriesEachBatchOnceAndEndsWithItsGrace) {
  SpanExporter& exporter = Start();
  collector_.replies = {Reply{503, {}}};
  collector_.on_post = [this] { clock_.Advance(absl::Milliseconds(1500)); };
  for (int i = 0; i < 3; ++i) exporter.Add(Group(6));
  exporter.Stop(absl::Seconds(2));
  EXPECT_EQ(collector_.bodies.size(), 2u);
  EXPECT_EQ(collector_.exported, 6);
  EXPECT_THAT(collector_.dropped, ElementsAre(Pair("export_failed", 6), Pair("shutdown", 6)));
  EXPECT_EQ(collector_.timeouts.back(), absl::Milliseconds(500));
}

TEST_F(SpanExporterTest, WithoutGraceAllIsDropped) {
  SpanExporter& exporter = Start();
  exporter.Add(Group(6));
  exporter.Stop(absl::ZeroDuration());
  EXPECT_THAT(collector_.dropped, ElementsAre(Pair("shutdown", 6)));
  EXPECT_TRUE(collector_.bodies.empty());
}

// A collector that never answers: the thread is joined once its Post is cancelled.
class DeafTransport final : public SpanTransport {
 public:
  explicit DeafTransport(absl::Notification& posted) : posted_(posted) {}
  absl::StatusOr<Reply> Post(const std::string&, absl::Duration) override {
    posted_.Notify();
    cancelled_.WaitForNotification();
    return absl::CancelledError("cancelled");
  }
  void Cancel() override {
    if (!cancelled_.HasBeenNotified()) cancelled_.Notify();
  }

 private:
  absl::Notification& posted_;
  absl::Notification cancelled_;
};

TEST_F(SpanExporterTest, TheThreadSendsByItselfAndEndsDuringAnExport) {
  options_.own_thread = true;
  absl::Notification posted;
  exporter_.emplace(options_, Resource(), Clock::Real(), absl::UnixEpoch(),
                    std::make_unique<DeafTransport>(posted), collector_.Events());
  exporter_->Add(Group(8));
  posted.WaitForNotification();
  exporter_->Add(Group(3));
  exporter_->Stop(absl::Milliseconds(1));
  int dropped = 0;
  for (const auto& [reason, spans] : collector_.dropped) dropped += spans;
  EXPECT_EQ(dropped, 11);
  EXPECT_EQ(collector_.exported, 0);
}

TEST_F(SpanExporterTest, CutEndsAStopThatHasMuchTime) {
  options_.own_thread = true;
  absl::Notification posted;
  exporter_.emplace(options_, Resource(), Clock::Real(), absl::UnixEpoch(),
                    std::make_unique<DeafTransport>(posted), collector_.Events());
  exporter_->Add(Group(8));
  posted.WaitForNotification();
  exporter_->Cut();  // perhaps before the other thread's Stop, perhaps not
  exporter_->Stop(absl::Hours(1));
  EXPECT_EQ(collector_.exported, 0);
}

}  // namespace
}  // namespace baton::tracing
