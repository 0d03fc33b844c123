// What tests of stores share: keys, values, a prompt's segments.
#ifndef BATON_TESTS_COMMON_KV_STORE_STORE_CASES_H_
#define BATON_TESTS_COMMON_KV_STORE_STORE_CASES_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/kv_store/segment_store.h"

namespace baton::kv_store {

inline SegmentKey KeyOf(uint64_t prefix) { return {0x1234, 0x5678, 256, prefix << 32 | prefix}; }

inline SegmentBytes ValueOf(size_t bytes, int filler) {
  return std::make_shared<std::vector<std::byte>>(bytes, static_cast<std::byte>(filler));
}

inline const absl::Time kNoDeadline = absl::InfiniteFuture();

inline int Count(SegmentStore& store, const std::vector<SegmentKey>& keys) {
  const absl::StatusOr<int> count = store.CountLeading(keys, kNoDeadline);
  BATON_CHECK(count.ok()) << count.status();
  return *count;
}

inline int CountToLast(SegmentStore& store, const std::vector<SegmentKey>& keys) {
  const absl::StatusOr<int> count = store.CountToLast(keys, absl::Now() + absl::Seconds(30));
  BATON_CHECK(count.ok()) << count.status();
  return *count;
}

// Of 700 keys, more than a store asks for at once.
inline void ExpectCountsToLast(SegmentStore& store) {
  std::vector<SegmentKey> keys;
  for (uint64_t i = 0; i < 700; ++i) keys.push_back(KeyOf(i));
  EXPECT_EQ(CountToLast(store, {}), 0);
  EXPECT_EQ(CountToLast(store, keys), 0);
  for (const uint64_t there : {0, 5, 300, 444, 699}) {
    ASSERT_TRUE(store.Put(KeyOf(there), ValueOf(10, 1), absl::Now() + absl::Seconds(30)).ok());
    EXPECT_EQ(CountToLast(store, keys), static_cast<int>(there) + 1);
  }
  EXPECT_EQ(CountToLast(store, {keys.begin(), keys.begin() + 444}), 301);
  EXPECT_EQ(CountToLast(store, {keys.begin() + 6, keys.begin() + 300}), 0);
}

// What a store says that it has.
class Heard {
 public:
  KeyListener Listener() {
    return [this](absl::string_view key, bool held) {
      if (held) {
        keys.insert(std::string(key));
      } else {
        keys.erase(std::string(key));
      }
    };
  }
  std::set<std::string> keys;
};

// A store with room for a few values of 300 bytes: the listener knows what the store has, after
// every change.
inline void ExpectHeard(SegmentStore& store, uint32_t seed) {
  std::mt19937 random(seed);
  Heard heard;
  ASSERT_TRUE(store.Put(KeyOf(1), ValueOf(300, 0), kNoDeadline).ok());
  store.Listen(heard.Listener());
  for (int i = 0; i < 200; ++i) {
    const SegmentKey key = KeyOf(random() % 12);
    if (random() % 4 == 0) {
      store.Remove(key, kNoDeadline);
    } else {
      ASSERT_TRUE(store.Put(key, ValueOf(300, i), kNoDeadline).ok());
    }
    std::set<std::string> there;
    for (uint64_t k = 0; k < 12; ++k) {
      if (Count(store, {KeyOf(k)}) == 1) there.insert(KeyOf(k).ToString());
    }
    ASSERT_EQ(heard.keys, there) << "seed " << seed << ", change " << i;
  }
  EXPECT_GT(store.usage().evicted, 0);
  Heard second;
  store.Listen(second.Listener());
  EXPECT_EQ(second.keys, heard.keys) << "a new listener hears of what is there";
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "baton-store-XXXXXX").string();
    BATON_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace baton::kv_store

#endif  // BATON_TESTS_COMMON_KV_STORE_STORE_CASES_H_
