#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/attention_core.cuh"
#include "common/backend/cuda/kernels/tile_stages.cuh"
#include "common/backend/cuda/kernels/wide_attention.h"

namespace baton::backend::cuda {
namespace {

// A warp computes one row tile or two: with two it reads K and V from shared memory half as often,
// but a block has half of the warps.
constexpr int ThreadsOf(int row_tiles) { return kAttentionWarps / row_tiles * kWarpLanes; }

// Queries of a block's packed rows to `memory`, one row tile's fragments behind the other's. All
// threads of the block together; the caller synchronizes. Each row is read once for all the warps
// that want it.
template <class Element, int kDim, int kThreads>
BATON_DEVICE void StageQueries(const AttentionLaunch& launch, const SequenceEntry& sequence,
                               int first_packed_row, int kv_head, std::byte* memory) {
  constexpr int kChunks = kDim / kChunkElements, kRows = kAttentionWarps * kRowTile;
  BATON_NO_UNROLL for (int index = ThreadIndex(); index < kRows * kChunks; index += kThreads) {
    const int row = index / kChunks, chunk = index % kChunks;
    StageQuery<Element>(launch, PackedRow(launch, sequence, first_packed_row + row, kv_head),
                        row % kRowTile, chunk, memory + row / kRowTile * kRowTile * kDim * 2);
  }
}

// A warp's partial results of 16 rows.
template <int kOut>
struct RowState {
  float m[2];            // greatest score, in units of log 2
  float l[2];            // sum of the weights
  float a[kOut / 8][4];  // weighted sums of V: of product i the dims from 8 i on

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

// The results of a warp's rows.
template <class Element, int kOut, bool kVariant>
BATON_DEVICE void WriteRows(const AttentionLaunch& launch, const SequenceEntry& sequence,
                            int first_row, int kv_head, int first_dim,
                            const RowState<kOut>& state) {
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    const PackedRow row(launch, sequence, first_row + GroupOf(Lane()) + half * 8, kv_head);
    if (!row.exists) continue;
    float l = state.l[half];
    if constexpr (kVariant) l = WithSink(launch, row.head, state.m[half], l);
    auto* const out = static_cast<uint16_t*>(launch.out) + row.row * launch.out_stride +
                      int64_t{row.head} * launch.head_dim;
    BATON_UNROLL for (int i = 0; i < kOut / 8; ++i) {
      const int dim = first_dim + i * 8 + MemberOf(Lane()) * 2;
      if (dim >= launch.head_dim) continue;
      const float(&a)[4] = state.a[i];
      StoreGlobal(reinterpret_cast<uint32_t*>(out + dim),
                  Element::Pack(Divide(a[half * 2], l), Divide(a[half * 2 + 1], l)));
    }
  }
}

// A thread's folded sums of a row tile, in global memory: registers hold one split. The loads of
// several wait together.
template <int kThreads, int kOut>
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
  return kIsCoded<Element> || kVariant ? 2 : TileBlocks(dim);
}

// kTiles: row tiles of a warp.
template <class Element, int kDim, int kStages, int kTiles, bool kVariant>
BATON_DEVICE void AttendTile(const AttentionLaunch& launch) {
  if (kStages > 1) NotBeforeSm80();
  constexpr int kThreads = ThreadsOf(kTiles), kWarpRows = kTiles * kRowTile;
  constexpr int kOut = TileDims(kDim, kStages);
  const AttentionItem item = LoadGlobal(launch.items + BlockIndex().x);
  const int kv_head = static_cast<int>(BlockIndex().y);
  const int first_dim = static_cast<int>(BlockIndex().z) * kOut;
  const SequenceEntry sequence = LoadGlobal(launch.sequences + item.sequence);
  const VisibleTokens visible(launch, sequence, item.first_packed_row, kAttentionWarps * kRowTile);
  const int first_row = item.first_packed_row + Warp() * kWarpRows;
  const VisibleTokens of_warp(launch, sequence, first_row, kWarpRows);
  const TokenAddress<Element> address(launch, sequence, kv_head);
  const int head_chunks = launch.head_dim / kChunkElements;
  // Where K will be.
  StageQueries<Element, kDim, kThreads>(launch, sequence, item.first_packed_row, kv_head,
                                        SharedMemory());
  SyncThreads();
  Queries<kDim> queries[kTiles];
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
    queries[tile] = Queries<kDim>(
        StagedQueries{SharedMemory() + (Warp() * kTiles + tile) * kRowTile * kDim * 2});
  }
  SyncThreads();
  using FetchK = Fetch<Element, kThreads, Stage<kDim, kStages>::kKChunks, false>;
  using FetchV = Fetch<Element, kThreads, Stage<kDim, kStages>::kVChunks, true>;
  // Pieces take the stages in turns.
  const auto stage_of = [&](int token) {
    const int index = kStages == 1 ? 0 : token / kPieceTokens % kStages;
    return Stage<kDim, kStages>{SharedMemory() + index * Stage<kDim, kStages>::kBytes};
  };
  const int first_v_chunk = first_dim / kChunkElements;
  // With one stage, the block loads K of the next piece once all threads have multiplied this
  // one's, and V of a piece while they multiply its K.
  const Stage<kDim, kStages> only = stage_of(0);
  const auto k_place = [&](int token, int chunk) { return only.KAt(token, chunk); };
  const auto v_place = [&](int token, int chunk) { return only.VAt(token, chunk); };
  const auto begin_k = [&](int token, FetchK& k) {
    k.Begin(address, token, visible.end, 0, head_chunks, 0, k_place);
  };
  // With two stages, the block loads a piece while it multiplies the one before.
  FetchBoth<Element, kThreads, kDim, kStages> both{
      {}, address, visible.end, first_v_chunk, head_chunks};
  RowState<kOut> state[kTiles];
  Total<kThreads, kOut> total[kTiles];
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
    state[tile].Clear();
    total[tile].a = launch.totals +
                    (int64_t{BlockIndex().x} * launch.kv_heads + kv_head) * TotalFloats(kDim) +
                    int64_t{BlockIndex().z} * TotalFloats(kOut) +
                    tile * (TotalFloats(kOut) / kTiles) + ThreadIndex() * 4;
  }
  const bool folds = visible.begin / kSplitTokens != (visible.end - 1) / kSplitTokens;

  const int first = visible.begin / kPieceTokens * kPieceTokens;
  if constexpr (kStages == 1) {
    FetchK k;
    begin_k(first, k);
    k.End(k_place);
  } else {
    both.ReadTable(first);
    both.Begin(first, stage_of(first));
  }
  for (int token = first; token < visible.end; token += kPieceTokens) {
    const Stage<kDim, kStages> stage = stage_of(token);
    if constexpr (!kIsCoded<Element>) CopyAsyncWait<0>();
    SyncThreads();  // K is there, and V of two stages; all have done with the piece before
    FetchV v;
    if constexpr (kStages == 1) {
      v.Begin(address, token, visible.end, first_v_chunk, head_chunks, address.v_offset, v_place);
    } else {
      both.Begin(token + kPieceTokens, stage_of(token + kPieceTokens));
    }
    // A piece that none of the warp's rows sees would leave them as they are.
    const bool sees = token < of_warp.end && token + kPieceTokens > of_warp.begin;
    PieceWeights weights[kTiles] = {};
    FoldWeights fold[kTiles][2] = {};
    if (sees) {
      PieceScores s[kTiles] = {};
      BATON_UNROLL for (int j = 0; j < kPieceTokens / 8; ++j) {
        BATON_UNROLL for (int c = 0; c < kDim / kChunkedK; ++c) {
          const Vec16 k = stage.K(j, c);
          BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
            AddScores<Element>(queries[tile].At(c * 2), queries[tile].At(c * 2 + 1), k, s[tile][j]);
          }
        }
      }
      // Bounds of the rows differ by less than there are rows. Which ones exactly would take
      // registers, which are dearer, as would the rows' positions.
      constexpr int kApart = kWarpRows - 1;
      const bool all_see = (launch.window == 0 || token >= of_warp.begin + kApart) &&
                           token + kPieceTokens + kApart <= of_warp.end;
      if constexpr (kVariant) {
        BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          CapScores(launch.score_cap, true, s[tile]);
        }
      }
      if (!all_see) {
        BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          const auto position = [&](int row) {
            const int packed = first_row + tile * kRowTile + GroupOf(Lane()) + row;
            return PackedRow(launch, sequence, packed, kv_head).position;
          };
          HideUnseen(token, launch.window, {position(0), position(8)}, s[tile]);
        }
      }
      // Behind the branches, so that one row tile's weights come while the other's wait.
      BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
        float m[2], l[2];
        weights[tile] = WeighPiece<Element, true>(s[tile], true, m, l);
        BATON_UNROLL for (int half = 0; half < 2; ++half) {
          fold[tile][half] = Fold(state[tile].m[half], state[tile].l[half], m[half], l[half]);
        }
      }
    }
    const bool is_last = token + kPieceTokens >= visible.end;
    FetchK k;
    if constexpr (kStages == 1) {
      v.End(v_place);
      if constexpr (!kIsCoded<Element>) CopyAsyncWait<0>();
      SyncThreads();  // V is there; all have done with K
      begin_k(token + kPieceTokens, k);
    }
    if (sees) {
      BATON_UNROLL for (int span = 0; span < kOut / kOutputSpan; ++span) {
        float sums[kTiles][8][4];
        SumValues<Element>(stage, weights, span, sums);
        BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          BATON_UNROLL for (int i = 0; i < 8; ++i) {
            BATON_UNROLL for (int j = 0; j < 4; ++j) {
              float& sum = state[tile].a[span * 8 + i][j];
              sum = FoldSum(sum, sums[tile][i][j], fold[tile][j / 2]);
            }
          }
        }
      }
    }
    if (kStages == 1 && !is_last) k.End(k_place);
    if (folds && (is_last || (token + kPieceTokens) % kSplitTokens == 0)) {
      BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
        total[tile].Take(state[tile], token / kSplitTokens == visible.begin / kSplitTokens,
                         is_last);
        if (!is_last) state[tile].Clear();
      }
    }
  }
  if constexpr (!kIsCoded<Element>) CopyAsyncWait<0>();  // for the empty ones
  // Read again: registers less through the loop.
  const AttentionItem same = LoadGlobal(launch.items + BlockIndex().x);
  const SequenceEntry of_same = LoadGlobal(launch.sequences + same.sequence);
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
    WriteRows<Element, kOut, kVariant>(launch, of_same,
                                       same.first_packed_row + (Warp() * kTiles + tile) * kRowTile,
                                       kv_head, first_dim, state[tile]);
  }
}

template <class Element, int kDim, int kStages>
BATON_KERNEL_RESIDENT(ThreadsOf(1), (TileResident<Element, false>(kDim)))
AttentionTileKernel(AttentionLaunch launch) {
  AwaitPrevious();
  AttendTile<Element, kDim, kStages, 1, false>(launch);
}

template <class Element, int kDim, int kStages>
BATON_KERNEL_RESIDENT(ThreadsOf(1), (TileResident<Element, true>(kDim)))
AttentionTileVariantKernel(AttentionLaunch launch) {
  AwaitPrevious();
  AttendTile<Element, kDim, kStages, 1, true>(launch);
}

// Two row tiles a warp, of heads whose sums leave registers for them.
template <class Element, bool kVariant>
BATON_KERNEL_RESIDENT(ThreadsOf(2), kPairedTileBlocks)
AttentionTilePairKernel(AttentionLaunch launch) {
  AwaitPrevious();
  AttendTile<Element, 64, 2, 2, kVariant>(launch);
}

template <class Element, int kDim>
void LaunchFor(const AttentionLaunch& launch, int items, Stream stream) {
  int stages = 1, row_tiles = 1;
  auto kernel = IsVariant(launch) ? &AttentionTileVariantKernel<Element, kDim, 1>
                                  : &AttentionTileKernel<Element, kDim, 1>;
  if constexpr (!kIsCoded<Element>) {
    if (launch.tile_stages == 2) {
      stages = 2;
      kernel = IsVariant(launch) ? &AttentionTileVariantKernel<Element, kDim, 2>
                                 : &AttentionTileKernel<Element, kDim, 2>;
      if constexpr (kDim == 64) {
        if (launch.tile_pairs) {
          row_tiles = 2;
          kernel = IsVariant(launch) ? &AttentionTilePairKernel<Element, true>
                                     : &AttentionTilePairKernel<Element, false>;
        }
      }
    }
  }
  static_assert(Stage<kDim, 1>::kBytes == TileSharedBytes(kDim, 1));
  static_assert(2 * Stage<kDim, 2>::kBytes == TileSharedBytes(kDim, 2));
  const GridSize grid = {static_cast<unsigned>(items), static_cast<unsigned>(launch.kv_heads),
                         static_cast<unsigned>(kDim / TileDims(kDim, stages))};
  Launch(kernel, grid, ThreadsOf(row_tiles), TileSharedBytes(kDim, stages), stream, launch);
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
