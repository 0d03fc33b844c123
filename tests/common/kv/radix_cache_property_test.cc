// RadixCache against RadixModel: every sequence of a few operations, and long random ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <utility>

#include "common/kv/radix_cache.h"
#include "tests/common/kv/radix_model.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/seed.h"

namespace baton::kv {
namespace {

using Tokens = RadixModel::Tokens;

// Cache and model side by side. Every operation is done on both and compared.
class Twin {
 public:
  Twin(int block_count, int block_tokens, double max_retained_share = 0.25)
      : pool_(block_count),
        cache_(pool_, block_tokens, {max_retained_share, clock_}),
        model_(pool_, block_tokens, {max_retained_share, clock_}),
        block_tokens_(block_tokens) {
    cache_.SetListener([this](CacheChange change) {
      if (change.added) {
        listened_.insert(change.key);
      } else {
        ASSERT_EQ(listened_.erase(change.key), 1u) << "removed, but never added";
        removed_.push_back(change.key);
      }
    });
  }

  BlockPool& pool() { return pool_; }

  BlockLease Match(PrefixKey root, const Tokens& tokens, int max_tokens) {
    EXPECT_EQ(cache_.Peek(root, tokens, max_tokens),
              block_tokens_ * static_cast<int>(model_.Peek(root, tokens, max_tokens).size()));
    kv::Match match = cache_.MatchPrefix(root, tokens, max_tokens);
    EXPECT_EQ(match.blocks.ids(), model_.Match(root, tokens, max_tokens));
    EXPECT_EQ(match.tokens, match.blocks.size() * block_tokens_);
    EXPECT_LE(match.tokens, max_tokens);
    return std::move(match.blocks);
  }

  void Insert(PrefixKey root, const Tokens& tokens, const BlockLease& blocks) {
    cache_.Insert(root, tokens, blocks);
    model_.Insert(root, tokens, blocks.ids());
  }

  void Retain(PrefixKey root, const Tokens& tokens, const Retention& retention) {
    cache_.Retain(root, tokens, retention);
    model_.Retain(root, tokens, retention);
  }

  void Advance(absl::Duration by) { clock_.Advance(by); }

  void Evict(int count) {
    const std::vector<PrefixKey> expected = model_.Evict(count);
    const int free_before = pool_.counts().free;
    removed_.clear();
    EXPECT_EQ(cache_.Evict(count), static_cast<int>(expected.size()));
    EXPECT_EQ(removed_, expected) << "evicted in another order";
    EXPECT_EQ(pool_.counts().free, free_before + static_cast<int>(expected.size()));
  }

  // What a prefill does: lock what is there, make room, compute the rest, donate. Returns the
  // prompt's lease, or nothing if there is no room.
  BlockLease Run(PrefixKey root, const Tokens& tokens, int max_tokens) {
    BlockLease lease = Match(root, tokens, max_tokens);
    const int needed =
        static_cast<int>((tokens.size() + block_tokens_ - 1) / block_tokens_) - lease.size();
    if (needed > pool_.counts().free) Evict(needed - pool_.counts().free);
    absl::StatusOr<BlockLease> rest = pool_.Acquire(needed, BlockUse::kActive);
    if (!rest.ok()) return BlockLease();
    lease.Append(std::move(*rest));
    Insert(root, tokens, lease);
    return lease;
  }

  void ExpectEqual() {
    pool_.CheckIntegrity();
    cache_.CheckIntegrity();
    ASSERT_EQ(cache_.block_count(), model_.block_count());
    ASSERT_EQ(cache_.evictable_page_count(), model_.EvictableBlockCount());
    ASSERT_EQ(cache_.retained_block_count(), model_.retained_block_count());
    ASSERT_LE(cache_.retained_block_count(), model_.retained_limit());
    const std::vector<PrefixKey> keys = cache_.Keys();
    ASSERT_EQ(std::multiset<PrefixKey>(keys.begin(), keys.end()), model_.Keys());
    ASSERT_EQ(std::multiset<PrefixKey>(listened_.begin(), listened_.end()), model_.Keys());
  }

 private:
  testing::FakeClock clock_;
  BlockPool pool_;
  RadixCache cache_;
  RadixModel model_;
  const int block_tokens_;
  std::set<PrefixKey> listened_;
  std::vector<PrefixKey> removed_;
};

// All sequences of kLength operations on prompts of at most three blocks in a pool of four, so that
// every split, extension, lock and eviction of a small tree occurs.
TEST(RadixCacheExhaustiveTest, AllShortHistories) {
  const std::vector<Tokens> prompts = {{0}, {0, 0}, {0, 1}, {0, 1, 0}, {1, 0}};
  constexpr int kLength = 5;
  const int prompt_count = static_cast<int>(prompts.size());
  // Run and keep, run and drop, release, evict, and retain the two longest.
  const int operation_count = 2 * prompt_count + 4;
  int histories = 1;
  for (int i = 0; i < kLength; ++i) histories *= operation_count;

  for (int history = 0; history < histories; ++history) {
    Twin twin(4, 1, 0.5);
    std::vector<BlockLease> kept;
    for (int step = 0, code = history; step < kLength; ++step, code /= operation_count) {
      const int operation = code % operation_count;
      if (operation < prompt_count) {
        kept.push_back(twin.Run(1, prompts[operation], RadixCache::kNoLimit));
      } else if (operation < 2 * prompt_count) {
        twin.Run(1, prompts[operation - prompt_count], RadixCache::kNoLimit);
      } else if (operation == 2 * prompt_count) {
        if (!kept.empty()) kept.erase(kept.begin());
      } else if (operation == 2 * prompt_count + 1) {
        twin.Evict(1);
      } else {
        const int which = operation - 2 * prompt_count - 2;
        twin.Retain(1, prompts[3 + which], {1 + which, absl::Seconds(1)});
      }
      twin.ExpectEqual();
    }
    ASSERT_FALSE(::testing::Test::HasFailure()) << "history " << history;
  }
}

class RadixCachePropertyTest : public ::testing::TestWithParam<int> {
 protected:
  int Below(int n) { return static_cast<int>(random_() % n); }

  // Few tokens and many shared beginnings, unaligned lengths.
  Tokens AnyPrompt(int block_tokens) {
    Tokens tokens(Below(8 * block_tokens + 1));
    const int alphabet = 1 + Below(3);
    for (int32_t& token : tokens) token = Below(4) == 0 ? Below(alphabet) : 0;
    return tokens;
  }

  void Step(Twin& twin, int block_tokens) {
    const PrefixKey root = 1 + Below(2);
    const Tokens prompt = AnyPrompt(block_tokens);
    const int limit = Below(2) == 0 ? RadixCache::kNoLimit : Below(8 * block_tokens + 1);
    const int pick = leases_.empty() ? 0 : Below(static_cast<int>(leases_.size()));
    switch (Below(leases_.empty() ? 8 : 13) - 3) {
      case -3:
      case -2:
        twin.Retain(root, prompt, {Below(4), absl::Seconds(1 + Below(20))});
        return;
      case -1:
        twin.Advance(absl::Seconds(Below(12)));
        return;
      case 0:
        twin.Run(root, prompt, limit);
        return;
      case 1:  // keeps its blocks; with a limit, some of them duplicate the tree's
        leases_.push_back(twin.Run(root, prompt, limit));
        return;
      case 2:
        leases_.push_back(twin.Match(root, prompt, limit));
        return;
      case 3:
        twin.Evict(Below(6));
        return;
      case 4:
        if (Below(8) == 0) twin.Evict(1000);
        return;
      case 5:  // drops the front or the back of a lease: locks need not begin at the root
        if (Below(2) == 0) {
          leases_[pick] = leases_[pick].SplitAt(Below(leases_[pick].size() + 1));
        } else {
          leases_[pick].SplitAt(Below(leases_[pick].size() + 1)).Release();
        }
        return;
      case 6:
        leases_[pick].SetUse(static_cast<BlockUse>(Below(3)));
        return;
      case 7: {
        const int begin = Below(leases_[pick].size() + 1);
        leases_.push_back(
            leases_[pick].Share(begin, leases_[pick].size(), static_cast<BlockUse>(Below(3))));
        return;
      }
      default:
        leases_.erase(leases_.begin() + pick);
    }
  }

  std::mt19937 random_{testing::TestSeed(static_cast<uint32_t>(GetParam()))};
  std::vector<BlockLease> leases_;
};

TEST_P(RadixCachePropertyTest, AgreesWithAMapOfPrefixes) {
  const int block_tokens = 1 + Below(4);
  Twin twin(4 + Below(40), block_tokens, 0.25 * Below(4));
  for (int step = 0; step < 200; ++step) {
    Step(twin, block_tokens);
    twin.ExpectEqual();
    ASSERT_FALSE(HasFailure()) << "step " << step;
  }
  leases_.clear();
  twin.ExpectEqual();
  twin.Evict(1000);
  twin.ExpectEqual();
  EXPECT_EQ(twin.pool().counts().free, twin.pool().counts().total) << "leaked";
}

INSTANTIATE_TEST_SUITE_P(Seeds, RadixCachePropertyTest, ::testing::Range(0, 300));

}  // namespace
}  // namespace baton::kv
