// Products with weights of few bits: what a block of QuantizedRowsKernel does, for all kernels that
// multiply so.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_CUH_

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/matmul_core.cuh"
#include "common/backend/cuda/kernels/quantized.h"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

inline constexpr int kTileRows = 8;
inline constexpr int kTileBytes = kTileRows * 64;

// What a group's word, or of MXFP4 its byte, becomes before it is used for all of its values, and
// two weights of it: those of the values at `place` and `place` + half a word, in the low and the
// high half of a register.
template <class Element, int kBits>
struct Dequantizer;

BATON_DEVICE uint32_t Twice(uint32_t half) { return half * 0x00010001u; }

// 0x6400 is 1024, whose last place is 1. Everything below is exact but the product, which is
// rounded once. Of 4 bits, odd places are not shifted down: as 1024 + 16 value they are a 16th of
// what they should be less 64.
template <int kBits>
struct Dequantizer<Half, kBits> {
  uint32_t minus_zero, minus_odd_zero, scale;  // each twice

  BATON_DEVICE Dequantizer(uint32_t group, bool) {
    const uint32_t zero = group >> 16;
    minus_zero = Twice(0xe400u + zero);           // -(1024 + zero)
    minus_odd_zero = Twice(0xd400u + zero * 16);  // -(64 + zero)
    scale = Twice(group & 0xffffu);
  }
  BATON_DEVICE uint32_t Two(uint32_t word, int place) const {
    constexpr uint32_t kOne = 0x3c003c00u, kSixteenth = 0x2c002c00u, kMagic = 0x64006400u;
    if (kBits == 4 && place % 2 == 1) {
      const uint32_t values = AndOr(word >> ((place - 1) * 4), 0x00f000f0u, kMagic);
      return Half::Multiply2(Half::Fma2(values, kSixteenth, minus_odd_zero), scale);
    }
    constexpr uint32_t kMask = kBits == 4 ? 0x000f000fu : 0x00ff00ffu;
    const uint32_t values = AndOr(word >> (place * kBits), kMask, kMagic);
    return Half::Multiply2(Half::Fma2(values, kOne, minus_zero), scale);
  }
};

// 0x4300 is 128, whose last place is 1. A scale of float16 has three bits more than a bfloat16: it
// is the sum of two of them. The difference of 4 bits times the smaller one is exact, so that the
// weight is rounded once.
template <>
struct Dequantizer<BFloat16, 4> {
  uint32_t minus_zero, scale, rest;  // each twice

  BATON_DEVICE Dequantizer(uint32_t group, bool bf16_scales) {
    const auto bits = static_cast<uint16_t>(group);
    const float whole = bf16_scales ? BFloat16::ToF32(bits) : Half::ToF32(bits);
    const uint16_t most = BFloat16::FromF32(whole);
    minus_zero = Twice(0xc300u + (group >> 16));  // -(128 + zero)
    scale = Twice(most);
    rest = Twice(BFloat16::FromF32(Add(whole, -BFloat16::ToF32(most))));
  }
  BATON_DEVICE uint32_t Two(uint32_t word, int place) const {
    constexpr uint32_t kOne = 0x3f803f80u, kMinusNothing = 0x80008000u;
    const uint32_t values = AndOr(word >> (place * 4), 0x000f000fu, 0x43004300u);
    const uint32_t differences = BFloat16::Fma2(values, kOne, minus_zero);
    return BFloat16::Fma2(differences, scale, BFloat16::Fma2(differences, rest, kMinusNothing));
  }
};

// By float32: the difference of 8 bits has no room beside a part of the scale. With a value as the
// first places behind the point of 1, (value - zero) * scale is one sum of a product, whose terms
// have at most 10 + 11 bits: it is exact, and Pack rounds for the first time.
template <>
struct Dequantizer<BFloat16, 8> {
  static constexpr int kPlace = 23 - 8;
  float scale, base;

  BATON_DEVICE Dequantizer(uint32_t group, bool bf16_scales) {
    const auto bits = static_cast<uint16_t>(group);
    const float one = bf16_scales ? BFloat16::ToF32(bits) : Half::ToF32(bits);
    scale = Mul(one, 256.0f);
    base = -Mul(one, static_cast<float>(256 + static_cast<int>(group >> 16)));
  }
  BATON_DEVICE float One(uint32_t word, int place) const {
    const int left = kPlace - place;
    const uint32_t shifted = left >= 0 ? word << left : word >> -left;
    return Fma(BitsFloat(AndOr(shifted, 0xffu << kPlace, 0x3f800000u)), scale, base);
  }
  BATON_DEVICE uint32_t Two(uint32_t word, int place) const {
    return BFloat16::Pack(One(word, place * 8), One(word, place * 8 + 16));
  }
};

// Two numbers of MXFP4, the low ones of each half of the word, times 2^-14 in float16 or 2^-126 in
// bfloat16: their exponents and mantissas lie where those of the wider type end. Exact, and so is
// every product below in which the result is no subnormal.
template <int kMantissaBits>
BATON_DEVICE uint32_t Fp4AsSmall(uint32_t word) {
  constexpr uint32_t kMagnitudes = 0x00070007u << (kMantissaBits - 1);
  return (word << (kMantissaBits - 1) & kMagnitudes) | (word << 12 & 0x80008000u);
}

template <>
struct Dequantizer<Half, kFp4> {
  uint32_t scale;  // twice

  BATON_DEVICE Dequantizer(uint32_t exponent, bool)
      : scale(Twice(Half::FromF32(BitsFloat(exponent << 23)))) {}
  BATON_DEVICE uint32_t Two(uint32_t word, int place) const {
    constexpr uint32_t kTwoTo14 = 0x74007400u, kMinusNothing = 0x80008000u;
    const uint32_t small = Fp4AsSmall<10>(word >> place * 4);
    return Half::Multiply2(Half::Fma2(small, kTwoTo14, kMinusNothing), scale);
  }
};

template <>
struct Dequantizer<BFloat16, kFp4> {
  uint32_t scale;  // twice, times 64

  BATON_DEVICE Dequantizer(uint32_t exponent, bool) : scale(Twice(exponent << 7)) {}
  BATON_DEVICE uint32_t Two(uint32_t word, int place) const {
    constexpr uint32_t kTwoTo120 = 0x7b807b80u, kMinusNothing = 0x80008000u;
    const uint32_t small = Fp4AsSmall<7>(word >> place * 4);
    return BFloat16::Fma2(BFloat16::Fma2(small, kTwoTo120, kMinusNothing), scale, kMinusNothing);
  }
};

// A lane's eight columns of step `step`.
template <class Element, int kBits>
BATON_DEVICE Vec16 Dequantize(const Vec16& words, int step,
                              const Dequantizer<Element, kBits>& group) {
  Vec16 out;
  BATON_UNROLL for (int i = 0; i < 4; ++i) {
    out.x[i] =
        kBits == 8 ? group.Two(words.x[step * 2 + i / 2], i % 2) : group.Two(words.x[step], i);
  }
  return out;
}

// A lane's part of the rows of a row tile of W.
struct TileRow {
  const std::byte* values;
  const uint32_t* groups;

  BATON_DEVICE TileRow(const QuantizedView& w, int row_tile)
      : values(static_cast<const std::byte*>(w.values) +
               int64_t{row_tile} * w.column_tiles * kTileBytes + Lane() * 16),
        groups(w.groups + int64_t{row_tile} * w.group_count * kTileRows + GroupOf(Lane())) {}
  BATON_DEVICE const std::byte* Values(int column_tile) const {
    return values + int64_t{column_tile} * kTileBytes;
  }
  BATON_DEVICE const uint32_t* Group(int group) const {
    return groups + int64_t{group} * kTileRows;
  }
};

// A lane's part of a tile, and its row's groups: one for each of the tile's steps, or one for all.
template <int kGroups>
struct Fetched {
  Vec16 words;
  uint32_t groups[kGroups];
};

// What the Dequantizer of a step takes. paired: QuantizedView::paired_scales. Both cases are the
// same instructions with other constants, because a branch would take more registers.
template <int kBits, int kGroups>
BATON_DEVICE uint32_t GroupOfStep(const Fetched<kGroups>& tile, int step, bool paired) {
  const uint32_t word = tile.groups[kGroups == 1 ? 0 : step];
  if (kBits == kFp4) return word >> step * 8 & 0xffu;
  if (kGroups == 1) return word;
  const uint32_t shift = step % 2 == 1 && paired ? 16 : 0;
  const uint32_t kept = paired ? 0xffffu : 0xffffffffu;
  const uint32_t zero = paired ? (kBits == 8 ? 128u : 8u) << 16 : 0;
  return (word >> shift & kept) | zero;
}

// Any tile, with a group for each of its steps.
template <int kBits>
BATON_DEVICE void Fetch(const QuantizedView& w, const TileRow& row, int column_tile,
                        Fetched<StepsATile(kBits)>& to) {
  to.words = Load16(row.Values(column_tile));
  BATON_UNROLL for (int step = 0; step < StepsATile(kBits); ++step) {
    // Steps beyond the last column belong to no group; their values stand for zeros.
    const int group = (column_tile * StepsATile(kBits) + step) >> w.steps_a_group_log2;
    to.groups[step] = Load4If(true, row.Group(Least(group, w.group_count - 1)));
  }
}

// Whether one group has all of a tile's steps.
template <int kBits>
BATON_DEVICE bool OneGroupATile(const QuantizedView& w) {
  return kBits == kFp4 || (!w.paired_scales && 1 << w.steps_a_group_log2 >= StepsATile(kBits));
}

// Leaves `to` as it is where not `valid`. kGroups: 1 if OneGroupATile. kWhole: all of the tile's
// steps are of W.
enum class TileKind { kWhole, kAny };
template <int kBits, TileKind kKind, int kGroups>
BATON_DEVICE void FetchInto(bool valid, const QuantizedView& w, const TileRow& row, int column_tile,
                            Fetched<kGroups>& to) {
  constexpr int kSteps = StepsATile(kBits), kStepsLog2 = kSteps == 4 ? 2 : 1;
  Load16Into(valid, row.Values(column_tile), to.words);
  BATON_UNROLL for (int step = 0; step < kGroups; ++step) {
    const int at = kGroups == 1 ? column_tile >> (w.steps_a_group_log2 - kStepsLog2)
                                : (column_tile * kSteps + step) >> w.steps_a_group_log2;
    const int group = kKind == TileKind::kWhole || kGroups == 1 ? at : Least(at, w.group_count - 1);
    Load4Into(valid, row.Group(group), to.groups[step]);
  }
}

// A warp takes two row tiles of W as the 16 rows of mma's first operand, whose registers are
// dequantised in place, and tiles of 8 rows of x as the second, which are pairs of what a lane
// loads. (As the first operand, which has two rows in turn, x would be moved for every product.)
// matmul.cu has x first. An element of the result is the same function of the same products, in
// the same order of k, so the bits are the same.
inline constexpr int kParts = 2;
inline constexpr int kXTile = 8;
// Tiles of each part that are on their way; registers decide.
inline constexpr int Ahead(int x_tiles, int groups) { return groups == 1 && x_tiles <= 2 ? 2 : 1; }
// Blocks of a multiprocessor, likewise.
inline constexpr int Resident(int x_tiles) { return x_tiles == 8 ? 1 : 2; }
inline constexpr int kTileOutputs = kXTile * kParts * kTileRows;

// Dynamic shared memory: [slice][x tile][row of W in the parts][row of x].
inline constexpr size_t RowsBytes(int x_tiles) {
  return kSlices * static_cast<size_t>(x_tiles * kTileOutputs) * sizeof(float);
}

// The parts' groups of a step.
template <class Element, int kBits>
struct PartGroups {
  Dequantizer<Element, kBits> of[kParts];
  template <int kGroups>
  BATON_DEVICE PartGroups(const Fetched<kGroups> (&tiles)[kParts], int step, const QuantizedView& w)
      : of{{GroupOfStep<kBits>(tiles[0], step, w.paired_scales), w.bf16_scales},
           {GroupOfStep<kBits>(tiles[1], step, w.paired_scales), w.bf16_scales}} {}
};

// The rows of x that the lane's group loads, at the lane's columns of a step.
template <int kXTiles>
class XInMemory {
 public:
  template <class Matrices>
  BATON_DEVICE XInMemory(const Matrices& launch, int first_row) {
    BATON_UNROLL for (int i = 0; i < kXTiles; ++i) {
      // Rows behind the last are computed as the last one, and not stored.
      x_[i] = XRow(launch, Least(first_row + i * kXTile + GroupOf(Lane()), launch.rows - 1)) +
              MemberOf(Lane()) * kChunkElements;
    }
  }
  // Or the addresses are computed anew for every tile.
  BATON_DEVICE void Keep() { BATON_UNROLL for (int i = 0; i < kXTiles; ++i) KeepBehind(x_[i]); }
  // Those of the tile whose first column this is.
  struct Tile {
    const uint16_t* from[kXTiles];

    BATON_DEVICE Vec16 At(int i, int step) {
      // Or all of a tile's are loaded before the first product, and spill.
      KeepBehind(from[i]);
      return Load16(from[i] + step * kChunkedK);
    }
  };
  BATON_DEVICE Tile From(int column) const {
    Tile tile;
    BATON_UNROLL for (int i = 0; i < kXTiles; ++i) tile.from[i] = x_[i] + column;
    return tile;
  }
  BATON_DEVICE Vec16 AtIf(bool valid, int i, int k) const { return Load16If(valid, x_[i] + k); }

 private:
  const uint16_t* x_[kXTiles];
};

// A warp's sums of one slice of k, of kXTiles * 8 rows of x for two row tiles of W.
template <class Element, int kBits, int kXTiles, class X = XInMemory<kXTiles>>
class SliceSums {
 public:
  template <class Matrices>
  BATON_DEVICE SliceSums(const Matrices& launch, int first_row, const int (&row_tiles)[kParts])
      : w_(launch.w),
        rows_{{launch.w, row_tiles[0]}, {launch.w, row_tiles[1]}},
        x_(launch, first_row) {}

  // Adds the products of columns [begin, end). REQUIRES: a tile begins at `begin`.
  BATON_DEVICE void Add(int begin, int end) {
    const int tile = begin / kTileColumns, last = end / kTileColumns;
    // Whole warps agree.
    if (OneGroupATile<kBits>(w_)) {
      AddWhole<1>(tile, last);
    } else {
      AddWhole<kSteps>(tile, last);
    }
    if (end % kTileColumns != 0 && begin < end) AddRest(last, end);
  }

  // To shared memory, for FoldSlices. The caller synchronizes.
  BATON_DEVICE void Store() const {
    float* shared = reinterpret_cast<float*>(SharedMemory()) + Warp() * kXTiles * kTileOutputs;
    BATON_UNROLL for (int i = 0; i < kXTiles; ++i) {
      BATON_UNROLL for (int e = 0; e < 4; ++e) {
        shared[i * kTileOutputs + (GroupOf(Lane()) + e / 2 * kTileRows) * kXTile +
               MemberOf(Lane()) * 2 + e % 2] = sums_[i][e];
      }
    }
  }

 private:
  static constexpr int kSteps = StepsATile(kBits), kTileColumns = kSteps * kChunkedK;
  static_assert(kSliceUnit % kTileColumns == 0);

  using Groups = PartGroups<Element, kBits>;

  // Tiles from `tile` to `last`, all of whose columns are the slice's. kGroups: 1 if a group has
  // all of a tile's steps, or else kSteps.
  template <int kGroups>
  BATON_DEVICE void AddWhole(int tile, int last) {
    constexpr int kAhead = Ahead(kXTiles, kGroups);
    x_.Keep();
    BATON_UNROLL for (int part = 0; part < kParts; ++part) {
      KeepBehind(rows_[part].values);
      KeepBehind(rows_[part].groups);
    }
    Fetched<kGroups> ring[kAhead][kParts] = {};
    const auto fetch = [&](Fetched<kGroups>(&to)[kParts], int of) {
      BATON_UNROLL for (int part = 0; part < kParts; ++part) {
        FetchInto<kBits, TileKind::kWhole>(of < last, w_, rows_[part], of, to[part]);
      }
    };
    BATON_UNROLL for (int i = 0; i < kAhead; ++i) fetch(ring[i], tile + i);
    BATON_NO_UNROLL for (; tile + kAhead <= last; tile += kAhead) {
      BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
        AddTile(ring[i], tile + i);
        fetch(ring[i], tile + i + kAhead);
      }
    }
    BATON_UNROLL for (int i = 0; i + 1 < kAhead; ++i) {
      if (tile + i < last) AddTile(ring[i], tile + i);
    }
  }
  template <int kGroups>
  BATON_DEVICE void AddTile(const Fetched<kGroups> (&tiles)[kParts], int tile) {
    typename X::Tile x = x_.From(tile * kTileColumns);
    Groups by(tiles, 0, w_);
    BATON_UNROLL for (int step = 0; step < kSteps; ++step) {
      if ((kGroups > 1 || kBits == kFp4) && step > 0) by = Groups(tiles, step, w_);
      AddStep(tiles, by, step, [&](int i) { return x.At(i, step); });
    }
  }

  // The columns before `end` of the last tile, which has fewer than a whole one.
  BATON_DEVICE void AddRest(int tile, int end) {
    Fetched<kSteps> fetched[kParts];
    BATON_UNROLL for (int part = 0; part < kParts; ++part) {
      Fetch<kBits>(w_, rows_[part], tile, fetched[part]);
    }
    BATON_UNROLL for (int step = 0; step < kSteps; ++step) {
      const int k = (tile * kSteps + step) * kChunkedK;
      if (k >= end) continue;  // whole warps agree
      const bool valid = k + MemberOf(Lane()) * kChunkElements < end;
      AddStep(fetched, Groups(fetched, step, w_), step,
              [&](int i) { return x_.AtIf(valid, i, k); });
    }
  }

  // load_x(x tile): this lane's eight columns of its row.
  template <int kGroups, class LoadX>
  BATON_DEVICE void AddStep(const Fetched<kGroups> (&tiles)[kParts], const Groups& by, int step,
                            const LoadX& load_x) {
    Vec16 w[kParts];
    BATON_UNROLL for (int part = 0; part < kParts; ++part) {
      w[part] = Dequantize<Element, kBits>(tiles[part].words, step, by.of[part]);
    }
    BATON_UNROLL for (int i = 0; i < kXTiles; ++i) {
      const Vec16 x = load_x(i);
      BATON_UNROLL for (int product = 0; product < 2; ++product) {
        const uint32_t a[4] = {w[0].x[product * 2], w[1].x[product * 2], w[0].x[product * 2 + 1],
                               w[1].x[product * 2 + 1]};
        Element::Mma16(sums_[i], a, x.x[product * 2], x.x[product * 2 + 1]);
      }
    }
  }

  const QuantizedView& w_;
  TileRow rows_[kParts];
  X x_;
  float sums_[kXTiles][4] = {};
};

// A line of W a lane: eight tiles.
BATON_DEVICE void PrefetchTiles(const QuantizedView& w, int row_tile, int column_tile) {
  constexpr int kLineBytes = 128, kLines = kTileBytes / kLineBytes;
  const int column = Least(column_tile + Lane() / kLines, w.column_tiles - 1);
  PrefetchL2(static_cast<const std::byte*>(w.values) +
             (int64_t{row_tile} * w.column_tiles + column) * kTileBytes +
             Lane() % kLines * kLineBytes);
}

// Asks for the beginning of the warp's slice of W; before AwaitPrevious.
template <int kBits>
BATON_DEVICE void PrefetchSlices(const QuantizedView& w, const int (&row_tiles)[kParts]) {
  constexpr int kTileColumns = StepsATile(kBits) * kChunkedK;
  BATON_UNROLL for (int part = 0; part < kParts; ++part) {
    PrefetchTiles(w, row_tiles[part], Warp() * SliceLength(w.k) / kTileColumns);
  }
}

// Leaves the block's sums in shared memory, a slice of k a warp.
template <class Element, int kBits, int kXTiles, class X = XInMemory<kXTiles>, class Matrices>
BATON_DEVICE void SumSlices(const Matrices& launch, int first_row, const int (&row_tiles)[kParts]) {
  const int length = SliceLength(launch.w.k), begin = Warp() * length;
  SliceSums<Element, kBits, kXTiles, X> sums(launch, first_row, row_tiles);
  sums.Add(begin, Least(begin + length, launch.w.k));
  sums.Store();
  SyncThreads();
}

// The sum over the slices of the product of a row of x and a row of W in the parts.
template <int kXTiles>
BATON_DEVICE float FoldSlices(int k, int row, int column) {
  const float* shared = reinterpret_cast<const float*>(SharedMemory()) +
                        row / kXTile * kTileOutputs + column * kXTile + row % kXTile;
  return FoldSlices(k, shared, kXTiles * kTileOutputs);
}
// Gates and stores what the block has, of rows of gate and the same of up.
template <class Element, int kXTiles, class Matrices>
BATON_DEVICE void StoreGatedSlices(const Matrices& launch, int first_row, int first_column) {
  static_assert(kTileRows == kColumnTile && kParts == 2);
  StoreGated<Element, kXTiles * kXTile>(launch, first_row, first_column, [&](int row, int column) {
    return FoldSlices<kXTiles>(launch.w.k, row, column);
  });
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_CUH_
