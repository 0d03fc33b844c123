#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/kv_codes.cuh"
#include "common/backend/cuda/kernels/kv_row.cuh"
#include "common/backend/cuda/kernels/rope_write.h"

namespace baton::backend::cuda {
namespace {

constexpr int kThreads = 128;

// `lanes` lanes hold a head's units; the others of them hold zeros.
BATON_DEVICE void NormHead(const float* weight, float eps, int head_dim, int lanes, bool valid,
                           QuadPair dims, float (&x)[kUnitElements]) {
  float sum = 0;
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) sum = Fma(x[i], x[i], sum);
  for (int mask = lanes / 2; mask > 0; mask /= 2) sum = Add(sum, ShuffleXor(sum, mask));
  if (!valid || weight == nullptr) return;
  const float mean = Divide(sum, static_cast<float>(head_dim));
  const float scale = Divide(1.0f, SquareRoot(Add(mean, eps)));
  float w[kUnitElements];
  LoadQuads(weight, dims, w);
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[i] = Mul(Mul(x[i], scale), w[i]);
}

// Of a head. All lanes of the warp together; `lanes` as for NormHead, of which only valid ones
// count.
BATON_DEVICE RowRange RangeOf(int lanes, bool valid, const float (&x)[kUnitElements]) {
  RowRange range = UnitRange(valid, x);
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    range.least = Least(range.least, ShuffleXor(range.least, mask));
    range.largest = Greatest(range.largest, ShuffleXor(range.largest, mask));
    range.nothing = Add(range.nothing, ShuffleXor(range.nothing, mask));
  }
  return range;
}

// Kv: Half or BFloat16, or the codes that the pool holds.
template <class Kv>
BATON_KERNEL(kThreads)
RopeWriteKernel(RopeWriteLaunch launch) {
  AwaitPrevious();
  const int64_t row = BlockIndex().x;
  const int lanes = HeadLanes(launch.head_dim);
  const int heads = launch.query_heads + 2 * launch.kv_heads;
  const int head = static_cast<int>(BlockIndex().y) * (kThreads / lanes) + ThreadIndex() / lanes;
  const int unit = ThreadIndex() % lanes;
  const int position = LoadGlobal(launch.positions + row);
  const bool is_q = head < launch.query_heads;
  const bool is_v = head >= launch.query_heads + launch.kv_heads;
  const bool valid = position >= 0 && head < heads && unit < launch.head_dim / kUnitElements;
  const int half = is_v ? 0 : launch.half;
  const QuadPair dims = UnitDims(unit, half);

  float x[kUnitElements] = {};
  if (valid) {
    // Queries may have gates between them.
    const int column = head * launch.head_dim +
                       Least(head, launch.query_heads) * (launch.q_stride - launch.head_dim);
    LoadQuads(launch.qkv + row * launch.qkv_stride + column, dims, x);
  }
  if (launch.q_norm != nullptr || launch.k_norm != nullptr) {  // of all lanes alike
    const float* weight = is_q ? launch.q_norm : is_v ? nullptr : launch.k_norm;
    NormHead(weight, launch.norm_eps, launch.head_dim, lanes, valid, dims, x);
  }
  constexpr bool kPlain = std::is_base_of_v<Half, Kv> || std::is_base_of_v<BFloat16, Kv>;
  if (kPlain && !valid) return;
  if (valid && unit < half / 4) {
    const int64_t first = int64_t{position} * launch.half;
    Rotate(launch.cosine + first, launch.sine + first, dims.low, x);
  }
  RowRange range = {};
  if constexpr (!kPlain) {
    range = RangeOf(lanes, valid, x);
    if (!valid) return;
  }
  if (is_q) {
    if (launch.query_scale != nullptr) {
      const float scale = LoadGlobal(launch.query_scale + position);
      BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[i] = Mul(x[i], scale);
    }
    float* to = launch.q_out + row * launch.q_out_stride + int64_t{head} * launch.head_dim;
    Store16(to + dims.low, Pack4(x));
    Store16(to + dims.high, Pack4(x + 4));
    return;
  }
  if constexpr (kPlain) ClampFinite<Kv>(x);
  const SequenceEntry& sequence =
      LoadGlobal(launch.sequences + LoadGlobal(launch.sequence_of_row + row));
  const int log2 = launch.block_tokens_log2;
  const int32_t block = LoadGlobal(launch.tables + sequence.first_block + (position >> log2));
  // K's heads, then V's.
  if constexpr (kPlain) {
    const int64_t head_and_slot =
        (int64_t{head - launch.query_heads} << log2) + (position & ((1 << log2) - 1));
    WriteKv<Kv>(
        launch.layer + block * launch.block_stride_bytes + head_and_slot * launch.head_dim * 2,
        dims, x);
  } else {
    const int row_bytes = launch.head_dim / kChunkElements * Kv::Chunk::kBytes;
    const int64_t head_bytes = int64_t{row_bytes + 4} << log2;
    const int slot = position & ((1 << log2) - 1);
    std::byte* rows =
        launch.layer + block * launch.block_stride_bytes + (head - launch.query_heads) * head_bytes;
    WriteCodes<Kv>(rows + slot * row_bytes, rows + (row_bytes << log2) + slot * 4, unit, dims,
                   range, x);
  }
}

}  // namespace

const void* RopeWriteKernelOfBFloat16() {
  return reinterpret_cast<const void*>(&RopeWriteKernel<BFloat16>);
}

void LaunchRopeWrite(const RopeWriteLaunch& launch, DType dtype, int rows, Stream stream) {
  if (rows == 0) return;
  const int heads_a_block = kThreads / HeadLanes(launch.head_dim);
  const int heads = launch.query_heads + 2 * launch.kv_heads;
  const GridSize grid = {static_cast<unsigned>(rows),
                         static_cast<unsigned>((heads + heads_a_block - 1) / heads_a_block), 1};
  switch (launch.kv_format) {
    case KvFormat::kPlain:
      return dtype == DType::kF16
                 ? Launch(RopeWriteKernel<Half>, grid, kThreads, 0, stream, launch)
                 : Launch(RopeWriteKernel<BFloat16>, grid, kThreads, 0, stream, launch);
    case KvFormat::kInt8:
      return Launch(RopeWriteKernel<Int8>, grid, kThreads, 0, stream, launch);
    case KvFormat::kInt4:
      return Launch(RopeWriteKernel<Int4>, grid, kThreads, 0, stream, launch);
    case KvFormat::kFp8:
      return Launch(RopeWriteKernel<Fp8>, grid, kThreads, 0, stream, launch);
  }
}

}  // namespace baton::backend::cuda
