// States of recurrent layers: where sequences leave them, and the prefix cache's snapshots.
#include "common/kv/snapshots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "common/kv/prefix_key.h"
#include "common/kv/radix_cache.h"
#include "tests/testing/seed.h"

namespace baton::kv {
namespace {

using ::testing::ElementsAre;

using Tokens = std::vector<int32_t>;
constexpr PrefixKey kSnapshotsRoot = 23;
constexpr int kStateTokens = 2;
constexpr BlockShape kStates = {
    .full_pages = 1, .window_pages = 3, .window_blocks = 1, .recurrent = true};

Tokens CountedBlocks(int blocks, int32_t first = 0) {
  Tokens tokens(static_cast<size_t>(blocks * kStateTokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<int> WindowsOf(const BlockLease& lease) {
  std::vector<int> found;
  for (int i = 0; i < lease.size(); ++i) {
    if (lease.has_window(i)) found.push_back(i);
  }
  return found;
}

class SnapshotsTest : public ::testing::Test {
 protected:
  ~SnapshotsTest() override {
    Check();
    cache_.reset();
    EXPECT_EQ(pool_.counts().free, pool_.counts().total);
  }
  void Check() {
    pool_.CheckIntegrity();
    cache_->CheckIntegrity();
    std::set<PrefixKey> keys;
    for (const PrefixKey key : cache_->Keys()) keys.insert(key);
    EXPECT_EQ(keys, reported_);
  }
  void Listen() {
    cache_->SetListener([this](CacheChange change) {
      if (change.added) {
        EXPECT_TRUE(reported_.insert(change.key).second) << "added twice";
      } else {
        EXPECT_EQ(reported_.erase(change.key), 1u) << "removed, and was not there";
      }
    });
  }
  // As a prompt leaves it that was computed with snapshots at the ends of these blocks.
  void Cache(const Tokens& tokens, const std::vector<int>& snapshots) {
    BlockLease lease =
        *pool_.Acquire(static_cast<int>(tokens.size()) / kStateTokens, BlockUse::kActive, 0, 0);
    for (const int block : snapshots) ASSERT_EQ(lease.AddWindows(block, block + 1), block + 1);
    cache_->Insert(kSnapshotsRoot, tokens, lease);
    lease.Release();
    Check();
  }
  int Match(const Tokens& tokens) {
    const kv::Match match = cache_->MatchPrefix(kSnapshotsRoot, tokens, RadixCache::kNoLimit);
    EXPECT_EQ(match.tokens, cache_->Peek(kSnapshotsRoot, tokens));
    if (match.tokens > 0) {
      EXPECT_THAT(WindowsOf(match.blocks), ElementsAre(match.blocks.size() - 1));
    }
    return match.tokens / kStateTokens;
  }

  BlockPool pool_{60, kStates};
  std::unique_ptr<RadixCache> cache_ =
      std::make_unique<RadixCache>(pool_, kStateTokens, RetentionLimits{.max_snapshot_share = 0.5});
  std::set<PrefixKey> reported_;
};

TEST_F(SnapshotsTest, APrefixIsUsableWhereItHasASnapshot) {
  Listen();
  const Tokens eight = CountedBlocks(8);
  Cache(eight, {2, 5});
  EXPECT_EQ(Match(eight), 6);
  EXPECT_EQ(Match(CountedBlocks(6)), 6);
  EXPECT_EQ(Match(CountedBlocks(5)), 3);
  EXPECT_EQ(Match(CountedBlocks(2)), 0);
  EXPECT_EQ(cache_->ReachedBlocks(kSnapshotsRoot, CountedBlocks(5)), 5);
  EXPECT_EQ(cache_->snapshot_count(), 2);
  const std::vector<PrefixKey> keys = PrefixKeys(kSnapshotsRoot, eight, kStateTokens);
  EXPECT_TRUE(reported_.contains(SnapshotKey(keys[2])));
  EXPECT_FALSE(reported_.contains(SnapshotKey(keys[3])));
}

TEST_F(SnapshotsTest, ALaterPromptBringsTheSnapshotThatIsMissing) {
  Listen();
  Cache(CountedBlocks(8), {7});
  EXPECT_EQ(Match(CountedBlocks(4)), 0);
  Cache(CountedBlocks(4), {3});
  EXPECT_EQ(Match(CountedBlocks(4)), 4);
  EXPECT_EQ(Match(CountedBlocks(8)), 8);
  EXPECT_EQ(cache_->block_count(), 8);
}

TEST_F(SnapshotsTest, TheOldestGoWhereTheyTakeTooMuch) {
  Listen();
  // Half of 60 pages: ten snapshots.
  for (int32_t i = 0; i < 12; ++i) Cache(CountedBlocks(1, 100 * i), {0});
  EXPECT_EQ(cache_->snapshot_count(), 10);
  EXPECT_EQ(Match(CountedBlocks(1, 0)), 0);
  EXPECT_EQ(Match(CountedBlocks(1, 100)), 0);
  EXPECT_EQ(Match(CountedBlocks(1, 200)), 1) << "and is the newest now";
  Cache(CountedBlocks(1, 5000), {0});
  EXPECT_EQ(Match(CountedBlocks(1, 200)), 1);
  EXPECT_EQ(Match(CountedBlocks(1, 300)), 0);
}

TEST_F(SnapshotsTest, ThereIsRoomForTwoInAnyCase) {
  cache_.reset();
  cache_ =
      std::make_unique<RadixCache>(pool_, kStateTokens, RetentionLimits{.max_snapshot_share = 0});
  Listen();
  for (int32_t i = 0; i < 4; ++i) Cache(CountedBlocks(1, 100 * i), {0});
  EXPECT_EQ(cache_->snapshot_count(), 2);
  EXPECT_EQ(Match(CountedBlocks(1, 300)), 1);
}

TEST_F(SnapshotsTest, WhatIsInUseIsNotEvicted) {
  Listen();
  Cache(CountedBlocks(4), {1, 3});
  const kv::Match used =
      cache_->MatchPrefix(kSnapshotsRoot, CountedBlocks(2), RadixCache::kNoLimit);
  EXPECT_EQ(used.tokens, 2 * kStateTokens);
  EXPECT_EQ(cache_->EvictSnapshots(100), 3) << "the one at block 3";
  EXPECT_EQ(Match(CountedBlocks(4)), 2);
  Check();
}

// Blocks with snapshots alone are of use; those behind the last one go with it.
TEST_F(SnapshotsTest, EvictionTakesBlocksThatNoSnapshotServes) {
  Listen();
  Cache(CountedBlocks(6), {1, 3});
  EXPECT_EQ(cache_->Evict(1), 2) << "blocks 4 and 5, behind the last snapshot";
  EXPECT_EQ(Match(CountedBlocks(6)), 4);
  EXPECT_EQ(cache_->Evict(1), 3) << "the snapshot that only another prompt would need";
  EXPECT_EQ(Match(CountedBlocks(3)), 0);
  EXPECT_EQ(Match(CountedBlocks(6)), 4);
  EXPECT_EQ(cache_->Evict(1), 3 + 4) << "the last one, and what it served";
  EXPECT_EQ(cache_->block_count(), 0);
  Check();
}

TEST_F(SnapshotsTest, AChunkLeavesItsStateInTheSpare) {
  BlockLease job = *pool_.Acquire(10, BlockUse::kActive, 8, 10);
  EXPECT_TRUE(HasSpare(0, kStateTokens, job));
  PlaceStates(pool_, cache_.get(), 0, 3 * kStateTokens, kStateTokens, {}, job);
  EXPECT_THAT(WindowsOf(job), ElementsAre(2, 8));
  PlaceStates(pool_, cache_.get(), 3 * kStateTokens, 6 * kStateTokens, kStateTokens, {4}, job);
  EXPECT_THAT(WindowsOf(job), ElementsAre(2, 4, 5)) << "and a snapshot, for there is room";
  job.DropWindows(5);
  EXPECT_FALSE(HasSpare(6 * kStateTokens, kStateTokens, job));
  EXPECT_TRUE(TakeSpare(pool_, cache_.get(), 6 * kStateTokens, kStateTokens, job));
  EXPECT_THAT(WindowsOf(job), ElementsAre(5, 9));
  // The last chunk ends where the spare lies, here with a partial block.
  PlaceStates(pool_, cache_.get(), 6 * kStateTokens, 10 * kStateTokens - 1, kStateTokens, {8}, job);
  EXPECT_THAT(WindowsOf(job), ElementsAre(5, 8, 9));
  EXPECT_TRUE(HasSpare(10 * kStateTokens - 1, kStateTokens, job)) << "it writes where its state is";
}

TEST_F(SnapshotsTest, WithoutRoomThereIsNoSpare) {
  BlockLease job = *pool_.Acquire(4, BlockUse::kActive, 0, 1);
  BlockLease others = *pool_.Acquire(pool_.counts().free, BlockUse::kActive, 0, 0);
  EXPECT_FALSE(TakeSpare(pool_, cache_.get(), kStateTokens, kStateTokens, job));
  others.Release();
  EXPECT_TRUE(TakeSpare(pool_, cache_.get(), kStateTokens, kStateTokens, job));
}

TEST_F(SnapshotsTest, OldSnapshotsMakeRoomForNewOnesAndCachedBlocksForSpares) {
  Listen();
  Cache(CountedBlocks(2), {1});
  BlockLease job = *pool_.Acquire(4, BlockUse::kActive, 3, 4);
  BlockLease others = *pool_.Acquire(pool_.counts().free, BlockUse::kActive, 0, 0);
  PlaceStates(pool_, cache_.get(), 0, 4 * kStateTokens, kStateTokens, {2}, job);
  EXPECT_THAT(WindowsOf(job), ElementsAre(2, 3));
  EXPECT_EQ(Match(CountedBlocks(2)), 0) << "its snapshot has made room";
  EXPECT_LE(cache_->block_count(), 2);
}

// Random prompts against a list of what was cached: a match ends where a snapshot was left, and
// what the listener has heard is what the cache has.
class SnapshotsPropertyTest : public SnapshotsTest, public ::testing::WithParamInterface<int> {};

TEST_P(SnapshotsPropertyTest, MatchesEndAtSnapshots) {
  std::mt19937 random(static_cast<uint32_t>(testing::TestSeed()) + GetParam());
  const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
  Listen();
  for (int round = 0; round < 60; ++round) {
    Tokens tokens;
    for (int i = 1 + below(6); i > 0; --i) tokens.insert(tokens.end(), kStateTokens, below(2));
    const int blocks = static_cast<int>(tokens.size()) / kStateTokens;
    kv::Match match = cache_->MatchPrefix(kSnapshotsRoot, tokens, (blocks - 1) * kStateTokens);
    const int matched = match.blocks.size();
    ASSERT_LE(matched, cache_->ReachedBlocks(kSnapshotsRoot, tokens));
    const int missing = blocks - matched;
    const int64_t pages = kStates.PagesOf(missing, 1);
    if (pages > pool_.counts().free) cache_->Evict(static_cast<int>(pages) - pool_.counts().free);
    auto fresh = pool_.Acquire(missing, BlockUse::kActive, missing - 1, missing);
    ASSERT_TRUE(fresh.ok()) << fresh.status();
    BlockLease job = std::move(match.blocks);
    job.Append(*std::move(fresh));
    PlaceStates(pool_, cache_.get(), matched * kStateTokens, blocks * kStateTokens, kStateTokens,
                {matched + below(missing)}, job);
    cache_->Insert(kSnapshotsRoot, tokens, job);
    // What it leaves is there, and more if others had it.
    EXPECT_EQ(cache_->Peek(kSnapshotsRoot, tokens), blocks * kStateTokens);
    job.Release();
    if (below(5) == 0) cache_->EvictSnapshots(3 * below(4));
    if (below(9) == 0) cache_->Evict(below(20));
    Check();
    EXPECT_LE(cache_->snapshot_count(), 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SnapshotsPropertyTest, ::testing::Range(0, 100));

}  // namespace
}  // namespace baton::kv
