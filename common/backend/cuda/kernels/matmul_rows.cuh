// Products of few rows: what a block of MatMulRowsKernel does, for all kernels that multiply so.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_ROWS_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_ROWS_CUH_

#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul_core.cuh"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// A warp takes a slice, for the same rows of x (8, 16 or 32) by tiles of 8 columns.
template <int kRows, int kTiles>
struct RowsShape {
  static constexpr int kEights = kRows / 8;  // of rows: one load of x
  static constexpr int kColumns = kTiles * kColumnTile;
  static constexpr int kOutputs = kRows * kColumns;
  // Chunks of 32 k's that are on their way at once, at most: 256 bytes a lane or more.
  static constexpr int kAhead = (16 + kTiles + kEights - 1) / (kTiles + kEights);
  // Dynamic shared memory: [slice][row][column].
  static constexpr size_t kBytes = kSlices * kOutputs * sizeof(float);
};

// What a slot is filled with once its chunk is multiplied: one that lies in the slice as a whole,
// one that may not, or nothing.
enum class Refill { kWhole, kEdge, kNone };

// The chunks that a warp multiplies: a ring in registers. Multiplying one makes room for the one
// that comes kAhead later.
template <class Element, int kRows, int kTiles>
struct Ring {
  using Shape = RowsShape<kRows, kTiles>;
  static constexpr int kTurn = Shape::kAhead * kChunkedK;  // k's
  const uint16_t* x[Shape::kEights];
  const uint16_t* w[kTiles];
  int left;  // k's of the slice from the oldest chunk on
  uint32_t hidden_zero = kRows > 8 ? HiddenZero() : 0;
  Vec16 rows[Shape::kAhead][Shape::kEights], weights[Shape::kAhead][kTiles];
  float sums[(Shape::kEights + 1) / 2][kTiles][4] = {};

  // Chunk number `at` from the oldest one on. Zeros behind the slice's end change no sum.
  template <Refill kRefill>
  BATON_DEVICE void Fetch(int slot, int at) {
    if (kRefill == Refill::kNone) return;
    constexpr bool kWhole = kRefill == Refill::kWhole;
    const int k = at * kChunkedK;
    const bool valid = kWhole || k + MemberOf(Lane()) * kChunkElements < left;
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      weights[slot][tile] = kWhole ? Load16Once(w[tile] + k) : Load16If(valid, w[tile] + k);
    }
    BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) {
      rows[slot][i] = kWhole ? Load16(x[i] + k) : Load16If(valid, x[i] + k);
    }
  }

  // Once around.
  template <Refill kRefill>
  BATON_DEVICE void Turn() {
    BATON_UNROLL for (int slot = 0; slot < Shape::kAhead; ++slot) {
      BATON_UNROLL for (int i = 0; i < Shape::kEights; i += 2) {
        const Vec16& low = rows[slot][i];
        // The products with rows 8 to 15, which 8 rows lack, are not stored: any operand does, and
        // these are at hand in the registers behind the low ones.
        const Vec16 high = Shape::kEights == 1 ? Vec16{{low.x[1], low.x[1], low.x[3], low.x[3]}}
                                               : rows[slot][Least(i + 1, Shape::kEights - 1)];
        const RowsOperand operand(low, high, hidden_zero);
        BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          Accumulate<Element>(sums[i / 2][tile], operand, weights[slot][tile]);
        }
      }
      Fetch<kRefill>(slot, slot + Shape::kAhead);
    }
    BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) x[i] += kTurn;
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) w[tile] += kTurn;
    left -= kTurn;
  }
};

// Asks for the beginning of the warp's slice of W; before AwaitPrevious.
template <int kTiles>
BATON_DEVICE void PrefetchSlice(int k, const uint16_t* const (&w)[kTiles]) {
  constexpr int kLine = 64;  // k's in 128 bytes
  const int begin = Warp() * SliceLength(k);
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
    PrefetchL2(w[tile] + Least(begin + MemberOf(Lane()) * kLine, k - 1));
  }
}

// Leaves the warp's sums in shared memory. w: the rows of W that the lane's group loads. The caller
// synchronizes.
template <class Element, int kRows, int kTiles, class Matrices>
BATON_DEVICE void SumSlice(const Matrices& launch, int first_row,
                           const uint16_t* const (&w)[kTiles]) {
  using Shape = RowsShape<kRows, kTiles>;
  const int group = GroupOf(Lane()), member = MemberOf(Lane());
  const int length = SliceLength(launch.k), begin = Warp() * length;
  const int offset = begin + member * kChunkElements;
  Ring<Element, kRows, kTiles> ring;
  BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) {
    // Rows that there are not are those of others, and not stored.
    ring.x[i] = XRow(launch, Least(first_row + i * 8 + group, launch.rows - 1)) + offset;
  }
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) ring.w[tile] = w[tile] + offset;
  ring.left = Least(length, launch.k - begin);
  if (ring.left > 0) {
    BATON_UNROLL for (int i = 0; i < Shape::kAhead; ++i) ring.template Fetch<Refill::kEdge>(i, i);
    BATON_NO_UNROLL while (ring.left >= 2 * ring.kTurn) ring.template Turn<Refill::kWhole>();
    BATON_NO_UNROLL while (ring.left > ring.kTurn) ring.template Turn<Refill::kEdge>();
    ring.template Turn<Refill::kNone>();
  }
  float* shared = reinterpret_cast<float*>(SharedMemory()) + Warp() * Shape::kOutputs;
  BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) {
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      BATON_UNROLL for (int e = 0; e < 2; ++e) {
        shared[(i * 8 + group) * Shape::kColumns + tile * kColumnTile + member * 2 + e] =
            ring.sums[i / 2][tile][i % 2 * 2 + e];
      }
    }
  }
}

template <int kOutputs>
BATON_DEVICE float FoldSlices(int k, int index) {
  const int length = SliceLength(k);
  const float* shared = reinterpret_cast<const float*>(SharedMemory());
  float total = kNoSlice;
  for (int slice = 0; slice < kSlices && slice * length < k; ++slice) {
    total = Add(total, shared[slice * kOutputs + index]);
  }
  return total;
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_ROWS_CUH_
