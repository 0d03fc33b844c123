// The norm of a product's input in the product's kernel: rows of x are normed into shared memory.
// See matmul_normed.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_NORMED_ROWS_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_NORMED_ROWS_CUH_

#include "common/backend/cuda/kernels/matmul_normed.h"
#include "common/backend/cuda/kernels/matmul_rows.cuh"
#include "common/backend/cuda/kernels/norm_unit.cuh"

namespace baton::backend::cuda {

inline constexpr int kNormedRows = 8;  // at most, all of which a block has

// A block's shared memory has the sums of its slices (`sums_bytes`), then the sums of squares of
// the rows' parts, then the normed rows.
inline constexpr size_t kPartSumsBytes = kMostNormParts * sizeof(float);
inline size_t NormedBytes(size_t sums_bytes, int rows, int k) {
  return sums_bytes + kPartSumsBytes + static_cast<size_t>(rows * StagedStride(k)) * 2;
}
template <size_t kSumsBytes>
using NormedX = StagedRows<kSumsBytes + kPartSumsBytes>;

// Norms the rows of `input` into the place of NormedX<kSumsBytes>, all threads of the block
// together. A part of a row is what a warp of NormKernel has; here a warp takes every eighth part,
// of whichever row, and the order of a row's sum is that of NormKernel.
template <class Element, size_t kSumsBytes>
BATON_DEVICE void StageNormed(const NormedInput& input, int rows, int k) {
  constexpr int kParts = kMostNormParts / kSlices;  // of a warp
  static_assert(kRowsThreads == kSlices * kWarpLanes && kNormPart == kUnitElements * kWarpLanes);
  // NormKernel's threads have a unit each, too.
  static_assert(kMostNormedElements <= kMostNormThreads * kUnitElements);
  float* const sums = reinterpret_cast<float*>(SharedMemory() + kSumsBytes);
  const int units = k / kUnitElements, parts = NormParts(k);
  float x[kParts][kUnitElements], weight[kParts][kUnitElements];
  const auto each = [&](const auto& body) {
    BATON_UNROLL for (int i = 0; i < kParts; ++i) {
      const int part = Warp() + i * kSlices;
      if (part >= rows * parts) continue;  // whole warps agree
      const int row = part / parts;
      body(part, row, (part - row * parts) * kWarpLanes + Lane(), x[i], weight[i]);
    }
  };
  using Unit = float(&)[kUnitElements];
  each([&](int, int row, int unit, Unit of_unit, Unit of_weight) {
    const bool exists = unit < units;
    const int column = exists ? unit * kUnitElements : 0;
    const float* const from = input.x + row * input.x_stride + column;
    BATON_UNROLL for (int i = 0; i < kUnitElements; i += 4) {
      Unpack4(Load16If(exists, from + i), of_unit + i);
      Unpack4(Load16If(exists, input.weight + column + i), of_weight + i);
    }
  });
  each([&](int part, int, int, Unit of_unit, Unit) {
    const float sum = WarpSum(AddSquares(of_unit, 0));
    if (Lane() == 0) sums[part] = sum;
  });
  SyncThreads();
  each([&](int, int row, int unit, Unit of_unit, Unit of_weight) {
    float squares = 0;
    for (int part = 0; part < parts; ++part) squares = Add(squares, sums[row * parts + part]);
    if (unit * kUnitElements >= (k + kChunkedK - 1) / kChunkedK * kChunkedK) return;
    Normalize(of_weight, InverseRms(squares, k, input.eps), of_unit);  // zeros behind k stay
    Vec16 packed;
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      packed.x[i] = Element::Pack(of_unit[2 * i], of_unit[2 * i + 1]);
    }
    Store16(NormedX<kSumsBytes>::Row(row, k) + unit * kUnitElements, packed);
  });
  SyncThreads();
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_NORMED_ROWS_CUH_
