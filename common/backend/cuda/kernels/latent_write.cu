#include "common/backend/cuda/kernels/attention_core.cuh"
#include "common/backend/cuda/kernels/kv_row.cuh"
#include "common/backend/cuda/kernels/latent.h"

namespace baton::backend::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarpLanes;
// The units of a row of the pool are those of one block.
static_assert(kMostLatentDim + kMostRotatedDim <= kThreads * kUnitElements);

// Four neighbouring pairs as two quads: all first elements, then all second ones.
BATON_DEVICE void LoadPairs(const float* from, float (&to)[kUnitElements]) {
  float pairs[kUnitElements];
  LoadUnit(from, pairs);
  BATON_UNROLL for (int i = 0; i < 4; ++i) {
    to[i] = pairs[2 * i];
    to[4 + i] = pairs[2 * i + 1];
  }
}

BATON_DEVICE void RotateUnit(const LatentWriteLaunch& launch, int position, int unit,
                             float (&x)[kUnitElements]) {
  const int64_t first = int64_t{position} * launch.half;
  Rotate(launch.cosine + first, launch.sine + first, unit * 4, x);
}

// A float of each warp. What one call leaves there, others read.
BATON_DEVICE float* OfWarps(int place) {
  return reinterpret_cast<float*>(SharedMemory()) + place * kWarps;
}
constexpr int kPlaces = 4;

BATON_DEVICE RowRange BlockRange(bool valid, const float (&x)[kUnitElements]) {
  RowRange range = UnitRange(valid, x);
  BATON_UNROLL for (int mask = 16; mask > 0; mask /= 2) {
    range.least = Least(range.least, ShuffleXor(range.least, mask));
    range.largest = Greatest(range.largest, ShuffleXor(range.largest, mask));
  }
  if (Lane() == 0) {
    OfWarps(1)[Warp()] = range.least;
    OfWarps(2)[Warp()] = range.largest;
  }
  range.nothing = BlockSum(range.nothing, kWarps, OfWarps(3));  // which synchronizes
  BATON_UNROLL for (int warp = 0; warp < kWarps; ++warp) {
    range.least = Least(range.least, OfWarps(1)[warp]);
    range.largest = Greatest(range.largest, OfWarps(2)[warp]);
  }
  return range;
}

// A row of the pool: the normed latent, then the rotated part. All threads of the block.
template <class Kv>
BATON_DEVICE void WriteRow(const LatentWriteLaunch& launch, int row, int position) {
  const int unit = ThreadIndex(), latents = launch.latent_dim / kUnitElements;
  const int head_dim = launch.latent_dim + 2 * launch.half;
  const bool is_latent = unit < latents, valid = unit < head_dim / kUnitElements;
  const int rotated = unit - latents;
  const float* const from = launch.kv + row * launch.kv_stride + unit * kUnitElements;
  float x[kUnitElements] = {};
  if (is_latent) {
    LoadUnit(from, x);
  } else if (valid) {
    LoadPairs(from, x);
  }
  float square = 0;
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) {
    if (is_latent) square = Fma(x[i], x[i], square);
  }
  const float mean =
      Divide(BlockSum(square, kWarps, OfWarps(0)), static_cast<float>(launch.latent_dim));
  const float scale = Divide(1.0f, SquareRoot(Add(mean, launch.norm_eps)));
  QuadPair dims = {unit * kUnitElements, unit * kUnitElements + 4};
  if (is_latent) {
    float w[kUnitElements];
    LoadUnit(launch.norm + unit * kUnitElements, w);
    BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[i] = Mul(Mul(x[i], scale), w[i]);
  } else if (valid) {
    RotateUnit(launch, position, rotated, x);
    dims.low = launch.latent_dim + rotated * 4;
    dims.high = dims.low + launch.half;
  }
  RowRange range = {};
  if constexpr (kIsCoded<Kv>) range = BlockRange(valid, x);
  if (!valid) return;
  const SequenceEntry& sequence =
      LoadGlobal(launch.sequences + LoadGlobal(launch.sequence_of_row + row));
  const int log2 = launch.block_tokens_log2, slot = position & ((1 << log2) - 1);
  const int32_t block = LoadGlobal(launch.tables + sequence.first_block + (position >> log2));
  std::byte* const rows = launch.layer + block * launch.block_stride_bytes;
  if constexpr (kIsCoded<Kv>) {
    const int row_bytes = TokenAddress<Kv>::RowBytes(head_dim);
    WriteCodes<typename Kv::Codes>(rows + slot * row_bytes, rows + (row_bytes << log2) + slot * 4,
                                   unit, dims, range, x);
  } else {
    ClampFinite<Kv>(x);
    WriteKv<Kv>(rows + int64_t{slot} * head_dim * 2, dims, x);
  }
}

// Block 0 of a row writes to the pool, the others have the queries' units.
template <class Kv>
BATON_KERNEL(kThreads)
LatentWriteKernel(LatentWriteLaunch launch) {
  AwaitPrevious();
  const int row = static_cast<int>(BlockIndex().x);
  const int position = LoadGlobal(launch.positions + row);
  if (position < 0) return;  // whole blocks agree
  if (BlockIndex().y == 0) return WriteRow<Kv>(launch, row, position);
  const int plain_units = launch.plain / kUnitElements, units = plain_units + launch.half / 4;
  const int index = (static_cast<int>(BlockIndex().y) - 1) * kThreads + ThreadIndex();
  const int head = index / units, unit = index % units;
  if (head >= launch.query_heads) return;
  const float* const from = launch.q + row * launch.q_stride + int64_t{index} * kUnitElements;
  float x[kUnitElements];
  if (unit < plain_units) {
    LoadUnit(from, x);
    Row16<Kv>::Store(x, static_cast<uint16_t*>(launch.q_plain) + row * launch.q_plain_stride +
                            int64_t{head} * launch.plain + unit * kUnitElements);
    return;
  }
  const int rotated = unit - plain_units;
  LoadPairs(from, x);
  RotateUnit(launch, position, rotated, x);
  float* const to = launch.q_out + row * launch.q_out_stride +
                    int64_t{head} * (launch.latent_dim + 2 * launch.half) + launch.latent_dim +
                    rotated * 4;
  Store16(to, Pack4(x));
  Store16(to + launch.half, Pack4(x + 4));
}

}  // namespace

void LaunchLatentWrite(const LatentWriteLaunch& launch, DType dtype, int rows, Stream stream) {
  if (rows == 0) return;
  const int units = launch.query_heads * (launch.plain / kUnitElements + launch.half / 4);
  const GridSize grid = {static_cast<unsigned>(rows),
                         1 + static_cast<unsigned>((units + kThreads - 1) / kThreads), 1};
  WithKv(launch.kv_format, dtype, [&](auto kv) {
    Launch(LatentWriteKernel<decltype(kv)>, grid, kThreads, kPlaces * kWarps * sizeof(float),
           stream, launch);
  });
}

}  // namespace baton::backend::cuda
