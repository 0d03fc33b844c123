#include "common/backend/cuda/attention_operations.h"

#include <bit>

#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/latent.h"
#include "common/backend/cuda/kv_operations.h"
#include "common/backend/cuda/row_operations.h"
#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

const CudaBatch::Items& ItemsOf(const CudaBatch& batch, const KvPool& pool, int query_heads) {
  return batch.ItemsOf({query_heads, pool.kv_heads, pool.head_dim});
}

// The launch of `args`, whose queries the caller sets.
AttentionLaunch LaunchOf(const CudaBatch& batch, const KvPool& pool, const AttentionArgs& args,
                         DType dtype, const AttentionWorkspace& workspace,
                         const DeviceProperties& device) {
  const KvPlace place = pool.PlaceOf(args.layer);
  const CudaBatch::Items& items = ItemsOf(batch, pool, args.query_heads);
  CheckRows(args.out, batch.rows, int64_t{args.query_heads} * pool.value_dim());
  BATON_CHECK(args.out.dtype == dtype);
  return {
      .q = nullptr,
      .q_stride = 0,
      .out = args.out.data,
      .out_stride = args.out.row_stride,
      .layer = pool.Chunk(0, place.slot),
      .block_stride_bytes = pool.block_stride_bytes,
      .block_tokens_log2 = std::countr_zero(static_cast<unsigned>(pool.block_tokens)),
      .kv_heads = pool.kv_heads,
      .group = args.query_heads / pool.kv_heads,
      .head_dim = pool.head_dim,
      .latent_dim = pool.latent_dim,
      .scale = args.scale,
      .window = args.window,
      .score_cap = args.score_cap,
      .sinks = args.sinks == nullptr ? nullptr : F32(*args.sinks, args.query_heads),
      .sequences = batch.SequencesOf(place.table),
      .tables = batch.d_tables,
      .items = items.d_split_items,
      .item_range = items.d_split_range,
      .partials = workspace.partials,
      .counters = workspace.counters,
      .totals = workspace.totals,
      .tile_stages = TileStages(pool.head_dim, device.kernel_capability, device.shared_bytes),
      .kv_format = pool.format,
  };
}

}  // namespace

void EnqueueAttention(const CudaBatch& batch, const KvPool& pool, const AttentionArgs& args,
                      DType dtype, const AttentionWorkspace& workspace,
                      const DeviceProperties& device, Stream stream) {
  const CudaBatch::Items& items = ItemsOf(batch, pool, args.query_heads);
  AttentionLaunch launch = LaunchOf(batch, pool, args, dtype, workspace, device);
  CheckRows(args.q, batch.rows, int64_t{args.query_heads} * pool.head_dim);
  launch.q = F32(args.q);
  launch.q_stride = args.q.row_stride;
  const bool latent = pool.latent_dim > 0;
  BATON_CHECK(!latent || (args.window == 0 && !IsVariant(launch)));
  (latent ? LaunchLatentSplit : LaunchAttentionSplit)(launch, pool.dtype, items.split_blocks,
                                                      stream);
  launch.items = items.d_tile_items;
  launch.tile_pairs = TilePairs(int64_t{items.tile_items} * pool.kv_heads, device.multiprocessors);
  (latent ? LaunchLatentTile : LaunchAttentionTile)(launch, pool.dtype, items.tile_items, stream);
}

bool FusesRopeWrite(const CudaBatch& batch, const KvPool& pool, const AttentionArgs& args) {
  return ItemsOf(batch, pool, args.query_heads).d_split_range != nullptr && pool.latent_dim == 0 &&
         SplitFuses(args.query_heads / pool.kv_heads, pool.head_dim);
}

void EnqueueRopeWriteAttend(const CudaBatch& batch, const KvPool& pool, const RopeWriteArgs& write,
                            const AttentionArgs& args, DType dtype,
                            const AttentionWorkspace& workspace, const DeviceProperties& device,
                            Stream stream) {
  BATON_CHECK(FusesRopeWrite(batch, pool, args));
  BATON_CHECK_EQ(write.layer, args.layer);
  BATON_CHECK_EQ(write.query_heads, args.query_heads);
  AttentionLaunch launch = LaunchOf(batch, pool, args, dtype, workspace, device);
  launch.heads = HeadSourceOf(batch, pool, write);
  LaunchAttentionSplit(launch, pool.dtype, ItemsOf(batch, pool, args.query_heads).split_blocks,
                       stream);
}

}  // namespace baton::backend::cuda
