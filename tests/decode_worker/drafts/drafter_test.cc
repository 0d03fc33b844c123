#include "decode_worker/drafts/drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/seed.h"

namespace baton::decode_worker {
namespace {

using Text = std::vector<int32_t>;

constexpr DrafterOptions kSuffix = {};

DrafterOptions Ngram(int min, int max) {
  return {.mode = DrafterOptions::Mode::kNgram, .ngram_min = min, .ngram_max = max};
}

// What a drafter that begins with `text` proposes.
Text ProposedAfter(const Text& text, int most, const DrafterOptions& options = kSuffix) {
  AcceptanceTable table;
  Drafter drafter(options, &table, nullptr, "");
  drafter.Observe(text);
  return drafter.Propose(most).tokens;
}

TEST(DrafterTest, ProposesWhatFollowedTheLastTokens) {
  EXPECT_EQ(ProposedAfter({1, 2, 3, 4, 5, 6, 9, 2, 3}, 3), (Text{4, 5, 6}));
  EXPECT_EQ(ProposedAfter({2, 3, 7, 1, 2, 3, 8, 0, 2, 3}, 2), (Text{8, 0}))
      << "the latest of equally long matches";
  EXPECT_EQ(ProposedAfter({1, 2, 3, 7, 2, 3, 8, 1, 2, 3}, 1), (Text{7})) << "the longest match";
  EXPECT_EQ(ProposedAfter({1, 2, 3}, 4), Text{});
  EXPECT_EQ(ProposedAfter({}, 4), Text{});
  EXPECT_EQ(ProposedAfter({1, 1}, 0), Text{});
  EXPECT_EQ(ProposedAfter({1, 1}, -1), Text{});
}

TEST(DrafterTest, ADraftContinuesInItself) {
  EXPECT_EQ(ProposedAfter({4, 5, 6, 4, 5}, 7), (Text{6, 4, 5, 6, 4, 5, 6}));
  EXPECT_EQ(ProposedAfter({4, 4}, 3), (Text{4, 4, 4}));
  EXPECT_EQ(ProposedAfter({4, 5, 6, 4, 5}, 7, Ngram(1, 3)), (Text{6, 4, 5, 6, 4, 5, 6}));
  EXPECT_EQ(ProposedAfter({4, 4}, 100'000).size(), 256u) << "however many are asked for";
}

TEST(DrafterTest, NgramsHaveBounds) {
  EXPECT_EQ(ProposedAfter({1, 2, 3, 4, 3}, 1, Ngram(1, 3)), Text{4});
  EXPECT_EQ(ProposedAfter({1, 2, 3, 4, 3}, 1, Ngram(2, 3)), Text{}) << "only one token matches";
  const Text text = {1, 2, 3, 7, 0, 2, 3, 8, 1, 2, 3};
  EXPECT_EQ(ProposedAfter(text, 1, Ngram(1, 2)), Text{8})
      << "two tokens are enough, the latest two";
  EXPECT_EQ(ProposedAfter(text, 1, Ngram(1, 3)), Text{7});
}

TEST(DrafterTest, NegativeTokensOfATextMatchNothing) {
  EXPECT_EQ(ProposedAfter({1, -5, 2, 1, -5}, 3), Text{});
  EXPECT_EQ(ProposedAfter({1, 2, -5, 1}, 3), Text{2}) << "a draft has none";
}

TEST(DrafterTest, LikelihoodsNeverRise) {
  AcceptanceTable table;
  Drafter drafter(kSuffix, &table, nullptr, "");
  Text text;
  for (int i = 0; i < 300; ++i) {
    text.push_back(i * i % 11);
    drafter.Observe(text);
    const Draft draft = drafter.Propose(20);
    ASSERT_EQ(draft.tokens.size(), draft.likelihoods.size());
    float before = 1;
    for (const float likelihood : draft.likelihoods) {
      EXPECT_GE(likelihood, 0);
      EXPECT_LE(likelihood, before);
      before = likelihood;
    }
  }
}

TEST(DrafterTest, ALongPromptIsIndexedInParts) {
  Text text(30'000);
  std::iota(text.begin(), text.end(), 0);
  text.push_back(5);  // of the first part
  AcceptanceTable table;
  Drafter drafter(kSuffix, &table, nullptr, "");
  for (int call = 0; call < 3; ++call) {
    drafter.Observe(text);
    EXPECT_TRUE(drafter.Propose(2).tokens.empty()) << "call " << call;
  }
  text.push_back(6);  // while it goes on, answers grow
  drafter.Observe(text);
  EXPECT_EQ(drafter.Propose(2).tokens, (Text{7, 8}));
}

TEST(DrafterTest, OfATextLongerThanTheWindowTheEndCounts) {
  Text text(5000);
  std::iota(text.begin(), text.end(), 0);
  DrafterOptions options;
  options.window_tokens = 1000;
  text.push_back(4500);
  EXPECT_EQ(ProposedAfter(text, 1, options), Text{4501});
  text.back() = 3000;
  EXPECT_EQ(ProposedAfter(text, 1, options), Text{});
}

TEST(DrafterTest, FewerTokensBeginANewText) {
  AcceptanceTable table;
  Drafter drafter(kSuffix, &table, nullptr, "");
  drafter.Observe(Text{1, 2, 3, 1, 2});
  EXPECT_EQ(drafter.Propose(1).tokens, Text{3});
  drafter.Observe(Text{1, 2});
  EXPECT_EQ(drafter.Propose(1).tokens, Text{});
  drafter.Observe(Text{1, 2, 1});
  EXPECT_EQ(drafter.Propose(1).tokens, Text{2});
}

TEST(DrafterTest, ResumesACopyBehindATokenThatDiffers) {
  Text text(100);
  std::iota(text.begin(), text.end(), 0);
  AcceptanceTable table;
  Drafter drafter(kSuffix, &table, nullptr, "");
  for (int token = 20; token < 40; ++token) text.push_back(token);
  text.push_back(1000);  // instead of 40
  drafter.Observe(absl::MakeConstSpan(text).first(100));
  for (size_t size = 101; size <= text.size(); ++size)
    drafter.Observe(absl::MakeConstSpan(text).first(size));
  EXPECT_EQ(drafter.Propose(3).tokens, (Text{41, 42, 43}));
  text.push_back(70);  // it does not go on there
  drafter.Observe(text);
  EXPECT_EQ(drafter.Propose(3).tokens, (Text{71, 72, 73}));
}

TEST(DrafterTest, FindsAnswersOfItsScopeAlone) {
  AcceptanceTable table;
  AnswerMemory memory({});
  Drafter drafter(kSuffix, &table, &memory, "a");
  Drafter other(kSuffix, &table, &memory, "b");
  Drafter ngram(Ngram(1, 3), &table, &memory, "a");
  Text text = {50, 1, 2};
  for (Drafter* each : {&drafter, &other, &ngram}) each->Observe(text);
  memory.Add("a", Text{1, 2, 3, 4, 5});
  text.push_back(3);
  for (Drafter* each : {&drafter, &other, &ngram}) each->Observe(text);
  EXPECT_EQ(drafter.Propose(9).tokens, (Text{4, 5})) << "to the end of the answer";
  EXPECT_EQ(other.Propose(9).tokens, Text{});
  EXPECT_EQ(ngram.Propose(9).tokens, Text{}) << "prompt and answer only";
  memory.Add("a", Text{3, 9, 9});
  text.push_back(4);
  drafter.Observe(text);
  EXPECT_EQ(drafter.Propose(9).tokens, Text{5});
  text.push_back(5);
  drafter.Observe(text);
  EXPECT_EQ(drafter.Propose(9).tokens, Text{})
      << "the answer has ended; the next one is another text";
}

TEST(DrafterTest, TheLongestMatchMayBeInEither) {
  AcceptanceTable table;
  AnswerMemory memory({});
  memory.Add("a", Text{1, 2, 3, 70});
  const auto proposed = [&](const Text& text) {
    Drafter drafter(kSuffix, &table, &memory, "a");
    drafter.Observe(text);
    return drafter.Propose(1).tokens;
  };
  EXPECT_EQ(proposed({0, 2, 3, 80, 1, 2, 3}), Text{70});
  EXPECT_EQ(proposed({1, 2, 3, 80, 1, 2, 3}), Text{80})
      << "equally long: its own text is the later one";
  EXPECT_EQ(proposed({5, 1, 2, 3, 80, 5, 1, 2, 3}), Text{80});
}

TEST(DrafterTest, AForgottenScopeIsNotRead) {
  AcceptanceTable table;
  AnswerMemory memory({.most_tokens = 100, .most_scopes = 1, .window_tokens = 100});
  memory.Add("a", Text{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14});
  Drafter drafter(kSuffix, &table, &memory, "a");
  Text text = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  drafter.Observe(text);
  EXPECT_EQ(drafter.Propose(2).tokens, (Text{10, 11}));
  memory.Add("b", Text{20, 21, 22});
  EXPECT_EQ(drafter.Propose(2).tokens, Text{});
  text.push_back(10);
  drafter.Observe(text);
  EXPECT_EQ(drafter.Propose(2).tokens, Text{});
  memory.Add("a",
             Text{10, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39});  // begins again, as another text
  EXPECT_EQ(drafter.Propose(2).tokens, Text{});
  text.push_back(30);
  drafter.Observe(text);
  EXPECT_EQ(drafter.Propose(2).tokens, (Text{31, 32}));
  memory.Add("b", Text{20, 21, 22});
  memory.Add("a", Text{40, 41, 42, 43, 44});  // both at once
  EXPECT_EQ(drafter.Propose(2).tokens, Text{}) << "the place is one of another text";
}

TEST(DrafterTest, ACopyOfAForgottenScopeIsNotResumed) {
  AcceptanceTable table;
  AnswerMemory memory({.most_tokens = 100, .most_scopes = 1, .window_tokens = 100});
  Text answer(30);
  std::iota(answer.begin(), answer.end(), 0);
  memory.Add("a", answer);
  Drafter drafter(kSuffix, &table, &memory, "a");
  Text text(answer.begin(), answer.begin() + 10);
  drafter.Observe(text);
  text.push_back(50);
  drafter.Observe(text);
  EXPECT_EQ(drafter.Propose(2).tokens, (Text{11, 12}));
  memory.Add("b", Text{20, 21, 22});
  memory.Add("a", Text(30, 60));
  EXPECT_EQ(drafter.Propose(2).tokens, Text{});
}

TEST(DrafterTest, TheNextLongestMatchMayBeANewOne) {
  AcceptanceTable table;
  AnswerMemory memory({});
  memory.Add("a", Text{1, 2, 3, 4, 5, 6});
  memory.Add("a", Text{8, 3, 4, 5, 7, 9});
  Drafter drafter(kSuffix, &table, &memory, "a");
  Text text = {5, 7, 0, 1, 2, 3, 4, 5};
  drafter.Observe(text);
  EXPECT_EQ(drafter.Propose(1).tokens, Text{6});
  text.push_back(7);
  drafter.Observe(text);
  EXPECT_EQ(drafter.Propose(1).tokens, Text{9}) << "3 4 5 7, not the 5 7 that was known";
}

TEST(DrafterTest, AtTheEndOfAnAnswerAnotherMatchIsLookedFor) {
  AcceptanceTable table;
  AnswerMemory memory({});
  memory.Add("a", Text{1, 2, 3, 4, 5});
  Drafter drafter(kSuffix, &table, &memory, "a");
  Text text = {4, 5, 9, 0, 1, 2, 3};
  drafter.Observe(text);
  for (const int32_t token : {4, 5}) {
    text.push_back(token);
    drafter.Observe(text);
  }
  EXPECT_EQ(drafter.Propose(1).tokens, Text{9});
}

TEST(DrafterTest, LikelihoodsAreOfTheMatchAsItGrows) {
  const AcceptanceTable start;
  const auto of = [&](int length, Agreement agreement) {
    return start.Probability(AcceptanceCell(length, agreement));
  };
  const auto likelihoods = [](const Text& text) {
    AcceptanceTable table;
    Drafter drafter(kSuffix, &table, nullptr, "");
    drafter.Observe(text);
    return drafter.Propose(2).likelihoods;
  };
  const auto expect = [&](const Text& text, float first, float second) {
    const std::vector<float> actual = likelihoods(text);
    ASSERT_EQ(actual.size(), 2u);
    EXPECT_FLOAT_EQ(actual[0], first);
    EXPECT_FLOAT_EQ(actual[1], first * second);
  };
  expect({1, 2, 5, 6, 1, 2}, of(2, Agreement::kAlone), of(3, Agreement::kAlone));
  expect({1, 2, 5, 6, 1, 2, 5, 6, 0, 1, 2}, of(2, Agreement::kUnanimous),
         of(3, Agreement::kUnanimous));
  expect({1, 2, 5, 7, 1, 2, 5, 6, 0, 1, 2}, of(2, Agreement::kUnanimous),
         of(3, Agreement::kMinority));
  // A match of less than half the length says nothing.
  expect({1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 0, 6, 7, 8, 9, 21, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
         of(9, Agreement::kAlone), of(10, Agreement::kAlone));
  // What has said another token says nothing of those behind it.
  expect({1, 2, 7, 6, 1, 2, 5, 6, 0, 1, 2}, of(2, Agreement::kMinority), of(3, Agreement::kAlone));
  expect({1, 2, 5, 6, 1, 2, 7, 6, 1, 2, 5, 6, 0, 1, 2}, of(2, Agreement::kMajority),
         of(3, Agreement::kUnanimous));
}

// Where the last tokens of `text` occur before, by looking everywhere.
struct Earlier {
  size_t next = 0;
  int length = 0;
};
Earlier LongestEarlier(const Text& text, int enough) {
  Earlier best;
  for (size_t next = text.size(); next-- > 1;) {
    int length = 0;
    while (length < enough && static_cast<size_t>(length) < next &&
           text[next - 1 - static_cast<size_t>(length)] ==
               text[text.size() - 1 - static_cast<size_t>(length)]) {
      ++length;
    }
    if (length > best.length) best = {next, length};
  }
  return best;
}

Text Copied(const Text& text, size_t next, int most) {
  Text all = text;
  for (int i = 0; i < most; ++i) all.push_back(all[next + static_cast<size_t>(i)]);
  return Text(all.begin() + static_cast<std::ptrdiff_t>(text.size()), all.end());
}

// Texts of few tokens, with repetitions; several tokens at once, as accepted drafts are.
template <typename Check>
void RandomTexts(const DrafterOptions& options, int longest_repetition, const Check& check) {
  std::mt19937 random(testing::TestSeed());
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<uint32_t>(bound));
  };
  for (int round = 0; round < 200; ++round) {
    const int distinct = std::vector<int>{2, 5, 20, 60}[static_cast<size_t>(below(4))];
    AcceptanceTable table;
    Drafter drafter(options, &table, nullptr, "");
    Text text;
    const int length = 20 + below(40 * distinct);
    while (static_cast<int>(text.size()) < length) {
      if (below(5) == 0 && text.size() > 20) {
        const int from = below(static_cast<int>(text.size()) - 10);
        for (int i = below(longest_repetition); i >= 0 && from + i < static_cast<int>(text.size());
             --i) {
          text.push_back(text[static_cast<size_t>(from + i)]);
        }
      } else {
        text.push_back(below(distinct));
      }
      const int64_t steps = drafter.steps();
      drafter.Observe(text);
      check(text, drafter, drafter.steps() - steps);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(DrafterTest, RandomTextsHaveTheLongestMatch) {
  int compared = 0;
  int left_out = 0;
  size_t last = 0;
  bool clean = true;  // no search was cut short, and no match was long enough to be resumed
  RandomTexts(kSuffix, 6, [&](const Text& text, Drafter& drafter, int64_t steps) {
    const Earlier expected = LongestEarlier(text, SuffixIndex::kLongestMatch);
    if (text.size() < last) {  // another text
      clean = true;
      last = 0;
    }
    clean &= steps < SuffixIndex::kMostStepsOfChain;
    for (++last; last < text.size(); ++last) {
      clean &=
          LongestEarlier(Text(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(last)), 8)
              .length < 8;
    }
    clean &= expected.length < 8;
    if (!clean) {
      ++left_out;
      return;
    }
    ++compared;
    const Text expected_tokens = expected.length == 0 ? Text{} : Copied(text, expected.next, 9);
    ASSERT_EQ(drafter.Propose(9).tokens, expected_tokens) << "text of " << text.size();
  });
  EXPECT_GT(compared, 10'000);
  EXPECT_GT(left_out, 0);
}

// max to min last tokens, the most that occur before; of their occurrences the latest; what
// follows, up to 9 tokens.
TEST(DrafterTest, RandomTextsHaveTheNgram) {
  for (const auto& [min, max] : {std::pair{1, 1}, {1, 3}, {2, 4}, {3, 3}, {4, 9}}) {
    int compared = 0;
    RandomTexts(Ngram(min, max), 12,
                [&, min = min, max = max](const Text& text, Drafter& drafter, int64_t steps) {
                  if (steps >= SuffixIndex::kMostStepsOfChain) return;
                  ++compared;
                  Text expected;
                  for (int n = max; n >= min && expected.empty(); --n) {
                    const Earlier match = LongestEarlier(text, n);
                    if (match.length == n) expected = Copied(text, match.next, 9);
                  }
                  ASSERT_EQ(drafter.Propose(9).tokens, expected)
                      << min << " to " << max << ", text of " << text.size();
                });
    EXPECT_GT(compared, 10'000);
  }
}

// Texts on which every search has much to look at.
TEST(DrafterTest, WorkPerTokenIsBounded) {
  std::mt19937 random(testing::TestSeed());
  constexpr int64_t kBound =
      2 * SuffixIndex::kChains * SuffixIndex::kMostStepsOfChain;  // own text and memory
  struct Steps {
    int64_t most = 0;  // of a token
    int64_t all = 0;
  };
  const auto steps = [](const std::vector<Text>& answers, const Text& text) {
    AcceptanceTable table;
    AnswerMemory memory({});
    for (const Text& answer : answers) memory.Add("", answer);
    Drafter drafter(kSuffix, &table, &memory, "");
    Steps steps;
    for (size_t size = 1; size <= text.size(); ++size) {
      drafter.Observe(absl::MakeConstSpan(text).first(size));
      drafter.Propose(8);
      steps.most = std::max(steps.most, drafter.steps() - steps.all);
      steps.all = drafter.steps();
    }
    return steps;
  };
  constexpr int kTokens = 5000;
  Text constant(kTokens, 1), period(kTokens), bits(kTokens), runs(kTokens), distinct(kTokens);
  for (int i = 0; i < kTokens; ++i) {
    const size_t at = static_cast<size_t>(i);
    period[at] = i % 2;
    bits[at] = static_cast<int32_t>(random() % 2);
    runs[at] = i % 64 == 63 ? 1000 + i : 1;
    distinct[at] = i;
  }
  EXPECT_LE(steps({}, constant).all, 20) << "nothing is looked for while the match goes on";
  EXPECT_LE(steps({}, period).all, 20);
  EXPECT_LE(steps({constant}, constant).most, kBound);
  EXPECT_LE(steps({constant}, constant).all, kTokens)
      << "the end of the answer is soon left for its own text";
  EXPECT_LE(steps({bits, bits}, bits).most, kBound);
  EXPECT_GT(steps({bits, bits}, bits).most, SuffixIndex::kMostStepsOfChain)
      << "the bound is put to use";
  EXPECT_LE(steps({runs, constant}, runs).most, kBound);
  EXPECT_LE(steps({}, distinct).all, 20 * kTokens) << "chains hold some positions of other tokens";
}

TEST(DrafterTest, TheSameTextsMakeTheSameDrafts) {
  std::mt19937 random(testing::TestSeed());
  Text text;
  for (int i = 0; i < 3000; ++i) text.push_back(static_cast<int32_t>(random() % 30));
  std::vector<std::vector<float>> likelihoods[2];
  for (std::vector<std::vector<float>>& run : likelihoods) {
    AcceptanceTable table;
    AnswerMemory memory({});
    memory.Add("a", absl::MakeConstSpan(text).first(1000));
    Drafter drafter(kSuffix, &table, &memory, "a");
    for (size_t size = 1; size <= text.size(); ++size) {
      drafter.Observe(absl::MakeConstSpan(text).first(size));
      run.push_back(drafter.Propose(5).likelihoods);
    }
  }
  EXPECT_EQ(likelihoods[0], likelihoods[1]);
}

}  // namespace
}  // namespace baton::decode_worker
