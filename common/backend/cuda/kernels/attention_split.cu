#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/attention_core.cuh"

namespace baton::backend::cuda {
namespace {

constexpr int kThreads = kAttentionWarps * kWarpLanes;
static_assert(kAttentionWarps * kPieceTokens == kSplitTokens);

// A piece's tokens straight from the pool. The compiler would have all loads of a piece on their
// way at once, and spill what waits for them; `held_back` ties those that follow to a score, by
// nothing.
template <class Kv, int kDim>
struct PooledTokens {
  const TokenAddress<Kv>& address;
  int first_token;
  int end_token;
  int chunks;
  int first_v_chunk;
  uint32_t nothing;  // 0, which the compiler does not know
  uint32_t held_back = 0;

  // Codes, scales and zeros wait beside the elements that are made of them.
  static constexpr bool kHoldsBack = kDim > (kIsCoded<Kv> ? 64 : 128);

  BATON_DEVICE void After(float score) {
    if (kHoldsBack) held_back = FloatBits(score) & nothing;
  }
  // K's loads and V's are not to wait together either; a sum of weights is never below 0.
  BATON_DEVICE void AfterAll(float sum) {
    if (kHoldsBack) {
      After(sum);
    } else if (sum < 0) {
      end_token = 0;
    }
  }
  BATON_DEVICE Vec16 K(int token, int chunk) const { return At(token, chunk, 0); }
  BATON_DEVICE Vec16 V(int token, int chunk) const {
    return At(token, first_v_chunk + chunk, address.v_offset);
  }
  // Slots after the last token hold KV of earlier sequences: 0 times infinity would be a NaN.
  BATON_DEVICE Vec16 At(int token, int chunk, int offset) const {
    if constexpr (kIsCoded<Kv>) {
      const bool has_token = first_token + token < end_token;
      const int at = first_token + (has_token ? token : 0);
      const std::byte* row = address.K(at) + offset + held_back;
      return RawChunk<Kv>::Load(address, at, row, chunk, has_token, chunk < chunks).Elements();
    } else {
      const bool valid = first_token + token < end_token && chunk < chunks;
      // The table has no entry behind the last token.
      return Load16If(
          valid, address.K(first_token + (valid ? token : 0)) + (offset + chunk * 16) + held_back);
    }
  }
};

// A split's sums in memory, of the block that computes dims from first_dim on: m [16], l [16],
// a [16][OutputDims(kDim)].
template <int kDim>
BATON_DEVICE float* PartialOf(const AttentionLaunch& launch, const AttentionItem& item, int split,
                              int kv_head, int first_dim) {
  const int64_t index = int64_t{item.first_partial + split} * launch.kv_heads + kv_head;
  float* partial = launch.partials + index * PartialFloats(kDim);
  if constexpr (OutputDims(kDim) < kDim) {
    partial += first_dim / OutputDims(kDim) * BlockPartialFloats(kDim);
  }
  return partial;
}

// Of the rows that there are.
template <int kDim>
BATON_DEVICE void StorePartial(const RowState<OutputDims(kDim)>& state, const PackedRows& rows,
                               float* partial) {
  const int member = MemberOf(Lane());
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    if (rows.position[half] < 0) continue;
    const int row = GroupOf(Lane()) + half * 8;
    if (member == 0) {
      StoreGlobal(partial + row, state.m[half]);
      StoreGlobal(partial + 16 + row, state.l[half]);
    }
    BATON_UNROLL for (int span = 0; span < OutputDims(kDim) / kOutputSpan; ++span) {
      BATON_UNROLL for (int parity = 0; parity < 2; ++parity) {
        float* to = partial + 32 + row * OutputDims(kDim) + span * kOutputSpan +
                    OutputDim(0, member * 2 + parity);
        BATON_UNROLL for (int quarter = 0; quarter < 2; ++quarter) {
          Vec16 v;
          BATON_UNROLL for (int i = 0; i < 4; ++i) {
            v.x[i] = FloatBits(state.a[span * 8 + quarter * 4 + i][half * 2 + parity]);
          }
          Store16(to + quarter * 4, v);
        }
      }
    }
  }
}

// Folds all splits of a row tile in ascending order; eight dims a thread. Several splits are read
// at once, so that the fold does not wait for each.
template <class Element, int kDim>
BATON_DEVICE void FoldPartials(const AttentionLaunch& launch, const SequenceEntry& sequence,
                               const AttentionItem& item, int first_split, int kv_head,
                               int first_dim) {
  constexpr int kAhead = 4;
  const int dims = Least(OutputDims(kDim), launch.head_dim - first_dim);
  const int chunks = dims / kChunkElements;
  for (int index = ThreadIndex(); index < kRowTile * chunks; index += kThreads) {
    const int row = index / chunks, dim = first_dim + index % chunks * kChunkElements;
    const int packed = item.first_packed_row + row;
    const int query = packed / launch.group;
    if (query >= sequence.row_count) continue;
    float m = kMinusInfinity, l = 0;
    float a[kChunkElements] = {};
    for (int split = first_split; split < item.split_count; split += kAhead) {
      float next_m[kAhead], next_l[kAhead];
      Vec16 next[kAhead][2];
      BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
        const float* partial = PartialOf<kDim>(launch, item, Least(split + i, item.split_count - 1),
                                               kv_head, first_dim);
        const float* sums = partial + 32 + row * OutputDims(kDim) + dim - first_dim;
        next_m[i] = LoadFresh(partial + row);
        next_l[i] = LoadFresh(partial + 16 + row);
        next[i][0] = LoadFresh16(sums);
        next[i][1] = LoadFresh16(sums + 4);
      }
      BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
        if (split + i >= item.split_count) continue;
        const FoldWeights weights = Fold(m, l, next_m[i], next_l[i]);
        BATON_UNROLL for (int e = 0; e < kChunkElements; ++e) {
          a[e] = FoldSum(a[e], BitsFloat(next[i][e / 4].x[e % 4]), weights);
        }
      }
    }
    Vec16 packed_out;
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      packed_out.x[i] = Element::Pack(Divide(a[2 * i], l), Divide(a[2 * i + 1], l));
    }
    const int head = kv_head * launch.group + packed % launch.group;
    Store16(static_cast<uint16_t*>(launch.out) + (sequence.first_row + query) * launch.out_stride +
                int64_t{head} * launch.head_dim + dim,
            packed_out);
  }
}

// How the other warps hand their pieces to the first: lane by lane, as they hold them.
template <int kOut>
struct PieceExchange {
  static constexpr int kFloats = kOut / 2 + 4;  // of a lane
  static constexpr int kBytes = (kAttentionWarps - 1) * kFloats * kWarpLanes * 4;
  float* memory;

  BATON_DEVICE float& At(int warp, int element) const {
    return memory[((warp - 1) * kFloats + element) * kWarpLanes + Lane()];
  }
  BATON_DEVICE void Give(const RowState<kOut>& state) const {
    BATON_UNROLL for (int half = 0; half < 2; ++half) {
      At(Warp(), half) = state.m[half];
      At(Warp(), 2 + half) = state.l[half];
    }
    BATON_UNROLL for (int i = 0; i < kOut / 8; ++i) {
      BATON_UNROLL for (int j = 0; j < 4; ++j) At(Warp(), 4 + i * 4 + j) = state.a[i][j];
    }
  }
  BATON_DEVICE void FoldAll(RowState<kOut>& state) const {
    BATON_UNROLL for (int warp = 1; warp < kAttentionWarps; ++warp) {
      const FoldWeights weights[2] = {Fold(state.m[0], state.l[0], At(warp, 0), At(warp, 2)),
                                      Fold(state.m[1], state.l[1], At(warp, 1), At(warp, 3))};
      BATON_UNROLL for (int i = 0; i < kOut / 8; ++i) {
        BATON_UNROLL for (int j = 0; j < 4; ++j) {
          state.a[i][j] = FoldSum(state.a[i][j], At(warp, 4 + i * 4 + j), weights[j / 2]);
        }
      }
    }
  }
};

template <int kDim>
constexpr int SharedBytes() {
  static_assert(kRowTile * kDim * 2 <= PieceExchange<OutputDims(kDim)>::kBytes);
  return PieceExchange<OutputDims(kDim)>::kBytes + 16;
}

template <class Element, int kDim>
BATON_DEVICE void AttendSplit(const AttentionLaunch& launch, const AttentionItem& item,
                              int kv_head) {
  constexpr int kOut = OutputDims(kDim);
  const int first_dim = static_cast<int>(BlockIndex().z) * kOut;
  const SequenceEntry sequence = LoadGlobal(launch.sequences + item.sequence);
  const TokenRange visible = VisibleTo(launch, sequence, item.first_packed_row, kRowTile);
  const int first_visible_split = visible.begin / kSplitTokens;
  const bool folds = item.split_count - first_visible_split > 1;
  const PieceExchange<kOut> exchange = {reinterpret_cast<float*>(SharedMemory())};
  if (item.split >= first_visible_split) {
    // Where the pieces will be exchanged.
    StageQueries<Element, kDim, kRowTile, kThreads>(launch, sequence, item.first_packed_row,
                                                    kv_head, SharedMemory());
    SyncThreads();
    const PackedRows rows(launch, sequence, item.first_packed_row, kv_head);
    RowState<kOut> state;
    state.Clear();
    const int first_token = item.split * kSplitTokens + Warp() * kPieceTokens;
    if (first_token < visible.end && first_token + kPieceTokens > visible.begin) {
      // Registers hold what is on its way.
      const StagedQueries<kDim> queries = {SharedMemory(), 0};
      const TokenAddress<Element> address(launch, sequence, kv_head);
      PooledTokens<Element, kDim> tokens = {address,
                                            first_token,
                                            visible.end,
                                            launch.head_dim / kChunkElements,
                                            first_dim / kChunkElements,
                                            launch.nothing};
      const PieceWeights weights = WeighPiece<Element, kDim>(tokens, first_token, launch.window,
                                                             rows, queries, state.m, state.l);
      tokens.AfterAll(state.l[0]);
      BATON_UNROLL for (int span = 0; span < kOut / kOutputSpan; ++span) {
        float sums[8][4];
        SumValues<Element>(tokens, weights, span, sums);
        BATON_UNROLL for (int i = 0; i < 8; ++i) {
          BATON_UNROLL for (int j = 0; j < 4; ++j) state.a[span * 8 + i][j] = sums[i][j];
        }
      }
    }
    SyncThreads();  // all have their queries
    if (Warp() > 0) exchange.Give(state);
    SyncThreads();
    if (Warp() == 0) {
      exchange.FoldAll(state);
      if (folds) {
        StorePartial<kDim>(state, rows,
                           PartialOf<kDim>(launch, item, item.split, kv_head, first_dim));
      } else {
        WriteOut<Element>(launch, rows, first_dim, state);
      }
    }
  }
  if (!folds) return;
  // The last of the row tile's blocks to come here finds all partials written.
  ThreadFence();
  SyncThreads();
  int* is_last = reinterpret_cast<int*>(SharedMemory() + PieceExchange<kOut>::kBytes);
  unsigned* counter = launch.counters +
                      (int64_t{item.row_tile} * launch.kv_heads + kv_head) * Grid().z +
                      BlockIndex().z;
  if (ThreadIndex() == 0) {
    *is_last = AtomicAdd(counter, 1u) == static_cast<unsigned>(item.split_count) - 1;
    ThreadFence();
  }
  SyncThreads();
  if (!*is_last) return;
  FoldPartials<Element, kDim>(launch, sequence, item, first_visible_split, kv_head, first_dim);
  if (ThreadIndex() == 0) StoreGlobal(counter, 0u);
}

template <class Element, int kDim>
BATON_KERNEL_RESIDENT(kThreads, 2)
AttentionSplitKernel(AttentionLaunch launch) {
  AwaitPrevious();
  const int items =
      launch.item_count == nullptr ? static_cast<int>(Grid().x) : LoadGlobal(launch.item_count);
  for (int index = static_cast<int>(BlockIndex().x); index < items;
       index += static_cast<int>(Grid().x)) {
    AttendSplit<Element, kDim>(launch, LoadGlobal(launch.items + index),
                               static_cast<int>(BlockIndex().y));
    SyncThreads();  // shared memory is the next item's
  }
}

template <class Element, int kDim>
void LaunchFor(const AttentionLaunch& launch, int blocks, Stream stream) {
  const GridSize grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(launch.kv_heads),
                         kDim / OutputDims(kDim)};
  Launch(AttentionSplitKernel<Element, kDim>, grid, kThreads, SharedBytes<kDim>(), stream, launch);
}

template <class Element>
void Dispatch(const AttentionLaunch& launch, int blocks, Stream stream) {
  switch (PaddedDim(launch.head_dim)) {
    case 64:
      return LaunchFor<Element, 64>(launch, blocks, stream);
    case 128:
      return LaunchFor<Element, 128>(launch, blocks, stream);
    default:
      return LaunchFor<Element, 256>(launch, blocks, stream);
  }
}

}  // namespace

void LaunchAttentionSplit(const AttentionLaunch& launch, DType dtype, int blocks, Stream stream) {
  if (blocks == 0) return;
  WithKv(launch.kv_format, dtype, [&](auto kv) { Dispatch<decltype(kv)>(launch, blocks, stream); });
}

}  // namespace baton::backend::cuda
