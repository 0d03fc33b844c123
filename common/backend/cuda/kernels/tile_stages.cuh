// The tile kernel's loads: pieces of K and V from the pool to shared memory, where the block's
// warps read them as operands.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_TILE_STAGES_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_TILE_STAGES_CUH_

#include <type_traits>

#include "common/backend/cuda/kernels/attention_core.cuh"

namespace baton::backend::cuda {

// K of a piece [kPieceTokens][kDim], and V [kPieceTokens][TileDims], in swizzled chunks.
template <int kDim, int kStages>
struct Stage {
  static constexpr int kKChunks = kDim / kChunkElements;
  static constexpr int kVChunks = TileDims(kDim, kStages) / kChunkElements;
  static constexpr int kBytes = kPieceTokens * (kKChunks + kVChunks) * 16;
  std::byte* memory;

  BATON_DEVICE std::byte* KAt(int token, int chunk) const {
    return memory + RowsOperandChunk(token, chunk, kKChunks) * 16;
  }
  BATON_DEVICE std::byte* VAt(int token, int chunk) const {
    return memory + (kPieceTokens * kKChunks + ValuesOperandChunk(token, chunk, kVChunks)) * 16;
  }
  // From a place of the lane that the others are constants away from: the swizzle repeats after 8
  // tokens and 8 chunks (index_maps_test.cc).
  BATON_DEVICE Vec16 K(int j, int c) const {
    const std::byte* from = KAt(GroupOf(Lane()), c % 2 * 4 + MemberOf(Lane()));
    return LoadShared16(from + (j * 8 * kKChunks + c / 2 * 8) * 16);
  }
  // Two products at a time: a lane names a row of one of four matrices of 8 tokens by a chunk. Rows
  // begin at multiples of 128 bytes, so that the swizzle of chunk i is that of chunk 0, xor i.
  BATON_DEVICE void V(int j, int span, ValueOperands& b) const {
    const int matrix = Lane() / 8, token = matrix % 2 * 8 + Lane() % 8;
    const int first = ValuesOperandChunk(token, matrix / 2, kVChunks) * 16;
    BATON_UNROLL for (int i = 0; i < 8; i += 2) {
      const std::byte* from = memory + (first ^ i * 16);
      const Vec16 two =
          LoadTransposed(from + (kPieceTokens * kKChunks + j * 16 * kVChunks + span * 8) * 16);
      BATON_UNROLL for (int at = 0; at < 4; ++at) b[i + at / 2][at % 2] = two.x[at];
    }
  }
};

// A thread's places in a piece: eight threads share a token, and each takes every eighth chunk of
// its row. The thread's tokens are a whole number of swizzle periods apart, so that its places in
// shared memory are constants apart, too (index_maps_test.cc).
template <int kThreads>
struct PiecePlaces {
  static constexpr int kTokensApart = kThreads / 8;
  static constexpr int kTokens = kPieceTokens / kTokensApart;

  BATON_DEVICE static int Token() { return ThreadIndex() / 8; }
  BATON_DEVICE static int Chunk() { return ThreadIndex() % 8; }
  // From the place of the first token and chunk to that of token i's chunk `part`.
  static constexpr BATON_DEVICE int Bytes(int chunks_a_row, int i, int part) {
    return (i * kTokensApart * chunks_a_row + part * 8) * 16;
  }
};

// Loads one piece's K or V. All threads of the block together: kChunksARow chunks from first_chunk
// on of the tokens from first_token on, to at(token, chunk). Chunks beyond the last token or the
// head are zero.
//
// Codes are loaded to registers, and put down as elements.
//
// Where copies are not asynchronous registers may hold them between Begin and End, so that they
// come while the kernel multiplies.
template <class Kv, int kThreads, int kChunksARow, bool kHolds>
struct Fetch : PiecePlaces<kThreads> {
  using Places = PiecePlaces<kThreads>;
  using Places::Bytes, Places::Chunk, Places::Token;
  using Places::kTokens, Places::kTokensApart;
  static constexpr int kParts = kChunksARow / 8;  // of a token
  static constexpr int kTokensAtOnce = kHolds || kParts < 4 ? kTokens : kTokens / 2;
  std::conditional_t<kIsCoded<Kv>, RawChunk<Kv>, Vec16> held[kTokensAtOnce * kParts];

  // Asynchronous copies are one group; it is empty where there is no such piece.
  template <class At>
  BATON_DEVICE void Begin(const TokenAddress<Kv>& address, int first_token, int end_token,
                          int first_chunk, int head_chunks, int offset, const At& at) {
    if (first_token < end_token) {  // else no token has an address
      std::byte* to = at(Token(), Chunk());
      BATON_NO_UNROLL for (int first = 0; first < kTokens; first += kTokensAtOnce) {
        BATON_UNROLL for (int i = 0; i < kTokensAtOnce; ++i) {
          const int token = first_token + Token() + (first + i) * kTokensApart;
          const bool has_token = token < end_token;
          const int loaded = has_token ? token : first_token;
          const std::byte* const row = address.K(loaded) + offset;
          BATON_UNROLL for (int part = 0; part < kParts; ++part) {
            const int chunk = first_chunk + Chunk() + part * 8;
            const bool has_chunk = chunk < head_chunks;
            auto& chunk_held = held[i * kParts + part];
            if constexpr (kIsCoded<Kv>) {
              chunk_held = RawChunk<Kv>::Load(address, loaded, row, chunk, has_token, has_chunk);
            } else if (CopiesAreAsync()) {
              CopyAsync16(to + Bytes(kChunksARow, first + i, part), row + chunk * 16,
                          has_token && has_chunk);
            } else {
              chunk_held = Load16If(has_token && has_chunk, row + chunk * 16);
            }
          }
        }
        if (!kHolds) PutDown(to + Bytes(kChunksARow, first, 0));
      }
    }
    if constexpr (!kIsCoded<Kv>) CopyAsyncCommit();
  }
  // Puts down what Begin loaded. REQUIRES: there was such a piece.
  template <class At>
  BATON_DEVICE void End(const At& at) const {
    if (kHolds) PutDown(at(Token(), Chunk()));
  }
  BATON_DEVICE void PutDown(std::byte* to) const {
    const auto put = [&](const auto& elements) {
      BATON_UNROLL for (int i = 0; i < kTokensAtOnce * kParts; ++i) {
        Store16(to + Bytes(kChunksARow, i / kParts, i % kParts), elements(held[i]));
      }
    };
    if constexpr (kIsCoded<Kv>) {
      put([](const RawChunk<Kv>& chunk) { return chunk.Elements(); });
    } else if (!CopiesAreAsync()) {
      put([](const Vec16& chunk) { return chunk; });
    }
  }
};

// Copies K and V of pieces to stages, each piece as one group, from sm_80 on. All threads of the
// block together. The block table is read one piece ahead, so that no copy waits for it.
template <class Element, int kThreads, int kDim, int kStages>
struct FetchBoth : PiecePlaces<kThreads> {
  using Places = PiecePlaces<kThreads>;
  using Places::Bytes, Places::Chunk, Places::Token;
  using Places::kTokens, Places::kTokensApart;
  const TokenAddress<Element>& address;
  const int end_token, first_v_chunk, head_chunks;
  uint32_t numbers[kTokens] = {};  // of the blocks of the next piece's tokens

  BATON_DEVICE void ReadTable(int first_token) {
    BATON_UNROLL for (int i = 0; i < kTokens; ++i) {
      const int token = first_token + Token() + i * kTokensApart;
      if (token < end_token) numbers[i] = address.NumberOf(token >> address.block_tokens_log2);
    }
  }
  // The piece from first_token on, whose numbers were read; those after it are read. An empty group
  // where there is no such piece.
  BATON_DEVICE void Begin(int first_token, const Stage<kDim, kStages>& stage) {
    const bool whole =
        first_token + kPieceTokens <= end_token && head_chunks == kDim / kChunkElements;
    if (whole) {
      Copy<true>(first_token, stage);
    } else if (first_token < end_token) {
      Copy<false>(first_token, stage);
    }
    CopyAsyncCommit();
  }

 private:
  // kWhole: all tokens and chunks are there, which takes fewer instructions.
  template <bool kWhole>
  BATON_DEVICE void Copy(int first_token, const Stage<kDim, kStages>& stage) {
    const std::byte* rows[kTokens];
    BATON_UNROLL for (int i = 0; i < kTokens; ++i) {
      rows[i] = address.KOf(numbers[i], first_token + Token() + i * kTokensApart) + Chunk() * 16;
    }
    ReadTable(first_token + kPieceTokens);
    const auto copy = [&](auto chunks_a_row, std::byte* to, int first_chunk, int offset) {
      constexpr int kChunksARow = decltype(chunks_a_row)::value;
      BATON_UNROLL for (int i = 0; i < kTokens; ++i) {
        const std::byte* const from = rows[i] + offset + first_chunk * 16;
        const bool has_token = first_token + Token() + i * kTokensApart < end_token;
        BATON_UNROLL for (int part = 0; part < kChunksARow / 8; ++part) {
          const bool has_chunk = first_chunk + Chunk() + part * 8 < head_chunks;
          CopyAsync16(to + Bytes(kChunksARow, i, part), from + part * 128,
                      kWhole || (has_token && has_chunk));
        }
      }
    };
    using KChunks = std::integral_constant<int, Stage<kDim, kStages>::kKChunks>;
    using VChunks = std::integral_constant<int, Stage<kDim, kStages>::kVChunks>;
    copy(KChunks{}, stage.KAt(Token(), Chunk()), 0, 0);
    copy(VChunks{}, stage.VAt(Token(), Chunk()), first_v_chunk, address.v_offset);
  }
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_TILE_STAGES_CUH_
