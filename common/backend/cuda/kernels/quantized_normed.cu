#include <algorithm>

#include "common/backend/cuda/kernels/normed_rows.cuh"
#include "common/backend/cuda/kernels/quantized.cuh"
#include "common/backend/cuda/kernels/quantized_normed.h"
#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kSumsBytes = RowsBytes(1);

// Does what XInMemory does, for the rows that the block has normed.
class NormedXTile {
 public:
  template <class Matrices>
  BATON_DEVICE NormedXTile(const Matrices& launch, [[maybe_unused]] int first_row)
      : x_(NormedX<kSumsBytes>::Row(Least(GroupOf(Lane()), launch.rows - 1), launch.w.k) +
           MemberOf(Lane()) * kChunkElements) {}
  BATON_DEVICE void Keep() {}
  struct Tile {
    const uint16_t* from;
    BATON_DEVICE Vec16 At(int, int step) const { return LoadShared16(from + step * kChunkedK); }
  };
  BATON_DEVICE Tile From(int column) const { return {x_ + column}; }
  BATON_DEVICE Vec16 AtIf(bool valid, int, int k) const {
    return valid ? LoadShared16(x_ + k) : Vec16{};
  }

 private:
  const uint16_t* x_;
};

// Norms the rows, then multiplies every Grid().x-th of `sets` of 16 rows of W. row_tiles(set): the
// two that a block takes. store(set): of the sums in shared memory; the threads together.
template <class Element, int kBits, class Matrices, class RowTiles, class Store>
BATON_DEVICE void MultiplySets(const Matrices& launch, int sets, const RowTiles& row_tiles,
                               const Store& store) {
  int set = static_cast<int>(BlockIndex().x);
  int tiles[kParts];
  row_tiles(set, tiles);
  PrefetchSlices<kBits>(launch.w, tiles);
  AwaitPrevious();
  StageNormed<Element, kSumsBytes>(launch.input, launch.rows, launch.w.k);
  BATON_NO_UNROLL for (; set < sets; set += static_cast<int>(Grid().x)) {
    int next[kParts];
    row_tiles(set + static_cast<int>(Grid().x), next);
    // In L2 they are nearer. Whole blocks agree.
    if (set + static_cast<int>(Grid().x) < sets) PrefetchSlices<kBits>(launch.w, next);
    row_tiles(set, tiles);
    SumSlices<Element, kBits, 1, NormedXTile>(launch, 0, tiles);
    store(set);
    SyncThreads();  // the sums' place is the next set's
  }
}

template <class Element, int kBits>
BATON_KERNEL_RESIDENT(kRowsThreads, kResidentRows)
QuantizedNormedRowsKernel(QuantizedNormedLaunch launch) {
  const int last_row_tile = (launch.w.n - 1) / kTileRows;
  MultiplySets<Element, kBits>(
      launch, last_row_tile / kParts + 1,
      [&](int set, int(&tiles)[kParts]) {
        tiles[0] = set * kParts;
        tiles[1] = Least(set * kParts + 1, last_row_tile);
      },
      [&](int set) {
        constexpr int kColumns = kParts * kTileRows;
        for (int output = ThreadIndex(); output < kTileOutputs; output += kRowsThreads) {
          const int row = output / kColumns, column = set * kColumns + output % kColumns;
          if (row >= launch.rows || column >= launch.w.n) continue;
          StoreGlobal(launch.out + row * launch.out_stride + column,
                      Biased(launch.bias, column,
                             FoldSlices<1>(launch.w.k, row, output % kColumns)));
        }
      });
}

template <class Element, int kBits>
BATON_KERNEL_RESIDENT(kRowsThreads, kResidentRows)
QuantizedNormedGatedKernel(QuantizedNormedGatedLaunch launch) {
  const int row_tiles = launch.w.n / (2 * kTileRows);
  MultiplySets<Element, kBits>(
      launch, row_tiles,
      [&](int set, int(&tiles)[kParts]) {
        tiles[0] = set;
        tiles[1] = set + row_tiles;
      },
      [&](int set) { StoreGatedSlices<Element, 1>(launch, 0, set * kTileRows); });
}

template <class AnyLaunch>
void LaunchSets(void (*kernel)(AnyLaunch), const AnyLaunch& launch, int sets, Stream stream) {
  const int at_once = kResidentRows * Multiprocessors();
  Launch(kernel, {static_cast<unsigned>(std::min(sets, at_once)), 1, 1}, kRowsThreads,
         NormedBytes(kSumsBytes, launch.rows, launch.w.k), stream, launch);
}
template <class Element, int kBits>
void LaunchFor(const QuantizedNormedLaunch& launch, Stream stream) {
  LaunchSets(QuantizedNormedRowsKernel<Element, kBits>, launch,
             (launch.w.n + kParts * kTileRows - 1) / (kParts * kTileRows), stream);
}
template <class Element, int kBits>
void LaunchFor(const QuantizedNormedGatedLaunch& launch, Stream stream) {
  LaunchSets(QuantizedNormedGatedKernel<Element, kBits>, launch, launch.w.n / (2 * kTileRows),
             stream);
}

template <class Element, class AnyLaunch>
void Dispatch(const AnyLaunch& launch, int bits, Stream stream) {
  BATON_CHECK(bits == 4 || bits == 8) << bits;
  if (bits == 8) return LaunchFor<Element, 8>(launch, stream);
  LaunchFor<Element, 4>(launch, stream);
}

template <class AnyLaunch>
void DispatchAll(const AnyLaunch& launch, int bits, DType dtype, Stream stream) {
  if (launch.rows == 0 || launch.w.n == 0) return;
  BATON_CHECK(NormsInProduct(launch.rows, launch.w.k)) << launch.rows << " rows of " << launch.w.k;
  if (dtype == DType::kF16) {
    Dispatch<Half>(launch, bits, stream);
  } else {
    Dispatch<BFloat16>(launch, bits, stream);
  }
}

}  // namespace

void LaunchQuantizedNormed(const QuantizedNormedLaunch& launch, int bits, DType dtype,
                           Stream stream) {
  DispatchAll(launch, bits, dtype, stream);
}

void LaunchQuantizedNormedGated(const QuantizedNormedGatedLaunch& launch, int bits, DType dtype,
                                Stream stream) {
  DispatchAll(launch, bits, dtype, stream);
}

}  // namespace baton::backend::cuda
