// The heads of q, k and v, normed, rotated, and written to the pool, as rope_head.h says: what the
// kernels that do so share, so that they give a head the same bits.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_ROPE_HEAD_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_ROPE_HEAD_CUH_

#include <type_traits>

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/kv_codes.cuh"
#include "common/backend/cuda/kernels/kv_row.cuh"
#include "common/backend/cuda/kernels/rope_head.h"

namespace baton::backend::cuda {

// Kv: Half or BFloat16, or the codes that the pool holds.
template <class Kv>
constexpr bool kIsPlain = std::is_base_of_v<Half, Kv> || std::is_base_of_v<BFloat16, Kv>;

// A head of a row, and the part of it that a lane has, with what norms and rotates it: all on its
// way from memory at once. Units beyond the head, and those of no head, hold zeros.
template <int kUnits>
struct HeadUnits {
  int head;      // of those of q, k and v together
  int position;  // of the row in its sequence
  bool is_q, is_v, exists;
  bool norms;           // this head
  const float* weight;  // of its norm; null: ones
  int unit[kUnits];
  bool valid[kUnits];
  QuadPair dims[kUnits];
  bool rotates[kUnits];
  float x[kUnits][kUnitElements];
  float w[kUnits][kUnitElements];
  Vec16 cosine[kUnits], sine[kUnits];

  // `lanes` consecutive lanes have the head; lane: among them.
  BATON_DEVICE HeadUnits(const HeadSource& source, int query_heads, int kv_heads, int head_dim,
                         int64_t row, int head_of_all, int position_of_row, bool has_head, int lane,
                         int lanes)
      : head(head_of_all),
        position(position_of_row),
        is_q(head < query_heads),
        is_v(head >= query_heads + kv_heads),
        exists(has_head),
        norms(is_v ? source.norm_v : (is_q ? source.q_norm : source.k_norm) != nullptr),
        weight(is_v   ? nullptr
               : is_q ? source.q_norm
                      : source.k_norm) {
    // Queries may have gates between them.
    const int column_head = is_v && source.v_is_k ? head - kv_heads : head;
    const int column =
        column_head * head_dim + Least(head, query_heads) * (source.q_stride - head_dim);
    const int half = is_v ? 0 : source.half;
    const int64_t first_angle = int64_t{position} * source.half;
    BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
      BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[u][i] = w[u][i] = 0;
      unit[u] = lane + u * lanes;
      valid[u] = exists && unit[u] < head_dim / kUnitElements;
      dims[u] = UnitDims(unit[u], half);
      rotates[u] = valid[u] && unit[u] < half / 4;
      if (valid[u]) LoadQuads(source.qkv + row * source.qkv_stride + column, dims[u], x[u]);
      if (valid[u] && weight != nullptr) LoadQuads(weight, dims[u], w[u]);
      cosine[u] = sine[u] = {};  // unset, they would keep registers throughout a loop
      if (!rotates[u]) continue;
      cosine[u] = Load16(source.cosine + first_angle + dims[u].low);
      sine[u] = Load16(source.sine + first_angle + dims[u].low);
    }
  }

  // The head's norm, if it has one. All lanes of the warp together.
  BATON_DEVICE void Norm(const HeadSource& source, int head_dim, int lanes) {
    // All lanes of the warp take the same branch.
    if (source.q_norm == nullptr && source.k_norm == nullptr && !source.norm_v) return;
    float sum = 0;
    BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
      BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) sum = Fma(x[u][i], x[u][i], sum);
    }
    for (int mask = lanes / 2; mask > 0; mask /= 2) sum = Add(sum, ShuffleXor(sum, mask));
    if (!norms) return;
    const float mean = Divide(sum, static_cast<float>(head_dim));
    const float scale = Divide(1.0f, SquareRoot(Add(mean, source.norm_eps)));
    BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
      if (!valid[u]) continue;
      BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[u][i] = Mul(x[u][i], scale);
      if (weight == nullptr) continue;
      BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[u][i] = Mul(x[u][i], w[u][i]);
    }
  }

  // Rotates the head.
  BATON_DEVICE void Turn() {
    BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
      if (rotates[u]) Rotate(cosine[u], sine[u], x[u]);
    }
  }

  // Multiplies a rotated query by its scale. REQUIRES: is_q.
  BATON_DEVICE void ScaleQuery(const HeadSource& source) {
    const float scale =
        source.query_scale == nullptr ? 1.0f : LoadGlobal(source.query_scale + position);
    BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
      BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[u][i] = Mul(x[u][i], scale);
    }
  }

  // The head's least and largest elements. All lanes of the warp together.
  BATON_DEVICE RowRange Range(int lanes) const {
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

  // K or V to its slot of a block, whose chunk of the layer begins at `chunk`: K's heads, then V's.
  // range: where the pool holds codes.
  template <class Kv>
  BATON_DEVICE void Write(std::byte* chunk, int block_tokens_log2, int head_dim, int query_heads,
                          const RowRange& range) {
    const int slot = position & ((1 << block_tokens_log2) - 1), of_kv = head - query_heads;
    BATON_UNROLL for (int u = 0; u < kUnits; ++u) {
      if (!valid[u]) continue;
      if constexpr (kIsPlain<Kv>) {
        ClampFinite<Kv>(x[u]);
        const int64_t head_and_slot = (int64_t{of_kv} << block_tokens_log2) + slot;
        WriteKv<Kv>(chunk + head_and_slot * head_dim * 2, dims[u], x[u]);
      } else {
        const int row_bytes = head_dim / kChunkElements * Kv::Chunk::kBytes;
        std::byte* const rows = chunk + of_kv * (int64_t{row_bytes + 4} << block_tokens_log2);
        WriteCodes<Kv>(rows + slot * row_bytes, rows + (row_bytes << block_tokens_log2) + slot * 4,
                       unit[u], dims[u], range, x[u]);
      }
    }
  }
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_ROPE_HEAD_CUH_
