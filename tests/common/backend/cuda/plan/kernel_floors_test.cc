// What every kernel asks of global memory, counted on the emulated device: held to the floors of
// kernel_floors.h, and to the table in docs/results/cuda.md, which BATON_WRITE_DOCS=1 sets.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/common/backend/cuda/counted_recurrence.h"

namespace baton::backend::cuda {
namespace {

constexpr char kBegin[] = "<!-- backend_cuda_kernel_floors_test: begin -->";
constexpr char kEnd[] = "<!-- backend_cuda_kernel_floors_test: end -->";
constexpr double kGoal = 1.05;
// Of kernels that keep something for themselves: more would be rows of it that are none.
constexpr double kGoalWithKept = 1.01;

class CudaKernelFloorsTest : public CountedRecurrence {
 protected:
  static Counted WithReason(Counted counted, std::string reason) {
    counted.reason = std::move(reason);
    return counted;
  }
};

std::string Table(const std::vector<Counted>& all) {
  std::string table = absl::StrCat(
      kBegin,
      "\n| kernel | shape | floor, bytes | counted / floor | requested / counted | why more |\n"
      "|---|---|---|---|---|---|\n");
  for (const Counted& counted : all) {
    absl::StrAppend(
        &table, "| ", counted.kernel, " | ", counted.shape, " | ", counted.floor.total(), " | ",
        absl::StrFormat("%.3f | %.2f", counted.over_floor(), counted.requested_over_distinct()),
        " | ", counted.reason, " |\n");
  }
  return table + kEnd;
}

struct ProbeLaunch {
  float* memory;  // at a multiple of 32 bytes
};
void Probe(ProbeLaunch launch) {
  auto* shared = reinterpret_cast<float*>(SharedMemory());
  Store16(shared + ThreadIndex() * 4, Load16(launch.memory));  // 32 lanes, one sector
  LoadGlobal(launch.memory + 8 * ThreadIndex());               // 32 sectors, one of them known
  CopyAsync16(shared + ThreadIndex() * 4, launch.memory + 4, ThreadIndex() == 0);
  CopyAsyncCommit();
  CopyAsyncWait<0>();
  Load16If(false, launch.memory + 1024);                            // nothing
  StoreGlobal(launch.memory + 512 + ThreadIndex(), 1.0f);           // 4 sectors
  LoadFresh(launch.memory + 512 + ThreadIndex());                   // which the cache has
  AtomicAdd(reinterpret_cast<unsigned*>(launch.memory + 768), 1u);  // read and written
}

TEST_F(CudaKernelFloorsTest, RequestsAreCountedByLaneAndSectorsOnce) {
  for (const int capability : {75, 80}) {
    Memory memory(4 * 2048);
    emulated::Accesses accesses;
    accesses.watched_begin = memory.As<float>() + 512;
    accesses.watched_end = memory.As<float>() + 516;
    emulated::SetOptions({.compute_capability = capability, .accesses = &accesses});
    for (int64_t launch = 1; launch <= 2; ++launch) {
      Launch(Probe, {1, 1, 1}, kWarpLanes, 512, nullptr, ProbeLaunch{memory.As<float>()});
      EXPECT_EQ(accesses.requested_read_bytes, launch * (32 * 16 + 32 * 4 + 16 + 32 * 4 + 32 * 4));
      EXPECT_EQ(accesses.requested_written_bytes, launch * (32 * 4 + 32 * 4));
      EXPECT_EQ(accesses.read_bytes, launch * (32 + 1) * 32);
      EXPECT_EQ(accesses.written_bytes, launch * (4 + 1) * 32);
      EXPECT_EQ(accesses.watched_bytes, launch * 2 * 4 * 4);
    }
  }
}

TEST_F(CudaKernelFloorsTest, EveryKernelMovesLittleMoreThanItsFloor) {
  const std::string split_sums = "the sums of splits, 4 bytes a row, head and dim, which L2 holds";
  std::vector<Counted> all = {
      Attention(2, 1, 1023, 2, 7, 64).counted,
      Attention(1, 1, 2047, 1, 4, 128).counted,
      WithReason(Attention(1, 4, 508, 1, 4, 128).counted, split_sums),
      WithReason(Attention(1, 320, 0, 1, 4, 128).counted,
                 "the sums of earlier splits, 4 bytes a packed row and dim"),
      WithReason(Attention(2, 1, 1023, 2, 7, 64, KvFormat::kInt8).counted, split_sums),
      WithReason(Attention(2, 1, 1023, 2, 7, 64, KvFormat::kInt4).counted, split_sums),
      WithReason(Attention(2, 1, 1023, 2, 7, 64, KvFormat::kFp8).counted, split_sums),
      Attention(1, 1, 2047, 1, 4, 128, KvFormat::kInt8).counted,
      WithReason(Attention(1, 1, 2047, 1, 4, 128, KvFormat::kInt4).counted, split_sums),
      WithReason(Attention(1, 320, 0, 1, 4, 128, KvFormat::kInt8).counted,
                 "the sums of earlier splits, 4 bytes a packed row and dim"),
      Attention(1, 1, 1023, 1, 8, 512).counted,
      WithReason(Attention(1, 1, 1023, 1, 8, 512, KvFormat::kInt8).counted, split_sums),
      Attention(1, 40, 0, 1, 8, 512).counted,
      MatMul(1, 256, 1024, MatMulShape::kRows),
      MatMul(16, 256, 1024, MatMulShape::kRows),
      MatMul(32, 256, 1024, MatMulShape::kRows),
      MatMul(128, 256, 512, MatMulShape::kSmallTile),
      MatMul(128, 256, 512, MatMulShape::kLargeTile),
      AddedMatMul(1, 256, 1024),
      AddedMatMul(16, 256, 1024),
      NormedMatMul(1, 256, 1024, /*gated=*/false),
      NormedMatMul(4, 256, 1024, /*gated=*/false),
      NormedMatMul(1, 256, 1024, /*gated=*/true),
      NormedMatMul(4, 256, 1024, /*gated=*/true),
      MatMulGated(1, 128, 1024),
      MatMulGated(16, 128, 1024),
      MatMulGated(128, 128, 512),
      QuantizedMatMul(1, 256, 1024, 4),
      QuantizedMatMul(16, 256, 1024, 4),
      QuantizedMatMul(64, 256, 1024, 4),
      QuantizedMatMul(1, 256, 1024, 8),
      QuantizedMatMul(1, 256, 1024, 4, /*paired=*/true),
      QuantizedMatMul(16, 256, 1024, 8, /*paired=*/true),
      QuantizedMatMulGated(1, 128, 1024, 4),
      QuantizedMatMulGated(16, 128, 1024, 4),
      Dequantize(64, 1024, 4),
      Dequantize(64, 1024, 8),
      GatherColumns(4, 1024),
      Router(1, 64, 1024),
      Router(16, 64, 1024),
      SumExperts(4, 8, 1024),
      FetchExperts(8, 32, 100'000, 50'016),
      Norm(4, 2048, false),
      Norm(4, 2048, true),
      Norm(4, 2048, true, true),
      RopeWrite(8, 14, 2, 64, false),
      RopeWrite(8, 16, 8, 128, true),
      RopeWrite(8, 8, 1, 512, true),
      RopeWrite(8, 14, 2, 64, false, KvFormat::kInt8),
      RopeWrite(8, 14, 2, 64, false, KvFormat::kInt4),
      RopeWrite(8, 16, 8, 128, true, KvFormat::kFp8),
      Gather(4, 1024),
      Gate(4, 1024),
      AddBias(4, 1024),
      ScaleLogits(4, 1024),
      Sample(2, 8192, 0, 1),
      WithReason(Sample(2, 8192, 1, 0.9f),
                 "three launches read the row and one the sums of its bins, which L2 holds"),
      CopyBlocks(3, 32'768),
      Stage(3, 16'384, true),
      Stage(3, 16'384, false),
  };
  // DeepSeek-V2-Lite's attention; two more of its heads make another row tile.
  const LatentFloorShape lite = {.heads = 16, .latent_dim = 512, .rotated = 64};
  LatentFloorShape int8 = lite, glm = lite;
  int8.format = KvFormat::kInt8;
  glm.heads = 20;
  all.push_back(LatentAttention(2, 1, 255, lite));
  all.push_back(WithReason(LatentAttention(2, 1, 1023, lite), split_sums));
  all.push_back(WithReason(LatentAttention(2, 1, 1023, int8), split_sums));
  all.push_back(WithReason(LatentAttention(2, 1, 1023, glm), split_sums));
  all.push_back(LatentAttention(1, 48, 0, lite));
  all.push_back(LatentWrite(8, 128, lite));
  all.push_back(LatentWrite(8, 128, int8));
  all.push_back(HeadMatMul(1, 16, 512, 128));
  all.push_back(HeadMatMul(16, 16, 128, 512));
  all.push_back(HeadMatMul(64, 4, 512, 128));
  // A few of Qwen3.5's heads.
  all.push_back(ShortConv(4, 1, 1024));
  all.push_back(ShortConv(1, 64, 1024));
  all.push_back(Heads(2, 1, 4, 128, /*delta=*/true));
  all.push_back(Heads(1, 64, 4, 128, /*delta=*/true));
  all.push_back(Heads(2, 1, 4, 128, /*delta=*/false));
  all.push_back(Heads(1, 64, 4, 128, /*delta=*/false));
  all.push_back(GatedNorm(4, 2048, 128));
  all.push_back(OutputGate(4, 2048));
  for (const auto& [rows, chosen, bits] : {std::tuple(1, 4, 16),
                                           {1, 4, 4},
                                           {8, 16, 16},
                                           {8, 16, 4},
                                           {1, 4, kFp4},
                                           {8, 16, kFp4},
                                           {64, 16, 16},
                                           {256, 16, 16}}) {
    for (Counted& counted : Experts(rows, 4, 32, chosen, 512, 256, bits)) {
      all.push_back(std::move(counted));
    }
  }
  for (const Counted& counted : all) {
    SCOPED_TRACE(absl::StrCat(counted.kernel, ", ", counted.shape));
    // Else the floor is none.
    EXPECT_GE(counted.accesses.read_bytes, counted.floor.read);
    EXPECT_GE(counted.accesses.written_bytes, counted.floor.written + counted.kept.written);
    if (counted.reason.empty()) {
      EXPECT_LE(counted.over_floor(), kGoal);
    } else {
      EXPECT_GT(counted.over_floor(), kGoal) << "no reason is needed";
    }
    if (counted.kept.total() > 0) {
      EXPECT_LE(counted.over_floor_and_kept(), kGoalWithKept);
    }
    EXPECT_GE(counted.requested_over_distinct(), 0.99);
  }
  const std::string expected = Table(all);
  std::ifstream in(BATON_CUDA_DOCS);
  std::string text(std::istreambuf_iterator<char>(in), {});
  in.close();
  const size_t begin = text.find(kBegin), end = text.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << BATON_CUDA_DOCS;
  const size_t length = end + sizeof(kEnd) - 1 - begin;
  if (std::getenv("BATON_WRITE_DOCS") != nullptr) {
    std::ofstream(BATON_CUDA_DOCS) << text.replace(begin, length, expected);
    return;
  }
  EXPECT_EQ(text.substr(begin, length), expected)
      << "BATON_WRITE_DOCS=1 renews the table of docs/results/cuda.md";
}

// Figures reckoned by hand.
TEST(CudaKernelFloorsArithmeticTest, AttentionReadsEachTokenOnceForAllHeadsOfAGroup) {
  // Qwen2.5-7B, 8 sequences of 2048 tokens: 2 · 2 bytes · 4 heads · 128 a token; q and out.
  std::vector<SequenceEntry> sequences(8, {0, 1, 2047, 0});
  EXPECT_EQ(AttentionFloor(sequences, 4, 7, 128, 0).read, 8 * (2048 * 2048 + 28 * 128 * 4));
  EXPECT_EQ(AttentionFloor(sequences, 4, 7, 128, 0).written, 8 * 28 * 128 * 2);
  EXPECT_EQ(AttentionOperations(sequences, 4, 7, 128, 0), 8.0 * 2048 * 28 * 128 * 4);
  // 128 codes, half a byte or one, and four bytes of scale and zero.
  EXPECT_EQ(AttentionFloor(sequences, 4, 7, 128, 0, KvFormat::kInt8).read,
            8 * (2048 * 2 * 4 * 132 + 28 * 128 * 4));
  EXPECT_EQ(AttentionFloor(sequences, 4, 7, 128, 0, KvFormat::kInt4).read,
            8 * (2048 * 2 * 4 * 68 + 28 * 128 * 4));
  sequences = {{0, 1, 2047, 0}};
  EXPECT_EQ(AttentionFloor(sequences, 4, 7, 128, 256).read, 256 * 2048 + 28 * 128 * 4);
  EXPECT_EQ(AttentionOperations(sequences, 4, 7, 128, 256), 256.0 * 28 * 128 * 4);
}

TEST(CudaKernelFloorsArithmeticTest, LatentsAreReadOnceForAllHeads) {
  // DeepSeek-V2-Lite, 8 sequences of 2048 tokens: 2 bytes of 576 a token; q of 576, out of 512.
  const std::vector<SequenceEntry> sequences(8, {0, 1, 2047, 0});
  LatentFloorShape shape = {.heads = 16, .latent_dim = 512, .rotated = 64};
  EXPECT_EQ(LatentAttentionFloor(sequences, shape).read, 8 * (2048 * 1152 + 16 * 576 * 4));
  EXPECT_EQ(LatentAttentionFloor(sequences, shape).written, 8 * 16 * 512 * 2);
  EXPECT_EQ(LatentAttentionOperations(sequences, shape), 8.0 * 2048 * 16 * 2 * (576 + 512));
  shape.format = KvFormat::kInt8;
  EXPECT_EQ(LatentAttentionFloor(sequences, shape).read, 8 * (2048 * 580 + 16 * 576 * 4));
}

TEST(CudaKernelFloorsArithmeticTest, CausalRowsSeeThoseBeforeThem) {
  std::vector<SequenceEntry> sequences = {{0, 3, 10, 0}, {}};
  EXPECT_EQ(AttentionFloor(sequences, 1, 1, 8, 0).total(), 2 * 2 * 8 * 13 + (4 + 2) * 3 * 8);
  EXPECT_EQ(AttentionOperations(sequences, 1, 1, 8, 0), 4.0 * 8 * (11 + 12 + 13));
  EXPECT_EQ(AttentionOperations(sequences, 1, 1, 8, 12), 4.0 * 8 * (11 + 12 + 12));
  EXPECT_EQ(AttentionOperations(sequences, 1, 1, 8, 5), 4.0 * 8 * (5 + 5 + 5));
  EXPECT_EQ(AttentionOperations(sequences, 1, 1, 8, 99), 4.0 * 8 * (11 + 12 + 13));
}

TEST(CudaKernelFloorsArithmeticTest, Products) {
  EXPECT_EQ(MatMulFloor(2, 100, 10, false).total(), 2 * 100 * 10 + 2 * 2 * 10 + 4 * 2 * 100);
  EXPECT_EQ(NormedMatMulFloor(2, 100, 10, false).total(),
            2 * 100 * 10 + 4 * 2 * 10 + 4 * 10 + 4 * 2 * 100);
  EXPECT_EQ(NormedMatMulGatedFloor(2, 50, 10).total(),
            2 * 100 * 10 + 4 * 2 * 10 + 4 * 10 + 2 * 2 * 50);
  EXPECT_EQ(AddedMatMulFloor(2, 100, 10, false).total(),
            2 * 100 * 10 + 2 * 2 * 10 + 2 * 4 * 2 * 100);
  EXPECT_EQ(MatMulOperations(2, 100, 10), 2 * 2 * 100 * 10);
  EXPECT_EQ(MatMulGatedFloor(2, 50, 10).total(), 2 * 100 * 10 + 2 * 2 * 10 + 2 * 2 * 50);
  // docs/design/cuda.md: gate and up of Qwen2.5-7B are 72.1 MB, their bits and four bytes a group.
  const int64_t weights = 37888 * 3584 / 2 + 37888 * 28 * 4;
  EXPECT_NEAR(static_cast<double>(weights) / 1e6, 72.1, 0.1);
  EXPECT_EQ(QuantizedMatMulFloor(1, 37888, 3584, 4, 128, false).total(),
            weights + 2 * 3584 + 4 * 37888);
  EXPECT_EQ(QuantizedMatMulGatedFloor(1, 18944, 3584, 4, 128).total(),
            weights + 2 * 3584 + 2 * 18944);
}

TEST(CudaKernelFloorsArithmeticTest, ExpertsThatAreChosenAreReadOnce) {
  // Qwen3-30B-A3B, one token: 8 experts of 2048 to 2 x 768, which read the same row.
  EXPECT_EQ(ExpertMatMulGatedFloor({8, 1, 8, 1536, 2048}).total(),
            8 * 1536 * 2048 * 2 + 2048 * 2 + 8 * 768 * 2);
  EXPECT_EQ(ExpertMatMulFloor({8, 8, 8, 2048, 768}).total(),
            8 * 2048 * 768 * 2 + 8 * 768 * 2 + 8 * 2048 * 4);
  // Half a byte a value and four bytes a group of 128.
  EXPECT_EQ(ExpertMatMulFloor({8, 8, 8, 2048, 768, 4, 128}).read,
            8 * 2048 * (768 / 2 + 6 * 4) + 8 * 768 * 2);
  EXPECT_EQ(RouterFloor(2, 128, 2048).total(), 2 * 2048 * 2 + 128 * 2048 * 4 + 2 * 128 * 4);
  EXPECT_EQ(SumExpertsFloor(2, 8, 2048).total(), 2 * 8 * 2048 * 4 + 2 * 8 * 4 + 2 * 2048 * 4);
}

TEST(CudaKernelFloorsArithmeticTest, StatesCrossOnceASequence) {
  // 3 states of 2 lanes by 5, and 7 rows of 11 floats.
  const MovedBytes heads = HeadsFloor(3, 7, 2, 5, 11);
  EXPECT_EQ(heads.read, 4 * (30 + 77));
  EXPECT_EQ(heads.written, 4 * (30 + 14));
  const MovedBytes conv = ShortConvFloor(3, 7, 10, 4, 2);
  EXPECT_EQ(conv.read, 4 * (90 + 70 + 40));
  EXPECT_EQ(conv.written, 4 * 90 + 2 * 70);
  EXPECT_EQ(GatedNormFloor(2, 8, 4).total(), 4 * (32 + 4) + 2 * 16);
  EXPECT_EQ(OutputGateFloor(2, 8).total(), 16 * 8);
}

TEST(CudaKernelFloorsArithmeticTest, Passes) {
  EXPECT_EQ(NormFloor(3, 8, false, 2).total(), 3 * (4 * 8 + 2 * 8) + 4 * 8);
  EXPECT_EQ(NormFloor(3, 8, true, 2).total(), 3 * (12 * 8 + 2 * 8) + 4 * 8);
  EXPECT_EQ(NormFloor(3, 8, true, 2, 2).total(), 3 * (12 * 8 + 2 * 8) + 2 * 4 * 8);
  EXPECT_EQ(ScaleLogitsFloor(3, 9).total(), 3 * 9 * 8);
  EXPECT_EQ(RopeWriteFloor(5, 14, 2, 64, 32, 5, 0).total(),
            5 * (8 * 14 + 12 * 2) * 64 + 5 * 32 * 8);
  EXPECT_EQ(RopeWriteFloor(5, 14, 2, 64, 32, 5, 0, KvFormat::kInt8).total(),
            5 * (8 * 14 * 64 + 8 * 2 * 64 + 2 * 2 * 68) + 5 * 32 * 8);
  EXPECT_EQ(GatherFloor(3, 8, 3, 2).total(), 3 * (2 + 4) * 8);
  EXPECT_EQ(GateFloor(3, 8, 2).total(), 3 * (8 * 8 + 2 * 8));
  EXPECT_EQ(SampleFloor(32, 151936).total(), 32 * 4 * 151936);
  EXPECT_EQ(CopyFloor(10).total(), 20);
}

// The group's heads and a tile's rows share each K and V that is fetched. What splits lack is
// requested all the same, in the tokens' blocks: no other sector is read.
TEST_F(CudaKernelFloorsTest, SplitAttentionRequestsKAndVOnce) {
  const std::pair<Attended, int> cases[] = {{Attention(2, 1, 300, 2, 7, 64), 301},
                                            {Attention(1, 1, 600, 1, 16, 128), 601},
                                            {Attention(1, 4, 300, 2, 4, 64), 304},
                                            {Attention(1, 1, 511, 2, 7, 64), 512},
                                            {Attention(1, 1, 600, 1, 4, 256), 601}};
  for (const auto& [attended, tokens] : cases) {
    SCOPED_TRACE(attended.counted.shape);
    const int requested = (tokens + kSplitTokens - 1) / kSplitTokens * kSplitTokens;
    EXPECT_EQ(attended.counted.accesses.watched_bytes, attended.kv_bytes / tokens * requested);
  }
}

// 64 packed rows share what the tile kernel fetches: as many times as there are tiles that see it.
TEST_F(CudaKernelFloorsTest, TileAttentionRequestsKAndVOnceATile) {
  const Attended attended = Attention(1, 32, 288, 1, 4, 64);
  EXPECT_EQ(attended.counted.accesses.watched_bytes, (304 + 320) * attended.kv_bytes / 320);
}

}  // namespace
}  // namespace baton::backend::cuda
