#include "common/prefill/tier_listing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/kv_store/segment_store.h"

namespace baton::prefill {
namespace {

constexpr uint64_t kModel = 7, kLayout = 8;
constexpr int kTokens = 32;

std::string Name(uint64_t prefix, uint64_t model = kModel, uint64_t layout = kLayout,
                 int tokens = kTokens) {
  return kv_store::SegmentKey{model, layout, tokens, prefix}.ToString();
}

class TierListingTest : public ::testing::Test {
 protected:
  std::vector<uint64_t> Listed() const {
    std::vector<uint64_t> keys = journal_.TakeSnapshot().keys;
    std::sort(keys.begin(), keys.end());
    return keys;
  }
  static std::vector<uint64_t> Keys(std::vector<uint64_t> prefixes) {
    for (uint64_t& prefix : prefixes) prefix = kv::TierKey(prefix, kTokens);
    std::sort(prefixes.begin(), prefixes.end());
    return prefixes;
  }

  worker::CacheJournal journal_;
  TierListing listing_{kModel, kLayout, kTokens, /*max_keys=*/3, journal_};
};

TEST_F(TierListingTest, ASegmentIsListedWhileAnyStoreHasIt) {
  listing_.OnChange(0, Name(1), true);
  listing_.OnChange(1, Name(1), true);
  listing_.OnChange(1, Name(2), true);
  EXPECT_EQ(Listed(), Keys({1, 2}));
  listing_.OnChange(0, Name(1), true);  // said twice
  listing_.OnChange(0, Name(1), false);
  EXPECT_EQ(Listed(), Keys({1, 2}));
  listing_.OnChange(1, Name(1), false);
  EXPECT_EQ(Listed(), Keys({2}));
  listing_.OnChange(0, Name(2), false);  // never had it
  EXPECT_EQ(Listed(), Keys({2}));
}

TEST_F(TierListingTest, WhatIsNotThisWorkersIsNotListed) {
  listing_.OnChange(0, Name(1, kModel + 1), true);
  listing_.OnChange(0, Name(1, kModel, kLayout + 1), true);
  listing_.OnChange(0, Name(1, kModel, kLayout, 2 * kTokens), true);
  listing_.OnChange(0, "a file of somebody", true);
  EXPECT_EQ(Listed(), Keys({}));
}

TEST_F(TierListingTest, IsBounded) {
  for (const uint64_t prefix : {1, 2, 3, 4}) listing_.OnChange(0, Name(prefix), true);
  EXPECT_EQ(Listed(), Keys({1, 2, 3}));
  listing_.OnChange(0, Name(4), false);
  EXPECT_EQ(Listed(), Keys({1, 2, 3}));
  listing_.OnChange(0, Name(1), false);
  listing_.OnChange(0, Name(5), true);
  EXPECT_EQ(Listed(), Keys({2, 3, 5}));
}

}  // namespace
}  // namespace baton::prefill
