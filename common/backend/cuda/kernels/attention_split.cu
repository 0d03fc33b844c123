#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/attention_core.cuh"
#include "common/backend/cuda/kernels/pooled_piece.cuh"
#include "common/backend/cuda/kernels/rope_head.cuh"
#include "common/backend/cuda/kernels/wide_attention.h"

namespace baton::backend::cuda {
namespace {

constexpr int kThreads = kAttentionWarps * kWarpLanes;
static_assert(kAttentionWarps * kPieceTokens == kSplitTokens);

// Shared memory: the queries and positions of a row tile, then what the pieces hand over: their
// maxima, sums of weights, and sums of one span of dims at a time.
template <int kDim>
struct SplitMemory {
  static constexpr int kSpanFloats = kRowTile * kOutputSpan;
  static constexpr int kFloats = kAttentionWarps * (kSpanFloats + 2 * kRowTile);
  static constexpr int kBytes = kRowTile * kDim * 2 + kFloats * 4 + kRowTile * 4 + 16;

  static BATON_DEVICE std::byte* Queries() { return SharedMemory(); }
  static BATON_DEVICE float* Sums(int piece, int row, int chunk) {
    return Floats() + piece * kSpanFloats + SumsChunk(row, chunk) * 4;
  }
  static BATON_DEVICE float& M(int piece, int row) {
    return Floats()[kAttentionWarps * kSpanFloats + piece * kRowTile + row];
  }
  static BATON_DEVICE float& L(int piece, int row) { return M(kAttentionWarps + piece, row); }
  static BATON_DEVICE int& Position(int row) {
    return reinterpret_cast<int*>(Floats() + kFloats)[row];
  }
  static BATON_DEVICE int& IsLast() { return Position(kRowTile); }

  // A warp's piece: a span of its sums, and with the first span the rest.
  static BATON_DEVICE void Give(bool first_span, const float (&m)[2], const float (&l)[2],
                                const float (&sums)[8][4]) {
    BATON_UNROLL for (int half = 0; half < 2; ++half) {
      const int row = GroupOf(Lane()) + half * 8;
      if (first_span && MemberOf(Lane()) == 0) {
        M(Warp(), row) = m[half];
        L(Warp(), row) = l[half];
      }
      BATON_UNROLL for (int parity = 0; parity < 2; ++parity) {
        BATON_UNROLL for (int i = 0; i < 8; i += 4) {
          const int dim = OutputDim(i, MemberOf(Lane()) * 2 + parity);
          Vec16 four;
          BATON_UNROLL for (int e = 0; e < 4; ++e) {
            four.x[e] = FloatBits(sums[i + e][half * 2 + parity]);
          }
          Store16(Sums(Warp(), row, dim / 4), four);
        }
      }
    }
  }

 private:
  static BATON_DEVICE float* Floats() {
    return reinterpret_cast<float*>(SharedMemory() + kRowTile * kDim * 2);
  }
};

// A thread's part of a row tile, where results are folded and stored: eight threads a row.
BATON_DEVICE int OwnRow(int thread) { return thread / 8; }
BATON_DEVICE int OwnDim(int thread) { return thread % 8 * kChunkElements; }  // of a span
BATON_DEVICE int OwnRow() { return OwnRow(ThreadIndex()); }
BATON_DEVICE int OwnDim() { return OwnDim(ThreadIndex()); }
static_assert(kThreads == kRowTile * kOutputSpan / kChunkElements);

// A quad of a query to fragments in shared memory, scaled and rounded as by StageQuery.
template <class Element>
BATON_DEVICE void StageQuad(int row, int dim, float scale, const float* x, std::byte* memory) {
  auto* const words = reinterpret_cast<uint32_t*>(memory);
  BATON_UNROLL for (int i = 0; i < 2; ++i) {
    words[QueryWord(row, dim / kChunkElements, dim % kChunkElements / 2 + i)] =
        Element::Pack(Mul(x[2 * i], scale), Mul(x[2 * i + 1], scale));
  }
}

// What a fused launch does in place of StageQuery, of a sequence's one row: its queries for this KV
// head to fragments, and, if the block `writes`, K and V of the new token to the pool. All threads
// together; the caller's next SyncThreads makes both readable.
template <class Element, int kDim>
BATON_DEVICE void StageHeads(const AttentionLaunch& launch, const SequenceEntry& sequence,
                             int kv_head, bool writes) {
  using Stored = typename StoredKv<Element>::Type;
  constexpr int kLanes = HeadLanes(kDim), kHeads = kThreads / kLanes;  // of a turn
  const int query_heads = launch.kv_heads * launch.group, position = sequence.context;
  const int heads = launch.group + (writes ? 2 : 0);
  const int thread = ThreadIndexHere(), lane = thread % kLanes;
  const float scale = Mul(launch.scale, kLog2E);
  const int32_t block =
      LoadGlobal(launch.tables + sequence.first_block + (position >> launch.block_tokens_log2));
  BATON_NO_UNROLL for (int first = 0; first < heads; first += kHeads) {
    const int index = first + thread / kLanes, of_kv = index - launch.group;
    const int head = of_kv < 0 ? kv_head * launch.group + index
                               : query_heads + of_kv * launch.kv_heads + kv_head;
    HeadUnits<1> units(launch.heads, query_heads, launch.kv_heads, launch.head_dim,
                       sequence.first_row, head, position, index < heads, lane, kLanes);
    units.Norm(launch.heads, launch.head_dim, kLanes);
    units.Turn();
    RowRange range = {};
    // All lanes of the warp take the same branch.
    if (kIsCoded<Element> && writes) range = units.Range(kLanes);
    if (!units.valid[0]) continue;
    if (units.is_q) {
      units.ScaleQuery(launch.heads);
      StageQuad<Element>(index, units.dims[0].low, scale, units.x[0], SplitMemory<kDim>::Queries());
      StageQuad<Element>(index, units.dims[0].high, scale, units.x[0] + 4,
                         SplitMemory<kDim>::Queries());
    } else {
      units.template Write<Stored>(launch.layer + block * launch.block_stride_bytes,
                                   launch.block_tokens_log2, launch.head_dim, query_heads, range);
    }
  }
  // Rows and chunks that do not exist.
  BATON_UNROLL for (int first = 0; first < kDim; first += kOutputSpan) {
    const int row = OwnRow(thread), dim = first + OwnDim(thread);
    if (row < launch.group && dim < launch.head_dim) continue;
    BATON_UNROLL for (int i = 0; i < kChunkElements; i += 4) {
      const float zeros[4] = {};
      StageQuad<Element>(row, dim + i, scale, zeros, SplitMemory<kDim>::Queries());
    }
  }
}

// Eight dims of a row, or of its part in a piece or split.
struct RowChunk {
  float a[kChunkElements];

  BATON_DEVICE void Set(const Vec16& low, const Vec16& high) {
    BATON_UNROLL for (int e = 0; e < kChunkElements; ++e) {
      a[e] = BitsFloat((e < 4 ? low : high).x[e % 4]);
    }
  }
  BATON_DEVICE void Store(float* to) const {
    BATON_UNROLL for (int e = 0; e < kChunkElements; e += 4) {
      Store16(to + e,
              {{FloatBits(a[e]), FloatBits(a[e + 1]), FloatBits(a[e + 2]), FloatBits(a[e + 3])}});
    }
  }
  BATON_DEVICE void Fold(const Vec16& low, const Vec16& high, const FoldWeights& weights) {
    BATON_UNROLL for (int e = 0; e < kChunkElements; ++e) {
      a[e] = FoldSum(a[e], BitsFloat((e < 4 ? low : high).x[e % 4]), weights);
    }
  }
};

// A split's sums in memory: m [16], l [16], a [16][kDim].
template <int kDim>
BATON_DEVICE float* PartialOf(const AttentionLaunch& launch, const AttentionItem& item, int split,
                              int kv_head) {
  const int64_t index = (item.first_partial + split) * launch.kv_heads + kv_head;
  return launch.partials + index * PartialFloats(kDim);
}

// In there, eight dims of a row.
template <int kDim>
BATON_DEVICE int PartialChunk(int row, int span) {
  return 2 * kRowTile + row * kDim + span * kOutputSpan + OwnDim();
}

// Folds the partials of a row of the tile in ascending order into m, l and the sums of kSpans spans
// from first_span on. Several splits are read at once, so that the fold does not wait for each.
template <int kDim, int kSpans>
BATON_DEVICE void FoldPartials(const AttentionLaunch& launch, const AttentionItem& item,
                               int first_split, int kv_head, int row, int first_span,
                               RowChunk (&sums)[kSpans], float& m, float& l) {
  constexpr int kAhead = 4;
  m = kMinusInfinity;
  l = 0;
  BATON_UNROLL for (int span = 0; span < kSpans; ++span) sums[span] = {};
  const int splits = item.split_count - first_split;
  const float* const partials = PartialOf<kDim>(launch, item, first_split, kv_head);
  const int floats = launch.kv_heads * static_cast<int>(PartialFloats(kDim));  // to the next
  BATON_NO_UNROLL for (int split = 0; split < splits; split += kAhead) {
    float next_m[kAhead], next_l[kAhead];
    Vec16 next[kAhead][kSpans][2];
    BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
      const float* partial = partials + int64_t{Least(split + i, splits - 1)} * floats;
      next_m[i] = LoadFresh(partial + row);
      next_l[i] = LoadFresh(partial + 16 + row);
      BATON_UNROLL for (int span = 0; span < kSpans; ++span) {
        const float* from = partial + PartialChunk<kDim>(row, first_span + span);
        next[i][span][0] = LoadFresh16(from);
        next[i][span][1] = LoadFresh16(from + 4);
      }
    }
    BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
      if (split + i >= splits) continue;
      const FoldWeights weights = Fold(m, l, next_m[i], next_l[i]);
      BATON_UNROLL for (int span = 0; span < kSpans; ++span) {
        sums[span].Fold(next[i][span][0], next[i][span][1], weights);
      }
    }
  }
}

// The scores of a warp's piece. K of up to 128 dims is on its way to registers at once.
template <class Element, int kDim, bool kExact>
BATON_DEVICE void ScorePiece(const PooledPiece<Element, kDim, kExact>& piece, PieceScores& s) {
  const StagedQueries queries = {SplitMemory<kDim>::Queries()};
  constexpr int kPasses = (kDim + 127) / 128, kParts = kDim / kPasses / kChunkedK;
  if constexpr (!kIsCoded<Element>) {
    BATON_NO_UNROLL for (int first = 0; first < kPasses * kParts; first += kParts) {
      BATON_UNROLL for (int c = first; c < first + kParts; ++c) {
        const Vec16 a0 = queries.At(c * 2), a1 = queries.At(c * 2 + 1);
        BATON_UNROLL for (int j = 0; j < kPieceTokens / 8; ++j) {
          AddScores<Element>(a0, a1, piece.K(j, c).x, s[j]);
        }
      }
    }
  } else {
    // Two parts a turn, the others wait: all in a row would be spread over too many registers.
    constexpr int kTokens = kPieceTokens / 8, kATurn = 2;
    ScaleAndZero by[kTokens];
    BATON_UNROLL for (int j = 0; j < kTokens; ++j) by[j] = piece.ScaleOfK(j);
    BATON_NO_UNROLL for (int first = 0; first < kPasses * kParts; first += kParts) {
      typename PooledPiece<Element, kDim, kExact>::Chunk k[kParts][kTokens];
      BATON_UNROLL for (int part = 0; part < kParts; ++part) {
        BATON_UNROLL for (int j = 0; j < kTokens; ++j) k[part][j] = piece.K(j, first + part);
      }
      BATON_NO_UNROLL for (int turn = 0; turn < kParts; turn += kATurn) {
        BATON_UNROLL for (int part = 0; part < kATurn; ++part) {
          const int c = first + turn + part;
          const Vec16 a0 = queries.At(c * 2), a1 = queries.At(c * 2 + 1);
          BATON_UNROLL for (int j = 0; j < kTokens; ++j) {
            AddScores<Element>(a0, a1, Dequantize<Element>(k[part][j], by[j]), s[j]);
            if constexpr (kParts > kATurn) k[part][j] = k[part + kATurn][j];
          }
        }
      }
    }
  }
}

// The weights of a warp's piece, from its scores; V of up to 128 dims is on its way to registers
// when they are there, of more dims or of codes a span of it.
template <class Element, int kDim, bool kExact, bool kVariant>
BATON_DEVICE PieceWeights WeighTokens(const AttentionLaunch& launch, const VisibleTokens& visible,
                                      bool any_high, PooledPiece<Element, kDim, kExact>& piece,
                                      float (&m)[2], float (&l)[2]) {
  using Memory = SplitMemory<kDim>;
  constexpr int kSpans = kDim / kOutputSpan;
  PieceScores s = {};
  ScorePiece(piece, s);
  if constexpr (kIsCoded<Element>) piece.LoadScalesOfV();
  // Beside all of V there are no registers for a cap.
  constexpr bool kCapsFirst = kVariant && kSpans > 1;
  if constexpr (kCapsFirst) CapScores(launch.score_cap, any_high, s);
  if constexpr (!kIsCoded<Element> || kExact) piece.LoadV(0);
  if constexpr (!kIsCoded<Element> && kSpans == 2) piece.LoadV(1);
  if constexpr (kVariant && !kCapsFirst) CapScores(launch.score_cap, any_high, s);
  if (!visible.AllSeePiece(piece.first_token)) {
    const int group = GroupOf(Lane());
    HideUnseen(piece.first_token, launch.window,
               {Memory::Position(group), Memory::Position(group + 8)}, s);
    piece.ClearUnseenV(visible, 0);
    if constexpr (!kIsCoded<Element> && kSpans == 2) piece.ClearUnseenV(visible, 1);
  }
  return WeighPiece<Element, false>(s, any_high, m, l);
}

// The fold of the pieces of a split, in ascending order, of one row.
template <int kDim>
struct PieceFold {
  using Memory = SplitMemory<kDim>;
  FoldWeights weights[kAttentionWarps];  // of all pieces but the first
  float m, l;

  BATON_DEVICE void Begin() {
    m = Memory::M(0, OwnRow());
    l = Memory::L(0, OwnRow());
    BATON_UNROLL for (int piece = 1; piece < kAttentionWarps; ++piece) {
      weights[piece] = Fold(m, l, Memory::M(piece, OwnRow()), Memory::L(piece, OwnRow()));
    }
  }
  BATON_DEVICE RowChunk Sums() const {
    RowChunk sums;
    BATON_UNROLL for (int piece = 0; piece < kAttentionWarps; ++piece) {
      const Vec16 low = LoadShared16(Memory::Sums(piece, OwnRow(), OwnDim() / 4));
      const Vec16 high = LoadShared16(Memory::Sums(piece, OwnRow(), OwnDim() / 4 + 1));
      if (piece == 0) {
        sums.Set(low, high);
      } else {
        sums.Fold(low, high, weights[piece]);
      }
    }
    return sums;
  }
};

// Counts a row tile's block, whose partials are stored; whether it is the last one, which finds the
// others' partials written. All threads together.
template <int kDim>
BATON_DEVICE bool IsLastOf(const AttentionLaunch& launch, const AttentionItem& item, int blocks,
                           int kv_head) {
  using Memory = SplitMemory<kDim>;
  ThreadFence();
  SyncThreads();
  unsigned* counter = launch.counters + int64_t{item.row_tile} * launch.kv_heads + kv_head;
  if (ThreadIndex() == 0) {
    const bool is_last = AtomicAdd(counter, 1u) == static_cast<unsigned>(blocks) - 1;
    ThreadFence();
    if (is_last) StoreGlobal(counter, 0u);
    Memory::IsLast() = is_last;
  }
  SyncThreads();
  return Memory::IsLast();
}

template <class Element, int kDim, bool kExact, bool kVariant>
BATON_DEVICE void AttendSplit(const AttentionLaunch& launch, const AttentionItem& item,
                              int kv_head) {
  constexpr int kSpans = kDim / kOutputSpan;
  using Memory = SplitMemory<kDim>;
  const SequenceEntry sequence = LoadGlobal(launch.sequences + item.sequence);
  const VisibleTokens visible(launch, sequence, item.first_packed_row, kRowTile);
  const int first_split = visible.begin / kSplitTokens;
  if (item.split < first_split) return;  // before this layer's window
  const int first_token = item.split * kSplitTokens + Warp() * kPieceTokens;
  PooledPiece<Element, kDim, kExact> piece(launch, sequence, kv_head, first_token, visible);
  const PackedRow own(launch, sequence, item.first_packed_row + OwnRow(), kv_head);
  if (launch.heads.qkv != nullptr) {
    const bool writes = item.split == item.split_count - 1 && !launch.heads.q_only;
    StageHeads<Element, kDim>(launch, sequence, kv_head, writes);
  } else {
    BATON_UNROLL for (int first = 0; first < kDim; first += kOutputSpan) {
      const int chunk = (first + OwnDim()) / kChunkElements;
      StageQuery<Element>(launch, own, OwnRow(), chunk, Memory::Queries());
    }
  }
  if (OwnDim() == 0) Memory::Position(OwnRow()) = own.position;
  SyncThreads();

  const bool any_high = sequence.row_count * launch.group - item.first_packed_row > kRowTile / 2;
  float m[2], l[2];
  const PieceWeights weights[] = {
      WeighTokens<Element, kDim, kExact, kVariant>(launch, visible, any_high, piece, m, l)};
  // The general form has no registers for the addresses so early.
  if constexpr (kIsCoded<Element> && kExact && kSpans > 1) piece.LoadV(1);
  const auto write = [&](int span, const RowChunk& sums, float m, float l) {
    if constexpr (kVariant) l = WithSink(launch, own.head, m, l);
    const int dim = span * kOutputSpan + OwnDim();
    if (kExact || dim < launch.head_dim) WriteOut<Element>(launch, own, dim, sums.a, l);
  };
  const int splits = item.split_count - first_split;
  float* const partial = PartialOf<kDim>(launch, item, item.split, kv_head);
  PieceFold<kDim> fold;
  BATON_UNROLL for (int span = 0; span < kSpans; ++span) {
    if constexpr (kIsCoded<Element>) {
      if (!kExact || span > 1) piece.LoadV(span);
    } else if (kSpans > 2 && span + 1 < kSpans) {  // comes while this one is multiplied
      piece.LoadV(span + 1);
      if (!visible.AllSeePiece(piece.first_token)) piece.ClearUnseenV(visible, span + 1);
    }
    float of_piece[1][8][4];
    SumValues<Element>(piece, weights, span, of_piece);
    if (span > 0) SyncThreads();  // all have read the span before
    Memory::Give(span == 0, m, l, of_piece[0]);
    SyncThreads();
    if (!own.exists) continue;
    if (span == 0) fold.Begin();
    if (splits == 1) {
      write(span, fold.Sums(), fold.m, fold.l);
      continue;
    }
    if (span == 0 && OwnDim() == 0) {
      StoreGlobal(partial + OwnRow(), fold.m);
      StoreGlobal(partial + kRowTile + OwnRow(), fold.l);
    }
    fold.Sums().Store(partial + PartialChunk<kDim>(OwnRow(), span));
  }
  if (splits == 1 || !IsLastOf<kDim>(launch, item, splits, kv_head) || !own.exists) return;
  constexpr int kTogether = kSpans == 1 ? 1 : 2;
  BATON_UNROLL for (int span = 0; span < kSpans; span += kTogether) {
    RowChunk sums[kTogether];
    FoldPartials<kDim>(launch, item, first_split, kv_head, OwnRow(), span, sums, fold.m, fold.l);
    BATON_UNROLL for (int i = 0; i < kTogether; ++i) write(span + i, sums[i], fold.m, fold.l);
  }
}

template <class Element, int kDim, bool kExact, bool kVariant>
BATON_DEVICE void AttendSplits(const AttentionLaunch& launch) {
  ForItems(launch, [&](int index) {
    AttendSplit<Element, kDim, kExact, kVariant>(launch, LoadGlobal(launch.items + index),
                                                 static_cast<int>(BlockIndex().y));
    SyncThreads();  // shared memory is the next item's
  });
}

template <class Element, int kDim, bool kExact>
BATON_KERNEL_RESIDENT(kThreads, 2)
AttentionSplitKernel(AttentionLaunch launch) {
  AwaitPrevious();
  AttendSplits<Element, kDim, kExact, false>(launch);
}

// This kernel serves heads that fill kDim and smaller ones, to compile fewer kernels.
template <class Element, int kDim>
BATON_KERNEL_RESIDENT(kThreads, 2)
AttentionSplitVariantKernel(AttentionLaunch launch) {
  AwaitPrevious();
  AttendSplits<Element, kDim, false, true>(launch);
}

template <class Element, int kDim>
void LaunchFor(const AttentionLaunch& launch, int blocks, Stream stream) {
  const GridSize grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(launch.kv_heads), 1};
  const auto kernel = IsVariant(launch)         ? &AttentionSplitVariantKernel<Element, kDim>
                      : launch.head_dim == kDim ? &AttentionSplitKernel<Element, kDim, true>
                                                : &AttentionSplitKernel<Element, kDim, false>;
  Launch(kernel, grid, kThreads, SplitMemory<kDim>::kBytes, stream, launch);
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
  if (IsWide(launch.head_dim)) return LaunchWideSplit(launch, dtype, blocks, stream);
  WithKv(launch.kv_format, dtype,
         [&](auto kv) { Dispatch<decltype(kv)>(WithInverse(launch), blocks, stream); });
}

}  // namespace baton::backend::cuda
