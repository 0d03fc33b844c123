// Products of more than a few rows with weights of few bits: what a block of QuantizedTileKernel
// does.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_TILE_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_TILE_CUH_

#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul_core.cuh"
#include "common/backend/cuda/kernels/quantized.cuh"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// A warp takes 32 rows of W, as two pairs of row tiles, by all of the block's rows of x: it is the
// only one that dequantises them, to the registers that it multiplies from. x goes through shared
// memory, once for all of a block's warps, in a ring of stages of 64 k's.
inline constexpr int kPairs = 2;
inline constexpr int kWarpTiles = kPairs * kParts;           // of rows of W
inline constexpr int kWarpColumns = kWarpTiles * kTileRows;  // of the result
inline constexpr int kStageSteps = 2;
inline constexpr int kStageColumns = kStageSteps * kChunkedK;  // of x
inline constexpr int kTileWarps = 8, kTileThreads = kTileWarps * kWarpLanes;
inline constexpr int kTileColumns = kTileWarps * kWarpColumns;

// kXTiles: 4 or 8.
template <int kXTiles>
struct QuantizedTileShape {
  static constexpr int kRows = kXTiles * kXTile;
  static constexpr int kChunks = kStageColumns / kChunkElements;  // of a row in a stage
  static constexpr int kCopies = kRows * kChunks / kTileThreads;
  static constexpr int kStages = 3;
  static constexpr int kStageBytes = kRows * kChunks * 16;
  static constexpr int kTotals = kPairs * kXTiles;  // of a lane, four floats each
  // Dynamic shared memory: stages of x, and the lanes' sums of the slices before.
  static constexpr size_t kBytes = kStages * kStageBytes + kTileThreads * kTotals * 16;
};
static_assert(QuantizedTileShape<4>::kBytes <= kSharedBytesUnasked);
static_assert(QuantizedTileShape<8>::kBytes <= kMostSharedBytes);

// x in shared memory, and what a thread copies there.
template <int kXTiles>
class XStages {
 public:
  using Shape = QuantizedTileShape<kXTiles>;

  // For the columns [begin, end) of x.
  template <class Matrices>
  BATON_DEVICE XStages(const Matrices& launch, int first_row, int begin, int end) : end_(end) {
    const int row = ThreadIndex() / Shape::kChunks, chunk = ThreadIndex() % Shape::kChunks;
    k_ = begin + chunk * kChunkElements;
    to_ = RowsOperandChunk(row, chunk, Shape::kChunks) * 16;
    BATON_UNROLL for (int i = 0; i < Shape::kCopies; ++i) {
      // Rows that there are not are those of others, and not stored.
      from_[i] = XRow(launch, Least(first_row + row + i * kRowsACopy, launch.rows - 1)) + k_;
    }
    if (CopiesAreAsync()) {
      Fetch();
    } else {
      Load();
    }
    Fetch();
  }

  static BATON_DEVICE int Next(int stage) {
    return stage == (Shape::kStages - 1) * Shape::kStageBytes ? 0 : stage + Shape::kStageBytes;
  }

  // One more stage, zeros beyond the end; as Stages of matmul_tile.cuh.
  BATON_DEVICE void Fetch() {
    void* to[Shape::kCopies];
    const void* from[Shape::kCopies];
    bool valid[Shape::kCopies];
    BATON_UNROLL for (int i = 0; i < Shape::kCopies; ++i) {
      to[i] = SharedMemory() + fill_ + to_ + i * kRowsACopy * Shape::kChunks * 16;
      from[i] = from_[i];
      valid[i] = k_ < end_;
    }
    fill_ = Next(fill_);
    if (CopiesAreAsync()) {
      CopyAsync16(to, from, valid);
      CopyAsyncCommit();
      Advance();
    } else {
      BATON_UNROLL for (int i = 0; i < Shape::kCopies; ++i) Store16(to[i], held_[i]);
      Load();
    }
  }

 private:
  // A multiple of 2, so that a thread's chunks lie alike in all their rows.
  static constexpr int kRowsACopy = kTileThreads / Shape::kChunks;

  BATON_DEVICE void Load() {
    BATON_UNROLL for (int i = 0; i < Shape::kCopies; ++i) {
      held_[i] = Load16If(k_ < end_, from_[i]);
    }
    Advance();
  }
  BATON_DEVICE void Advance() {
    BATON_UNROLL for (int i = 0; i < Shape::kCopies; ++i) from_[i] += kStageColumns;
    k_ += kStageColumns;
  }

  const uint16_t* from_[Shape::kCopies];
  int k_;  // of the next load
  const int end_;
  int to_;                      // the thread's first place in a stage
  int fill_ = 0;                // where the next stage will be
  Vec16 held_[Shape::kCopies];  // without asynchronous copies: the stage that is stored next
};

// A warp's sums, of kXTiles * 8 rows of x for two pairs of row tiles of W.
template <class Element, int kBits, int kXTiles>
class QuantizedTile {
 public:
  using Shape = QuantizedTileShape<kXTiles>;

  // Slices [first_slice, first_slice + slices), added up in order; no slice is behind the end. All
  // threads of a block, with one first_row.
  template <class Matrices>
  BATON_DEVICE QuantizedTile(const Matrices& launch, int first_row,
                             const int (&row_tiles)[kPairs][kParts], int first_slice, int slices)
      : w_(launch.w),
        rows_{{{launch.w, row_tiles[0][0]}, {launch.w, row_tiles[0][1]}},
              {{launch.w, row_tiles[1][0]}, {launch.w, row_tiles[1][1]}}} {
    if (Shape::kBytes > kSharedBytesUnasked) NotBeforeSm80();
    const int length = SliceLength(launch.w.k), begin = first_slice * length;
    const int end = Least(begin + slices * length, launch.w.k);
    XStages<kXTiles> stages(launch, first_row, begin, end);
    const int first = begin / kTileK, last = (end + kTileK - 1) / kTileK;
    // Whole blocks agree.
    if (OneGroupATile<kBits>(w_)) {
      Multiply<1>(stages, first, last, length / kTileK);
    } else {
      Multiply<kSteps>(stages, first, last, length / kTileK);
    }
  }

  // The sums of tile `x_tile` of rows of x: element e has row e / 2 of the pair of W, and row e % 2
  // of the lane's two.
  BATON_DEVICE const float (&Sums(int pair, int x_tile) const)[4] { return sums_[pair][x_tile]; }
  static BATON_DEVICE int Row(int x_tile, int e) {
    return x_tile * kXTile + MemberOf(Lane()) * 2 + e % 2;
  }

 private:
  static constexpr int kSteps = StepsATile(kBits), kTileK = kSteps * kChunkedK;
  static_assert(kSteps % kStageSteps == 0 && kSliceUnit % kTileK == 0);
  using Groups = PartGroups<Element, kBits>;

  // Column tiles [first, last), of which a slice has `of_slice`.
  template <int kGroups>
  BATON_DEVICE void Multiply(XStages<kXTiles>& stages, int first, int last, int of_slice) {
    Fetched<kGroups> tiles[kPairs][kParts] = {}, next[kPairs][kParts] = {};
    const auto fetch = [&](Fetched<kGroups>(&to)[kPairs][kParts], int of) {
      BATON_UNROLL for (int pair = 0; pair < kPairs; ++pair) {
        BATON_UNROLL for (int part = 0; part < kParts; ++part) {
          FetchInto<kBits, TileKind::kAny>(of < last, w_, rows_[pair][part], of, to[pair][part]);
        }
      }
    };
    fetch(tiles, first);
    fetch(next, first + 1);
    int stage = 0, end_of_slice = first + of_slice;
    bool has_totals = false;
    BATON_NO_UNROLL for (int tile = first; tile < last; ++tile) {
      Groups by[kPairs] = {{tiles[0], 0, w_}, {tiles[1], 0, w_}};
      BATON_UNROLL for (int step = 0; step < kSteps; ++step) {
        if (step % kStageSteps == 0) {
          // Until the stage is there for all, and all have done with the one that is filled now.
          CopyAsyncWait<1>();
          SyncThreads();
          stages.Fetch();
        }
        BATON_UNROLL for (int pair = 0; pair < kPairs; ++pair) {
          if (kGroups > 1 && step > 0) by[pair] = Groups(tiles[pair], step, w_);
        }
        AddStep(tiles, by, step, stage);
        if (step % kStageSteps == kStageSteps - 1) stage = stages.Next(stage);
      }
      BATON_UNROLL for (int pair = 0; pair < kPairs; ++pair) {
        BATON_UNROLL for (int part = 0; part < kParts; ++part) tiles[pair][part] = next[pair][part];
      }
      fetch(next, tile + 2);
      if (tile + 1 == last || tile + 1 == end_of_slice) {
        AddTotals(has_totals, tile + 1 < last);
        has_totals = true;
        end_of_slice += of_slice;
      }
    }
    CopyAsyncWait<0>();
  }

  // Step `step` of the tiles, with the columns of x in the same place of `stage`.
  template <int kGroups>
  BATON_DEVICE void AddStep(const Fetched<kGroups> (&tiles)[kPairs][kParts],
                            const Groups (&by)[kPairs], int step, int stage) {
    Vec16 w[kPairs][kParts];
    BATON_UNROLL for (int pair = 0; pair < kPairs; ++pair) {
      BATON_UNROLL for (int part = 0; part < kParts; ++part) {
        w[pair][part] =
            Dequantize<Element, kBits>(tiles[pair][part].words, step, by[pair].of[part]);
      }
    }
    const int chunk = step % kStageSteps * (kChunkedK / kChunkElements) + MemberOf(Lane());
    const std::byte* const from =
        SharedMemory() + stage + RowsOperandChunk(GroupOf(Lane()), chunk, Shape::kChunks) * 16;
    BATON_UNROLL for (int i = 0; i < kXTiles; ++i) {
      const Vec16 x = LoadShared16(from + i * kXTile * Shape::kChunks * 16);
      BATON_UNROLL for (int product = 0; product < 2; ++product) {
        BATON_UNROLL for (int pair = 0; pair < kPairs; ++pair) {
          const uint32_t a[4] = {w[pair][0].x[product * 2], w[pair][1].x[product * 2],
                                 w[pair][0].x[product * 2 + 1], w[pair][1].x[product * 2 + 1]};
          Element::Mma16(sums_[pair][i], a, x.x[product * 2], x.x[product * 2 + 1]);
        }
      }
    }
  }

  // A slice ends: its sums are added to the totals, which wait for the next one in shared memory. A
  // lane's are its own.
  BATON_DEVICE void AddTotals(bool has_totals, bool more) {
    std::byte* const totals =
        SharedMemory() + Shape::kStages * Shape::kStageBytes + ThreadIndex() * 16;
    BATON_UNROLL for (int i = 0; i < Shape::kTotals; ++i) {
      float(&sums)[4] = sums_[i / kXTiles][i % kXTiles];
      std::byte* const total = totals + i * kTileThreads * 16;
      if (has_totals) {
        const Vec16 before = LoadShared16(total);
        BATON_UNROLL for (int e = 0; e < 4; ++e) sums[e] = Add(BitsFloat(before.x[e]), sums[e]);
      }
      if (more) {
        Store16(total, Pack4(sums));
        BATON_UNROLL for (int e = 0; e < 4; ++e) sums[e] = 0;
      }
    }
  }

  const QuantizedView& w_;
  const TileRow rows_[kPairs][kParts];
  float sums_[kPairs][kXTiles][4] = {};
};

// What a block multiplies: its columns, and slices [first_slice, first_slice + slices) of k.
struct TilePlace {
  int block_column, first_slice, slices;
  bool whole;

  BATON_DEVICE TilePlace(int whole_blocks, int sliced_blocks) {
    const int index = static_cast<int>(BlockIndex().y), behind = index - whole_blocks;
    whole = behind < 0;
    first_slice = whole ? 0 : behind / sliced_blocks;
    slices = whole ? kSlices : 1;
    block_column = whole ? index : whole_blocks + behind - first_slice * sliced_blocks;
  }
};

// Asks for the beginning of the warp's rows of W; before AwaitPrevious.
template <int kBits>
BATON_DEVICE void PrefetchPairs(const QuantizedView& w, const int (&row_tiles)[kPairs][kParts],
                                int first_slice) {
  const int tile = first_slice * SliceLength(w.k) / (StepsATile(kBits) * kChunkedK);
  BATON_UNROLL for (int pair = 0; pair < kPairs; ++pair) {
    BATON_UNROLL for (int part = 0; part < kParts; ++part) {
      PrefetchTiles(w, row_tiles[pair][part], tile);
    }
  }
}

// How a product is cut into blocks. The first columns' blocks take all slices, the others, which
// would leave multiprocessors idle, one; their sums are added up by another kernel.
struct TileGrid {
  int row_blocks;
  int whole_blocks;  // of columns, as the next one
  int sliced_blocks;
  int slices;   // of k
  int x_tiles;  // of a block, 4 or 8
};

// Elements between rows of the sums of slices.
BATON_INDEX_MAP int64_t SliceSumsStride(int columns) { return (int64_t{columns} + 1) / 2 * 2; }

// quantized_tile.cu.
void LaunchQuantizedTile(const QuantizedMatMulLaunch& launch, int bits, DType dtype,
                         const TileGrid& grid, Stream stream);
void LaunchQuantizedTile(const QuantizedMatMulGatedLaunch& launch, int bits, DType dtype,
                         const TileGrid& grid, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_TILE_CUH_
