// Kernels that pass over rows once, eight elements a thread: bound by memory, with nothing to share
// between threads. A block takes kPassThreads units of one row.
//
// Bytes a row of n: Embed n of the table's elements read, 4 n written; Gate 8 n read (without a
// gate 4 n), n of out's written; GatherRows 4 n read and written; AddBias 4 n read and written, the
// bias from the cache; ScaleLogits 4 n read and written.
//
// Pointers are multiples of 16 bytes; strides (in elements) and widths, but that of logits, are of
// 8.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_ELEMENTWISE_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_ELEMENTWISE_H_

#include "common/backend/cuda/kernels/gating.h"
#include "common/backend/cuda/kernels/sampling.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

inline constexpr int kPassThreads = 128;

// out[r] = table[row_of[r]] * scale, as f32: the embedding of tokens, and rows picked by their
// numbers.
struct GatherLaunch {
  const void* table;  // [any, cols]
  int64_t table_stride;
  const int32_t* row_of;  // [rows], each a row of the table
  float* out;             // [rows, cols]
  int64_t out_stride;
  int cols;
  // With `drawn`, a row with drawn[r] >= 0 uses that result's token in place of row_of[r] and
  // stores it there. A token that is not a row of the table, from a failed draw, counts as 0.
  const int32_t* drawn = nullptr;         // [rows] or null
  const SampleResult* results = nullptr;  // that drawn indexes
  int32_t* kept = nullptr;                // row_of
  int32_t table_rows = 0;
  float scale = 1;
};
void LaunchGather(const GatherLaunch& launch, DType table_dtype, int rows, Stream stream);

// out = activation(gate) * up * scale, or activation(up) * scale.
struct GateLaunch {
  const float* gate_up;  // [rows, 2 * cols], gate first; kSquaredRelu: [rows, cols], up alone
  int64_t gate_up_stride;
  const float* up = nullptr;  // [rows, cols]; null: in gate_up, which else has no more than gate
  int64_t up_stride = 0;
  void* out;  // [rows, cols]
  int64_t out_stride;
  int cols;
  Gating gating = {};
};
void LaunchGate(const GateLaunch& launch, DType out_dtype, int rows, Stream stream);

// x += bias: where a product's own epilogue cannot add it.
struct AddBiasLaunch {
  float* x;  // [rows, cols]
  int64_t x_stride;
  const float* bias;  // [cols]
  int cols;
};
void LaunchAddBias(const AddBiasLaunch& launch, int rows, Stream stream);

// In place: x becomes x * scale or, if cap is not 0, cap * tanh(x * scale / cap).
struct ScaleLogitsLaunch {
  float* logits;  // [rows, cols]
  int64_t stride;
  int cols;  // any number
  float scale;
  float cap;
};
void LaunchScaleLogits(const ScaleLogitsLaunch& launch, int rows, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_ELEMENTWISE_H_
