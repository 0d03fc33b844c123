#include "router/prefix_index/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "tests/testing/seed.h"

namespace baton::router {
namespace {

TEST(PrefixIndexTest, DepthIsTheLongestPrefixOfTheChain) {
  PrefixIndex index(2);
  index.SetCapacity(0, 10);
  index.SetCapacity(1, 10);
  ASSERT_TRUE(index.Add(0, {1, 2, 3}));
  ASSERT_TRUE(index.Add(1, {1}));
  EXPECT_EQ(index.MatchDepth(0, {1, 2, 3, 4}), 3);
  EXPECT_EQ(index.MatchDepth(1, {1, 2, 3, 4}), 1);
  EXPECT_EQ(index.MatchDepth(0, {}), 0);
}

TEST(PrefixIndexTest, CapacityIsABoundAndARefusedAddChangesNothing) {
  PrefixIndex index(1);
  index.SetCapacity(0, 2);
  EXPECT_TRUE(index.Add(0, {1, 2}));
  EXPECT_TRUE(index.Add(0, {1, 2}));
  EXPECT_FALSE(index.Add(0, {1, 3}));
  EXPECT_EQ(index.key_count(0), 2);
  EXPECT_EQ(index.MatchDepth(0, {3}), 0);
}

std::vector<int> Match(const PrefixIndex& index, const std::vector<uint64_t>& chain) {
  std::vector<int> depths;
  index.Match(chain, &depths);
  return depths;
}

TEST(PrefixIndexTest, MatchTellsAllWorkersAndOnlyRaisesWhatWasThere) {
  PrefixIndex index(4);
  for (int w = 0; w < 4; ++w) index.SetCapacity(w, 10);
  ASSERT_TRUE(index.Add(0, {1, 2, 3, 4, 5}));
  ASSERT_TRUE(index.Add(1, {1, 2}));
  ASSERT_TRUE(index.Add(3, {1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Match(index, {1, 2, 3, 4, 5, 6, 7, 8, 9}), (std::vector<int>{5, 2, 0, 6}));
  std::vector<int> depths = {0, 9, 1};
  index.Match(std::vector<uint64_t>{1, 2, 3}, &depths);
  EXPECT_EQ(depths, (std::vector<int>{3, 9, 1, 3}));
  EXPECT_EQ(Match(index, {}), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(Match(index, {9, 1}), (std::vector<int>{0, 0, 0, 0}));
}

TEST(PrefixIndexTest, ADroppedWorkerIsColdAtOnceAndItsKeysAreSweptInTime) {
  PrefixIndex index(2);
  std::vector<uint64_t> own, shared;
  for (uint64_t i = 0; i < 5000; ++i) own.push_back(i * 977 + 1), shared.push_back(~i);
  for (int w : {0, 1}) {
    index.SetCapacity(w, 20'000);
    ASSERT_TRUE(index.Add(w, shared));
  }
  ASSERT_TRUE(index.Add(0, own));
  index.DropWorker(0);
  EXPECT_EQ(index.key_count(0), 0);
  EXPECT_EQ(Match(index, shared), (std::vector<int>{0, 5000}));
  EXPECT_EQ(index.MatchDepth(0, shared), 0);
  // It comes back with less; the old keys are not mistaken for its new ones.
  ASSERT_TRUE(index.Add(0, absl::MakeConstSpan(shared).first(100)));
  EXPECT_EQ(Match(index, shared), (std::vector<int>{100, 5000}));
  EXPECT_FALSE(index.swept());
  while (!index.swept()) index.Sweep(KeyTable::kSegments / 4);
  EXPECT_EQ(index.distinct_key_count(), 5000);
  EXPECT_EQ(Match(index, shared), (std::vector<int>{100, 5000}));
}

TEST(PrefixIndexTest, ChangesAloneSweep) {
  PrefixIndex index(2);
  for (int w : {0, 1}) index.SetCapacity(w, 1'000'000);
  ASSERT_TRUE(index.Add(0, {1, 2, 3}));
  index.DropWorker(0);
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 2 * 64 * KeyTable::kSegments; ++i) keys.push_back(i + 10);
  ASSERT_TRUE(index.Add(1, keys));
  EXPECT_TRUE(index.swept());
  EXPECT_EQ(index.distinct_key_count(), static_cast<int64_t>(keys.size()));
}

TEST(PrefixIndexTest, MoreDropsThanNumbersAreSweptWhenTheyMustBe) {
  PrefixIndex index(1);
  index.SetCapacity(0, 10);
  for (int i = 0; i < HolderSets::kMaxMember + 100; ++i) {
    ASSERT_TRUE(index.Add(0, {uint64_t(i) + 1}));
    ASSERT_EQ(Match(index, {uint64_t(i) + 1})[0], 1);
    index.DropWorker(0);
  }
  while (!index.swept()) index.Sweep(KeyTable::kSegments);
  EXPECT_EQ(index.distinct_key_count(), 0);
}

// Every worker at a depth of its own: as many stretches as there can be.
TEST(PrefixIndexTest, BeyondTheBoundOnProbesDepthsAreLowerBounds) {
  constexpr int kWorkers = 1000;
  PrefixIndex index(kWorkers);
  std::vector<uint64_t> chain;
  for (uint64_t i = 0; i < 5 * kWorkers; ++i) chain.push_back(i * i + 1);
  for (int w = 0; w < kWorkers; ++w) {
    index.SetCapacity(w, 5 * kWorkers);
    ASSERT_TRUE(index.Add(w, absl::MakeConstSpan(chain).first(5 * w)));
  }
  const std::vector<int> depths = Match(index, chain);
  int64_t lost = 0;
  for (int w = 0; w < kWorkers; ++w) {
    EXPECT_LE(depths[w], 5 * w);
    EXPECT_EQ(depths[w] > 0, w > 0);
    lost += 5 * w - depths[w];
  }
  EXPECT_LT(lost / kWorkers, 5 * kWorkers / 100) << "tokens of a hundredth of the prompt";
}

// Wherever it looks first, and with all or some of the chain's keys.
void AgreesWithDepths(const PrefixIndex& index, const std::vector<uint64_t>& chain,
                      const std::vector<int>& depths, std::mt19937_64& random) {
  std::vector<int> likely, found, again;
  for (uint64_t more = random() % 12; more > 0; --more) {
    likely.push_back(static_cast<int>(random() % (2 * chain.size())));
  }
  index.Match(chain, &again, likely, &found);
  ASSERT_EQ(again, depths);
  std::set<int> different(depths.begin(), depths.end());
  different.erase(0);
  ASSERT_EQ(std::set<int>(found.begin(), found.end()), different);
  ASSERT_EQ(found.size(), different.size());
  const KeyChain some(chain, /*stride=*/1 + static_cast<int>(random() % 9));
  again.clear();
  index.Match(some, &again, random() % 2 == 0 ? likely : found);
  for (size_t w = 0; w < depths.size(); ++w) {
    ASSERT_EQ(again[w], some.DepthOf(some.KeysOf(depths[w])));
  }
}

TEST(KeyChainTest, HasTheFirstKeysAndThenSomeOfThem) {
  std::vector<uint64_t> blocks(100);
  std::iota(blocks.begin(), blocks.end(), 1);
  const KeyChain all(blocks), some(blocks, /*stride=*/16);
  EXPECT_EQ(all.size(), 100);
  EXPECT_EQ(all[99], 100u);
  EXPECT_EQ(some.size(), KeyChain::kDense + 4);
  EXPECT_EQ(some[31], 32u);
  EXPECT_EQ(some[32], 48u);
  EXPECT_EQ(some[35], 96u);
  for (const auto& [depth, keys] : std::map<int, int>{{0, 0}, {32, 32}, {47, 32}, {48, 33}}) {
    EXPECT_EQ(some.KeysOf(depth), keys);
    EXPECT_EQ(some.KeysOf(some.DepthOf(keys)), keys);
  }
}

// Random work on the index and on the simplest thing that could be right: one set per worker.
void AgreesWithSets(int workers, int chain_count, int chain_length, int steps, uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << workers << " workers");
  std::mt19937_64 random(seed);
  PrefixIndex index(workers);
  std::vector<std::set<uint64_t>> model(workers);
  for (int w = 0; w < workers; ++w) index.SetCapacity(w, 100'000);
  // A tree of prefixes: each chain goes on where an earlier one was left.
  std::vector<std::vector<uint64_t>> chains(chain_count);
  for (int c = 0; c < chain_count; ++c) {
    auto& chain = chains[c];
    if (c > 0) {
      const auto& parent = chains[random() % c];
      chain.assign(parent.begin(), parent.begin() + random() % (parent.size() + 1));
    }
    while (static_cast<int>(chain.size()) < chain_length) chain.push_back(random());
  }
  for (int step = 0; step < steps; ++step) {
    const int worker = static_cast<int>(random() % workers);
    const auto& chain = chains[random() % chain_count];
    const size_t depth = random() % (chain.size() + 1);
    switch (random() % 8) {
      case 0:
        if (random() % 4 != 0) break;
        index.DropWorker(worker);
        model[worker].clear();
        break;
      case 1:
      case 2: {
        // As workers do: keys go before their parents, with all that stand on them.
        std::vector<uint64_t> gone;
        for (const auto& other : chains) {
          const auto same = std::mismatch(chain.begin(), chain.begin() + depth, other.begin());
          if (same.first != chain.begin() + depth) continue;
          for (size_t i = depth; i < other.size(); ++i) {
            if (model[worker].erase(other[i]) > 0) gone.push_back(other[i]);
          }
        }
        std::shuffle(gone.begin(), gone.end(), random);
        gone.push_back(random());
        index.Remove(worker, gone);
        break;
      }
      default: {
        std::vector<uint64_t> head(chain.begin(), chain.begin() + depth);
        std::shuffle(head.begin(), head.end(), random);
        ASSERT_TRUE(index.Add(worker, head));
        model[worker].insert(head.begin(), head.end());
      }
    }
    if (random() % 8 == 0) index.Sweep(static_cast<int>(random() % KeyTable::kSegments));
    const auto& asked = chains[random() % chain_count];
    const std::vector<int> depths = Match(index, asked);
    for (int w = 0; w < workers; ++w) {
      const auto missing = std::find_if(asked.begin(), asked.end(),
                                        [&](uint64_t key) { return model[w].count(key) == 0; });
      ASSERT_EQ(depths[w], missing - asked.begin()) << "worker " << w << ", step " << step;
      ASSERT_EQ(index.MatchDepth(w, asked), depths[w]);
      ASSERT_EQ(index.key_count(w), static_cast<int64_t>(model[w].size()));
    }
    AgreesWithDepths(index, asked, depths, random);
  }
  while (!index.swept()) index.Sweep(KeyTable::kSegments);
  std::set<uint64_t> all;
  for (const auto& keys : model) all.insert(keys.begin(), keys.end());
  EXPECT_EQ(index.distinct_key_count(), static_cast<int64_t>(all.size()));
}

TEST(PrefixIndexTest, AgreesWithSetsUnderRandomWork) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    AgreesWithSets(/*workers=*/6, /*chain_count=*/8, /*chain_length=*/20, /*steps=*/500, seed);
  }
  for (uint64_t seed = 0; seed < 5; ++seed) {
    AgreesWithSets(/*workers=*/60, /*chain_count=*/30, /*chain_length=*/150, /*steps=*/500, seed);
  }
  const uint64_t seed = testing::TestSeed();
  AgreesWithSets(/*workers=*/30, /*chain_count=*/20, /*chain_length=*/100, /*steps=*/500, seed);
}

// What a worker has comes in any order while it introduces itself: without its beginning, part of a
// chain would make others look as if they had none of it.
TEST(PrefixIndexHiddenTest, AWorkerThatStillTellsCountsForNobody) {
  PrefixIndex index(2);
  for (int worker : {0, 1}) index.SetCapacity(worker, 1000);
  std::vector<uint64_t> chain(200);
  std::iota(chain.begin(), chain.end(), 1);
  ASSERT_TRUE(index.Add(0, absl::MakeConstSpan(chain).first(100)));
  const auto match = [&] {
    std::vector<int> depths;
    index.Match(chain, &depths);
    return depths;
  };
  for (int round = 0; round < 2; ++round) {
    index.Hide(1);
    ASSERT_TRUE(index.Add(1, absl::MakeConstSpan(chain).subspan(120)));
    EXPECT_EQ(match(), (std::vector<int>{100, 0}));
    ASSERT_TRUE(index.Add(1, absl::MakeConstSpan(chain).first(120)));
    EXPECT_EQ(match(), (std::vector<int>{100, 0}));
    index.Show(1);
    EXPECT_EQ(match(), (std::vector<int>{100, 200}));
    index.DropWorker(1);
    EXPECT_EQ(match(), (std::vector<int>{100, 0}));
  }
  index.Hide(1);
  index.DropWorker(1);
  ASSERT_TRUE(index.Add(1, absl::MakeConstSpan(chain).first(7)));
  EXPECT_EQ(match(), (std::vector<int>{100, 7}));
}

// Of a recurrent model, a prefix is of use as far as its last snapshot.
TEST(PrefixIndexTest, DepthsEndAtSnapshots) {
  PrefixIndex index(4);
  std::vector<kv::PrefixKey> chain;
  for (uint64_t i = 1; i <= 100; ++i) chain.push_back(i * 0x9e3779b97f4a7c15u);
  for (int worker = 0; worker < 4; ++worker) index.SetCapacity(worker, 1000);
  const auto keys = absl::MakeConstSpan(chain);
  index.Add(0, keys);
  index.Add(1, keys.first(60));
  index.Add(2, keys.first(10));
  index.Add(0, {kv::SnapshotKey(chain[99]), kv::SnapshotKey(chain[29])});
  index.Add(1, {kv::SnapshotKey(chain[29]), kv::SnapshotKey(chain[39])});
  index.Add(3, {kv::SnapshotKey(chain[99])});  // of a prefix that it does not hold any more
  const auto limited = [&](int blocks) {
    std::vector<int> depths;
    index.Match(keys.first(static_cast<size_t>(blocks)), &depths);
    index.LimitToSnapshots(keys.first(static_cast<size_t>(blocks)), &depths);
    return depths;
  };
  EXPECT_EQ(limited(100), (std::vector<int>{100, 40, 0, 0}));
  EXPECT_EQ(limited(99), (std::vector<int>{30, 40, 0, 0}));
  EXPECT_EQ(limited(35), (std::vector<int>{30, 30, 0, 0}));
  EXPECT_EQ(limited(29), (std::vector<int>{0, 0, 0, 0}));
  index.Remove(1, {kv::SnapshotKey(chain[39])});
  EXPECT_EQ(limited(100), (std::vector<int>{100, 30, 0, 0}));
  index.DropWorker(0);
  EXPECT_EQ(limited(100), (std::vector<int>{0, 30, 0, 0}));
  // A worker that has come since the depths were looked up has none.
  std::vector<int> depths;
  index.Match(keys, &depths);
  index.Grow(5);
  index.SetCapacity(4, 1000);
  index.Add(4, keys);
  index.Add(4, {kv::SnapshotKey(chain[29])});
  index.LimitToSnapshots(keys, &depths);
  EXPECT_EQ(depths, (std::vector<int>{0, 30, 0, 0}));
}

}  // namespace
}  // namespace baton::router
