// Recurrent layers: backend/recurrence.h has what they compute. Token by token, in one order, so
// that a state has the same bits however its tokens were cut into steps.
//
// - heads (the gated delta rule, Mamba 2): a warp has a unit of a head's state, 16 lanes of it,
// each
//   lane in two threads: one has the even depths, the other the odd ones, each sums its own in
//   ascending order, and the two sums are added. A state is loaded once, stays in registers over
//   all of the sequence's tokens in the step (beyond 256 depths: in shared memory), and is stored
//   where the step is to leave it. Keys and queries are staged in shared memory, a few tokens at a
//   time, for the warps of a block, which are of one head. With exponentials alike these would be
//   the bits of the CPU backend.
// - short convolution: a thread has a channel, of a few rows. The thread that has a sequence's
// first
//   row alone reads and writes the channel's state: what it is to be is in the rows.
//
// The chunked form of these recurrences (arXiv 2406.06484) multiplies matrices where this one
// multiplies vectors, but its results depend on where chunks begin.
//
// Bytes: each state once read and once written a step, and each row of operands once a block that
// needs it, mostly from the L2 cache.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_RECURRENCE_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_RECURRENCE_H_

#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// A sequence of a step as recurrent layers see it, on the device. `state` and `stores` are indices
// in the tables of pages.
struct StateEntry {
  int32_t first_row;
  int32_t row_count;  // 0: padding
  int32_t state;      // of the pages to read, one a table; below 0: all zeros
  // Of the first store: its rows, counted from first_row, and then its pages. Where rows follow the
  // last store, one more has all rows, and pages below 0: they leave no state.
  int32_t stores;
  int32_t store_count;  // without that one
};

// Where some units of a plane are: StateSpot on the device.
struct SpotEntry {
  uint32_t table;
  uint32_t offset;  // bytes from the page's start
};

// A plane of states, and the sequences of a step.
struct StatePlaces {
  std::byte* base;  // of page 0
  int64_t page_stride_bytes;
  const SpotEntry* spots;
  int spot_units;
  int depth;
  int state_tables;
  const StateEntry* sequences;
  const int32_t* tables;
};

inline constexpr int kUnitLanes = 16;
inline constexpr int kUnitsOfBlock = 2;  // at most
// Depths that a thread holds in registers: half of a state's.
inline constexpr int kFewHeldDepths = 64, kManyHeldDepths = 128;
inline constexpr int kMostStagedTokens = 32;

// Floats of a staged key or query: the even depths, then the odd ones, in different banks.
constexpr int StagedFloats(int depth) { return depth + 8; }
// Tokens that are staged at a time.
constexpr int StagedTokens(int depth) {
  const int floats = depth > 2 * kManyHeldDepths ? 2048 : 4096;
  const int tokens = floats / (2 * depth);
  return tokens < 1 ? 1 : tokens > kMostStagedTokens ? kMostStagedTokens : tokens;
}

struct HeadsLaunch {
  StatePlaces state;
  // f32 [rows, row_stride], the columns of the first head or group: queries or C, keys or B, values
  // or x.
  const float* queries;
  const float* keys;
  const float* values;
  int64_t row_stride;
  const float* gates;  // f32 [rows, gates_stride]: b, then a, or dt
  int64_t gates_stride;
  const float* decay;      // [heads]
  const float* step_bias;  // [heads]
  const float* skip;       // [heads]; the delta rule has none
  float* out;              // [rows, heads * lanes]
  int64_t out_stride;
  int heads;
  // Head h has group h / heads_of_key, or of the delta rule key h / heads_of_key % key_heads:
  // heads_of_key heads share one, or with 1 they take them in turn.
  int heads_of_key, key_heads;
  int lanes;       // of a head, a multiple of kUnitLanes
  float norm_eps;  // of the delta rule
  float query_factor;
  float least_step, most_step;  // of Mamba 2
  // The launch functions set these.
  int units_of_block = 0;
  int staged_tokens = 0;
};
// state.depth: a multiple of 16, at most kMostStateDepth.
void LaunchGatedDelta(const HeadsLaunch& launch, int sequences, Stream stream);
void LaunchStateSpace(const HeadsLaunch& launch, int sequences, Stream stream);

inline constexpr int kConvThreads = 128;
inline constexpr int kMostConvRows = 16;  // of a block
struct ShortConvLaunch {
  StatePlaces state;
  const int32_t* positions;        // [rows]; below 0: padding, skipped
  const int32_t* sequence_of_row;  // [rows]
  const float* x;                  // [rows, channels]
  int64_t x_stride;
  const float* before;  // the same, or null
  int64_t before_stride;
  const float* after;
  int64_t after_stride;
  const float* weight;  // [taps, channels]
  const float* bias;    // [channels], or null
  void* out;            // [rows, channels]
  int64_t out_stride;
  int channels;  // a multiple of kUnitLanes
  int taps;      // 2 to kMostConvTaps
  int rows;
  int rows_of_block;  // 1 to kMostConvRows: as many as a sequence has, that none waits for another
  bool silu;
};
void LaunchShortConv(const ShortConvLaunch& launch, DType out_dtype, Stream stream);

// out = silu(gate) * (x / rms * weight) of each group of columns, or with gate_first
// (silu(gate) * x) / rms * weight.
struct GatedNormLaunch {
  const float* x;  // [rows, groups * group]
  int64_t x_stride;
  const float* gate;
  int64_t gate_stride;
  const float* weight;  // [weight_size]
  int weight_size;      // of a group, or of all columns
  void* out;            // 16-bit elements
  int64_t out_stride;
  int groups;
  int group;
  bool gate_first;
  float eps;
};
void LaunchGatedNorm(const GatedNormLaunch& launch, DType out_dtype, int rows, Stream stream);

// x / (1 + e^-g) in place, with g in column c / group * group_stride + c % group of `gate`.
struct OutputGateLaunch {
  void* x;  // [rows, cols], 16-bit elements, rows at multiples of four bytes
  int64_t x_stride;
  const float* gate;
  int64_t gate_stride;
  int cols;   // even
  int group;  // 0: one gate a row
  int64_t group_stride;
};
void LaunchOutputGate(const OutputGateLaunch& launch, DType dtype, int rows, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_RECURRENCE_H_
