#include "router/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

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

// Random work on the index and on the simplest thing that could be right: one set per worker.
TEST(PrefixIndexTest, AgreesWithSetsUnderRandomWork) {
  constexpr int kWorkers = 6, kChains = 8, kChainLength = 20;
  for (int seed = 0; seed < 30; ++seed) {
    std::mt19937_64 random(seed);
    PrefixIndex index(kWorkers);
    std::vector<std::set<uint64_t>> model(kWorkers);
    for (int w = 0; w < kWorkers; ++w) index.SetCapacity(w, 1000);
    std::vector<std::vector<uint64_t>> chains(kChains);
    for (auto& chain : chains) {
      for (int i = 0; i < kChainLength; ++i) chain.push_back(random());
    }
    for (int step = 0; step < 500; ++step) {
      const int worker = static_cast<int>(random() % kWorkers);
      const auto& chain = chains[random() % kChains];
      const size_t depth = random() % (kChainLength + 1);
      // As workers do: keys come after their parents and go before them.
      const std::vector<uint64_t> head(chain.begin(), chain.begin() + depth);
      const std::vector<uint64_t> tail(chain.begin() + depth, chain.end());
      switch (random() % 8) {
        case 0:
          index.DropWorker(worker);
          model[worker].clear();
          break;
        case 1:
        case 2:
        case 3:
          index.Remove(worker, tail);
          for (uint64_t key : tail) model[worker].erase(key);
          break;
        default:
          ASSERT_TRUE(index.Add(worker, head));
          model[worker].insert(head.begin(), head.end());
      }
      std::set<uint64_t> all;
      for (int w = 0; w < kWorkers; ++w) {
        ASSERT_EQ(index.key_count(w), static_cast<int64_t>(model[w].size()));
        all.insert(model[w].begin(), model[w].end());
        for (const auto& each : chains) {
          const auto missing = std::find_if(each.begin(), each.end(),
                                            [&](uint64_t key) { return model[w].count(key) == 0; });
          ASSERT_EQ(index.MatchDepth(w, each), missing - each.begin()) << "seed " << seed;
        }
      }
      ASSERT_EQ(index.distinct_key_count(), static_cast<int64_t>(all.size()));
    }
  }
}

}  // namespace
}  // namespace baton::router
