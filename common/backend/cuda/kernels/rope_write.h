// Between the q, k, v product and attention: per-head RMS norm of q and k (Qwen3), rotation by
// position (Su et al., arXiv 2104.09864), and k and v rounded into their slots of the paged pool; q
// stays f32. Finite values round to finite ones: attention multiplies V of hidden tokens by 0, and
// an infinity there would give NaNs to other tokens of the block. One pass, as in TurboMind's
// prologue of attention and vLLM's reshape_and_cache.
//
// A head of a row is 2^n consecutive lanes of a warp, of 8 dims each, or of 16 in two units beyond
// 256 dims; lanes beyond the head's width idle. A unit's dims are two quads that are rotated
// together (UnitDims): both halves of every pair are in one thread. A head's result is a function
// of the head, its position and the weights alone, so a slot's bits do not depend on the batch.
// Where the pool holds codes, the lanes of a head find its least and largest elements by shuffles,
// and the first stores scale and zero.
//
// Bytes a row: 4 (query_heads + 2 kv_heads) head_dim read; 4 query_heads head_dim + 4 kv_heads
// head_dim written, of codes 2 kv_heads (row bytes + 4). cos and sin of a position are read once a
// block of threads, from the cache.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_ROPE_WRITE_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_ROPE_WRITE_H_

#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

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
// every pair of units, of which a lane has `unit` and `unit` + lanes.
BATON_INDEX_MAP int HeadLanes(int head_dim) {
  int lanes = 1;
  while (lanes < 32 && lanes < head_dim / 8) lanes *= 2;
  return lanes;
}
inline constexpr int kMostUnits = 2;  // of a lane

// Pointers are multiples of 16 bytes, strides (in elements) of 8.
struct RopeWriteLaunch {
  // [rows, query_heads * q_stride + 2 * kv_heads * head_dim], or with v_is_k half of k and v, or
  // with q_only none.
  const float* qkv;
  int64_t qkv_stride;
  float* q_out;  // [rows, query_heads * head_dim]
  int64_t q_out_stride;
  const float* q_norm;  // [head_dim], or null: q is not normed
  const float* k_norm;
  bool norm_v = false;  // by 1 / rms alone
  bool v_is_k = false;  // as it is
  bool q_only = false;  // nothing is written to the pool
  float norm_eps;
  const float* cosine;  // [positions, half]
  const float* sine;
  int half;  // of the rotated dims: a multiple of 4, at most head_dim / 2; 0: no rotation
  const float* query_scale = nullptr;  // [positions], by which rotated queries are multiplied
  std::byte* layer;                    // of block 0: [K,V][kv_heads] of heads; see KvPool
  int64_t block_stride_bytes;
  int block_tokens_log2;
  int query_heads;
  int kv_heads;
  int head_dim;                    // a multiple of 8, at most 512
  int q_stride;                    // columns from one head's query to the next one's
  const int32_t* positions;        // [rows], in their sequences; below 0: padding, skipped
  const int32_t* sequence_of_row;  // [rows]
  const SequenceEntry* sequences;  // only first_block is read
  const int32_t* tables;
  KvFormat kv_format = KvFormat::kPlain;
};

// dtype: of KV that is plain, kF16 or kBF16.
void LaunchRopeWrite(const RopeWriteLaunch& launch, DType dtype, int rows, Stream stream);

// The bfloat16 kernel, to ask CUDA which architecture it was compiled for.
const void* RopeWriteKernelOfBFloat16();

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_ROPE_WRITE_H_
