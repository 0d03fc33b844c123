#include "common/backend/cuda/steps/attention_plan.h"

#include <algorithm>
#include <cstdint>

#include "common/backend/cuda/kernels/index_maps.h"
#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

constexpr int kTileRows = kAttentionWarps * kRowTile;
// Beyond two row tiles the tile kernel reads K and V less often.
constexpr int kMaxSplitRows = 2 * kRowTile;

int Tiles(int64_t rows, int rows_a_tile) {
  return static_cast<int>((rows + rows_a_tile - 1) / rows_a_tile);
}

// Splits that hold the tokens which the rows [first, first + rows) see, from token 0 on.
int Splits(const SequenceEntry& sequence, int group, int first, int rows) {
  const int last_query = std::min((first + rows - 1) / group, sequence.row_count - 1);
  return Tiles(sequence.context + last_query + 1, kSplitTokens);
}

}  // namespace

AttentionPlan PlanAttention(absl::Span<const SequenceEntry> sequences, int group,
                            const AttentionRoom& room) {
  AttentionPlan plan;
  int tiles_to_come = 0;
  for (const SequenceEntry& sequence : sequences) {
    tiles_to_come += Tiles(int64_t{sequence.row_count} * group, kTileRows);
  }
  for (size_t index = 0; index < sequences.size(); ++index) {
    const SequenceEntry& sequence = sequences[index];
    const int packed = sequence.row_count * group;
    tiles_to_come -= Tiles(packed, kTileRows);
    AttentionItem item = {};
    item.sequence = static_cast<int>(index);
    if (packed <= kMaxSplitRows) {
      int partials = 0, blocks = 0;
      for (int first = 0; first < packed; first += kRowTile) {
        const int splits = Splits(sequence, group, first, kRowTile);
        partials += splits;
        blocks += splits;
      }
      const auto items =
          static_cast<int>(plan.split_items.size() + plan.tile_items.size()) + tiles_to_come;
      if (plan.partials + partials <= room.partials &&
          plan.row_tiles + Tiles(packed, kRowTile) <= room.row_tiles &&
          items + blocks <= room.items) {
        for (int first = 0; first < packed; first += kRowTile) {
          item.first_packed_row = first;
          item.split_count = Splits(sequence, group, first, kRowTile);
          item.first_partial = plan.partials;
          item.row_tile = plan.row_tiles++;
          plan.partials += item.split_count;
          for (int split = 0; split < item.split_count; ++split) {
            item.split = split;
            plan.split_items.push_back(item);
          }
        }
        continue;
      }
    }
    for (int first = 0; first < packed; first += kTileRows) {
      item.first_packed_row = first;
      item.split_count = Splits(sequence, group, first, kTileRows);
      plan.tile_items.push_back(item);
    }
  }
  // Blocks start in this order: a long one that starts last would keep the others waiting.
  std::stable_sort(
      plan.tile_items.begin(), plan.tile_items.end(),
      [](const AttentionItem& a, const AttentionItem& b) { return a.split_count > b.split_count; });
  BATON_CHECK_LE(plan.split_items.size() + plan.tile_items.size(), static_cast<size_t>(room.items));
  return plan;
}

AttentionRoom RoomFor(int max_rows, int max_sequences, int max_positions, int group,
                      int max_partials) {
  const int sequences = std::min(max_sequences, max_rows);
  const int splits = Tiles(max_positions, kSplitTokens);
  AttentionRoom room;
  room.row_tiles = sequences * (kMaxSplitRows / kRowTile);
  room.partials =
      static_cast<int>(std::min<int64_t>(int64_t{room.row_tiles} * splits, max_partials));
  // One block of each sequence may be partly filled.
  room.tile_items = Tiles(int64_t{max_rows} * group, kTileRows) + sequences;
  room.items = room.tile_items + room.partials;
  return room;
}

}  // namespace baton::backend::cuda
