#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/quantized.h"

namespace baton::backend::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kTileRows = 8;
constexpr int kTileBytes = kTileRows * 64;

// The values at `place` and `place` + half a word, in the low and the high half of a register.
template <int kBits>
BATON_DEVICE uint32_t TakeTwo(uint32_t word, int place) {
  constexpr uint32_t kMask = kBits == 4 ? 0x000f000fu : 0x00ff00ffu;
  return word >> (place * kBits) & kMask;
}

// What a group's word becomes before it is used for all of its values, and two weights of it.
template <class Element>
struct Dequantizer;

// 0x6400 is 1024, whose last place is 1. Everything below is exact but the product, which is
// rounded once.
template <>
struct Dequantizer<Half> {
  uint32_t zero, scale;  // each twice

  BATON_DEVICE Dequantizer(uint32_t group, bool) {
    zero = (0x6400u + (group >> 16)) * 0x00010001u;
    scale = (group & 0xffffu) * 0x00010001u;
  }
  BATON_DEVICE uint32_t Two(uint32_t values) const {
    return Half::Multiply2(Half::Subtract2(values | 0x64006400u, zero), scale);
  }
};

// By float32, since a product of bfloat16's would want a scale of bfloat16. 0x4b000000 is 2^23,
// whose last place is 1; the product has at most 9 + 11 bits, so Pack rounds for the first time.
template <>
struct Dequantizer<BFloat16> {
  float zero, scale;

  BATON_DEVICE Dequantizer(uint32_t group, bool bf16_scales) {
    zero = BitsFloat(0x4b000000u + (group >> 16));
    const auto bits = static_cast<uint16_t>(group);
    scale = bf16_scales ? BFloat16::ToF32(bits) : Half::ToF32(bits);
  }
  BATON_DEVICE float One(uint32_t value) const {
    return Mul(Add(BitsFloat(0x4b000000u | value), -zero), scale);
  }
  BATON_DEVICE uint32_t Two(uint32_t values) const {
    return BFloat16::Pack(One(values & 0xffffu), One(values >> 16));
  }
};

// A lane's eight columns of step `step`.
template <class Element, int kBits>
BATON_DEVICE Vec16 Dequantize(const Vec16& words, int step, const Dequantizer<Element>& group) {
  Vec16 out;
  BATON_UNROLL for (int i = 0; i < 4; ++i) {
    const uint32_t two = kBits == 4 ? TakeTwo<kBits>(words.x[step], i)
                                    : TakeTwo<kBits>(words.x[step * 2 + i / 2], i % 2);
    out.x[i] = group.Two(two);
  }
  return out;
}

// A lane's part of a tile, and its row's groups.
template <int kBits>
struct Fetched {
  Vec16 words;
  uint32_t groups[StepsATile(kBits)];
};

template <int kBits>
BATON_DEVICE void Fetch(const QuantizedView& w, int row_tile, int column_tile, Fetched<kBits>& to) {
  constexpr int kSteps = StepsATile(kBits);
  const auto* values = static_cast<const std::byte*>(w.values);
  const int64_t tile = int64_t{row_tile} * w.column_tiles + column_tile;
  to.words = Load16(values + tile * kTileBytes + Lane() * 16);
  const uint32_t* groups =
      w.groups + int64_t{row_tile} * w.group_count * kTileRows + GroupOf(Lane());
  const auto group_of = [&](int step) {
    // Steps beyond the last column belong to no group; their values stand for zeros.
    const int group = (column_tile * kSteps + step) >> w.steps_a_group_log2;
    return LoadGlobal(groups + Least(group, w.group_count - 1) * kTileRows);
  };
  to.groups[0] = group_of(0);
  const bool one = (1 << Least(w.steps_a_group_log2, 16)) >= kSteps;
  BATON_UNROLL for (int step = 1; step < kSteps; ++step) {
    to.groups[step] = one ? to.groups[0] : group_of(step);
  }
}

// Tiles of each part that are on their way while as many are multiplied; registers decide.
constexpr int Ahead(int row_tiles, int parts) { return row_tiles * parts <= 2 ? 2 : 1; }
constexpr int kRowsThreads = kSlices * kWarpLanes;
constexpr int kTileOutputs = kRowTile * kTileRows;

// Dynamic shared memory: [slice][part][row tile][16][8].
constexpr size_t RowsBytes(int row_tiles, int parts) {
  return kSlices * static_cast<size_t>(row_tiles * parts * kTileOutputs) * sizeof(float);
}

// Leaves in shared memory the warp's sums of one slice of k for 8 rows of each part of W, whose row
// tiles are given. Where a slice ends within a tile, both its neighbours read it, the second from
// L1. The caller synchronizes.
template <class Element, int kBits, int kRowTiles, int kParts, class Matrices>
BATON_DEVICE void SumSlice(const Matrices& launch, int first_row, const int (&row_tiles)[kParts]) {
  constexpr int kSteps = StepsATile(kBits), kAhead = Ahead(kRowTiles, kParts);
  constexpr int kTileColumns = kSteps * kChunkedK;
  const int group = GroupOf(Lane()), member = MemberOf(Lane());
  const int offset = member * kChunkElements, row = first_row + group;
  const uint16_t* x = static_cast<const uint16_t*>(launch.x) + offset;
  const int length = SliceLength(launch.w.k), begin = Warp() * length;
  const int end = Least(begin + length, launch.w.k);
  float sums[kParts][kRowTiles][4] = {};
  Fetched<kBits> now[kAhead][kParts] = {}, next[kAhead][kParts] = {};
  const auto fetch = [&](Fetched<kBits>(&to)[kAhead][kParts], int tile) {
    BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
      if ((tile + i) * kTileColumns >= end) continue;
      BATON_UNROLL for (int part = 0; part < kParts; ++part) {
        Fetch<kBits>(launch.w, row_tiles[part], tile + i, to[i][part]);
      }
    }
  };
  fetch(now, begin / kTileColumns);
  BATON_NO_UNROLL for (int tile = begin / kTileColumns; tile * kTileColumns < end; tile += kAhead) {
    fetch(next, tile + kAhead);
    BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
      BATON_UNROLL for (int step = 0; step < kSteps; ++step) {
        const int k = ((tile + i) * kSteps + step) * kChunkedK;
        if (k < begin || k >= end) continue;  // whole warps agree
        Vec16 w[kParts];
        BATON_UNROLL for (int part = 0; part < kParts; ++part) {
          const Fetched<kBits>& fetched = now[i][part];
          const Dequantizer<Element> dequantizer(fetched.groups[step], launch.w.bf16_scales);
          w[part] = Dequantize<Element, kBits>(fetched.words, step, dequantizer);
        }
        const bool valid = k + offset < end;
        BATON_UNROLL for (int r = 0; r < kRowTiles; ++r) {
          const int low = row + r * kRowTile, high = low + 8;
          const Vec16 x_low = Load16If(valid && low < launch.rows, x + low * launch.x_stride + k);
          const Vec16 x_high =
              Load16If(valid && high < launch.rows, x + high * launch.x_stride + k);
          BATON_UNROLL for (int part = 0; part < kParts; ++part) {
            BATON_UNROLL for (int product = 0; product < 2; ++product) {
              const uint32_t a[4] = {x_low.x[product * 2], x_high.x[product * 2],
                                     x_low.x[product * 2 + 1], x_high.x[product * 2 + 1]};
              Element::Mma16(sums[part][r], a, w[part].x[product * 2], w[part].x[product * 2 + 1]);
            }
          }
        }
      }
    }
    BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
      BATON_UNROLL for (int part = 0; part < kParts; ++part) now[i][part] = next[i][part];
    }
  }
  float* shared =
      reinterpret_cast<float*>(SharedMemory()) + Warp() * kParts * kRowTiles * kTileOutputs;
  BATON_UNROLL for (int part = 0; part < kParts; ++part) {
    BATON_UNROLL for (int r = 0; r < kRowTiles; ++r) {
      BATON_UNROLL for (int i = 0; i < 4; ++i) {
        shared[(part * kRowTiles + r) * kTileOutputs + (group + i / 2 * 8) * kTileRows +
               member * 2 + i % 2] = sums[part][r][i];
      }
    }
  }
}

// Of output `index` of the parts' ones, which follow one another; kOutputs in all.
template <int kOutputs>
BATON_DEVICE float FoldSlices(int k, int index) {
  const int length = SliceLength(k);
  const float* shared = reinterpret_cast<const float*>(SharedMemory());
  float total = shared[index];
  for (int slice = 1; slice < kSlices && slice * length < k; ++slice) {
    total = Add(total, shared[slice * kOutputs + index]);
  }
  return total;
}

// A block takes 8 rows of W, a warp a slice of k.
template <class Element, int kBits, int kRowTiles>
BATON_KERNEL_RESIDENT(kRowsThreads, 2)
QuantizedRowsKernel(QuantizedMatMulLaunch launch) {
  constexpr int kOutputs = kRowTiles * kTileOutputs;
  const int row_tile = static_cast<int>(BlockIndex().x), column = row_tile * kTileRows;
  const int first_row = static_cast<int>(BlockIndex().y) * kRowTiles * kRowTile;
  SumSlice<Element, kBits, kRowTiles, 1>(launch, first_row, {row_tile});
  SyncThreads();
  for (int output = ThreadIndex(); output < kOutputs; output += kRowsThreads) {
    float total = FoldSlices<kOutputs>(launch.w.k, output);
    const int to_row = first_row + output / kTileRows, to = column + output % kTileRows;
    if (to_row >= launch.rows || to >= launch.w.n) continue;
    if (launch.bias != nullptr) total = Add(total, LoadGlobal(launch.bias + to));
    StoreGlobal(launch.out + to_row * launch.out_stride + to, total);
  }
}

// 8 rows of gate and the same of up.
template <class Element, int kBits, int kRowTiles>
BATON_KERNEL_RESIDENT(kRowsThreads, 2)
QuantizedSiluMulKernel(QuantizedMatMulSiluMulLaunch launch) {
  constexpr int kOutputs = kRowTiles * kTileOutputs;
  const int row_tile = static_cast<int>(BlockIndex().x), column = row_tile * kTileRows;
  const int first_row = static_cast<int>(BlockIndex().y) * kRowTiles * kRowTile;
  SumSlice<Element, kBits, kRowTiles, 2>(launch, first_row,
                                         {row_tile, row_tile + launch.w.n / (2 * kTileRows)});
  SyncThreads();
  // Two columns a thread: one access.
  const int output = ThreadIndex() * 2, row = first_row + output / kTileRows;
  static_assert(kOutputs <= kRowsThreads * 2);
  if (output >= kOutputs || row >= launch.rows) return;
  float gated[2];
  BATON_UNROLL for (int i = 0; i < 2; ++i) {
    gated[i] = SiluMul(FoldSlices<2 * kOutputs>(launch.w.k, output + i),
                       FoldSlices<2 * kOutputs>(launch.w.k, kOutputs + output + i));
  }
  uint16_t* out =
      static_cast<uint16_t*>(launch.out) + row * launch.out_stride + column + output % kTileRows;
  StoreGlobal(reinterpret_cast<uint32_t*>(out), Element::Pack(gated[0], gated[1]));
}

template <class Element, int kBits>
BATON_KERNEL(kThreads)
DequantizeKernel(DequantizeLaunch launch) {
  constexpr int kSteps = StepsATile(kBits);
  const int column_tile = static_cast<int>(BlockIndex().x) * kWarps + Warp();
  if (column_tile >= launch.w.column_tiles) return;
  const int row_tile = launch.first_row / kTileRows + static_cast<int>(BlockIndex().y);
  const int row = static_cast<int>(BlockIndex().y) * kTileRows + GroupOf(Lane());
  Fetched<kBits> fetched;
  Fetch<kBits>(launch.w, row_tile, column_tile, fetched);
  if (row >= launch.row_count) return;
  uint16_t* out = static_cast<uint16_t*>(launch.out) + int64_t{row} * launch.w.k;
  BATON_UNROLL for (int step = 0; step < kSteps; ++step) {
    const int k = (column_tile * kSteps + step) * kChunkedK + MemberOf(Lane()) * kChunkElements;
    if (k >= launch.w.k) continue;
    const Dequantizer<Element> group(fetched.groups[step], launch.w.bf16_scales);
    Store16(out + k, Dequantize<Element, kBits>(fetched.words, step, group));
  }
}

BATON_KERNEL(kThreads)
GatherColumnsKernel(GatherColumnsLaunch launch) {
  const int column = (static_cast<int>(BlockIndex().y) * kThreads + ThreadIndex()) * kChunkElements;
  if (column >= launch.cols) return;
  const auto* x = static_cast<const uint16_t*>(launch.x) + BlockIndex().x * launch.x_stride;
  const Vec16 orders[2] = {Load16(launch.order + column), Load16(launch.order + column + 4)};
  Vec16 out;
  BATON_UNROLL for (int i = 0; i < 4; ++i) {
    const Vec16& order = orders[i / 2];
    const uint32_t low = LoadGlobal(x + order.x[i % 2 * 2]);
    out.x[i] = low | static_cast<uint32_t>(LoadGlobal(x + order.x[i % 2 * 2 + 1])) << 16;
  }
  Store16(static_cast<uint16_t*>(launch.out) + int64_t{BlockIndex().x} * launch.cols + column, out);
}

unsigned Tiles(int size, int tile) { return static_cast<unsigned>((size + tile - 1) / tile); }

template <class Element, int kBits>
void Dispatch(const QuantizedMatMulLaunch& launch, Stream stream) {
  const auto run = [&](auto kernel, int row_tiles) {
    Launch(kernel, {Tiles(launch.w.n, kTileRows), Tiles(launch.rows, row_tiles * kRowTile), 1},
           kRowsThreads, RowsBytes(row_tiles, 1), stream, launch);
  };
  if (launch.rows <= kRowTile) {
    run(QuantizedRowsKernel<Element, kBits, 1>, 1);
  } else if (launch.rows <= 2 * kRowTile) {
    run(QuantizedRowsKernel<Element, kBits, 2>, 2);
  } else {
    run(QuantizedRowsKernel<Element, kBits, 4>, 4);
  }
}

template <class Element, int kBits>
void Dispatch(const QuantizedMatMulSiluMulLaunch& launch, Stream stream) {
  const auto run = [&](auto kernel, int row_tiles) {
    Launch(kernel, {Tiles(launch.w.n / 2, kTileRows), Tiles(launch.rows, row_tiles * kRowTile), 1},
           kRowsThreads, RowsBytes(row_tiles, 2), stream, launch);
  };
  if (launch.rows <= kRowTile) {
    run(QuantizedSiluMulKernel<Element, kBits, 1>, 1);
  } else {
    run(QuantizedSiluMulKernel<Element, kBits, 2>, 2);
  }
}

template <class Element, int kBits>
void Dispatch(const DequantizeLaunch& launch, Stream stream) {
  Launch(DequantizeKernel<Element, kBits>,
         {Tiles(launch.w.column_tiles, kWarps), Tiles(launch.row_count, kTileRows), 1}, kThreads, 0,
         stream, launch);
}

template <class LaunchArgs>
void DispatchAll(const LaunchArgs& launch, int bits, DType dtype, Stream stream) {
  if (dtype == DType::kF16) {
    bits == 4 ? Dispatch<Half, 4>(launch, stream) : Dispatch<Half, 8>(launch, stream);
  } else {
    bits == 4 ? Dispatch<BFloat16, 4>(launch, stream) : Dispatch<BFloat16, 8>(launch, stream);
  }
}

}  // namespace

void LaunchQuantizedMatMul(const QuantizedMatMulLaunch& launch, int bits, DType dtype,
                           Stream stream) {
  if (launch.rows == 0 || launch.w.n == 0) return;
  DispatchAll(launch, bits, dtype, stream);
}

void LaunchQuantizedMatMulSiluMul(const QuantizedMatMulSiluMulLaunch& launch, int bits, DType dtype,
                                  Stream stream) {
  if (launch.rows == 0 || launch.w.n == 0) return;
  DispatchAll(launch, bits, dtype, stream);
}

void LaunchDequantize(const DequantizeLaunch& launch, int bits, DType dtype, Stream stream) {
  if (launch.row_count == 0) return;
  DispatchAll(launch, bits, dtype, stream);
}

void LaunchGatherColumns(const GatherColumnsLaunch& launch, int rows, Stream stream) {
  if (rows == 0) return;
  Launch(GatherColumnsKernel,
         {static_cast<unsigned>(rows), Tiles(launch.cols, kThreads * kChunkElements), 1}, kThreads,
         0, stream, launch);
}

}  // namespace baton::backend::cuda
