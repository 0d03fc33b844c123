#include "router/fleet_load.h"

#include <gtest/gtest.h>

#include <limits>

namespace baton::router {
namespace {

constexpr absl::Duration kStart = absl::Seconds(1000);
constexpr int kPrefill = 0, kOther = 1, kDecode = 2;

class FleetLoadTest : public ::testing::Test {
 protected:
  FleetLoadTest() {
    fleet_.Grow(3);
    for (int i : {kPrefill, kOther}) fleet_.Serves(i, {v1::WORKER_ROLE_PREFILL, 7, 1, 100, 16});
    fleet_.Serves(kDecode, {v1::WORKER_ROLE_DECODE, 7, 2, 100, 16});
  }
  internal::v1::LoadReport Report(double remaining_s) {
    internal::v1::LoadReport report;
    report.set_remaining_work_us(static_cast<int64_t>(remaining_s * 1e6));
    report.set_free_blocks(50);
    return report;
  }
  void ToldCost(int worker, double token_us) {
    internal::v1::LoadReport report = Report(0);
    report.mutable_prefill_cost()->set_fixed_us(1000);
    report.mutable_prefill_cost()->set_token_us(token_us);
    report.mutable_prefill_cost()->set_pair_us(0.5);
    fleet_.OnReport(worker, report, now_);
  }
  std::vector<Candidate> Collect(v1::WorkerRole role, std::vector<int> matched = {}) {
    FleetLoad::Query query;
    query.role = role;
    query.model_fingerprint = 7;
    query.prompt_tokens = 64;
    query.matched_blocks = matched;
    const absl::Span<const Candidate> candidates = fleet_.Collect(query, now_);
    return {candidates.begin(), candidates.end()};
  }
  Candidate Of(int worker, std::vector<int> matched = {}) {
    const auto role = worker == kDecode ? v1::WORKER_ROLE_DECODE : v1::WORKER_ROLE_PREFILL;
    for (const Candidate& c : Collect(role, matched)) {
      if (c.worker == worker) return c;
    }
    ADD_FAILURE() << "worker " << worker << " is no candidate";
    return Candidate();
  }

  absl::Duration now_ = kStart;
  FleetLoad fleet_;
};

TEST_F(FleetLoadTest, OnlyThoseThatServeTheModelInTheRoleAreCandidates) {
  EXPECT_EQ(Collect(v1::WORKER_ROLE_PREFILL).size(), 2u);
  fleet_.Rests(kPrefill);
  EXPECT_EQ(Collect(v1::WORKER_ROLE_PREFILL).size(), 1u);
  fleet_.Serves(kOther, {v1::WORKER_ROLE_PREFILL, 8, 1, 100, 16});
  EXPECT_TRUE(Collect(v1::WORKER_ROLE_PREFILL).empty());
  EXPECT_EQ(Collect(v1::WORKER_ROLE_DECODE).size(), 1u);
  fleet_.Forget(kDecode);
  EXPECT_TRUE(Collect(v1::WORKER_ROLE_DECODE).empty());
}

TEST_F(FleetLoadTest, TheQueueIsWhatWasReportedLessTheTimeSinceThen) {
  fleet_.OnReport(kPrefill, Report(2), now_);
  EXPECT_NEAR(Of(kPrefill).queue_s, 2, 1e-9);
  now_ += absl::Milliseconds(500);
  EXPECT_NEAR(Of(kPrefill).queue_s, 1.5, 1e-9);
  EXPECT_NEAR(Of(kPrefill).silence_s, 0.5, 1e-9);
  now_ += absl::Seconds(5);
  EXPECT_EQ(Of(kPrefill).queue_s, 0);
}

TEST_F(FleetLoadTest, OwnDispatchesCountUntilAReportCanContainThem) {
  fleet_.OnReport(kPrefill, Report(1), now_);
  now_ += absl::Milliseconds(400);
  fleet_.OnDispatch(kPrefill, now_, 48, 0.5, 4);
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.6 + 0.5, 1e-9);
  EXPECT_EQ(Of(kPrefill).queued, 1);
  EXPECT_EQ(Of(kPrefill).queued_tokens, 48);
  EXPECT_EQ(Of(kPrefill).free_blocks, 46);
  // On its way when the dispatch was made.
  now_ += absl::Milliseconds(10);
  fleet_.OnReport(kPrefill, Report(0.59), now_);
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.59 + 0.5, 1e-9);
  now_ += absl::Milliseconds(100);
  fleet_.OnReport(kPrefill, Report(0.98), now_);
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.98, 1e-9);
  EXPECT_EQ(Of(kPrefill).queued, 0);
  EXPECT_EQ(Of(kPrefill).free_blocks, 50);
}

TEST_F(FleetLoadTest, ADispatchThatIsNeverReportedIsForgotten) {
  fleet_.OnReport(kDecode, Report(0), now_);
  fleet_.OnDispatch(kDecode, now_, 1, 0, 10);
  EXPECT_EQ(Of(kDecode).free_blocks, 40);
  now_ += absl::Seconds(6);
  fleet_.Tick(now_);
  EXPECT_EQ(Of(kDecode).free_blocks, 50);
}

TEST_F(FleetLoadTest, TheCostIsTheWorkersOwnOrElseItsRolesMean) {
  EXPECT_FALSE(Of(kPrefill).cost_known);
  EXPECT_NEAR(Of(kPrefill).service_s, PrefillCost().Seconds(64, 0), 1e-9);
  ToldCost(kPrefill, 100);
  // 64 tokens at 100 µs, 64 · 32 pairs at 0.5 µs.
  EXPECT_NEAR(Of(kPrefill).service_s, 1e-3 + 6.4e-3 + 64 * 32 * 0.5e-6, 1e-9);
  EXPECT_NEAR(Of(kPrefill, {2}).service_s, 1e-3 + 3.2e-3 + 32 * (32 + 16) * 0.5e-6, 1e-9);
  // All of it is cached: the last token is computed all the same.
  EXPECT_NEAR(Of(kPrefill, {4}).service_s, 1e-3 + 1e-4 + 63.5 * 0.5e-6, 1e-9);
  EXPECT_TRUE(Of(kOther).cost_known);
  EXPECT_NEAR(Of(kOther).service_s, Of(kPrefill).service_s, 1e-9);
  EXPECT_FALSE(Of(kDecode).cost_known) << "of another role";
  ToldCost(kOther, 300);
  EXPECT_NEAR(Of(kOther).service_s - Of(kPrefill).service_s, 64 * 200e-6, 1e-9);
}

// Or the one that seems quickest would get all that is new, and the slowest never the work that
// would show otherwise.
TEST_F(FleetLoadTest, WorkersOfOneKindCostTheSame) {
  ToldCost(kPrefill, 100);
  ToldCost(kOther, 140);
  fleet_.Tick(now_);
  EXPECT_DOUBLE_EQ(Of(kOther).service_s, Of(kPrefill).service_s);
  EXPECT_NEAR(Of(kOther).service_s, 1e-3 + 64 * 120e-6 + 64 * 32 * 0.5e-6, 1e-9);
  // Another machine, and then the same again.
  ToldCost(kOther, 500);
  fleet_.Tick(now_);
  EXPECT_NEAR(Of(kPrefill).service_s, 1e-3 + 64 * 100e-6 + 64 * 32 * 0.5e-6, 1e-9);
  EXPECT_NEAR(Of(kOther).service_s, 1e-3 + 64 * 500e-6 + 64 * 32 * 0.5e-6, 1e-9);
  ToldCost(kOther, 100);
  fleet_.Tick(now_);
  EXPECT_DOUBLE_EQ(Of(kOther).service_s, Of(kPrefill).service_s);
}

// What is done counts no longer, whether or not a report has come since: with prompts that take
// less than the time for which reports are doubted, the one who has a prefix would seem busy with
// all it has done lately.
TEST_F(FleetLoadTest, WhatIsDoneIsNoLongerWaitedFor) {
  fleet_.OnReport(kPrefill, Report(0), now_);
  const int64_t first = fleet_.OnDispatch(kPrefill, now_, 10, 0.3, 1);
  const int64_t second = fleet_.OnDispatch(kPrefill, now_, 10, 0.2, 1);
  EXPECT_NE(first, second);
  now_ += absl::Milliseconds(100);
  fleet_.OnDone(kPrefill, first, now_);
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.2, 1e-9);
  EXPECT_EQ(Of(kPrefill).queued, 1);
  fleet_.OnDone(kPrefill, first, now_);
  EXPECT_EQ(Of(kPrefill).queued, 1) << "once is enough";
  fleet_.OnDone(kPrefill, second, now_);
  EXPECT_EQ(Of(kPrefill).queue_s, 0);
  // One that a report has counted is the report's to end.
  const int64_t third = fleet_.OnDispatch(kPrefill, now_, 10, 0.3, 1);
  now_ += absl::Milliseconds(60);
  fleet_.OnReport(kPrefill, Report(0.24), now_);
  fleet_.OnDone(kPrefill, third, now_);
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.24, 1e-9);
  fleet_.OnDone(-1, third, now_);
  fleet_.OnDone(kOther, third, now_);
}

// A worker hears of nothing new during a step, and repeats what it said before.
TEST_F(FleetLoadTest, AReportCountsFromWhenItsNumbersWere) {
  now_ += absl::Seconds(1);
  fleet_.OnDispatch(kPrefill, now_ - absl::Milliseconds(400), 64, 0.3, 1);
  internal::v1::LoadReport report = Report(0.5);
  report.set_age_us(200'000);
  report.set_intake_age_us(600'000);
  fleet_.OnReport(kPrefill, report, now_);
  EXPECT_EQ(Of(kPrefill).queued, 1) << "sent after requests were last taken in";
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.5 - 0.2 + 0.3, 1e-9);
  report.set_age_us(0);
  report.set_intake_age_us(0);
  fleet_.OnReport(kPrefill, report, now_);
  EXPECT_EQ(Of(kPrefill).queued, 0);
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.5, 1e-9);
}

TEST_F(FleetLoadTest, WhatIsSaidAgainIsNoNews) {
  internal::v1::LoadReport report = Report(0);
  report.set_decode_context_tokens(100);
  report.set_decode_step_us(10'000);
  fleet_.OnReport(kDecode, report, now_);
  report.set_decode_step_us(30'000);
  for (int i = 0; i < 1000; ++i) fleet_.OnReport(kDecode, report, now_);
  EXPECT_NEAR(Of(kDecode).step_s, 20e-3, 2e-3);
}

TEST_F(FleetLoadTest, NonsenseFromAWorkerIsTakenAsNothing) {
  internal::v1::LoadReport report;
  report.set_remaining_work_us(-5);
  report.set_running(-1);
  report.set_queued(-7);
  report.set_queued_tokens(-9);
  report.set_free_blocks(-2);
  report.mutable_prefill_cost()->set_fixed_us(std::numeric_limits<double>::quiet_NaN());
  report.mutable_prefill_cost()->set_token_us(-std::numeric_limits<double>::infinity());
  report.mutable_prefill_cost()->set_pair_us(-1);
  fleet_.OnReport(kPrefill, report, now_);
  const Candidate c = Of(kPrefill);
  EXPECT_EQ(c.queue_s, 0);
  EXPECT_EQ(c.running + c.queued + c.queued_tokens + c.free_blocks, 0);
  EXPECT_FALSE(c.cost_known);
  EXPECT_NEAR(c.service_s, PrefillCost().Seconds(64, 0), 1e-9);
  report.set_remaining_work_us(std::numeric_limits<int64_t>::max());
  report.set_age_us(-7);
  report.set_intake_age_us(std::numeric_limits<int64_t>::max());
  report.set_running(std::numeric_limits<int32_t>::max());
  report.set_queued(std::numeric_limits<int32_t>::max());
  report.set_queued_tokens(std::numeric_limits<int64_t>::max());
  report.mutable_prefill_cost()->set_token_us(1e300);
  fleet_.OnReport(kPrefill, report, now_);
  EXPECT_LE(Of(kPrefill).queue_s, 86'400);
  fleet_.OnDispatch(kPrefill, now_, 10, 0, 1);
  EXPECT_GT(1 + Of(kPrefill).running + Of(kPrefill).queued, 0);
  EXPECT_GT(Of(kPrefill).queued_tokens, 0);
}

TEST_F(FleetLoadTest, AStepIsProjectedFromTheContextInUse) {
  const double unknown = Of(kDecode).step_s;
  EXPECT_GT(unknown, 0);
  // 10 ms and 1 µs a token of context.
  for (int i = 0; i < 50; ++i) {
    internal::v1::LoadReport report;
    report.set_free_blocks(100 - i);
    report.set_decode_context_tokens(16 * i);
    report.set_decode_step_us(10'000 + 16 * i);
    fleet_.OnReport(kDecode, report, now_);
  }
  // 49 blocks are in use, and the prompt's 64 tokens come.
  EXPECT_NEAR(Of(kDecode).step_s, 10e-3 + (49 * 16 + 64) * 1e-6, 1e-5);
  fleet_.OnDispatch(kDecode, now_, 1, 0, 40);
  EXPECT_NEAR(Of(kDecode).step_s, 10e-3 + (89 * 16 + 64) * 1e-6, 1e-5);
}

TEST(StepCostTest, StepsOfOneContextGiveASlopeThatIsSane) {
  StepCost cost;
  for (int i = 0; i < 100; ++i) cost.Add(1000, 0.02);
  EXPECT_NEAR(cost.Seconds(1000), 0.02, 1e-6);
  EXPECT_GT(cost.Seconds(100'000), 0.02);
  EXPECT_LT(cost.Seconds(100'000), 2);
  EXPECT_GT(cost.Seconds(0), 0.01);
}

TEST(StepCostTest, NeverNegativeWhateverIsTold) {
  StepCost cost;
  for (int i = 0; i < 100; ++i) cost.Add(1000.0 * (i % 10), 0.02 - 0.002 * (i % 10));
  for (double context : {0.0, 1e3, 1e9}) EXPECT_GE(cost.Seconds(context), 0);
}

}  // namespace
}  // namespace baton::router
