#include "common/kv_store/host_store.h"

#include <gtest/gtest.h>

#include "tests/common/kv_store/store_cases.h"
#include "tests/testing/seed.h"

namespace baton::kv_store {
namespace {

TEST(HostStoreTest, KeepsSharesAndRemoves) {
  HostStore store(1000);
  EXPECT_TRUE(absl::IsNotFound(store.Get(KeyOf(1), 1000, kNoDeadline).status()));
  const SegmentBytes value = ValueOf(400, 1);
  ASSERT_TRUE(store.Put(KeyOf(1), value, kNoDeadline).ok());
  EXPECT_EQ(*store.Get(KeyOf(1), 400, kNoDeadline), value);  // the same memory
  EXPECT_EQ(store.Get(KeyOf(1), 399, kNoDeadline).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(store.Put(KeyOf(1), ValueOf(300, 2), kNoDeadline).ok());
  EXPECT_EQ(store.usage().bytes, 300);
  EXPECT_EQ(store.usage().segments, 1);
  store.Remove(KeyOf(1), kNoDeadline);
  EXPECT_EQ(store.usage().bytes, 0);
  EXPECT_EQ(value->size(), 400u);  // a reader's
}

TEST(HostStoreTest, IsBoundedAndEvictsAPromptFromItsEnd) {
  HostStore store(1000);
  const std::vector<SegmentKey> prompt = {KeyOf(1), KeyOf(2), KeyOf(3)};
  for (const SegmentKey& key : prompt)
    ASSERT_TRUE(store.Put(key, ValueOf(300, 0), kNoDeadline).ok());
  EXPECT_EQ(Count(store, prompt), 3);
  ASSERT_TRUE(store.Put(KeyOf(9), ValueOf(300, 0), kNoDeadline).ok());
  EXPECT_EQ(Count(store, prompt), 2);
  EXPECT_EQ(store.usage().evicted, 1);
  EXPECT_EQ(store.usage().bytes, 900);
  // A use of the prompt makes the other one the oldest.
  ASSERT_TRUE(store.Put(KeyOf(3), ValueOf(300, 0), kNoDeadline).ok());
  EXPECT_EQ(Count(store, prompt), 3);
  EXPECT_EQ(Count(store, {KeyOf(9)}), 0);
  EXPECT_EQ(store.Put(KeyOf(4), ValueOf(1001, 0), kNoDeadline).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Count(store, prompt), 3);
}

TEST(HostStoreTest, CountsToTheLastOneThatIsThere) {
  HostStore store(1000);
  ExpectCountsToLast(store);
  // Which is marked as used, and no other one.
  HostStore small(30);
  for (uint64_t i = 0; i < 3; ++i)
    ASSERT_TRUE(small.Put(KeyOf(i), ValueOf(10, 0), kNoDeadline).ok());
  EXPECT_EQ(CountToLast(small, {KeyOf(1), KeyOf(0), KeyOf(7)}), 2);
  for (uint64_t i = 4; i < 6; ++i)
    ASSERT_TRUE(small.Put(KeyOf(i), ValueOf(10, 0), kNoDeadline).ok());
  EXPECT_EQ(Count(small, {KeyOf(0)}), 1);
  EXPECT_EQ(Count(small, {KeyOf(1)}), 0);
}

TEST(HostStoreTest, ReportsEveryChange) {
  HostStore store(2000);
  ExpectHeard(store, testing::TestSeed());
}

TEST(SegmentKeyTest, IsParsedAsItIsWritten) {
  const SegmentKey key = {0x1, 0xfedcba9876543210, 0x7fffffff, 0xa};
  EXPECT_EQ(ParseSegmentKey(key.ToString()), key);
  const std::string text = key.ToString();
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char bad : {'A', 'g', '-', '.', '\0', '/'}) {
      if (text[i] == bad) continue;
      std::string spoilt = text;
      spoilt[i] = bad;
      EXPECT_EQ(ParseSegmentKey(spoilt), std::nullopt) << spoilt;
    }
    EXPECT_EQ(ParseSegmentKey(text.substr(0, i)), std::nullopt);
  }
  EXPECT_EQ(ParseSegmentKey(text + "0"), std::nullopt);
  EXPECT_EQ(ParseSegmentKey(absl::StrCat(text.substr(0, 34), "80000000", text.substr(42))),
            std::nullopt)
      << "more tokens than an int holds";
}

}  // namespace
}  // namespace baton::kv_store
