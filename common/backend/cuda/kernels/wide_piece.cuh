// What a block of the kernels of wide heads has of a piece: queries and scores in shared memory,
// keys and values in registers. See wide_attention.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_WIDE_PIECE_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_WIDE_PIECE_CUH_

#include "common/backend/cuda/kernels/attention_core.cuh"
#include "common/backend/cuda/kernels/pooled_piece.cuh"

namespace baton::backend::cuda::wide {

inline constexpr int kWarps = 8, kThreads = kWarps * kWarpLanes;
inline constexpr int kTokens = 32;  // of a piece
inline constexpr int kParts = 4;    // of the dims, whose scores are added
inline constexpr int kProducts = kWidestHead / kParts / kChunkedK;  // of 32 dims, a part's
inline constexpr int kRunTokens = 16;                               // of the smallest blocks
static_assert(kWarps == kTokens / kRunTokens * kParts);
static_assert(kWarps * kOutputSpan == kWidestHead);
static_assert(kSplitTokens % kTokens == 0);

// What a warp has of a piece: the scores of 16 tokens and a part of the dims, and the sums of 64
// dims.
BATON_DEVICE int RunOfWarp() { return Warp() % (kTokens / kRunTokens); }
BATON_DEVICE int PartOfWarp() { return Warp() / (kTokens / kRunTokens); }

// Shared memory: the queries of a block's row tiles as fragments, and the scores of a piece.
template <int kTiles>
struct Memory {
  static constexpr int kQueryBytes = kRowTile * kWidestHead * 2;  // of a row tile
  static constexpr int kEights = kTokens / 8;
  static constexpr int kScoreBytes = kParts * kEights * kWarpLanes * 16;
  static constexpr int kBytes = kTiles * (kQueryBytes + kScoreBytes);
  static_assert(kBytes <= static_cast<int>(kSharedBytesUnasked));

  static BATON_DEVICE std::byte* Queries(int tile) { return SharedMemory() + tile * kQueryBytes; }
  // The lane's fragment of the products with eight tokens.
  static BATON_DEVICE std::byte* Scores(int tile, int part, int eight) {
    return SharedMemory() + kTiles * kQueryBytes + tile * kScoreBytes +
           ((part * kEights + eight) * kWarpLanes + Lane()) * 16;
  }
  // In the place of scores, behind the last piece.
  static BATON_DEVICE int& IsLast() {
    return *reinterpret_cast<int*>(SharedMemory() + kTiles * kQueryBytes);
  }
};

// The row tiles' queries, scaled and rounded, to fragments.
template <class Element, int kTiles>
BATON_DEVICE void StageQueries(const AttentionLaunch& launch, const SequenceEntry& sequence,
                               int first_packed_row, int kv_head) {
  constexpr int kChunks = kWidestHead / kChunkElements;
  BATON_NO_UNROLL for (int index = ThreadIndex(); index < kTiles * kRowTile * kChunks;
                       index += kThreads) {
    const int row = index / kChunks, chunk = index % kChunks;
    StageQuery<Element>(launch, PackedRow(launch, sequence, first_packed_row + row, kv_head),
                        row % kRowTile, chunk, Memory<kTiles>::Queries(row / kRowTile));
  }
}

// Where a sequence's rows of one KV head are. Runs of 16 tokens lie in one block. Tokens that no
// row sees are read like others, though only from blocks of tokens that some row sees.
template <class Kv>
struct Source {
  using Chunk = typename ChunkOf<Kv>::Type;
  static constexpr int kRowBytes = TokenAddress<Kv>::RowBytes(kWidestHead);
  const TokenAddress<Kv> address;
  const int first_block, last_block;

  BATON_DEVICE Source(const AttentionLaunch& launch, const SequenceEntry& sequence, int kv_head,
                      const VisibleTokens& visible)
      : address(launch, sequence, kv_head),
        first_block(visible.begin >> address.block_tokens_log2),
        last_block((visible.end - 1) >> address.block_tokens_log2) {}
  // The row of K of the first token of a run.
  BATON_DEVICE const std::byte* Run(int token) const {
    const int block = token >> address.block_tokens_log2;
    return address.KIn(Greatest(Least(block, last_block), first_block), token);
  }
};

// A warp's part of the keys of a piece, on its way to registers.
template <class Kv>
struct Keys {
  typename Source<Kv>::Chunk k[kRunTokens / 8][kProducts];
  ScaleAndZero by[kRunTokens / 8];

  BATON_DEVICE void Load(const Source<Kv>& source, int first_token) {
    const int token = first_token + RunOfWarp() * kRunTokens;
    const std::byte* const run = source.Run(token);
    const unsigned lane =
        GroupOf(Lane()) * Source<Kv>::kRowBytes +
        (PartOfWarp() * kProducts * 4 + MemberOf(Lane())) * Source<Kv>::Chunk::kBytes;
    BATON_UNROLL for (int j = 0; j < kRunTokens / 8; ++j) {
      BATON_UNROLL for (int i = 0; i < kProducts; ++i) {
        k[j][i] = Source<Kv>::Chunk::Load(
            run + lane + (j * 8 * Source<Kv>::kRowBytes + i * 4 * Source<Kv>::Chunk::kBytes));
      }
      if constexpr (kIsCoded<Kv>) {
        by[j] = {Load4(run + source.address.ToScale(token) + GroupOf(Lane()) * 4 + j * 32)};
      }
    }
  }
  BATON_DEVICE Vec16 At(int j, int i) const {
    if constexpr (kIsCoded<Kv>) {
      return Dequantize<Kv>(k[j][i], by[j]);
    } else {
      return k[j][i].x;
    }
  }
};

// The values of a piece's tokens in the warp's dims, likewise.
template <class Kv>
struct Values {
  typename Source<Kv>::Chunk v[kTokens / kRunTokens][4];
  ScaleAndZero by[kTokens / kRunTokens][4];

  BATON_DEVICE void Load(const Source<Kv>& source, int first_token) {
    const int chunk = Warp() * (kOutputSpan / kChunkElements) + GroupOf(Lane());
    const unsigned lane =
        MemberOf(Lane()) * 2 * Source<Kv>::kRowBytes + chunk * Source<Kv>::Chunk::kBytes;
    BATON_UNROLL for (int r = 0; r < kTokens / kRunTokens; ++r) {
      const int token = first_token + r * kRunTokens;
      const std::byte* const run = source.Run(token) + source.address.v_offset;
      BATON_UNROLL for (int i = 0; i < 4; ++i) {
        v[r][i] = Source<Kv>::Chunk::Load(run + lane + (i / 2 * 8 + i % 2) * Source<Kv>::kRowBytes);
      }
      if constexpr (kIsCoded<Kv>) {
        const unsigned lane_scale = MemberOf(Lane()) * 8;
        BATON_UNROLL for (int i = 0; i < 4; i += 2) {
          const Vec8 two = Load8(run + source.address.ToScale(token) + lane_scale + i / 2 * 32);
          by[r][i] = {two.x[0]};
          by[r][i + 1] = {two.x[1]};
        }
      }
    }
  }
  // Slots of tokens that no row sees hold anything: 0 times infinity would be a NaN.
  BATON_DEVICE void ClearUnseen(const VisibleTokens& visible, int first_token) {
    BATON_UNROLL for (int r = 0; r < kTokens / kRunTokens; ++r) {
      BATON_UNROLL for (int i = 0; i < 4; ++i) {
        const int token = first_token + r * kRunTokens + MemberOf(Lane()) * 2 + i / 2 * 8 + i % 2;
        if (token >= visible.begin && token < visible.end) continue;
        if constexpr (kIsCoded<Kv>) {
          by[r][i] = {0};
        } else {
          v[r][i] = {};
        }
      }
    }
  }
  BATON_DEVICE void Operands(int r, ValueOperands& b) const {
    if constexpr (kIsCoded<Kv>) {
      DecodeValues<Kv>(v[r], by[r], b);
    } else {
      PairValues({v[r][0].x, v[r][1].x, v[r][2].x, v[r][3].x}, b);
    }
  }
};

}  // namespace baton::backend::cuda::wide

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_WIDE_PIECE_CUH_
