#include "decode_worker/beam_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/seed.h"

namespace baton::decode_worker {
namespace {

using Proposals = std::vector<model::SampledToken>;

Proposals Make(const std::vector<std::pair<int32_t, double>>& tokens) {
  Proposals proposals;
  for (const auto& [id, logprob] : tokens) {
    model::SampledToken& token = proposals.emplace_back();
    token.token_id = id;
    token.score = static_cast<float>(logprob);
  }
  return proposals;
}

BeamSearch::Options MakeOptions(int width, int n, int max_tokens) {
  BeamSearch::Options options;
  options.width = width;
  options.n = n;
  options.max_tokens = max_tokens;
  return options;
}

TEST(BeamSearchTest, TheBestPathIsNotTheGreedyOne) {
  BeamSearch search(MakeOptions(2, 2, 2));
  // 1 is likelier than 2 at first, but what follows 2 makes up for it.
  const auto steps =
      search.Advance({Make({{1, std::log(0.6)}, {2, std::log(0.4)}, {3, -9}, {4, -9}})});
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].token_id, 1);
  EXPECT_EQ(steps[1].token_id, 2);
  const Proposals after_1 = Make({{5, std::log(0.4)}, {6, std::log(0.3)}});
  const Proposals after_2 = Make({{7, std::log(0.9)}, {8, std::log(0.1)}});
  EXPECT_TRUE(search.Advance({after_1, after_2}).empty()) << "max_tokens are reached";
  const auto best = search.Best();
  ASSERT_EQ(best.size(), 2u);
  EXPECT_EQ(best[0].token_ids, (std::vector<int32_t>{2, 7}));
  EXPECT_NEAR(best[0].score, std::log(0.36) / 2, 1e-6);
  EXPECT_EQ(best[1].token_ids, (std::vector<int32_t>{1, 5}));
  EXPECT_FALSE(best[0].stopped);
}

TEST(BeamSearchTest, StopTokensCompleteAnswersAndMinTokensForbidsThem) {
  BeamSearch::Options options = MakeOptions(2, 1, 10);
  options.stop_token_ids = {0};
  BeamSearch search(options);
  // Nothing that comes can beat the score of a stop that is nearly certain.
  EXPECT_TRUE(search.Advance({Make({{0, -0.01}, {1, -5}, {2, -6}, {3, -7}})}).empty());
  EXPECT_EQ(search.Best()[0].token_ids, std::vector<int32_t>{0});
  EXPECT_TRUE(search.Best()[0].stopped);
  options.min_tokens = 1;
  BeamSearch longer(options);
  const auto steps = longer.Advance({Make({{0, -0.01}, {1, -5}, {2, -6}, {3, -7}})});
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].token_id, 1);
}

TEST(BeamSearchTest, AnswersHaveTheirTokensAsTheyWereProposed) {
  BeamSearch search(MakeOptions(2, 1, 3));
  Proposals first = Make({{1, -1}, {2, -2}, {3, -3}, {4, -4}});
  first[1].logprob = -0.5f;
  first[1].top = {{7, -0.25f}};
  ASSERT_EQ(search.Advance({first}).size(), 2u);
  const Proposals poor = Make({{5, -20}, {6, -21}});
  ASSERT_EQ(search.Advance({poor, Make({{8, -1}, {9, -2}})}).size(), 2u);
  Proposals last = Make({{10, -1}});
  last[0].logprob = -0.75f;
  EXPECT_TRUE(search.Advance({last, poor}).empty());
  const BeamSearch::Answer best = search.Best()[0];
  EXPECT_EQ(best.token_ids, (std::vector<int32_t>{2, 8, 10}));
  ASSERT_EQ(best.tokens.size(), 3u);
  EXPECT_EQ(best.tokens[0], first[1]);
  EXPECT_EQ(best.tokens[2], last[0]);
}

TEST(BeamSearchTest, AVeryLongSearchEndsWell) {
  constexpr int kLength = 300'000;
  BeamSearch search(MakeOptions(2, 1, kLength));
  std::vector<Proposals> proposed = {Make({{1, -1}, {2, -2}})};
  for (int i = 1; i < kLength; ++i) {
    ASSERT_EQ(search.Advance(proposed).size(), 2u);
    // The second beam has a parent of its own now and then.
    proposed = {Make({{1, -1}, {2, i % 1000 == 0 ? -90 : -2}}), Make({{3, -1.5}, {4, -99}})};
  }
  EXPECT_TRUE(search.Advance(proposed).empty());
  EXPECT_EQ(search.Best()[0].tokens.size(), static_cast<size_t>(kLength));
}

TEST(BeamSearchTest, AWideEnoughSearchFindsTheBestOfAllAnswers) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr int kVocabulary = 3, kLength = 4;
  // A model: log probabilities by prefix. Token 0 stops.
  std::map<std::vector<int32_t>, Proposals> model;
  const auto next = [&](const std::vector<int32_t>& prefix) {
    Proposals& proposals = model[prefix];
    if (proposals.empty()) {
      double sum = 0;
      std::vector<double> weights;
      for (int i = 0; i < kVocabulary; ++i) {
        weights.push_back(0.05 + static_cast<double>(random() % 1000) / 1000);
        sum += weights.back();
      }
      std::vector<std::pair<int32_t, double>> tokens;
      for (int i = 0; i < kVocabulary; ++i) {
        tokens.emplace_back(i, std::log(weights[static_cast<size_t>(i)] / sum));
      }
      proposals = Make(tokens);
    }
    return proposals;
  };
  double best = -1e9;
  const std::function<void(std::vector<int32_t>, double)> enumerate =
      [&](std::vector<int32_t> prefix, double logprob) {
        const int length = static_cast<int>(prefix.size());
        if (length > 0 && (prefix.back() == 0 || length == kLength)) {
          best = std::max(best, logprob / length);
          return;
        }
        for (const auto& proposal : next(prefix)) {
          std::vector<int32_t> longer = prefix;
          longer.push_back(proposal.token_id);
          enumerate(std::move(longer), logprob + static_cast<double>(proposal.score));
        }
      };
  enumerate({}, 0);
  BeamSearch::Options options = MakeOptions(16, 1, kLength);  // 2^4 paths do not stop
  options.stop_token_ids = {0};
  BeamSearch search(options);
  std::vector<std::vector<int32_t>> beams = {{}};
  while (true) {
    std::vector<Proposals> proposed;
    for (const auto& beam : beams) proposed.push_back(next(beam));
    const auto steps = search.Advance(proposed);
    if (steps.empty()) break;
    std::vector<std::vector<int32_t>> longer;
    for (const auto& step : steps) {
      longer.push_back(beams[static_cast<size_t>(step.parent)]);
      longer.back().push_back(step.token_id);
    }
    beams = std::move(longer);
  }
  EXPECT_NEAR(search.Best()[0].score, best, 1e-6);
}

}  // namespace
}  // namespace baton::decode_worker
