// The emulated device runs blocks, warps and copies as CUDA says, and catches kernels that break
// the rules of the dialect. Its numbers and products: emulated_arithmetic_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "common/backend/cuda/simt/simt.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

void RunGrid(GridSize grid, int threads, size_t shared_bytes, std::function<void()> kernel) {
  emulated::RunGrid({grid, threads, shared_bytes}, nullptr, std::move(kernel));
}

class EmulatedMachineTest : public ::testing::Test {
 protected:
  EmulatedMachineTest() { std::printf("seed %llu\n", static_cast<unsigned long long>(seed_)); }
  void TearDown() override { emulated::SetOptions({}); }
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
};

// ---- What lanes do together --------------------------------------------------------------------

TEST_F(EmulatedMachineTest, ShufflesTakeTheNamedLanesValue) {
  for (int mask = 0; mask < kWarpLanes; ++mask) {
    emulated::SetOptions({.seed = random_()});
    int wrong = 0;
    RunGrid({2, 1, 1}, 3 * kWarpLanes, 0, [&] {
      const auto value = [](int lane) { return uint64_t{1} << 40 | lane << 8 | Warp(); };
      const uint64_t by_mask = ShuffleXor(value(Lane()), mask);
      const uint64_t same = Shuffle(value(Lane()), mask);
      // Each lane may name another; beyond the warp it wraps around.
      const uint64_t scattered = Shuffle(value(Lane()), Lane() * 7 + mask);
      const float real = ShuffleXor(static_cast<float>(Lane()) + 0.5f, mask);
      wrong += by_mask != value(Lane() ^ mask) || same != value(mask) ||
               scattered != value((Lane() * 7 + mask) % kWarpLanes) ||
               real != static_cast<float>(Lane() ^ mask) + 0.5f;
    });
    EXPECT_EQ(wrong, 0) << "mask " << mask;
  }
}

TEST_F(EmulatedMachineTest, SumsAreTheSameInEveryThreadAndUnderEverySeed) {
  for (int warps = 1; warps <= 32; ++warps) {
    std::vector<float> values(static_cast<size_t>(warps * kWarpLanes));
    for (float& value : values) value = std::ldexp(static_cast<float>(Int(-999, 999)), Int(-9, 9));
    // The butterfly by hand: in float, the order shows.
    float expected = 0;
    for (int warp = 0; warp < warps; ++warp) {
      std::vector<float> lanes(values.begin() + warp * kWarpLanes,
                               values.begin() + (warp + 1) * kWarpLanes);
      for (size_t mask = 16; mask > 0; mask /= 2) {
        std::vector<float> next = lanes;
        for (size_t lane = 0; lane < lanes.size(); ++lane) next[lane] += lanes[lane ^ mask];
        lanes = next;
      }
      expected += lanes[0];
    }
    for (int round = 0; round < 3; ++round) {
      emulated::SetOptions({.seed = random_()});
      int wrong = 0;
      RunGrid({}, warps * kWarpLanes, static_cast<size_t>(warps) * sizeof(float), [&] {
        const float sum = BlockSum(values[static_cast<size_t>(ThreadIndex())], warps,
                                   reinterpret_cast<float*>(SharedMemory()));
        wrong += FloatBits(sum) != FloatBits(expected);
      });
      EXPECT_EQ(wrong, 0) << warps << " warps";
    }
  }
}

TEST_F(EmulatedMachineTest, ABarrierHoldsAllAndDoesNotWaitForThreadsThatEnded) {
  for (int round = 0; round < 20; ++round) {
    emulated::SetOptions({.seed = random_()});
    const int warps = Int(2, 8), leaves = Int(1, warps - 1);
    int wrong = 0;
    RunGrid({3, 1, 1}, warps * kWarpLanes, 1024 * sizeof(int), [&] {
      auto* shared = reinterpret_cast<int*>(SharedMemory());
      if (ThreadIndex() == 0) shared[0] = 0;
      SyncThreads();
      if (Warp() < leaves) return;
      for (int step = 1; step <= 4; ++step) {
        AtomicAdd(shared, 1);
        SyncThreads();
        wrong += shared[0] != step * (warps - leaves) * kWarpLanes;
        SyncThreads();
      }
    });
    EXPECT_EQ(wrong, 0) << warps << " warps, of which " << leaves << " end";
  }
}

TEST_F(EmulatedMachineTest, AtomicsCountEveryThreadOnce) {
  unsigned count = 0;
  uint64_t sum = 0, greatest = 0, least = ~uint64_t{0};
  std::set<unsigned> before;
  emulated::SetOptions({.seed = random_()});
  RunGrid({5, 3, 2}, 64, 0, [&] {
    const GridSize at = BlockIndex(), grid = Grid();
    const uint64_t id = ((at.z * grid.y + at.y) * grid.x + at.x) * 64 + uint64_t(ThreadIndex());
    before.insert(AtomicAdd(&count, 1u));
    AtomicAdd(&sum, id);
    AtomicMax(&greatest, id);
    AtomicMin(&least, id);
  });
  const uint64_t threads = 5 * 3 * 2 * 64;
  EXPECT_EQ(count, threads);
  EXPECT_EQ(before.size(), threads);
  EXPECT_EQ(sum, threads * (threads - 1) / 2);
  EXPECT_EQ(greatest, threads - 1);
  EXPECT_EQ(least, 0u);
}

// ---- Copies to shared memory -------------------------------------------------------------------

constexpr uint32_t kPoison = 0xffffffff;

// What of three groups' copies is there, by the number of groups that may still be under way.
std::vector<std::vector<bool>> CopiesThere() {
  std::vector<std::vector<bool>> there;
  std::vector<Vec16> source(3 * kWarpLanes);
  for (uint32_t i = 0; i < source.size(); ++i) source[i] = {{i, i + 1, i + 2, i + 3}};
  RunGrid({}, kWarpLanes, source.size() * 16, [&] {
    auto* shared = reinterpret_cast<Vec16*>(SharedMemory());
    const int lane = Lane();
    for (int group = 0; group < 3; ++group) {
      CopyAsync16(&shared[group * kWarpLanes + lane],
                  &source[static_cast<size_t>(group * kWarpLanes + lane)], true);
      CopyAsyncCommit();
    }
    const auto look = [&] {
      std::vector<bool> found;
      for (int group = 0; group < 3; ++group) {
        const int at = group * kWarpLanes + lane;
        bool all = true, none = true;
        for (int i = 0; i < 4; ++i) {
          all &= shared[at].x[i] == static_cast<uint32_t>(at + i);
          none &= shared[at].x[i] == kPoison;
        }
        EXPECT_NE(all, none) << "lane " << lane << ", group " << group;
        found.push_back(all);
      }
      if (lane == 17) there.push_back(found);
    };
    look();
    CopyAsyncWait<2>();
    look();
    CopyAsyncWait<1>();
    look();
    CopyAsyncWait<0>();
    look();
  });
  return there;
}

TEST_F(EmulatedMachineTest, ACopyIsThereAfterTheWaitForItsGroup) {
  const std::vector<std::vector<bool>> expected = {
      {false, false, false}, {true, false, false}, {true, true, false}, {true, true, true}};
  EXPECT_EQ(CopiesThere(), expected);
}
TEST_F(EmulatedMachineTest, BelowSm80ACopyIsThereAtOnce) {
  emulated::SetOptions({.compute_capability = 75});
  EXPECT_EQ(CopiesThere(), std::vector<std::vector<bool>>(4, {true, true, true}));
}

TEST_F(EmulatedMachineTest, AnInvalidCopyIsZerosAndReadsNothing) {
  for (const int capability : {75, 80}) {
    emulated::SetOptions({.compute_capability = capability});
    int wrong = 0;
    RunGrid({}, kWarpLanes, kWarpLanes * 16, [&] {
      auto* to = reinterpret_cast<Vec16*>(SharedMemory()) + Lane();
      CopyAsync16(to, nullptr, false);
      CopyAsyncCommit();
      CopyAsyncWait<0>();
      for (const uint32_t word : LoadShared16(to).x) wrong += word != 0;
    });
    EXPECT_EQ(wrong, 0) << capability;
  }
}

// An empty group counts; what was not committed is in none.
TEST_F(EmulatedMachineTest, WaitsCountGroupsNotCopies) {
  const Vec16 source = {{1, 2, 3, 4}};
  bool early = true, late = false;
  RunGrid({}, kWarpLanes, 16, [&] {
    if (Lane() != 0) return;
    CopyAsync16(SharedMemory(), &source, true);
    CopyAsyncWait<0>();
    early = LoadShared16(SharedMemory()).x[0] == 1;
    CopyAsyncCommit();
    CopyAsyncCommit();
    CopyAsyncWait<1>();
    late = LoadShared16(SharedMemory()).x[0] == 1;
    CopyAsyncWait<0>();
  });
  EXPECT_FALSE(early);
  EXPECT_TRUE(late);
}

// ---- Order of execution ------------------------------------------------------------------------

// The last of two warps that write one place without a synchronisation between them.
int LastWarp(uint64_t seed) {
  emulated::SetOptions({.seed = seed});
  int last = -1;
  RunGrid({}, 4 * kWarpLanes, sizeof(int), [&] {
    auto* shared = reinterpret_cast<int*>(SharedMemory());
    *shared = Warp();
    SyncThreads();
    last = *shared;
  });
  return last;
}
// A block's sum that forgot the barrier between the warps' sums and their total.
float SumWithoutBarrier(uint64_t seed) {
  emulated::SetOptions({.seed = seed});
  float sum = 0;
  RunGrid({}, 2 * kWarpLanes, 2 * sizeof(float), [&] {
    auto* scratch = reinterpret_cast<float*>(SharedMemory());
    if (Lane() == 0) scratch[Warp()] = 1;
    if (ThreadIndex() == 0) sum = scratch[0] + scratch[1];
  });
  return sum;
}
std::vector<unsigned> BlockOrder(uint64_t seed) {
  emulated::SetOptions({.seed = seed});
  std::vector<unsigned> order;
  RunGrid({3, 2, 2}, kWarpLanes, 0, [&] {
    if (Lane() == 0) order.push_back((BlockIndex().z * 2 + BlockIndex().y) * 3 + BlockIndex().x);
  });
  return order;
}

TEST_F(EmulatedMachineTest, ARaceShowsAsAnotherResultUnderAnotherSeed) {
  std::set<int> last;
  std::set<std::vector<unsigned>> orders;
  int unwritten = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    last.insert(LastWarp(seed));
    const float sum = SumWithoutBarrier(seed);
    EXPECT_TRUE(std::isnan(sum) || sum == 2);
    unwritten += std::isnan(sum);
    std::vector<unsigned> order = BlockOrder(seed);
    EXPECT_EQ(order, BlockOrder(seed)) << "a seed is an order";
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, BlockOrder(0)) << "every block once; in order without a seed";
  }
  EXPECT_EQ(last.size(), 4u);
  EXPECT_GT(unwritten, 5);
  EXPECT_LT(unwritten, 35);
  EXPECT_GT(orders.size(), 35u);
}

// A warp that nothing holds gets far ahead, or stays behind.
TEST_F(EmulatedMachineTest, WarpsDoNotKeepStep) {
  int most = 0, least = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulated::SetOptions({.seed = seed});
    int steps[2] = {};
    RunGrid({}, 2 * kWarpLanes, 0, [&] {
      for (int i = 0; i < 30; ++i) {
        if (Lane() == 0) ++steps[Warp()];
        most = std::max(most, steps[0] - steps[1]);
        least = std::min(least, steps[0] - steps[1]);
        SyncWarp();
      }
    });
  }
  EXPECT_EQ(most, 30);
  EXPECT_EQ(least, -30);
}

TEST_F(EmulatedMachineTest, SharedMemoryHoldsNothingOfTheBlockBefore) {
  int written = 0;
  RunGrid({4, 1, 1}, kWarpLanes, kWarpLanes * 4, [&] {
    auto& word = reinterpret_cast<uint32_t*>(SharedMemory())[Lane()];
    written += word != kPoison;
    word = 7;
  });
  EXPECT_EQ(written, 0);
}

TEST_F(EmulatedMachineTest, HostThreadsLaunchAtTheSameTime) {
  std::vector<std::thread> threads;
  std::vector<int> sums(3);
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&sum = sums[static_cast<size_t>(thread)], thread] {
      emulated::SetOptions({.seed = static_cast<uint64_t>(thread)});
      for (int launch = 0; launch < 50; ++launch) {
        RunGrid({2, 1, 1}, 64, 4, [&] {
          AtomicAdd(&sum, 1);
          SyncThreads();
          AtomicAdd(&sum, 1);
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums, std::vector<int>(3, 50 * 2 * 64 * 2));
}

class RecordingQueue final : public emulated::LaunchQueue {
 public:
  void Enqueue(const emulated::LaunchShape& shape, std::function<void()> run) override {
    shapes.push_back(shape);
    work.push_back(std::move(run));
  }
  std::vector<emulated::LaunchShape> shapes;
  std::vector<std::function<void()>> work;
};
struct CountArgs {
  int* counter;
};
BATON_KERNEL(64) CountKernel(CountArgs args) { ++*args.counter; }

TEST_F(EmulatedMachineTest, ALaunchOnAStreamWaitsInItsQueue) {
  RecordingQueue queue;
  emulated::EmulatedStream stream = {.options = {.seed = 3}, .queue = &queue};
  int counter = 0;
  {
    const CountArgs args = {&counter};
    Launch(CountKernel, {2, 3, 1}, 64, 128, &stream, args);
  }
  ASSERT_EQ(queue.work.size(), 1u);
  EXPECT_EQ(counter, 0);
  EXPECT_EQ(queue.shapes[0].grid.y, 3u);
  EXPECT_EQ(queue.shapes[0].threads, 64);
  EXPECT_EQ(queue.shapes[0].shared_bytes, 128u);
  queue.work[0]();
  EXPECT_EQ(counter, 6 * 64);
  stream.queue = nullptr;
  Launch(CountKernel, {}, 64, 0, &stream, CountArgs{&counter});
  EXPECT_EQ(counter, 7 * 64);
  EXPECT_EQ(queue.work.size(), 1u);
}

struct OptionsArgs {
  emulated::Options* seen;
};
BATON_KERNEL(32) OptionsKernel(OptionsArgs args) { *args.seen = emulated::GetOptions(); }

TEST_F(EmulatedMachineTest, AStreamHasOptionsOfItsOwn) {
  emulated::SetOptions({.compute_capability = 80, .seed = 5});
  emulated::EmulatedStream stream = {.options = {.compute_capability = 75, .seed = 6}};
  emulated::Options seen;
  Launch(OptionsKernel, {}, 32, 0, &stream, OptionsArgs{&seen});
  EXPECT_EQ(seen.compute_capability, 75);
  EXPECT_EQ(seen.seed, 6u);
  Launch(OptionsKernel, {}, 32, 0, nullptr, OptionsArgs{&seen});
  EXPECT_EQ(seen.compute_capability, 80);
  EXPECT_EQ(seen.seed, 5u);
}

// ---- Breaches ----------------------------------------------------------------------------------

using EmulatedMachineDeathTest = EmulatedMachineTest;

TEST_F(EmulatedMachineDeathTest, LanesOfAWarpMeetAtOneOperation) {
  EXPECT_DEATH(RunGrid({}, kWarpLanes, 0,
                       [] {
                         if (Lane() < 16) {
                           ShuffleXor(1.0f, 1);
                         } else {
                           SyncWarp();
                         }
                       }),
               "meet at different operations");
  EXPECT_DEATH(RunGrid({}, kWarpLanes, 0,
                       [] {
                         float d[4] = {};
                         if (Lane() == 3) {
                           const uint32_t a[4] = {};
                           BFloat16::Mma16(d, a, 0, 0);
                         } else {
                           Half::Mma8(d, 0, 0, 0);
                         }
                       }),
               "meet at different operations");
  EXPECT_DEATH(RunGrid({}, kWarpLanes, 0,
                       [] {
                         float d[4] = {};
                         const uint32_t a[4] = {};
                         if (Lane() == 3) {
                           BFloat16::Mma16(d, a, 0, 0);
                         } else {
                           Half::Mma16(d, a, 0, 0);
                         }
                       }),
               "multiply different types");
}

TEST_F(EmulatedMachineDeathTest, ALaneThatLeftIsMissed) {
  EXPECT_DEATH(RunGrid({}, 2 * kWarpLanes, 0,
                       [] {
                         if (ThreadIndex() == 37) return;
                         ShuffleXor(1, 16);
                       }),
               "the kernel hangs");
}

TEST_F(EmulatedMachineDeathTest, ABarrierThatSomeLanesLeaveOutHangs) {
  EXPECT_DEATH(RunGrid({}, 2 * kWarpLanes, 0,
                       [] {
                         if (Lane() < 5) SyncThreads();
                         SyncWarp();
                       }),
               "the kernel hangs");
}

TEST_F(EmulatedMachineDeathTest, CopiesAreWaitedFor) {
  const Vec16 source = {};
  const auto copy = [&](bool commit) {
    RunGrid({}, kWarpLanes, kWarpLanes * 16, [&] {
      CopyAsync16(SharedMemory() + Lane() * 16, &source, true);
      if (commit) CopyAsyncCommit();
    });
  };
  EXPECT_DEATH(copy(false), "thread 0 ended without waiting for its copies");
  EXPECT_DEATH(copy(true), "thread 0 ended without waiting for its copies");
  emulated::SetOptions({.compute_capability = 75});
  copy(true);
}

#if defined(__SANITIZE_ADDRESS__)
TEST_F(EmulatedMachineDeathTest, AddressSanitizerSeesWhatGoesBeyondSharedMemory) {
  EXPECT_DEATH(RunGrid({}, kWarpLanes, 16 * kWarpLanes,
                       [] { Store16(SharedMemory() + (Lane() + 1) * 16, Vec16{}); }),
               "heap-buffer-overflow");
}
#endif

TEST_F(EmulatedMachineDeathTest, MatricesComeTransposed) {
  const auto run = [](int shift, int lanes) {
    RunGrid({}, kWarpLanes, kWarpLanes * 16 + 16, [&] {
      // Row r of matrix m is 256 times 8 m + r, plus 0, 1, 2 and so on.
      auto* const row = reinterpret_cast<uint16_t*>(SharedMemory() + Lane() * 16);
      for (int i = 0; i < 8; ++i) row[i] = static_cast<uint16_t>(Lane() * 256 + i);
      SyncWarp();
      if (Lane() >= lanes) return;
      const Vec16 two = LoadTransposed(SharedMemory() + Lane() * 16 + shift);
      for (int matrix = 0; matrix < 4; ++matrix) {
        const int first = matrix * 8 + Lane() % 4 * 2, column = Lane() / 4;
        const auto expected = static_cast<uint32_t>(first * 256 + column) |
                              static_cast<uint32_t>((first + 1) * 256 + column) << 16;
        EXPECT_EQ(two.x[matrix], expected) << "lane " << Lane() << ", matrix " << matrix;
      }
    });
  };
  run(0, kWarpLanes);
  EXPECT_DEATH(run(8, kWarpLanes), "16 bytes at");
  EXPECT_DEATH(run(0, kWarpLanes - 1), "");
}

TEST_F(EmulatedMachineDeathTest, LaunchesKeepToTheLimits) {
  const auto nothing = [] {};
  RunGrid({1, 65'535, 1}, kWarpLanes, 48 << 10, nothing);
  EXPECT_DEATH(RunGrid({}, kWarpLanes, kMostSharedBytes + 1, nothing), "CHECK failed");
  emulated::SetOptions({.compute_capability = 75});
  EXPECT_DEATH(RunGrid({}, kWarpLanes, kSharedBytesUnasked + 1, nothing), "CHECK failed");
  emulated::SetOptions({});
  EXPECT_DEATH(RunGrid({}, 1024 + kWarpLanes, 0, nothing), "1056 threads");
  EXPECT_DEATH(RunGrid({}, 33, 0, nothing), "33 threads");
  EXPECT_DEATH(RunGrid({0, 1, 1}, 32, 0, nothing), "an empty grid");
  EXPECT_DEATH(RunGrid({1, 65'536, 1}, 32, 0, nothing), "a grid of 65536");
  EXPECT_DEATH(RunGrid({}, 32, 0, [&] { RunGrid({}, 32, 0, nothing); }), "launches a kernel");
}

}  // namespace
}  // namespace baton::backend::cuda
