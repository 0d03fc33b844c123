// Window pages of blocks: the pool's references, and the cache that keeps what prompts need.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "common/kv/radix_cache.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/seed.h"

namespace baton::kv {
namespace {

using ::testing::ElementsAre;

using Tokens = std::vector<int32_t>;
constexpr PrefixKey kWindowsRoot = 17;
constexpr int kNoLimit = RadixCache::kNoLimit;

TEST(WindowPagesTest, ABlockHasAPageOfEachTable) {
  BlockPool pool(12, {.full_pages = 1, .window_pages = 2, .window_blocks = 1});
  BlockLease all = *pool.Acquire(2, BlockUse::kActive);
  EXPECT_EQ(pool.counts().active, 6);
  EXPECT_THAT(all.PagesOf(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(all.Tables(0, 2), ElementsAre(0, 3, 1, 4, 2, 5));
  BlockLease late = *pool.Acquire(3, BlockUse::kActive, 2, 3);
  EXPECT_EQ(pool.counts().free, 12 - 6 - 5);
  EXPECT_THAT(late.PagesOf(0), ElementsAre(6, -1, -1));
  EXPECT_EQ(late.page_count(), 5);
  EXPECT_FALSE(pool.Acquire(1, BlockUse::kActive).ok()) << "of 3 pages, 1 is free";
  BlockLease bare = *pool.Acquire(1, BlockUse::kActive, 0, 0);
  EXPECT_EQ(pool.counts().free, 0);
  pool.CheckIntegrity();
}

TEST(WindowPagesTest, AreFreedWithTheirLastReference) {
  BlockPool pool(12, {.full_pages = 1, .window_pages = 2, .window_blocks = 1});
  BlockLease lease = *pool.Acquire(3, BlockUse::kActive);
  BlockLease shared = lease.Share(0, 3, BlockUse::kHeld, /*window_begin=*/2);
  EXPECT_FALSE(shared.has_window(1));
  EXPECT_THAT(shared.PagesOf(1), ElementsAre(lease.PagesOf(1)[0], -1, -1));
  lease.DropWindows(3);
  EXPECT_EQ(pool.counts().active, 3);
  EXPECT_EQ(pool.counts().held, 2) << "the window pages of the last block";
  EXPECT_EQ(pool.WindowRefCount(lease.ids()[1]), 0);
  shared.Release();
  EXPECT_EQ(pool.counts().free, 9);
  EXPECT_EQ(lease.LackingWindows(0, 3), 3);
  EXPECT_EQ(lease.AddWindows(1, 3), 3);
  EXPECT_EQ(lease.LackingWindows(0, 3), 1);
  BlockLease rest = lease.SplitAt(2);
  EXPECT_TRUE(rest.has_window(0));
  lease.Append(std::move(rest));
  EXPECT_TRUE(lease.has_window(2));
  pool.CheckIntegrity();
  lease.Release();
  EXPECT_EQ(pool.counts().free, pool.counts().total);
}

TEST(WindowPagesTest, AreAddedAsFarAsPagesAreFree) {
  BlockPool pool(7, {.full_pages = 1, .window_pages = 2, .window_blocks = 1});
  BlockLease lease = *pool.Acquire(4, BlockUse::kActive, 0, 0);
  EXPECT_EQ(lease.AddWindows(0, 4), 1);
  lease.DropWindows(1);
  EXPECT_EQ(lease.AddWindows(1, 4), 2);
}

TEST(WindowPagesTest, WithoutThemABlockIsItsPage) {
  BlockPool pool(3);
  BlockLease lease = *pool.Acquire(3, BlockUse::kActive);
  EXPECT_EQ(lease.Tables(0, 3), lease.ids());
  lease.DropWindows(3);
  EXPECT_EQ(lease.page_count(), 3);
  EXPECT_EQ(lease.AddWindows(0, 3), 3);
}

// Blocks of two tokens, of which the last two need window pages; three pages a block.
class RadixWindowsTest : public ::testing::Test {
 protected:
  ~RadixWindowsTest() override {
    Check();
    cache_.reset();
    EXPECT_EQ(pool_.counts().free, pool_.counts().total);
  }
  void Check() {
    pool_.CheckIntegrity();
    cache_->CheckIntegrity();
  }
  // As a prompt that is computed at once leaves it.
  std::vector<BlockId> Cache(const Tokens& tokens, bool all_windows = false) {
    const int blocks = static_cast<int>(tokens.size()) / 2;
    BlockLease lease = *pool_.Acquire(blocks, BlockUse::kActive);
    if (!all_windows) lease.DropWindows(pool_.shape().FirstWindowBlock(blocks));
    cache_->Insert(kWindowsRoot, tokens, lease);
    Check();
    return lease.ids();
  }
  int Match(const Tokens& tokens) {
    const int peeked = cache_->Peek(kWindowsRoot, tokens);
    const kv::Match match = cache_->MatchPrefix(kWindowsRoot, tokens, kNoLimit);
    EXPECT_EQ(match.tokens, peeked);
    const int first = pool_.shape().FirstWindowBlock(match.blocks.size());
    EXPECT_EQ(match.blocks.LackingWindows(first, match.blocks.size()), 0);
    EXPECT_EQ(match.blocks.LackingWindows(0, first), first) << "window pages that are not needed";
    Check();
    return match.tokens;
  }

  BlockPool pool_{60, {.full_pages = 1, .window_pages = 2, .window_blocks = 2}};
  std::unique_ptr<RadixCache> cache_ = std::make_unique<RadixCache>(pool_, 2);
};

const Tokens kSix = {1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6};

TEST_F(RadixWindowsTest, APrefixIsUsableWithTheWindowPagesBeforeItsEnd) {
  Cache(kSix);
  EXPECT_EQ(Match(kSix), 12);
  EXPECT_EQ(Match({1, 1, 2, 2, 3, 3, 4, 4, 9, 9}), 0) << "4 blocks, without those of the last two";
  EXPECT_EQ(Match({1, 1, 2, 2, 3, 3, 4, 4, 5, 5}), 0);
}

TEST_F(RadixWindowsTest, AShortPrefixNeedsAllOfItsWindowPages) {
  Cache(kSix, /*all_windows=*/true);
  EXPECT_EQ(Match({1, 1, 9, 9}), 2);
  EXPECT_EQ(Match({1, 1, 2, 2, 9, 9}), 4);
}

TEST_F(RadixWindowsTest, TheSecondPromptThatLeavesAPathBringsItsWindowPages) {
  Cache(kSix);
  const Tokens other = {1, 1, 2, 2, 3, 3, 4, 4, 9, 9, 9, 9};
  EXPECT_EQ(Match(other), 0);
  Cache(other, /*all_windows=*/true);
  EXPECT_EQ(cache_->block_count(), 8) << "the tree keeps one block of the same tokens";
  EXPECT_EQ(Match({1, 1, 2, 2, 3, 3, 4, 4, 8, 8}), 8);
  EXPECT_EQ(Match(kSix), 12);
}

TEST_F(RadixWindowsTest, EvictionTakesInsidesThenEndsThenTails) {
  Cache(kSix, /*all_windows=*/true);
  EXPECT_EQ(cache_->evictable_page_count(), 18);
  EXPECT_EQ(cache_->Evict(8), 8);
  EXPECT_EQ(cache_->block_count(), 6) << "the window pages of the first four blocks";
  EXPECT_EQ(Match(kSix), 12);
  // Without its last block no prefix is usable: all of it goes.
  EXPECT_EQ(cache_->Evict(1), 10);
  EXPECT_EQ(cache_->block_count(), 0);
}

TEST_F(RadixWindowsTest, WhatIsLeftOfAPathIsUsable) {
  Cache({1, 1, 2, 2, 3, 3});
  Cache({1, 1, 2, 2, 3, 3, 9, 9}, /*all_windows=*/true);
  Cache({1, 1, 2, 2, 3, 3, 8, 8}, /*all_windows=*/true);
  const int before = cache_->block_count();
  EXPECT_EQ(before, 5);
  // The insides first, then the ends of both paths, least recently used first.
  while (cache_->block_count() == before) cache_->Evict(1);
  EXPECT_EQ(Match({1, 1, 2, 2, 3, 3, 8, 8}), 8);
  EXPECT_EQ(Match({1, 1, 2, 2, 3, 3, 7, 7}), 6);
}

TEST_F(RadixWindowsTest, WindowPagesOfLockedBlocksCanBeEvicted) {
  Cache(kSix, /*all_windows=*/true);
  kv::Match match = cache_->MatchPrefix(kWindowsRoot, kSix, kNoLimit);
  EXPECT_EQ(cache_->evictable_page_count(), 8) << "not those of the match's last two";
  match.blocks.DropWindows(6);
  EXPECT_EQ(cache_->evictable_page_count(), 12);
  EXPECT_EQ(cache_->Evict(100), 12);
  EXPECT_EQ(cache_->block_count(), 6);
  EXPECT_EQ(cache_->Peek(kWindowsRoot, kSix), 0);
}

TEST_F(RadixWindowsTest, LocksWindowPagesFromABlockOn) {
  Cache(kSix, /*all_windows=*/true);
  EXPECT_TRUE(cache_->HasWindows(kWindowsRoot, kSix, 6));
  BlockLease lease = cache_->Lock(kWindowsRoot, kSix, 1);
  EXPECT_EQ(lease.LackingWindows(0, 6), 1);
  EXPECT_EQ(cache_->evictable_page_count(), 2);
  cache_->Evict(2);
  EXPECT_TRUE(cache_->HasWindows(kWindowsRoot, kSix, 5));
  EXPECT_FALSE(cache_->HasWindows(kWindowsRoot, kSix, 6));
  EXPECT_FALSE(cache_->HasWindows(kWindowsRoot, {1, 1, 9, 9}, 1)) << "not cached";
}

// Nodes of one last use that were allocated in any order of their addresses.
TEST(RadixWindowsOrderTest, EqualHistoriesEvictEqualPages) {
  std::mt19937 random(testing::TestSeed(1));
  std::vector<std::unique_ptr<char[]>> elsewhere(2'000);
  std::vector<bool> expected;
  for (int history = 0; history < 100; ++history) {
    BlockPool pool(90, {.full_pages = 1, .window_pages = 2, .window_blocks = 1});
    RadixCache cache(pool, 1);
    const Tokens path = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const auto insert = [&](Tokens tokens) {
      for (auto& memory : elsewhere) {
        memory.reset(random() % 2 ? new char[random() % 1'000] : nullptr);
      }
      cache.Insert(kWindowsRoot, tokens,
                   *pool.Acquire(static_cast<int>(tokens.size()), BlockUse::kActive));
    };
    for (const size_t parting : {8, 2, 6, 4}) {
      Tokens other(path.begin(), path.begin() + parting);
      other.push_back(99);
      insert(other);
    }
    insert(path);
    std::vector<bool> windows;
    for (int evictions = 0; evictions < 10; ++evictions) {
      cache.Evict(2);
      for (size_t length = 1; length <= path.size(); ++length) {
        windows.push_back(
            cache.HasWindows(kWindowsRoot, absl::MakeConstSpan(path).first(length), 1));
      }
    }
    if (history == 0) expected = windows;
    ASSERT_EQ(windows, expected) << "history " << history;
  }
}

// Prompts that are computed in chunks, slide, are cached, matched and evicted, in a pool that is
// often full. What each page holds is written down, and compared at every use.
class RadixWindowsPropertyTest : public ::testing::TestWithParam<int> {
 protected:
  struct Running {
    Tokens tokens;
    BlockLease blocks;
    int computed = 0;  // tokens
  };

  int Below(int n) { return static_cast<int>(random_() % n); }
  Tokens AnyPrompt() {
    Tokens tokens(1 + Below(12 * block_tokens_));
    const int alphabet = 1 + Below(3);
    for (int32_t& token : tokens) token = Below(6) == 0 ? Below(alphabet) : 0;
    return tokens;
  }
  bool MakeFree(int pages) {
    const int lacking = pages - pool_->counts().free;
    if (lacking <= 0) return true;
    if (cache_->evictable_page_count() < lacking) return false;
    EXPECT_GE(cache_->Evict(lacking), lacking);
    return true;
  }
  // The prefix that a page's table has KV of.
  PrefixKey KeyAt(const Tokens& tokens, int block) {
    return PrefixKeys(kWindowsRoot, tokens, block_tokens_)[static_cast<size_t>(block)];
  }
  void Write(const Running& of, int block) {
    for (const int32_t page : of.blocks.PagesOf(block)) {
      ASSERT_GE(page, 0) << "a block that is computed lacks a page";
      held_[page] = KeyAt(of.tokens, block);
    }
  }
  // What the next token of a sequence with so many whole blocks reads.
  void Read(const Running& of, int blocks) {
    const BlockShape& shape = pool_->shape();
    for (int i = 0; i < blocks; ++i) {
      const std::vector<int32_t> pages = of.blocks.PagesOf(i);
      for (int table = 0; table < shape.pages(); ++table) {
        if (table >= shape.full_pages && i < shape.FirstWindowBlock(blocks)) continue;
        ASSERT_GE(pages[table], 0) << "block " << i << " of " << blocks;
        ASSERT_EQ(held_[pages[table]], KeyAt(of.tokens, i)) << "another prompt's KV";
      }
    }
  }
  void Start() {
    Running next;
    next.tokens = AnyPrompt();
    const int peeked = cache_->Peek(kWindowsRoot, next.tokens);
    kv::Match match = cache_->MatchPrefix(kWindowsRoot, next.tokens, kNoLimit);
    ASSERT_EQ(match.tokens, peeked);
    next.blocks = std::move(match.blocks);
    next.computed = match.tokens;
    const int missing = static_cast<int>(next.tokens.size()) / block_tokens_ - next.blocks.size();
    if (!MakeFree(missing * pool_->shape().full_pages)) return;
    next.blocks.Append(*pool_->Acquire(missing, BlockUse::kActive, 0, 0));
    running_.push_back(std::move(next));
  }
  // Computes some blocks of it: as many as get window pages.
  void Advance(Running& of) {
    const int first = of.computed / block_tokens_;
    int end = std::min(of.blocks.size(), first + 1 + Below(4));
    while (end > first &&
           !MakeFree(of.blocks.LackingWindows(first, end) * pool_->shape().window_pages)) {
      --end;
    }
    ASSERT_EQ(of.blocks.AddWindows(first, end), end);
    Read(of, first);
    for (int i = first; i < end; ++i) Write(of, i);
    of.computed = end * block_tokens_;
    if (Below(4) > 0) Insert(of);
    of.blocks.DropWindows(pool_->shape().FirstWindowBlock(end));
  }
  void Insert(const Running& of) {
    cache_->Insert(kWindowsRoot, absl::MakeConstSpan(of.tokens).first(of.computed), of.blocks);
  }
  void Step() {
    const int pick = running_.empty() ? 0 : Below(static_cast<int>(running_.size()));
    switch (Below(running_.empty() ? 3 : 10)) {
      case 0:
        return Start();
      case 1: {
        const int wanted = Below(8);
        const int evictable = cache_->evictable_page_count();
        const int free = pool_->counts().free;
        const int freed = cache_->Evict(wanted);
        EXPECT_GE(freed, std::min(wanted, evictable));
        EXPECT_LE(freed, evictable);
        EXPECT_EQ(pool_->counts().free, free + freed);
        return;
      }
      case 2: {
        const Tokens prompt = AnyPrompt();
        cache_->Retain(kWindowsRoot, prompt, {Below(3), absl::Hours(1)});
        return;
      }
      case 3:
      case 4: {
        Running ended = std::move(running_[pick]);
        running_.erase(running_.begin() + pick);
        if (Below(4) > 0) Insert(ended);
        return;
      }
      case 5:
        running_[pick].blocks.SetUse(static_cast<BlockUse>(Below(2)));
        running_[pick].blocks.SetUse(BlockUse::kActive);
        return;
      default:
        return Advance(running_[pick]);
    }
  }

  std::mt19937 random_{testing::TestSeed(static_cast<uint32_t>(GetParam()))};
  int block_tokens_ = 1;
  testing::FakeClock clock_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<RadixCache> cache_;
  std::map<int32_t, PrefixKey> held_;
  std::vector<Running> running_;
};

TEST_P(RadixWindowsPropertyTest, EveryMatchReadsWhatItsPromptWrote) {
  block_tokens_ = 1 + Below(3);
  const BlockShape shape = {1 + Below(2), 1 + Below(3), 1 + Below(4)};
  pool_ = std::make_unique<BlockPool>(10 + Below(120), shape);
  cache_ =
      std::make_unique<RadixCache>(*pool_, block_tokens_, RetentionLimits{0.25 * Below(3), clock_});
  for (int step = 0; step < 300; ++step) {
    Step();
    pool_->CheckIntegrity();
    cache_->CheckIntegrity();
    ASSERT_FALSE(HasFailure()) << "step " << step;
  }
  running_.clear();
  EXPECT_EQ(cache_->evictable_page_count(), pool_->counts().cached);
  cache_->Clear();
  cache_->CheckIntegrity();
  EXPECT_EQ(pool_->counts().free, pool_->counts().total) << "leaked";
}

INSTANTIATE_TEST_SUITE_P(Seeds, RadixWindowsPropertyTest, ::testing::Range(0, 300));

}  // namespace
}  // namespace baton::kv
