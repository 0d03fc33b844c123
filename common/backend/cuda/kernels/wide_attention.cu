#include "common/backend/cuda/kernels/attention_core.cuh"
#include "common/backend/cuda/kernels/wide_attention.h"
#include "common/backend/cuda/kernels/wide_piece.cuh"

namespace baton::backend::cuda {
namespace wide {
namespace {

// Of a row tile, the warp's 64 dims of the weighted sums. m is the greatest score so far, to which
// l and a are relative.
struct State {
  float m[2], l[2];
  float a[8][4];

  BATON_DEVICE void Clear() {
    BATON_UNROLL for (int half = 0; half < 2; ++half) {
      m[half] = kMinusInfinity;
      l[half] = 0;
    }
    BATON_UNROLL for (int i = 0; i < 8; ++i) {
      BATON_UNROLL for (int j = 0; j < 4; ++j) a[i][j] = 0;
    }
  }
  // Eight consecutive dims of a row: those of `parity` 0 or 1 of row half 0 or 1.
  BATON_DEVICE void Eight(int half, int parity, float (&to)[kChunkElements]) const {
    BATON_UNROLL for (int i = 0; i < kChunkElements; ++i) to[i] = a[i][half * 2 + parity];
  }
  static BATON_DEVICE int Dim(int parity) {
    return Warp() * kOutputSpan + OutputDim(0, MemberOf(Lane()) * 2 + parity);
  }
};

// The warp's scores to shared memory.
template <class Kv, int kTiles>
BATON_DEVICE void Score(const Keys<Kv>& keys) {
  constexpr int kEights = kRunTokens / 8;
  float s[kTiles][kEights][4] = {};
  BATON_UNROLL for (int i = 0; i < kProducts; ++i) {
    const int product = (PartOfWarp() * kProducts + i) * 2;
    Vec16 k[kEights];
    BATON_UNROLL for (int j = 0; j < kEights; ++j) k[j] = keys.At(j, i);
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      const StagedQueries queries = {Memory<kTiles>::Queries(tile)};
      const Vec16 a0 = queries.At(product), a1 = queries.At(product + 1);
      BATON_UNROLL for (int j = 0; j < kEights; ++j) AddScores<Kv>(a0, a1, k[j], s[tile][j]);
    }
  }
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
    BATON_UNROLL for (int j = 0; j < kEights; ++j) {
      const float(&of)[4] = s[tile][j];
      Store16(Memory<kTiles>::Scores(tile, PartOfWarp(), RunOfWarp() * kEights + j),
              {{FloatBits(of[0]), FloatBits(of[1]), FloatBits(of[2]), FloatBits(of[3])}});
    }
  }
}

// The rows of a block: row tiles one behind the other.
template <int kTiles>
struct BlockRows {
  const SequenceEntry sequence;
  const int first, kv_head;

  BATON_DEVICE BlockRows(const AttentionLaunch& launch, const AttentionItem& item, int first_row,
                         int kv_head)
      : sequence(LoadGlobal(launch.sequences + item.sequence)),
        first(first_row),
        kv_head(kv_head) {}
  BATON_DEVICE VisibleTokens Visible(const AttentionLaunch& launch) const {
    return {launch, sequence, first, kTiles * kRowTile};
  }
  // The lane's row of a row tile's half.
  BATON_DEVICE PackedRow Of(const AttentionLaunch& launch, int tile, int half) const {
    return {launch, sequence, first + tile * kRowTile + GroupOf(Lane()) + half * 8, kv_head};
  }
};

// A piece's weights, as fragments: all warps alike. The state becomes relative to the greatest
// score with those of the piece. hides: whether some row of the block does not see all tokens.
template <class Element, int kTiles>
BATON_DEVICE void Weigh(const AttentionLaunch& launch, const BlockRows<kTiles>& rows, int tile,
                        int first_token, bool hides, State& state,
                        uint32_t (&p)[kTokens / kRunTokens][4]) {
  constexpr int kEights = kTokens / 8;
  float s[kEights][4];
  BATON_UNROLL for (int j = 0; j < kEights; ++j) {
    BATON_UNROLL for (int part = 0; part < kParts; ++part) {
      const Vec16 four = LoadShared16(Memory<kTiles>::Scores(tile, part, j));
      BATON_UNROLL for (int i = 0; i < 4; ++i) {
        s[j][i] = part == 0 ? BitsFloat(four.x[i]) : Add(s[j][i], BitsFloat(four.x[i]));
      }
    }
  }
  CapScores(launch.score_cap, true, s);
  if (hides) {
    HideUnseen(first_token, launch.window,
               {rows.Of(launch, tile, 0).position, rows.Of(launch, tile, 1).position}, s);
  }
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    float highest = state.m[half];
    BATON_UNROLL for (int j = 0; j < kEights; ++j) {
      BATON_UNROLL for (int i = half * 2; i < half * 2 + 2; ++i) {
        highest = GreatestOrNan(highest, s[j][i]);
      }
    }
    BATON_UNROLL for (int mask = 1; mask <= 2; mask *= 2) {
      highest = GreatestOrNan(highest, ShuffleXor(highest, mask));
    }
    const float base = highest == kMinusInfinity ? 0.0f : highest;
    const float before = Exp2(state.m[half] - base);
    float sum = 0;
    BATON_UNROLL for (int j = 0; j < kEights; ++j) {
      const uint32_t two =
          Element::Pack(Exp2(s[j][half * 2] - base), Exp2(s[j][half * 2 + 1] - base));
      sum = Add(sum, Element::ToF32(static_cast<uint16_t>(two)));
      sum = Add(sum, Element::ToF32(static_cast<uint16_t>(two >> 16)));
      p[j / 2][j % 2 * 2 + half] = two;
    }
    sum = Add(sum, ShuffleXor(sum, 1));
    sum = Add(sum, ShuffleXor(sum, 2));
    state.m[half] = highest;
    state.l[half] = Fma(state.l[half], before, sum);
    BATON_UNROLL for (int i = 0; i < 8; ++i) {
      BATON_UNROLL for (int e = half * 2; e < half * 2 + 2; ++e) {
        state.a[i][e] = Mul(state.a[i][e], before);
      }
    }
  }
}

// The tokens of one split. All threads of the block, behind a barrier: the queries are there.
template <class Kv, int kTiles>
BATON_DEVICE void AttendTokens(const AttentionLaunch& launch, const BlockRows<kTiles>& rows,
                               const VisibleTokens& visible, const Source<Kv>& source, int split,
                               State (&state)[kTiles]) {
  const int end = Least(visible.end, (split + 1) * kSplitTokens);
  const int first = Greatest(visible.begin / kTokens * kTokens, split * kSplitTokens);
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) state[tile].Clear();
  Keys<Kv> keys;
  keys.Load(source, first);
  BATON_NO_UNROLL for (int token = first; token < end; token += kTokens) {
    Values<Kv> values;
    values.Load(source, token);
    Score<Kv, kTiles>(keys);
    if (token + kTokens < end) keys.Load(source, token + kTokens);
    SyncThreads();  // the scores are there
    const bool hides = token < visible.all_begin || token + kTokens > visible.all_end;
    uint32_t p[kTiles][kTokens / kRunTokens][4];
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      Weigh<Kv, kTiles>(launch, rows, tile, token, hides, state[tile], p[tile]);
    }
    if (hides) values.ClearUnseen(visible, token);
    BATON_UNROLL for (int r = 0; r < kTokens / kRunTokens; ++r) {
      ValueOperands b;
      values.Operands(r, b);
      BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
        BATON_UNROLL for (int i = 0; i < 8; ++i) {
          Kv::Mma16(state[tile].a[i], p[tile][r], b[i][0], b[i][1]);
        }
      }
    }
    SyncThreads();  // all have read the scores
  }
}

template <class Element>
BATON_DEVICE void WriteEight(const AttentionLaunch& launch, const PackedRow& row, int dim,
                             const float (&a)[kChunkElements], float m, float l) {
  if (!row.exists) return;
  WriteOut<Element>(launch, row, dim, a, WithSink(launch, row.head, m, l));
}

template <class Element, int kTiles>
BATON_DEVICE void WriteStates(const AttentionLaunch& launch, const BlockRows<kTiles>& rows,
                              const State (&state)[kTiles]) {
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
    BATON_UNROLL for (int half = 0; half < 2; ++half) {
      const PackedRow row = rows.Of(launch, tile, half);
      BATON_UNROLL for (int parity = 0; parity < 2; ++parity) {
        float a[kChunkElements];
        state[tile].Eight(half, parity, a);
        WriteEight<Element>(launch, row, State::Dim(parity), a, state[tile].m[half],
                            state[tile].l[half]);
      }
    }
  }
}

// A split's sums in memory: m [16], l [16], a [16][kWidestHead].
BATON_DEVICE float* PartialOf(const AttentionLaunch& launch, const AttentionItem& item, int split,
                              int kv_head) {
  const int64_t index = int64_t{item.first_partial + split} * launch.kv_heads + kv_head;
  return launch.partials + index * PartialFloats(kWidestHead);
}

// Stores the sums of the rows that exist.
BATON_DEVICE void StorePartial(const AttentionLaunch& launch, const BlockRows<1>& rows,
                               float* partial, const State& state) {
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    const int row = GroupOf(Lane()) + half * 8;
    if (!rows.Of(launch, 0, half).exists) continue;
    if (Warp() == 0 && MemberOf(Lane()) == 0) {
      StoreGlobal(partial + row, state.m[half]);
      StoreGlobal(partial + kRowTile + row, state.l[half]);
    }
    BATON_UNROLL for (int parity = 0; parity < 2; ++parity) {
      float a[kChunkElements];
      state.Eight(half, parity, a);
      float* const to = partial + 2 * kRowTile + row * kWidestHead + State::Dim(parity);
      BATON_UNROLL for (int e = 0; e < kChunkElements; e += 4) {
        Store16(to + e,
                {{FloatBits(a[e]), FloatBits(a[e + 1]), FloatBits(a[e + 2]), FloatBits(a[e + 3])}});
      }
    }
  }
}

// Counts a block of a row tile, which has stored its partials. Returns whether it is the last one:
// it then sees the partials of the others. All threads of the block call it together.
BATON_DEVICE bool IsLastOf(const AttentionLaunch& launch, const AttentionItem& item, int blocks,
                           int kv_head) {
  ThreadFence();
  SyncThreads();
  if (ThreadIndex() == 0) {
    unsigned* const counter = launch.counters + int64_t{item.row_tile} * launch.kv_heads + kv_head;
    const bool is_last = AtomicAdd(counter, 1u) == static_cast<unsigned>(blocks) - 1;
    ThreadFence();
    if (is_last) StoreGlobal(counter, 0u);
    Memory<1>::IsLast() = is_last;
  }
  SyncThreads();
  return Memory<1>::IsLast();
}

// Folds the partials of the splits in ascending order, 16 threads a row, and writes the results.
// Four splits are read at once, so that the fold does not wait for each.
template <class Element>
BATON_DEVICE void FoldPartials(const AttentionLaunch& launch, const AttentionItem& item,
                               int first_split, const BlockRows<1>& rows) {
  constexpr int kThreadsARow = kThreads / kRowTile, kAhead = 4;
  constexpr int kApart = kThreadsARow * kChunkElements, kMine = 2;
  const int row = ThreadIndex() / kThreadsARow;
  const PackedRow packed(launch, rows.sequence, rows.first + row, rows.kv_head);
  if (!packed.exists) return;
  const int splits = item.split_count - first_split;
  const float* const partials = PartialOf(launch, item, first_split, rows.kv_head);
  const int floats = launch.kv_heads * static_cast<int>(PartialFloats(kWidestHead));  // to the next
  BATON_NO_UNROLL for (int dim = ThreadIndex() % kThreadsARow * kChunkElements; dim < kWidestHead;
                       dim += kMine * kApart) {
    float m = kMinusInfinity, l = 0, a[kMine][kChunkElements] = {};
    BATON_NO_UNROLL for (int split = 0; split < splits; split += kAhead) {
      float next_m[kAhead], next_l[kAhead];
      Vec16 next[kAhead][kMine][2];
      BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
        const float* const partial = partials + int64_t{Least(split + i, splits - 1)} * floats;
        next_m[i] = LoadFresh(partial + row);
        next_l[i] = LoadFresh(partial + kRowTile + row);
        BATON_UNROLL for (int mine = 0; mine < kMine; ++mine) {
          const float* const from =
              partial + 2 * kRowTile + row * kWidestHead + mine * kApart + dim;
          next[i][mine][0] = LoadFresh16(from);
          next[i][mine][1] = LoadFresh16(from + 4);
        }
      }
      BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
        if (split + i >= splits) continue;
        const FoldWeights weights = Fold(m, l, next_m[i], next_l[i]);
        BATON_UNROLL for (int mine = 0; mine < kMine; ++mine) {
          BATON_UNROLL for (int e = 0; e < kChunkElements; ++e) {
            a[mine][e] = FoldSum(a[mine][e], BitsFloat(next[i][mine][e / 4].x[e % 4]), weights);
          }
        }
      }
    }
    BATON_UNROLL for (int mine = 0; mine < kMine; ++mine) {
      WriteEight<Element>(launch, packed, mine * kApart + dim, a[mine], m, l);
    }
  }
}

template <class Kv>
BATON_DEVICE void AttendSplit(const AttentionLaunch& launch, int index) {
  State state[1];
  {
    const AttentionItem item = LoadGlobal(launch.items + index);
    const int kv_head = static_cast<int>(BlockIndex().y);
    const BlockRows<1> rows(launch, item, item.first_packed_row, kv_head);
    const VisibleTokens visible = rows.Visible(launch);
    if (item.split < visible.begin / kSplitTokens) return;  // before this layer's window
    StageQueries<Kv, 1>(launch, rows.sequence, rows.first, kv_head);
    SyncThreads();
    AttendTokens<Kv, 1>(launch, rows, visible, Source<Kv>(launch, rows.sequence, kv_head, visible),
                        item.split, state);
  }
  // The item is read again, so that it takes no registers through the loop.
  const AttentionItem item = LoadGlobal(launch.items + index);
  const int kv_head = static_cast<int>(BlockIndex().y);
  const BlockRows<1> rows(launch, item, item.first_packed_row, kv_head);
  const int first_split = rows.Visible(launch).begin / kSplitTokens;
  if (item.split_count - first_split == 1) return WriteStates<Kv, 1>(launch, rows, state);
  StorePartial(launch, rows, PartialOf(launch, item, item.split, kv_head), state[0]);
  if (IsLastOf(launch, item, item.split_count - first_split, kv_head)) {
    FoldPartials<Kv>(launch, item, first_split, rows);
  }
}

template <class Kv>
BATON_KERNEL_RESIDENT(kThreads, 1)
WideSplitKernel(AttentionLaunch launch) {
  AwaitPrevious();
  ForItems(launch, [&](int index) {
    AttendSplit<Kv>(launch, index);
    SyncThreads();  // shared memory is the next item's
  });
}

// A block of the tile kernel computes so many of an item's four row tiles.
constexpr int kTiles = 2;
static_assert(kAttentionWarps % kTiles == 0);

// Folds a split into the total of those before, in memory, and leaves the total in `state` too.
// m, l: the total's. total: element e at total[e * kThreads].
BATON_DEVICE void AddToTotal(float* total, bool first, float (&m)[2], float (&l)[2], State& state) {
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    const FoldWeights weights = Fold(m[half], l[half], state.m[half], state.l[half]);
    state.m[half] = m[half];
    state.l[half] = l[half];
    BATON_UNROLL for (int i = 0; i < 8; ++i) {
      BATON_UNROLL for (int e = half * 2; e < half * 2 + 2; ++e) {
        float* const sum = total + (i * 4 + e) * kThreads;
        state.a[i][e] = FoldSum(first ? 0.0f : LoadGlobal(sum), state.a[i][e], weights);
        StoreGlobal(sum, state.a[i][e]);
      }
    }
  }
}

template <class Kv>
BATON_KERNEL_RESIDENT(kThreads, 1)
WideTileKernel(AttentionLaunch launch) {
  AwaitPrevious();
  const AttentionItem item = LoadGlobal(launch.items + BlockIndex().x);
  const int kv_head = static_cast<int>(BlockIndex().y), part = static_cast<int>(BlockIndex().z);
  const BlockRows<kTiles> rows(launch, item, item.first_packed_row + part * kTiles * kRowTile,
                               kv_head);
  const VisibleTokens visible = rows.Visible(launch);
  if (visible.end == 0) return;  // no such rows: whole blocks agree
  StageQueries<Kv, kTiles>(launch, rows.sequence, rows.first, kv_head);
  SyncThreads();
  const Source<Kv> source(launch, rows.sequence, kv_head, visible);
  constexpr int kFloats = kTiles * kRowTile * kWidestHead;
  float* const total =
      launch.totals +
      (int64_t{BlockIndex().x} * launch.kv_heads + kv_head) * TotalFloats(kWidestHead) +
      part * kFloats + ThreadIndex();
  const int first_split = visible.begin / kSplitTokens;
  const int last_split = (visible.end - 1) / kSplitTokens;
  State state[kTiles];
  float m[kTiles][2], l[kTiles][2];
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
    BATON_UNROLL for (int half = 0; half < 2; ++half) {
      m[tile][half] = kMinusInfinity;
      l[tile][half] = 0;
    }
  }
  BATON_NO_UNROLL for (int split = first_split; split <= last_split; ++split) {
    AttendTokens<Kv, kTiles>(launch, rows, visible, source, split, state);
    if (first_split == last_split) continue;
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      AddToTotal(total + tile * (kFloats / kTiles), split == first_split, m[tile], l[tile],
                 state[tile]);
    }
  }
  WriteStates<Kv, kTiles>(launch, rows, state);
}

}  // namespace
}  // namespace wide

void LaunchWideSplit(const AttentionLaunch& launch, DType dtype, int blocks, Stream stream) {
  if (blocks == 0) return;
  WithKv(launch.kv_format, dtype, [&](auto kv) {
    Launch(wide::WideSplitKernel<decltype(kv)>,
           {static_cast<unsigned>(blocks), static_cast<unsigned>(launch.kv_heads), 1},
           wide::kThreads, wide::Memory<1>::kBytes, stream, WithInverse(launch));
  });
}

void LaunchWideTile(const AttentionLaunch& launch, DType dtype, int items, Stream stream) {
  if (items == 0) return;
  WithKv(launch.kv_format, dtype, [&](auto kv) {
    Launch(wide::WideTileKernel<decltype(kv)>,
           {static_cast<unsigned>(items), static_cast<unsigned>(launch.kv_heads),
            kAttentionWarps / wide::kTiles},
           wide::kThreads, wide::Memory<wide::kTiles>::kBytes, stream, WithInverse(launch));
  });
}

}  // namespace baton::backend::cuda
