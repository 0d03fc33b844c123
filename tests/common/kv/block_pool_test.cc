#include "common/kv/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <utility>

#include "common/base/error.h"
#include "tests/testing/seed.h"

namespace baton::kv {
namespace {

using ::testing::ElementsAre;

void ExpectCounts(const BlockPool& pool, int free, int active, int cached, int held) {
  pool.CheckIntegrity();
  const BlockCounts& counts = pool.counts();
  EXPECT_EQ(counts.free, free);
  EXPECT_EQ(counts.active, active);
  EXPECT_EQ(counts.cached, cached);
  EXPECT_EQ(counts.held, held);
}

TEST(BlockPoolTest, AcquireAndRelease) {
  BlockPool pool(3);
  ExpectCounts(pool, 3, 0, 0, 0);
  {
    BlockLease lease = *pool.Acquire(2, BlockUse::kHeld);
    EXPECT_EQ(lease.size(), 2);
    EXPECT_EQ(lease.use(), BlockUse::kHeld);
    ExpectCounts(pool, 1, 0, 0, 2);
  }
  ExpectCounts(pool, 3, 0, 0, 0);
}

TEST(BlockPoolTest, ExhaustedTakesNothing) {
  BlockPool pool(3);
  BlockLease two = *pool.Acquire(2, BlockUse::kActive);
  const absl::StatusOr<BlockLease> more = pool.Acquire(2, BlockUse::kActive);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(more.status()), "KV_BLOCKS_EXHAUSTED");
  EXPECT_EQ(more.status().message(), "KV pool: 2 blocks wanted, 1 of 3 free");
  ExpectCounts(pool, 1, 2, 0, 0);
  EXPECT_TRUE(pool.Acquire(0, BlockUse::kActive)->empty());
  EXPECT_TRUE(BlockPool(0).Acquire(0, BlockUse::kActive)->empty());
}

TEST(BlockPoolTest, TheBlockFreedLastIsHandedOutFirst) {
  BlockPool pool(6);
  BlockLease a = *pool.Acquire(3, BlockUse::kActive);
  EXPECT_THAT(a.ids(), ElementsAre(0, 1, 2));
  BlockLease b = *pool.Acquire(2, BlockUse::kActive);
  EXPECT_THAT(b.ids(), ElementsAre(3, 4));
  a.Release();
  b.Release();
  EXPECT_THAT(pool.Acquire(6, BlockUse::kActive)->ids(), ElementsAre(3, 4, 0, 1, 2, 5));
}

TEST(BlockPoolTest, ABlockCountsUnderItsFirstUse) {
  BlockPool pool(1);
  BlockLease cached = *pool.Acquire(1, BlockUse::kCached);
  ExpectCounts(pool, 0, 0, 1, 0);
  BlockLease held = cached.Share(0, 1, BlockUse::kHeld);
  ExpectCounts(pool, 0, 0, 0, 1);
  BlockLease active = cached.Share(0, 1, BlockUse::kActive);
  ExpectCounts(pool, 0, 1, 0, 0);
  EXPECT_EQ(pool.RefCount(0), 3);
  active.SetUse(BlockUse::kCached);
  ExpectCounts(pool, 0, 0, 0, 1);
  held.Release();
  ExpectCounts(pool, 0, 0, 1, 0);
  cached.Release();
  active.Release();
  ExpectCounts(pool, 1, 0, 0, 0);
}

TEST(BlockPoolTest, ShareSplitAppend) {
  BlockPool pool(5);
  BlockLease lease = *pool.Acquire(5, BlockUse::kActive);
  BlockLease middle = lease.Share(1, 4, BlockUse::kActive);
  EXPECT_THAT(middle.ids(), ElementsAre(1, 2, 3));
  BlockLease rest = lease.SplitAt(2);
  EXPECT_THAT(lease.ids(), ElementsAre(0, 1));
  EXPECT_THAT(rest.ids(), ElementsAre(2, 3, 4));
  ExpectCounts(pool, 0, 5, 0, 0);
  lease.Append(std::move(middle));
  EXPECT_THAT(lease.ids(), ElementsAre(0, 1, 1, 2, 3));
  EXPECT_EQ(pool.RefCount(1), 2);
  rest.Release();
  ExpectCounts(pool, 1, 4, 0, 0);

  EXPECT_TRUE(lease.SplitAt(5).empty());
  EXPECT_TRUE(lease.Share(2, 2, BlockUse::kHeld).empty());
  BlockLease all = lease.SplitAt(0);
  EXPECT_TRUE(lease.empty());
  pool.CheckIntegrity();
  lease.Append(std::move(all));
  EXPECT_EQ(lease.size(), 5);
  pool.CheckIntegrity();
}

TEST(BlockPoolTest, AnEmptyLeaseTakesOverPoolAndUse) {
  BlockPool pool(2);
  BlockLease lease;
  lease.Append(*pool.Acquire(2, BlockUse::kHeld));
  EXPECT_EQ(lease.use(), BlockUse::kHeld);
  lease.Append(BlockLease());
  EXPECT_EQ(lease.size(), 2);
  ExpectCounts(pool, 0, 0, 0, 2);
}

TEST(BlockPoolTest, AnEmptyLeaseMayOutliveThePool) {
  BlockLease lease;
  {
    BlockPool pool(1);
    lease = *pool.Acquire(1, BlockUse::kActive);
    lease.Release();
  }
  EXPECT_TRUE(lease.empty());
}

TEST(BlockPoolTest, MovesKeepTheReferences) {
  BlockPool pool(4);
  BlockLease a = *pool.Acquire(2, BlockUse::kActive);
  BlockLease b(std::move(a));
  EXPECT_TRUE(a.empty());
  BlockLease c = *pool.Acquire(2, BlockUse::kCached);
  c = std::move(b);  // gives c's own blocks back
  ExpectCounts(pool, 2, 2, 0, 0);
  BlockLease& alias = c;
  c = std::move(alias);
  EXPECT_THAT(c.ids(), ElementsAre(0, 1));
  a = std::move(c);  // a moved-from lease can be used again
  ExpectCounts(pool, 2, 2, 0, 0);
}

TEST(BlockPoolTest, ShareListenerHearsOneToTwoAndBack) {
  BlockPool pool(2);
  std::vector<std::pair<BlockId, bool>> heard;
  pool.SetShareListener([&](BlockId id, bool shared) { heard.emplace_back(id, shared); });
  BlockLease lease = *pool.Acquire(2, BlockUse::kActive);
  BlockLease second = lease.Share(1, 2, BlockUse::kCached);
  BlockLease third = lease.Share(1, 2, BlockUse::kCached);
  third.SetUse(BlockUse::kHeld);
  third.Release();
  lease.Release();
  second.Release();
  EXPECT_THAT(heard, ElementsAre(std::pair(1, true), std::pair(1, false)));
}

TEST(BlockPoolDeathTest, BrokenInvariants) {
  BlockPool pool(2);
  BlockPool other(1);
  BlockLease lease = *pool.Acquire(2, BlockUse::kActive);
  EXPECT_DEATH(lease.SplitAt(3), "3 of 2 blocks");
  EXPECT_DEATH(lease.Share(1, 3, BlockUse::kActive), "of 2 blocks");
  EXPECT_DEATH(lease.Append(lease.Share(0, 1, BlockUse::kHeld)),
               "held blocks to a lease of active");
  EXPECT_DEATH(lease.Append(*other.Acquire(1, BlockUse::kActive)), "another pool");
  EXPECT_DEATH(pool.RefCount(2), "block 2 of 2");
  EXPECT_DEATH(
      {
        BlockLease survivor;
        BlockPool short_lived(1);
        survivor = *short_lived.Acquire(1, BlockUse::kHeld);
        short_lived.~BlockPool();
      },
      "a lease of 1 held blocks outlives its pool");
}

// What the pool must agree with: the leases' contents as plain lists.
class PoolModel {
 public:
  explicit PoolModel(int block_count) : block_count_(block_count) {}

  struct Lease {
    BlockLease real;
    std::vector<BlockId> ids;
    BlockUse use;
  };
  std::vector<Lease> leases;

  void ExpectEqual(const BlockPool& pool) const {
    pool.CheckIntegrity();
    BlockCounts expected;
    expected.total = block_count_;
    for (BlockId id = 0; id < block_count_; ++id) {
      int references = 0;
      std::optional<BlockUse> first;
      for (const Lease& lease : leases) {
        for (BlockId held : lease.ids) {
          if (held != id) continue;
          ++references;
          first = first ? std::min(*first, lease.use) : lease.use;
        }
      }
      ASSERT_EQ(pool.RefCount(id), references);
      if (!first) ++expected.free;
      if (first == BlockUse::kActive) ++expected.active;
      if (first == BlockUse::kHeld) ++expected.held;
      if (first == BlockUse::kCached) ++expected.cached;
    }
    EXPECT_EQ(pool.counts().total, expected.total);
    EXPECT_EQ(pool.counts().free, expected.free);
    EXPECT_EQ(pool.counts().active, expected.active);
    EXPECT_EQ(pool.counts().held, expected.held);
    EXPECT_EQ(pool.counts().cached, expected.cached);
    for (const Lease& lease : leases) ASSERT_EQ(lease.real.ids(), lease.ids);
  }

 private:
  int block_count_;
};

class PoolPropertyTest : public ::testing::TestWithParam<int> {};

TEST_P(PoolPropertyTest, AgreesWithPlainLists) {
  std::mt19937 random(testing::TestSeed(static_cast<uint32_t>(GetParam())));
  auto below = [&](int n) { return static_cast<int>(random() % n); };
  auto any_use = [&] { return static_cast<BlockUse>(below(3)); };
  const int block_count = 1 + below(8);
  BlockPool pool(block_count);
  PoolModel model(block_count);
  for (int step = 0; step < 300; ++step) {
    auto& leases = model.leases;
    const int operation = leases.empty() ? 0 : below(6);
    const int pick = leases.empty() ? 0 : below(static_cast<int>(leases.size()));
    if (operation == 0) {
      const int count = below(block_count + 2);
      const int free = pool.counts().free;
      absl::StatusOr<BlockLease> lease = pool.Acquire(count, any_use());
      ASSERT_EQ(lease.ok(), count <= free);
      if (lease.ok()) {
        auto ids = lease->ids();
        const BlockUse use = lease->use();
        leases.push_back({std::move(*lease), ids, use});
      }
    } else if (operation == 1) {
      leases.erase(leases.begin() + pick);
    } else if (operation == 2 && leases.size() < 12) {
      const int end = below(leases[pick].real.size() + 1);
      const int begin = below(end + 1);
      const BlockUse use = any_use();
      auto& ids = leases[pick].ids;
      std::vector<BlockId> shared(ids.begin() + begin, ids.begin() + end);
      leases.push_back({leases[pick].real.Share(begin, end, use), shared, use});
    } else if (operation == 3) {
      const int index = below(leases[pick].real.size() + 1);
      auto& ids = leases[pick].ids;
      std::vector<BlockId> rest(ids.begin() + index, ids.end());
      ids.resize(index);
      const BlockUse use = leases[pick].use;
      leases.push_back({leases[pick].real.SplitAt(index), rest, use});
    } else if (operation == 4) {
      leases[pick].use = any_use();
      leases[pick].real.SetUse(leases[pick].use);
    } else if (operation == 5) {
      const int other = below(static_cast<int>(leases.size()));
      if (other == pick || leases[other].use != leases[pick].use) continue;
      leases[pick].real.Append(std::move(leases[other].real));
      leases[pick].ids.insert(leases[pick].ids.end(), leases[other].ids.begin(),
                              leases[other].ids.end());
      leases.erase(leases.begin() + other);
    }
    model.ExpectEqual(pool);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PoolPropertyTest, ::testing::Range(0, 50));

}  // namespace
}  // namespace baton::kv
