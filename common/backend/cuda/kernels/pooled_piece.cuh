// The split kernel's loads: a piece of K and V straight from the pool to registers.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_POOLED_PIECE_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_POOLED_PIECE_CUH_

#include "common/backend/cuda/kernels/attention_core.cuh"

namespace baton::backend::cuda {

// Eight elements as they are.
struct PlainChunk {
  static constexpr int kBytes = 16;
  Vec16 x;

  static BATON_DEVICE PlainChunk Load(const std::byte* from) { return {Load16(from)}; }
  static BATON_DEVICE PlainChunk LoadIf(bool valid, const std::byte* from) {
    return {Load16If(valid, from)};
  }
  static BATON_DEVICE PlainChunk LoadCoherent(const std::byte* from) {
    return {LoadCoherent16(from)};
  }
  static BATON_DEVICE PlainChunk LoadCoherentIf(bool valid, const std::byte* from) {
    return {LoadCoherent16If(valid, from)};
  }
};
template <class Kv>
struct ChunkOf {
  using Type = PlainChunk;
};
template <class Element, class Codes>
struct ChunkOf<Coded<Element, Codes>> {
  using Type = typename Codes::Chunk;
};

// PairValues of codes.
template <class Kv>
BATON_DEVICE void DecodeValues(const typename ChunkOf<Kv>::Type (&v)[4],
                               const ScaleAndZero (&by)[4], ValueOperands& b) {
  float values[4][kChunkElements];
  BATON_UNROLL for (int i = 0; i < 4; ++i) {
    Kv::Codes::Decode(v[i], by[i].scale(), by[i].zero(), values[i]);
  }
  BATON_UNROLL for (int i = 0; i < 8; ++i) {
    b[i][0] = Kv::Pack(values[0][i], values[1][i]);
    b[i][1] = Kv::Pack(values[2][i], values[3][i]);
  }
}

// A lane's part of a piece, straight from the pool. The block table is read once for a run of 16
// tokens; within the run addresses are constants apart. kExact: head_dim is kDim, as in most
// models; otherwise chunks may be missing.
//
// Tokens that no row sees are loaded like others, though only from blocks of tokens that some row
// sees: L1 has them, and loads need no conditions. A fused launch has just written one of the
// tokens.
template <class Kv, int kDim, bool kExact>
struct PooledPiece {
  using Chunk = typename ChunkOf<Kv>::Type;
  static constexpr int kRunTokens = 16;  // the smallest blocks'
  static constexpr int kRuns = kPieceTokens / kRunTokens;
  static constexpr int kSpans = kDim / kOutputSpan;

  int first_token;
  int chunks;                   // of a head
  int row_bytes, v_offset;      // from a row of K to the same of V
  const std::byte* run[kRuns];  // the first row of K
  int to_scale[kRuns];          // from there to that row's scale and zero
  Chunk v[kSpans][kRuns][4];
  ScaleAndZero v_by[kRuns][4];

  BATON_DEVICE PooledPiece(const AttentionLaunch& launch, const SequenceEntry& sequence,
                           int kv_head, int first, const VisibleTokens& visible)
      : first_token(first), chunks(launch.head_dim / kChunkElements) {
    const TokenAddress<Kv> address(launch, sequence, kv_head);
    row_bytes = kExact ? TokenAddress<Kv>::RowBytes(kDim) : address.row_bytes;
    v_offset = address.v_offset;
    const int first_block = visible.begin >> address.block_tokens_log2;
    const int last_block = (visible.end - 1) >> address.block_tokens_log2;
    BATON_UNROLL for (int r = 0; r < kRuns; ++r) {
      const int token = first_token + r * kRunTokens, block = token >> address.block_tokens_log2;
      run[r] = address.KIn(Greatest(Least(block, last_block), first_block), token);
      to_scale[r] = address.ToScale(token);
    }
  }

  // Of token 8 j + group of the piece: chunk 4 c + member, zeros if it is missing; scale and zero.
  BATON_DEVICE Chunk K(int j, int c) const {
    const unsigned lane = GroupOf(Lane()) * row_bytes + MemberOf(Lane()) * Chunk::kBytes;
    const std::byte* from = run[j / 2] + lane + (j % 2 * 8 * row_bytes + c * 4 * Chunk::kBytes);
    return kExact ? Chunk::LoadCoherent(from)
                  : Chunk::LoadCoherentIf(c * 4 + MemberOf(Lane()) < chunks, from);
  }
  BATON_DEVICE ScaleAndZero ScaleOfK(int j) const {
    const unsigned lane = GroupOf(Lane()) * 4;
    return {LoadCoherent4(run[j / 2] + to_scale[j / 2] + lane + j % 2 * 32)};
  }

  // Of a span of the dims, to registers. Missing chunks are any others: those sums are not stored.
  BATON_DEVICE void LoadV(int span) {
    int chunk = span * 8 + GroupOf(Lane());
    if (!kExact) chunk = Least(chunk, chunks - 1);
    const unsigned lane = MemberOf(Lane()) * 2 * row_bytes + chunk * Chunk::kBytes;
    BATON_UNROLL for (int r = 0; r < kRuns; ++r) {
      BATON_UNROLL for (int i = 0; i < 4; ++i) {
        v[span][r][i] =
            Chunk::LoadCoherent(run[r] + v_offset + lane + (i / 2 * 8 + i % 2) * row_bytes);
      }
    }
  }
  BATON_DEVICE void LoadScalesOfV() {
    const unsigned lane = MemberOf(Lane()) * 8;
    BATON_UNROLL for (int r = 0; r < kRuns; ++r) {
      BATON_UNROLL for (int i = 0; i < 4; i += 2) {
        const Vec8 two = LoadCoherent8(run[r] + v_offset + to_scale[r] + lane + i / 2 * 32);
        v_by[r][i] = {two.x[0]};
        v_by[r][i + 1] = {two.x[1]};
      }
    }
  }
  // Slots after the last token hold KV of earlier sequences: 0 times infinity would be a NaN. Of a
  // span that is loaded; of codes their scales, which all spans share.
  BATON_DEVICE void ClearUnseenV(const VisibleTokens& visible, int span) {
    BATON_UNROLL for (int r = 0; r < kRuns; ++r) {
      BATON_UNROLL for (int i = 0; i < 4; ++i) {
        const int token = first_token + r * kRunTokens + MemberOf(Lane()) * 2 + i / 2 * 8 + i % 2;
        if (token >= visible.begin && token < visible.end) continue;
        if constexpr (kIsCoded<Kv>) {
          v_by[r][i] = {0};
        } else {
          v[span][r][i] = {};
        }
      }
    }
  }
  BATON_DEVICE void V(int r, int span, ValueOperands& b) const {
    if constexpr (kIsCoded<Kv>) {
      DecodeValues<Kv>(v[span][r], v_by[r], b);
    } else {
      PairValues({v[span][r][0].x, v[span][r][1].x, v[span][r][2].x, v[span][r][3].x}, b);
    }
  }
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_POOLED_PIECE_CUH_
