#include "common/backend/experts.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::backend {
namespace {

std::vector<ChosenExpert> Choose(const std::vector<float>& logits, ExpertRouting routing,
                                 const std::vector<float>& choice_bias = {}) {
  std::vector<ChosenExpert> chosen(static_cast<size_t>(routing.per_token));
  ChooseExperts(logits, choice_bias, routing, absl::MakeSpan(chosen));
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

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(ChooseExpertsTest, SigmoidsAreTheWeights) {
  const std::vector<float> logits = {1, -0.5f, 2.5f, -30, 0.25f, 40};
  const ExpertRouting plain = {.per_token = 6, .normalized = false, .sigmoid = true};
  const auto all = Choose(logits, plain);
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_EQ(all[i].expert, static_cast<int>(i));
    EXPECT_FLOAT_EQ(all[i].weight, static_cast<float>(Sigmoid(logits[i])));
  }
  const auto two =
      Choose(logits, {.per_token = 2, .normalized = true, .sigmoid = true, .scale = 1.75f});
  ASSERT_THAT(ExpertsOf(two), ::testing::ElementsAre(2, 5));
  const double total = Sigmoid(2.5) + Sigmoid(40);
  EXPECT_FLOAT_EQ(two[0].weight, static_cast<float>(1.75 * Sigmoid(2.5) / total));
  EXPECT_FLOAT_EQ(two[1].weight, static_cast<float>(1.75 * Sigmoid(40) / total));
}

// Far below 0 they keep their proportions.
TEST(ChooseExpertsTest, SmallSigmoidsAreExact) {
  const auto chosen =
      Choose({-20, -21, -300}, {.per_token = 2, .normalized = true, .sigmoid = true});
  EXPECT_NEAR(chosen[0].weight, Sigmoid(1), 1e-6);
  EXPECT_NEAR(chosen[1].weight, Sigmoid(-1), 1e-6);
  const auto none = Choose({-300, -400}, {.per_token = 1, .normalized = true, .sigmoid = true});
  EXPECT_EQ(none[0].weight, 0);
}

TEST(ChooseExpertsTest, TheBiasDecidesTheChoiceAndNotTheWeights) {
  const std::vector<float> logits = {3, 2, 1, 0};
  const ExpertRouting routing = {.per_token = 2, .normalized = true, .sigmoid = true};
  const auto chosen = Choose(logits, routing, {-1, 0, 0, 5});
  ASSERT_THAT(ExpertsOf(chosen), ::testing::ElementsAre(1, 3));
  const double total = Sigmoid(2) + Sigmoid(0);
  EXPECT_FLOAT_EQ(chosen[0].weight, static_cast<float>(Sigmoid(2) / total));
  EXPECT_FLOAT_EQ(chosen[1].weight, static_cast<float>(Sigmoid(0) / total));
}

TEST(ChooseExpertsTest, TheScaleIsOnSoftmaxWeightsToo) {
  const auto once = Choose({1, 2, 3}, {.per_token = 2, .normalized = true});
  const auto scaled = Choose({1, 2, 3}, {.per_token = 2, .normalized = true, .scale = 16});
  for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(scaled[i].weight, 16 * once[i].weight);
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
