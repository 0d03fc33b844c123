#include "common/backend/cuda/kv_operations.h"

#include <bit>

#include "common/backend/cuda/kernels/latent.h"
#include "common/backend/cuda/kernels/rope_write.h"
#include "common/backend/cuda/matrices/device_weights.h"
#include "common/backend/cuda/row_operations.h"
#include "common/base/check.h"

namespace baton::backend::cuda {

HeadSource HeadSourceOf(const CudaBatch& batch, const KvPool& pool, const RopeWriteArgs& args) {
  const int64_t d = pool.head_dim, q_stride = args.q_stride > 0 ? args.q_stride : d;
  BATON_CHECK_EQ(pool.latent_dim, 0);
  BATON_CHECK(q_stride >= d && q_stride % 8 == 0) << q_stride;
  const int64_t stored = args.q_only ? 0 : args.v_is_k ? 1 : 2;
  CheckRows(args.qkv, batch.rows, args.query_heads * q_stride + stored * pool.kv_heads * d);
  const CudaRopeTable unrotated;
  const auto& rope =
      args.rope == nullptr ? unrotated : static_cast<const CudaRopeTable&>(*args.rope);
  BATON_CHECK_LE(2 * rope.half, d);
  const auto table = [](const std::unique_ptr<Buffer>& buffer) {
    return buffer == nullptr ? nullptr : static_cast<const float*>(buffer->data());
  };
  return {.qkv = F32(args.qkv),
          .qkv_stride = args.qkv.row_stride,
          .q_stride = static_cast<int>(q_stride),
          .q_norm = args.q_norm == nullptr ? nullptr : F32(*args.q_norm, d),
          .k_norm = args.k_norm == nullptr ? nullptr : F32(*args.k_norm, d),
          .norm_v = args.norm_v,
          .v_is_k = args.v_is_k,
          .q_only = args.q_only,
          .norm_eps = args.norm_eps,
          .cosine = table(rope.cosine),
          .sine = table(rope.sine),
          .half = rope.half,
          .query_scale = table(rope.query_scale)};
}

void EnqueueRopeWrite(const CudaBatch& batch, const KvPool& pool, const RopeWriteArgs& args,
                      Stream stream) {
  const KvPlace place = pool.PlaceOf(args.layer);
  CheckRows(args.q_out, batch.rows, int64_t{args.query_heads} * pool.head_dim);
  LaunchRopeWrite({.heads = HeadSourceOf(batch, pool, args),
                   .q_out = F32(args.q_out),
                   .q_out_stride = args.q_out.row_stride,
                   .layer = pool.Chunk(0, place.slot),
                   .block_stride_bytes = pool.block_stride_bytes,
                   .block_tokens_log2 = std::countr_zero(static_cast<unsigned>(pool.block_tokens)),
                   .query_heads = args.query_heads,
                   .kv_heads = pool.kv_heads,
                   .head_dim = pool.head_dim,
                   .positions = batch.d_positions,
                   .sequence_of_row = batch.d_sequence_of_row,
                   .sequences = batch.SequencesOf(place.table),
                   .tables = batch.d_tables,
                   .kv_format = pool.format},
                  pool.dtype, batch.rows, stream);
}

void EnqueueLatentWrite(const CudaBatch& batch, const KvPool& pool, const LatentWriteArgs& args,
                        Stream stream) {
  const auto& rope = static_cast<const CudaRopeTable&>(*args.rope);
  const KvPlace place = pool.PlaceOf(args.layer);
  const int64_t heads = args.query_heads, rotated = 2 * int64_t{rope.half};
  BATON_CHECK(rope.query_scale == nullptr);
  BATON_CHECK_EQ(pool.head_dim, pool.latent_dim + rotated);
  CheckRows(args.q, batch.rows, args.q.cols);
  CheckRows(args.kv, batch.rows, pool.head_dim);
  CheckRows(args.q_plain, batch.rows, args.q.cols - heads * rotated);
  CheckRows(args.q_out, batch.rows, heads * pool.head_dim);
  LaunchLatentWrite(
      {.q = F32(args.q),
       .q_stride = args.q.row_stride,
       .kv = F32(args.kv),
       .kv_stride = args.kv.row_stride,
       .norm = F32(*args.norm, pool.latent_dim),
       .norm_eps = args.norm_eps,
       .cosine = static_cast<const float*>(rope.cosine->data()),
       .sine = static_cast<const float*>(rope.sine->data()),
       .half = rope.half,
       .q_plain = args.q_plain.data,
       .q_plain_stride = args.q_plain.row_stride,
       .q_out = F32(args.q_out),
       .q_out_stride = args.q_out.row_stride,
       .layer = pool.Chunk(0, place.slot),
       .block_stride_bytes = pool.block_stride_bytes,
       .block_tokens_log2 = std::countr_zero(static_cast<unsigned>(pool.block_tokens)),
       .query_heads = args.query_heads,
       .plain = static_cast<int>(args.q_plain.cols / heads),
       .latent_dim = pool.latent_dim,
       .positions = batch.d_positions,
       .sequence_of_row = batch.d_sequence_of_row,
       .sequences = batch.SequencesOf(place.table),
       .tables = batch.d_tables,
       .kv_format = pool.format},
      args.q_plain.dtype, batch.rows, stream);
}

void EnqueueHeadProducts(const HeadProductArgs& args, DType dtype, Stream stream) {
  const auto& matrix = static_cast<const CudaMatrix&>(*args.heads);
  const int64_t k = matrix.in_features(), heads = args.x.cols / k;
  BATON_CHECK(args.x.dtype == dtype);
  BATON_CHECK_EQ(matrix.out_features() % heads, 0);
  const int64_t n = matrix.out_features() / heads;
  CheckRows(args.x, args.out.rows, heads * k);
  CheckRows(args.out, args.out.rows, args.out.cols);
  BATON_CHECK(n <= args.out_stride && heads * args.out_stride <= args.out.cols);
  LaunchHeadMatMul({.x = args.x.data,
                    .x_stride = args.x.row_stride,
                    .w = matrix.data(),
                    .out = F32(args.out),
                    .out_stride = args.out.row_stride,
                    .head_stride = args.out_stride,
                    .rows = static_cast<int>(args.x.rows),
                    .heads = static_cast<int>(heads),
                    .n = static_cast<int>(n),
                    .k = static_cast<int>(k)},
                   dtype, stream);
}

}  // namespace baton::backend::cuda
