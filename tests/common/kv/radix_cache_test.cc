#include "common/kv/radix_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>

namespace baton::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

using Tokens = std::vector<int32_t>;
constexpr PrefixKey kRoot = 17;
constexpr int kBlockTokens = 2;

// Blocks of two tokens; every test ends with a check and an empty pool.
class RadixCacheTest : public ::testing::Test {
 protected:
  RadixCacheTest() {
    cache_->SetListener([this](CacheChange change) { changes_.push_back(change); });
  }
  ~RadixCacheTest() override {
    Check();
    cache_.reset();
    pool_.CheckIntegrity();
    EXPECT_EQ(pool_.counts().free, pool_.counts().total);
  }

  void Check() {
    pool_.CheckIntegrity();
    cache_->CheckIntegrity();
  }
  BlockLease Acquire(int count) {
    absl::StatusOr<BlockLease> lease = pool_.Acquire(count, BlockUse::kActive);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return std::move(lease).value();
  }
  // Caches the prompt in blocks of its own and keeps no lock. Returns their ids.
  std::vector<BlockId> Cache(const Tokens& tokens, PrefixKey root = kRoot) {
    BlockLease lease = Acquire(static_cast<int>(tokens.size() / kBlockTokens));
    cache_->Insert(root, tokens, lease);
    Check();
    return lease.ids();
  }
  Match MatchAll(const Tokens& tokens) {
    Match match = cache_->MatchPrefix(kRoot, tokens, RadixCache::kNoLimit);
    Check();
    return match;
  }
  std::vector<PrefixKey> KeysOf(const Tokens& tokens) {
    return PrefixKeys(kRoot, tokens, kBlockTokens);
  }

  BlockPool pool_{16};
  std::unique_ptr<RadixCache> cache_ = std::make_unique<RadixCache>(pool_, kBlockTokens);
  std::vector<CacheChange> changes_;
};

TEST_F(RadixCacheTest, EmptyMatchesNothing) {
  EXPECT_EQ(MatchAll({1, 2, 3, 4}).tokens, 0);
  EXPECT_EQ(MatchAll({}).tokens, 0);
  EXPECT_EQ(cache_->Peek(kRoot, {1, 2}), 0);
  EXPECT_EQ(cache_->Evict(5), 0);
  EXPECT_THAT(cache_->Keys(), IsEmpty());
}

TEST_F(RadixCacheTest, MatchesWholeBlocksOnly) {
  const auto ids = Cache({1, 2, 3, 4, 5});  // the 5 is the unaligned tail
  EXPECT_EQ(cache_->block_count(), 2);
  EXPECT_THAT(MatchAll({1, 2, 3, 4, 5, 6}).blocks.ids(), ElementsAre(ids[0], ids[1]));
  EXPECT_EQ(MatchAll({1, 2, 3}).tokens, 2);
  EXPECT_EQ(MatchAll({1, 2, 9, 4}).tokens, 2);
  EXPECT_EQ(MatchAll({1, 9, 3, 4}).tokens, 0);
  EXPECT_EQ(MatchAll({1}).tokens, 0);
  EXPECT_EQ(MatchAll({3, 4}).tokens, 0) << "not a prefix";
}

// Long edges are compared many blocks at a time.
TEST_F(RadixCacheTest, ALongMatchEndsAtTheFirstDifferentBlock) {
  constexpr int kBlocks = 200;
  BlockPool pool(kBlocks);
  RadixCache cache(pool, kBlockTokens);
  Tokens prompt(kBlocks * kBlockTokens);
  std::iota(prompt.begin(), prompt.end(), 0);
  {
    const BlockLease lease = *pool.Acquire(kBlocks, BlockUse::kActive);
    cache.Insert(kRoot, prompt, lease);
  }
  EXPECT_EQ(cache.Peek(kRoot, prompt), kBlocks * kBlockTokens);
  for (int block = 0; block < kBlocks; ++block) {
    Tokens other = prompt;
    other[block * kBlockTokens + block % kBlockTokens] = -1;
    EXPECT_EQ(cache.Peek(kRoot, other), block * kBlockTokens);
    other.resize((block + 1) * kBlockTokens);
    EXPECT_EQ(cache.Peek(kRoot, other), block * kBlockTokens);
  }
}

TEST_F(RadixCacheTest, MaxTokensLeavesOneTokenToCompute) {
  Cache({1, 2, 3, 4});
  const Tokens prompt = {1, 2, 3, 4};
  EXPECT_EQ(cache_->MatchPrefix(kRoot, prompt, 3).tokens, 2);
  EXPECT_EQ(cache_->Peek(kRoot, prompt, 3), 2);
  EXPECT_EQ(cache_->MatchPrefix(kRoot, prompt, 1).tokens, 0);
  EXPECT_EQ(cache_->MatchPrefix(kRoot, prompt, 0).tokens, 0);
  EXPECT_EQ(cache_->MatchPrefix(kRoot, {1, 2, 3, 4, 5}, 4).tokens, 4);
}

TEST_F(RadixCacheTest, DuplicatesKeepTheTreesBlocks) {
  const auto first = Cache({1, 2, 3, 4});
  const auto second = Cache({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(pool_.counts().free, 16 - 3) << "the two duplicates went back to the pool";
  EXPECT_THAT(MatchAll({1, 2, 3, 4, 5, 6}).blocks.ids(),
              ElementsAre(first[0], first[1], second[2]));
}

// A prompt computed twice at a time: the second one's lock is on its tail only, which stands below
// blocks that nobody locks but that must stay all the same.
TEST_F(RadixCacheTest, BlocksBeforeALockedOneStay) {
  Cache({1, 2, 3, 4});
  BlockLease own = Acquire(3);
  cache_->Insert(kRoot, {1, 2, 3, 4, 5, 6}, own);
  Check();
  EXPECT_EQ(cache_->block_count(), 3);
  EXPECT_EQ(cache_->evictable_page_count(), 0);
  EXPECT_EQ(cache_->Evict(3), 0);
  own.Release();
  Check();
  EXPECT_EQ(cache_->evictable_page_count(), 3);
}

TEST_F(RadixCacheTest, LockedPathIsNeverEvicted) {
  Cache({1, 2, 3, 4, 5, 6});
  Cache({1, 2, 7, 8});
  Match lock = MatchAll({1, 2, 3, 4});
  EXPECT_EQ(cache_->evictable_page_count(), 2);
  EXPECT_EQ(cache_->Evict(16), 2);
  Check();
  EXPECT_EQ(cache_->Peek(kRoot, {1, 2, 3, 4, 5, 6}), 4);
  EXPECT_EQ(cache_->Evict(1), 0);
  cache_->Clear();
  EXPECT_EQ(cache_->block_count(), 2);
  lock.blocks.Release();
  EXPECT_EQ(cache_->evictable_page_count(), 2);
  cache_->Clear();
  EXPECT_EQ(cache_->block_count(), 0);
}

TEST_F(RadixCacheTest, EvictsLeastRecentlyUsedLeavesFirst) {
  Cache({1, 1, 2, 2});
  Cache({3, 3});
  Cache({1, 1, 4, 4});
  MatchAll({3, 3});
  changes_.clear();
  EXPECT_EQ(cache_->Evict(4), 4);
  Check();
  std::vector<PrefixKey> removed;
  for (const CacheChange& change : changes_) {
    EXPECT_FALSE(change.added);
    removed.push_back(change.key);
  }
  // {1,1} itself was used with {4,4}, and could not go before it.
  EXPECT_THAT(removed, ElementsAre(KeysOf({1, 1, 2, 2})[1], KeysOf({1, 1, 4, 4})[1],
                                   KeysOf({1, 1})[0], KeysOf({3, 3})[0]));
}

TEST_F(RadixCacheTest, APartialUseRefreshesOnlyWhatItUsed) {
  Cache({1, 1, 2, 2, 3, 3});
  Cache({9, 9});
  MatchAll({1, 1});
  EXPECT_EQ(cache_->Evict(3), 3);
  Check();
  EXPECT_EQ(cache_->Peek(kRoot, {1, 1, 2, 2, 3, 3}), 2);
  EXPECT_EQ(cache_->Peek(kRoot, {9, 9}), 0);
}

TEST_F(RadixCacheTest, PeekDoesNotCountAsUse) {
  Cache({1, 1});
  Cache({2, 2});
  EXPECT_EQ(cache_->Peek(kRoot, {1, 1}), 2);
  EXPECT_EQ(cache_->Evict(1), 1);
  EXPECT_EQ(cache_->Peek(kRoot, {1, 1}), 0);
}

TEST_F(RadixCacheTest, EvictTakesFromTheTail) {
  Cache({1, 1, 2, 2, 3, 3});
  EXPECT_EQ(cache_->Evict(1), 1);
  Check();
  EXPECT_EQ(cache_->Peek(kRoot, {1, 1, 2, 2, 3, 3}), 4);
  EXPECT_EQ(cache_->Evict(0), 0);
}

TEST_F(RadixCacheTest, NamespacesNeverMix) {
  Cache({1, 2, 3, 4}, 100);
  EXPECT_EQ(cache_->Peek(200, {1, 2, 3, 4}), 0);
  EXPECT_EQ(cache_->MatchPrefix(200, {1, 2, 3, 4}, RadixCache::kNoLimit).tokens, 0);
  // A root that equals a block's key of another namespace: were keys what is compared, its
  // children would be found.
  const PrefixKey inner = PrefixKeys(100, {1, 2}, kBlockTokens)[0];
  EXPECT_EQ(cache_->Peek(inner, {3, 4}), 0);
  Cache({5, 6}, inner);
  EXPECT_EQ(cache_->Peek(100, {1, 2, 5, 6}), 2);
}

TEST_F(RadixCacheTest, ListenerAndKeysAgree) {
  Cache({1, 2, 3, 4});
  Cache({1, 2, 5, 6});
  std::vector<PrefixKey> added;
  for (const CacheChange& change : changes_) {
    EXPECT_TRUE(change.added);
    added.push_back(change.key);
  }
  EXPECT_THAT(added,
              ElementsAre(KeysOf({1, 2})[0], KeysOf({1, 2, 3, 4})[1], KeysOf({1, 2, 5, 6})[1]));
  EXPECT_THAT(cache_->Keys(), UnorderedElementsAreArray(added));
  EXPECT_EQ(cache_->Keys()[0], added[0]) << "parents before children";
}

TEST_F(RadixCacheTest, ALongChainOfUsesNeitherOverflowsTheStackNorLeaks) {
  constexpr int kBlocks = 6000;
  BlockPool pool(kBlocks);
  RadixCache cache(pool, 1);
  BlockLease lease = *pool.Acquire(kBlocks, BlockUse::kActive);
  const Tokens tokens(kBlocks, 7);
  cache.Insert(kRoot, tokens, lease);
  // Every match splits one block off: a path of as many nodes as blocks.
  for (int end = kBlocks - 1; end > 0; --end) {
    EXPECT_EQ(cache.MatchPrefix(kRoot, tokens, end).tokens, end);
  }
  cache.CheckIntegrity();
  lease.Release();
  EXPECT_EQ(cache.evictable_page_count(), kBlocks);
  EXPECT_EQ(cache.Evict(kBlocks / 2), kBlocks / 2);
  cache.CheckIntegrity();
}

TEST_F(RadixCacheTest, LeasesOutliveTheCache) {
  Cache({1, 2, 3, 4});
  Match match = MatchAll({1, 2, 3, 4});
  cache_.reset();
  pool_.CheckIntegrity();
  EXPECT_EQ(pool_.counts().active, 2);
  match.blocks.Release();
  cache_ = std::make_unique<RadixCache>(pool_, kBlockTokens);
}

using RadixCacheDeathTest = RadixCacheTest;

TEST_F(RadixCacheDeathTest, BrokenInvariants) {
  BlockLease lease = Acquire(2);
  EXPECT_DEATH(cache_->Insert(kRoot, {1, 2, 3, 4, 5, 6}, lease), "2 against 3");
  cache_->Insert(kRoot, {1, 2, 3, 4}, lease);
  EXPECT_DEATH(cache_->Insert(kRoot, {5, 6}, lease), "is cached already");
  EXPECT_DEATH(cache_->MatchPrefix(kRoot, {1}, -1), "CHECK failed");
  EXPECT_DEATH(cache_->Evict(-1), "CHECK failed");
}

}  // namespace
}  // namespace baton::kv
