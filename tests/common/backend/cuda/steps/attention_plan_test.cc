#include "common/backend/cuda/steps/attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "common/backend/cuda/kernels/index_maps.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

constexpr int kTileRows = kAttentionWarps * kRowTile;

int Ceiling(int64_t number, int by) { return static_cast<int>((number + by - 1) / by); }

class AttentionPlanTest : public ::testing::Test {
 protected:
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // A step within the limits, as full as it gets half of the time.
  std::vector<SequenceEntry> AnyStep(int max_rows, int max_sequences, int max_positions) {
    std::vector<SequenceEntry> sequences;
    const bool full = Int(0, 1) == 1, decodes = Int(0, 1) == 1;
    int rows = 0;
    while (rows < max_rows && static_cast<int>(sequences.size()) < max_sequences) {
      const int most = std::min(max_rows - rows, max_positions);
      const int count = decodes ? 1 : Int(1, Int(0, 1) ? most : std::min(most, 9));
      const int context = Int(0, 1) ? max_positions - count : Int(0, max_positions - count);
      sequences.push_back({rows, count, context, 0});
      rows += count;
      if (!full && Int(0, 9) == 0) break;
    }
    return sequences;
  }

  // Splits that the row tile's last query needs.
  static int SplitsOf(const SequenceEntry& sequence, int group, int first, int rows) {
    const int last = std::min((first + rows - 1) / group, sequence.row_count - 1);
    return Ceiling(int64_t{sequence.context} + last + 1, kSplitTokens);
  }

  // Every packed row once, everything that blocks share theirs alone, all within the room.
  static void Check(const AttentionPlan& plan, const std::vector<SequenceEntry>& sequences,
                    int group, const AttentionRoom& room) {
    std::vector<std::vector<int>> covered;
    for (const SequenceEntry& sequence : sequences) {
      covered.emplace_back(static_cast<size_t>(sequence.row_count * group));
    }
    const auto cover = [&](const AttentionItem& item, int rows) {
      auto& packed = covered.at(static_cast<size_t>(item.sequence));
      ASSERT_LT(static_cast<size_t>(item.first_packed_row), packed.size());
      for (int row = item.first_packed_row; row < item.first_packed_row + rows; ++row) {
        if (static_cast<size_t>(row) < packed.size()) ++packed[static_cast<size_t>(row)];
      }
    };
    int most = std::numeric_limits<int>::max();
    for (const AttentionItem& item : plan.tile_items) {
      cover(item, kTileRows);
      EXPECT_EQ(item.first_packed_row % kTileRows, 0);
      EXPECT_LE(item.split_count, most) << "the longest come first";
      most = item.split_count;
    }
    std::vector<int> partial_owners(static_cast<size_t>(plan.partials));
    std::set<int> row_tiles;
    for (size_t i = 0; i < plan.split_items.size();) {
      // The blocks of a row tile are together.
      const AttentionItem& first = plan.split_items[i];
      cover(first, kRowTile);
      const SequenceEntry& sequence = sequences.at(static_cast<size_t>(first.sequence));
      ASSERT_EQ(first.split_count, SplitsOf(sequence, group, first.first_packed_row, kRowTile));
      ASSERT_TRUE(row_tiles.insert(first.row_tile).second) << "a counter of two row tiles";
      for (int split = 0; split < first.split_count; ++split, ++i) {
        ASSERT_LT(i, plan.split_items.size());
        const AttentionItem& item = plan.split_items[i];
        ASSERT_EQ(item.split, split);
        ASSERT_EQ(item.sequence, first.sequence);
        ASSERT_EQ(item.first_packed_row, first.first_packed_row);
        ASSERT_EQ(item.split_count, first.split_count);
        ASSERT_EQ(item.first_partial, first.first_partial);
        ASSERT_EQ(item.row_tile, first.row_tile);
      }
      for (int split = 0; split < first.split_count; ++split) {
        ++partial_owners.at(static_cast<size_t>(first.first_partial + split));
      }
    }
    for (const auto& packed : covered) {
      ASSERT_EQ(std::count(packed.begin(), packed.end(), 1), static_cast<ptrdiff_t>(packed.size()));
    }
    ASSERT_EQ(std::count(partial_owners.begin(), partial_owners.end(), 1), plan.partials);
    ASSERT_EQ(static_cast<int>(row_tiles.size()), plan.row_tiles);
    if (!row_tiles.empty()) {
      ASSERT_GE(*row_tiles.begin(), 0);
      ASSERT_LT(*row_tiles.rbegin(), plan.row_tiles);
    }
    ASSERT_LE(plan.partials, room.partials);
    ASSERT_LE(plan.row_tiles, room.row_tiles);
    ASSERT_LE(static_cast<int>(plan.split_items.size() + plan.tile_items.size()), room.items);
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
};

TEST_F(AttentionPlanTest, CoversEveryRowOnceWhateverTheRoom) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 2000; ++round) {
    const int group = Int(0, 9) == 0 ? Int(9, 70) : Int(1, 8);
    const std::vector<SequenceEntry> sequences = AnyStep(Int(1, 300), Int(1, 40), Int(300, 6000));
    AttentionRoom room;
    for (const SequenceEntry& sequence : sequences) {
      room.items += Ceiling(sequence.row_count * group, kTileRows);
    }
    room.items += Int(0, 3) == 0 ? 0 : Int(0, 60);
    room.partials = Int(0, 3) == 0 ? 0 : Int(0, 300);
    room.row_tiles = Int(0, 3) == 0 ? 0 : Int(0, 60);
    Check(PlanAttention(sequences, group, room), sequences, group, room);
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
  }
}

TEST_F(AttentionPlanTest, RoomForHoldsTheLargestSteps) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 1000; ++round) {
    const int group = Int(1, 8), max_rows = Int(1, 400), max_sequences = Int(1, 200);
    const int max_positions = Int(1, 8000);
    const AttentionRoom room =
        RoomFor(max_rows, max_sequences, max_positions, group, Int(0, 2) ? 5000 : Int(0, 60));
    for (int step = 0; step < 3; ++step) {
      const std::vector<SequenceEntry> sequences = AnyStep(max_rows, max_sequences, max_positions);
      const AttentionPlan plan = PlanAttention(sequences, group, room);
      Check(plan, sequences, group, room);
      ASSERT_FALSE(HasFatalFailure()) << "round " << round;
      ASSERT_LE(static_cast<int>(plan.tile_items.size()), room.tile_items);
    }
  }
}

// With partials enough, every sequence of few rows is split.
TEST_F(AttentionPlanTest, DecodingIsSplitWhileThereIsRoom) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 300; ++round) {
    const int group = Int(1, 8), sequences = Int(1, 64), positions = Int(1, 9000);
    const AttentionRoom room = RoomFor(sequences, sequences, positions, group, 1 << 20);
    std::vector<SequenceEntry> step;
    for (int i = 0; i < sequences; ++i) step.push_back({i, 1, Int(0, positions - 1), 0});
    const AttentionPlan plan = PlanAttention(step, group, room);
    ASSERT_TRUE(plan.tile_items.empty()) << "round " << round;
    Check(plan, step, group, room);
  }
  // Many rows read K and V less often in tiles.
  EXPECT_TRUE(
      PlanAttention({{0, 33, 100, 0}}, 1, RoomFor(64, 1, 9000, 1, 1 << 20)).split_items.empty());
}

TEST(AttentionPlanDeathTest, TheRoomIsPromised) {
  const SequenceEntry sequence = {0, 65, 0, 0};
  AttentionRoom room;
  room.items = 1;
  EXPECT_DEATH(PlanAttention({sequence}, 1, room), "CHECK failed");
}

}  // namespace
}  // namespace baton::backend::cuda
