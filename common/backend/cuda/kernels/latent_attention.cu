#include "common/backend/cuda/kernels/attention_core.cuh"
#include "common/backend/cuda/kernels/latent.h"

namespace baton::backend::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarpLanes;
constexpr int kTokens = 32;  // of a piece
constexpr int kLatentChunks = kMostLatentDim / kChunkElements;
constexpr int kRotatedChunks = kMostRotatedDim / kChunkElements;
constexpr int kChunks = kLatentChunks + kRotatedChunks;  // of a padded row
constexpr int kDims = kChunks * kChunkElements;
constexpr int kParts = 4;  // of the dims, whose sums are added
constexpr int kProducts = (kDims / kChunkedK + kParts - 1) / kParts;  // of 32 dims, a part's
constexpr int kWarpTokens = 16;  // of a piece, that a warp has scores of
static_assert(kWarps == kTokens / kWarpTokens * kParts);
static_assert(kWarps * kOutputSpan == kMostLatentDim);
static_assert(kSplitTokens % kTokens == 0);

// Shared memory: a piece of the pool's rows, the scores of all parts, and whether the block is
// the last of its row tile. The row tile's queries, as fragments, are where pieces will be.
struct Memory {
  static constexpr int kPieceBytes = kTokens * kChunks * 16;
  static constexpr int kScores = kParts * kRowTile * kTokens;
  static constexpr int kBytes = kPieceBytes + kScores * 4 + 16;
  static_assert(kRowTile * kDims * 2 <= kPieceBytes);
  static_assert(kBytes <= static_cast<int>(kSharedBytesUnasked));

  static BATON_DEVICE std::byte* Queries() { return SharedMemory(); }
  // Both as rows of K, of which a cycle's lanes read four chunks of two tokens, and as those of V,
  // two chunks of four tokens that are two apart: other banks each.
  static BATON_DEVICE std::byte* At(int token, int chunk) {
    const int swizzle = (token & 1) << 2 ^ (token >> 1 & 3) << 1;
    return SharedMemory() + (token * kChunks + (chunk ^ swizzle)) * 16;
  }
  static BATON_DEVICE float* Scores(int part, int row, int token) {
    return reinterpret_cast<float*>(SharedMemory() + kPieceBytes) +
           (part * kRowTile + row) * kTokens + token;
  }
  static BATON_DEVICE int& IsLast() { return *reinterpret_cast<int*>(Scores(kParts, 0, 0)); }
};

// The chunk of a row that is stored at `chunk` of a padded one; -1: none.
BATON_DEVICE int SourceChunk(const AttentionLaunch& launch, int chunk) {
  const int latents = launch.latent_dim / kChunkElements;
  if (chunk < kLatentChunks) return chunk < latents ? chunk : -1;
  const int source = latents + chunk - kLatentChunks;
  return source < launch.head_dim / kChunkElements ? source : -1;
}

// The row tile's queries, scaled and rounded, to fragments.
template <class Element>
BATON_DEVICE void StageQueries(const AttentionLaunch& launch, const SequenceEntry& sequence,
                               int first_packed_row) {
  const float scale = Mul(launch.scale, kLog2E);
  for (int index = ThreadIndex(); index < kRowTile * kChunks; index += kThreads) {
    const int row = index / kChunks, chunk = index % kChunks;
    const PackedRow packed(launch, sequence, first_packed_row + row, 0);
    const int source = SourceChunk(launch, chunk);
    const bool valid = packed.exists && source >= 0;
    const float* from =
        launch.q + (valid ? packed.row * launch.q_stride + int64_t{packed.head} * launch.head_dim +
                                source * kChunkElements
                          : 0);
    const Vec16 low = Load16If(valid, from), high = Load16If(valid, from + 4);
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      const Vec16& pair = i < 2 ? low : high;
      reinterpret_cast<uint32_t*>(Memory::Queries())[QueryWord(row, chunk, i)] = Element::Pack(
          Mul(BitsFloat(pair.x[i % 2 * 2]), scale), Mul(BitsFloat(pair.x[i % 2 * 2 + 1]), scale));
    }
  }
}

// The 32 dims of product `i` of a part: every kParts-th. The last ones may be beyond the end: whole
// warps agree.
BATON_DEVICE int DimsOf(int part, int i) { return i * kParts + part; }
BATON_DEVICE bool HasDims(int part, int i) {
  return i < kProducts - 1 || DimsOf(part, i) < kDims / kChunkedK;
}

// The queries of the part of the dims that a warp multiplies.
struct PartQueries {
  Vec16 q[kProducts * 2];

  static BATON_DEVICE int Part() { return Warp() / (kTokens / kWarpTokens); }
  // All threads of the block, behind whatever used the memory.
  template <class Element>
  BATON_DEVICE void Load(const AttentionLaunch& launch, const SequenceEntry& sequence,
                         int first_packed_row) {
    StageQueries<Element>(launch, sequence, first_packed_row);
    SyncThreads();
    const StagedQueries staged = {Memory::Queries()};
    BATON_UNROLL for (int i = 0; i < kProducts; ++i) {
      if (!HasDims(Part(), i)) continue;
      BATON_UNROLL for (int e = 0; e < 2; ++e) {
        q[i * 2 + e] = staged.At(DimsOf(Part(), i) * 2 + e);
      }
    }
  }
};

// The tokens of a piece to shared memory; zeros for those behind the end, and in the padding.
template <class Kv>
BATON_DEVICE void LoadPiece(const AttentionLaunch& launch, const TokenAddress<Kv>& address,
                            int first_token, int end_token) {
  constexpr int kCopies = kTokens * kChunks / kThreads;
  static_assert(kTokens * kChunks % kThreads == 0);
  constexpr bool kCoded = kIsCoded<Kv>;
  // Three at a time, as more would be spread over too many registers.
  constexpr int kAtOnce = 3;
  static_assert(kCopies % kAtOnce == 0);
  BATON_NO_UNROLL for (int first = 0; first < kCopies; first += kAtOnce) {
    std::conditional_t<kCoded, RawChunk<Kv>, Vec16> held[kAtOnce];
    BATON_UNROLL for (int i = 0; i < kAtOnce; ++i) {
      const int index = (first + i) * kThreads + ThreadIndex();
      const int token = first_token + index / kChunks, chunk = index % kChunks;
      const int source = SourceChunk(launch, chunk);
      const bool has_token = token < end_token;
      const int loaded = has_token ? token : first_token;
      const std::byte* const row = address.K(loaded);
      if constexpr (kCoded) {
        held[i] =
            RawChunk<Kv>::Load(address, loaded, row, Greatest(source, 0), has_token, source >= 0);
      } else {
        const std::byte* const from = row + Greatest(source, 0) * 16;
        const bool valid = has_token && source >= 0;
        if (CopiesAreAsync()) {
          CopyAsync16(Memory::At(index / kChunks, chunk), from, valid);
        } else {
          held[i] = Load16If(valid, from);
        }
      }
    }
    BATON_UNROLL for (int i = 0; i < kAtOnce; ++i) {
      const int index = (first + i) * kThreads + ThreadIndex();
      std::byte* const to = Memory::At(index / kChunks, index % kChunks);
      if constexpr (kCoded) {
        // Where there is no chunk the codes are zeros, which need not be the element zero.
        const bool exists = SourceChunk(launch, index % kChunks) >= 0;
        Store16(to, exists ? held[i].Elements() : Vec16{});
      } else if (!CopiesAreAsync()) {
        Store16(to, held[i]);
      }
    }
  }
  if constexpr (!kCoded) {
    CopyAsyncCommit();
    CopyAsyncWait<0>();
  }
}

// A warp's scores: of sixteen tokens and a part of the dims, with all rows.
template <class Element>
BATON_DEVICE void Score(const PartQueries& queries) {
  const int part = PartQueries::Part(), tokens = Warp() % (kTokens / kWarpTokens) * kWarpTokens;
  // What the lane reads is constants away from here, as the swizzle repeats after 8 tokens and 8
  // chunks.
  const std::byte* const from = Memory::At(tokens + GroupOf(Lane()), part * 4 + MemberOf(Lane()));
  float s[kWarpTokens / 8][4] = {};
  BATON_UNROLL for (int i = 0; i < kProducts; ++i) {
    if (!HasDims(part, i)) continue;
    BATON_UNROLL for (int j = 0; j < kWarpTokens / 8; ++j) {
      AddScores<Element>(queries.q[i * 2], queries.q[i * 2 + 1],
                         LoadShared16(from + (j * 8 * kChunks + i * kParts * 4) * 16), s[j]);
    }
  }
  float* const to = Memory::Scores(part, GroupOf(Lane()), tokens + MemberOf(Lane()) * 2);
  BATON_UNROLL for (int j = 0; j < kWarpTokens / 8; ++j) {
    BATON_UNROLL for (int e = 0; e < 4; ++e) to[e / 2 * 8 * kTokens + j * 8 + e % 2] = s[j][e];
  }
}

// The weights of a piece, as fragments: all warps alike. position: of the lane's two rows.
template <class Element>
BATON_DEVICE void Weigh(int first_token, const int (&position)[2], uint32_t (&p)[kTokens / 16][4],
                        float (&m)[2], float (&l)[2]) {
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    const float* const from = Memory::Scores(0, GroupOf(Lane()) + half * 8, MemberOf(Lane()) * 2);
    float s[kTokens / 8][2];
    float highest = kMinusInfinity;
    BATON_UNROLL for (int j = 0; j < kTokens / 8; ++j) {
      BATON_UNROLL for (int i = 0; i < 2; ++i) {
        const int token = j * 8 + MemberOf(Lane()) * 2 + i;
        float score = from[j * 8 + i];
        BATON_UNROLL for (int part = 1; part < kParts; ++part) {
          score = Add(score, from[part * kRowTile * kTokens + j * 8 + i]);
        }
        s[j][i] = first_token + token > position[half] ? kMinusInfinity : score;
        highest = GreatestOrNan(highest, s[j][i]);
      }
    }
    BATON_UNROLL for (int mask = 1; mask <= 2; mask *= 2) {
      highest = GreatestOrNan(highest, ShuffleXor(highest, mask));
    }
    m[half] = highest;
    const float base = highest == kMinusInfinity ? 0.0f : highest;
    float sum = 0;
    BATON_UNROLL for (int j = 0; j < kTokens / 8; ++j) {
      const uint32_t two = Element::Pack(Exp2(s[j][0] - base), Exp2(s[j][1] - base));
      sum = Add(sum, Element::ToF32(static_cast<uint16_t>(two)));
      sum = Add(sum, Element::ToF32(static_cast<uint16_t>(two >> 16)));
      p[j / 2][j % 2 * 2 + half] = two;
    }
    sum = Add(sum, ShuffleXor(sum, 1));
    l[half] = Add(sum, ShuffleXor(sum, 2));
  }
}

// A warp's 64 dims of the weighted sums of a row tile.
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

// Folds a piece into the state.
template <class Element>
BATON_DEVICE void AddPiece(int first_token, const int (&position)[2], State& state) {
  uint32_t p[kTokens / 16][4];
  float m[2], l[2];
  Weigh<Element>(first_token, position, p, m, l);
  float sums[8][4] = {};
  const int chunk = Warp() * (kOutputSpan / kChunkElements) + GroupOf(Lane());
  const std::byte* const from[2] = {Memory::At(MemberOf(Lane()) * 2, chunk),
                                    Memory::At(MemberOf(Lane()) * 2 + 1, chunk)};
  BATON_UNROLL for (int j = 0; j < kTokens / 16; ++j) {
    Vec16 v[4];
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      v[i] = LoadShared16(from[i % 2] + (j * 16 + i / 2 * 8) * kChunks * 16);
    }
    ValueOperands b;
    PairValues(v, b);
    BATON_UNROLL for (int i = 0; i < 8; ++i) Element::Mma16(sums[i], p[j], b[i][0], b[i][1]);
  }
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    const FoldWeights weights = Fold(state.m[half], state.l[half], m[half], l[half]);
    BATON_UNROLL for (int i = 0; i < 8; ++i) {
      BATON_UNROLL for (int e = half * 2; e < half * 2 + 2; ++e) {
        state.a[i][e] = FoldSum(state.a[i][e], sums[i][e], weights);
      }
    }
  }
}

// The tokens [begin, end) of one split. All threads of the block.
template <class Kv>
BATON_DEVICE void AddSplit(const AttentionLaunch& launch, const TokenAddress<Kv>& address,
                           const PartQueries& queries, int begin, int end, const int (&position)[2],
                           State& state) {
  state.Clear();
  BATON_NO_UNROLL for (int token = begin; token < end; token += kTokens) {
    SyncThreads();  // all have done with the piece before, or have their queries
    LoadPiece<Kv>(launch, address, token, end);
    SyncThreads();
    Score<Kv>(queries);
    SyncThreads();
    AddPiece<Kv>(token, position, state);
  }
}

template <class Element>
BATON_DEVICE void WriteEight(const AttentionLaunch& launch, const PackedRow& row, int dim,
                             const float (&a)[kChunkElements], float l) {
  if (!row.exists || dim >= launch.latent_dim) return;
  Vec16 packed;
  BATON_UNROLL for (int i = 0; i < 4; ++i) {
    packed.x[i] = Element::Pack(Divide(a[2 * i], l), Divide(a[2 * i + 1], l));
  }
  Store16(static_cast<uint16_t*>(launch.out) + row.row * launch.out_stride +
              int64_t{row.head} * launch.latent_dim + dim,
          packed);
}

template <class Element>
BATON_DEVICE void WriteState(const AttentionLaunch& launch, const SequenceEntry& sequence,
                             int first_packed_row, const State& state) {
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    const PackedRow row(launch, sequence, first_packed_row + GroupOf(Lane()) + half * 8, 0);
    BATON_UNROLL for (int parity = 0; parity < 2; ++parity) {
      float a[kChunkElements];
      state.Eight(half, parity, a);
      WriteEight<Element>(launch, row, State::Dim(parity), a, state.l[half]);
    }
  }
}

BATON_DEVICE float* PartialOf(const AttentionLaunch& launch, const AttentionItem& item, int split) {
  return launch.partials + int64_t{item.first_partial + split} * kLatentPartialFloats;
}

BATON_DEVICE void StorePartial(float* partial, const State& state) {
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    const int row = GroupOf(Lane()) + half * 8;
    if (Warp() == 0 && MemberOf(Lane()) == 0) {
      StoreGlobal(partial + row, state.m[half]);
      StoreGlobal(partial + kRowTile + row, state.l[half]);
    }
    BATON_UNROLL for (int parity = 0; parity < 2; ++parity) {
      float a[kChunkElements];
      state.Eight(half, parity, a);
      float* const to = partial + 2 * kRowTile + row * kMostLatentDim + State::Dim(parity);
      BATON_UNROLL for (int e = 0; e < kChunkElements; e += 4) {
        Store16(to + e,
                {{FloatBits(a[e]), FloatBits(a[e + 1]), FloatBits(a[e + 2]), FloatBits(a[e + 3])}});
      }
    }
  }
}

// Whether the block is the last of its row tile, which finds the others' partials written.
BATON_DEVICE bool IsLast(const AttentionLaunch& launch, const AttentionItem& item) {
  ThreadFence();
  SyncThreads();
  if (ThreadIndex() == 0) {
    unsigned* const counter = launch.counters + item.row_tile;
    const bool is_last = AtomicAdd(counter, 1u) == static_cast<unsigned>(item.split_count) - 1;
    ThreadFence();
    if (is_last) StoreGlobal(counter, 0u);
    Memory::IsLast() = is_last;
  }
  SyncThreads();
  return Memory::IsLast();
}

// Folds the partials in ascending order, 16 threads a row.
template <class Element>
BATON_DEVICE void FoldPartials(const AttentionLaunch& launch, const AttentionItem& item,
                               const SequenceEntry& sequence) {
  constexpr int kThreadsARow = kThreads / kRowTile;
  const int row = ThreadIndex() / kThreadsARow;
  const PackedRow packed(launch, sequence, item.first_packed_row + row, 0);
  BATON_NO_UNROLL for (int dim = ThreadIndex() % kThreadsARow * kChunkElements;
                       dim < launch.latent_dim; dim += kThreadsARow * kChunkElements) {
    float m = kMinusInfinity, l = 0, a[kChunkElements] = {};
    BATON_NO_UNROLL for (int split = 0; split < item.split_count; ++split) {
      const float* const partial = PartialOf(launch, item, split);
      const FoldWeights weights =
          Fold(m, l, LoadFresh(partial + row), LoadFresh(partial + kRowTile + row));
      const float* const from = partial + 2 * kRowTile + row * kMostLatentDim + dim;
      const Vec16 low = LoadFresh16(from), high = LoadFresh16(from + 4);
      BATON_UNROLL for (int e = 0; e < kChunkElements; ++e) {
        a[e] = FoldSum(a[e], BitsFloat((e < 4 ? low : high).x[e % 4]), weights);
      }
    }
    WriteEight<Element>(launch, packed, dim, a, l);
  }
}

// The positions of the lane's two rows; -1: there is none.
BATON_DEVICE void Positions(const AttentionLaunch& launch, const SequenceEntry& sequence,
                            int first_packed_row, int (&position)[2]) {
  BATON_UNROLL for (int half = 0; half < 2; ++half) {
    position[half] =
        PackedRow(launch, sequence, first_packed_row + GroupOf(Lane()) + half * 8, 0).position;
  }
}

template <class Kv>
BATON_DEVICE void AttendSplit(const AttentionLaunch& launch, const AttentionItem& item) {
  const SequenceEntry sequence = LoadGlobal(launch.sequences + item.sequence);
  const VisibleTokens visible(launch, sequence, item.first_packed_row, kRowTile);
  const int begin = item.split * kSplitTokens;
  int position[2];
  Positions(launch, sequence, item.first_packed_row, position);
  PartQueries queries;
  queries.Load<Kv>(launch, sequence, item.first_packed_row);
  State state;
  AddSplit<Kv>(launch, TokenAddress<Kv>(launch, sequence, 0), queries, begin,
               Least(visible.end, begin + kSplitTokens), position, state);
  if (item.split_count == 1) {
    return WriteState<Kv>(launch, sequence, item.first_packed_row, state);
  }
  StorePartial(PartialOf(launch, item, item.split), state);
  if (IsLast(launch, item)) FoldPartials<Kv>(launch, item, sequence);
}

template <class Kv>
BATON_KERNEL(kThreads)
LatentSplitKernel(AttentionLaunch launch) {
  AwaitPrevious();
  ForItems(launch, [&](int index) {
    AttendSplit<Kv>(launch, LoadGlobal(launch.items + index));
    SyncThreads();  // shared memory is the next item's
  });
}

// Folds the state into the total of the splits before, in memory, and leaves the total in both.
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

// Row tile BlockIndex().y of an item.
template <class Kv>
BATON_KERNEL(kThreads)
LatentTileKernel(AttentionLaunch launch) {
  AwaitPrevious();
  const AttentionItem item = LoadGlobal(launch.items + BlockIndex().x);
  const int tile = static_cast<int>(BlockIndex().y);
  const int first_packed_row = item.first_packed_row + tile * kRowTile;
  const SequenceEntry sequence = LoadGlobal(launch.sequences + item.sequence);
  const VisibleTokens visible(launch, sequence, first_packed_row, kRowTile);
  if (visible.end == 0) return;  // no such rows: whole blocks agree
  int position[2];
  Positions(launch, sequence, first_packed_row, position);
  PartQueries queries;
  queries.Load<Kv>(launch, sequence, first_packed_row);
  const TokenAddress<Kv> address(launch, sequence, 0);
  float* const total = launch.totals + int64_t{BlockIndex().x} * kLatentTotalFloats +
                       tile * kRowTile * kMostLatentDim + ThreadIndex();
  float m[2] = {kMinusInfinity, kMinusInfinity}, l[2] = {0, 0};
  State state;
  BATON_NO_UNROLL for (int begin = 0; begin < visible.end; begin += kSplitTokens) {
    AddSplit<Kv>(launch, address, queries, begin, Least(visible.end, begin + kSplitTokens),
                 position, state);
    if (visible.end > kSplitTokens) AddToTotal(total, begin == 0, m, l, state);
  }
  WriteState<Kv>(launch, sequence, first_packed_row, state);
}

}  // namespace

void LaunchLatentSplit(const AttentionLaunch& launch, DType dtype, int blocks, Stream stream) {
  if (blocks == 0) return;
  WithKv(launch.kv_format, dtype, [&](auto kv) {
    Launch(LatentSplitKernel<decltype(kv)>, {static_cast<unsigned>(blocks), 1, 1}, kThreads,
           Memory::kBytes, stream, WithInverse(launch));
  });
}

void LaunchLatentTile(const AttentionLaunch& launch, DType dtype, int items, Stream stream) {
  if (items == 0) return;
  constexpr unsigned kTilesAnItem = kAttentionWarps;
  WithKv(launch.kv_format, dtype, [&](auto kv) {
    Launch(LatentTileKernel<decltype(kv)>, {static_cast<unsigned>(items), kTilesAnItem, 1},
           kThreads, Memory::kBytes, stream, WithInverse(launch));
  });
}

}  // namespace baton::backend::cuda
