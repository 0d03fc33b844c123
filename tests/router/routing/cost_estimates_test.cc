#include "router/routing/cost_estimates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace baton::router {
namespace {

constexpr double kStart_s = 1000;
// 10 ms, 0.5 ms a sequence, 1 µs a token of context.
constexpr LinearCost kTrue = {10e-3, 0.5e-3, 1e-6};

class CostEstimatesTest : public ::testing::Test {
 protected:
  CostEstimatesTest() {
    estimates_.Grow(6);
    for (int i = 0; i < 4; ++i) estimates_.Joins(i, "one kind");
  }
  // A worker whose fit is `fit`, and which has lately run `steps` steps of four sequences, each
  // `pace` times as long as kTrue says.
  void Report(int worker, double steps, double pace, LinearCost fit = kTrue, double age_s = 0) {
    CostEstimates::Report report;
    report.fit = fit;
    report.fitted_steps = 100;
    report.steps = steps;
    report.first = 4 * steps;
    report.second = 1000 * steps;
    report.seconds = pace * kTrue.Seconds(report.steps, report.first, report.second);
    report.at_s = now_s_ - age_s;
    estimates_.OnReport(worker, report, now_s_);
  }
  double Pace(int worker) { return estimates_.Of(worker).pace; }
  void Pass(double seconds) {
    now_s_ += seconds;
    estimates_.Tick(now_s_);
  }
  // All workers had a request a moment ago, so that none is due to be tried.
  void AllHadRequests() {
    for (int i = 0; i < 4; ++i) estimates_.OnDispatch(i, now_s_);
  }

  double now_s_ = kStart_s;
  CostEstimates estimates_{kDefaultDecodeCost};
};

TEST_F(CostEstimatesTest, BeforeAnyReportTheDefaultStandsIn) {
  EXPECT_FALSE(estimates_.Of(0).known);
  EXPECT_EQ(estimates_.Of(0).cost.fixed_s, kDefaultDecodeCost.fixed_s);
  Report(1, 50, 1);
  EXPECT_TRUE(estimates_.Of(0).known);
  EXPECT_NEAR(estimates_.Of(0).cost.DecodeStep(4, 1000), kTrue.DecodeStep(4, 1000), 1e-12);
}

TEST_F(CostEstimatesTest, AWorkerOfAnotherKindHasItsOwnPoolAndUntilThenTheFleets) {
  Report(0, 50, 1);
  estimates_.Joins(4, "another kind");
  Pass(0.1);
  EXPECT_TRUE(estimates_.Of(4).known);
  EXPECT_NEAR(estimates_.Of(4).cost.fixed_s, kTrue.fixed_s, 1e-12);
  Report(4, 50, 5, kTrue * 5);
  EXPECT_NEAR(estimates_.Of(4).cost.fixed_s, 5 * kTrue.fixed_s, 1e-12);
  EXPECT_EQ(Pace(4), 1) << "it is as quick as its kind";
  EXPECT_NEAR(estimates_.Of(0).cost.fixed_s, kTrue.fixed_s, 1e-12);
}

// The finding: an idle worker whose only samples are slow first steps was never chosen again.
TEST_F(CostEstimatesTest, SlowFirstStepsOfAnIdleWorkerAreForgottenWithinSeconds) {
  Report(0, 100, 1);
  AllHadRequests();
  // One step of 0.77 s, of which the worker has made a cost of its own.
  Report(1, 1, 60, kTrue * 60);
  EXPECT_LT(Pace(1), 2) << "one step is little evidence";
  double healed_s = 0;
  for (; Pace(1) > 1 && healed_s < 60; healed_s += 0.1) {
    AllHadRequests();
    Report(0, 100, 1);
    Pass(0.1);
  }
  EXPECT_LE(healed_s, 5);
  EXPECT_NEAR(estimates_.Of(1).cost.DecodeStep(4, 1000), kTrue.DecodeStep(4, 1000), 1e-3)
      << "its own fit does not spoil the pool's";
}

TEST_F(CostEstimatesTest, FitsOfEqualMachinesThatDifferByChanceAreEqual) {
  for (int i = 0; i < 4; ++i) Report(i, 60, 0.8 + 0.1 * i, kTrue * (0.8 + 0.1 * i));
  Pass(0.1);
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(estimates_.Of(i).cost.fixed_s, estimates_.Of(0).cost.fixed_s);
  }
}

TEST_F(CostEstimatesTest, ASlowWorkerIsKnownAsSlowAndItsRecoveryIsSeen) {
  for (int i = 0; i < 3; ++i) Report(i, 60, 1);
  AllHadRequests();
  Report(3, 60, 3, kTrue * 3);
  EXPECT_NEAR(Pace(3), 2.5, 0.3);
  EXPECT_EQ(Pace(0), 1);
  // Between the two thresholds it stays what it is.
  Report(3, 60, 1.5);
  EXPECT_GT(Pace(3), 1.3);
  Report(3, 60, 1.2);
  EXPECT_EQ(Pace(3), 1);
  Report(3, 60, 1.5);
  EXPECT_EQ(Pace(3), 1);
}

TEST_F(CostEstimatesTest, EvidenceFadesWithTime) {
  Report(0, 60, 1);
  AllHadRequests();
  Report(1, 60, 8);
  EXPECT_GT(Pace(1), 5);
  for (int i = 0; i < 100; ++i) {
    AllHadRequests();
    Pass(0.1);
  }
  EXPECT_EQ(Pace(1), 1) << "ten seconds later nothing is known of its pace";
}

// An idle worker measures nothing new, and its reports go on.
TEST_F(CostEstimatesTest, WhatAReportRepeatsCountsByItsAge) {
  Report(0, 60, 1);
  AllHadRequests();
  Report(1, 60, 8);
  EXPECT_GT(Pace(1), 5);
  Pass(11);
  AllHadRequests();
  Report(1, 60, 8, kTrue, /*age_s=*/11);
  EXPECT_EQ(Pace(1), 1);
  estimates_.Joins(1, "one kind");
  EXPECT_EQ(Pace(1), 1);
}

TEST_F(CostEstimatesTest, ASlowWorkerIsTriedAtABoundedRate) {
  Report(0, 60, 1);
  AllHadRequests();
  int tried = 0;
  for (int i = 0; i < 600; ++i) {  // a minute
    // It is slow for good, by what it has left to do.
    Report(1, 60, 10);
    estimates_.OnDispatch(0, now_s_);
    if (Pace(1) == 1) {
      ++tried;
      estimates_.OnDispatch(1, now_s_);
      EXPECT_GT(Pace(1), 1) << "one request is the try";
    }
    Pass(0.1);
  }
  EXPECT_GE(tried, 5);
  EXPECT_LE(tried, 6);
  // Of one that nothing is measured of, sooner.
  Report(1, 6, 1e6);
  AllHadRequests();
  Pass(1);
  ASSERT_GT(Pace(1), 1);
  Pass(1.1);
  EXPECT_EQ(Pace(1), 1);
}

TEST_F(CostEstimatesTest, AQuickWorkerIsKnownAsQuick) {
  for (int i = 0; i < 3; ++i) Report(i, 60, 1);
  Report(3, 60, 0.3);
  EXPECT_LT(Pace(3), 0.5);
}

TEST_F(CostEstimatesTest, OneSlowFitOfTwoIsNoCostOfTheKind) {
  Report(0, 60, 1);
  AllHadRequests();
  Report(1, 60, 4, kTrue * 4);
  Pass(0.1);
  EXPECT_NEAR(estimates_.Of(0).cost.fixed_s, kTrue.fixed_s, 1e-12);
  EXPECT_GT(Pace(1), 2.5);
}

TEST_F(CostEstimatesTest, AForgottenWorkerLeavesNothing) {
  Report(0, 60, 1);
  Report(1, 60, 10);
  estimates_.Forget(1);
  estimates_.Joins(1, "one kind");
  Pass(0.1);
  EXPECT_EQ(Pace(1), 1);
  estimates_.Forget(0);
  Pass(0.1);
  EXPECT_FALSE(estimates_.Of(1).known) << "no worker is left that has reported";
}

TEST_F(CostEstimatesTest, NonsenseIsTakenAsNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  internal::v1::DecodeCost cost;
  cost.set_fixed_us(nan);
  cost.set_sequence_us(-1);
  cost.set_context_token_us(-infinity);
  cost.set_expert_us(1000);  // of experts of which no token chooses one
  cost.set_experts(-3);
  cost.set_experts_per_token(7);
  estimates_.OnReport(0, ReportOf(cost, now_s_), now_s_);
  EXPECT_FALSE(estimates_.Of(0).known);
  // A mean that is no number.
  cost.set_fixed_us(0);
  cost.set_sequence_us(1);
  cost.set_context_token_us(0);
  cost.mutable_measured()->set_steps(1e-300);
  cost.mutable_measured()->set_context_tokens(1e18);
  estimates_.OnReport(2, ReportOf(cost, now_s_), now_s_);
  EXPECT_TRUE(std::isfinite(estimates_.Of(2).cost.DecodeStep(64, 1e6)));
  cost.set_fixed_us(infinity);
  cost.set_sequence_us(1e300);
  cost.set_expert_us(nan);
  cost.set_experts(std::numeric_limits<int32_t>::max());
  cost.set_experts_per_token(std::numeric_limits<int32_t>::max());
  cost.mutable_measured()->set_experts(-infinity);
  cost.set_fitted_steps(nan);
  cost.mutable_measured()->set_steps(infinity);
  cost.mutable_measured()->set_seconds(-5);
  cost.mutable_measured()->set_sequences(1e308);
  cost.mutable_measured()->set_context_tokens(nan);
  for (const double seconds : {-5.0, nan, infinity, 1e-300}) {
    cost.mutable_measured()->set_seconds(seconds);
    estimates_.OnReport(0, ReportOf(cost, now_s_), now_s_);
    Report(1, 60, 1);
    Pass(0.1);
    for (int i = 0; i < 4; ++i) {
      const double step_s = estimates_.Of(i).cost.DecodeStep(64, 1e6);
      EXPECT_TRUE(std::isfinite(step_s) && step_s >= 0) << i << ": " << step_s;
    }
  }
}

}  // namespace
}  // namespace baton::router
