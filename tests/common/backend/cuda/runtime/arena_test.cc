#include "common/backend/cuda/runtime/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kUnit = Arena::kAlignment;

// The same by looking at every unit.
class SlowArena {
 public:
  explicit SlowArena(size_t units) : taken_(units) {}
  // The first unit of the lowest free range that is long enough; SIZE_MAX if none.
  size_t Take(size_t units) {
    size_t free = 0;
    for (size_t i = 0; i < taken_.size(); ++i) {
      free = taken_[i] ? 0 : free + 1;
      if (free == units) {
        const size_t first = i + 1 - units;
        std::fill_n(taken_.begin() + static_cast<ptrdiff_t>(first), units, true);
        return first;
      }
    }
    return SIZE_MAX;
  }
  void Give(size_t first, size_t units) {
    std::fill_n(taken_.begin() + static_cast<ptrdiff_t>(first), units, false);
  }
  size_t Used() const {
    return static_cast<size_t>(std::count(taken_.begin(), taken_.end(), true));
  }
  size_t Longest() const {
    size_t longest = 0, free = 0;
    for (const bool taken : taken_) {
      free = taken ? 0 : free + 1;
      longest = std::max(longest, free);
    }
    return longest;
  }

 private:
  std::vector<bool> taken_;
};

TEST(ArenaTest, IsFirstFitOverJoinedRanges) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto number = [&](size_t low, size_t high) {
    return std::uniform_int_distribution<size_t>(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    const size_t units = number(0, 120);
    Arena arena(units * kUnit + number(0, kUnit - 1));
    SlowArena slow(units);
    ASSERT_EQ(arena.size_bytes(), units * kUnit);
    struct Taken {
      size_t offset, units;
    };
    std::vector<Taken> taken;
    for (int step = 0; step < 300; ++step) {
      if (taken.empty() || number(0, 99) < 55) {
        const size_t bytes = number(0, number(0, 3) == 0 ? 130 * kUnit : 12 * kUnit);
        const size_t wanted = std::max<size_t>(1, (bytes + kUnit - 1) / kUnit);
        const std::optional<size_t> offset = arena.Take(bytes);
        const size_t expected = slow.Take(wanted);
        ASSERT_EQ(offset.has_value(), expected != SIZE_MAX) << bytes << " bytes";
        if (!offset) continue;
        ASSERT_EQ(*offset, expected * kUnit) << bytes << " bytes";
        taken.push_back({*offset, wanted});
      } else {
        std::swap(taken[number(0, taken.size() - 1)], taken.back());
        arena.Give(taken.back().offset);
        slow.Give(taken.back().offset / kUnit, taken.back().units);
        taken.pop_back();
      }
      ASSERT_EQ(arena.used_bytes(), slow.Used() * kUnit);
      ASSERT_EQ(arena.LargestFree(), slow.Longest() * kUnit);
    }
    for (const Taken& range : taken) arena.Give(range.offset);
    ASSERT_EQ(arena.used_bytes(), 0u);
    ASSERT_EQ(arena.LargestFree(), units * kUnit);
  }
}

TEST(ArenaTest, TakesWhatItSaysItCan) {
  Arena arena(10 * kUnit);
  EXPECT_EQ(arena.Take(arena.LargestFree()), 0u);
  EXPECT_EQ(arena.LargestFree(), 0u);
  EXPECT_FALSE(arena.Take(0));
  arena.Give(0);
  EXPECT_FALSE(arena.Take(10 * kUnit + 1));
  EXPECT_FALSE(arena.Take(SIZE_MAX)) << "rounding up must not wrap around";
  EXPECT_EQ(arena.Take(10 * kUnit - kUnit + 1), 0u);
}

TEST(ArenaDeathTest, OnlyWhatIsTakenIsGiven) {
  Arena arena(10 * kUnit);
  const size_t offset = *arena.Take(3 * kUnit);
  EXPECT_DEATH(arena.Give(offset + kUnit), "not taken");
  arena.Give(offset);
  EXPECT_DEATH(arena.Give(offset), "not taken");
}

}  // namespace
}  // namespace baton::backend::cuda
