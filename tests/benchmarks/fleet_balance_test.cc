// How the balance of a fleet is counted, on fleets made up by hand.
#include "benchmarks/serving/fleet_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace baton::benchmarks {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

FleetSample At(double at_s, std::vector<double> sequences, std::vector<double> tokens = {}) {
  FleetSample sample;
  sample.at_s = at_s;
  sample.sequences = std::move(sequences);
  sample.tokens = tokens.empty() ? std::vector<double>(sample.sequences.size()) : std::move(tokens);
  return sample;
}

TEST(MetricInTest, AddsUpTheSeriesOfOneNameAlone) {
  const std::string text =
      "# TYPE a_total counter\na_total{code=\"OK\"} 3\na_total{code=\"NOT_FOUND\"} 0.5\n"
      "a_total_created{code=\"OK\"} 100\nb{x=\"a_total{\"} 7\n";
  EXPECT_DOUBLE_EQ(MetricIn(text, "a_total"), 3.5);
  EXPECT_DOUBLE_EQ(MetricIn(text, "c"), 0);
}

TEST(OnGridTest, TakesTheLastSampleBeforeAndAddsTokensOverRestarts) {
  const std::vector<std::vector<WorkerSample>> workers = {
      {{0.5, 1, 10, 0}, {1.5, 2, 30, 0}, {2.5, 0, 4, 0}},  // a process anew, with 4 tokens
      {{1.0, 7, 5, 0}}};
  const std::vector<FleetSample> grid = OnGrid(workers, 0, 3, 1);
  ASSERT_EQ(grid.size(), 4u);
  EXPECT_THAT(grid[0].sequences, ElementsAre(0, 0)) << "nothing is known yet";
  EXPECT_THAT(grid[1].sequences, ElementsAre(1, 7));
  EXPECT_THAT(grid[2].sequences, ElementsAre(2, 7));
  EXPECT_THAT(grid[3].sequences, ElementsAre(0, 7));
  EXPECT_THAT(grid[1].tokens, ElementsAre(0, 0)) << "what was drawn before is not counted";
  EXPECT_THAT(grid[2].tokens, ElementsAre(20, 0));
  EXPECT_THAT(grid[3].tokens, ElementsAre(24, 0));
}

TEST(BalanceOfTest, CountsOnlyWhatCanBeShared) {
  const std::vector<FleetSample> samples = {
      At(0, {24, 0}),                                  // before the time
      At(1, {12, 12}), At(2, {9, 3}), At(3, {24, 0}),  // one idle
      At(4, {2, 0}),                                   // too few
      At(5, {100, 0}),                                 // after the time
  };
  const BalanceFigures figures = BalanceOf(samples, 1, 5);
  EXPECT_EQ(figures.samples, 3);
  EXPECT_DOUBLE_EQ(figures.max_over_mean, (1 + 1.5 + 2) / 3);
  EXPECT_DOUBLE_EQ(figures.worst_max_over_mean, 2);
  EXPECT_DOUBLE_EQ(figures.idle_beside_loaded_share, 1.0 / 3);
  EXPECT_TRUE(std::isnan(BalanceOf(samples, 4, 5).max_over_mean));
}

// Of four workers, one may be idle while none has more than its share and one.
TEST(BalanceOfTest, AnIdleWorkerCountsWhereAnotherHasTwoMoreThanTheMean) {
  EXPECT_DOUBLE_EQ(BalanceOf({At(0, {3, 3, 2, 0})}, 0, 1).idle_beside_loaded_share, 0);
  EXPECT_DOUBLE_EQ(BalanceOf({At(0, {4, 3, 1, 0})}, 0, 1).idle_beside_loaded_share, 1);
}

TEST(RequestsOfTest, AreThoseOfTheTime) {
  EXPECT_THAT(RequestsOf({{{0, 0, 0, 5}, {1, 0, 0, 9}}, {}, {{0, 0, 0, 2}}}), ElementsAre(4, 0, 0));
}

TEST(SharesOfTest, AreOfMeanSequencesAndOfNewTokens) {
  const std::vector<FleetSample> samples = {At(0, {4, 0}, {0, 0}), At(0.5, {2, 2}, {30, 5}),
                                            At(1, {0, 0}, {30, 10}), At(1.5, {0, 0}, {30, 10}),
                                            At(2, {0, 0}, {30, 10})};
  const std::vector<ShareBucket> buckets = SharesOf(samples, 0, 2, 1);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_THAT(buckets[0].sequences, ElementsAre(0.75, 0.25));
  EXPECT_THAT(buckets[0].tokens, ElementsAre(0.75, 0.25));
  EXPECT_TRUE(std::isnan(buckets[1].sequences[0]));
  EXPECT_TRUE(std::isnan(buckets[1].tokens[1]));
}

TEST(SecondsUntilFairTest, FindsTheFirstWindowWhoseMeanIsFair) {
  std::vector<FleetSample> samples;
  // The second worker has nothing until 10 s, then half.
  for (int i = 0; i <= 200; ++i) {
    samples.push_back(At(i / 10.0, {10, i < 100 ? 0.0 : 10.0}));
  }
  const FairShare fair = {2, 0.1};
  // A window that begins a little before 10 s: x of it without, (2 − x)/2 · 10 on average with, and
  // (2 − x)/(4 − x) >= 0.45 where x <= 0.36.
  EXPECT_NEAR(SecondsUntilFair(samples, 1, 4, 20, fair), 9.7 - 4, 0.05);
  EXPECT_TRUE(std::isinf(SecondsUntilFair(samples, 1, 4, 11, fair)));
  EXPECT_TRUE(std::isinf(SecondsUntilFair(samples, 1, 19, 20, fair))) << "no window ends in time";
  EXPECT_THAT(FairWindows(samples, 1, 10, 20, fair), DoubleNear(1, 1e-9));
  EXPECT_THAT(FairWindows(samples, 0, 0, 9, fair), DoubleNear(0, 1e-9));
  EXPECT_TRUE(std::isnan(FairWindows(samples, 1, 19, 20, fair)));
}

TEST(SequencesChartTest, HasALineForEachWorker) {
  const Chart chart = SequencesChart("t", {At(4, {9, 9}), At(5, {1, 2}), At(6, {3, 4})}, 5);
  ASSERT_EQ(chart.series.size(), 2u);
  EXPECT_THAT(chart.series[1].points,
              ElementsAre(std::pair<double, double>(0, 2), std::pair<double, double>(1, 4)));
}

}  // namespace
}  // namespace baton::benchmarks
