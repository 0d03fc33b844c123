// Retained prefixes in RadixCache. The property tests compare it with a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/kv/radix_cache.h"
#include "tests/router/fake_clock.h"

namespace baton::kv {
namespace {

using Tokens = std::vector<int32_t>;
constexpr PrefixKey kSpace = 17;

// A pool of 16 blocks of one token, of which 8 may be retained.
class RadixRetentionTest : public ::testing::Test {
 protected:
  ~RadixRetentionTest() override { Check(); }

  void Check() {
    pool_.CheckIntegrity();
    cache_.CheckIntegrity();
  }
  static Tokens Prompt(int first, int count = 4) {
    Tokens tokens(count);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  // As a prefill does: makes room, computes, caches.
  void Run(const Tokens& tokens) {
    Match match = cache_.MatchPrefix(kSpace, tokens, RadixCache::kNoLimit);
    const int missing = static_cast<int>(tokens.size()) - match.blocks.size();
    cache_.Evict(missing - std::min(missing, pool_.counts().free));
    absl::StatusOr<BlockLease> rest = pool_.Acquire(missing, BlockUse::kActive);
    ASSERT_TRUE(rest.ok()) << rest.status();
    match.blocks.Append(*std::move(rest));
    cache_.Insert(kSpace, tokens, match.blocks);
    Check();
  }
  void Retain(const Tokens& tokens, int priority, absl::Duration ttl = absl::Hours(1)) {
    cache_.Retain(kSpace, tokens, {priority, ttl});
    Check();
  }
  // With prompts that no test names.
  void Flood(int prompts) {
    for (int i = 0; i < prompts; ++i) Run(Prompt(1000 + 10 * flooded_++));
  }
  int Cached(const Tokens& tokens) { return cache_.Peek(kSpace, tokens); }

  testing::FakeClock clock_;
  BlockPool pool_{16};
  RadixCache cache_{pool_, 1, {0.5, clock_}};
  int flooded_ = 0;
};

TEST_F(RadixRetentionTest, AFloodEvictsWhatIsNotRetained) {
  Run(Prompt(0));
  Run(Prompt(100));
  Retain(Prompt(0), 1);
  EXPECT_EQ(cache_.retained_block_count(), 4);
  Flood(40);
  EXPECT_EQ(Cached(Prompt(0)), 4);
  EXPECT_EQ(Cached(Prompt(100)), 0);
}

TEST_F(RadixRetentionTest, OnlyTheTokensGivenAreRetained) {
  Run(Prompt(0, 6));
  Retain(Prompt(0, 2), 1);
  Flood(40);
  EXPECT_EQ(Cached(Prompt(0, 6)), 2);
}

TEST_F(RadixRetentionTest, WhatFollowsARetainedPrefixIsNot) {
  Run(Prompt(0, 2));
  Retain(Prompt(0, 2), 1);
  Run(Prompt(0, 6));
  EXPECT_EQ(cache_.retained_block_count(), 2);
  Flood(40);
  EXPECT_EQ(Cached(Prompt(0, 6)), 2);
}

TEST_F(RadixRetentionTest, LowerPrioritiesAreEvictedFirst) {
  Run(Prompt(0));
  Run(Prompt(100));
  Retain(Prompt(0), 2);
  Retain(Prompt(100), 1);  // used later, but of less priority
  cache_.Evict(pool_.counts().total - pool_.counts().free - 4);
  EXPECT_EQ(Cached(Prompt(0)), 4);
  EXPECT_EQ(Cached(Prompt(100)), 0);
}

TEST_F(RadixRetentionTest, RetentionIsSoft) {
  Run(Prompt(0, 8));
  Retain(Prompt(0, 8), 100);
  EXPECT_EQ(cache_.evictable_page_count(), 8);
  Run(Prompt(500, 14));  // needs the whole pool but two
  EXPECT_EQ(Cached(Prompt(500, 14)), 14);
  EXPECT_EQ(Cached(Prompt(0, 8)), 2) << "evicted from its end";
  EXPECT_EQ(cache_.retained_block_count(), 2);
}

TEST_F(RadixRetentionTest, ExpiresAfterItsLastUse) {
  Run(Prompt(0));
  Retain(Prompt(0), 1, absl::Seconds(10));
  clock_.Advance(absl::Seconds(9));
  cache_.MatchPrefix(kSpace, Prompt(0), RadixCache::kNoLimit);  // renews it
  clock_.Advance(absl::Seconds(9));
  EXPECT_EQ(cache_.retained_block_count(), 4);
  cache_.Peek(kSpace, Prompt(0));  // does not
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(cache_.retained_block_count(), 0);
  Check();
  Flood(4);
  EXPECT_EQ(Cached(Prompt(0)), 0);
}

TEST_F(RadixRetentionTest, AUseRenewsTheUsedPartOnly) {
  Run(Prompt(0));
  Retain(Prompt(0), 1, absl::Seconds(10));
  clock_.Advance(absl::Seconds(5));
  cache_.MatchPrefix(kSpace, Prompt(0), 3);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(cache_.retained_block_count(), 3);
}

TEST_F(RadixRetentionTest, TheStrongerOfTwoRetentionsHolds) {
  Run(Prompt(0));
  Retain(Prompt(0), 7, absl::Seconds(5));
  Retain(Prompt(0, 2), 1, absl::Seconds(20));  // raises the time of its blocks
  Retain(Prompt(0), 0, absl::Seconds(30));     // none
  Run(Prompt(100));
  Retain(Prompt(100), 6, absl::Seconds(100));
  clock_.Advance(absl::Seconds(6));
  EXPECT_EQ(cache_.retained_block_count(), 2 + 4);
  cache_.Evict(2 + 4);  // the two expired blocks, then the other prompt
  EXPECT_EQ(Cached(Prompt(0)), 2);
  EXPECT_EQ(Cached(Prompt(100)), 0);
}

TEST_F(RadixRetentionTest, BeyondTheBoundTheLeastIsDemoted) {
  Run(Prompt(0));
  Run(Prompt(100));
  Run(Prompt(200));
  Retain(Prompt(0), 5);
  Retain(Prompt(100), 5);
  EXPECT_EQ(cache_.retained_block_count(), 8);
  cache_.MatchPrefix(kSpace, Prompt(0), RadixCache::kNoLimit);
  Retain(Prompt(200, 3), 5);  // equal: three blocks of the least recently used make room
  EXPECT_EQ(cache_.retained_block_count(), 8);
  Flood(20);
  EXPECT_EQ(Cached(Prompt(0)), 4);
  EXPECT_EQ(Cached(Prompt(100)), 1);
  EXPECT_EQ(Cached(Prompt(200)), 3);
  Run(Prompt(300));
  Retain(Prompt(300), 4);  // less than all: finds no room
  Flood(20);
  EXPECT_EQ(Cached(Prompt(300)), 0);
  EXPECT_EQ(Cached(Prompt(200)), 3);
}

TEST_F(RadixRetentionTest, OfALongPromptTheFrontIsRetained) {
  Run(Prompt(0, 12));
  Retain(Prompt(0, 12), 5);
  EXPECT_EQ(cache_.retained_block_count(), 8);
  Flood(20);
  EXPECT_EQ(Cached(Prompt(0, 12)), 8);
}

TEST_F(RadixRetentionTest, NothingIsRetainedWithoutAShare) {
  BlockPool pool(4);
  RadixCache cache(pool, 1, {0, clock_});
  absl::StatusOr<BlockLease> blocks = pool.Acquire(2, BlockUse::kActive);
  ASSERT_TRUE(blocks.ok());
  cache.Insert(kSpace, Prompt(0, 2), *blocks);
  cache.Retain(kSpace, Prompt(0, 2), {100, absl::Hours(1)});
  EXPECT_EQ(cache.retained_block_count(), 0);
  cache.CheckIntegrity();
}

TEST_F(RadixRetentionTest, WhatIsNotCachedIsNotRetained) {
  Retain(Prompt(0), 1);
  Run(Prompt(0, 2));
  Retain(Prompt(0, 6), 1);
  EXPECT_EQ(cache_.retained_block_count(), 2);
}

TEST_F(RadixRetentionTest, ClearDropsRetainedBlocksToo) {
  Run(Prompt(0));
  Retain(Prompt(0), 1);
  EXPECT_EQ(cache_.Clear(), 4);
  EXPECT_EQ(cache_.retained_block_count(), 0);
}

}  // namespace
}  // namespace baton::kv
