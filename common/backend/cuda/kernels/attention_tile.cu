#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/attention_core.cuh"
#include "common/backend/cuda/kernels/wide_attention.h"

namespace baton::backend::cuda {
namespace {

constexpr int kThreads = kAttentionWarps * kWarpLanes;

// K of a piece [kPieceTokens][kDim], and V [kPieceTokens][OutputDims], in swizzled chunks.
template <int kDim>
struct Stage {
  static constexpr int kKChunks = kDim / kChunkElements;
  static constexpr int kVChunks = OutputDims(kDim) / kChunkElements;
  static constexpr int kBytes = kPieceTokens * (kKChunks + kVChunks) * 16;
  std::byte* memory;

  BATON_DEVICE std::byte* KAt(int token, int chunk) const {
    return memory + RowsOperandChunk(token, chunk, kKChunks) * 16;
  }
  BATON_DEVICE std::byte* VAt(int token, int chunk) const {
    return memory + (kPieceTokens * kKChunks + ValuesOperandChunk(token, chunk, kVChunks)) * 16;
  }
  // Both from a few places of the lane that the others are constants away from: the swizzles repeat
  // after 8 tokens and 8 chunks, and leave pairs of tokens together (index_maps_test.cc).
  BATON_DEVICE Vec16 K(int j, int c) const {
    const std::byte* from = KAt(GroupOf(Lane()), c % 2 * 4 + MemberOf(Lane()));
    return LoadShared16(from + (j * 8 * kKChunks + c / 2 * 8) * 16);
  }
  BATON_DEVICE void V(int j, int span, ValueOperands& b) const {
    const std::byte* from = VAt(MemberOf(Lane()) * 2, GroupOf(Lane()));
    Vec16 v[4];
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      const int token = j * 16 + i / 2 * 8 + i % 2;
      v[i] = LoadShared16(from + (token * kVChunks + span * 8) * 16);
    }
    PairValues(v, b);
  }
};

// Queries of a block's packed rows to `memory`, one warp's fragments behind the other's. All
// threads of the block together; the caller synchronizes. Each row is read once for all the warps
// that want it.
template <class Element, int kDim>
BATON_DEVICE void StageQueries(const AttentionLaunch& launch, const SequenceEntry& sequence,
                               int first_packed_row, int kv_head, std::byte* memory) {
  constexpr int kChunks = kDim / kChunkElements, kRows = kAttentionWarps * kRowTile;
  BATON_NO_UNROLL for (int index = ThreadIndex(); index < kRows * kChunks; index += kThreads) {
    const int row = index / kChunks, chunk = index % kChunks;
    StageQuery<Element>(launch, PackedRow(launch, sequence, first_packed_row + row, kv_head),
                        row % kRowTile, chunk, memory + row / kRowTile * kRowTile * kDim * 2);
  }
}

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

// Loads one piece's K or V. All threads of the block together: kChunksARow chunks from first_chunk
// on of the tokens from first_token on, to at(token, chunk). Chunks beyond the last token or the
// head are zero. A thread's tokens are a whole number of swizzle periods apart, so that its places
// in shared memory are, too (index_maps_test.cc).
//
// Codes are loaded to registers, and put down as elements.
//
// Where copies are not asynchronous registers may hold them between Begin and End, so that they
// come while the kernel multiplies.
template <class Kv, int kChunksARow, bool kHolds>
struct Fetch {
  static constexpr int kCopies = kPieceTokens * kChunksARow / kThreads;  // of a thread
  static constexpr int kAtOnce = kHolds || kCopies < 8 ? kCopies : 8;
  static constexpr int kTokensApart = kThreads / kChunksARow;
  static_assert(kCopies % kAtOnce == 0);
  std::conditional_t<kIsCoded<Kv>, RawChunk<Kv>, Vec16> held[kAtOnce];

  BATON_DEVICE static int Token() { return ThreadIndex() / kChunksARow; }
  BATON_DEVICE static int Chunk() { return ThreadIndex() % kChunksARow; }

  // Asynchronous copies are one group; it is empty where there is no such piece.
  template <class At>
  BATON_DEVICE void Begin(const TokenAddress<Kv>& address, int first_token, int end_token,
                          int first_chunk, int head_chunks, int offset, const At& at) {
    if (first_token < end_token) {  // else no token has an address
      const bool has_chunk = first_chunk + Chunk() < head_chunks;
      const int chunk_offset = offset + (first_chunk + Chunk()) * 16;
      std::byte* to = at(Token(), Chunk());
      BATON_NO_UNROLL for (int first = 0; first < kCopies; first += kAtOnce) {
        BATON_UNROLL for (int i = 0; i < kAtOnce; ++i) {
          const int token = first_token + Token() + (first + i) * kTokensApart;
          if constexpr (kIsCoded<Kv>) {
            const bool has_token = token < end_token;
            const int loaded = has_token ? token : first_token;
            held[i] = RawChunk<Kv>::Load(address, loaded, address.K(loaded) + offset,
                                         first_chunk + Chunk(), has_token, has_chunk);
          } else {
            const bool valid = token < end_token && has_chunk;
            const std::byte* from = address.K(valid ? token : first_token) + chunk_offset;
            if (CopiesAreAsync()) {
              CopyAsync16(to + (first + i) * kThreads * 16, from, valid);
            } else {
              held[i] = Load16If(valid, from);
            }
          }
        }
        if (!kHolds) PutDown(to + first * kThreads * 16);
      }
    }
    if constexpr (!kIsCoded<Kv>) CopyAsyncCommit();
  }
  // Of what was begun, and is not empty.
  template <class At>
  BATON_DEVICE void End(const At& at) const {
    if (kHolds) PutDown(at(Token(), Chunk()));
  }
  BATON_DEVICE void PutDown(std::byte* to) const {
    if constexpr (kIsCoded<Kv>) {
      BATON_UNROLL for (int i = 0; i < kAtOnce; ++i) {
        Store16(to + i * kThreads * 16, held[i].Elements());
      }
    } else if (!CopiesAreAsync()) {
      BATON_UNROLL for (int i = 0; i < kAtOnce; ++i) Store16(to + i * kThreads * 16, held[i]);
    }
  }
};

// The results of a warp's rows, eight consecutive dims a store.
template <class Element, int kOut, bool kVariant>
BATON_DEVICE void WriteRows(const AttentionLaunch& launch, const SequenceEntry& sequence,
                            int first_row, int kv_head, int first_dim,
                            const RowState<kOut>& state) {
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    const PackedRow row(launch, sequence, first_row + GroupOf(Lane()) + half * 8, kv_head);
    if (!row.exists) continue;
    float l = state.l[half];
    if constexpr (kVariant) l = WithSink(launch, row.head, state.m[half], l);
    BATON_UNROLL for (int span = 0; span < kOut / kOutputSpan; ++span) {
      BATON_UNROLL for (int parity = 0; parity < 2; ++parity) {
        const int dim =
            first_dim + span * kOutputSpan + OutputDim(0, MemberOf(Lane()) * 2 + parity);
        if (dim >= launch.head_dim) continue;
        float a[kChunkElements];
        BATON_UNROLL for (int i = 0; i < kChunkElements; ++i) {
          a[i] = state.a[span * 8 + i][half * 2 + parity];
        }
        WriteOut<Element>(launch, row, dim, a, l);
      }
    }
  }
}

// A thread's folded sums, in global memory: registers hold one split. The loads of several wait
// together.
template <int kOut>
struct Total {
  static constexpr int kAtOnce = 8;  // loads
  float m[2] = {kMinusInfinity, kMinusInfinity};
  float l[2] = {0, 0};
  float* a;  // four from a[index * 4 * kThreads] on

  // Folds the split in `state` into the total, and leaves the total in `state` too. first, last: of
  // the splits; no total is read before the first, and none after the last.
  BATON_DEVICE void Take(RowState<kOut>& state, bool first, bool last) {
    FoldWeights weights[2];
    BATON_UNROLL for (int half = 0; half < 2; ++half) {
      weights[half] = Fold(m[half], l[half], state.m[half], state.l[half]);
      state.m[half] = m[half];
      state.l[half] = l[half];
    }
    if (first) {
      FoldSums(state, weights, [](int) { return Vec16{}; });
    } else {
      FoldSums(state, weights,
               [&](int i) { return LoadGlobal(reinterpret_cast<const Vec16*>(Place(i))); });
    }
    if (last) return;
    BATON_UNROLL for (int i = 0; i < kOut / 8; ++i) {
      Vec16 sums;
      BATON_UNROLL for (int j = 0; j < 4; ++j) sums.x[j] = FloatBits(state.a[i][j]);
      Store16(Place(i), sums);
    }
  }

 private:
  BATON_DEVICE float* Place(int index) const { return a + index * 4 * kThreads; }
  template <class Load>
  static BATON_DEVICE void FoldSums(RowState<kOut>& state, const FoldWeights (&weights)[2],
                                    const Load& load) {
    BATON_UNROLL for (int first = 0; first < kOut / 8; first += kAtOnce) {
      Vec16 before[kAtOnce];
      BATON_UNROLL for (int i = 0; i < kAtOnce; ++i) before[i] = load(first + i);
      BATON_UNROLL for (int i = 0; i < kAtOnce; ++i) {
        BATON_UNROLL for (int j = 0; j < 4; ++j) {
          float& sum = state.a[first + i][j];
          sum = FoldSum(BitsFloat(before[i].x[j]), sum, weights[j / 2]);
        }
      }
    }
  }
};

static_assert(kAttentionWarps * kRowTile <= kPieceTokens);  // queries fit where K will be

// Blocks of a multiprocessor; registers decide.
template <class Element, bool kVariant>
constexpr int TileResident(int dim) {
  return dim == 64 && !kIsCoded<Element> && !kVariant ? 3 : 2;
}

template <class Element, int kDim, int kStages, bool kVariant>
BATON_DEVICE void AttendTile(const AttentionLaunch& launch) {
  if (kStages > 1) NotBeforeSm80();
  constexpr int kOut = OutputDims(kDim);
  const AttentionItem item = LoadGlobal(launch.items + BlockIndex().x);
  const int kv_head = static_cast<int>(BlockIndex().y);
  const int first_dim = static_cast<int>(BlockIndex().z) * kOut;
  const SequenceEntry sequence = LoadGlobal(launch.sequences + item.sequence);
  const VisibleTokens visible(launch, sequence, item.first_packed_row, kAttentionWarps * kRowTile);
  const int first_row = item.first_packed_row + Warp() * kRowTile;
  const VisibleTokens of_warp(launch, sequence, first_row, kRowTile);
  const TokenAddress<Element> address(launch, sequence, kv_head);
  const int head_chunks = launch.head_dim / kChunkElements;
  // Where K will be.
  StageQueries<Element, kDim>(launch, sequence, item.first_packed_row, kv_head, SharedMemory());
  SyncThreads();
  const Queries<kDim> queries(StagedQueries{SharedMemory() + Warp() * kRowTile * kDim * 2});
  SyncThreads();
  using FetchK = Fetch<Element, Stage<kDim>::kKChunks, false>;
  using FetchV = Fetch<Element, Stage<kDim>::kVChunks, true>;
  // Pieces take the stages in turns.
  const auto stage_of = [&](int token) {
    const int index = kStages == 1 ? 0 : token / kPieceTokens % kStages;
    return Stage<kDim>{SharedMemory() + index * Stage<kDim>::kBytes};
  };
  const auto k_place = [&](int token) {
    return [stage = stage_of(token)](int t, int chunk) { return stage.KAt(t, chunk); };
  };
  const auto v_place = [&](int token) {
    return [stage = stage_of(token)](int t, int chunk) { return stage.VAt(t, chunk); };
  };
  const auto begin_k = [&](int token, FetchK& k) {
    k.Begin(address, token, visible.end, 0, head_chunks, 0, k_place(token));
  };
  const auto begin_v = [&](int token, FetchV& v) {
    v.Begin(address, token, visible.end, first_dim / kChunkElements, head_chunks, address.v_offset,
            v_place(token));
  };
  RowState<kOut> state;
  state.Clear();
  Total<kOut> total;
  total.a = launch.totals +
            (int64_t{BlockIndex().x} * launch.kv_heads + kv_head) * TotalFloats(kDim) +
            int64_t{BlockIndex().z} * TotalFloats(kOut) + ThreadIndex() * 4;
  const bool folds = visible.begin / kSplitTokens != (visible.end - 1) / kSplitTokens;

  const int first = visible.begin / kPieceTokens * kPieceTokens;
  // V is loaded one stage less ahead than K: its place is free half a piece later. From sm_80 on,
  // the groups in flight after the awaited one are those of kStages - 1 pieces.
  constexpr int kAhead = (kStages - 1) * kPieceTokens, kPending = 2 * (kStages - 1);
  BATON_UNROLL for (int i = 0; i < kStages; ++i) {
    FetchK k;
    begin_k(first + i * kPieceTokens, k);
    if (i == 0) k.End(k_place(first));
    FetchV v;
    if (i + 1 < kStages) begin_v(first + i * kPieceTokens, v);
  }
  for (int token = first; token < visible.end; token += kPieceTokens) {
    const Stage<kDim> stage = stage_of(token);
    if constexpr (!kIsCoded<Element>) CopyAsyncWait<kPending>();
    SyncThreads();  // K is there; all have done with the V before
    FetchV v;
    begin_v(token + kAhead, v);
    // A piece that none of the warp's rows sees would leave them as they are.
    const bool sees = token < of_warp.end && token + kPieceTokens > of_warp.begin;
    PieceWeights weights = {};
    FoldWeights fold[2] = {};
    if (sees) {
      PieceScores s = {};
      BATON_UNROLL for (int j = 0; j < kPieceTokens / 8; ++j) {
        BATON_UNROLL for (int c = 0; c < kDim / kChunkedK; ++c) {
          AddScores<Element>(queries.At(c * 2), queries.At(c * 2 + 1), stage.K(j, c), s[j]);
        }
      }
      if constexpr (kVariant) CapScores(launch.score_cap, true, s);
      // Bounds of the rows differ by less than a row tile. Which ones exactly would take registers,
      // which are dearer, as would the rows' positions.
      constexpr int kApart = kRowTile - 1;
      const bool all_see = (launch.window == 0 || token >= of_warp.begin + kApart) &&
                           token + kPieceTokens + kApart <= of_warp.end;
      if (!all_see) {
        const auto position = [&](int row) {
          return PackedRow(launch, sequence, first_row + GroupOf(Lane()) + row, kv_head).position;
        };
        HideUnseen(token, launch.window, {position(0), position(8)}, s);
      }
      float m[2], l[2];
      weights = WeighPiece<Element, true>(s, true, m, l);
      BATON_UNROLL for (int half = 0; half < 2; ++half) {
        fold[half] = Fold(state.m[half], state.l[half], m[half], l[half]);
      }
    }
    v.End(v_place(token));
    if constexpr (!kIsCoded<Element>) CopyAsyncWait<kPending>();
    SyncThreads();  // V is there; all have done with K
    const bool is_last = token + kPieceTokens >= visible.end;
    FetchK k;
    begin_k(token + kAhead + kPieceTokens, k);
    if (sees) {
      BATON_UNROLL for (int span = 0; span < kOut / kOutputSpan; ++span) {
        float sums[8][4];
        SumValues<Element>(stage, weights, span, sums);
        BATON_UNROLL for (int i = 0; i < 8; ++i) {
          BATON_UNROLL for (int j = 0; j < 4; ++j) {
            float& sum = state.a[span * 8 + i][j];
            sum = FoldSum(sum, sums[i][j], fold[j / 2]);
          }
        }
      }
    }
    if (!is_last) k.End(k_place(token));
    if (folds && (is_last || (token + kPieceTokens) % kSplitTokens == 0)) {
      total.Take(state, token / kSplitTokens == visible.begin / kSplitTokens, is_last);
      if (!is_last) state.Clear();
    }
  }
  if constexpr (!kIsCoded<Element>) CopyAsyncWait<0>();  // for the empty ones
  // Read again: registers less through the loop.
  const AttentionItem same = LoadGlobal(launch.items + BlockIndex().x);
  WriteRows<Element, kOut, kVariant>(launch, LoadGlobal(launch.sequences + same.sequence),
                                     same.first_packed_row + Warp() * kRowTile, kv_head, first_dim,
                                     state);
}

template <class Element, int kDim, int kStages>
BATON_KERNEL_RESIDENT(kThreads, (TileResident<Element, false>(kDim)))
AttentionTileKernel(AttentionLaunch launch) {
  AwaitPrevious();
  AttendTile<Element, kDim, kStages, false>(launch);
}

template <class Element, int kDim, int kStages>
BATON_KERNEL_RESIDENT(kThreads, (TileResident<Element, true>(kDim)))
AttentionTileVariantKernel(AttentionLaunch launch) {
  AwaitPrevious();
  AttendTile<Element, kDim, kStages, true>(launch);
}

template <class Element, int kDim>
void LaunchFor(const AttentionLaunch& launch, int items, Stream stream) {
  const GridSize grid = {static_cast<unsigned>(items), static_cast<unsigned>(launch.kv_heads),
                         kDim / OutputDims(kDim)};
  static_assert(Stage<kDim>::kBytes == TileSharedBytes(kDim, 1));
  const size_t shared_bytes = TileSharedBytes(kDim, kIsCoded<Element> ? 1 : launch.tile_stages);
  auto kernel = IsVariant(launch) ? &AttentionTileVariantKernel<Element, kDim, 1>
                                  : &AttentionTileKernel<Element, kDim, 1>;
  if constexpr (kDim > 64 && !kIsCoded<Element>) {
    if (launch.tile_stages == 2) {
      kernel = IsVariant(launch) ? &AttentionTileVariantKernel<Element, kDim, 2>
                                 : &AttentionTileKernel<Element, kDim, 2>;
    }
  }
  Launch(kernel, grid, kThreads, shared_bytes, stream, launch);
}

template <class Element>
void Dispatch(const AttentionLaunch& launch, int items, Stream stream) {
  switch (PaddedDim(launch.head_dim)) {
    case 64:
      return LaunchFor<Element, 64>(launch, items, stream);
    case 128:
      return LaunchFor<Element, 128>(launch, items, stream);
    default:
      return LaunchFor<Element, 256>(launch, items, stream);
  }
}

}  // namespace

void LaunchAttentionTile(const AttentionLaunch& launch, DType dtype, int items, Stream stream) {
  if (items == 0) return;
  if (IsWide(launch.head_dim)) return LaunchWideTile(launch, dtype, items, stream);
  WithKv(launch.kv_format, dtype,
         [&](auto kv) { Dispatch<decltype(kv)>(WithInverse(launch), items, stream); });
}

}  // namespace baton::backend::cuda
