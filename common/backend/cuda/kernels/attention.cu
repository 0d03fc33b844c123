#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/attention_core.cuh"

namespace baton::backend::cuda {
namespace {

constexpr int kThreads = kAttentionWarps * kWarpLanes;

// ---- split: few rows, a warp a split --------------------------------------------------------

// A step's tokens straight from the pool.
struct PooledTokens {
  const TokenAddress& address;
  int first_token;
  int end_token;
  int chunks;
  int first_v_chunk;

  BATON_DEVICE Vec16 K(int token, int chunk) const { return At(token, chunk, 0); }
  BATON_DEVICE Vec16 V(int token, int chunk) const {
    return At(token, first_v_chunk + chunk, address.v_offset);
  }
  BATON_DEVICE Vec16 At(int token, int chunk, int64_t offset) const {
    // Beyond the last token lies what earlier sequences left: 0 times infinity would show.
    if (first_token + token >= end_token || chunk >= chunks) return Vec16{};
    return Load16(address.K(first_token + token) + offset + chunk * 16);
  }
};

// A partial: m [16], l [16], a [16][kDim].
template <int kDim>
BATON_DEVICE float* PartialOf(const AttentionLaunch& launch, const AttentionItem& item, int split,
                              int kv_head) {
  const int64_t index = int64_t{item.first_partial + split} * launch.kv_heads + kv_head;
  return launch.partials + index * PartialFloats(kDim);
}

// Blocks of other output dims store the same m and l.
template <int kDim>
BATON_DEVICE void StorePartial(const RowState<OutputDims(kDim)>& state, int first_dim,
                               float* partial) {
  const int member = MemberOf(Lane());
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    const int row = GroupOf(Lane()) + half * 8;
    if (member == 0) {
      partial[row] = state.m[half];
      partial[16 + row] = state.l[half];
    }
    BATON_UNROLL for (int span = 0; span < OutputDims(kDim) / kOutputSpan; ++span) {
      BATON_UNROLL for (int parity = 0; parity < 2; ++parity) {
        float* to = partial + 32 + row * kDim + first_dim + span * kOutputSpan +
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

// Folds all splits of a row tile; eight dims a thread.
template <class Element, int kDim>
BATON_DEVICE void FoldPartials(const AttentionLaunch& launch, const SequenceEntry& sequence,
                               const AttentionItem& item, int first_split, int kv_head,
                               int first_dim) {
  const int dims = Least(OutputDims(kDim), launch.head_dim - first_dim);
  const int chunks = dims / kChunkElements;
  for (int index = ThreadIndex(); index < kRowTile * chunks; index += kThreads) {
    const int row = index / chunks, dim = first_dim + index % chunks * kChunkElements;
    const int packed = item.first_packed_row + row;
    const int query = packed / launch.group;
    if (query >= sequence.row_count) continue;
    float m = kMinusInfinity, l = 0;
    float a[kChunkElements] = {};
    for (int split = first_split; split < item.split_count; ++split) {
      const float* partial = PartialOf<kDim>(launch, item, split, kv_head);
      const FoldWeights weights =
          Fold(m, l, LoadFresh(partial + row), LoadFresh(partial + 16 + row));
      BATON_UNROLL for (int quarter = 0; quarter < 2; ++quarter) {
        const Vec16 next = LoadFresh16(partial + 32 + row * kDim + dim + quarter * 4);
        BATON_UNROLL for (int i = 0; i < 4; ++i) {
          float& sum = a[quarter * 4 + i];
          sum = FoldSum(sum, BitsFloat(next.x[i]), weights);
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

template <class Element, int kDim>
BATON_KERNEL_RESIDENT(kThreads, 2)
AttentionSplitKernel(AttentionLaunch launch) {
  const AttentionItem item = launch.items[BlockIndex().x];
  const int kv_head = static_cast<int>(BlockIndex().y);
  const int first_dim = static_cast<int>(BlockIndex().z) * OutputDims(kDim);
  const SequenceEntry sequence = launch.sequences[item.sequence];
  const TokenRange visible = VisibleTo(launch, sequence, item.first_packed_row, kRowTile);
  const int first_visible_split = visible.begin / kSplitTokens;
  const bool folds = item.split_count - first_visible_split > 1;
  const int split = item.first_split + Warp();
  if (split >= first_visible_split && split < item.split_count) {
    const PackedRows rows(launch, sequence, item.first_packed_row, kv_head);
    Queries<Element, kDim> queries;
    queries.Load(launch, rows);
    const TokenAddress address(launch, sequence, kv_head);
    RowState<OutputDims(kDim)> state;
    state.Clear();
    constexpr int kStep = StepTokens(kDim);
    const int end = Least((split + 1) * kSplitTokens, visible.end);
    for (int token = Greatest(split * kSplitTokens, visible.begin) / kStep * kStep; token < end;
         token += kStep) {
      const PooledTokens tokens = {address, token, visible.end, launch.head_dim / kChunkElements,
                                   first_dim / kChunkElements};
      AttendStep<Element, kDim>(tokens, token, launch.window, rows, queries, state);
    }
    state.Finish();
    if (folds) {
      StorePartial<kDim>(state, first_dim, PartialOf<kDim>(launch, item, split, kv_head));
    } else {
      WriteOut<Element>(launch, rows, first_dim, state);
    }
  }
  if (!folds) return;
  // The last of the row tile's blocks to come here finds all partials written.
  ThreadFence();
  SyncThreads();
  int* is_last = reinterpret_cast<int*>(SharedMemory());
  unsigned* counter = launch.counters +
                      (int64_t{item.row_tile} * launch.kv_heads + kv_head) * Grid().z +
                      BlockIndex().z;
  if (ThreadIndex() == 0) {
    const auto blocks =
        static_cast<unsigned>((item.split_count + kAttentionWarps - 1) / kAttentionWarps);
    *is_last = AtomicAdd(counter, 1u) == blocks - 1;
  }
  SyncThreads();
  if (!*is_last) return;
  ThreadFence();
  FoldPartials<Element, kDim>(launch, sequence, item, first_visible_split, kv_head, first_dim);
  if (ThreadIndex() == 0) *counter = 0;
}

// ---- tile: many rows, K and V through shared memory --------------------------------------------

// K of a step [StepTokens][kDim], then V [StepTokens][OutputDims], in swizzled chunks.
template <int kDim>
struct Stage {
  static constexpr int kKChunks = kDim / kChunkElements;
  static constexpr int kVChunks = OutputDims(kDim) / kChunkElements;
  static constexpr int kStep = StepTokens(kDim);
  static constexpr int kBytes = kStep * (kKChunks + kVChunks) * 16;
  std::byte* memory;

  BATON_DEVICE std::byte* KAt(int token, int chunk) const {
    return memory + RowsOperandChunk(token, chunk, kKChunks) * 16;
  }
  BATON_DEVICE std::byte* VAt(int token, int chunk) const {
    return memory + (kStep * kKChunks + ValuesOperandChunk(token, chunk, kVChunks)) * 16;
  }
  BATON_DEVICE Vec16 K(int token, int chunk) const { return LoadShared16(KAt(token, chunk)); }
  BATON_DEVICE Vec16 V(int token, int chunk) const { return LoadShared16(VAt(token, chunk)); }

  // All threads of the block together; what lies beyond the last token or the head is zero.
  BATON_DEVICE void Fetch(const TokenAddress& address, int first_token, int end_token, int chunks,
                          int first_v_chunk) const {
    for (int index = ThreadIndex(); index < kStep * kKChunks; index += kThreads) {
      const int token = index / kKChunks, chunk = index % kKChunks;
      const bool valid = first_token + token < end_token && chunk < chunks;
      CopyAsync16(KAt(token, chunk),
                  valid ? address.K(first_token + token) + chunk * 16 : address.layer, valid);
    }
    for (int index = ThreadIndex(); index < kStep * kVChunks; index += kThreads) {
      const int token = index / kVChunks, chunk = first_v_chunk + index % kVChunks;
      const bool valid = first_token + token < end_token && chunk < chunks;
      CopyAsync16(
          VAt(token, index % kVChunks),
          valid ? address.K(first_token + token) + address.v_offset + chunk * 16 : address.layer,
          valid);
    }
    CopyAsyncCommit();
  }
};

// What a thread has folded so far, in memory of its own: registers hold one split.
template <int kOut>
struct Total {
  float m[2] = {kMinusInfinity, kMinusInfinity};
  float l[2] = {0, 0};
  float* a;  // element e at a[e * kThreads]
  bool empty = true;

  // Folds the split in `state` into the total, and leaves the total in `state` too.
  BATON_DEVICE void Take(RowState<kOut>& state) {
    BATON_UNROLL for (int half = 0; half < 2; ++half) {
      const FoldWeights weights = Fold(m[half], l[half], state.m[half], state.l[half]);
      state.l[half] = l[half];
      BATON_UNROLL for (int i = 0; i < kOut / 8; ++i) {
        BATON_UNROLL for (int j = half * 2; j < half * 2 + 2; ++j) {
          float* sum = a + (i * 4 + j) * kThreads;
          state.a[i][j] = FoldSum(empty ? 0.0f : *sum, state.a[i][j], weights);
          *sum = state.a[i][j];
        }
      }
    }
    empty = false;
  }
};

template <class Element, int kDim>
BATON_KERNEL_RESIDENT(kThreads, 2)
AttentionTileKernel(AttentionLaunch launch) {
  constexpr int kStep = StepTokens(kDim), kOut = OutputDims(kDim);
  const AttentionItem item = launch.items[BlockIndex().x];
  const int kv_head = static_cast<int>(BlockIndex().y);
  const int first_dim = static_cast<int>(BlockIndex().z) * kOut;
  const int first_v_chunk = first_dim / kChunkElements;
  const SequenceEntry sequence = launch.sequences[item.sequence];
  const TokenRange visible =
      VisibleTo(launch, sequence, item.first_packed_row, kAttentionWarps * kRowTile);
  const PackedRows rows(launch, sequence, item.first_packed_row + Warp() * kRowTile, kv_head);
  Queries<Element, kDim> queries;
  queries.Load(launch, rows);
  const TokenAddress address(launch, sequence, kv_head);
  const int chunks = launch.head_dim / kChunkElements;
  RowState<kOut> state;
  state.Clear();
  Total<kOut> total;
  total.a = launch.totals +
            (int64_t{BlockIndex().x} * launch.kv_heads + kv_head) * TotalFloats(kDim) +
            int64_t{BlockIndex().z} * TotalFloats(kOut) + ThreadIndex();
  const bool folds = visible.begin / kSplitTokens != (visible.end - 1) / kSplitTokens;

  const int first = visible.begin / kStep * kStep;
  Stage<kDim>{SharedMemory()}.Fetch(address, first, visible.end, chunks, first_v_chunk);
  int parity = 0;
  for (int token = first; token < visible.end; token += kStep, parity ^= 1) {
    const Stage<kDim> stage = {SharedMemory() + parity * Stage<kDim>::kBytes};
    const Stage<kDim> next = {SharedMemory() + (parity ^ 1) * Stage<kDim>::kBytes};
    if (token + kStep < visible.end) {
      next.Fetch(address, token + kStep, visible.end, chunks, first_v_chunk);
      CopyAsyncWait<1>();
    } else {
      CopyAsyncWait<0>();
    }
    SyncThreads();
    AttendStep<Element, kDim>(stage, token, launch.window, rows, queries, state);
    SyncThreads();
    const bool is_last = token + kStep >= visible.end;
    if (is_last || (token + kStep) % kSplitTokens == 0) {
      state.Finish();
      if (folds) total.Take(state);
      if (!is_last) state.Clear();
    }
  }
  WriteOut<Element>(launch, rows, first_dim, state);
}

template <class Element, int kDim>
void LaunchBoth(const AttentionLaunch& launch, bool split, int items, Stream stream) {
  const GridSize grid = {static_cast<unsigned>(items), static_cast<unsigned>(launch.kv_heads),
                         kDim / OutputDims(kDim)};
  if (split) {
    Launch(AttentionSplitKernel<Element, kDim>, grid, kThreads, 16, stream, launch);
  } else {
    Launch(AttentionTileKernel<Element, kDim>, grid, kThreads, 2 * Stage<kDim>::kBytes, stream,
           launch);
  }
}

template <class Element>
void Dispatch(const AttentionLaunch& launch, bool split, int items, Stream stream) {
  switch (PaddedDim(launch.head_dim)) {
    case 64:
      return LaunchBoth<Element, 64>(launch, split, items, stream);
    case 128:
      return LaunchBoth<Element, 128>(launch, split, items, stream);
    default:
      return LaunchBoth<Element, 256>(launch, split, items, stream);
  }
}

void Dispatch(const AttentionLaunch& launch, DType dtype, bool split, int items, Stream stream) {
  if (items == 0) return;
  if (dtype == DType::kF16) {
    Dispatch<Half>(launch, split, items, stream);
  } else {
    Dispatch<BFloat16>(launch, split, items, stream);
  }
}

}  // namespace

void LaunchAttentionSplit(const AttentionLaunch& launch, DType dtype, int items, Stream stream) {
  Dispatch(launch, dtype, true, items, stream);
}
void LaunchAttentionTile(const AttentionLaunch& launch, DType dtype, int items, Stream stream) {
  Dispatch(launch, dtype, false, items, stream);
}

}  // namespace baton::backend::cuda
