#include "common/backend/cuda/runtime/peer_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "common/backend/cuda/runtime/kv_copier.h"
#include "common/base/error.h"
#include "tests/common/backend/cuda/delayed_runtime.h"

namespace baton::backend::cuda {
namespace {

constexpr int64_t kChunk = 64, kBlock = 2 * kChunk;
constexpr int kPoolBlocks = 8;

class PoolBuffer final : public Buffer {
 public:
  PoolBuffer(void* data, size_t size_bytes) : Buffer(data, size_bytes) {}
};

// A pool on a device that does nothing before it must.
struct LazyWorker {
  LazyWorker() : runtime(80, 32 << 20) {
    pool.block_stride_bytes = kBlock;
    pool.layer_stride_bytes = kChunk;
    pool.block_count = kPoolBlocks;
    // A multiple of what staging is aligned to.
    const size_t before_staging = 256 + bytes();
    const size_t staging = CudaKvCopier::DeviceBytes(kChunk);
    allocation = runtime.AllocateDevice(before_staging + staging).value();
    pool.base = static_cast<std::byte*>(allocation) + 256;
    copier = CudaKvCopier::Make(pool,
                                std::make_unique<PoolBuffer>(
                                    static_cast<std::byte*>(allocation) + before_staging, staging),
                                runtime, {allocation, before_staging + staging})
                 .value();
  }
  static size_t bytes() { return kBlock * kPoolBlocks; }
  std::byte* Chunk(int layer, int block) const {
    return pool.base + block * kBlock + layer * kChunk;
  }

  DelayedRuntime runtime;
  void* allocation;
  KvPool pool;
  std::unique_ptr<CudaKvCopier> copier;
};

class PeerCopyTest : public ::testing::Test {
 protected:
  PeerCopyTest() {
    for (int block = 0; block < kPoolBlocks; ++block) {
      for (int layer = 0; layer < 2; ++layer) {
        std::memset(theirs_.Chunk(layer, block), 1 + 2 * block + layer, kChunk);
        std::memset(ours_.Chunk(layer, block), 0, kChunk);
      }
    }
    peer_ = ours_.copier->OpenPeer(theirs_.copier->Export().value()).value();
  }
  // The first byte of each of our chunks of a layer.
  std::vector<int> Ours(int layer) const {
    std::vector<int> bytes;
    for (int block = 0; block < kPoolBlocks; ++block) {
      const std::byte* chunk = ours_.Chunk(layer, block);
      EXPECT_EQ(std::memcmp(chunk, chunk + 1, kChunk - 1), 0);
      bytes.push_back(static_cast<int>(*chunk));
    }
    return bytes;
  }

  LazyWorker theirs_, ours_;
  std::unique_ptr<PeerPool> peer_;
};

TEST_F(PeerCopyTest, ItReturnsWhenAllIsThere) {
  // Runs of consecutive blocks and single ones.
  ASSERT_TRUE(peer_->Copy({1}, {2, 3, 4, 7, 0}, {0, 1, 2, 3, 7}).ok());
  EXPECT_EQ(Ours(1), (std::vector<int>{6, 8, 10, 16, 0, 0, 0, 2}));
  EXPECT_EQ(Ours(0), std::vector<int>(kPoolBlocks, 0));
  ASSERT_TRUE(peer_->Copy({0}, {}, {}).ok());
  // Both slots.
  ASSERT_TRUE(peer_->Copy({0, 2}, {5, 6, 1}, {4, 5, 0}).ok());
  EXPECT_EQ(Ours(0), (std::vector<int>{3, 0, 0, 0, 11, 13, 0, 0}));
  EXPECT_EQ(Ours(1), (std::vector<int>{4, 8, 10, 16, 12, 14, 0, 2}));
}

// Each waits for its own.
TEST_F(PeerCopyTest, CopiesOfSeveralTransfersAtOnceAreAllThereWhenTheyReturn) {
  std::vector<std::thread> transfers;
  for (int at = 0; at < 4; ++at) {
    transfers.emplace_back([&, at] {
      for (int round = 0; round < 50; ++round) {
        const int theirs = (at + round) % kPoolBlocks;
        ASSERT_TRUE(peer_->Copy({0, 2}, {theirs}, {2 * at}).ok());
        for (int layer = 0; layer < 2; ++layer) {
          EXPECT_EQ(std::memcmp(ours_.Chunk(layer, 2 * at), theirs_.Chunk(layer, theirs), kChunk),
                    0);
        }
      }
    });
  }
  for (std::thread& transfer : transfers) transfer.join();
}

// Blocks are freed after an error: nothing may write to them then.
TEST_F(PeerCopyTest, AnErrorLeavesNoCopyThatStillRuns) {
  ours_.runtime.RefusePeerCopyAfter(2);
  const absl::Status status = peer_->Copy({0}, {0, 2, 4, 6}, {1, 3, 5, 7});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  const std::vector<int> first = {0, 1, 0, 5, 0, 0, 0, 0};
  EXPECT_EQ(Ours(0), first);
  // The pool is of no more use.
  const absl::Status again = peer_->Copy({0}, {0}, {0});
  EXPECT_TRUE(absl::IsUnavailable(again)) << again;
  EXPECT_EQ(ErrorReason(again), "SHARED_MEMORY");
  EXPECT_EQ(Ours(0), first);
  // Another one is.
  const auto reopened = ours_.copier->OpenPeer(theirs_.copier->Export().value());
  ASSERT_TRUE((*reopened)->Copy({0}, {7}, {0}).ok());
  EXPECT_EQ(Ours(0)[0], 15);
}

// What the driver has mapped is not the peer's memory.
TEST_F(PeerCopyTest, AProbeBlockOfOtherBytesIsRefused) {
  const PoolHandle handle = theirs_.copier->Export().value();
  std::byte* const probe = static_cast<std::byte*>(theirs_.allocation) + handle.probe_offset;
  for (const size_t at : {size_t{0}, kProbeBytes / 2, kProbeBytes - 1}) {
    probe[at] ^= std::byte{1};
    const auto peer = ours_.copier->OpenPeer(handle);
    EXPECT_TRUE(absl::IsDataLoss(peer.status())) << peer.status();
    EXPECT_EQ(ErrorReason(peer.status()), "SHARED_MEMORY");
    probe[at] ^= std::byte{1};
    EXPECT_TRUE(ours_.copier->OpenPeer(handle).ok());
  }
  PoolHandle moved = handle;
  moved.probe_offset += 8;
  EXPECT_TRUE(absl::IsDataLoss(ours_.copier->OpenPeer(moved).status()));
  moved.probe_offset = ~uint64_t{0} - kProbeBytes + 1;
  EXPECT_EQ(ours_.copier->OpenPeer(moved).status().code(), absl::StatusCode::kFailedPrecondition);
}

// The bytes of an earlier probe are no answer to this one.
TEST_F(PeerCopyTest, AProbeThatCopiesNothingIsNoticed) {
  ours_.runtime.LosePeerCopies(true);
  const auto peer = ours_.copier->OpenPeer(theirs_.copier->Export().value());
  EXPECT_TRUE(absl::IsDataLoss(peer.status())) << peer.status();
}

TEST_F(PeerCopyTest, AProbeThatFailsIsAnErrorAndTheNextOneGoesOn) {
  ours_.runtime.RefusePeerCopyAfter(0);
  const auto peer = ours_.copier->OpenPeer(theirs_.copier->Export().value());
  EXPECT_TRUE(absl::IsUnavailable(peer.status())) << peer.status();
  EXPECT_TRUE(ours_.copier->OpenPeer(theirs_.copier->Export().value()).ok());
}

TEST_F(PeerCopyTest, AProbeThatHangsIsGivenUpAndHoldsUpNoCopy) {
  const PoolHandle handle = theirs_.copier->Export().value();
  ours_.runtime.HangPeerCopies(true);
  const auto peer = ours_.copier->OpenPeer(handle);
  EXPECT_TRUE(absl::IsDeadlineExceeded(peer.status())) << peer.status();
  // No other is begun behind it, until it has ended.
  EXPECT_TRUE(absl::IsUnavailable(ours_.copier->OpenPeer(handle).status()));
  ASSERT_TRUE(peer_->Copy({1}, {2}, {0}).ok());
  EXPECT_EQ(Ours(1)[0], 6);
  ours_.runtime.HangPeerCopies(false);
  EXPECT_TRUE(ours_.copier->OpenPeer(handle).ok());
}

// Readers that connect later compare the same bytes.
TEST_F(PeerCopyTest, APoolHasOneProbeBlock) {
  const PoolHandle first = theirs_.copier->Export().value();
  const PoolHandle second = theirs_.copier->Export().value();
  EXPECT_EQ(std::memcmp(&first, &second, sizeof(first)), 0);
  EXPECT_NE(first.probe_seed, ours_.copier->Export().value().probe_seed);
}

TEST_F(PeerCopyTest, WrongBlocksEndTheProcess) {
  EXPECT_DEATH((void)peer_->Copy({2}, {0}, {0}), "1 slots from 2 on");
  EXPECT_DEATH((void)peer_->Copy({0}, {kPoolBlocks}, {0}), "block 8");
  EXPECT_DEATH((void)peer_->Copy({0}, {0}, {-1}), "block -1");
  EXPECT_DEATH((void)peer_->Copy({0}, {0, 1}, {1}), "CHECK failed");
}

}  // namespace
}  // namespace baton::backend::cuda
