#include "common/backend/experts.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::backend {
namespace {

std::vector<ChosenExpert> Choose(const std::vector<float>& logits, ExpertRouting routing) {
  std::vector<ChosenExpert> chosen(static_cast<size_t>(routing.per_token));
  ChooseExperts(logits, routing, absl::MakeSpan(chosen));
  return chosen;
}

std::vector<int> ExpertsOf(const std::vector<ChosenExpert>& chosen) {
  std::vector<int> experts;
  for (const ChosenExpert& each : chosen) experts.push_back(each.expert);
  return experts;
}

TEST(ChooseExpertsTest, TakesTheLargestInTheOrderOfTheirIndices) {
  EXPECT_THAT(ExpertsOf(Choose({0.5f, 3, -1, 2, 7}, {.per_token = 3})),
              ::testing::ElementsAre(1, 3, 4));
}

TEST(ChooseExpertsTest, EqualLogitsGoByIndex) {
  EXPECT_THAT(ExpertsOf(Choose({1, 2, 2, 2, 1}, {.per_token = 2})), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(ExpertsOf(Choose({1, 1, 2, 1}, {.per_token = 2})), ::testing::ElementsAre(0, 2));
}

TEST(ChooseExpertsTest, WeightsAreTheSoftmax) {
  const std::vector<float> logits = {1, 0, 2.5f, -3, 0.25f};
  double all = 0;
  for (const float logit : logits) all += std::exp(double{logit});
  for (const bool normalized : {false, true}) {
    const auto chosen = Choose(logits, {.per_token = 2, .normalized = normalized});
    ASSERT_THAT(ExpertsOf(chosen), ::testing::ElementsAre(0, 2));
    const double total = normalized ? std::exp(1.0) + std::exp(2.5) : all;
    EXPECT_FLOAT_EQ(chosen[0].weight, static_cast<float>(std::exp(1.0) / total));
    EXPECT_FLOAT_EQ(chosen[1].weight, static_cast<float>(std::exp(2.5) / total));
  }
}

TEST(ChooseExpertsTest, AllOfThemAndOne) {
  const auto all = Choose({4, 4, 4}, {.per_token = 3});
  EXPECT_THAT(ExpertsOf(all), ::testing::ElementsAre(0, 1, 2));
  EXPECT_FLOAT_EQ(all[2].weight, 1.0f / 3);
  EXPECT_EQ(Choose({-5, -200}, {.per_token = 1, .normalized = true})[0].weight, 1);
}

// It ends as a logit that is no number, which fails the request.
TEST(ChooseExpertsTest, WhatIsNoNumberStaysNone) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits : {std::vector<float>{kNan, kNan, kNan},
                                           {1, kNan, 0},
                                           {kInfinity, 1, 2},
                                           {0, -kInfinity, 1}}) {
    const auto chosen = Choose(logits, {.per_token = 2, .normalized = true});
    EXPECT_LT(chosen[0].expert, chosen[1].expert);
    EXPECT_LT(chosen[1].expert, 3);
    EXPECT_TRUE(std::isnan(chosen[0].weight) && std::isnan(chosen[1].weight));
  }
}

}  // namespace
}  // namespace baton::backend
