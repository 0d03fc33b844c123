// The thread blocks of a step's attention: host arithmetic.
#ifndef BATON_COMMON_BACKEND_CUDA_STEPS_ATTENTION_PLAN_H_
#define BATON_COMMON_BACKEND_CUDA_STEPS_ATTENTION_PLAN_H_

#include <vector>

#include "absl/types/span.h"
#include "common/backend/cuda/kernels/attention.h"

namespace baton::backend::cuda {

struct AttentionPlan {
  std::vector<AttentionItem> split_items;
  std::vector<AttentionItem> tile_items;  // those of the most tokens first
  int partials = 0;                       // for each KV head
  int row_tiles = 0;                      // of the split kernel: counters for each KV head
};

// The capacity of the workspaces, for each KV head.
struct AttentionRoom {
  int partials = 0;
  int row_tiles = 0;
  int items = 0;       // of both kernels together
  int tile_items = 0;  // of the tile kernel, at most
};

// Sequences of few packed rows go to the split kernel while `room` lasts, the others to the tile
// kernel; the result of a row is the same in either. group: query heads a KV head.
// REQUIRES: room.items is at least the sum over sequences of ceil(rows * group / 64).
AttentionPlan PlanAttention(absl::Span<const SequenceEntry> sequences, int group,
                            const AttentionRoom& room);

// Room for every step of so many rows and sequences, in which the split kernel serves sequences of
// up to max_positions tokens until `max_partials` are used.
AttentionRoom RoomFor(int max_rows, int max_sequences, int max_positions, int group,
                      int max_partials);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_STEPS_ATTENTION_PLAN_H_
