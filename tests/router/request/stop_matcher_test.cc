#include "router/request/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/testing/seed.h"

namespace baton::router {
namespace {

struct Outcome {
  std::string text;
  std::string matched;
};

Outcome Match(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    outcome.text += matcher.Append(piece);
    if (matcher.matched()) {
      outcome.matched = *matcher.matched();
      return outcome;
    }
  }
  outcome.text += matcher.Flush();
  return outcome;
}

TEST(StopMatcherTest, CutsBeforeTheStopString) {
  const Outcome outcome = Match({"\n\n"}, {"yes", "\n", "\nno"});
  EXPECT_EQ(outcome.text, "yes");
  EXPECT_EQ(outcome.matched, "\n\n");
}

TEST(StopMatcherTest, HoldsBackOnlyWhatMayStillMatch) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Append("abE"), "ab");
  EXPECT_EQ(matcher.Append("N"), "");
  EXPECT_EQ(matcher.Append("x"), "ENx");
  EXPECT_EQ(matcher.Append("EN"), "");
  EXPECT_EQ(matcher.Flush(), "EN");
}

TEST(StopMatcherTest, FirstCompleteWinsAndOfEqualEndsTheLongest) {
  EXPECT_EQ(Match({"abcd", "bc"}, {"xabcd"}).matched, "bc");
  EXPECT_EQ(Match({"bc", "abc"}, {"xabc"}).matched, "abc");
  EXPECT_EQ(Match({"bc", "abc"}, {"xabc"}).text, "x");
}

TEST(StopMatcherTest, SelfOverlappingStops) {
  EXPECT_EQ(Match({"aab"}, {"a", "a", "a", "b"}).text, "a");
  EXPECT_EQ(Match({"abab"}, {"aba", "c", "abab"}).text, "abac");
}

// However the text is cut, the outcome is that of the whole text.
TEST(StopMatcherTest, TheOutcomeDoesNotDependOnThePieces) {
  for (uint32_t stream = 0; stream < 3000; ++stream) {
    std::mt19937_64 random(testing::TestSeed(stream));
    const auto word = [&](size_t longest) {
      std::string text;
      for (size_t i = 0, n = 1 + random() % longest; i < n; ++i) text += "ab"[random() % 2];
      return text;
    };
    std::vector<std::string> stops;
    for (size_t i = 0, n = random() % 4; i < n; ++i) stops.push_back(word(5));
    const std::string text = word(40);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 4;
      pieces.push_back(text.substr(at, length));
      at += length;
    }
    const Outcome whole = Match(stops, {text});
    const Outcome cut = Match(stops, pieces);
    ASSERT_EQ(cut.text, whole.text) << "stream " << stream;
    ASSERT_EQ(cut.matched, whole.matched) << "stream " << stream;
    if (whole.matched.empty()) {
      ASSERT_EQ(whole.text, text);
    }
  }
}

}  // namespace
}  // namespace baton::router
