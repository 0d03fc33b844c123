#include "common/model/sampler.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "common/backend/philox.h"
#include "common/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/model/sampler_reference.h"
#include "tests/testing/seed.h"

namespace baton::model {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Words = std::array<uint32_t, 4>;

absl::StatusOr<int32_t> Draw(absl::Span<const float> logits, const SamplingParams& params,
                             uint64_t position) {
  const absl::StatusOr<SampledToken> token = Sample(logits, params, {}, position);
  if (!token.ok()) return token.status();
  return token->token_id;
}

std::vector<float> RandomLogits(size_t count, uint32_t stream, float spread) {
  std::vector<float> logits(count);
  for (size_t i = 0; i < count; ++i) {
    const Words words = backend::Philox4x32({static_cast<uint32_t>(i), stream, 0, 0}, {1, 2});
    double sum = 0;  // of four uniforms: near enough to normal
    for (uint32_t word : words) sum += word / 4294967296.0 - 0.5;
    logits[i] = static_cast<float>(sum * std::sqrt(3.0)) * spread;
  }
  return logits;
}

// Chi-square of `draws` positions; its 0.9999 quantile for up to 7 degrees of freedom is below 30.
double ChiSquare(const std::vector<float>& logits, const SamplingParams& params, int draws) {
  const std::map<int32_t, double> probabilities = ExactProbabilities(logits, params);
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[Draw(logits, params, static_cast<uint64_t>(i)).value()];
  double chi_square = 0;
  for (const auto& [id, count] : counts) EXPECT_EQ(probabilities.count(id), 1) << "id " << id;
  for (const auto& [id, probability] : probabilities) {
    const double expected = probability * draws;
    chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
  }
  return chi_square;
}

TEST(SamplerTest, DrawsTheExactDistribution) {
  const std::vector<float> logits = {0.5f, -1.0f, 2.0f, 0.0f, 1.5f, -0.5f, 1.0f, 2.0f};
  const SamplingParams cases[] = {
      {},
      {.temperature = 0.7f, .seed = 7},
      {.temperature = 1.8f, .seed = 1},
      {.top_k = 3, .seed = 2},
      {.top_p = 0.8f, .seed = 3},
      {.min_p = 0.3f, .seed = 4},
      {.temperature = 1.3f, .top_p = 0.9f, .top_k = 6, .min_p = 0.2f, .seed = 5, .choice = 3},
  };
  for (const SamplingParams& params : cases) {
    EXPECT_LT(ChiSquare(logits, params, 40000), 30) << "seed " << params.seed;
  }
}

TEST(SamplerTest, DrawsTheExactDistributionOfALargeVocabulary) {
  // 512 ids of one weight and 512 of another take the path of partial selection.
  std::vector<float> logits(1024);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = i % 2 == 0 ? 0.0f : -1.0f;
  int heavy = 0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i)
    heavy += Draw(logits, {}, static_cast<uint64_t>(i)).value() % 2 == 0;
  const double share = 1 / (1 + std::exp(-1.0));
  EXPECT_NEAR(heavy, kDraws * share, 4 * std::sqrt(kDraws * share * (1 - share)));
}

TEST(SamplerTest, SelectsWithoutSortingWhatASortSelects) {
  for (uint32_t stream = 0; stream < 20; ++stream) {
    const std::vector<float> logits = RandomLogits(5000, stream, 0.1f + 0.3f * stream);
    for (const SamplingParams& params :
         {SamplingParams{.top_p = 0.6f}, SamplingParams{.top_k = 100},
          SamplingParams{.top_k = 3000, .min_p = 0.05f},
          SamplingParams{.temperature = 0.8f, .top_p = 0.95f, .top_k = 700}}) {
      const std::map<int32_t, double> allowed = ExactProbabilities(logits, params);
      for (uint64_t position = 0; position < 50; ++position) {
        EXPECT_EQ(allowed.count(Draw(logits, params, position).value()), 1);
      }
    }
  }
}

TEST(SamplerTest, FiltersThatKeepAllChangeNothing) {
  const std::vector<float> logits = RandomLogits(3000, 1, 3);
  for (uint64_t position = 0; position < 200; ++position) {
    const int32_t plain = Draw(logits, {.seed = 9}, position).value();
    EXPECT_EQ(Draw(logits, {.top_k = -1, .seed = 9}, position).value(), plain);
    EXPECT_EQ(Draw(logits, {.top_k = 3000, .seed = 9}, position).value(), plain);
    EXPECT_EQ(Draw(logits, {.top_k = 100000, .seed = 9}, position).value(), plain);
  }
}

TEST(SamplerTest, AddingAConstantChangesNothing) {
  std::vector<float> logits(100), shifted(100);
  for (size_t i = 0; i < 100; ++i) {
    logits[i] = static_cast<float>(i * 37 % 100) / 16;
    shifted[i] = logits[i] + 32;
  }
  for (uint64_t position = 0; position < 200; ++position) {
    EXPECT_EQ(Draw(logits, {.top_p = 0.9f}, position).value(),
              Draw(shifted, {.top_p = 0.9f}, position).value());
  }
}

TEST(SamplerTest, DependsOnSeedChoiceAndPositionOnly) {
  const std::vector<float> logits = RandomLogits(1000, 2, 1);
  const auto draw = [&](uint64_t seed, uint32_t choice, uint64_t position) {
    return Draw(logits, {.seed = seed, .choice = choice}, position).value();
  };
  int differ_seed = 0, differ_choice = 0, differ_position = 0, differ_high = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(draw(i, 0, 5), draw(i, 0, 5));
    differ_seed += draw(i, 0, 5) != draw(i + 1, 0, 5);
    differ_choice += draw(i, 0, 5) != draw(i, 1, 5);
    differ_position += draw(i, 0, 5) != draw(i, 0, 6);
    differ_high += draw(i, 0, 5) != draw(i | uint64_t{1} << 40, 0, 5 | uint64_t{1} << 40);
  }
  EXPECT_GT(differ_seed, 90);
  EXPECT_GT(differ_choice, 90);
  EXPECT_GT(differ_position, 90);
  EXPECT_GT(differ_high, 90);
}

TEST(SamplerTest, GreedyTakesTheLowestOfEquals) {
  const std::vector<float> logits = {1, 3, 2, 3, 3};
  EXPECT_EQ(Draw(logits, {.temperature = 0}, 0).value(), 1);
  EXPECT_EQ(Draw(logits, {.top_k = 1, .seed = 5}, 7).value(), 1);
  EXPECT_EQ(Draw(logits, {.temperature = 1e-30f, .top_p = 1e-6f}, 7).value(), 1);
  // Two of the three equals stay: those with the lowest ids.
  for (uint64_t position = 0; position < 50; ++position) {
    EXPECT_THAT(Draw(logits, {.top_k = 2}, position).value(), ::testing::AnyOf(1, 3));
    EXPECT_THAT(Draw(logits, {.temperature = 0.01f, .top_p = 0.5f}, position).value(),
                ::testing::AnyOf(1, 3));
  }
}

TEST(SamplerTest, MaskedTokensAreNeverDrawn) {
  const std::vector<float> logits = {-kInfinity, 0, -kInfinity, 0, -kInfinity};
  for (uint64_t position = 0; position < 100; ++position) {
    EXPECT_THAT(Draw(logits, {.temperature = 2}, position).value(), ::testing::AnyOf(1, 3));
  }
  EXPECT_EQ(Draw({{-kInfinity, 1}}, {.top_k = 2}, 0).value(), 1);
}

TEST(SamplerTest, NonFiniteLogitsAreAnError) {
  for (const std::vector<float>& logits :
       {std::vector<float>{kNan, 1}, std::vector<float>{1, kNan},
        std::vector<float>{1, kInfinity, 2}, std::vector<float>{-kInfinity, -kInfinity}}) {
    for (float temperature : {0.0f, 1.0f}) {
      const auto token = Draw(logits, {.temperature = temperature}, 0);
      EXPECT_EQ(token.status().code(), absl::StatusCode::kInternal);
      EXPECT_EQ(ErrorReason(token.status()), "NON_FINITE_LOGITS");
    }
  }
}

TEST(SamplerTest, LogprobsAreFiniteAndNeverAboveZero) {
  const std::vector<float> logits = {-kInfinity, 0, -1e30f};
  const SampledToken token = Sample(logits, {.temperature = 0, .logprobs = 5}, {}, 0).value();
  EXPECT_THAT(token.top,
              ::testing::ElementsAre(TokenLogprob{1, 0}, TokenLogprob{2, -1e30f},
                                     TokenLogprob{0, std::numeric_limits<float>::lowest()}));
  // A token of the embedding's padding.
  EXPECT_EQ(LogprobsOf(logits, 3, 0)->logprob, std::numeric_limits<float>::lowest());
  EXPECT_EQ(ErrorReason(LogprobsOf({{kNan, 1}}, 1, 0).status()), "NON_FINITE_LOGITS");
}

TEST(SamplerTest, GreedyTakesTheHighestOfTheAdjusted) {
  const std::vector<float> logits = {1, 3, 2};
  const std::vector<int32_t> tokens = {1};
  const std::vector<int32_t> suppressed = {1};
  const auto greedy = [&](SamplingParams params, const SamplingHistory& history) {
    params.temperature = 0;
    return Sample(logits, params, history, 0)->token_id;
  };
  const SamplingHistory in_prompt = {.tokens = tokens, .prompt_tokens = 1};
  const SamplingHistory in_answer = {.tokens = tokens, .prompt_tokens = 0};
  EXPECT_EQ(greedy({}, in_answer), 1);
  EXPECT_EQ(greedy({.repetition_penalty = 2}, in_prompt), 2);
  EXPECT_EQ(greedy({.presence_penalty = 1.5f}, in_answer), 2);
  EXPECT_EQ(greedy({.presence_penalty = 1.5f}, in_prompt), 1);
  EXPECT_EQ(greedy({.presence_penalty = 1}, in_answer), 1) << "a tie goes to the lowest id";
  EXPECT_EQ(greedy({.logit_bias = {{0, 5}}}, {}), 0);
  EXPECT_EQ(greedy({.logit_bias = {{1, 100}}}, {.suppressed = suppressed}), 2);
}

TEST(SamplerTest, SuppressedTokensAreNeverDrawn) {
  const std::vector<float> logits = {9, 0, 9, 0};
  const std::vector<int32_t> suppressed = {0, 2};
  for (uint64_t position = 0; position < 100; ++position) {
    for (float temperature : {0.0f, 1.0f, 2.0f}) {
      const auto token =
          Sample(logits, {.temperature = temperature}, {.suppressed = suppressed}, position);
      EXPECT_THAT(token->token_id, ::testing::AnyOf(1, 3));
    }
  }
  const std::vector<int32_t> all = {3, 1, 0, 2};
  for (float temperature : {0.0f, 1.0f}) {
    const absl::Status none =
        Sample(logits, {.temperature = temperature}, {.suppressed = all}, 0).status();
    EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorReason(none), "NO_TOKEN_LEFT");
  }
  EXPECT_EQ(ErrorReason(BestTokens(logits, {}, {.suppressed = all}, 2).status()), "NO_TOKEN_LEFT");
}

TEST(SamplerTest, AMaskIsTheSuppressionOfAllOtherTokens) {
  std::mt19937 random(testing::TestSeed(71));
  std::vector<float> logits(70);
  for (float& logit : logits) logit = static_cast<float>(random() % 1000) / 100;
  for (int round = 0; round < 100; ++round) {
    // The last words may lack: such tokens are not allowed.
    std::vector<uint32_t> allowed(1 + random() % 3);
    for (uint32_t& word : allowed) word = static_cast<uint32_t>(random() & random());
    allowed[0] |= 1u << (round % 32);
    std::vector<int32_t> others;
    for (int32_t id = 0; id < 70; ++id) {
      const size_t word = static_cast<size_t>(id) / 32;
      if (word >= allowed.size() || (allowed[word] >> (id % 32) & 1) == 0) others.push_back(id);
    }
    const SamplingParams params = {.temperature = static_cast<float>(round % 3),
                                   .top_p = 0.9f,
                                   .seed = random(),
                                   .repetition_penalty = 1.3f,
                                   .logit_bias = {{5, 50}, {40, 50}},
                                   .logprobs = 2};
    const std::vector<int32_t> tokens = {1, 2, 40};
    EXPECT_EQ(Sample(logits, params, {.tokens = tokens, .allowed = allowed}, 9).value(),
              Sample(logits, params, {.tokens = tokens, .suppressed = others}, 9).value());
  }
  const std::vector<uint32_t> none(3);
  EXPECT_EQ(ErrorReason(Sample(logits, {}, {.allowed = none}, 0).status()), "NO_TOKEN_LEFT");
}

TEST(SamplerTest, BestTokensRankTheAdjustedDistribution) {
  const std::vector<float> logits = {1, 3, 2, 3, -kInfinity};
  const auto ids = [](const std::vector<SampledToken>& tokens) {
    std::vector<int32_t> ids;
    for (const SampledToken& token : tokens) ids.push_back(token.token_id);
    return ids;
  };
  EXPECT_THAT(ids(BestTokens(logits, {}, {}, 3).value()), ::testing::ElementsAre(1, 3, 2));
  // Fewer if fewer can be drawn.
  EXPECT_THAT(ids(BestTokens(logits, {}, {}, 40).value()), ::testing::ElementsAre(1, 3, 2, 0));
  const std::vector<int32_t> suppressed = {1};
  const SamplingParams params = {.logit_bias = {{0, 4}}, .logprobs = 1};
  const auto best = BestTokens(logits, params, {.suppressed = suppressed}, 2).value();
  EXPECT_THAT(ids(best), ::testing::ElementsAre(0, 3));
  const auto adjusted = LogSoftmaxReference({5, -kInfinity, 2, 3, -kInfinity});
  const auto raw = LogSoftmaxReference({1, 3, 2, 3, -kInfinity});
  for (const SampledToken& token : best) {
    EXPECT_NEAR(token.score, adjusted[token.token_id], 1e-6);
    EXPECT_NEAR(token.logprob, raw[token.token_id], 1e-6);
    ASSERT_EQ(token.top.size(), 1u);
    EXPECT_EQ(token.top[0].token_id, 1);
  }
}

TEST(SamplerTest, ValidateNamesTheField) {
  const auto field = [](const SamplingParams& params) {
    const absl::Status status = Validate(params);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return ErrorField(status);
  };
  for (float bad : {-0.1f, 2.1f, kInfinity, kNan}) {
    EXPECT_EQ(field({.temperature = bad}), "sampling.temperature");
  }
  for (float bad : {0.0f, -0.1f, 1.1f, kNan}) EXPECT_EQ(field({.top_p = bad}), "sampling.top_p");
  for (float bad : {-0.1f, 1.1f, kNan}) EXPECT_EQ(field({.min_p = bad}), "sampling.min_p");
  EXPECT_EQ(field({.top_k = -2}), "sampling.top_k");
  for (float bad : {0.0f, -1.0f, 2.1f, kNan}) {
    EXPECT_EQ(field({.repetition_penalty = bad}), "sampling.repetition_penalty");
  }
  for (float bad : {-2.1f, 2.1f, kNan}) {
    EXPECT_EQ(field({.frequency_penalty = bad}), "sampling.frequency_penalty");
    EXPECT_EQ(field({.presence_penalty = bad}), "sampling.presence_penalty");
  }
  for (int bad : {-1, 21}) EXPECT_EQ(field({.logprobs = bad}), "sampling.logprobs");
  for (float bad : {-100.5f, 100.5f, kNan}) {
    EXPECT_EQ(field({.logit_bias = {{1, bad}}}), "sampling.logit_bias");
  }
  EXPECT_EQ(field({.logit_bias = {{-1, 0}}}), "sampling.logit_bias");
  EXPECT_EQ(field({.logit_bias = {{2, 0}, {1, 0}}}), "sampling.logit_bias") << "not in order";
  EXPECT_EQ(field({.logit_bias = {{1, 0}, {1, 0}}}), "sampling.logit_bias") << "twice";
  SamplingParams many;
  for (int id = 0; id < 1024; ++id) many.logit_bias.push_back({id, 0});
  EXPECT_TRUE(Validate(many).ok());
  many.logit_bias.push_back({1024, 0});
  EXPECT_EQ(field(many), "sampling.logit_bias");
  for (const SamplingParams& good :
       {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.top_k = -1},
        SamplingParams{.temperature = 2, .top_p = 1e-6f, .top_k = 1 << 30, .min_p = 1},
        SamplingParams{.repetition_penalty = 2, .frequency_penalty = -2, .presence_penalty = 2},
        SamplingParams{.logit_bias = {{0, -100}, {1, 100}}, .logprobs = 20}}) {
    EXPECT_TRUE(Validate(good).ok());
  }
}

TEST(SamplerTest, TimePerDraw) {
  const std::vector<float> logits = RandomLogits(151936, 3, 3);
  const std::pair<const char*, SamplingParams> cases[] = {
      {"greedy", {.temperature = 0}},
      {"no filter", {}},
      {"flat, no filter", {.temperature = 2}},
      {"top_k 20, top_p 0.8", {.top_p = 0.8f, .top_k = 20}},
      {"top_p 0.9", {.top_p = 0.9f}},
      {"min_p 0.05", {.min_p = 0.05f}},
      {"greedy, penalties", {.temperature = 0, .repetition_penalty = 1.1f}},
      {"greedy, logprobs 20", {.temperature = 0, .logprobs = 20}}};
  const std::vector<int32_t> tokens(2000, 5);
  const SamplingHistory history = {.tokens = tokens, .prompt_tokens = 1000};
  for (const auto& [name, params] : cases) {
    double fastest_us = 1e9;
    for (uint64_t i = 0; i < 20; ++i) {
      const auto start = std::chrono::steady_clock::now();
      EXPECT_TRUE(Sample(logits, params, history, i).ok());
      const std::chrono::duration<double, std::micro> elapsed =
          std::chrono::steady_clock::now() - start;
      fastest_us = std::min(fastest_us, elapsed.count());
    }
    std::cout << name << ": " << static_cast<int>(fastest_us) << " us\n";
  }
}

}  // namespace
}  // namespace baton::model
