#include "decode_worker/drafts/answer_memory.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/seed.h"

namespace baton::decode_worker {
namespace {

using AnswerTokens = std::vector<int32_t>;

AnswerTokens Held(AnswerMemory& memory, const std::string& scope) {
  const SuffixIndex* const text = memory.Find(scope).text;
  AnswerTokens tokens;
  if (text == nullptr) return tokens;
  for (uint64_t position = text->begin(); position < text->end(); ++position)
    tokens.push_back(text->at(position));
  return tokens;
}

TEST(AnswerMemoryTest, EachScopeHasItsAnswers) {
  AnswerMemory memory({});
  EXPECT_EQ(memory.Find("a").text, nullptr);
  memory.Add("a", AnswerTokens{1, 2, 3});
  memory.Add(std::string("a\0b", 3), AnswerTokens{4, 5});
  memory.Add("", AnswerTokens{8, 9});
  memory.Add("a", AnswerTokens{6, 7});
  EXPECT_EQ(Held(memory, "a"), (AnswerTokens{1, 2, 3, -1, 6, 7, -1}));
  EXPECT_EQ(Held(memory, std::string("a\0b", 3)), (AnswerTokens{4, 5, -1}));
  EXPECT_EQ(Held(memory, ""), (AnswerTokens{8, 9, -1}));
  EXPECT_EQ(Held(memory, "b"), AnswerTokens{});
  EXPECT_EQ(memory.tokens(), 13);
  EXPECT_EQ(memory.scopes(), 3);
}

TEST(AnswerMemoryTest, AnswersTooShortToMatchBeginNoScope) {
  AnswerMemory memory({});
  memory.Add("a", AnswerTokens{});
  memory.Add("a", AnswerTokens{1});
  EXPECT_EQ(memory.scopes(), 0);
  EXPECT_EQ(memory.changes(), 0u);
}

TEST(AnswerMemoryTest, OfALongAnswerTheEndIsKept) {
  AnswerMemory memory({});
  AnswerTokens answer;
  for (int i = 0; i < 20'000; ++i) answer.push_back(i);
  memory.Add("a", answer);
  const AnswerTokens held = Held(memory, "a");
  ASSERT_EQ(held.size(), AnswerMemory::kMostTokensOfAnswer + 1u);
  EXPECT_EQ(held.front(), 20'000 - AnswerMemory::kMostTokensOfAnswer);
  EXPECT_EQ(held[held.size() - 2], 19'999);
}

TEST(AnswerMemoryTest, TheScopeUsedLeastRecentlyIsForgotten) {
  AnswerMemory memory({.most_tokens = 100, .most_scopes = 2, .window_tokens = 50});
  memory.Add("a", AnswerTokens{1, 2});
  memory.Add("b", AnswerTokens{3, 4});
  const uint64_t id = memory.Find("a").id;
  const uint64_t before = memory.changes();
  memory.Add("c", AnswerTokens{5, 6});
  EXPECT_GT(memory.changes(), before);
  EXPECT_EQ(Held(memory, "b"), AnswerTokens{}) << "a was asked for after b was added";
  EXPECT_EQ(memory.Find("a").id, id);
  EXPECT_EQ(memory.tokens(), 6);
  memory.Add("b", AnswerTokens{7, 8});
  EXPECT_EQ(Held(memory, "b"), (AnswerTokens{7, 8, -1}))
      << "of a scope that begins again nothing is left";
  EXPECT_EQ(Held(memory, "c"), AnswerTokens{});
}

TEST(AnswerMemoryTest, ManyTokensOfOneScopePushOutOthers) {
  AnswerMemory memory({.most_tokens = 100, .most_scopes = 10, .window_tokens = 1000});
  memory.Add("a", AnswerTokens(20, 1));
  memory.Add("b", AnswerTokens(60, 2));
  EXPECT_EQ(memory.scopes(), 2);
  const uint64_t before = memory.changes();
  memory.Add("b", AnswerTokens(60, 3));
  EXPECT_EQ(memory.Find("a").text, nullptr);
  EXPECT_GT(memory.changes(), before);
  EXPECT_EQ(memory.tokens(), 100) << "one scope alone is bounded by the whole";
  EXPECT_EQ(Held(memory, "b").size(), 100u);
}

// Random answers of many scopes: the bounds hold, and each scope has the last of its own tokens.
TEST(AnswerMemoryTest, RandomScopesNeverMix) {
  std::mt19937 random(testing::TestSeed());
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<uint32_t>(bound));
  };
  const AnswerMemory::Options options = {
      .most_tokens = 3000, .most_scopes = 7, .window_tokens = 500};
  AnswerMemory memory(options);
  std::map<int, AnswerTokens> added;
  std::map<int, uint64_t> ids;
  int begun_again = 0;
  for (int round = 0; round < 3000; ++round) {
    const int scope = below(12);
    const std::string name = "scope " + std::to_string(scope);
    const AnswerMemory::Answers before = memory.Find(name);
    if (below(3) == 0) {
      AnswerTokens answer;
      for (int i = 2 + below(below(10) == 0 ? 800 : 60); i > 0; --i)
        answer.push_back(1000 * scope + below(1000));
      if (before.text == nullptr) added[scope].clear();
      added[scope].insert(added[scope].end(), answer.begin(), answer.end());
      added[scope].push_back(-1);
      memory.Add(name, answer);
      const uint64_t id = memory.Find(name).id;
      begun_again += ids.contains(scope) && ids[scope] != id;
      ASSERT_EQ(before.text == nullptr, !ids.contains(scope) || ids[scope] != id);
      ids[scope] = id;
    }
    const AnswerTokens held = Held(memory, name);
    ASSERT_LE(held.size(), static_cast<size_t>(options.window_tokens));
    ASSERT_LE(held.size(), added[scope].size());
    if (memory.Find(name).text != nullptr) {
      ASSERT_EQ(held, AnswerTokens(added[scope].end() - static_cast<std::ptrdiff_t>(held.size()),
                                   added[scope].end()));
      ASSERT_EQ(held.size(), std::min<size_t>(added[scope].size(), 500));
    }
    ASSERT_LE(memory.tokens(), options.most_tokens);
    ASSERT_LE(memory.scopes(), options.most_scopes);
  }
  EXPECT_GT(begun_again, 10);
}

}  // namespace
}  // namespace baton::decode_worker
