#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/kv_codes.cuh"
#include "common/backend/cuda/kernels/rope_head.cuh"
#include "common/backend/cuda/kernels/rope_write.h"

namespace baton::backend::cuda {
namespace {

constexpr int kThreads = 128;

// The heads of q, k and v together.
BATON_HOST_DEVICE int HeadsOf(const RopeWriteLaunch& launch) {
  return launch.query_heads + (launch.heads.q_only ? 0 : 2 * launch.kv_heads);
}

// Kv: Half or BFloat16, or the codes that the pool holds. kUnits: of a lane.
template <class Kv, int kUnits>
BATON_KERNEL(kThreads)
RopeWriteKernel(RopeWriteLaunch launch) {
  AwaitPrevious();
  const int64_t row = BlockIndex().x;
  const int lanes = HeadLanes(launch.head_dim);
  const int head = static_cast<int>(BlockIndex().y) * (kThreads / lanes) + ThreadIndex() / lanes;
  const int position = LoadGlobal(launch.positions + row);
  const bool exists = position >= 0 && head < HeadsOf(launch);
  HeadUnits<kUnits> units(launch.heads, launch.query_heads, launch.kv_heads, launch.head_dim, row,
                          head, position, exists, ThreadIndex() % lanes, lanes);
  units.Norm(launch.heads, launch.head_dim, lanes);
  if (kIsPlain<Kv> && !exists) return;
  units.Turn();
  RowRange range = {};
  if constexpr (!kIsPlain<Kv>) {
    range = units.Range(lanes);
    if (!exists) return;
  }
  if (units.is_q) {
    units.ScaleQuery(launch.heads);
    float* to = launch.q_out + row * launch.q_out_stride + int64_t{head} * launch.head_dim;
    BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
      if (!units.valid[u]) continue;
      Store16(to + units.dims[u].low, Pack4(units.x[u]));
      Store16(to + units.dims[u].high, Pack4(units.x[u] + 4));
    }
    return;
  }
  const SequenceEntry& sequence =
      LoadGlobal(launch.sequences + LoadGlobal(launch.sequence_of_row + row));
  const int32_t block =
      LoadGlobal(launch.tables + sequence.first_block + (position >> launch.block_tokens_log2));
  units.template Write<Kv>(launch.layer + block * launch.block_stride_bytes,
                           launch.block_tokens_log2, launch.head_dim, launch.query_heads, range);
}

template <int kUnits>
void LaunchFor(const RopeWriteLaunch& launch, DType dtype, int rows, Stream stream) {
  const int heads_a_block = kThreads / HeadLanes(launch.head_dim);
  const GridSize grid = {
      static_cast<unsigned>(rows),
      static_cast<unsigned>((HeadsOf(launch) + heads_a_block - 1) / heads_a_block), 1};
  switch (launch.kv_format) {
    case KvFormat::kPlain:
      return dtype == DType::kF16
                 ? Launch(RopeWriteKernel<Half, kUnits>, grid, kThreads, 0, stream, launch)
                 : Launch(RopeWriteKernel<BFloat16, kUnits>, grid, kThreads, 0, stream, launch);
    case KvFormat::kInt8:
      return Launch(RopeWriteKernel<Int8, kUnits>, grid, kThreads, 0, stream, launch);
    case KvFormat::kInt4:
      return Launch(RopeWriteKernel<Int4, kUnits>, grid, kThreads, 0, stream, launch);
    case KvFormat::kFp8:
      return Launch(RopeWriteKernel<Fp8, kUnits>, grid, kThreads, 0, stream, launch);
  }
}

}  // namespace

const void* RopeWriteKernelOfBFloat16() {
  return reinterpret_cast<const void*>(&RopeWriteKernel<BFloat16, 1>);
}

void LaunchRopeWrite(const RopeWriteLaunch& launch, DType dtype, int rows, Stream stream) {
  if (rows == 0) return;
  const bool fits = launch.head_dim / kUnitElements <= HeadLanes(launch.head_dim);
  (fits ? LaunchFor<1> : LaunchFor<kMostUnits>)(launch, dtype, rows, stream);
}

}  // namespace baton::backend::cuda
