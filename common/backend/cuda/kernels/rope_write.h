// Between the q, k, v product and attention: per-head RMS norm of q and k (Qwen3), rotation by
// position (Su et al., arXiv 2104.09864), and k and v rounded into their slots of the paged pool; q
// stays f32. Finite values round to finite ones: attention multiplies V of hidden tokens by 0, and
// an infinity there would give NaNs to other tokens of the block. One pass, as in TurboMind's
// prologue of attention and vLLM's reshape_and_cache. rope_head.h has how a head lies in lanes.
// Where the pool holds codes, the lanes of a head find its least and largest elements by shuffles,
// and the first stores scale and zero.
//
// Bytes a row: 4 (query_heads + 2 kv_heads) head_dim read; 4 query_heads head_dim + 4 kv_heads
// head_dim written, of codes 2 kv_heads (row bytes + 4). cos and sin of a position are read once a
// block of threads, from the cache.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_ROPE_WRITE_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_ROPE_WRITE_H_

#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/rope_head.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// Pointers are multiples of 16 bytes, strides (in elements) of 8.
struct RopeWriteLaunch {
  HeadSource heads;
  float* q_out;  // [rows, query_heads * head_dim]
  int64_t q_out_stride;
  std::byte* layer;  // of block 0: [K,V][kv_heads] of heads; see KvPool
  int64_t block_stride_bytes;
  int block_tokens_log2;
  int query_heads;
  int kv_heads;
  int head_dim;                    // a multiple of 8, at most 512
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
