#include "common/backend/cuda/runtime/kv_copier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/common/backend/cuda/delayed_runtime.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

class Memory final : public Buffer {
 public:
  Memory(void* data, size_t size_bytes) : Buffer(data, size_bytes) {}
};

// On a device that does all at once, and on one that does nothing before it must.
class KvCopierTest : public ::testing::TestWithParam<bool> {
 protected:
  KvCopierTest() {
    if (GetParam()) {
      runtime_ = std::make_unique<DelayedRuntime>(80, 128 << 20);
    } else {
      runtime_ = MakeEmulatedRuntime(80, 128 << 20, 7);
    }
    compute_ = runtime_->MakeStream();
  }

  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  std::vector<std::byte> Bytes(size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }

  // A pool of random bytes.
  void MakePool(int layers, int blocks, size_t chunk_bytes) {
    layers_ = layers;
    pool_.layer_stride_bytes = static_cast<int64_t>(chunk_bytes);
    pool_.block_stride_bytes = pool_.layer_stride_bytes * layers;
    pool_.block_count = blocks;
    expected_ = Bytes(chunk_bytes * static_cast<size_t>(layers * blocks));
    pool_.base = static_cast<std::byte*>(runtime_->AllocateDevice(expected_.size()).value());
    std::memcpy(pool_.base, expected_.data(), expected_.size());
    const size_t staging = CudaKvCopier::DeviceBytes(chunk_bytes);
    auto copier = CudaKvCopier::Make(
        pool_, std::make_unique<Memory>(runtime_->AllocateDevice(staging).value(), staging),
        *runtime_);
    copier_ = std::move(copier).value();
  }
  size_t chunk_bytes() const { return static_cast<size_t>(pool_.layer_stride_bytes); }
  // A chunk, in a copy of the pool.
  template <class T>
  T* ChunkOf(T* pool, int layer, int32_t block) const {
    return pool + block * pool_.block_stride_bytes + layer * pool_.layer_stride_bytes;
  }
  std::vector<int32_t> AnyBlocks(int most) {
    std::vector<int32_t> blocks(static_cast<size_t>(pool_.block_count));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    blocks.resize(static_cast<size_t>(Int(0, std::min(most, pool_.block_count))));
    return blocks;
  }
  SlotRange AnySlots() {
    const int first = Int(0, layers_ - 1);
    return {first, Int(1, layers_ - first)};
  }
  size_t SizeOf(SlotRange slots, const std::vector<int32_t>& blocks) const {
    return static_cast<size_t>(slots.count) * blocks.size() * chunk_bytes();
  }
  std::vector<std::byte> Expected(SlotRange slots, const std::vector<int32_t>& blocks) const {
    std::vector<std::byte> bytes;
    for (const int32_t block : blocks) {
      for (int slot = slots.first; slot < slots.first + slots.count; ++slot) {
        const std::byte* chunk = ChunkOf(expected_.data(), slot, block);
        bytes.insert(bytes.end(), chunk, chunk + chunk_bytes());
      }
    }
    return bytes;
  }
  std::vector<std::byte> Read(SlotRange slots, const std::vector<int32_t>& blocks,
                              const Event* written = nullptr) {
    std::vector<std::byte> bytes(SizeOf(slots, blocks));
    copier_->Read(slots, blocks, written, bytes.data());
    return bytes;
  }
  void Write(SlotRange slots, const std::vector<int32_t>& blocks) {
    const std::vector<std::byte> bytes = Bytes(SizeOf(slots, blocks));
    copier_->Write(slots, blocks, bytes.data());
    const std::byte* from = bytes.data();
    for (const int32_t block : blocks) {
      for (int slot = slots.first; slot < slots.first + slots.count; ++slot) {
        std::memcpy(ChunkOf(expected_.data(), slot, block), from, chunk_bytes());
        from += chunk_bytes();
      }
    }
  }
  bool PoolIsAsExpected() const {
    return std::memcmp(pool_.base, expected_.data(), expected_.size()) == 0;
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
  std::unique_ptr<Runtime> runtime_;
  Stream compute_ = nullptr;
  int layers_ = 0;
  KvPool pool_;
  std::vector<std::byte> expected_;
  std::unique_ptr<CudaKvCopier> copier_;
};

TEST_P(KvCopierTest, ReadsAndWritesChunksAndNothingElse) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 8; ++round) {
    MakePool(Int(1, 4), Int(1, 20), 16 * static_cast<size_t>(Int(1, 700)));
    for (int step = 0; step < 12; ++step) {
      const SlotRange slots = AnySlots();
      const std::vector<int32_t> blocks = AnyBlocks(20);
      if (Int(0, 1)) {
        Write(slots, blocks);
        // It waits: the pool has it.
        ASSERT_TRUE(PoolIsAsExpected()) << "round " << round;
      }
      ASSERT_EQ(Read(slots, blocks), Expected(slots, blocks)) << "round " << round;
    }
    ASSERT_TRUE(PoolIsAsExpected()) << "reading leaves the pool as it is";
  }
}

TEST_P(KvCopierTest, MoreChunksThanTheStagingHolds) {
  SCOPED_TRACE(seed_);
  const size_t chunk = (size_t{1} << 20) + 16 * 5;
  ASSERT_EQ(CudaKvCopier::ChunksAtOnce(chunk), 3);
  MakePool(1, 9, chunk);
  const std::vector<int32_t> blocks = {8, 0, 3, 7, 1, 6, 5};
  Write({0}, blocks);
  ASSERT_TRUE(PoolIsAsExpected());
  ASSERT_EQ(Read({0}, blocks), Expected({0}, blocks));
  // Three chunks are copied at once: three slots of one page, or both slots of one page where the
  // range has two.
  MakePool(5, 4, chunk);
  for (const SlotRange slots : {SlotRange{0, 5}, {1, 4}, {3, 2}}) {
    Write(slots, {2, 0, 3});
    ASSERT_TRUE(PoolIsAsExpected()) << slots.count;
    ASSERT_EQ(Read(slots, {2, 0, 3}), Expected(slots, {2, 0, 3})) << slots.count;
  }
  // A chunk larger than the staging would be goes alone.
  EXPECT_EQ(CudaKvCopier::ChunksAtOnce(size_t{100} << 20), 1);
  EXPECT_GE(CudaKvCopier::DeviceBytes(size_t{100} << 20), size_t{100} << 20);
}

// Blocks may repeat in a Read.
TEST_P(KvCopierTest, ReadsABlockTwice) {
  MakePool(2, 3, 160);
  const std::vector<int32_t> blocks = {2, 2, 0, 2};
  EXPECT_EQ(Read({1}, blocks), Expected({1}, blocks));
}

TEST_P(KvCopierTest, ReadsBehindThePointThatItIsGiven) {
  MakePool(2, 4, 256);
  // The compute stream writes block 1's chunk of layer 1 late, and block 2's after the point.
  const std::vector<std::byte> computed = Bytes(chunk_bytes()), later = Bytes(chunk_bytes());
  runtime_->CopyToDevice(ChunkOf(pool_.base, 1, 1), computed.data(), chunk_bytes(), compute_);
  const std::unique_ptr<DeviceEvent> written = runtime_->Record(compute_);
  std::memcpy(ChunkOf(expected_.data(), 1, 1), computed.data(), chunk_bytes());
  EXPECT_EQ(Read({1}, {1, 0}, written.get()), Expected({1}, {1, 0}));
  EXPECT_TRUE(written->Done());
  runtime_->CopyToDevice(ChunkOf(pool_.base, 1, 2), later.data(), chunk_bytes(), compute_);
  EXPECT_EQ(Read({1}, {1}, written.get()), Expected({1}, {1}));
  if (GetParam()) {
    EXPECT_EQ(Read({1}, {2}, written.get()), Expected({1}, {2}))
        << "it waits for no more than that";
  }
  runtime_->Synchronize(compute_);  // before the host memory goes
}

// Threads move chunks of layers of their own, all through the same staging.
TEST_P(KvCopierTest, ServesSeveralThreads) {
  SCOPED_TRACE(seed_);
  MakePool(4, 12, 16 * 30);
  std::vector<std::vector<std::byte>> last(4);
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int layer = 0; layer < 4; ++layer) {
    threads.emplace_back([&, layer, seed = random_()] {
      std::mt19937_64 random(seed);
      std::vector<int32_t> blocks(12);
      std::iota(blocks.begin(), blocks.end(), 0);
      std::vector<std::byte> bytes(12 * chunk_bytes());
      for (int step = 0; step < 40; ++step) {
        std::shuffle(blocks.begin(), blocks.end(), random);
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
        copier_->Write({layer}, blocks, bytes.data());
        std::vector<std::byte> found(bytes.size());
        copier_->Read({layer}, blocks, nullptr, found.data());
        wrong[static_cast<size_t>(layer)] += found != bytes;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

// A point that the compute stream reaches when the test says so.
class HeldEvent final : public Event {
 public:
  bool Done() const override { return reached_.HasBeenNotified(); }
  void Wait() const override {
    awaited_.Notify();
    reached_.WaitForNotification();
  }
  mutable absl::Notification awaited_, reached_;
};

// A read that waits for a layer in computation does not block a read of a finished one.
TEST_P(KvCopierTest, AReadThatWaitsHoldsNothing) {
  MakePool(2, 3, 64);
  const HeldEvent written;
  std::vector<std::byte> late;
  std::thread waits([&] { late = Read({1}, {2}, &written); });
  written.awaited_.WaitForNotification();
  EXPECT_EQ(Read({0}, {1, 2}), Expected({0}, {1, 2}));
  Write({0}, {0});
  Write({1}, {2});
  EXPECT_TRUE(late.empty());
  written.reached_.Notify();
  waits.join();
  EXPECT_EQ(late, Expected({1}, {2})) << "what is there behind the point";
}

// Copies to the host end when the test says so.
class HeldReads final : public Runtime {
 public:
  explicit HeldReads(std::unique_ptr<Runtime> inner) : inner_(std::move(inner)) {}
  const DeviceProperties& properties() const override { return inner_->properties(); }
  absl::StatusOr<void*> AllocateDevice(size_t size_bytes) override {
    return inner_->AllocateDevice(size_bytes);
  }
  absl::StatusOr<void*> AllocatePinned(size_t size_bytes) override {
    return inner_->AllocatePinned(size_bytes);
  }
  Stream MakeStream() override { return inner_->MakeStream(); }
  void CopyToDevice(void* device, const void* pinned, size_t size_bytes, Stream stream) override {
    inner_->CopyToDevice(device, pinned, size_bytes, stream);
  }
  void CopyToHost(void* pinned, const void* device, size_t size_bytes, Stream stream) override {
    began_.Notify();
    may_end_.WaitForNotification();
    inner_->CopyToHost(pinned, device, size_bytes, stream);
  }
  void Zero(void* device, size_t size_bytes, Stream stream) override {
    inner_->Zero(device, size_bytes, stream);
  }
  void Synchronize(Stream stream) override { inner_->Synchronize(stream); }
  std::unique_ptr<DeviceEvent> Record(Stream stream) override { return inner_->Record(stream); }
  std::unique_ptr<Graph> Capture(Stream stream, absl::FunctionRef<void()> enqueue) override {
    return inner_->Capture(stream, enqueue);
  }

  absl::Notification began_, may_end_;

 private:
  const std::unique_ptr<Runtime> inner_;
};

TEST_P(KvCopierTest, WritesGoOnBesideARead) {
  auto* const held = new HeldReads(std::move(runtime_));
  runtime_.reset(held);
  MakePool(2, 3, 64);
  std::vector<std::byte> read;
  std::thread reads([&] { read = Read({1}, {2}); });
  held->began_.WaitForNotification();
  Write({0}, {0, 2});
  EXPECT_TRUE(PoolIsAsExpected());
  held->may_end_.Notify();
  reads.join();
  EXPECT_EQ(read, Expected({1}, {2}));
}

TEST_P(KvCopierTest, WrongLayersAndBlocksEndTheProcess) {
  MakePool(2, 3, 64);
  std::vector<std::byte> bytes(256);
  EXPECT_DEATH(copier_->Read({2}, {}, nullptr, bytes.data()), "1 slots from 2 on");
  EXPECT_DEATH(copier_->Read({-1}, {}, nullptr, bytes.data()), "1 slots from -1 on");
  EXPECT_DEATH(copier_->Write({2}, {}, bytes.data()), "1 slots from 2 on");
  EXPECT_DEATH(copier_->Read({0}, {0, 3}, nullptr, bytes.data()), "page 3");
  EXPECT_DEATH(copier_->Read({0}, {-1}, nullptr, bytes.data()), "page -1");
  EXPECT_DEATH(copier_->Write({1}, {1, 3}, bytes.data()), "page 3");
}

// Callers that wait while another one copies.
class SharedLaneTest : public KvCopierTest {
 protected:
  struct Call {
    SlotRange slots;
    std::vector<int32_t> pages;
    std::vector<std::byte> bytes;  // read, or written
  };
  DelayedRuntime& runtime() { return static_cast<DelayedRuntime&>(*runtime_); }
  // Calls the first one, and the others while it copies; returns how often the ids of pages went to
  // the device: once for each operation.
  int Operations(bool writes, std::vector<Call>& calls) {
    absl::Notification copies, goes_on;
    std::atomic<bool> first{true};
    runtime().BeforeCopyToDevice([&] {
      if (!first.exchange(false)) return;
      copies.Notify();
      goes_on.WaitForNotification();
    });
    for (Call& call : calls) call.bytes = Bytes(SizeOf(call.slots, call.pages));
    const int before = runtime().copies_to_device();
    std::vector<std::thread> threads;
    for (Call& call : calls) {
      threads.emplace_back([&, &call = call] {
        if (writes) {
          copier_->Write(call.slots, call.pages, call.bytes.data());
        } else {
          copier_->Read(call.slots, call.pages, nullptr, call.bytes.data());
        }
      });
      copies.WaitForNotification();
    }
    while (copier_->waiting() < static_cast<int>(calls.size()) - 1) std::this_thread::yield();
    goes_on.Notify();
    for (std::thread& thread : threads) thread.join();
    runtime().BeforeCopyToDevice(nullptr);
    for (const Call& call : calls) {
      if (!writes) {
        EXPECT_EQ(call.bytes, Expected(call.slots, call.pages));
        continue;
      }
      const std::byte* from = call.bytes.data();
      for (const int32_t page : call.pages) {
        for (int slot = call.slots.first; slot < call.slots.first + call.slots.count; ++slot) {
          std::memcpy(ChunkOf(expected_.data(), slot, page), from, chunk_bytes());
          from += chunk_bytes();
        }
      }
    }
    EXPECT_TRUE(PoolIsAsExpected());
    EXPECT_EQ(copier_->waiting(), 0);
    const int to_device = runtime().copies_to_device() - before;
    return writes ? to_device / 2 : to_device;  // a write has its chunks, too
  }
};

TEST_P(SharedLaneTest, WhatWaitsIsCopiedTogether) {
  MakePool(3, 60, 4096);
  for (const bool writes : {false, true}) {
    std::vector<Call> calls;
    for (int i = 0; i < 8; ++i) calls.push_back({{0, 3}, {i, 30 + i, 20 + i}, {}});
    EXPECT_EQ(Operations(writes, calls), 2);
  }
}

TEST_P(SharedLaneTest, OtherSlotsAndWhatHasNoRoomGoApart) {
  constexpr size_t kChunkBytes = 16 << 10;
  MakePool(3, 60, kChunkBytes);
  ASSERT_EQ(CudaKvCopier::ChunksAtOnce(kChunkBytes), 256);
  for (const bool writes : {false, true}) {
    std::vector<Call> calls = {{{0, 3}, {0}, {}},    {{1, 1}, {1}, {}}, {{1, 1}, {2}, {}},
                               {{0, 3}, {3, 4}, {}}, {{0, 2}, {5}, {}}, {{0, 3}, {6}, {}}};
    EXPECT_EQ(Operations(writes, calls), 1 + 3);
    // 40 pages of three slots: two of them fit, three do not. Reads may be of one page.
    if (writes) continue;
    calls.assign(1, {{0, 3}, {0}, {}});
    std::vector<int32_t> pages(40);
    std::iota(pages.begin(), pages.end(), 7);
    for (int i = 0; i < 3; ++i) calls.push_back({{0, 3}, pages, {}});
    EXPECT_EQ(Operations(writes, calls), 1 + 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Delayed, SharedLaneTest, ::testing::Values(true));

INSTANTIATE_TEST_SUITE_P(Runtimes, KvCopierTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "delayed" : "at_once"; });

}  // namespace
}  // namespace baton::backend::cuda
