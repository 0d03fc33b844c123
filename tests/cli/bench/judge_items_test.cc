#include "cli/bench/judge_items.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"

namespace baton::cli {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Lt;

constexpr int kVocabulary = 1000;

// Three letters are a token, spaces and line breaks are none, as a stand-in for a trained
// vocabulary.
absl::StatusOr<int> CountThrees(const std::string& text) {
  int tokens = 0, letters = 0;
  for (const char c : text) {
    if (c == ' ' || c == '\n') {
      letters = 0;
    } else if (letters++ % 3 == 0) {
      ++tokens;
    }
  }
  return tokens;
}

JudgeShape Shape(int shared, int own, bool texts) { return {shared, own, texts}; }

TEST(BenchJudgeItemsTest, TokenIdsHaveTheirLengthsAndShareTheRubric) {
  Random random(5);
  const auto set = MakeJudgeSet(Shape(30, 7, false), 20, kVocabulary, nullptr, &random);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->rubric.token_ids.size(), 30u);
  ASSERT_EQ(set->items.size(), 20u);
  std::set<std::vector<int32_t>> distinct;
  for (const BenchPrompt& item : set->items) {
    EXPECT_EQ(item.text, "");
    ASSERT_EQ(item.token_ids.size(), 37u);
    EXPECT_TRUE(std::equal(set->rubric.token_ids.begin(), set->rubric.token_ids.end(),
                           item.token_ids.begin()));
    EXPECT_THAT(item.token_ids, Each(AllOf(Ge(0), Lt(kVocabulary))));
    distinct.insert(item.token_ids);
  }
  EXPECT_EQ(distinct.size(), 20u);
}

TEST(BenchJudgeItemsTest, TextsHaveExactlyTheTokensAskedFor) {
  const TokenCounter bytes = [](const std::string& text) { return static_cast<int>(text.size()); };
  for (const TokenCounter& count : {bytes, TokenCounter(CountThrees)}) {
    for (const auto& [shared, own] : {std::pair(1500, 500), {64, 1}, {3, 200}, {17, 29}}) {
      Random random(6);
      // A byte for the line break leaves none for a word of one.
      const int least = own == 1 ? 3 : own;
      const auto set = MakeJudgeSet(Shape(shared, least, true), 3, 0, count, &random);
      ASSERT_TRUE(set.ok()) << set.status() << " " << shared << "+" << least;
      EXPECT_EQ(*count(set->rubric.text), shared);
      for (const BenchPrompt& item : set->items) {
        EXPECT_TRUE(absl::StartsWith(item.text, set->rubric.text));
        EXPECT_EQ(*count(item.text), shared + least);
      }
      EXPECT_NE(set->items[0].text, set->items[1].text);
    }
  }
}

TEST(BenchJudgeItemsTest, ASeedGivesTheSameSetsAgain) {
  for (const bool texts : {false, true}) {
    const auto make = [texts](uint64_t seed) {
      Random random(seed);
      return *MakeJudgeSet(Shape(40, 20, texts), 3, kVocabulary, CountThrees, &random);
    };
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(make(7).items[i].text, make(7).items[i].text);
      EXPECT_EQ(make(7).items[i].token_ids, make(7).items[i].token_ids);
    }
    const JudgeSet one = make(7), other = make(8);
    EXPECT_TRUE(one.rubric.text != other.rubric.text ||
                one.rubric.token_ids != other.rubric.token_ids);
  }
}

TEST(BenchJudgeItemsTest, ALengthThatNoTextHasIsAnError) {
  const auto even = [](const std::string& text) -> absl::StatusOr<int> {
    return static_cast<int>(text.size()) * 2;
  };
  Random random(9);
  const absl::Status status = MakeJudgeSet(Shape(31, 10, true), 1, 0, even, &random).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  const auto broken = [](const std::string&) -> absl::StatusOr<int> {
    return absl::UnavailableError("gone");
  };
  EXPECT_TRUE(
      absl::IsUnavailable(MakeJudgeSet(Shape(31, 10, true), 1, 0, broken, &random).status()));
}

}  // namespace
}  // namespace baton::cli
