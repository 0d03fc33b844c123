#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/kv_codes.cuh"
#include "common/backend/cuda/kernels/kv_row.cuh"
#include "common/backend/cuda/kernels/rope_write.h"

namespace baton::backend::cuda {
namespace {

constexpr int kThreads = 128;

template <class Kv>
constexpr bool kIsPlain = std::is_base_of_v<Half, Kv> || std::is_base_of_v<BFloat16, Kv>;

// The heads of q, k and v together.
BATON_HOST_DEVICE int HeadsOf(const RopeWriteLaunch& launch) {
  return launch.query_heads + (launch.q_only ? 0 : 2 * launch.kv_heads);
}

// A lane's units of a head; units beyond the head hold zeros.
template <int kUnits>
using Units = float[kUnits][kUnitElements];

// `lanes` lanes hold a head's units. weight: null for all ones.
template <int kUnits>
BATON_DEVICE void NormHead(bool norms, const float* weight, float eps, int head_dim, int lanes,
                           const bool (&valid)[kUnits], const QuadPair (&dims)[kUnits],
                           Units<kUnits>& x) {
  float sum = 0;
  BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
    BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) sum = Fma(x[u][i], x[u][i], sum);
  }
  for (int mask = lanes / 2; mask > 0; mask /= 2) sum = Add(sum, ShuffleXor(sum, mask));
  if (!norms) return;
  const float mean = Divide(sum, static_cast<float>(head_dim));
  const float scale = Divide(1.0f, SquareRoot(Add(mean, eps)));
  BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
    if (!valid[u]) continue;
    BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[u][i] = Mul(x[u][i], scale);
    if (weight == nullptr) continue;
    float w[kUnitElements];
    LoadQuads(weight, dims[u], w);
    BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[u][i] = Mul(x[u][i], w[i]);
  }
}

// Of a head. All lanes of the warp together; `lanes` as for NormHead, of which only valid units
// count.
template <int kUnits>
BATON_DEVICE RowRange RangeOf(int lanes, const bool (&valid)[kUnits], const Units<kUnits>& x) {
  RowRange range = UnitRange(valid[0], x[0]);
  const auto add = [&](float least, float largest, float nothing) {
    range.least = Least(range.least, least);
    range.largest = Greatest(range.largest, largest);
    range.nothing = Add(range.nothing, nothing);
  };
  BATON_UNROLL for (int u = 1; u < kUnits; ++u) {
    const RowRange of_unit = UnitRange(valid[u], x[u]);
    add(of_unit.least, of_unit.largest, of_unit.nothing);
  }
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    add(ShuffleXor(range.least, mask), ShuffleXor(range.largest, mask),
        ShuffleXor(range.nothing, mask));
  }
  return range;
}

// A unit of K or V to its place. slot: of the position in its block.
template <class Kv>
BATON_DEVICE void WriteUnit(const RopeWriteLaunch& launch, int32_t block, int head, int slot,
                            int unit, QuadPair dims, const RowRange& range,
                            const float (&x)[kUnitElements]) {
  const int log2 = launch.block_tokens_log2;
  std::byte* const chunk = launch.layer + block * launch.block_stride_bytes;
  if constexpr (kIsPlain<Kv>) {
    const int64_t head_and_slot = (int64_t{head} << log2) + slot;
    WriteKv<Kv>(chunk + head_and_slot * launch.head_dim * 2, dims, x);
  } else {
    const int row_bytes = launch.head_dim / kChunkElements * Kv::Chunk::kBytes;
    std::byte* const rows = chunk + head * (int64_t{row_bytes + 4} << log2);
    WriteCodes<Kv>(rows + slot * row_bytes, rows + (row_bytes << log2) + slot * 4, unit, dims,
                   range, x);
  }
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
  const bool is_q = head < launch.query_heads;
  const bool is_v = head >= launch.query_heads + launch.kv_heads;
  const bool exists = position >= 0 && head < HeadsOf(launch);
  const int half = is_v ? 0 : launch.half;
  // Queries may have gates between them.
  const int column_head = is_v && launch.v_is_k ? head - launch.kv_heads : head;
  const int column = column_head * launch.head_dim +
                     Least(head, launch.query_heads) * (launch.q_stride - launch.head_dim);
  int unit[kUnits];
  bool valid[kUnits];
  QuadPair dims[kUnits];
  Units<kUnits> x = {};
  BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
    unit[u] = ThreadIndex() % lanes + u * lanes;
    valid[u] = exists && unit[u] < launch.head_dim / kUnitElements;
    dims[u] = UnitDims(unit[u], half);
    if (valid[u]) LoadQuads(launch.qkv + row * launch.qkv_stride + column, dims[u], x[u]);
  }
  // All lanes of the warp take the same branch.
  if (launch.q_norm != nullptr || launch.k_norm != nullptr || launch.norm_v) {
    const float* weight = is_q ? launch.q_norm : is_v ? nullptr : launch.k_norm;
    const bool norms = is_v ? launch.norm_v : weight != nullptr;
    NormHead<kUnits>(norms, weight, launch.norm_eps, launch.head_dim, lanes, valid, dims, x);
  }
  if (kIsPlain<Kv> && !exists) return;
  BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
    if (!valid[u] || unit[u] >= half / 4) continue;
    const int64_t first = int64_t{position} * launch.half;
    Rotate(launch.cosine + first, launch.sine + first, dims[u].low, x[u]);
  }
  RowRange range = {};
  if constexpr (!kIsPlain<Kv>) {
    range = RangeOf<kUnits>(lanes, valid, x);
    if (!exists) return;
  }
  if (is_q) {
    const float scale =
        launch.query_scale == nullptr ? 1.0f : LoadGlobal(launch.query_scale + position);
    float* to = launch.q_out + row * launch.q_out_stride + int64_t{head} * launch.head_dim;
    BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
      if (!valid[u]) continue;
      BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[u][i] = Mul(x[u][i], scale);
      Store16(to + dims[u].low, Pack4(x[u]));
      Store16(to + dims[u].high, Pack4(x[u] + 4));
    }
    return;
  }
  const SequenceEntry& sequence =
      LoadGlobal(launch.sequences + LoadGlobal(launch.sequence_of_row + row));
  const int log2 = launch.block_tokens_log2;
  const int32_t block = LoadGlobal(launch.tables + sequence.first_block + (position >> log2));
  const int slot = position & ((1 << log2) - 1);
  BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
    if (!valid[u]) continue;
    if constexpr (kIsPlain<Kv>) ClampFinite<Kv>(x[u]);
    // K's heads, then V's.
    WriteUnit<Kv>(launch, block, head - launch.query_heads, slot, unit[u], dims[u], range, x[u]);
  }
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
