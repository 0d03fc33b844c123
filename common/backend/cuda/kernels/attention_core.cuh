// The arithmetic of 16 packed rows and a step of tokens, shared by both attention kernels so that
// they round alike. See attention.h and index_maps.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_ATTENTION_CORE_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_ATTENTION_CORE_CUH_

#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/kv_codes.cuh"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

inline constexpr float kMinusInfinity = -__builtin_huge_valf();
inline constexpr float kLog2E = 1.44269504088896340736f;

// A lane's two packed rows of the warp's 16: `group` and group + 8 of the fragment.
struct PackedRows {
  int position[2];  // in the sequence; -1: no such row
  int row[2];       // of the batch
  int head[2];      // of all query heads

  BATON_DEVICE PackedRows(const AttentionLaunch& launch, const SequenceEntry& sequence,
                          int first_packed_row, int kv_head) {
    BATON_UNROLL for (int half = 0; half < 2; ++half) {
      const int packed = first_packed_row + GroupOf(Lane()) + half * 8;
      const int query = packed / launch.group;
      const bool valid = query < sequence.row_count;
      position[half] = valid ? sequence.context + query : -1;
      row[half] = sequence.first_row + (valid ? query : 0);
      head[half] = kv_head * launch.group + packed % launch.group;
    }
  }
};

// Visible tokens of 16 packed rows: [begin, end).
struct TokenRange {
  int begin, end;
};
BATON_DEVICE TokenRange VisibleTo(const AttentionLaunch& launch, const SequenceEntry& sequence,
                                  int first_packed_row, int packed_rows) {
  const int first = first_packed_row / launch.group;
  const int last =
      Least((first_packed_row + packed_rows - 1) / launch.group, sequence.row_count - 1);
  if (first > last) return {0, 0};
  const int begin =
      launch.window == 0 ? 0 : Greatest(0, sequence.context + first - launch.window + 1);
  return {begin, sequence.context + last + 1};
}

// The addresses of tokens' K and V in the pool.
template <class Kv>
struct TokenAddress {
  const std::byte* layer;
  const int32_t* table;
  int64_t block_stride_bytes;
  int head_offset, row_bytes, v_offset;  // within a block's chunk of the layer
  int block_tokens_log2;

  BATON_DEVICE TokenAddress(const AttentionLaunch& launch, const SequenceEntry& sequence,
                            int kv_head)
      : layer(launch.layer),
        table(launch.tables + sequence.first_block),
        block_stride_bytes(launch.block_stride_bytes),
        row_bytes(RowBytes(launch.head_dim)),
        block_tokens_log2(launch.block_tokens_log2) {
    const int head_bytes = (row_bytes + (kIsCoded<Kv> ? 4 : 0)) << block_tokens_log2;
    head_offset = kv_head * head_bytes;
    v_offset = launch.kv_heads * head_bytes;
  }
  // The first byte of K; V is v_offset after it.
  BATON_DEVICE const std::byte* K(int token) const {
    const int slot = token & ((1 << block_tokens_log2) - 1);
    return layer + LoadGlobal(table + (token >> block_tokens_log2)) * block_stride_bytes +
           (head_offset + slot * row_bytes);
  }
  static BATON_DEVICE int RowBytes(int head_dim) {
    if constexpr (kIsCoded<Kv>) {
      return head_dim / kChunkElements * Kv::Codes::Chunk::kBytes;
    } else {
      return head_dim * 2;
    }
  }
  // From the first byte of a token's row to its scale and zero.
  BATON_DEVICE int ToScale(int token) const {
    const int slot = token & ((1 << block_tokens_log2) - 1);
    return (row_bytes << block_tokens_log2) + slot * (4 - row_bytes);
  }
};

// A chunk of a quantised token on its way to registers.
template <class Kv>
struct RawChunk {
  typename Kv::Codes::Chunk codes;
  ScaleAndZero by;

  // Of the token whose row begins at `row`. Zeros where there is no such token; where it has no
  // such chunk, any elements: the query's are zero there, and none of V's is stored.
  static BATON_DEVICE RawChunk Load(const TokenAddress<Kv>& address, int token,
                                    const std::byte* row, int chunk, bool has_token,
                                    bool has_chunk) {
    return {
        Kv::Codes::Chunk::LoadIf(has_token && has_chunk, row + chunk * Kv::Codes::Chunk::kBytes),
        {Load4If(has_token, row + address.ToScale(token))}};
  }
  BATON_DEVICE Vec16 Elements() const { return Dequantize<Kv>(codes, by); }
};

// A warp's partial results of its 16 rows.
template <int kOut>
struct RowState {
  float m[2];            // greatest score, in units of log 2
  float l[2];            // sum of the weights
  float a[kOut / 8][4];  // weighted sums of V, as OutputDim lays them

  BATON_DEVICE void Clear() {
    BATON_UNROLL for (int half = 0; half < 2; ++half) {
      m[half] = kMinusInfinity;
      l[half] = 0;
    }
    BATON_UNROLL for (int i = 0; i < kOut / 8; ++i) {
      BATON_UNROLL for (int j = 0; j < 4; ++j) a[i][j] = 0;
    }
  }
};

// How a fold weighs the sums of the splits before and those of the next.
struct FoldWeights {
  float before, next;
};
// Leaves the maximum and the sum of both in m and l.
BATON_DEVICE FoldWeights Fold(float& m, float& l, float next_m, float next_l) {
  const float highest = m < next_m ? next_m : m;
  const float base = highest == kMinusInfinity ? 0.0f : highest;
  const FoldWeights weights = {Exp2(m - base), Exp2(next_m - base)};
  m = highest;
  l = Fma(next_l, weights.next, Mul(l, weights.before));
  return weights;
}
BATON_DEVICE float FoldSum(float before, float next, const FoldWeights& weights) {
  return Fma(next, weights.next, Mul(before, weights.before));
}

// Queries of `kRows` packed rows, scaled and rounded, to `memory` [kRows][kDim] in swizzled chunks;
// zeros where there is no such row or dim. All threads of the block together; the caller
// synchronizes. Each row is read once for all the warps that want it.
template <class Element, int kDim, int kRows, int kThreads>
BATON_DEVICE void StageQueries(const AttentionLaunch& launch, const SequenceEntry& sequence,
                               int first_packed_row, int kv_head, std::byte* memory) {
  constexpr int kChunks = kDim / kChunkElements;
  const float scale = Mul(launch.scale, kLog2E);
  BATON_NO_UNROLL for (int index = ThreadIndex(); index < kRows * kChunks; index += kThreads) {
    const int row = index / kChunks, chunk = index % kChunks;
    const int packed = first_packed_row + row;
    const int query = packed / launch.group;
    const bool valid = query < sequence.row_count && chunk * kChunkElements < launch.head_dim;
    const int64_t head = kv_head * launch.group + packed % launch.group;
    const float* from = launch.q + (valid ? (sequence.first_row + query) * launch.q_stride +
                                                head * launch.head_dim + chunk * kChunkElements
                                          : 0);
    const Vec16 low = Load16If(valid, from), high = Load16If(valid, from + 4);
    Vec16 scaled;
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      const Vec16& pair = i < 2 ? low : high;
      scaled.x[i] = Element::Pack(Mul(BitsFloat(pair.x[i % 2 * 2]), scale),
                                  Mul(BitsFloat(pair.x[i % 2 * 2 + 1]), scale));
    }
    Store16(memory + RowsOperandChunk(row, chunk, kChunks) * 16, scaled);
  }
}

// A warp's 16 of them, as fragments of A: chunk c holds dims 32 c + 8 member on. Where they were
// staged...
template <int kDim>
struct StagedQueries {
  const std::byte* memory;
  int first_row;

  BATON_DEVICE Vec16 At(int half, int c) const {
    const int chunk = RowsOperandChunk(first_row + half * 8 + GroupOf(Lane()),
                                       c * 4 + MemberOf(Lane()), kDim / kChunkElements);
    return ReloadShared16(memory + chunk * 16);
  }
};
// ... or in registers.
template <int kDim>
struct Queries {
  Vec16 q[2][kDim / kChunkedK];

  BATON_DEVICE explicit Queries(const StagedQueries<kDim>& staged) {
    BATON_UNROLL for (int half = 0; half < 2; ++half) {
      BATON_UNROLL for (int c = 0; c < kDim / kChunkedK; ++c) q[half][c] = staged.At(half, c);
    }
  }
  BATON_DEVICE const Vec16& At(int half, int c) const { return q[half][c]; }
};

// Weights of a piece: fragments of P, in the 16 bits that its product with V takes.
struct PieceWeights {
  uint32_t p[kPieceTokens / 16][4];
};

// Scores, maximum, weights and their sum for a piece's tokens. `tokens`: 16 bytes of K or V, zeros
// where there is no such token or chunk: K(token of the piece, chunk), V(token, chunk of the
// block's output dims).
template <class Element, int kDim, class Tokens, class AnyQueries>
BATON_DEVICE PieceWeights WeighPiece(Tokens& tokens, int first_token, int window,
                                     const PackedRows& rows, const AnyQueries& queries,
                                     float (&m)[2], float (&l)[2]) {
  const int group = GroupOf(Lane()), member = MemberOf(Lane());
  float s[kPieceTokens / 8][4];
  constexpr int kChunksAtOnce = 4;  // of a token: registers that K waits in
  BATON_UNROLL for (int j = 0; j < kPieceTokens / 8; ++j) {
    BATON_UNROLL for (int i = 0; i < 4; ++i) s[j][i] = 0;
    BATON_UNROLL for (int first = 0; first < kDim / kChunkedK; first += kChunksAtOnce) {
      Vec16 k[kChunksAtOnce];
      BATON_UNROLL for (int c = 0; c < kChunksAtOnce; ++c) {
        if (first + c < kDim / kChunkedK) k[c] = tokens.K(j * 8 + group, (first + c) * 4 + member);
      }
      BATON_UNROLL for (int c = 0; c < kChunksAtOnce; ++c) {
        if (first + c >= kDim / kChunkedK) continue;
        const Vec16 low = queries.At(0, first + c), high = queries.At(1, first + c);
        BATON_UNROLL for (int product = 0; product < 2; ++product) {
          const uint32_t a[4] = {low.x[product * 2], high.x[product * 2], low.x[product * 2 + 1],
                                 high.x[product * 2 + 1]};
          Element::Mma16(s[j], a, k[c].x[product * 2], k[c].x[product * 2 + 1]);
        }
      }
    }
    tokens.After(s[j][0]);
  }
  // The weight of a token that the row does not see is 0.
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    const int position = rows.position[half];
    float highest = kMinusInfinity;
    BATON_UNROLL for (int j = 0; j < kPieceTokens / 8; ++j) {
      BATON_UNROLL for (int i = half * 2; i < half * 2 + 2; ++i) {
        const int token = first_token + j * 8 + member * 2 + i % 2;
        const bool seen = token <= position && (window == 0 || token > position - window);
        if (!seen) s[j][i] = kMinusInfinity;
        // Not Greatest: a NaN must propagate.
        highest = s[j][i] <= highest ? highest : s[j][i];
      }
    }
    BATON_UNROLL for (int mask = 1; mask <= 2; mask *= 2) {
      const float other = ShuffleXor(highest, mask);
      highest = other <= highest ? highest : other;
    }
    m[half] = highest;
    const float base = highest == kMinusInfinity ? 0.0f : highest;
    float sum = 0;
    BATON_UNROLL for (int j = 0; j < kPieceTokens / 8; ++j) {
      BATON_UNROLL for (int i = half * 2; i < half * 2 + 2; ++i) {
        s[j][i] = Element::ToF32(Element::FromF32(Exp2(s[j][i] - base)));
        sum = Add(sum, s[j][i]);
      }
    }
    sum = Add(sum, ShuffleXor(sum, 1));
    l[half] = Add(sum, ShuffleXor(sum, 2));
  }
  PieceWeights weights;
  BATON_UNROLL for (int j = 0; j < kPieceTokens / 16; ++j) {
    BATON_UNROLL for (int r = 0; r < 4; ++r) {
      const float* pair = &s[j * 2 + r / 2][r % 2 * 2];
      weights.p[j][r] = Element::Pack(pair[0], pair[1]);
    }
  }
  return weights;
}

// The piece's weighted sums of 64 dims of V, from dim 64 `span` of the block's on.
template <class Element, class Tokens>
BATON_DEVICE void SumValues(const Tokens& tokens, const PieceWeights& weights, int span,
                            float (&sums)[8][4]) {
  const int member = MemberOf(Lane());
  const int chunk = span * 8 + GroupOf(Lane());
  BATON_UNROLL for (int i = 0; i < 8; ++i) {
    BATON_UNROLL for (int j = 0; j < 4; ++j) sums[i][j] = 0;
  }
  BATON_UNROLL for (int j = 0; j < kPieceTokens / 16; ++j) {
    const Vec16 v[4] = {
        tokens.V(j * 16 + member * 2, chunk), tokens.V(j * 16 + member * 2 + 1, chunk),
        tokens.V(j * 16 + 8 + member * 2, chunk), tokens.V(j * 16 + 8 + member * 2 + 1, chunk)};
    BATON_UNROLL for (int i = 0; i < 8; ++i) {
      uint32_t b[2];
      BATON_UNROLL for (int r = 0; r < 2; ++r) {
        const uint32_t even = v[r * 2].x[i / 2], odd = v[r * 2 + 1].x[i / 2];
        b[r] = i % 2 == 0 ? (even & 0xffffu) | odd << 16 : even >> 16 | (odd & 0xffff0000u);
      }
      Element::Mma16(sums[i], weights.p[j], b[0], b[1]);
    }
  }
}

// The rows' results from dim first_dim on, eight consecutive dims a store.
template <class Element, int kOut>
BATON_DEVICE void WriteOut(const AttentionLaunch& launch, const PackedRows& rows, int first_dim,
                           const RowState<kOut>& state) {
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    if (rows.position[half] < 0) continue;
    auto* out = static_cast<uint16_t*>(launch.out) + rows.row[half] * launch.out_stride +
                int64_t{rows.head[half]} * launch.head_dim;
    BATON_UNROLL for (int span = 0; span < kOut / kOutputSpan; ++span) {
      BATON_UNROLL for (int parity = 0; parity < 2; ++parity) {
        const int column = MemberOf(Lane()) * 2 + parity;
        const int dim = first_dim + span * kOutputSpan + OutputDim(0, column);
        if (dim >= launch.head_dim) continue;
        Vec16 packed;
        BATON_UNROLL for (int i = 0; i < 4; ++i) {
          const float low = state.a[span * 8 + 2 * i][half * 2 + parity];
          const float high = state.a[span * 8 + 2 * i + 1][half * 2 + parity];
          packed.x[i] = Element::Pack(Divide(low, state.l[half]), Divide(high, state.l[half]));
        }
        Store16(out + dim, packed);
      }
    }
  }
}

// body(Kv) for what the pool holds.
template <class Element, class Body>
void WithKvOf(KvFormat format, const Body& body) {
  switch (format) {
    case KvFormat::kPlain:
      return body(Element{});
    case KvFormat::kInt8:
      return body(Coded<Element, Int8>{});
    case KvFormat::kInt4:
      return body(Coded<Element, Int4>{});
    case KvFormat::kFp8:
      return body(Coded<Element, Fp8>{});
  }
}
template <class Body>
void WithKv(KvFormat format, DType dtype, const Body& body) {
  return dtype == DType::kF16 ? WithKvOf<Half>(format, body) : WithKvOf<BFloat16>(format, body);
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_ATTENTION_CORE_CUH_
