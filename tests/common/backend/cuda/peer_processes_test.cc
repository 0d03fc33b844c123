// A KV pool that another process exports, opened and copied on every device that has such pools
// (CUDA IPC).
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/backend/backend.h"
#include "common/base/error.h"
#include "tests/common/backend/cuda/device_test.h"
#include "tests/testing/child_process.h"

namespace baton::backend {
namespace {

constexpr int kPeerLayers = 2, kPeerBlocks = 60;

class PeerPoolTest : public DeviceTest {
 protected:
  void SetUp() override {
    if (on_cpu()) GTEST_SKIP() << "its pools are memory files";
    MakeBackend();
    ASSERT_TRUE(backend_->Prepare(Limits(16, 2, 2, 64, 16)).ok());
    // Something before the pool: it does not lie at the allocation's beginning.
    before_ = backend_->Allocate(1000).value();
    pool_.layer_stride_bytes = 2 * 2 * 16 * 64 * 2;
    pool_.block_stride_bytes = kPeerLayers * pool_.layer_stride_bytes;
    pool_.block_count = kPeerBlocks;
    pool_.kv_heads = 2;
    pool_.head_dim = 64;
    pool_.block_tokens = 16;
    pool_.dtype = activation();
    memory_ = backend_->Allocate(pool_bytes()).value();
    pool_.base = static_cast<std::byte*>(memory_->data());
    copier_ = backend_->MakeKvCopier(pool_);
  }

  size_t pool_bytes() const {
    return static_cast<size_t>(pool_.block_stride_bytes * pool_.block_count);
  }
  std::vector<std::byte> PeersBytes(uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(pool_bytes());
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }
  std::vector<std::byte> PoolBytes() {
    std::vector<std::byte> bytes(pool_bytes());
    backend_->CopyToHost(bytes.data(), pool_.base, bytes.size());
    return bytes;
  }
  std::unique_ptr<baton::testing::ChildProcess> StartExporter() {
    return std::make_unique<baton::testing::ChildProcess>(
        "*PeerPoolTest.TheExporter/" + GetParam().name, std::to_string(seed_));
  }
  // Copies some chunks, and compares the whole pool.
  absl::Status CopyAndCompare(PeerPool& peer) {
    const std::vector<std::byte> source = PeersBytes(seed_);
    std::vector<std::byte> expected = PoolBytes();
    for (int round = 0; round < 6; ++round) {
      std::vector<int32_t> theirs(kPeerBlocks), ours(kPeerBlocks);
      std::iota(theirs.begin(), theirs.end(), 0);
      std::iota(ours.begin(), ours.end(), 0);
      if (round % 3 > 0) std::shuffle(theirs.begin(), theirs.end(), random_);
      if (round % 3 > 1) std::shuffle(ours.begin(), ours.end(), random_);
      const auto count = static_cast<size_t>(Int(1, kPeerBlocks));
      theirs.resize(count);
      ours.resize(count);
      SlotRange slots = {.first = Int(0, kPeerLayers - 1)};
      slots.count = Int(1, kPeerLayers - slots.first);
      if (absl::Status status = peer.Copy(slots, theirs, ours); !status.ok()) return status;
      for (size_t i = 0; i < count; ++i) {
        const auto chunk = static_cast<size_t>(pool_.layer_stride_bytes);
        const auto in_block = static_cast<size_t>(slots.first) * chunk;
        const auto block = static_cast<size_t>(pool_.block_stride_bytes);
        std::memcpy(&expected[static_cast<size_t>(ours[i]) * block + in_block],
                    &source[static_cast<size_t>(theirs[i]) * block + in_block],
                    static_cast<size_t>(slots.count) * chunk);
      }
      EXPECT_EQ(PoolBytes(), expected) << "round " << round;
    }
    return absl::OkStatus();
  }

  KvPool pool_;
  std::unique_ptr<Buffer> before_, memory_;
  std::unique_ptr<KvCopier> copier_;
};

INSTANTIATE_TEST_SUITE_P(Devices, PeerPoolTest, ::testing::ValuesIn(baton::testing::Devices()),
                         NameOfDevice);

TEST_P(PeerPoolTest, TheExporter) {
  baton::testing::ParentEnd parent;
  if (!parent) GTEST_SKIP() << "a part of the other tests";
  const std::vector<std::byte> bytes = PeersBytes(std::stoull(parent.argument()));
  backend_->CopyToDevice(pool_.base, bytes.data(), bytes.size());
  backend_->RecordEvent()->Wait();
  ASSERT_TRUE(copier_->shares());
  const absl::StatusOr<PoolHandle> handle = copier_->Export();
  ASSERT_TRUE(handle.ok()) << handle.status();
  parent.Send(&*handle, sizeof(*handle));
  char word;
  EXPECT_TRUE(parent.Receive(&word, 1)) << "the reader closes first";
  EXPECT_EQ(PoolBytes(), bytes) << "nothing writes to it";
}

TEST_P(PeerPoolTest, AnotherProcessesPoolIsRead) {
  SCOPED_TRACE(seed_);
  const auto exporter = StartExporter();
  PoolHandle handle;
  ASSERT_TRUE(exporter->Receive(&handle, sizeof(handle)));
  for (int time = 0; time < 2; ++time) {  // opened again, and twice at a time
    auto peer = copier_->OpenPeer(handle);
    ASSERT_TRUE(peer.ok()) << peer.status();
    auto same = copier_->OpenPeer(handle);
    ASSERT_TRUE(same.ok()) << same.status();
    EXPECT_TRUE(CopyAndCompare(**peer).ok());
    peer->reset();
    EXPECT_TRUE(CopyAndCompare(**same).ok()) << "closing one leaves the other";
  }
  exporter->Send("x", 1);
  EXPECT_EQ(exporter->Wait(), 0);
}

TEST_P(PeerPoolTest, DamagedHandlesAreRefused) {
  const auto exporter = StartExporter();
  PoolHandle good;
  ASSERT_TRUE(exporter->Receive(&good, sizeof(good)));
  const auto refused = [&](auto change) {
    PoolHandle handle = good;
    change(handle);
    const auto peer = copier_->OpenPeer(handle);
    EXPECT_EQ(ErrorReason(peer.status()), "SHARED_MEMORY") << peer.status();
    return peer.status().code() == absl::StatusCode::kFailedPrecondition;
  };
  const uint64_t most = ~uint64_t{0};
  EXPECT_TRUE(refused([](PoolHandle& h) { h.block_stride_bytes += 16; }));
  EXPECT_TRUE(refused([](PoolHandle& h) { h.block_stride_bytes = 0; }));
  EXPECT_TRUE(refused([](PoolHandle& h) { h.layer_stride_bytes -= 16; }));
  EXPECT_TRUE(refused([](PoolHandle& h) { h.block_count = 0; }));
  EXPECT_TRUE(refused([](PoolHandle& h) { h.block_count = uint64_t{1} << 31; }));
  EXPECT_TRUE(refused([=](PoolHandle& h) { h.block_count = most; }));
  EXPECT_TRUE(refused([](PoolHandle& h) { h.offset = h.allocation_bytes; }));
  EXPECT_TRUE(refused([=](PoolHandle& h) { h.offset = most; }));
  EXPECT_TRUE(refused([=](PoolHandle& h) { h.offset = most - h.allocation_bytes + 1; }));
  EXPECT_TRUE(refused([](PoolHandle& h) { h.allocation_bytes = h.offset; }));
  EXPECT_TRUE(refused([](PoolHandle& h) { h.allocation_bytes *= 2; }));
  EXPECT_TRUE(refused([](PoolHandle& h) { h.memory.fill(0); }));
  EXPECT_TRUE(copier_->OpenPeer(good).ok());
  exporter->Send("x", 1);
  EXPECT_EQ(exporter->Wait(), 0);
}

// CUDA does not say what becomes of the memory. The process goes on in any case.
TEST_P(PeerPoolTest, AKilledExporterIsNoDanger) {
  SCOPED_TRACE(seed_);
  const auto exporter = StartExporter();
  PoolHandle handle;
  ASSERT_TRUE(exporter->Receive(&handle, sizeof(handle)));
  auto peer = copier_->OpenPeer(handle);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_TRUE(CopyAndCompare(**peer).ok());
  exporter->Kill(SIGKILL);
  EXPECT_EQ(exporter->Wait(), -1);
  const absl::Status status = CopyAndCompare(**peer);
  std::printf("after the exporter's end: %s\n", status.ToString().c_str());
  EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
  peer->reset();
  PoolBytes();  // the device works
  EXPECT_FALSE(copier_->OpenPeer(handle).ok()) << "it is no more";
}

}  // namespace
}  // namespace baton::backend
