#include "common/backend/cuda/kernels/copy_piece.cuh"
#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/experts.h"

namespace baton::backend::cuda {
namespace {

// Warps of a block. One row makes few blocks, so its blocks are small.
constexpr int RouterWarps(int rows) { return rows == 1 ? 2 : 8; }

// A unit of a row, as it is loaded and as floats. Element: that of Row16, or float.
template <class Element>
struct RouterUnit {
  using Stored = uint16_t;
  Vec16 loaded;
  BATON_DEVICE void Load(bool valid, const Stored* from) { loaded = Load16If(valid, from); }
  BATON_DEVICE void Unpack(float (&to)[kUnitElements]) const { Row16<Element>::Unpack(loaded, to); }
};
template <>
struct RouterUnit<float> {
  using Stored = float;
  Vec16 loaded[2];
  BATON_DEVICE void Load(bool valid, const Stored* from) {
    BATON_UNROLL for (int half = 0; half < 2; ++half) {
      loaded[half] = Load16If(valid, from + half * 4);
    }
  }
  BATON_DEVICE void Unpack(float (&to)[kUnitElements]) const {
    Unpack4(loaded[0], to);
    Unpack4(loaded[1], to + 4);
  }
};

// A warp takes an expert and kRows rows.
template <class Element, int kRows>
BATON_KERNEL(RouterWarps(kRows) * kWarpLanes)
RouterKernel(RouterLaunch launch) {
  AwaitPrevious();
  constexpr int kWarps = RouterWarps(kRows);
  if (BlockIndex().x == 0 && BlockIndex().y == 0) {
    for (int i = ThreadIndex(); i < launch.experts; i += kWarps * kWarpLanes) {
      StoreGlobal(launch.counts + i, 0u);
    }
  }
  const int expert = static_cast<int>(BlockIndex().x) * kWarps + Warp();
  if (expert >= launch.experts) return;
  const int first_row = static_cast<int>(BlockIndex().y) * kRows;
  const float* const router = launch.router + int64_t{expert} * launch.cols;
  const typename RouterUnit<Element>::Stored* x[kRows];
  BATON_UNROLL for (int i = 0; i < kRows; ++i) {
    x[i] = static_cast<const typename RouterUnit<Element>::Stored*>(launch.x) +
           Least(first_row + i, launch.rows - 1) * launch.x_stride;
  }
  float sums[kRows] = {};
  // With one row, several loads are on their way at once. Zeros behind the end change no sum.
  constexpr int kAhead = kRows == 1 ? 4 : 1, kStep = kWarpLanes * kUnitElements;
  for (int first = Lane() * kUnitElements; first < launch.cols; first += kAhead * kStep) {
    RouterUnit<float> weights[kAhead];
    RouterUnit<Element> values[kAhead][kRows];
    BATON_UNROLL for (int u = 0; u < kAhead; ++u) {
      const int unit = first + u * kStep;
      const bool valid = unit < launch.cols;
      weights[u].Load(valid, router + unit);
      BATON_UNROLL for (int i = 0; i < kRows; ++i) values[u][i].Load(valid, x[i] + unit);
    }
    BATON_UNROLL for (int u = 0; u < kAhead; ++u) {
      float of_weights[kUnitElements];
      weights[u].Unpack(of_weights);
      BATON_UNROLL for (int i = 0; i < kRows; ++i) {
        float of_row[kUnitElements];
        values[u][i].Unpack(of_row);
        BATON_UNROLL for (int e = 0; e < kUnitElements; ++e) {
          sums[i] = Fma(of_row[e], of_weights[e], sums[i]);
        }
      }
    }
  }
  BATON_UNROLL for (int i = 0; i < kRows; ++i) {
    float total = WarpSum(sums[i]);
    if (Lane() != 0 || first_row + i >= launch.rows) continue;
    if (launch.bias != nullptr) total = Add(total, LoadGlobal(launch.bias + expert));
    StoreGlobal(launch.logits + (first_row + i) * launch.logit_stride + expert, total);
  }
}

constexpr int kChooseWarps = 4;
constexpr int kChooseThreads = kChooseWarps * kWarpLanes;
constexpr int kValues = kMostExperts / kWarpLanes;  // of a lane
constexpr float kInfinity = __builtin_huge_valf();

// A choice: by the larger logit, of equal ones the lower index.
struct Best {
  float logit = -kInfinity;
  int expert = kMostExperts;
  BATON_DEVICE void Take(float other_logit, int other) {
    const bool better = other_logit > logit || (other_logit == logit && other < expert);
    logit = better ? other_logit : logit;
    expert = better ? other : expert;
  }
};

constexpr float kLog2E = 1.44269504088896340736f;
BATON_DEVICE float Sigmoid(float x) { return Divide(1.0f, Add(1.0f, Exp2(Mul(x, -kLog2E)))); }

// A warp a row; lane l has experts l, l + 32, ...
BATON_KERNEL(kChooseThreads)
ChooseExpertsKernel(ChooseExpertsLaunch launch) {
  AwaitPrevious();
  const int row = static_cast<int>(BlockIndex().x) * kChooseWarps + Warp();
  if (row >= launch.rows) return;
  const bool padding = launch.positions != nullptr && LoadGlobal(launch.positions + row) < 0;
  const float* const logits = launch.logits + (padding ? 0 : row) * launch.logit_stride;
  float values[kValues];
  int finite = 1;
  BATON_UNROLL for (int i = 0; i < kValues; ++i) {
    const int expert = i * kWarpLanes + Lane();
    values[i] = expert < launch.experts ? LoadGlobal(logits + expert) : -kInfinity;
    // An infinity less itself is NaN.
    if (expert < launch.experts && Add(values[i], -values[i]) != 0) finite = 0;
    if (launch.sigmoid && expert < launch.experts) {
      values[i] = Sigmoid(values[i]);
      if (launch.choice_bias != nullptr) {
        values[i] = Add(values[i], LoadGlobal(launch.choice_bias + expert));
      }
    }
  }
  BATON_UNROLL for (int mask = 16; mask > 0; mask /= 2) finite &= ShuffleXor(finite, mask);

  Best mine;  // lane j: choice j
  float largest = 0;
  unsigned taken = 0;
  for (int j = 0; j < launch.per_token; ++j) {
    Best best;
    BATON_UNROLL for (int i = 0; i < kValues; ++i) {
      // Padding is never chosen: there are enough finite logits.
      if ((taken >> i & 1) == 0) best.Take(values[i], i * kWarpLanes + Lane());
    }
    BATON_UNROLL for (int mask = 16; mask > 0; mask /= 2) {
      best.Take(ShuffleXor(best.logit, mask), ShuffleXor(best.expert, mask));
    }
    if (j == 0) largest = best.logit;
    if (Lane() == j) mine = best;
    if (best.expert % kWarpLanes == Lane()) taken |= 1u << best.expert / kWarpLanes;
  }
  // NaN has no place in an order: a row that is not finite has the first experts.
  if (finite == 0 && Lane() < launch.per_token) mine.expert = Lane();

  const auto part = [&](float logit) { return Exp2(Mul(Add(logit, -largest), kLog2E)); };
  const bool chooses = Lane() < launch.per_token;
  // The bias of the choice has no part in the weight of a sigmoid.
  const float own = !chooses          ? 0
                    : !launch.sigmoid ? part(mine.logit)
                                      : Sigmoid(LoadGlobal(logits + mine.expert));
  float total = 0;
  if (launch.normalized) {
    total = own;
  } else if (!launch.sigmoid) {
    BATON_UNROLL for (int i = 0; i < kValues; ++i) {
      if (i * kWarpLanes + Lane() < launch.experts) total = Add(total, part(values[i]));
    }
  }
  total = WarpSum(total);
  // ChooseExperts adds the same constant.
  if (launch.sigmoid) total = launch.normalized ? Add(total, 1e-20f) : 1.0f;
  int place = 0;
  for (int j = 0; j < launch.per_token; ++j) {
    if (Shuffle(mine.expert, j) < mine.expert) ++place;
  }
  if (!chooses) return;
  const int pair = row * launch.per_token + place;
  StoreGlobal(launch.chosen + pair, mine.expert);
  float weight = Mul(Divide(own, total), launch.scale);
  if (launch.scales != nullptr) weight = Mul(weight, LoadGlobal(launch.scales + mine.expert));
  StoreGlobal(launch.weights + pair, finite == 0 ? BitsFloat(0x7fc00000u) : weight);
  AtomicAdd(launch.counts + mine.expert, 1u);
}

constexpr int kPlaceWarps = 4;
constexpr int kPlaceThreads = kPlaceWarps * kWarpLanes;

BATON_DEVICE int WarpCount(int value) {
  BATON_UNROLL for (int mask = 16; mask > 0; mask /= 2) value += ShuffleXor(value, mask);
  return value;
}

// A block an expert, each warp the same number of consecutive pairs, which it reads twice: how many
// of them the warps before it have is where a warp begins to place its own.
BATON_KERNEL(kPlaceThreads)
PlacePairsKernel(PlacePairsLaunch launch) {
  AwaitPrevious();
  const int expert = static_cast<int>(BlockIndex().x);
  const auto tiles_of = [&](int count) {
    return (count + launch.tile_rows - 1) / launch.tile_rows;
  };
  int before = 0, tiles_before = 0;
  for (int i = Lane(); i < expert; i += kWarpLanes) {
    const int count = static_cast<int>(LoadGlobal(launch.counts + i));
    before += count;
    tiles_before += tiles_of(count);
  }
  before = WarpCount(before);
  tiles_before = WarpCount(tiles_before);
  const int count = static_cast<int>(LoadGlobal(launch.counts + expert));
  for (int i = ThreadIndex(); i < tiles_of(count); i += kPlaceThreads) {
    const int first = i * launch.tile_rows;
    const ExpertTile tile = {expert, before + first, Least(launch.tile_rows, count - first), 0};
    StoreGlobal(launch.tiles + tiles_before + i, tile);
  }
  if (expert == launch.experts - 1) {
    for (int i = tiles_before + tiles_of(count) + ThreadIndex(); i < launch.tile_count;
         i += kPlaceThreads) {
      StoreGlobal(launch.tiles + i, ExpertTile{0, 0, 0, 0});
    }
  }
  if (count == 0) return;  // whole blocks agree
  const int lines = (launch.pair_count + kPlaceThreads - 1) / kPlaceThreads;
  const int begin = Warp() * lines * kWarpLanes + Lane();
  const auto is_mine = [&](int line) {
    const int pair = begin + line * kWarpLanes;
    return pair < launch.pair_count && LoadGlobal(launch.chosen + pair) == expert ? 1 : 0;
  };
  int found = 0;
  for (int line = 0; line < lines; ++line) found += is_mine(line);
  found = WarpCount(found);
  int* const of_warps = reinterpret_cast<int*>(SharedMemory());
  if (Lane() == 0) of_warps[Warp()] = found;
  SyncThreads();
  int place = before;
  for (int warp = 0; warp < Warp(); ++warp) place += of_warps[warp];
  for (int line = 0; line < lines; ++line) {
    const int mine = is_mine(line);
    int up_to = mine;  // of this lane's and those before it
    BATON_UNROLL for (int step = 1; step < kWarpLanes; step *= 2) {
      const int other = Shuffle(up_to, Greatest(Lane() - step, 0));
      if (Lane() >= step) up_to += other;
    }
    if (mine != 0) {
      const int pair = begin + line * kWarpLanes;
      StoreGlobal(launch.pairs + place + up_to - 1, pair);
      StoreGlobal(launch.rows + place + up_to - 1, pair / launch.per_token);
    }
    place += Shuffle(up_to, kWarpLanes - 1);
  }
}

// Pieces that a block copies, one after the other. Most blocks belong to experts that no row chose
// and end at once, so they had better not be many.
constexpr int kFetchedPieces = 8;

BATON_KERNEL(kCopyThreads)
FetchExpertsKernel(FetchExpertsLaunch launch) {
  AwaitPrevious();
  const unsigned expert = BlockIndex().y;
  if (launch.counts != nullptr && LoadGlobal(launch.counts + expert) == 0) return;
  const ExpertSource& source = LoadGlobal(launch.sources + expert);
  std::byte* const to = launch.to + expert * launch.stride_bytes;
  const bool is_down = BlockIndex().z == 1;
  const std::byte* const from = is_down ? source.down : source.gate_up;
  for (unsigned i = 0; i < kFetchedPieces; ++i) {
    CopyPiece(from, is_down ? to + launch.down_offset : to,
              is_down ? launch.down_bytes : launch.gate_up_bytes,
              BlockIndex().x * kFetchedPieces + i);
  }
}

constexpr int kSumThreads = 128;
constexpr int kSumColumns = 4;  // of a thread

BATON_KERNEL(kSumThreads)
SumExpertsKernel(SumExpertsLaunch launch) {
  AwaitPrevious();
  const int row = static_cast<int>(BlockIndex().x);
  const int column = (static_cast<int>(BlockIndex().y) * kSumThreads + ThreadIndex()) * kSumColumns;
  if (column >= launch.cols) return;
  const int64_t first = int64_t{row} * launch.per_token;
  float sums[kSumColumns] = {};
  float* const out = launch.out + row * launch.out_stride + column;
  if (launch.accumulates) Unpack4(LoadFresh16(out), sums);
  for (int choice = 0; choice < launch.per_token; ++choice) {
    float results[kSumColumns];
    Unpack4(Load16(launch.results + (first + choice) * launch.result_stride + column), results);
    const float weight = LoadGlobal(launch.weights + first + choice);
    BATON_UNROLL for (int i = 0; i < kSumColumns; ++i) sums[i] = Fma(weight, results[i], sums[i]);
  }
  Store16(out, Pack4(sums));
}

unsigned Tiles(int64_t size, int64_t tile) {
  return static_cast<unsigned>((size + tile - 1) / tile);
}

template <class Element, int kRows>
void LaunchRouterRows(const RouterLaunch& launch, Stream stream) {
  constexpr int kWarps = RouterWarps(kRows);
  Launch(RouterKernel<Element, kRows>,
         {Tiles(launch.experts, kWarps), Tiles(launch.rows, kRows), 1}, kWarps * kWarpLanes, 0,
         stream, launch);
}

template <class Element>
void Dispatch(const RouterLaunch& launch, Stream stream) {
  if (launch.rows == 1) return LaunchRouterRows<Element, 1>(launch, stream);
  LaunchRouterRows<Element, 8>(launch, stream);
}

}  // namespace

void LaunchRouter(const RouterLaunch& launch, DType dtype, Stream stream) {
  if (launch.rows == 0) return;
  switch (dtype) {
    case DType::kF32:
      return Dispatch<float>(launch, stream);
    case DType::kF16:
      return Dispatch<Half>(launch, stream);
    case DType::kBF16:
      return Dispatch<BFloat16>(launch, stream);
  }
}

void LaunchChooseExperts(const ChooseExpertsLaunch& launch, Stream stream) {
  if (launch.rows == 0) return;
  Launch(ChooseExpertsKernel, {Tiles(launch.rows, kChooseWarps), 1, 1}, kChooseThreads, 0, stream,
         launch);
}

void LaunchPlacePairs(const PlacePairsLaunch& launch, Stream stream) {
  if (launch.pair_count == 0) return;
  Launch(PlacePairsKernel, {static_cast<unsigned>(launch.experts), 1, 1}, kPlaceThreads,
         kPlaceWarps * sizeof(int), stream, launch);
}

void LaunchFetchExperts(const FetchExpertsLaunch& launch, Stream stream) {
  const int64_t most = launch.gate_up_bytes > launch.down_bytes ? launch.gate_up_bytes  // a matrix
                                                                : launch.down_bytes;
  Launch(FetchExpertsKernel,
         {Tiles(most, kPieceBytes * kFetchedPieces), static_cast<unsigned>(launch.experts), 2},
         kCopyThreads, 0, stream, launch);
}

void LaunchSumExperts(const SumExpertsLaunch& launch, int rows, Stream stream) {
  if (rows == 0) return;
  Launch(SumExpertsKernel,
         {static_cast<unsigned>(rows), Tiles(launch.cols, kSumThreads * kSumColumns), 1},
         kSumThreads, 0, stream, launch);
}

}  // namespace baton::backend::cuda
