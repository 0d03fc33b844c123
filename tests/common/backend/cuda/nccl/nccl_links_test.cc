#include "common/backend/cuda/nccl/nccl_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/backend/cuda/cuda_backend.h"
#include "common/backend/cuda/runtime/device_share.h"
#include "tests/common/backend/cuda/fake_nccl.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

using State = DeviceLink::State;

constexpr int kLinkedLayers = 3, kLinkedBlocks = 40;
constexpr size_t kChunkBytes = 4096;

class NcclLinksTest : public ::testing::Test {
 protected:
  struct Gpu {
    explicit Gpu(FakeNccl& nccl, uint32_t seed)
        : runtime(MakeEmulatedRuntime(80, size_t{96} << 20)) {
      pool.layer_stride_bytes = kChunkBytes;
      pool.block_stride_bytes = kChunkBytes * kLinkedLayers;
      pool.block_count = kLinkedBlocks;
      bytes.resize(kChunkBytes * kLinkedLayers * kLinkedBlocks);
      std::mt19937 random(seed);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      pool.base = static_cast<std::byte*>(runtime->AllocateDevice(bytes.size()).value());
      std::memcpy(pool.base, bytes.data(), bytes.size());
      links = NcclLinks::Make(pool, *runtime, nccl).value();
    }
    std::byte* Chunk(std::byte* base, int layer, int block) const {
      return base + block * pool.block_stride_bytes + layer * pool.layer_stride_bytes;
    }
    std::unique_ptr<Runtime> runtime;
    KvPool pool;
    std::vector<std::byte> bytes;  // what the pool should hold
    std::shared_ptr<NcclLinks> links;
  };

  struct Pair {
    std::unique_ptr<DeviceLink> sender, receiver;
  };
  Pair Connect() {
    const std::string id = from_.links->MakeId().value();
    Pair pair{from_.links->Connect(id, 0).value(), to_.links->Connect(id, 1).value()};
    EXPECT_EQ(pair.sender->Poll(), State::kConnecting);
    Await(*pair.sender);
    Await(*pair.receiver);
    return pair;
  }
  static void Await(DeviceLink& link, State state = State::kIdle) {
    for (int i = 0; i < 100 && link.Poll() != state; ++i) {
    }
    ASSERT_EQ(link.Poll(), state) << link.error();
  }
  static void End(Pair& pair) {
    for (std::unique_ptr<DeviceLink>* link : {&pair.sender, &pair.receiver}) {
      (*link)->Abort();
      link->reset();
    }
  }

  FakeNccl nccl_;
  Gpu from_{nccl_, 1}, to_{nccl_, 2};
};

TEST_F(NcclLinksTest, ChunksOfAnyBlocksCross) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  Pair pair = Connect();
  std::vector<int32_t> all(kLinkedBlocks);
  for (int round = 0; round < 60; ++round) {
    nccl_.delay = static_cast<int>(random() % 3);
    SlotRange slots = {.first = static_cast<int>(random() % kLinkedLayers)};
    slots.count =
        1 + static_cast<int>(random() % static_cast<unsigned>(kLinkedLayers - slots.first));
    const size_t count = 1 + random() % (20 / static_cast<unsigned>(slots.count));
    const int chunks = slots.count * static_cast<int>(count);
    const auto draw = [&] {
      for (int i = 0; i < kLinkedBlocks; ++i) all[static_cast<size_t>(i)] = i;
      std::shuffle(all.begin(), all.end(), random);
      return std::vector<int32_t>(all.begin(), all.begin() + static_cast<ptrdiff_t>(count));
    };
    const std::vector<int32_t> sources = draw(), targets = draw();
    // Either end may begin.
    if (round % 2 == 0) pair.receiver->Receive(chunks);
    pair.sender->Send(slots, sources);
    if (round % 2 == 1) pair.receiver->Receive(chunks);
    EXPECT_NE(pair.receiver->Poll(), State::kFailed);
    Await(*pair.sender);
    Await(*pair.receiver);
    // Nothing is in the pool before it is stored.
    EXPECT_EQ(std::memcmp(to_.pool.base, to_.bytes.data(), to_.bytes.size()), 0);
    pair.receiver->Store(slots, targets);
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(to_.Chunk(to_.bytes.data(), slots.first, targets[i]),
                  from_.Chunk(from_.bytes.data(), slots.first, sources[i]),
                  static_cast<size_t>(slots.count) * kChunkBytes);
    }
    ASSERT_EQ(std::memcmp(to_.pool.base, to_.bytes.data(), to_.bytes.size()), 0);
  }
  EXPECT_EQ(std::memcmp(from_.pool.base, from_.bytes.data(), from_.bytes.size()), 0);
  End(pair);
  EXPECT_EQ(nccl_.aborted(), 2);
}

// A link warms up while steps write the pool.
TEST_F(NcclLinksTest, StagingIsSentWithoutReadingThePool) {
  Pair pair = Connect();
  const auto cross = [&](const auto& send) {
    send();
    pair.receiver->Receive(1);
    Await(*pair.sender);
    Await(*pair.receiver);
    pair.receiver->Store({2}, {7});
  };
  cross([&] { pair.sender->Send({1}, {5}); });
  std::memset(from_.pool.base, 0x5a, from_.bytes.size());
  std::memset(to_.pool.base, 0, to_.bytes.size());
  cross([&] { pair.sender->SendStaging(1); });
  EXPECT_EQ(std::memcmp(to_.Chunk(to_.pool.base, 2, 7), from_.Chunk(from_.bytes.data(), 1, 5),
                        kChunkBytes),
            0);
  End(pair);
}

TEST_F(NcclLinksTest, AnOperationHasNoEndBeforeThePeerTakesPart) {
  Pair pair = Connect();
  pair.receiver->Receive(3);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(pair.receiver->Poll(), State::kBusy);
  End(pair);
  EXPECT_EQ(std::memcmp(to_.pool.base, to_.bytes.data(), to_.bytes.size()), 0);
}

TEST_F(NcclLinksTest, ErrorsOfTheLibraryFailTheLink) {
  const absl::Status broken =
      MakeError(absl::StatusCode::kUnavailable, "NCCL", "ncclSend: remote process exited");
  {
    Pair pair = Connect();
    nccl_.send_error = broken;
    pair.sender->Send({0}, {1});
    EXPECT_EQ(pair.sender->Poll(), State::kFailed);
    EXPECT_EQ(pair.sender->error(), broken);
    End(pair);
    nccl_.send_error.reset();
  }
  {
    Pair pair = Connect();
    pair.receiver->Receive(1);
    nccl_.async_error = broken;
    EXPECT_EQ(pair.receiver->Poll(), State::kFailed);
    EXPECT_EQ(pair.receiver->error(), broken);
    nccl_.async_error.reset();
    EXPECT_EQ(pair.receiver->Poll(), State::kFailed) << "for good";
    End(pair);
  }
  nccl_.connect_error = broken;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(from_.links->Connect("id", 0).status(), broken);
  nccl_.connect_error.reset();
  Pair pair = Connect();  // nothing has leaked
  End(pair);
}

TEST_F(NcclLinksTest, ADeviceHasSoManyLinksAndGetsThemBack) {
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<DeviceLink>> links;
    for (int i = 0; i < from_.links->most_links(); ++i) {
      links.push_back(from_.links->Connect(from_.links->MakeId().value(), 0).value());
    }
    EXPECT_EQ(from_.links->Connect("one more", 0).status().code(),
              absl::StatusCode::kResourceExhausted);
    for (auto& link : links) link->Abort();
  }
}

TEST_F(NcclLinksTest, DevicesDiffer) {
  EXPECT_EQ(from_.links->device().size(), 32u);
  EXPECT_NE(from_.links->device(), to_.links->device());
}

// Of the whole backend.
TEST(NcclBackendTest, LinksAreMadeIfTheyWereAskedFor) {
  FakeNccl nccl;
  constexpr size_t kDevice = size_t{800} << 20;
  BackendOptions options;
  const auto plain = MakeBackendOn(MakeEmulatedRuntime(80, kDevice), nullptr, options).value();
  options.cuda.device_links = true;
  const auto linked =
      MakeBackendOn(MakeEmulatedRuntime(80, kDevice), nullptr, options, &nccl).value();
  EXPECT_GE(*plain->FreeBytes(), *linked->FreeBytes() + (kLinkBytes - (size_t{128} << 20)));
  KvPool pool;
  pool.layer_stride_bytes = kChunkBytes;
  pool.block_stride_bytes = kChunkBytes * kLinkedLayers;
  pool.block_count = 1;
  const auto memory = linked->Allocate(kChunkBytes * kLinkedLayers).value();
  pool.base = static_cast<std::byte*>(memory->data());
  EXPECT_TRUE(linked->MakeDeviceLinks(pool).ok());
  EXPECT_EQ(ErrorReason(plain->MakeDeviceLinks(pool).status()), "DEVICE_LINK");
}

}  // namespace
}  // namespace baton::backend::cuda
