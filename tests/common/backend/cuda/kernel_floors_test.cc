// What every kernel asks of global memory, counted on the emulated device: held to the floors of
// kernel_floors.h, and to the table in docs/cuda.md, which BATON_WRITE_DOCS=1 sets.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/common/backend/cuda/counted_launches.h"

namespace baton::backend::cuda {
namespace {

constexpr char kBegin[] = "<!-- backend_cuda_kernel_floors_test: begin -->";
constexpr char kEnd[] = "<!-- backend_cuda_kernel_floors_test: end -->";
constexpr double kGoal = 1.05;

class CudaKernelFloorsTest : public CountedLaunches {
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
  const std::vector<Counted> all = {
      Attention(2, 1, 1023, 2, 7, 64).counted,
      Attention(1, 1, 2047, 1, 4, 128).counted,
      Attention(1, 4, 508, 1, 4, 128).counted,
      WithReason(Attention(1, 320, 0, 1, 4, 128).counted,
                 "the sums of earlier splits, 4 bytes a packed row and dim"),
      MatMul(1, 256, 1024, MatMulShape::kRows),
      MatMul(16, 256, 1024, MatMulShape::kRows),
      MatMul(32, 256, 1024, MatMulShape::kRows),
      MatMul(128, 256, 512, MatMulShape::kTile),
      MatMulSiluMul(1, 128, 1024),
      MatMulSiluMul(16, 128, 1024),
      QuantizedMatMul(1, 256, 1024, 4),
      QuantizedMatMul(16, 256, 1024, 4),
      QuantizedMatMul(64, 256, 1024, 4),
      QuantizedMatMul(1, 256, 1024, 8),
      QuantizedMatMulSiluMul(1, 128, 1024, 4),
      QuantizedMatMulSiluMul(16, 128, 1024, 4),
      Dequantize(64, 1024, 4),
      Dequantize(64, 1024, 8),
      GatherColumns(4, 1024),
      Norm(4, 2048, false),
      Norm(4, 2048, true),
      RopeWrite(8, 14, 2, 64, false),
      RopeWrite(8, 16, 8, 128, true),
      Gather(4, 1024),
      SiluMul(4, 1024),
      AddBias(4, 1024),
      Sample(2, 8192, 0, 1),
      Sample(2, 8192, 1, 0.9f),
      CopyBlocks(3, 32'768),
      Stage(3, 16'384, true),
      Stage(3, 16'384, false),
  };
  for (const Counted& counted : all) {
    SCOPED_TRACE(absl::StrCat(counted.kernel, ", ", counted.shape));
    // Else the floor is none.
    EXPECT_GE(counted.accesses.read_bytes, counted.floor.read);
    EXPECT_GE(counted.accesses.written_bytes, counted.floor.written);
    if (counted.reason.empty()) {
      EXPECT_LE(counted.over_floor(), kGoal);
    } else {
      EXPECT_GT(counted.over_floor(), kGoal) << "no reason is needed";
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
      << "BATON_WRITE_DOCS=1 renews the table of docs/cuda.md";
}

// The group's heads and a tile's rows share each K and V that is fetched.
TEST_F(CudaKernelFloorsTest, SplitAttentionRequestsKAndVOnce) {
  for (const Attended& attended : {Attention(2, 1, 300, 2, 7, 64), Attention(1, 1, 600, 1, 16, 128),
                                   Attention(1, 4, 300, 2, 4, 64)}) {
    SCOPED_TRACE(attended.counted.shape);
    EXPECT_EQ(attended.counted.accesses.watched_bytes, attended.kv_bytes);
  }
}

// 64 packed rows share what the tile kernel fetches: as many times as there are tiles that see it.
TEST_F(CudaKernelFloorsTest, TileAttentionRequestsKAndVOnceATile) {
  const Attended attended = Attention(1, 32, 288, 1, 4, 64);
  EXPECT_EQ(attended.counted.accesses.watched_bytes, (304 + 320) * attended.kv_bytes / 320);
}

}  // namespace
}  // namespace baton::backend::cuda
