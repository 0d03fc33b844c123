#include "common/model/adjust_logits.h"

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/seed.h"

namespace baton::model {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();

std::vector<float> Adjust(std::vector<float> logits, const SamplingParams& params,
                          const SamplingHistory& history = {}) {
  EXPECT_TRUE(Validate(params).ok());
  AdjustLogits(params, history, absl::MakeSpan(logits));
  return logits;
}

// By hand: the prompt has tokens 0 and 1, the answer 1, 2, 2.
const std::vector<int32_t> kTokens = {0, 1, 1, 2, 2};
constexpr int kPromptTokens = 2;
SamplingHistory History() { return {.tokens = kTokens, .prompt_tokens = kPromptTokens}; }

TEST(AdjustLogitsTest, RepetitionPenaltyOfPromptAndAnswer) {
  // Above 0 divided, below multiplied, once however often the token came; token 3 has not come.
  EXPECT_THAT(Adjust({3, -1, 1, 2}, {.repetition_penalty = 2}, History()),
              ElementsAre(1.5f, -2, 0.5f, 2));
  // Below 1 it favours what has come.
  EXPECT_THAT(Adjust({3, -1, 0, 2}, {.repetition_penalty = 0.5f}, History()),
              ElementsAre(6, -0.5f, 0, 2));
}

TEST(AdjustLogitsTest, FrequencyAndPresencePenaltiesOfTheAnswerAlone) {
  EXPECT_THAT(Adjust({1, 1, 1, 1}, {.frequency_penalty = 0.5f}, History()),
              ElementsAre(1, 0.5f, 0, 1));
  EXPECT_THAT(Adjust({1, 1, 1, 1}, {.presence_penalty = 0.25f}, History()),
              ElementsAre(1, 0.75f, 0.75f, 1));
  EXPECT_THAT(Adjust({1, 1, 1, 1}, {.frequency_penalty = -1, .presence_penalty = -0.5f}, History()),
              ElementsAre(1, 2.5f, 3.5f, 1));
}

TEST(AdjustLogitsTest, BiasIsAddedBeforeThePenalties) {
  // -1 + 4 = 3 is above 0, so it is divided: 1.5; token 3: 2 - 5 = -3, not seen.
  EXPECT_THAT(
      Adjust({3, -1, 1, 2}, {.repetition_penalty = 2, .logit_bias = {{1, 4}, {3, -5}}}, History()),
      ElementsAre(1.5f, 1.5f, 0.5f, -3));
  // All together, token 2: (1 + 1) / 2 - 2 · 0.25 - 0.125.
  EXPECT_THAT(Adjust({0, 0, 1, 0},
                     {.repetition_penalty = 2,
                      .frequency_penalty = 0.25f,
                      .presence_penalty = 0.125f,
                      .logit_bias = {{2, 1}}},
                     History()),
              ElementsAre(0, -0.375f, 0.375f, 0));
}

TEST(AdjustLogitsTest, SuppressedTokensWhateverTheirBias) {
  const std::vector<int32_t> suppressed = {1, 3};
  EXPECT_THAT(Adjust({1, 2, 3, 4}, {.logit_bias = {{1, 100}}}, {.suppressed = suppressed}),
              ElementsAre(1, -kInf, 3, -kInf));
}

TEST(AdjustLogitsTest, MaskedStaysMaskedAndFiniteStaysFinite) {
  const std::vector<int32_t> tokens = {0, 1, 2};
  EXPECT_THAT(Adjust({-kInf, kMax, -kMax}, {.repetition_penalty = 1e-30f, .logit_bias = {{0, 100}}},
                     {.tokens = tokens, .prompt_tokens = 3}),
              ElementsAre(-kInf, kMax, -kMax * 1e-30f));
  EXPECT_THAT(
      Adjust({0, kMax, -kMax}, {.repetition_penalty = 2}, {.tokens = tokens, .prompt_tokens = 3}),
      ElementsAre(0, kMax / 2, -kMax));
}

TEST(AdjustLogitsTest, IdsWithoutALogitAreIgnored) {
  const std::vector<int32_t> tokens = {4, 1000000, 1};
  EXPECT_THAT(
      Adjust({1, 1}, {.repetition_penalty = 2, .frequency_penalty = 1, .logit_bias = {{2, 5}}},
             {.tokens = tokens, .prompt_tokens = 1, .suppressed = tokens}),
      ElementsAre(1, -kInf));
}

TEST(AdjustLogitsTest, SaysWhetherItChangesAnything) {
  const std::vector<int32_t> one = {1};
  EXPECT_FALSE(ChangesLogits({}, History()));
  EXPECT_FALSE(ChangesLogits({.temperature = 0, .top_k = 3, .logprobs = 5}, History()));
  EXPECT_FALSE(ChangesLogits({.repetition_penalty = 2}, {})) << "nothing to repeat";
  EXPECT_TRUE(ChangesLogits({.repetition_penalty = 2}, History()));
  EXPECT_TRUE(ChangesLogits({.frequency_penalty = 1}, History()));
  EXPECT_TRUE(ChangesLogits({.presence_penalty = -1}, History()));
  EXPECT_TRUE(ChangesLogits({.logit_bias = {{1, 1}}}, {}));
  EXPECT_TRUE(ChangesLogits({}, {.suppressed = one}));
}

// The definition, a token at a time, in double.
std::vector<double> Reference(const std::vector<float>& logits, const SamplingParams& params,
                              const SamplingHistory& history) {
  std::map<int32_t, int> in_answer;
  for (int32_t id : history.tokens.subspan(history.prompt_tokens)) ++in_answer[id];
  const std::set<int32_t> seen(history.tokens.begin(), history.tokens.end());
  const std::map<int32_t, float> bias(params.logit_bias.begin(), params.logit_bias.end());
  const std::set<int32_t> suppressed(history.suppressed.begin(), history.suppressed.end());
  std::vector<double> adjusted;
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    double x = logits[id];
    if (bias.count(id) > 0) x += bias.at(id);
    if (seen.count(id) > 0)
      x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    if (in_answer.count(id) > 0) {
      x -= double{params.frequency_penalty} * in_answer.at(id) + params.presence_penalty;
    }
    adjusted.push_back(suppressed.count(id) > 0 ? -kInf : x);
  }
  return adjusted;
}

TEST(AdjustLogitsTest, EqualsTheDefinitionOnRandomRequests) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto real = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random);
  };
  const auto whole = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 500; ++round) {
    const int vocab = whole(2, 300);
    std::vector<float> logits(vocab);
    for (float& logit : logits) logit = real(-20, 20);
    SamplingParams params;
    if (whole(0, 1)) params.repetition_penalty = real(0.01f, 2);
    if (whole(0, 1)) params.frequency_penalty = real(-2, 2);
    if (whole(0, 1)) params.presence_penalty = real(-2, 2);
    std::map<int32_t, float> bias;
    for (int i = whole(0, 5); i > 0; --i) bias[whole(0, vocab - 1)] = real(-100, 100);
    params.logit_bias.assign(bias.begin(), bias.end());
    std::vector<int32_t> tokens(whole(0, 400));
    for (int32_t& id : tokens) id = whole(0, vocab - 1);
    std::vector<int32_t> suppressed(whole(0, 4));
    for (int32_t& id : suppressed) id = whole(0, vocab - 1);
    const SamplingHistory history = {.tokens = tokens,
                                     .prompt_tokens = whole(0, static_cast<int>(tokens.size())),
                                     .suppressed = suppressed};
    const std::vector<float> adjusted = Adjust(logits, params, history);
    const std::vector<double> expected = Reference(logits, params, history);
    // The end of the answer may be drafts.
    SamplingHistory drafted = history;
    const size_t known = static_cast<size_t>(
        whole(history.prompt_tokens, static_cast<int>(history.tokens.size())));
    drafted.tokens = history.tokens.first(known);
    drafted.drafts = history.tokens.subspan(known);
    ASSERT_EQ(Adjust(logits, params, drafted), adjusted) << "round " << round;
    for (int id = 0; id < vocab; ++id) {
      if (std::isinf(expected[id])) {
        ASSERT_EQ(adjusted[id], -kInf) << "round " << round << " id " << id;
      } else {
        // Two roundings to float: of the biased logit and of the result.
        ASSERT_NEAR(adjusted[id], expected[id], 2e-5 * (1 + std::fabs(expected[id])))
            << "round " << round << " id " << id;
      }
    }
  }
}

}  // namespace
}  // namespace baton::model
