#include "common/base/huge_page_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/seed.h"

namespace baton {
namespace {

struct Block {
  unsigned char* begin;
  size_t bytes;
  unsigned char content;
};

void ExpectIntact(const Block& block) {
  for (size_t i = 0; i < block.bytes; ++i) ASSERT_EQ(block.begin[i], block.content) << i;
}

TEST(HugePageArenaTest, BlocksAreAlignedAndApart) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  HugePageArena arena;
  std::vector<Block> blocks;
  for (int step = 0; step < 3000; ++step) {
    if (blocks.empty() || random() % 5 < 3) {
      const size_t bytes = 1 + random() % (random() % 50 == 0 ? 300'000 : 5000);
      auto* begin = static_cast<unsigned char*>(arena.Allocate(bytes));
      ASSERT_EQ(reinterpret_cast<uintptr_t>(begin) % HugePageArena::kAlignment, 0u);
      const auto content = static_cast<unsigned char>(random());
      std::memset(begin, content, bytes);
      blocks.push_back({begin, bytes, content});
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      ASSERT_NO_FATAL_FAILURE(ExpectIntact(blocks.back()));
      arena.Free(blocks.back().begin, blocks.back().bytes);
      blocks.pop_back();
    }
  }
  for (const Block& block : blocks) ASSERT_NO_FATAL_FAILURE(ExpectIntact(block));
}

TEST(HugePageArenaTest, FreeNeighboursAreOneInWhateverOrderTheyWereFreed) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  HugePageArena arena;
  constexpr size_t kBytes = 4 * HugePageArena::kHugePage;
  void* whole = arena.Allocate(kBytes);
  const size_t chunk_bytes = arena.chunk_bytes();
  arena.Free(whole, kBytes);
  std::vector<std::pair<void*, size_t>> blocks;
  for (size_t left = kBytes; left > 0;) {
    const size_t bytes = std::min(left, HugePageArena::kAlignment * (1 + random() % 2000));
    blocks.emplace_back(arena.Allocate(bytes), bytes);
    left -= bytes;
  }
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (const auto& [block, bytes] : blocks) arena.Free(block, bytes);
  EXPECT_EQ(arena.Allocate(kBytes), whole);
  EXPECT_EQ(arena.chunk_bytes(), chunk_bytes);
}

TEST(HugePageArenaTest, ASmallOneTakesLittleAndALargeOneGrowsInFewChunks) {
  HugePageArena arena;
  EXPECT_EQ(arena.chunk_bytes(), 0u);
  arena.Allocate(100);
  EXPECT_LT(arena.chunk_bytes(), HugePageArena::kHugePage);
  size_t used = 100, grown = 0, chunk_bytes = arena.chunk_bytes();
  for (; used < 256 * HugePageArena::kHugePage; used += 30'000) {
    arena.Allocate(30'000);
    if (arena.chunk_bytes() != chunk_bytes) ++grown, chunk_bytes = arena.chunk_bytes();
  }
  EXPECT_LT(grown, 40u);
  EXPECT_LT(chunk_bytes, used + used / 5);
}

}  // namespace
}  // namespace baton
