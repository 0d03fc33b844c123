// The machine of fibers ends the process where a kernel breaks a rule of the dialect.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {
namespace {

struct Args {
  Vec16* memory;
  int value;
};

BATON_KERNEL(32) Reads(Args args) {
  const Vec16 v = Load16(args.memory + ThreadIndex());
  Store16(args.memory + 32 + ThreadIndex(), v);
}
BATON_KERNEL(32) WritesWhatItRead(Args args) {
  Vec16 v = Load16(args.memory);
  v.x[0] += 1;
  SyncWarp();
  if (ThreadIndex() == 0) Store16(args.memory, v);
}
BATON_KERNEL(32) WritesBesideWhatItRead(Args args) {
  const uint32_t v = Load4(args.memory);
  SyncWarp();
  if (ThreadIndex() == 0) StoreGlobal(reinterpret_cast<uint32_t*>(args.memory) + 1, v + 1);
}
BATON_KERNEL(32) WritesTheFourBytesThatItRead(Args args) {
  const uint32_t v = Load4(args.memory);
  SyncWarp();
  if (ThreadIndex() == 0) StoreGlobal(reinterpret_cast<uint32_t*>(args.memory), v + 1);
}
BATON_KERNEL(32) ReadsWhatItWrote(Args args) {
  if (ThreadIndex() == 0) {
    Vec16 v = LoadFresh16(args.memory);  // allowed: not the read-only path
    v.x[0] += 1;
    Store16(args.memory, v);
  }
  SyncWarp();
  Store16(args.memory + 1 + ThreadIndex(), LoadFresh16(args.memory));
}
BATON_KERNEL(32) IsOffByFour(Args args) {
  Load16(reinterpret_cast<const std::byte*>(args.memory) + args.value);
}
BATON_KERNEL(32) StoresOffByFour(Args args) {
  Store16(reinterpret_cast<std::byte*>(args.memory) + args.value, Vec16{});
}
BATON_KERNEL(32) LeavesACopy(Args args) {
  CopyAsync16(SharedMemory() + ThreadIndex() * 16, args.memory, true);
  CopyAsyncCommit();
}
BATON_KERNEL(32) LeavesOutALane(Args args) {
  if (ThreadIndex() != 5) SyncWarp();
}
BATON_KERNEL(32) ReadsACopyTooSoon(Args args) {
  CopyAsync16(SharedMemory() + ThreadIndex() * 16, args.memory + ThreadIndex(), true);
  CopyAsyncCommit();
  Store16(args.memory + 32 + ThreadIndex(), LoadShared16(SharedMemory() + ThreadIndex() * 16));
  CopyAsyncWait<0>();
}

class CudaEmulatedTest : public ::testing::Test {
 protected:
  void TearDown() override { emulated::SetOptions({}); }
  void Run(void (*kernel)(Args), int value = 0) {
    Launch(kernel, {}, 32, 32 * 16, nullptr, Args{memory_.data(), value});
  }
  std::vector<Vec16> memory_ = std::vector<Vec16>(64, Vec16{7, 7, 7, 7});
};
using CudaEmulatedDeathTest = CudaEmulatedTest;

TEST_F(CudaEmulatedTest, WhatKeepsTheRulesRuns) {
  for (const int capability : {75, 80}) {
    emulated::SetOptions({.compute_capability = capability, .seed = 5});
    Run(Reads);
    Run(ReadsWhatItWrote);
    Run(Reads);  // what an earlier launch read may have been written since
  }
  EXPECT_EQ(memory_[1].x[0], 9u);
}

TEST_F(CudaEmulatedDeathTest, TheReadOnlyPathReadsNothingThatIsWritten) {
  EXPECT_DEATH(Run(WritesWhatItRead), "Load16 from memory that the launch writes");
  EXPECT_DEATH(Run(WritesTheFourBytesThatItRead), "Load4 from memory that the launch writes");
  Run(WritesBesideWhatItRead);
}

TEST_F(CudaEmulatedDeathTest, SixteenBytesAreAligned) {
  EXPECT_DEATH(Run(IsOffByFour, 4), "16 bytes at");
  EXPECT_DEATH(Run(StoresOffByFour, 8), "16 bytes at");
  Run(IsOffByFour, 16);
}

TEST_F(CudaEmulatedDeathTest, CopiesAreWaitedFor) {
  EXPECT_DEATH(Run(LeavesACopy), "without waiting for its copies");
  emulated::SetOptions({.compute_capability = 75});
  Run(LeavesACopy);  // there it is a load
}

TEST_F(CudaEmulatedDeathTest, AllLanesOfAWarpMeet) {
  EXPECT_DEATH(Run(LeavesOutALane), "the kernel hangs");
}

TEST_F(CudaEmulatedTest, ACopyIsNotThereBeforeItsWait) {
  Run(ReadsACopyTooSoon);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    EXPECT_EQ(memory_[static_cast<size_t>(32 + lane)].x[0], ~0u) << lane;
  }
}

}  // namespace
}  // namespace baton::backend::cuda
