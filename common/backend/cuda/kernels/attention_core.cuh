// The arithmetic of 16 packed rows and a step of tokens, shared by both attention kernels so that
// they round alike. See attention.h and index_maps.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_ATTENTION_CORE_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_ATTENTION_CORE_CUH_

#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/kv_codes.cuh"
#include "common/backend/cuda/kernels/soft_cap.cuh"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

inline constexpr float kMinusInfinity = -__builtin_huge_valf();
inline constexpr float kLog2E = 1.44269504088896340736f;

// A packed row of a sequence and a KV head.
struct PackedRow {
  bool exists;
  int position;  // in the sequence; -1: no such row
  int row;       // of the batch
  int head;      // of all query heads

  BATON_DEVICE PackedRow(const AttentionLaunch& launch, const SequenceEntry& sequence, int packed,
                         int kv_head) {
    const int query = QueryOf(packed, launch.group_inverse);
    exists = query < sequence.row_count;
    position = exists ? sequence.context + query : -1;
    row = sequence.first_row + (exists ? query : 0);
    head = kv_head * launch.group + packed - query * launch.group;
  }
};

// body(index) for the items of a block of the split kernel.
template <class Body>
BATON_DEVICE void ForItems(const AttentionLaunch& launch, const Body& body) {
  const bool all = launch.item_range == nullptr;
  const int first = all ? 0 : LoadGlobal(launch.item_range);
  const int end = all ? static_cast<int>(Grid().x) : LoadGlobal(launch.item_range + 1);
  BATON_NO_UNROLL for (int index = first + static_cast<int>(BlockIndex().x); index < end;
                       index += static_cast<int>(Grid().x)) {
    body(index);
  }
}

// Tokens [begin, end) are those that some of the packed rows see, [all_begin, all_end) those that
// all see.
struct VisibleTokens {
  int begin, end, all_begin, all_end;

  BATON_DEVICE VisibleTokens(const AttentionLaunch& launch, const SequenceEntry& sequence,
                             int first_packed_row, int packed_rows) {
    const int first = QueryOf(first_packed_row, launch.group_inverse);
    const int last = Least(QueryOf(first_packed_row + packed_rows - 1, launch.group_inverse),
                           sequence.row_count - 1);
    const bool none = first > last;
    const auto first_of = [&](int query) {
      return launch.window == 0 ? 0 : Greatest(0, sequence.context + query - launch.window + 1);
    };
    begin = none ? 0 : first_of(first);
    end = none ? 0 : sequence.context + last + 1;
    all_begin = first_of(last);
    all_end = sequence.context + first + 1;
  }
  BATON_DEVICE bool AllSeePiece(int first_token) const {
    return first_token >= all_begin && first_token + kPieceTokens <= all_end;
  }
};

// The addresses of tokens' K and V in the pool.
template <class Kv>
struct TokenAddress {
  const std::byte* layer;
  const int32_t* tables;
  int first_block;
  uint32_t block_stride_bytes;
  int head_offset, row_bytes, v_offset;  // within a block's chunk of the layer
  int block_tokens_log2;

  BATON_DEVICE TokenAddress(const AttentionLaunch& launch, const SequenceEntry& sequence,
                            int kv_head)
      : layer(launch.layer),
        tables(launch.tables),
        first_block(sequence.first_block),
        block_stride_bytes(static_cast<uint32_t>(launch.block_stride_bytes)),
        row_bytes(RowBytes(launch.head_dim)),
        block_tokens_log2(launch.block_tokens_log2) {
    const int head_bytes = (row_bytes + (kIsCoded<Kv> ? 4 : 0)) << block_tokens_log2;
    head_offset = kv_head * head_bytes;
    v_offset = launch.kv_heads * head_bytes;
  }
  // The first byte of K; V is v_offset after it.
  BATON_DEVICE const std::byte* K(int token) const {
    return KIn(token >> block_tokens_log2, token);
  }
  // The same in a block of the sequence that may be another than the token's.
  BATON_DEVICE const std::byte* KIn(int block, int token) const {
    return KOf(NumberOf(block), token);
  }
  // The number in the pool of a block of the sequence, and the address in a block of that number.
  BATON_DEVICE uint32_t NumberOf(int block) const {
    return static_cast<uint32_t>(LoadGlobal(tables + (first_block + block)));
  }
  BATON_DEVICE const std::byte* KOf(uint32_t number, int token) const {
    const int slot = token & ((1 << block_tokens_log2) - 1);
    return layer + uint64_t{number} * block_stride_bytes +
           static_cast<uint32_t>(head_offset + slot * row_bytes);
  }
  static constexpr BATON_DEVICE int RowBytes(int head_dim) {
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

// A chunk of a row's query, scaled and rounded, to fragments in shared memory; zeros where there is
// no such row or chunk. row: of the fragments' 16.
template <class Element>
BATON_DEVICE void StageQuery(const AttentionLaunch& launch, const PackedRow& packed, int row,
                             int chunk, std::byte* memory) {
  const bool valid = packed.exists && chunk * kChunkElements < launch.head_dim;
  const float scale = Mul(launch.scale, kLog2E);
  const float* from = launch.q + (valid ? packed.row * launch.q_stride +
                                              packed.head * launch.head_dim + chunk * kChunkElements
                                        : 0);
  const Vec16 low = Load16If(valid, from), high = Load16If(valid, from + 4);
  BATON_UNROLL for (int i = 0; i < 4; ++i) {
    const Vec16& pair = i < 2 ? low : high;
    reinterpret_cast<uint32_t*>(memory)[QueryWord(row, chunk, i)] = Element::Pack(
        Mul(BitsFloat(pair.x[i % 2 * 2]), scale), Mul(BitsFloat(pair.x[i % 2 * 2 + 1]), scale));
  }
}

// A warp's 16 queries, as fragments of A: products 2 c and 2 c + 1 take dims 32 c to 32 c + 31.
// Where they were staged...
struct StagedQueries {
  const std::byte* memory;

  BATON_DEVICE Vec16 At(int product) const {
    return LoadShared16(memory + (product * kWarpLanes + Lane()) * 16);
  }
};
// ... or in registers.
template <int kDim>
struct Queries {
  Vec16 q[kDim / 16];

  Queries() = default;
  BATON_DEVICE explicit Queries(const StagedQueries& staged) {
    BATON_UNROLL for (int i = 0; i < kDim / 16; ++i) q[i] = staged.At(i);
  }
  BATON_DEVICE const Vec16& At(int product) const { return q[product]; }
};

// Scores of a piece: fragments of products of 16 rows with 8 tokens each.
using PieceScores = float[kPieceTokens / 8][4];

// Adds the products of 32 dims of eight tokens, for dims in ascending order. a: of the queries'
// products with those dims; k: of the lane's token (`group`) and chunk (`member`).
template <class Element>
BATON_DEVICE void AddScores(const Vec16& a0, const Vec16& a1, const Vec16& k, float (&s)[4]) {
  Element::Mma16(s, a0.x, k.x[0], k.x[1]);
  Element::Mma16(s, a1.x, k.x[2], k.x[3]);
}

// Caps the scores, which are in units of log 2, if there is a cap. any_high: whether a row from 8
// on exists.
template <int kEights>
BATON_DEVICE void CapScores(float score_cap, bool any_high, float (&s)[kEights][4]) {
  if (score_cap == 0) return;
  const SoftCap soft_cap(1.0f, Mul(score_cap, kLog2E));
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    if (half == 1 && !any_high) continue;
    BATON_UNROLL for (int j = 0; j < kEights; ++j) {
      BATON_UNROLL for (int i = half * 2; i < half * 2 + 2; ++i) s[j][i] = soft_cap.Of(s[j][i]);
    }
  }
}

// Minus infinity for tokens that the row does not see: their weight is 0. position: of the lane's
// two rows.
template <int kEights>
BATON_DEVICE void HideUnseen(int first_token, int window, const int (&position)[2],
                             float (&s)[kEights][4]) {
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    const int first = window == 0 ? 0 : position[half] - window + 1;
    BATON_UNROLL for (int j = 0; j < kEights; ++j) {
      BATON_UNROLL for (int i = 0; i < 2; ++i) {
        const int token = first_token + j * 8 + MemberOf(Lane()) * 2 + i;
        if (token > position[half] || token < first) s[j][half * 2 + i] = kMinusInfinity;
      }
    }
  }
}

// Weights of a piece: fragments of P, in the 16 bits that its product with V takes.
struct PieceWeights {
  uint32_t p[kPieceTokens / 16][4];
};

// Maximum, weights and their sum for a piece's tokens. any_high: whether a row from 8 on exists.
// kPacksAtOnce: two weights by one conversion; with it the split kernel's code has fewer loads in
// flight.
template <class Element, bool kPacksAtOnce>
BATON_DEVICE PieceWeights WeighPiece(const PieceScores& s, bool any_high, float (&m)[2],
                                     float (&l)[2]) {
  PieceWeights weights = {};
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    m[half] = kMinusInfinity;
    l[half] = 0;
    if (half == 1 && !any_high) continue;
    float highest = kMinusInfinity;
    BATON_UNROLL for (int j = 0; j < kPieceTokens / 8; ++j) {
      BATON_UNROLL for (int i = half * 2; i < half * 2 + 2; ++i) {
        highest = GreatestOrNan(highest, s[j][i]);
      }
    }
    BATON_UNROLL for (int mask = 1; mask <= 2; mask *= 2) {
      highest = GreatestOrNan(highest, ShuffleXor(highest, mask));
    }
    m[half] = highest;
    const float base = highest == kMinusInfinity ? 0.0f : highest;
    float sum = 0;
    BATON_UNROLL for (int j = 0; j < kPieceTokens / 8; ++j) {
      const float low = Exp2(s[j][half * 2] - base), high = Exp2(s[j][half * 2 + 1] - base);
      const uint32_t two = kPacksAtOnce ? Element::PackAtOnce(low, high) : Element::Pack(low, high);
      sum = Add(sum, Element::ToF32(static_cast<uint16_t>(two)));
      sum = Add(sum, Element::ToF32(static_cast<uint16_t>(two >> 16)));
      weights.p[j / 2][j % 2 * 2 + half] = two;
    }
    sum = Add(sum, ShuffleXor(sum, 1));
    l[half] = Add(sum, ShuffleXor(sum, 2));
  }
  return weights;
}

// V of 16 tokens and 64 dims as second operands, of eight products; which dims a product has, the
// loader says.
using ValueOperands = uint32_t[8][2];

// Of the lane's eight dims of tokens 2 member, 2 member + 1, and 8 more each.
BATON_DEVICE void PairValues(const Vec16 (&v)[4], ValueOperands& b) {
  BATON_UNROLL for (int i = 0; i < 8; ++i) {
    BATON_UNROLL for (int r = 0; r < 2; ++r) {
      b[i][r] =
          PermuteBytes(v[r * 2].x[i / 2], v[r * 2 + 1].x[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
    }
  }
}

// The piece's weighted sums of 64 dims of V, from dim 64 `span` of the block's on, of each of a
// warp's row tiles. tokens.V(j, span, b): operands of the tokens from 16 j on.
template <class Element, int kTiles, class Tokens>
BATON_DEVICE void SumValues(const Tokens& tokens, const PieceWeights (&weights)[kTiles], int span,
                            float (&sums)[kTiles][8][4]) {
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
    BATON_UNROLL for (int i = 0; i < 8; ++i) {
      BATON_UNROLL for (int j = 0; j < 4; ++j) sums[tile][i][j] = 0;
    }
  }
  BATON_UNROLL for (int j = 0; j < kPieceTokens / 16; ++j) {
    ValueOperands b;
    tokens.V(j, span, b);
    BATON_UNROLL for (int i = 0; i < 8; ++i) {
      BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
        Element::Mma16(sums[tile][i], weights[tile].p[j], b[i][0], b[i][1]);
      }
    }
  }
}

// A row's sum of weights, which are relative to m, with the head's sink. A sink that is far above
// all scores makes it infinite and the result 0, as it should be.
BATON_DEVICE float WithSink(const AttentionLaunch& launch, int head, float m, float l) {
  if (launch.sinks == nullptr) return l;
  return Add(l, Exp2(Fma(LoadGlobal(launch.sinks + head), kLog2E, -m)));
}

// Eight consecutive dims of a row's result.
template <class Element>
BATON_DEVICE void WriteOut(const AttentionLaunch& launch, const PackedRow& row, int dim,
                           const float (&a)[kChunkElements], float l) {
  Vec16 packed;
  BATON_UNROLL for (int i = 0; i < 4; ++i) {
    packed.x[i] = Element::Pack(Divide(a[2 * i], l), Divide(a[2 * i + 1], l));
  }
  auto* out = static_cast<uint16_t*>(launch.out) + row.row * launch.out_stride +
              int64_t{row.head} * launch.head_dim;
  Store16(out + dim, packed);
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
