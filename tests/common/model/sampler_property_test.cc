// Random logits and requests; what single cases show is in sampler_test.cc.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "common/base/request_limits.h"
#include "common/model/sampler.h"
#include "gtest/gtest.h"
#include "tests/common/model/sampler_reference.h"
#include "tests/testing/seed.h"

namespace baton::model {
namespace {

struct RandomCase {
  std::vector<float> logits;
  SamplingParams params;
  uint64_t position = 0;
};

RandomCase MakeRandomCase(std::mt19937& random) {
  const auto real = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random);
  };
  const auto coin = [&] { return random() % 2 == 0; };
  RandomCase c;
  c.logits.resize(1 + random() % 400);
  const float spread = real(0.1f, 10);
  for (float& logit : c.logits) logit = std::normal_distribution<float>(0, spread)(random);
  for (int i = 0; i < 3 && coin(); ++i) c.logits[random() % c.logits.size()] = c.logits[0];
  c.params.temperature = coin() ? 1 : real(0.05f, kMaxTemperature);
  if (coin()) c.params.top_p = real(0.05f, 1);
  if (coin()) c.params.top_k = static_cast<int>(random() % 100);
  if (coin()) c.params.min_p = real(0, 0.5f);
  c.params.seed = random();
  c.params.choice = random() % 4;
  c.position = random();
  return c;
}

TEST(SamplerPropertyTest, EqualsTheSlowSamplerOnRandomRequests) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int certain = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    const RandomCase c = MakeRandomCase(random);
    const int32_t token = Sample(c.logits, c.params, {}, c.position)->token_id;
    // Where double's rounding may decide, either side is right.
    const int32_t low = ReferenceDraw(c.logits, c.params, c.position, -1e-6);
    const int32_t exact = ReferenceDraw(c.logits, c.params, c.position, 0);
    const int32_t high = ReferenceDraw(c.logits, c.params, c.position, 1e-6);
    if (low != exact || exact != high) continue;
    ++certain;
    ASSERT_EQ(token, exact) << "round " << round;
  }
  EXPECT_GT(certain, kRounds * 95 / 100);
}

TEST(SamplerPropertyTest, SeveralDrawsEqualSeveralCalls) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::set<int32_t> different;
  for (int round = 0; round < 300; ++round) {
    RandomCase c = MakeRandomCase(random);
    if (round % 2 == 0) c.params.frequency_penalty = 1;
    if (round % 3 == 0) c.params.logprobs = 3;
    const std::vector<int32_t> tokens = {0, 0};
    const SamplingHistory history = {.tokens = tokens, .prompt_tokens = 1};
    const auto many = SampleMany(c.logits, c.params, history, c.position, 16);
    ASSERT_TRUE(many.ok()) << many.status();
    ASSERT_EQ(many->size(), 16u);
    const uint32_t first_choice = c.params.choice;
    for (uint32_t i = 0; i < 16; ++i) {
      c.params.choice = first_choice + i;
      ASSERT_EQ((*many)[i], Sample(c.logits, c.params, history, c.position).value())
          << "round " << round << " draw " << i;
      different.insert((*many)[i].token_id);
    }
  }
  EXPECT_GT(different.size(), 50u);
}

TEST(SamplerPropertyTest, LogprobsAreOfTheModelsOwnDistribution) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::vector<int32_t> tokens = {0, 0, 0};
  const std::vector<int32_t> suppressed = {1};
  for (int round = 0; round < 200; ++round) {
    RandomCase c = MakeRandomCase(random);
    if (c.logits.size() < 3) continue;
    c.params.logprobs = static_cast<int>(random() % 21);
    c.params.repetition_penalty = 1.5f;
    c.params.presence_penalty = 1;
    c.params.logit_bias = {{2, 3}};
    const SamplingHistory history = {
        .tokens = tokens, .prompt_tokens = 1, .suppressed = suppressed};
    const auto token = Sample(c.logits, c.params, history, c.position);
    ASSERT_TRUE(token.ok()) << token.status();
    const std::vector<double> expected = LogSoftmaxReference(c.logits);
    EXPECT_NEAR(token->logprob, expected[token->token_id],
                1e-6 * (1 + std::fabs(expected[token->token_id])));
    const size_t count = std::min<size_t>(*c.params.logprobs, c.logits.size());
    ASSERT_EQ(token->top.size(), count);
    std::vector<int32_t> order(c.logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return c.logits[a] > c.logits[b]; });
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(token->top[i].token_id, order[i]) << "round " << round << " place " << i;
      EXPECT_NEAR(token->top[i].logprob, expected[order[i]],
                  1e-6 * (1 + std::fabs(expected[order[i]])));
    }
    // What is asked for does not change what is drawn.
    SamplingParams silent = c.params;
    silent.logprobs.reset();
    const auto same = Sample(c.logits, silent, history, c.position);
    EXPECT_EQ(same->token_id, token->token_id);
    EXPECT_EQ(same->logprob, 0);
    EXPECT_TRUE(same->top.empty());
    EXPECT_EQ(LogprobsOf(c.logits, token->token_id, *c.params.logprobs).value(), *token);
  }
}

}  // namespace
}  // namespace baton::model
