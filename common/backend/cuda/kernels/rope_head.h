// What the heads of q, k and v are made from between their product and attention, for both kernels
// that do it: rope_write.h, and the split kernel of attention.h.
//
// A head of a row is 2^n consecutive lanes of a warp, of 8 dims each, or of 16 in two units beyond
// 256 dims; lanes beyond the head's width idle. A unit's dims are two quads that are rotated
// together (UnitDims): both halves of every pair are in one thread. A head's result is a function
// of the head, its position and the weights alone, so a slot's bits do not depend on the batch.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_ROPE_HEAD_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_ROPE_HEAD_H_

#include <cstdint>

#include "common/backend/cuda/kernels/index_maps.h"

namespace baton::backend::cuda {

// The first dims of the two quads of a head's unit `unit`: where pairs are (i, i + half), those of
// four pairs; behind 2 * half, where nothing is rotated, eight dims in a row.
struct QuadPair {
  int low, high;
};
BATON_INDEX_MAP QuadPair UnitDims(int unit, int half) {
  if (unit < half / 4) return {unit * 4, half + unit * 4};
  const int dim = 2 * half + (unit - half / 4) * 8;
  return {dim, dim + 4};
}
// Lanes of a warp that share a head: the least power of two that has a lane for every unit, or
// every pair of units, of which a lane has `unit` and `unit` + lanes. More lanes, up to the warp,
// whose units are beyond the head, change no bit of it: they add zeros to the norm's sum.
BATON_INDEX_MAP int HeadLanes(int head_dim) {
  int lanes = 1;
  while (lanes < 32 && lanes < head_dim / 8) lanes *= 2;
  return lanes;
}
inline constexpr int kMostUnits = 2;  // of a lane

// Pointers are multiples of 16 bytes, strides (in elements) of 8. Heads are those of q, then of k,
// then of v.
struct HeadSource {
  // [rows, query_heads * q_stride + 2 * kv_heads * head_dim], or with v_is_k half of k and v, or
  // with q_only none.
  const float* qkv = nullptr;
  int64_t qkv_stride = 0;
  int q_stride = 0;               // columns from one head's query to the next one's
  const float* q_norm = nullptr;  // [head_dim], or null: q is not normed
  const float* k_norm = nullptr;
  bool norm_v = false;  // by 1 / rms alone
  bool v_is_k = false;  // as it is
  bool q_only = false;  // nothing is written to the pool
  float norm_eps = 0;
  const float* cosine = nullptr;  // [positions, half]
  const float* sine = nullptr;
  int half = 0;  // of the rotated dims: a multiple of 4, at most head_dim / 2; 0: no rotation
  const float* query_scale = nullptr;  // [positions], by which rotated queries are multiplied
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_ROPE_HEAD_H_
