#include "common/backend/cuda/matrices/matrix_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "common/base/error.h"
#include "tests/common/backend/cuda/delayed_runtime.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Small and large matrices take more than a slab holds: none overlaps another, and little more is
// pinned than they take.
TEST(PinnedMatrixMemoryTest, MatricesHaveMemoryOfTheirOwnAndLittleIsLeftUnused) {
  const uint64_t seed = baton::testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (const size_t most : {100 * kMiB, 7 * kMiB, kMiB, size_t{5000}}) {
    DelayedRuntime runtime(75, kMiB);
    PinnedMatrixMemory memory(runtime);
    EXPECT_TRUE(memory.on_host());
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::map<const std::byte*, size_t> taken;
    size_t sum = 0;
    while (sum < 300 * kMiB && buffers.size() < 5000) {
      const size_t size = most / 2 + random() % (most / 2);
      auto buffer = memory.Allocate(size);
      ASSERT_TRUE(buffer.ok()) << buffer.status();
      const auto* const start = static_cast<const std::byte*>((*buffer)->data());
      EXPECT_EQ((*buffer)->size_bytes(), size);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(start) % 256, uintptr_t{0});
      taken[start] = size;
      sum += size;
      buffers.push_back(*std::move(buffer));
    }
    const std::byte* end = nullptr;
    for (const auto& [start, size] : taken) {
      EXPECT_GE(start, end);
      end = start + size;
    }
    EXPECT_EQ(taken.size(), buffers.size());
    EXPECT_LE(memory.pinned_bytes(), sum * 107 / 100 + 64 * kMiB) << "matrices up to " << most;
  }
}

TEST(PinnedMatrixMemoryTest, FillWritesWhereItIsAsked) {
  DelayedRuntime runtime(75, kMiB);
  PinnedMatrixMemory memory(runtime);
  const auto buffer = memory.Allocate(1000).value();
  memory.Fill(buffer->data(), 1000, [](size_t offset, size_t size, void* to) {
    for (size_t i = 0; i < size; ++i) {
      static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(offset + i);
    }
  });
  for (size_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(static_cast<const uint8_t*>(buffer->data())[i], static_cast<uint8_t>(i));
  }
}

TEST(PinnedMatrixMemoryTest, WhatCannotBePinnedIsAnErrorThatNamesTheFlag) {
  DelayedRuntime runtime(75, kMiB);
  PinnedMatrixMemory memory(runtime);
  runtime.AllowPinned(100 * kMiB);
  ASSERT_TRUE(memory.Allocate(90 * kMiB).ok());
  const absl::Status status = memory.Allocate(20 * kMiB).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(status), "HOST_MEMORY");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("--experts-on-host: 94371840"));
  EXPECT_EQ(memory.Allocate(10).status().code(), absl::StatusCode::kResourceExhausted)
      << "a slab is larger";
}

}  // namespace
}  // namespace baton::backend::cuda
