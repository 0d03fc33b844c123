// Likelihoods against what is drawn, on texts whose acceptance is known or counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "decode_worker/drafts/drafter.h"
#include "tests/testing/seed.h"

namespace baton::decode_worker {
namespace {

using Stream = std::vector<int32_t>;

// Means over the tokens of a part of an answer at which something was proposed.
struct FirstTokens {
  double likelihood = 0;
  double drawn = 0;
  int proposals = 0;
  double mean_likelihood() const { return likelihood / std::max(proposals, 1); }
  double mean_drawn() const { return drawn / std::max(proposals, 1); }
};

// Draws `count` tokens by `draw`, which sees the text so far, and appends them to it.
FirstTokens DrawTokens(Drafter& drafter, Stream& text, int count,
                       const std::function<int32_t(const Stream&)>& draw) {
  FirstTokens seen;
  for (int i = 0; i < count; ++i) {
    const Draft draft = drafter.Propose(1);
    const int32_t token = draw(text);
    if (!draft.tokens.empty()) {
      ++seen.proposals;
      seen.likelihood += draft.likelihoods[0];
      seen.drawn += draft.tokens[0] == token;
    }
    text.push_back(token);
    drafter.Observe(text);
  }
  return seen;
}

class CalibrationTest : public ::testing::Test {
 protected:
  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint32_t>(bound)); }
  bool With(double probability) { return random_() < probability * 4294967296.0; }
  std::mt19937 random_{testing::TestSeed()};
};

// The prompt says what follows each token, and the answer keeps to it with a probability, whatever
// the match.
TEST_F(CalibrationTest, TheEstimateConvergesToAKnownRate) {
  constexpr int kTokens = 6000;
  for (const double rate : {0.9, 0.6, 0.3, 0.05}) {
    Stream text;
    for (int i = 0; i < kTokens; ++i) text.push_back(i);
    AcceptanceTable table;
    Drafter drafter({}, &table, nullptr, "");
    drafter.Observe(text);
    const auto draw = [&](const Stream& so_far) {
      return With(rate) ? (so_far.back() + 1) % kTokens : Below(kTokens);
    };
    DrawTokens(drafter, text, 500, draw);
    const FirstTokens seen = DrawTokens(drafter, text, 1500, draw);
    EXPECT_GT(seen.proposals, 1000) << rate;
    EXPECT_NEAR(seen.mean_likelihood(), seen.mean_drawn(), 0.06) << rate;
    // Less than the rate, as the latest occurrence may be one in the answer after which it was not
    // kept to.
    EXPECT_NEAR(seen.mean_drawn(), rate, 0.15) << rate;
  }
}

TEST_F(CalibrationTest, FallsOnRandomTextAndRecovers) {
  AcceptanceTable table;
  Drafter drafter({}, &table, nullptr, "");
  Stream text;
  for (int i = 0; i < 1000; ++i) text.push_back(Below(60));
  drafter.Observe(text);
  const auto at_random = [&](const Stream&) { return Below(60); };
  size_t next = 100;
  const auto copied = [&](const Stream& so_far) { return so_far[next++]; };
  DrawTokens(drafter, text, 500, at_random);
  const FirstTokens low = DrawTokens(drafter, text, 500, at_random);
  EXPECT_GT(low.proposals, 400);
  EXPECT_LT(low.mean_likelihood(), 0.06);
  DrawTokens(drafter, text, 60, copied);
  const FirstTokens high = DrawTokens(drafter, text, 300, copied);
  EXPECT_GT(high.mean_likelihood(), 0.85);
  EXPECT_EQ(high.mean_drawn(), 1);
  DrawTokens(drafter, text, 200, at_random);
  EXPECT_LT(DrawTokens(drafter, text, 300, at_random).mean_likelihood(), 0.08);
}

TEST_F(CalibrationTest, LearnsWhileNothingIsProposed) {
  AcceptanceTable table;
  Drafter drafter({}, &table, nullptr, "");
  Stream text;
  for (int i = 0; i < 6000; ++i) text.push_back(i);
  drafter.Observe(text);
  const int cell = AcceptanceCell(1, Agreement::kAlone);
  ASSERT_LT(table.Probability(cell), 0.3);
  for (int i = 0; i < 200; ++i) {
    text.push_back(Below(5999));
    drafter.Observe(text);
    text.push_back(text.back() + 1);  // as in the prompt
    drafter.Observe(text);
  }
  EXPECT_GT(table.Probability(cell), 0.7);
}

TEST_F(CalibrationTest, ANewSequenceBeginsWithWhatOthersHaveTaught) {
  Stream prompt;
  for (int i = 0; i < 2000; ++i) prompt.push_back(i);
  const auto first_likelihood = [&](AcceptanceTable& table) {
    Stream text = prompt;
    text.insert(text.end(), prompt.begin() + 100, prompt.begin() + 103);
    Drafter drafter({}, &table, nullptr, "");
    drafter.Observe(text);
    return drafter.Propose(1).likelihoods.at(0);
  };
  AcceptanceTable fresh;
  AcceptanceTable taught;
  for (int round = 0; round < 30; ++round) {
    Drafter other({}, &taught, nullptr, "");
    Stream text = prompt;
    other.Observe(text);
    for (int i = 0; i < 30; ++i) {  // short matches always go on
      const int from = Below(1990);
      for (int k = 0; k < 6; ++k) {
        text.push_back(prompt[static_cast<size_t>(from + k)]);
        other.Observe(text);
      }
    }
  }
  EXPECT_GT(first_likelihood(taught), first_likelihood(fresh) + 0.1f);
}

// The answer is the prompt with one token in twenty replaced: what drafts say they are worth,
// against what is accepted.
TEST_F(CalibrationTest, DraftsAreWorthWhatTheySay) {
  for (const DrafterOptions& options :
       {DrafterOptions{}, DrafterOptions{.mode = DrafterOptions::Mode::kNgram}}) {
    AcceptanceTable table;
    double expected = 0;
    double accepted = 0;
    int proposals = 0;
    for (int sequence = 0; sequence < 4; ++sequence) {
      Stream prompt;
      for (int i = 0; i < 3000; ++i) {
        // Words that recur in other contexts, as in languages.
        prompt.push_back(With(0.5) ? Below(20) : Below(1000));
      }
      Drafter drafter(options, &table, nullptr, "");
      Stream text = prompt;
      drafter.Observe(text);
      Stream answer = prompt;
      for (int32_t& token : answer) {
        if (With(0.05)) token = Below(1000);
      }
      for (size_t next = 0; next < answer.size();) {
        const Draft draft = drafter.Propose(8);
        size_t drawn = 0;
        while (drawn < draft.tokens.size() && next + drawn < answer.size() &&
               draft.tokens[drawn] == answer[next + drawn]) {
          ++drawn;
        }
        for (const float likelihood : draft.likelihoods) expected += likelihood;
        accepted += static_cast<double>(drawn);
        ++proposals;
        const size_t end = std::min(answer.size(), next + drawn + 1);
        text.insert(text.end(), answer.begin() + static_cast<std::ptrdiff_t>(next),
                    answer.begin() + static_cast<std::ptrdiff_t>(end));
        next = end;
        drafter.Observe(text);
      }
    }
    const bool suffix = options.mode == DrafterOptions::Mode::kSuffix;
    EXPECT_GT(accepted / proposals, suffix ? 4.5 : 2.5);
    EXPECT_NEAR(expected / accepted, 1, suffix ? 0.1 : 0.2);
  }
}

}  // namespace
}  // namespace baton::decode_worker
