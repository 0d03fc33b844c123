#include "benchmarks/gpu/bench_device.h"

#include <gtest/gtest.h>

#include <set>

#include "benchmarks/gpu/kernel_cases.h"

namespace baton::gpu_bench {
namespace {

TEST(BenchDeviceTest, GivesMemoryUntilThereIsNone) {
  Grid grid = Grid::Tiny();
  grid.slab_bytes = 4096;
  const auto device = BenchDevice::Open(grid, Mode::kMeasure);
  ASSERT_TRUE(device.ok()) << device.status();
  std::byte* const first = (*device)->Take(1);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ((*device)->Take(1), first + 256);
  EXPECT_EQ((*device)->Take(4096), nullptr);
  EXPECT_NE((*device)->Take(4096 - 512), nullptr);
  EXPECT_EQ((*device)->Take(1), nullptr);
  (*device)->Reset();
  EXPECT_EQ((*device)->Take(4096), first);
}

TEST(BenchDeviceTest, TurnsOutlastTheCacheWhereMemoryAllows) {
  const auto device = BenchDevice::Open(Grid::Tiny(), Mode::kMeasure);
  ASSERT_TRUE(device.ok()) << device.status();
  const auto l2 = static_cast<double>((*device)->properties().l2_bytes);
  const auto slab = static_cast<double>((*device)->slab_bytes());
  EXPECT_EQ((*device)->Turns(l2), 5);      // four others before it is its turn again
  EXPECT_EQ((*device)->Turns(8 * l2), 2);  // the other is larger than the cache
  EXPECT_EQ((*device)->Turns(slab / 2), 1);
  EXPECT_EQ((*device)->Turns(2 * slab), 1);
}

TEST(BenchDeviceTest, CountsEveryLaunchAndTimesItAlone) {
  Grid grid = Grid::Tiny();
  grid.rounds = 3;
  const auto device = BenchDevice::Open(grid, Mode::kMeasure);
  ASSERT_TRUE(device.ok()) << device.status();
  std::vector<int> turns;
  std::byte* const memory = (*device)->Take(1 << 20);
  const double seconds = (*device)->Seconds([&](int turn) {
    turns.push_back(turn);
    (*device)->Zero(memory, 1 << 20);
  });
  EXPECT_GT(seconds, 0);
  for (size_t i = 0; i < turns.size(); ++i) EXPECT_EQ(turns[i], static_cast<int>(i));
  EXPECT_GE(turns.size(), 3u + 1 + 3);  // rounds, the first, the trial
}

TEST(BenchDeviceTest, OnceLaunchesOnce) {
  const auto device = BenchDevice::Open(Grid::Tiny(), Mode::kOnce);
  ASSERT_TRUE(device.ok()) << device.status();
  int launches = 0;
  EXPECT_EQ((*device)->Seconds([&](int) { ++launches; }), 0);
  EXPECT_EQ(launches, 1);
}

TEST(BenchDeviceTest, ADryRunOnlyCounts) {
  const auto device = BenchDevice::Open(Grid::Full(size_t{14} << 30), Mode::kDry);
  ASSERT_TRUE(device.ok()) << device.status();
  std::byte* const memory = (*device)->Take(size_t{5} << 30);
  EXPECT_NE(memory, nullptr);
  EXPECT_EQ((*device)->Take(size_t{5} << 30), nullptr);
  (*device)->Zero(memory, 100);
  (*device)->Copy(memory, "x", 1);
  EXPECT_EQ((*device)->Seconds([](int) { FAIL(); }), 0);
}

TEST(BenchDeviceTest, ACaseIsWantedByWholeOrPart) {
  const auto device = BenchDevice::Open(Grid::Tiny(), Mode::kOnce);
  ASSERT_TRUE(device.ok()) << device.status();
  const Grid grid = Grid::Tiny();
  KernelBench bench = {**device, grid, "norm tiny rows 1 "};
  EXPECT_TRUE(bench.Wanted("norm", "tiny rows 1"));
  EXPECT_FALSE(bench.Wanted("norm", "tiny rows 16"));
  bench.filter = "";
  EXPECT_TRUE(bench.Wanted("norm", "tiny rows 16"));
}

}  // namespace
}  // namespace baton::gpu_bench
