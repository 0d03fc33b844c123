// States of recurrent layers: where sequences leave them, and the prefix cache's snapshots.
#include "common/kv/snapshots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
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
    const int blocks = static_cast<int>(tokens.size()) / kStateTokens;
    MakeRoom(static_cast<int>(kStates.PagesOf(blocks, snapshots.size())));
    BlockLease lease = *pool_.Acquire(blocks, BlockUse::kActive, 0, 0);
    for (const int block : snapshots) ASSERT_EQ(lease.AddWindows(block, block + 1), block + 1);
    cache_->Insert(kSnapshotsRoot, tokens, lease);
    lease.Release();
    Check();
  }
  void MakeRoom(int pages) {
    if (pages > pool_.counts().free) cache_->Evict(pages - pool_.counts().free);
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

TEST_F(SnapshotsTest, TheLengthsOfAPathsSnapshots) {
  Listen();
  Cache(CountedBlocks(8), {1, 4, 7});
  EXPECT_EQ(Match(CountedBlocks(5)), 5);  // parts the edge
  EXPECT_THAT(cache_->Snapshots(kSnapshotsRoot, CountedBlocks(8)), ElementsAre(8, 5, 2));
  EXPECT_THAT(cache_->Snapshots(kSnapshotsRoot, CountedBlocks(6)), ElementsAre(5, 2));
  EXPECT_THAT(cache_->Snapshots(kSnapshotsRoot, CountedBlocks(4, 50)), ElementsAre());
}

// A conversation's earlier turns go before the last turns of older ones.
TEST_F(SnapshotsTest, WhatALaterOneHasSupersededGoesFirst) {
  Listen();
  for (int32_t i = 0; i < 4; ++i) Cache(CountedBlocks(1, 100 * i), {0});
  for (const int blocks : {2, 4, 6}) {
    Match(CountedBlocks(blocks - 2, 1000));
    Cache(CountedBlocks(blocks, 1000), {blocks - 1});
  }
  EXPECT_EQ(cache_->EvictSnapshots(2 * 3), 2 * 3);
  EXPECT_THAT(cache_->Snapshots(kSnapshotsRoot, CountedBlocks(6, 1000)), ElementsAre(6));
  EXPECT_EQ(cache_->snapshot_count(), 1 + 4);
  EXPECT_EQ(cache_->EvictSnapshots(3), 3);
  EXPECT_EQ(Match(CountedBlocks(1)), 0) << "the oldest one";
  EXPECT_EQ(Match(CountedBlocks(6, 1000)), 6);
  Check();
}

TEST_F(SnapshotsTest, WherePathsPartOrPartedNothingIsSuperseded) {
  Listen();
  Tokens other = CountedBlocks(3);
  other.insert(other.end(), {777, 778});
  Cache(CountedBlocks(3), {2});
  Cache(CountedBlocks(5), {4});
  Cache(other, {3});
  Cache(CountedBlocks(1, 900), {0});
  Match(CountedBlocks(3));
  EXPECT_EQ(cache_->EvictSnapshots(2 * 3), 2 * 3);
  EXPECT_EQ(Match(CountedBlocks(5)), 3) << "the path's end was older";
  EXPECT_EQ(Match(other), 3) << "and so was this one";
  // One of the two goes, with its blocks.
  cache_->Evict(3);
  Cache(CountedBlocks(5), {4});
  Cache(CountedBlocks(1, 800), {0});
  Match(CountedBlocks(1, 900));
  Match(CountedBlocks(5));
  EXPECT_EQ(cache_->EvictSnapshots(3), 3);
  EXPECT_EQ(Match(CountedBlocks(3)), 3) << "others came from here once";
}

// A prompt's own snapshots, which only its end will need, push none of others out.
TEST_F(SnapshotsTest, SupersededOnesInUsePushNothingOut) {
  Listen();
  for (int32_t i = 0; i < 9; ++i) Cache(CountedBlocks(1, 100 * i), {0});
  MakeRoom(4 * 4);
  BlockLease job = *pool_.Acquire(4, BlockUse::kActive);
  cache_->Insert(kSnapshotsRoot, CountedBlocks(4, 5000), job);
  EXPECT_EQ(cache_->snapshot_count(), 13);
  EXPECT_EQ(cache_->Peek(kSnapshotsRoot, CountedBlocks(1)), kStateTokens) << "the oldest one";
  job.DropWindows(3);
  cache_->Insert(kSnapshotsRoot, CountedBlocks(4, 5000), job);
  job.Release();
  EXPECT_EQ(cache_->snapshot_count(), 10);
  EXPECT_EQ(cache_->Peek(kSnapshotsRoot, CountedBlocks(1)), kStateTokens);
}

// As a prompt that is sent again, whose answer is there.
TEST_F(SnapshotsTest, WhatIsUsedAgainWhereItIsIsNotSuperseded) {
  Listen();
  Cache(CountedBlocks(4), {1, 3});
  EXPECT_EQ(Match(CountedBlocks(2)), 2);
  Cache(CountedBlocks(1, 900), {0});
  Match(CountedBlocks(4));
  EXPECT_EQ(cache_->EvictSnapshots(3), 3);
  EXPECT_THAT(cache_->Snapshots(kSnapshotsRoot, CountedBlocks(4)), ElementsAre(4, 2));
}

TEST_F(SnapshotsTest, WithTiersTheOrderIsThatOfUse) {
  cache_.reset();
  cache_ = std::make_unique<RadixCache>(
      pool_, kStateTokens, RetentionLimits{.max_snapshot_share = 0.5, .superseded_first = false});
  Listen();
  Cache(CountedBlocks(1, 900), {0});
  Cache(CountedBlocks(2), {1});
  Cache(CountedBlocks(4), {3});
  cache_->EvictSnapshots(3);
  EXPECT_EQ(Match(CountedBlocks(1, 900)), 0);
  EXPECT_THAT(cache_->Snapshots(kSnapshotsRoot, CountedBlocks(4)), ElementsAre(4, 2));
}

constexpr Retention kRetained = {.priority = 50, .ttl = absl::Hours(1)};

TEST_F(SnapshotsTest, ARetainedPrefixKeepsItsSnapshotUnderPressure) {
  Listen();
  Cache(CountedBlocks(6), {1, 3, 5});
  cache_->Retain(kSnapshotsRoot, CountedBlocks(5), kRetained);
  EXPECT_EQ(cache_->retained_block_count(), 4) << "up to the last snapshot in it";
  for (int32_t i = 1; i < 30; ++i) Cache(CountedBlocks(1, 100 * i), {0});
  EXPECT_EQ(cache_->snapshot_count(), 10);
  EXPECT_EQ(cache_->Peek(kSnapshotsRoot, CountedBlocks(6)), 4 * kStateTokens);
  EXPECT_THAT(cache_->Snapshots(kSnapshotsRoot, CountedBlocks(6)), ElementsAre(4))
      << "the one before it is superseded, though it is retained";
  // Nor does a prompt that is computed now, whose snapshots are in use.
  std::vector<BlockLease> jobs;
  for (int32_t i = 0; i < 10; ++i) {
    MakeRoom(4);
    jobs.push_back(*pool_.Acquire(1, BlockUse::kActive));
    cache_->Insert(kSnapshotsRoot, CountedBlocks(1, 5000 + 100 * i), jobs.back());
  }
  EXPECT_EQ(cache_->Peek(kSnapshotsRoot, CountedBlocks(6)), 4 * kStateTokens);
  EXPECT_GT(cache_->snapshot_count(), 10) << "what is in use goes later";
  jobs.clear();
  Cache(CountedBlocks(1, 7000), {0});
  EXPECT_EQ(cache_->snapshot_count(), 10);
  EXPECT_EQ(Match(CountedBlocks(6)), 4);
  Check();
}

TEST_F(SnapshotsTest, OfRetainedSnapshotsThatAreTooManyTheOldestGo) {
  cache_.reset();
  cache_ = std::make_unique<RadixCache>(pool_, kStateTokens,
                                        RetentionLimits{.max_share = 1, .max_snapshot_share = 0});
  Listen();
  for (int32_t i = 0; i < 4; ++i) {
    Cache(CountedBlocks(1, 100 * i), {0});
    cache_->Retain(kSnapshotsRoot, CountedBlocks(1, 100 * i),
                   {.priority = i == 0 ? 80 : 50, .ttl = absl::Hours(1)});
    Check();
  }
  EXPECT_EQ(cache_->snapshot_count(), 2);
  EXPECT_EQ(Match(CountedBlocks(1, 0)), 1) << "of a higher priority";
  EXPECT_EQ(Match(CountedBlocks(1, 100)), 0);
  EXPECT_EQ(Match(CountedBlocks(1, 200)), 0);
  EXPECT_EQ(Match(CountedBlocks(1, 300)), 1);
  EXPECT_EQ(cache_->retained_block_count(), 4) << "their blocks stay";
  // A new one is not cached, where it is not retained itself.
  Cache(CountedBlocks(1, 900), {0});
  Cache(CountedBlocks(1, 950), {0});
  EXPECT_EQ(cache_->snapshot_count(), 2 + 1);
  EXPECT_EQ(Match(CountedBlocks(1, 0)), 1);
  EXPECT_EQ(Match(CountedBlocks(1, 300)), 1);
  EXPECT_EQ(cache_->EvictForSnapshot(3, /*priority=*/49), 3) << "the one that is not retained";
  EXPECT_EQ(cache_->EvictForSnapshot(3, /*priority=*/49), 0);
  EXPECT_EQ(cache_->EvictForSnapshot(3, /*priority=*/50), 3);
}

// Where the share of retained blocks is full, what stays retained ends in a snapshot.
TEST_F(SnapshotsTest, DemotionEndsAtASnapshot) {
  cache_.reset();
  cache_ = std::make_unique<RadixCache>(
      pool_, kStateTokens, RetentionLimits{.max_share = 0.1, .max_snapshot_share = 0.9});
  Listen();
  ASSERT_EQ(cache_->retained_limit(), 6);
  Cache(CountedBlocks(6), {1, 5});
  cache_->Retain(kSnapshotsRoot, CountedBlocks(6), kRetained);
  EXPECT_EQ(cache_->retained_block_count(), 6);
  Cache(CountedBlocks(3, 100), {0, 2});
  cache_->Retain(kSnapshotsRoot, CountedBlocks(3, 100), kRetained);
  EXPECT_EQ(cache_->retained_block_count(), 2 + 3);
  Check();
  cache_->EvictSnapshots(2 * 3, /*most_priority=*/0);
  EXPECT_EQ(cache_->Peek(kSnapshotsRoot, CountedBlocks(6)), 2 * kStateTokens);
  EXPECT_EQ(cache_->Peek(kSnapshotsRoot, CountedBlocks(3, 100)), 3 * kStateTokens);
}

TEST_F(SnapshotsTest, AChunkLeavesItsStateInTheSpare) {
  BlockLease job = *pool_.Acquire(10, BlockUse::kActive, 8, 10);
  EXPECT_TRUE(HasSpare(0, kStateTokens, job));
  PlaceStates(pool_, cache_.get(), 0, 3 * kStateTokens, kStateTokens, {}, 0, job);
  EXPECT_THAT(WindowsOf(job), ElementsAre(2, 8));
  PlaceStates(pool_, cache_.get(), 3 * kStateTokens, 6 * kStateTokens, kStateTokens, {4}, 0, job);
  EXPECT_THAT(WindowsOf(job), ElementsAre(2, 4, 5)) << "and a snapshot, for there is room";
  job.DropWindows(5);
  EXPECT_FALSE(HasSpare(6 * kStateTokens, kStateTokens, job));
  EXPECT_TRUE(TakeSpare(pool_, cache_.get(), 6 * kStateTokens, kStateTokens, job));
  EXPECT_THAT(WindowsOf(job), ElementsAre(5, 9));
  // The last chunk ends where the spare lies, here with a partial block.
  PlaceStates(pool_, cache_.get(), 6 * kStateTokens, 10 * kStateTokens - 1, kStateTokens, {8}, 0,
              job);
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
  PlaceStates(pool_, cache_.get(), 0, 4 * kStateTokens, kStateTokens, {2}, 0, job);
  EXPECT_THAT(WindowsOf(job), ElementsAre(2, 3));
  EXPECT_EQ(Match(CountedBlocks(2)), 0) << "its snapshot has made room";
  EXPECT_LE(cache_->block_count(), 2);
}

// Random prompts against a list of what was cached: a match ends where a snapshot was left, and
// what the listener has heard is what the cache has.
class SnapshotsPropertyTest : public SnapshotsTest, public ::testing::WithParamInterface<int> {
 protected:
  static void TearDownTestSuite() { EXPECT_GT(superseded_ones_, 100); }
  static inline int superseded_ones_ = 0;
};

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
                {matched + below(missing)}, 0, job);
    cache_->Insert(kSnapshotsRoot, tokens, job);
    // What it leaves is there, and more if others had it, perhaps one that is superseded and goes.
    if (cache_->snapshot_count() < 10) {
      EXPECT_EQ(cache_->Peek(kSnapshotsRoot, tokens), blocks * kStateTokens);
    }
    const int superseded = job.window_count();  // at most
    job.Release();
    if (below(5) == 0) cache_->EvictSnapshots(3 * below(4));
    if (below(9) == 0) cache_->Evict(below(20));
    Check();
    EXPECT_LE(cache_->snapshot_count(), 10 + superseded) << "which were in use";
  }
}

// Prefixes as whole blocks, one number each.
using Path = std::vector<int32_t>;

// What the cache has, by its keys, and where paths have parted.
class SupersededModel {
 public:
  explicit SupersededModel(const RadixCache& cache) : cache_(cache) {}
  void Add(const Path& path) {
    for (size_t end = 1; end <= path.size(); ++end) {
      const Path prefix = Front(path, end);
      const std::vector<PrefixKey> keys =
          PrefixKeys(kSnapshotsRoot, TokensOf(prefix), kStateTokens);
      key_of_[prefix] = keys.back();
    }
  }
  // A use that leaves the path at a snapshot, or ends there, parts it.
  void Matched(const Path& path) {
    size_t reached = 0;
    while (reached < path.size() && cached_.contains(Front(path, reached + 1))) ++reached;
    const Path end = Front(path, reached);
    if (snapshots_.contains(end) && !NextOf(end).empty()) parted_.insert(end);
  }
  static Path Front(const Path& path, size_t blocks) {
    return {path.begin(), path.begin() + static_cast<std::ptrdiff_t>(blocks)};
  }
  static Tokens TokensOf(const Path& path) {
    Tokens tokens;
    for (const int32_t block : path) tokens.insert(tokens.end(), kStateTokens, block);
    return tokens;
  }
  void Update() {
    const std::vector<PrefixKey> keys = cache_.Keys();
    const std::set<PrefixKey> there(keys.begin(), keys.end());
    cached_.clear();
    snapshots_.clear();
    for (const auto& [path, key] : key_of_) {
      if (!there.contains(key)) {
        parted_.erase(path);
        continue;
      }
      cached_.insert(path);
      if (there.contains(SnapshotKey(key))) snapshots_.insert(path);
    }
    for (const Path& path : cached_) {
      if (NextOf(path).size() > 1) parted_.insert(path);
    }
  }
  // The next snapshot down the path is the only way on.
  bool IsSuperseded(Path path) const {
    while (true) {
      const std::vector<Path> next = NextOf(path);
      if (next.size() != 1 || parted_.contains(path)) return false;
      path = next.front();
      if (snapshots_.contains(path)) return true;
    }
  }
  const std::set<Path>& snapshots() const { return snapshots_; }

 private:
  std::vector<Path> NextOf(const Path& path) const {
    std::vector<Path> next;
    for (const Path& other : cached_) {
      if (other.size() == path.size() + 1 && std::equal(path.begin(), path.end(), other.begin())) {
        next.push_back(other);
      }
    }
    return next;
  }

  const RadixCache& cache_;
  std::map<Path, PrefixKey> key_of_;
  std::set<Path> cached_, snapshots_, parted_;
};

// While a superseded snapshot is there, no other one is evicted.
TEST_P(SnapshotsPropertyTest, SupersededOnesGoFirst) {
  std::mt19937 random(static_cast<uint32_t>(testing::TestSeed()) * 31 + GetParam());
  const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
  cache_.reset();
  cache_ =
      std::make_unique<RadixCache>(pool_, kStateTokens, RetentionLimits{.max_snapshot_share = 0.9});
  Listen();
  SupersededModel model(*cache_);
  int superseded_ones = 0;
  for (int round = 0; round < 40; ++round) {
    Path path;
    for (int i = 1 + below(7); i > 0; --i) path.push_back(below(4) == 0 ? 1 : 0);
    const Tokens tokens = SupersededModel::TokensOf(path);
    if (below(2) == 0) {
      model.Update();
      model.Matched(path);
      Match(tokens);
    }
    std::vector<int> snapshots;
    for (int block = 0; block < static_cast<int>(path.size()); ++block) {
      if (below(3) == 0) snapshots.push_back(block);
    }
    // What was evicted and comes back has not parted.
    MakeRoom(static_cast<int>(kStates.PagesOf(static_cast<int64_t>(path.size()),
                                              static_cast<int64_t>(snapshots.size()))));
    model.Update();
    Cache(tokens, snapshots);
    model.Add(path);
    model.Update();
    if (below(3) > 0) continue;
    const std::set<Path> before = model.snapshots();
    std::set<Path> superseded;
    for (const Path& one : before) {
      if (model.IsSuperseded(one)) superseded.insert(one);
    }
    superseded_ones += static_cast<int>(superseded.size());
    cache_->EvictSnapshots(3);
    Check();
    model.Update();
    for (const Path& one : before) {
      if (!model.snapshots().contains(one) && !superseded.empty()) {
        EXPECT_TRUE(superseded.contains(one)) << ::testing::PrintToString(one);
      }
    }
  }
  superseded_ones_ += superseded_ones;
}

INSTANTIATE_TEST_SUITE_P(Seeds, SnapshotsPropertyTest, ::testing::Range(0, 100));

}  // namespace
}  // namespace baton::kv
