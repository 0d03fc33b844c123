#include "router/request/prompt_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/seed.h"

namespace baton::router {
namespace {

constexpr int kBlockTokens = 16;
using TokenIds = std::vector<int32_t>;

// A prompt that owns what its chain points to.
struct OwnedPrompt {
  OwnedPrompt(TokenIds ids, std::string owner = "t", kv::PrefixKey space = 1)
      : tenant(std::move(owner)),
        tokens(std::move(ids)),
        root(space),
        keys(kv::PrefixKeys(space, tokens, kBlockTokens)) {}
  PromptChain chain() const { return {tenant, root, kBlockTokens, tokens, keys}; }

  std::string tenant;
  TokenIds tokens;
  kv::PrefixKey root;
  std::vector<kv::PrefixKey> keys;
};

TokenIds Count(int first, int count) {
  TokenIds tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = first + i;
  return tokens;
}
TokenIds Join(std::vector<TokenIds> parts) {
  TokenIds all;
  for (const TokenIds& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}
int WholeBlocks(int tokens) { return tokens / kBlockTokens * kBlockTokens; }

class PromptHistoryTest : public ::testing::Test {
 protected:
  void Add(const OwnedPrompt& prompt, const std::string& id = "earlier") {
    history_.Add(prompt.chain(), id);
  }
  std::optional<PromptMiss> Explain(const OwnedPrompt& prompt, int cached) {
    return history_.Explain(prompt.chain(), cached);
  }
  PromptHistory history_{1 << 20};
};

TEST_F(PromptHistoryTest, AChangeIsFoundWithItsSurroundings) {
  const OwnedPrompt earlier(Count(0, 200));
  Add(earlier, "first");
  OwnedPrompt changed(Join({Count(0, 50), {7777, 7778}, Count(52, 148)}));
  const auto miss = Explain(changed, 48);
  ASSERT_TRUE(miss.has_value());
  EXPECT_EQ(miss->cause, v1::CACHE_MISS_CAUSE_CHANGED);
  EXPECT_EQ(miss->first_different_token, 50);
  EXPECT_EQ(miss->lost_tokens, 148);
  EXPECT_EQ(miss->earlier_request_id, "first");
  EXPECT_EQ(miss->shown, Join({Count(38, 12), {7777, 7778}, Count(52, 11)}));
  EXPECT_EQ(miss->earlier_shown, Count(38, 25));
}

TEST_F(PromptHistoryTest, OfALongerTextInTheMiddleTheRestIsLost) {
  Add(OwnedPrompt(Join({Count(0, 100), Count(1000, 20), Count(100, 300)})));
  const auto miss =
      Explain(OwnedPrompt(Join({Count(0, 100), Count(2000, 36), Count(100, 300)})), 96);
  ASSERT_TRUE(miss.has_value());
  EXPECT_EQ(miss->first_different_token, 100);
  EXPECT_EQ(miss->lost_tokens, 300);
}

TEST_F(PromptHistoryTest, AnotherQuestionAfterACommonBeginningLosesNothing) {
  Add(OwnedPrompt(Join({Count(0, 64), Count(1000, 30)})));
  const auto miss = Explain(OwnedPrompt(Join({Count(0, 64), Count(2000, 30)})), 64);
  ASSERT_TRUE(miss.has_value());
  EXPECT_EQ(miss->cause, v1::CACHE_MISS_CAUSE_CHANGED);
  EXPECT_EQ(miss->first_different_token, 64);
  EXPECT_EQ(miss->lost_tokens, 0);
}

TEST_F(PromptHistoryTest, APromptUnlikeAllOthersIsNoMiss) {
  Add(OwnedPrompt(Count(0, 100)));
  EXPECT_FALSE(Explain(OwnedPrompt(Count(500, 100)), 0).has_value());
}

TEST_F(PromptHistoryTest, TheSamePromptThatIsNotCachedWasEvicted) {
  const OwnedPrompt prompt(Count(0, 100));
  EXPECT_FALSE(Explain(prompt, 0).has_value()) << "never seen";
  Add(prompt, "first");
  const auto miss = Explain(prompt, 32);
  ASSERT_TRUE(miss.has_value());
  EXPECT_EQ(miss->cause, v1::CACHE_MISS_CAUSE_EVICTED);
  EXPECT_EQ(miss->lost_tokens, 64);  // of 96 in whole blocks
  EXPECT_EQ(miss->earlier_request_id, "first");
  EXPECT_TRUE(miss->shown.empty());
  EXPECT_FALSE(Explain(prompt, 96).has_value()) << "nothing more could be cached";
  // The last token is computed even of a prompt of whole blocks.
  const OwnedPrompt whole(Count(0, 96));
  EXPECT_FALSE(Explain(whole, 80).has_value());
}

TEST_F(PromptHistoryTest, ALongerTurnOfTheSameConversationWasEvicted) {
  Add(OwnedPrompt(Count(0, 100)));
  const auto miss = Explain(OwnedPrompt(Count(0, 150)), 0);
  ASSERT_TRUE(miss.has_value());
  EXPECT_EQ(miss->cause, v1::CACHE_MISS_CAUSE_EVICTED);
  EXPECT_EQ(miss->lost_tokens, 96);
  EXPECT_FALSE(Explain(OwnedPrompt(Count(0, 150)), 96).has_value()) << "the rest is new";
}

TEST_F(PromptHistoryTest, AnotherSaltIsNamed) {
  Add(OwnedPrompt(Count(0, 100), "t", 1), "salted");
  const auto miss = Explain(OwnedPrompt(Count(0, 100), "t", 2), 0);
  ASSERT_TRUE(miss.has_value());
  EXPECT_EQ(miss->cause, v1::CACHE_MISS_CAUSE_OTHER_SALT);
  EXPECT_EQ(miss->lost_tokens, 96);
  EXPECT_EQ(miss->earlier_request_id, "salted");
}

TEST_F(PromptHistoryTest, OtherTenantsPromptsAreNeverCompared) {
  Add(OwnedPrompt(Count(0, 100), "a"));
  EXPECT_FALSE(Explain(OwnedPrompt(Count(0, 100), "b"), 0).has_value());
  EXPECT_FALSE(Explain(OwnedPrompt(Join({Count(0, 20), {7}, Count(21, 79)}), "b"), 16).has_value());
  // Not in another namespace either, nor for the tenant without a name.
  EXPECT_FALSE(Explain(OwnedPrompt(Count(0, 100), "b", 2), 0).has_value());
  EXPECT_FALSE(Explain(OwnedPrompt(Count(0, 100), "", 1), 0).has_value());
}

// Whatever one tenant sends, nothing that another is shown has one of its tokens.
TEST_F(PromptHistoryTest, NoTenantIsShownAnothersTokens) {
  std::mt19937 random(testing::TestSeed(7));
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  int explained = 0;
  for (int round = 0; round < 2000; ++round) {
    const int tenant = below(3);
    // The same beginnings for all; then ids of the tenant alone.
    TokenIds tokens = Count(0, 16 * below(3));
    const size_t own = tokens.size();
    for (int i = 0; i < 20 + below(60); ++i) tokens.push_back(10'000 * (tenant + 1) + below(3));
    const OwnedPrompt prompt(tokens, absl::StrCat("tenant", tenant), 1 + below(2));
    if (const auto miss = Explain(prompt, static_cast<int>(own) / kBlockTokens * kBlockTokens)) {
      ++explained;
      for (const TokenIds& shown : {miss->shown, miss->earlier_shown}) {
        for (int32_t id : shown) {
          ASSERT_TRUE(id < 100 || id / 10'000 == tenant + 1) << "round " << round;
        }
      }
      ASSERT_EQ(miss->earlier_request_id, prompt.tenant);
    }
    Add(prompt, prompt.tenant);
  }
  EXPECT_GT(explained, 500) << "nothing was compared";
}

TEST_F(PromptHistoryTest, AContinuedPromptTakesTheOldOnesPlace) {
  Add(OwnedPrompt(Count(0, 100)));
  const int64_t one = history_.bytes();
  Add(OwnedPrompt(Count(0, 100)));
  EXPECT_EQ(history_.bytes(), one);
  Add(OwnedPrompt(Count(0, 164)));
  EXPECT_LT(history_.bytes(), 2 * one);
  const OwnedPrompt other(Count(5000, 100));
  Add(other);
  EXPECT_GT(history_.bytes(), 2 * one);
}

TEST_F(PromptHistoryTest, WhatIsTakenCountsLikeWhatIsCopied) {
  const OwnedPrompt prompt(Count(0, 100));
  PromptHistory copied(1 << 20);
  copied.Add(prompt.chain(), "first");
  history_.Add(prompt.tenant, prompt.root, kBlockTokens,
               PromptHistory::TokenIds(prompt.tokens.begin(), prompt.tokens.end()), prompt.keys,
               "first");
  EXPECT_EQ(history_.bytes(), copied.bytes());
  const auto miss = Explain(prompt, 0);
  ASSERT_TRUE(miss.has_value());
  EXPECT_EQ(miss->cause, v1::CACHE_MISS_CAUSE_EVICTED);
  EXPECT_EQ(miss->earlier_request_id, "first");
  EXPECT_EQ(miss->lost_tokens, copied.Explain(prompt.chain(), 0)->lost_tokens);
}

TEST_F(PromptHistoryTest, MemoryIsBounded) {
  PromptHistory history(20'000);
  for (int i = 0; i < 500; ++i) {
    history.Add(OwnedPrompt(Count(1000 * i, 300), absl::StrCat("t", i % 7)).chain(), "r");
    ASSERT_LE(history.bytes(), 20'000);
  }
  EXPECT_GT(history.bytes(), 10'000);
  const OwnedPrompt large(Count(0, 10'000));
  history.Add(large.chain(), "r");
  EXPECT_FALSE(history.Explain(large.chain(), 0).has_value()) << "larger than the whole";
  PromptHistory none(0);
  const OwnedPrompt prompt(Count(0, 100));
  none.Add(prompt.chain(), "r");
  EXPECT_EQ(none.bytes(), 0);
}

TEST_F(PromptHistoryTest, ATenantsOldestPromptMakesRoom) {
  for (int i = 0; i < static_cast<int>(PromptHistory::kPromptsPerTenant) + 1; ++i) {
    Add(OwnedPrompt(Count(1000 * (i + 1), 40)), absl::StrCat(i));
  }
  EXPECT_FALSE(Explain(OwnedPrompt(Count(1000, 40)), 0).has_value());
  EXPECT_TRUE(Explain(OwnedPrompt(Count(2000, 40)), 0).has_value());
}

// 1,000 prompts, each a recent one with one change: a token replaced, some inserted, some removed.
// The reported place is exactly that of the change, as a comparison of all tokens of all prompts
// finds it.
TEST_F(PromptHistoryTest, ThePlaceOfAChangeIsExactFor1000Mutations) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  std::vector<OwnedPrompt> bases;
  const TokenIds system = [&] {
    TokenIds tokens(300);
    for (int32_t& token : tokens) token = below(500);
    return tokens;
  }();
  for (int i = 0; i < 20; ++i) {
    TokenIds tokens(system.begin(), system.begin() + below(2) * 300);
    for (int n = 50 + below(1500); n > 0; --n) tokens.push_back(below(500));
    bases.emplace_back(tokens);
    Add(bases.back(), absl::StrCat(i));
  }
  int lost = 0;
  for (int round = 0; round < 1000; ++round) {
    TokenIds tokens = bases[below(static_cast<int>(bases.size()))].tokens;
    const int at = below(static_cast<int>(tokens.size()));
    const int length = 1 + below(20);
    const int kind = below(3);
    const auto place = tokens.begin() + at;
    if (kind == 0) {
      *place = 1000 + below(10);
    } else if (kind == 1) {
      tokens.insert(place, length, 1000 + below(10));
    } else {
      tokens.erase(place, place + std::min<std::ptrdiff_t>(length, tokens.end() - place));
    }
    if (tokens.empty()) continue;
    const OwnedPrompt mutated(tokens);
    // By comparing everything.
    int longest = 0;
    bool ends = false;  // a whole earlier prompt, or all of this one, is the common beginning
    for (const OwnedPrompt& base : bases) {
      const size_t count = std::min(base.tokens.size(), tokens.size());
      const int common = static_cast<int>(
          std::mismatch(tokens.begin(), tokens.begin() + count, base.tokens.begin()).first -
          tokens.begin());
      if (common < longest) continue;
      if (common > longest) ends = true;
      longest = common;
      ends &= common == static_cast<int>(count);
    }
    const int cached = WholeBlocks(std::min(longest, static_cast<int>(tokens.size()) - 1));
    const auto miss = Explain(mutated, cached);
    if (ends || cached >= WholeBlocks(static_cast<int>(tokens.size()) - 1)) {
      EXPECT_FALSE(miss && miss->cause == v1::CACHE_MISS_CAUSE_EVICTED) << "round " << round;
      continue;
    }
    if (longest < kBlockTokens && !miss) continue;  // too short to tell it from another prompt
    ASSERT_TRUE(miss.has_value()) << "round " << round << " at " << at;
    ASSERT_EQ(miss->cause, v1::CACHE_MISS_CAUSE_CHANGED) << "round " << round;
    ASSERT_EQ(miss->first_different_token, longest) << "round " << round << " at " << at;
    lost += miss->lost_tokens > 0 ? 1 : 0;
    // The prompt as it ran without the prefix cache's help was evicted up to the change.
    if (cached > 0) {
      const auto evicted = Explain(mutated, cached - kBlockTokens);
      ASSERT_TRUE(evicted.has_value());
      ASSERT_EQ(evicted->cause, v1::CACHE_MISS_CAUSE_EVICTED);
      ASSERT_EQ(evicted->lost_tokens, kBlockTokens);
    }
  }
  EXPECT_GT(lost, 800) << "the rest of the prompts was not found again";
}

}  // namespace
}  // namespace baton::router
