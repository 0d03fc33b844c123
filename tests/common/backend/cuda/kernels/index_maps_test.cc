// The index maps, enumerated; the banks that the kernels' accesses to shared memory fall into; and
// what the launches ask for.
#include "common/backend/cuda/kernels/index_maps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {
namespace {

constexpr int kDims[] = {64, 128, 256};

TEST(IndexMapsTest, AFragmentTakesEveryKOnce) {
  std::set<int> taken;
  for (int product = 0; product < 2; ++product) {
    for (int column = 0; column < 16; ++column) {
      const int k = FragmentK(product, column);
      EXPECT_TRUE(k >= 0 && k < kChunkedK) << k;
      taken.insert(k);
      // The columns of a member's registers (PTX: 2 member + i % 2, + 8) are in the member's chunk,
      // at the halves of its 16 bytes that the registers are.
      const int member = column % 8 / 2, reg = product * 2 + column / 8;
      EXPECT_EQ(k / kChunkElements, member);
      EXPECT_EQ(k % kChunkElements, reg * 2 + column % 2);
    }
  }
  EXPECT_EQ(taken.size(), static_cast<size_t>(kChunkedK));
}

TEST(IndexMapsTest, OutputDimsAreEachInOnePlace) {
  std::set<int> taken;
  for (int i = 0; i < kOutputSpan / 8; ++i) {
    for (int column = 0; column < 8; ++column) {
      const int dim = OutputDim(i, column);
      EXPECT_TRUE(dim >= 0 && dim < kOutputSpan) << dim;
      // A lane's eight products are eight consecutive dims.
      EXPECT_EQ(dim, OutputDim(0, column) + i);
      taken.insert(dim);
    }
  }
  EXPECT_EQ(taken.size(), static_cast<size_t>(kOutputSpan));
}

TEST(IndexMapsTest, TwoTilesOfColumnsGiveALaneFourAdjacentOnes) {
  std::set<int> taken;
  for (int row = 0; row < 128; ++row) {
    const int member = row % 8 / 2;  // its lanes have columns 2 member and 2 member + 1 of a tile
    EXPECT_EQ(PairedColumn(row) / 4, row / 16 * 4 + member);
    taken.insert(PairedColumn(row));
  }
  EXPECT_EQ(taken.size(), 128u);
  EXPECT_EQ(*taken.rbegin(), 127);
}

TEST(IndexMapsTest, LanesArePtxGroupsAndMembers) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    EXPECT_EQ(GroupOf(lane), lane >> 2);
    EXPECT_EQ(MemberOf(lane), lane & 3);
  }
}

using Swizzle = int (*)(int row, int chunk, int chunks);
constexpr Swizzle kSwizzles[] = {RowsOperandChunk, ValuesOperandChunk};

TEST(IndexMapsTest, SwizzlesMoveChunksWithinTheirRow) {
  for (const Swizzle swizzle : kSwizzles) {
    for (int chunks = 8; chunks <= 32; chunks += 8) {
      for (int row = 0; row < 64; ++row) {
        std::set<int> taken;
        for (int chunk = 0; chunk < chunks; ++chunk) {
          const int at = swizzle(row, chunk, chunks);
          EXPECT_EQ(at / chunks, row);
          taken.insert(at);
        }
        EXPECT_EQ(taken.size(), static_cast<size_t>(chunks));
      }
    }
  }
}

// 32 banks of 4 bytes; accesses of 16 bytes are served eight lanes at a time. The cycles that a
// warp's access takes: four where the eight lanes of each lie in different banks.
int Cycles(const std::function<int(int lane)>& byte_of_lane) {
  int cycles = 0;
  for (int first = 0; first < kWarpLanes; first += 8) {
    std::array<std::set<int>, 8> places;  // of 16 bytes, by the four banks that hold them
    for (int lane = first; lane < first + 8; ++lane) {
      const int byte = byte_of_lane(lane);
      EXPECT_EQ(byte % 16, 0);
      places[static_cast<size_t>(byte / 16 % 8)].insert(byte);
    }
    size_t worst = 0;
    for (const auto& same_banks : places) worst = std::max(worst, same_banks.size());
    cycles += static_cast<int>(worst);
  }
  return cycles;
}

TEST(IndexMapsTest, TheModelOfBanksSeesConflicts) {
  EXPECT_EQ(Cycles([](int lane) { return lane * 16; }), 4);
  EXPECT_EQ(Cycles([](int) { return 16; }), 4);  // a broadcast
  EXPECT_EQ(Cycles([](int lane) { return lane * 32; }), 8);
  EXPECT_EQ(Cycles([](int lane) { return lane * 128; }), 32);
  // Rows of 128 bytes without a swizzle, as fragments of K read them.
  EXPECT_EQ(Cycles([](int lane) { return lane / 4 * 128 + lane % 4 * 16; }), 8);
}

// What Stage::K and V of the tile kernel rely on.
TEST(IndexMapsTest, SwizzlesRepeat) {
  for (int chunks = 8; chunks <= 32; chunks += 8) {
    for (int row = 0; row < 8; ++row) {
      for (int chunk = 0; chunk < 8; ++chunk) {
        for (int rows = 0; rows < 64; rows += 8) {
          for (int further = 0; chunk + further < chunks; further += 8) {
            for (const Swizzle swizzle : kSwizzles) {
              EXPECT_EQ(swizzle(row + rows, chunk + further, chunks),
                        swizzle(row, chunk, chunks) + rows * chunks + further);
            }
          }
        }
        for (const int further : {0, 2, 4, 6}) {
          EXPECT_EQ(ValuesOperandChunk(row, chunk ^ further, chunks),
                    ValuesOperandChunk(row, chunk, chunks) ^ further);
        }
      }
    }
  }
}

// A lane's registers of a product (PTX): rows group and group + 8 of its first columns, then of
// those 8 further.
TEST(IndexMapsTest, QueriesAreStagedAsFragments) {
  for (const int dim : kDims) {
    std::set<int> taken;
    for (int row = 0; row < kRowTile; ++row) {
      for (int k = 0; k < dim; k += 2) {
        const int chunk = k / kChunkElements;
        const int word = QueryWord(row, chunk, k % kChunkElements / 2);
        taken.insert(word);
        const int product = word / 4 / kWarpLanes, lane = word / 4 % kWarpLanes, reg = word % 4;
        EXPECT_EQ(row, GroupOf(lane) + reg % 2 * 8);
        EXPECT_EQ(
            k, product / 2 * kChunkedK + FragmentK(product % 2, MemberOf(lane) * 2 + reg / 2 * 8));
      }
    }
    EXPECT_EQ(taken.size(), static_cast<size_t>(kRowTile * dim / 2));
    EXPECT_EQ(*taken.rbegin(), kRowTile * dim / 2 - 1);
  }
}

TEST(IndexMapsTest, SumsOfPiecesAreHandedOverWithoutBankConflicts) {
  std::set<int> taken;
  for (int row = 0; row < kRowTile; ++row) {
    for (int chunk = 0; chunk < kOutputSpan / 4; ++chunk) taken.insert(SumsChunk(row, chunk));
  }
  EXPECT_EQ(taken.size(), static_cast<size_t>(kRowTile * kOutputSpan / 4));
  EXPECT_EQ(*taken.rbegin(), kRowTile * kOutputSpan / 4 - 1);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 8; i += 4) {
      for (int parity = 0; parity < 2; ++parity) {
        const auto written = [&](int lane) {
          const int dim = OutputDim(i, MemberOf(lane) * 2 + parity);
          return SumsChunk(GroupOf(lane) + half * 8, dim / 4) * 16;
        };
        EXPECT_EQ(Cycles(written), 4);
      }
    }
  }
  for (int first = 0; first < kRowTile; first += 4) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(
          Cycles([&](int lane) { return SumsChunk(first + lane / 8, lane % 8 * 2 + i) * 16; }), 4);
    }
  }
}

// The tile kernel's loads of K: lane (group, member) takes chunk 4 c + member of token 8 j + group.
TEST(IndexMapsTest, AttentionReadsKWithoutBankConflicts) {
  for (const int dim : kDims) {
    const int chunks = dim / kChunkElements;
    for (int j = 0; j < kPieceTokens / 8; ++j) {
      for (int c = 0; c < dim / kChunkedK; ++c) {
        EXPECT_EQ(Cycles([&](int lane) {
                    return RowsOperandChunk(j * 8 + GroupOf(lane), c * 4 + MemberOf(lane), chunks) *
                           16;
                  }),
                  4)
            << "dim " << dim << ", tokens from " << j * 8 << ", chunks from " << c * 4;
      }
    }
  }
}

// Its loads of V: lanes 8 matrix to 8 matrix + 7 name eight tokens' rows of one chunk.
TEST(IndexMapsTest, AttentionReadsVWithoutBankConflicts) {
  for (const int dim : kDims) {
    const int chunks = TileDims(dim, 2) / kChunkElements;
    for (int j = 0; j < kPieceTokens / 16; ++j) {
      for (int first = 0; first < chunks; first += 2) {
        EXPECT_EQ(Cycles([&](int lane) {
                    const int matrix = lane / 8, token = j * 16 + matrix % 2 * 8 + lane % 8;
                    return ValuesOperandChunk(token, first + matrix / 2, chunks) * 16;
                  }),
                  4)
            << "dim " << dim << ", tokens from " << j * 16 << ", chunks from " << first;
      }
    }
  }
}

// PiecePlaces: eight threads share a token, and a thread's tokens and chunks are a whole number of
// swizzle periods apart.
TEST(IndexMapsTest, AttentionsStagesRepeatFromOneOfAThreadsPlacesToTheNext) {
  for (const int dim : kDims) {
    for (const auto& [swizzle, width, warps] :
         {std::tuple(kSwizzles[0], dim, kAttentionWarps),
          std::tuple(kSwizzles[1], TileDims(dim, 1), kAttentionWarps),
          std::tuple(kSwizzles[1], TileDims(dim, 2), kAttentionWarps),
          // Warps with two row tiles are half as many.
          std::tuple(kSwizzles[0], dim, kAttentionWarps / 2),
          std::tuple(kSwizzles[1], TileDims(dim, 2), kAttentionWarps / 2)}) {
      const int threads = warps * kWarpLanes, apart = threads / 8;
      const int chunks = width / kChunkElements;
      std::set<int> taken;
      for (int thread = 0; thread < threads; ++thread) {
        for (int i = 0; i < kPieceTokens / apart; ++i) {
          for (int part = 0; part < chunks / 8; ++part) {
            const int first = swizzle(thread / 8, thread % 8, chunks);
            const int place = swizzle(thread / 8 + i * apart, thread % 8 + part * 8, chunks);
            ASSERT_EQ(place, first + i * apart * chunks + part * 8)
                << "dim " << dim << ", thread " << thread << ", token " << i << ", part " << part;
            taken.insert(place);
          }
        }
      }
      EXPECT_EQ(taken.size(), static_cast<size_t>(kPieceTokens * chunks)) << "dim " << dim;
    }
  }
}

// Eight lanes write chunks of one token.
TEST(IndexMapsTest, AttentionWritesItsStagesWithoutBankConflicts) {
  for (const int dim : kDims) {
    for (const auto& [swizzle, width] :
         {std::pair(kSwizzles[0], dim), std::pair(kSwizzles[1], TileDims(dim, 1)),
          std::pair(kSwizzles[1], TileDims(dim, 2))}) {
      const int chunks = width / kChunkElements;
      for (int token = 0; token < kPieceTokens; token += kWarpLanes / 8) {
        for (int part = 0; part < chunks; part += 8) {
          EXPECT_EQ(Cycles([&, swizzle = swizzle](int lane) {
                      return swizzle(token + lane / 8, part + lane % 8, chunks) * 16;
                    }),
                    4)
              << "dim " << dim << ", token " << token << ", chunks from " << part;
        }
      }
    }
  }
}

// The tile kernel's stages are rows of four chunks; its fragments are read as K's are.
TEST(IndexMapsTest, ProductsReadTheirStagesWithoutBankConflicts) {
  const int chunks = kChunkedK / kChunkElements;
  for (int row = 0; row < 128; row += 8) {
    EXPECT_EQ(
        Cycles([&](int lane) { return ((row + GroupOf(lane)) * chunks + MemberOf(lane)) * 16; }),
        4);
  }
}

// ---- Budgets -----------------------------------------------------------------------------------

// Two blocks fit a T4's multiprocessor: 64 KiB.
constexpr size_t kSharedBudget = 32 << 10;

class Launches final : public emulated::LaunchQueue {
 public:
  void Enqueue(const emulated::LaunchShape& shape, std::function<void()>) override {
    shapes.push_back(shape);
  }
  std::vector<emulated::LaunchShape> shapes;
  emulated::EmulatedStream stream = {.options = {}, .queue = this};
};

// No model that is served has heads beyond 128: one block of those is enough for a multiprocessor.
size_t SharedBudget(int dim) { return dim <= 128 ? kSharedBudget : size_t{48} << 10; }

TEST(IndexMapsTest, APieceOfKAndVIsWithinTheBudget) {
  for (const int dim : kDims) {
    const auto bytes =
        static_cast<size_t>(kPieceTokens * (dim + TileDims(dim, 1))) * sizeof(uint16_t);
    EXPECT_LE(bytes, SharedBudget(dim)) << dim;
    // Pieces never cross a split, and end with one.
    EXPECT_EQ(kSplitTokens % kPieceTokens, 0);
    EXPECT_EQ(kPieceTokens % 16, 0) << "P V takes 16 tokens a product";
    for (const int stages : {1, 2}) {
      EXPECT_EQ(TileDims(dim, stages) % kOutputSpan, 0);
      EXPECT_EQ(dim % TileDims(dim, stages), 0);
    }
  }
}

TEST(IndexMapsTest, LaunchesAskForNoMoreSharedMemoryThanTheBudget) {
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    const int dim = PaddedDim(head_dim);
    EXPECT_GE(dim, head_dim);
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      Launches launches;
      AttentionLaunch launch = {};
      launch.head_dim = head_dim;
      launch.kv_heads = 3;
      launch.group = 1;
      LaunchAttentionTile(launch, dtype, 5, &launches.stream);
      LaunchAttentionSplit(launch, dtype, 5, &launches.stream);
      ASSERT_EQ(launches.shapes.size(), 2u);
      for (const emulated::LaunchShape& shape : launches.shapes) {
        EXPECT_LE(shape.shared_bytes, SharedBudget(dim)) << head_dim;
        EXPECT_EQ(shape.threads, kAttentionWarps * kWarpLanes);
        EXPECT_EQ(shape.grid.x, 5u);
        EXPECT_EQ(shape.grid.y, 3u);
      }
      EXPECT_EQ(launches.shapes[0].grid.z, static_cast<unsigned>(dim / TileDims(dim, 1)));
      EXPECT_EQ(launches.shapes[1].grid.z, 1u);
      EXPECT_EQ(launches.shapes[0].shared_bytes,
                static_cast<size_t>(kPieceTokens * (dim + TileDims(dim, 1)) * 2));
    }
  }
  using enum MatMulShape;
  for (const auto& [matmul, capability] :
       {std::pair(kAuto, 75), std::pair(kNarrowRows, 75), std::pair(kWideRows, 75),
        std::pair(kSmallTile, 75), std::pair(kLargeTile, 75), std::pair(kLargeTile, 80)}) {
    Launches launches;
    launches.stream.options.compute_capability = capability;
    for (const int rows : {1, 8, 16, 32, 33, 300}) {
      for (const DType dtype : {DType::kF16, DType::kBF16}) {
        LaunchMatMul({.x = nullptr,
                      .x_stride = 64,
                      .w = nullptr,
                      .bias = nullptr,
                      .out = nullptr,
                      .out_stride = 65,
                      .rows = rows,
                      .n = 65,
                      .k = 64},
                     dtype, &launches.stream, matmul);
        LaunchMatMulGated({.x = nullptr,
                           .x_stride = 64,
                           .w = nullptr,
                           .out = nullptr,
                           .out_stride = 40,
                           .rows = rows,
                           .cols = 40,
                           .k = 64},
                          dtype, &launches.stream, matmul);
      }
    }
    EXPECT_EQ(launches.shapes.size(), 24u);
    for (const emulated::LaunchShape& shape : launches.shapes) {
      // An SM holds one block of 128 x 128: on a T4 with three stages, on later chips with four.
      EXPECT_LE(shape.shared_bytes, matmul != kLargeTile ? kSharedBudget
                                    : capability < 80    ? kSharedBytesUnasked
                                                         : kMostSharedBytes);
    }
  }
}

// The shared memory of a T4's SM has room for two of the split kernel's blocks, and for one of the
// tile kernel's.
TEST(IndexMapsTest, WideHeadsStayWithinAT4sSharedMemory) {
  Launches launches;
  AttentionLaunch launch = {};
  launch.head_dim = kWidestHead;
  launch.kv_heads = 3;
  launch.group = 1;
  LaunchAttentionSplit(launch, DType::kF16, 5, &launches.stream);
  LaunchAttentionTile(launch, DType::kF16, 5, &launches.stream);
  ASSERT_EQ(launches.shapes.size(), 2u);
  EXPECT_LE(launches.shapes[0].shared_bytes, kSharedBudget);
  EXPECT_LE(launches.shapes[1].shared_bytes, kSharedBytesUnasked);
  for (const emulated::LaunchShape& shape : launches.shapes) {
    EXPECT_EQ(shape.grid.x, 5u);
    EXPECT_EQ(shape.grid.y, 3u);
  }
  EXPECT_EQ(launches.shapes[0].grid.z, 1u);
}

}  // namespace
}  // namespace baton::backend::cuda
