// Latent attention (LatentWriteArgs in backend.h): what writes latents to the pool, attention over
// them, and the products for each head before and after it.
//
// Attention is one kernel in two uses. A block of eight warps has a row tile, 16 packed rows
// (attention.h), and takes tokens in pieces of 32, whose latents and rotated parts lie in shared
// memory as both operands: K of the scores, which warps sum by tokens and quarters of the dims, and
// V of the values, of which a warp has 64 dims. So each byte of the pool is read once for 16 rows.
// Pieces are folded into splits of 256 tokens and those into the row's result, in ascending order,
// as in attention.h:
// - split: a block computes one split of one row tile; the last one folds them.
// - tile: many rows. A block computes all splits of one row tile.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_LATENT_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_LATENT_H_

#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// The largest latents and rotated parts, as DeepSeek's models have them; smaller ones are padded
// with zeros. Both are multiples of 8.
inline constexpr int kMostLatentDim = 512;
inline constexpr int kMostRotatedDim = 64;

struct LatentWriteLaunch {
  const float* q;  // [rows, query_heads * (plain + 2 half)]
  int64_t q_stride;
  const float* kv;  // [rows, latent_dim + 2 half]
  int64_t kv_stride;
  const float* norm;  // [latent_dim]
  float norm_eps;
  const float* cosine;  // [positions, half]
  const float* sine;
  int half;
  void* q_plain;  // [rows, query_heads * plain], 16-bit
  int64_t q_plain_stride;
  float* q_out;  // [rows, query_heads * (latent_dim + 2 half)]
  int64_t q_out_stride;
  std::byte* layer;
  int64_t block_stride_bytes;
  int block_tokens_log2;
  int query_heads;
  int plain;  // a multiple of 8
  int latent_dim;
  const int32_t* positions;        // [rows]; below 0: padding, skipped
  const int32_t* sequence_of_row;  // [rows]
  const SequenceEntry* sequences;
  const int32_t* tables;
  KvFormat kv_format = KvFormat::kPlain;
};

// dtype: of q_plain and of KV that is plain, kF16 or kBF16. Reads 4 (q + kv) bytes a row; writes 2
// bytes of each plain element, 4 of each rotated one, and a row of the pool.
void LaunchLatentWrite(const LatentWriteLaunch& launch, DType dtype, int rows, Stream stream);

// Floats of a split's partial result of a row tile: m and l of 16 rows, then 16 sums of latents.
inline constexpr int kLatentPartialFloats = 16 * (2 + kMostLatentDim);
// Floats of the total that a tile item of 64 packed rows keeps of the splits before.
inline constexpr int64_t kLatentTotalFloats = int64_t{64} * kMostLatentDim;

// These take what LaunchAttentionSplit and LaunchAttentionTile take, but kv_heads is 1, head_dim is
// the sum of latent_dim and the rotated part, and out is [rows, group * latent_dim]. REQUIRES: no
// window, cap or sinks. Counters: one for each row tile.
void LaunchLatentSplit(const AttentionLaunch& launch, DType dtype, int blocks, Stream stream);
void LaunchLatentTile(const AttentionLaunch& launch, DType dtype, int items, Stream stream);

struct HeadMatMulLaunch {
  const void* x;  // [rows, heads * k], 16-bit
  int64_t x_stride;
  const void* w;  // [heads, n, k], 16-bit; k a multiple of 8
  float* out;     // [rows, ..], of which each head has n from head_stride times its number on
  int64_t out_stride;
  int64_t head_stride;
  int rows;
  int heads;
  int n;
  int k;
};

// A row's bits are those of LaunchMatMul for each head. dtype: of x and w, kF16 or kBF16.
void LaunchHeadMatMul(const HeadMatMulLaunch& launch, DType dtype, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_LATENT_H_
