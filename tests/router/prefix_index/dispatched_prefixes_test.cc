#include "router/prefix_index/dispatched_prefixes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/testing/seed.h"

namespace baton::router {
namespace {

std::vector<kv::PrefixKey> Chain(int size, uint64_t seed = 0) {
  std::vector<kv::PrefixKey> chain;
  for (int i = 0; i < size; ++i) chain.push_back(seed * 1'000'003 + i + 1);
  return chain;
}

class DispatchedPrefixesTest : public ::testing::Test {
 protected:
  DispatchedPrefixesTest() { dispatched_.Grow(3); }
  std::vector<int> Match(const std::vector<kv::PrefixKey>& chain) {
    std::vector<int> depths;
    dispatched_.Match(chain, &depths);
    return depths;
  }
  DispatchedPrefixes dispatched_;
};

TEST_F(DispatchedPrefixesTest, IsMatchedUntilItExpires) {
  dispatched_.Add(1, Chain(20), absl::Seconds(5));
  EXPECT_EQ(Match(Chain(20)), (std::vector<int>{0, 20, 0}));
  EXPECT_EQ(Match(Chain(30)), (std::vector<int>{0, 20, 0}));
  EXPECT_EQ(Match(Chain(7)), (std::vector<int>{0, 7, 0}));
  EXPECT_EQ(Match(Chain(20, 1)), (std::vector<int>{0, 0, 0}));
  dispatched_.Expire(absl::Seconds(4.9));
  EXPECT_EQ(Match(Chain(20))[1], 20);
  dispatched_.Expire(absl::Seconds(5));
  EXPECT_EQ(Match(Chain(20))[1], 0);
  EXPECT_EQ(dispatched_.key_count(), 0);
}

TEST_F(DispatchedPrefixesTest, LongChainsAreRoundedDownAndNeverUp) {
  for (int size : {1, 31, 32, 33, 39, 40, 41, 47, 48, 1000}) {
    DispatchedPrefixes dispatched;
    dispatched.Grow(1);
    dispatched.Add(0, Chain(size), absl::Seconds(1));
    for (int asked : {size, size + 100, size / 2}) {
      std::vector<int> depths;
      dispatched.Match(Chain(asked), &depths);
      const int shared = std::min(size, asked);
      EXPECT_LE(depths[0], shared) << size << " " << asked;
      EXPECT_GT(depths[0], shared - DispatchedPrefixes::kStride) << size << " " << asked;
      EXPECT_TRUE(depths[0] == shared || shared > DispatchedPrefixes::kDense);
    }
  }
}

TEST_F(DispatchedPrefixesTest, RaisesWhatIsKnownAndDoesNotLowerIt) {
  dispatched_.Add(0, Chain(4), absl::Seconds(1));
  dispatched_.Add(1, Chain(9), absl::Seconds(1));
  std::vector<int> depths = {6, 6, 6};
  dispatched_.Match(Chain(10), &depths);
  EXPECT_EQ(depths, (std::vector<int>{6, 9, 6}));
}

// A tail whose head had gone before it would be found by nobody, and hide what others have.
TEST_F(DispatchedPrefixesTest, WhatALaterDispatchStandsOnStays) {
  dispatched_.Add(0, Chain(10), absl::Seconds(1));
  dispatched_.Add(0, Chain(10), absl::Seconds(2));
  dispatched_.Add(0, Chain(12), absl::Seconds(3));
  dispatched_.Expire(absl::Seconds(2));
  EXPECT_EQ(Match(Chain(12)), (std::vector<int>{12, 0, 0}));
  dispatched_.Add(1, Chain(11), absl::Seconds(4));
  EXPECT_EQ(Match(Chain(12)), (std::vector<int>{12, 11, 0}));
  dispatched_.Expire(absl::Seconds(3));
  EXPECT_EQ(Match(Chain(12)), (std::vector<int>{0, 11, 0}));
  EXPECT_EQ(dispatched_.key_count(), 11);
}

TEST_F(DispatchedPrefixesTest, AnotherProcessHasNothingOfIt) {
  dispatched_.Add(0, Chain(10), absl::Seconds(1));
  dispatched_.Add(1, Chain(5), absl::Seconds(1));
  dispatched_.DropWorker(0);
  EXPECT_EQ(Match(Chain(10)), (std::vector<int>{0, 5, 0}));
  EXPECT_EQ(dispatched_.key_count(), 5);
  dispatched_.Add(0, Chain(3), absl::Seconds(9));
  dispatched_.Expire(absl::Seconds(1));
  EXPECT_EQ(Match(Chain(10)), (std::vector<int>{3, 0, 0}));
}

// Chains that branch everywhere come and go; what is matched is what a count of each key says.
TEST_F(DispatchedPrefixesTest, MatchesLikeACountOfEachKey) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<std::vector<kv::PrefixKey>> chains;
  for (int i = 0; i < 40; ++i) {
    std::vector<kv::PrefixKey> chain;
    if (!chains.empty()) chain = chains[random() % chains.size()];
    chain.resize(random() % (chain.size() + 1));
    for (uint64_t more = 1 + random() % 50; more > 0; --more) chain.push_back(random());
    chains.push_back(chain);
  }
  const auto kept = [](const std::vector<kv::PrefixKey>& chain) {
    std::vector<kv::PrefixKey> keys;
    for (size_t i = 0; i < chain.size(); ++i) {
      const size_t behind = i + 1 - DispatchedPrefixes::kDense;
      const bool dense = i < DispatchedPrefixes::kDense;
      if (dense || behind % DispatchedPrefixes::kStride == 0) keys.push_back(chain[i]);
    }
    return keys;
  };
  struct Sent {
    int worker;
    size_t chain;
    int expires;
  };
  std::vector<Sent> all;
  for (int now = 0; now < 2000; ++now) {
    const Sent sent = {static_cast<int>(random() % 3), random() % chains.size(),
                       now + 1 + static_cast<int>(random() % 40)};
    dispatched_.Add(sent.worker, chains[sent.chain], absl::Seconds(sent.expires));
    all.push_back(sent);
    const bool drop = random() % 100 == 0;
    if (drop) dispatched_.DropWorker(1);
    dispatched_.Expire(absl::Seconds(now));
    std::erase_if(all, [&](const Sent& s) { return s.expires <= now || (drop && s.worker == 1); });
    const std::vector<kv::PrefixKey>& asked = chains[random() % chains.size()];
    int64_t key_count = 0;
    std::vector<int> wanted(3, 0);
    for (const Sent& s : all) {
      const std::vector<kv::PrefixKey> keys = kept(chains[s.chain]);
      key_count += static_cast<int64_t>(keys.size());
      for (size_t i = 0; i < asked.size(); ++i) {
        const bool has = std::find(keys.begin(), keys.end(), asked[i]) != keys.end();
        if (has) wanted[s.worker] = std::max(wanted[s.worker], static_cast<int>(i) + 1);
      }
    }
    ASSERT_EQ(Match(asked), wanted) << "at " << now;
    ASSERT_EQ(dispatched_.key_count(), key_count) << "at " << now;
  }
}

TEST_F(DispatchedPrefixesTest, IsBoundedAndTheFirstToExpireGo) {
  const int size = 8000;
  const int64_t kept = DispatchedPrefixes::kDense +
                       (size - DispatchedPrefixes::kDense) / DispatchedPrefixes::kStride;
  const int many = static_cast<int>(DispatchedPrefixes::kMaxKeys / kept) + 3;
  for (int i = 0; i < many; ++i) {
    dispatched_.Add(2, Chain(size, i + 1), absl::Seconds(1000 - i));
  }
  EXPECT_LE(dispatched_.key_count(), DispatchedPrefixes::kMaxKeys);
  EXPECT_EQ(Match(Chain(size, 1))[2], size);
  EXPECT_EQ(Match(Chain(size, many))[2], 0);
}

}  // namespace
}  // namespace baton::router
