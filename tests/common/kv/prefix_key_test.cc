#include "common/kv/prefix_key.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "xxhash.h"

namespace baton::kv {
namespace {

PrefixKey HashOf(const std::string& bytes, uint64_t seed) {
  return XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed).low64;
}

// Routers and workers of different builds must name a prefix alike. If one of these values
// changes, every router's index is wrong for every worker of another build: do not adapt them.
TEST(PrefixKeyTest, GoldenValues) {
  EXPECT_EQ(RootPrefixKey(0, "", ""), 0x00012273b9065b5bu);
  EXPECT_EQ(RootPrefixKey(0x0123456789abcdef, "salt", "adapter"), 0xdfbd24cd7957f573u);
  EXPECT_EQ(NextPrefixKey(0, {}), 0x45c3b49d035665b2u);
  EXPECT_EQ(NextPrefixKey(0x0123456789abcdef,
                          {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 151643}),
            0x95e1df821e347370u);
  EXPECT_EQ(NextPrefixKey(1, {-1, 2147483647, -2147483648}), 0xc79679f06d6158a8u);
  const std::vector<int32_t> tokens(40, 7);
  EXPECT_EQ(PrefixKeys(5, tokens, 16),
            (std::vector<PrefixKey>{0x7eee496a88576931u, 0x1310bec507c574b7u}));
}

// The bytes that are hashed, spelt out.
TEST(PrefixKeyTest, Encoding) {
  using namespace std::string_literals;
  EXPECT_EQ(RootPrefixKey(0x0807060504030201, "ab", "c"), HashOf("\1\2\3\4\5\6\7\x08"
                                                                 "\2\0\0\0\0\0\0\0ab"
                                                                 "\1\0\0\0\0\0\0\0c"s,
                                                                 1));
  EXPECT_EQ(NextPrefixKey(0x0807060504030201, {1, 256, -2}), HashOf("\1\2\3\4\5\6\7\x08"
                                                                    "\1\0\0\0"
                                                                    "\0\1\0\0"
                                                                    "\xfe\xff\xff\xff"s,
                                                                    0));
}

TEST(PrefixKeyTest, RootsTellFieldsApart) {
  const std::set<PrefixKey> roots = {
      RootPrefixKey(1, "", ""),   RootPrefixKey(2, "", ""),
      RootPrefixKey(1, "a", ""),  RootPrefixKey(1, "", "a"),
      RootPrefixKey(1, "ab", ""), RootPrefixKey(1, "a", "b"),
      RootPrefixKey(1, "", "ab"), RootPrefixKey(1, absl::string_view("\0", 1), ""),
  };
  EXPECT_EQ(roots.size(), 8u);
}

TEST(PrefixKeyTest, FullBlocksOnly) {
  std::vector<int32_t> tokens(50);
  for (int i = 0; i < 50; ++i) tokens[i] = i;
  for (size_t size = 0; size <= tokens.size(); ++size) {
    const auto keys = PrefixKeys(9, absl::MakeConstSpan(tokens).subspan(0, size), 16);
    ASSERT_EQ(keys.size(), size / 16);
    PrefixKey parent = 9;
    for (size_t i = 0; i < keys.size(); ++i) {
      parent = NextPrefixKey(parent, absl::MakeConstSpan(tokens).subspan(16 * i, 16));
      EXPECT_EQ(keys[i], parent);
    }
  }
}

TEST(PrefixKeyTest, EveryTokenCounts) {
  std::vector<int32_t> tokens(48, 3);
  const auto keys = PrefixKeys(9, tokens, 16);
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto changed = tokens;
    changed[i] = 4;
    const auto others = PrefixKeys(9, changed, 16);
    for (size_t block = 0; block < 3; ++block) {
      EXPECT_EQ(others[block] == keys[block], block < i / 16)
          << "token " << i << " block " << block;
    }
  }
}

TEST(PrefixKeyDeathTest, BlockTokensMustBePositive) {
  EXPECT_DEATH(PrefixKeys(0, {1}, 0), "CHECK failed");
}

}  // namespace
}  // namespace baton::kv
