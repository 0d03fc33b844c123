#include "common/backend/cuda/runtime/device_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "common/backend/cuda/runtime/arena.h"
#include "common/base/error.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kGiB = size_t{1} << 30;

DeviceProperties DeviceOf(size_t total, size_t used) {
  DeviceProperties device;
  device.name = "a GPU";
  device.compute_capability = device.kernel_capability = 80;
  device.total_bytes = total;
  device.free_bytes = total - used;
  device.reserved_bytes = kReservedBytes;
  return device;
}

TEST(DeviceShareTest, IsOfTheWholeDeviceAndAtMostWhatIsFree) {
  EXPECT_EQ(ArenaBytes(100 * kGiB, 100 * kGiB, kGiB, 0.5), 50 * kGiB);
  EXPECT_EQ(ArenaBytes(100 * kGiB, 60 * kGiB, kGiB, 0.5), 50 * kGiB) << "the others' 40 are theirs";
  EXPECT_EQ(ArenaBytes(100 * kGiB, 40 * kGiB, kGiB, 0.5), 39 * kGiB);
  EXPECT_EQ(ArenaBytes(100 * kGiB, kGiB, kGiB, 0.5), 0u);
  EXPECT_EQ(ArenaBytes(100 * kGiB, kGiB - 1, kGiB, 0.5), 0u);
  EXPECT_EQ(ArenaBytes(1000, 1000, 0, 0.999),
            1000 * 999 / 1000 / Arena::kAlignment * Arena::kAlignment);
}

TEST(DeviceShareTest, NothingIsAnError) {
  BackendOptions options;
  options.gpu_memory_utilization = 0.5;
  const absl::Status status = ShareOf(DeviceOf(16 * kGiB, 16 * kGiB - 1000), options).status();
  EXPECT_EQ(ErrorReason(status), "DEVICE_MEMORY");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("16384 MiB"));
}

// Workers of one GPU: each gets its share, whether the others have theirs already or not yet.
TEST(DeviceShareTest, WorkersOfOneGpuGetTheSameInAnyOrder) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto any = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    const size_t total = static_cast<size_t>(any(16, 192)) * kGiB;
    const int workers = any(2, 6);
    BackendOptions options;
    options.gpu_memory_utilization = 0.9 / workers;
    const size_t alone = ShareOf(DeviceOf(total, 0), options)->arena_bytes;
    size_t used = 0;
    for (int i = 0; i < workers; ++i) {
      // What a worker sees that opens the device while some others have not allocated yet.
      const size_t seen = any(0, 1) == 0 ? used : used / 2;
      const size_t arena = ShareOf(DeviceOf(total, seen), options)->arena_bytes;
      ASSERT_EQ(arena, alone) << "worker " << i << " of " << workers << " on " << (total >> 30);
      used += arena;
    }
    ASSERT_LE(used, total - total / 10 + kGiB);
  }
}

}  // namespace
}  // namespace baton::backend::cuda
