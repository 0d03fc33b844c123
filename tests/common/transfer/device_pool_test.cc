// Pools in device memory, from device to device: emulated GPUs of this process and of two.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "common/backend/cuda/runtime/kv_copier.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/random_id.h"
#include "common/transfer/frame_codec.h"
#include "common/transfer/kv_receiver.h"
#include "common/transfer/shared_pool_server.h"
#include "common/transfer/shared_pools.h"
#include "tests/common/transfer/pool_ends.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/child_process.h"
#include "tests/testing/seed.h"

namespace baton::transfer {
namespace {

constexpr int kDeviceLayers = 3, kDeviceBlocks = 40, kDeviceSent = 21, kDeviceFirst = 4;

kv::KvLayout DeviceLayout() {
  kv::KvLayout layout;
  layout.layers = kDeviceLayers;
  layout.kv_heads = 2;
  layout.head_dim = 16;  // chunks of 2 KiB
  return layout;
}

// Mappings of emulated devices' memory by others.
int PeerMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += absl::StrContains(line, "/memfd:baton-device") && absl::StrContains(line, " r--s ");
  }
  return count;
}

class StagingBuffer final : public backend::Buffer {
 public:
  StagingBuffer(void* data, size_t size_bytes) : Buffer(data, size_bytes) {}
};

// A device's copier, and what a test sees and does of it.
class WatchedCopier final : public backend::KvCopier {
 public:
  explicit WatchedCopier(std::unique_ptr<backend::KvCopier> inner) : inner_(std::move(inner)) {}
  void Read(backend::SlotRange slots, absl::Span<const int32_t> pages,
            const backend::Event* written, std::byte* host) override {
    ++host_copies;
    inner_->Read(slots, pages, written, host);
  }
  void Write(backend::SlotRange slots, absl::Span<const int32_t> pages,
             const std::byte* host) override {
    ++host_copies;
    inner_->Write(slots, pages, host);
  }
  bool shares() const override { return inner_->shares(); }
  absl::StatusOr<backend::PoolHandle> Export() override { return inner_->Export(); }
  absl::StatusOr<std::unique_ptr<backend::PeerPool>> OpenPeer(
      const backend::PoolHandle& handle) override {
    ++opened;
    before_open();
    if (!refuses.ok()) return refuses;
    backend::PoolHandle given = handle;
    if (misreads) ++given.probe_seed;
    auto peer = inner_->OpenPeer(given);
    after_open();
    if (!peer.ok()) return peer;
    return std::make_unique<Peer>(*this, *std::move(peer));
  }

  std::atomic<int> host_copies{0}, device_copies{0}, opened{0};
  // Not while a pool may be opened.
  absl::Status refuses;                                           // to open it
  bool misreads = false;                                          // it finds another probe block
  std::function<void()> before_open = [] {}, after_open = [] {};  // the probe is between them
  // Called after each copy between devices; its error is the copy's.
  std::function<absl::Status()> after_copy = [] { return absl::OkStatus(); };

 private:
  class Peer final : public backend::PeerPool {
   public:
    Peer(WatchedCopier& copier, std::unique_ptr<backend::PeerPool> inner)
        : copier_(copier), inner_(std::move(inner)) {}
    absl::Status Copy(backend::SlotRange slots, absl::Span<const int32_t> theirs,
                      absl::Span<const int32_t> ours) override {
      ++copier_.device_copies;
      if (absl::Status status = inner_->Copy(slots, theirs, ours); !status.ok()) return status;
      return copier_.after_copy();
    }

   private:
    WatchedCopier& copier_;
    const std::unique_ptr<backend::PeerPool> inner_;
  };
  const std::unique_ptr<backend::KvCopier> inner_;
};

// A worker's pool on its emulated device.
struct DeviceEnd {
  explicit DeviceEnd(const kv::KvLayout& layout)
      : bytes(static_cast<size_t>(kDeviceBlocks * layout.BlockBytes())),
        runtime(backend::cuda::MakeEmulatedRuntime(80, size_t{64} << 20)) {
    pool.block_stride_bytes = layout.BlockBytes();
    pool.layer_stride_bytes = layout.ChunkBytes();
    pool.block_count = kDeviceBlocks;
    const size_t staging =
        backend::cuda::CudaKvCopier::DeviceBytes(static_cast<size_t>(layout.ChunkBytes()));
    const size_t arena_bytes = staging + bytes + 4096;
    auto* const arena = static_cast<std::byte*>(runtime->AllocateDevice(arena_bytes).value());
    pool.base = arena + staging + 768;
    copier = std::make_unique<WatchedCopier>(
        backend::cuda::CudaKvCopier::Make(pool, std::make_unique<StagingBuffer>(arena, staging),
                                          *runtime, {arena, arena_bytes})
            .value());
    pool.copier = copier.get();
  }
  void Fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < bytes; ++i) pool.base[i] = static_cast<std::byte>(random());
  }
  const size_t bytes;
  std::unique_ptr<backend::cuda::Runtime> runtime;
  std::unique_ptr<WatchedCopier> copier;
  backend::KvPool pool;
};

class DevicePoolTest : public ::testing::Test {
 protected:
  DevicePoolTest() { prefill_.Fill(5); }

  void StartServer(SharedPoolServer::Options options = {}) {
    server_ = *SharedPoolServer::Start(prefill_.pool, layout_, clock_, std::move(options));
  }
  absl::StatusOr<std::shared_ptr<SharedPool>> ConnectTo(const std::string& socket,
                                                        const std::string& token) {
    return SharedPool::Connect(socket, token, layout_, absl::Minutes(1), decode_.copier.get());
  }
  std::shared_ptr<SharedPool> Connect() {
    auto pool = ConnectTo(server_->socket(), server_->token());
    BATON_CHECK(pool.ok()) << pool.status();
    return *std::move(pool);
  }

  struct Transfer {
    uint64_t id = RandomId64();
    std::vector<kv::BlockId> source, target;
    std::shared_ptr<absl::Notification> released = std::make_shared<absl::Notification>();
  };
  Transfer MakeTransfer() {
    Transfer transfer;
    std::vector<kv::BlockId> all(kDeviceBlocks);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random_);
    transfer.source.assign(all.begin(), all.begin() + kDeviceFirst + kDeviceSent);
    std::shuffle(all.begin(), all.end(), random_);
    transfer.target.assign(all.begin(), all.begin() + kDeviceSent);
    return transfer;
  }
  // What a prefill worker sends of it. The sender is gone when it returns, if `ends`.
  std::vector<grpc::ByteBuffer> Send(const Transfer& transfer, std::shared_ptr<ReadLease> lease,
                                     bool together = false,
                                     std::optional<int64_t> payload_bytes = std::nullopt) {
    FrameSender::Options options;
    options.transfer_id = transfer.id;
    options.epoch = 6;
    options.layout = layout_;
    options.pool = prefill_.pool;
    if (!together) options.max_payload_bytes = 4 * layout_.ChunkBytes();
    if (payload_bytes) options.max_payload_bytes = *payload_bytes;
    options.layer_runs = together;
    options.lease = std::move(lease);
    options.offered = server_.get();
    const auto pin = std::make_shared<const PinnedBlocks>(
        transfer.source, [released = transfer.released] { released->Notify(); });
    CollectingSender sender(std::move(options));
    sender.holds = together;
    sender.SendAccepted(kDeviceSent, 0);
    for (int layer = 0; layer < kDeviceLayers; ++layer) {
      sender.SendLayer(layer, kDeviceFirst, kDeviceSent, pin, nullptr);
    }
    sender.SendFirstToken(7, {});
    sender.SendCommit(1, 2);
    sender.Release();
    return sender.messages;
  }
  TransferPlan Plan(const Transfer& transfer, std::shared_ptr<SharedPool> shared) const {
    TransferPlan plan;
    plan.transfer_id = transfer.id;
    plan.sender_epoch = 6;
    plan.layout = layout_;
    plan.pool = decode_.pool;
    plan.first_block = kDeviceFirst;
    plan.blocks = transfer.target;
    plan.token_count = 100;
    plan.shared_pool = std::move(shared);
    return plan;
  }
  static absl::Status Give(const std::vector<grpc::ByteBuffer>& messages, KvReceiver& receiver) {
    for (const grpc::ByteBuffer& message : messages) {
      const auto decoded = DecodeFrame(message);
      if (!decoded.ok()) return decoded.status();
      if (absl::Status status = receiver.OnFrame(decoded->frame, decoded->payload); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }
  void ExpectArrived(const Transfer& transfer) const {
    const auto block = static_cast<size_t>(layout_.BlockBytes());
    for (size_t i = 0; i < kDeviceSent; ++i) {
      EXPECT_EQ(std::memcmp(decode_.pool.base + static_cast<size_t>(transfer.target[i]) * block,
                            prefill_.pool.base +
                                static_cast<size_t>(transfer.source[kDeviceFirst + i]) * block,
                            block),
                0)
          << "block " << i;
    }
  }

  const kv::KvLayout layout_ = DeviceLayout();
  testing::FakeClock clock_;
  DeviceEnd prefill_{layout_}, decode_{layout_};
  std::unique_ptr<SharedPoolServer> server_;
  std::mt19937 random_{testing::TestSeed(11)};
};

TEST_F(DevicePoolTest, BlocksGoFromDeviceToDevice) {
  StartServer();
  EXPECT_EQ(server_->plane(), Plane::kIpc);
  const auto shared = Connect();
  EXPECT_EQ(shared->plane(), Plane::kIpc);
  for (int round = 0; round < 5; ++round) {
    Transfer transfer = MakeTransfer();
    const auto messages = Send(transfer, server_->Open(shared->connection(), transfer.id));
    int64_t wire = 0;
    for (const grpc::ByteBuffer& message : messages) wire += static_cast<int64_t>(message.Length());
    EXPECT_LT(wire, kDeviceSent * layout_.BlockBytes() / 50);
    KvReceiver receiver(Plan(transfer, shared));
    EXPECT_FALSE(transfer.released->HasBeenNotified());
    ASSERT_TRUE(Give(messages, receiver).ok());
    EXPECT_EQ(receiver.phase(), KvReceiver::Phase::kCommitted);
    EXPECT_EQ(receiver.summary().shared_kv_bytes, kDeviceSent * layout_.BlockBytes());
    EXPECT_EQ(receiver.summary().shared_plane, Plane::kIpc);
    ExpectArrived(transfer);
    transfer.released->WaitForNotification();
  }
  EXPECT_EQ(server_->open_leases(), 0);
  EXPECT_EQ(prefill_.copier->host_copies + decode_.copier->host_copies, 0);
}

// Also of layers that are longer than a frame with a payload.
TEST_F(DevicePoolTest, SeveralLayersAreOneCopy) {
  StartServer();
  const auto shared = Connect();
  for (const int64_t payload_bytes : {FrameSender::kMaxPayloadBytes, 4 * layout_.ChunkBytes()}) {
    Transfer transfer = MakeTransfer();
    const int before = decode_.copier->device_copies;
    const auto messages = Send(transfer, server_->Open(shared->connection(), transfer.id),
                               /*together=*/true, payload_bytes);
    KvReceiver receiver(Plan(transfer, shared));
    ASSERT_TRUE(Give(messages, receiver).ok());
    EXPECT_EQ(receiver.phase(), KvReceiver::Phase::kCommitted);
    ExpectArrived(transfer);
    EXPECT_EQ(decode_.copier->device_copies, before + 1);
    EXPECT_EQ(prefill_.copier->host_copies + decode_.copier->host_copies, 0);
    transfer.released->WaitForNotification();
  }
}

// A copy that ends after the blocks are another prompt's.
TEST_F(DevicePoolTest, ALeaseThatEndsDuringTheCopyIsNoticed) {
  StartServer();
  const auto shared = Connect();
  Transfer transfer = MakeTransfer();
  const auto messages = Send(transfer, server_->Open(shared->connection(), transfer.id));
  KvReceiver receiver(Plan(transfer, shared));
  ASSERT_TRUE(Give({messages[0], messages[1]}, receiver).ok());
  decode_.copier->after_copy = [&] {
    clock_.Advance(SharedPoolServer::Options().grace);
    Connect();  // wakes the server: it looks at the time
    transfer.released->WaitForNotification();
    prefill_.Fill(99);
    return absl::OkStatus();
  };
  const absl::Status status = Give({messages[2]}, receiver);
  EXPECT_EQ(ErrorReason(status), "PREFILL_LOST") << status;
  EXPECT_EQ(receiver.phase(), KvReceiver::Phase::kAborted);
}

TEST_F(DevicePoolTest, ACopyThatFailsEndsTheTransferAndTheUseOfThePool) {
  StartServer();
  SharedPools pools(layout_, clock_, true, decode_.copier.get());
  const SharedPoolOffer offer{server_->socket(), server_->token(), /*device=*/true};
  pools.Offer(9, offer);
  pools.WaitUntilTried();
  ASSERT_EQ(pools.Find(9).reason, PlaneReason::kOpened);
  EXPECT_EQ(PeerMappings(), 1);
  Transfer transfer = MakeTransfer(), other = MakeTransfer();
  const uint64_t connection = pools.Find(9).pool->connection();
  const auto messages = Send(transfer, server_->Open(connection, transfer.id));
  const auto others = Send(other, server_->Open(connection, other.id));
  KvReceiver receiver(Plan(transfer, pools.Find(9).pool));
  decode_.copier->after_copy = [] {
    return MakeError(absl::StatusCode::kUnavailable, "SHARED_MEMORY", "an illegal address");
  };
  const absl::Status status = Give(messages, receiver);
  EXPECT_EQ(ErrorReason(status), "PREFILL_LOST") << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "an illegal address")) << status;
  // Both sides let go of everything.
  transfer.released->WaitForNotification();
  other.released->WaitForNotification();
  while (pools.Find(9).pool != nullptr) std::this_thread::yield();
  while (PeerMappings() > 0) std::this_thread::yield();
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kFailed);
  // For good: the next request would fail likewise.
  clock_.Advance(absl::Hours(1));
  pools.Offer(9, offer);
  pools.WaitUntilTried();
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kFailed);
  EXPECT_EQ(decode_.copier->opened, 1);
  // Over gRPC instead.
  decode_.copier->after_copy = [] { return absl::OkStatus(); };
  Transfer late = MakeTransfer();
  KvReceiver over_grpc(Plan(late, nullptr));
  ASSERT_TRUE(Give(Send(late, nullptr), over_grpc).ok());
  ExpectArrived(late);
}

TEST_F(DevicePoolTest, NamesOfBlocksAreCheckedBeforeTheDeviceSeesThem) {
  StartServer();
  const auto shared = Connect();
  int copies = 0;
  decode_.copier->after_copy = [&] {
    ++copies;
    return absl::OkStatus();
  };
  const auto give = [&](const std::function<void(internal::v1::PrefillFrame&)>& change) {
    Transfer transfer = MakeTransfer();
    const auto messages = Send(transfer, server_->Open(shared->connection(), transfer.id));
    internal::v1::PrefillFrame frame = DecodeFrame(messages[1])->frame;
    EXPECT_EQ(frame.kv_chunk().shared_checksum(), 0u);
    change(frame);
    frame.set_checksum(FrameChecksum(frame, {}));
    KvReceiver receiver(Plan(transfer, shared));
    BATON_CHECK(Give({messages[0]}, receiver).ok());
    return ErrorReason(receiver.OnFrame(frame, {}));
  };
  using internal::v1::PrefillFrame;
  for (const int block : {-1, kDeviceBlocks, 1 << 30}) {
    EXPECT_EQ(give([block](PrefillFrame& frame) {
                frame.mutable_kv_chunk()->set_shared_blocks(1, block);
              }),
              "PROTOCOL");
  }
  EXPECT_EQ(give([](PrefillFrame& frame) { frame.mutable_kv_chunk()->add_shared_blocks(0); }),
            "PROTOCOL");
  EXPECT_EQ(give([](PrefillFrame& frame) { frame.mutable_kv_chunk()->set_shared_checksum(1); }),
            "PROTOCOL");
  EXPECT_EQ(copies, 0);
  EXPECT_EQ(give([](PrefillFrame& frame) { frame.mutable_kv_chunk()->set_lease(0); }),
            "PREFILL_LOST");
  EXPECT_EQ(give([](PrefillFrame&) {}), "");
  EXPECT_EQ(copies, 2);
}

TEST_F(DevicePoolTest, AFaultyWelcomeOpensNothing) {
  const FileDescriptor words(memfd_create("words", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(words.get(), 4096), 0);
  ASSERT_EQ(fcntl(words.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  const FileDescriptor unsealed(memfd_create("words", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  DeviceWelcome good;
  good.welcome.connection = 5;
  good.welcome.kv_layout_fingerprint = layout_.Fingerprint();
  good.welcome.pool_bytes = prefill_.bytes;
  good.welcome.lease_slots = 512;
  good.pool = prefill_.copier->Export().value();
  good.checksum = good.Checksum();
  const auto connect = [&](const auto& welcome, std::vector<int> files) {
    FaultyServer server(welcome, std::move(files));
    return ConnectTo(server.name, std::string(kSocketTokenBytes, 'x'));
  };
  {
    const auto pool = connect(good, {words.get()});
    ASSERT_TRUE(pool.ok()) << pool.status();
    EXPECT_EQ(PeerMappings(), 1);
  }
  EXPECT_EQ(PeerMappings(), 0);
  EXPECT_FALSE(connect(good, {}).ok());
  EXPECT_FALSE(connect(good, {words.get(), words.get()}).ok());
  EXPECT_FALSE(connect(good, {unsealed.get()}).ok());
  EXPECT_FALSE(connect(good, {0}).ok());
  EXPECT_FALSE(connect(good.welcome, {words.get()}).ok());
  // A flipped bit anywhere, before anything is made of it.
  const int opened = decode_.copier->opened;
  for (size_t at = 0; at < sizeof(good); ++at) {
    DeviceWelcome damaged = good;
    reinterpret_cast<unsigned char*>(&damaged)[at] ^= 1 << at % 8;
    EXPECT_FALSE(connect(damaged, {words.get()}).ok()) << "byte " << at;
  }
  EXPECT_EQ(decode_.copier->opened, opened);
  // Values that are wrong, and signed.
  const auto changed = [&](auto change) {
    DeviceWelcome welcome = good;
    change(welcome);
    welcome.checksum = welcome.Checksum();
    return connect(welcome, {words.get()}).ok();
  };
  const uint64_t most = ~uint64_t{0};
  const uint64_t block = static_cast<uint64_t>(layout_.BlockBytes());
  EXPECT_FALSE(changed([](DeviceWelcome& w) { ++w.welcome.magic; }));
  EXPECT_FALSE(changed([](DeviceWelcome& w) { ++w.welcome.kv_layout_fingerprint; }));
  EXPECT_FALSE(changed([](DeviceWelcome& w) { w.welcome.lease_slots = 513; }));
  EXPECT_FALSE(changed([](DeviceWelcome& w) { w.welcome.lease_slots = 0; }));
  EXPECT_FALSE(changed([=](DeviceWelcome& w) { w.welcome.lease_slots = most; }));
  EXPECT_FALSE(changed([](DeviceWelcome& w) { w.welcome.pool_bytes = 0; }));
  EXPECT_FALSE(changed([=](DeviceWelcome& w) { w.welcome.pool_bytes += block; }));
  EXPECT_FALSE(changed([=](DeviceWelcome& w) { w.welcome.pool_bytes = most / block * block; }));
  // As many blocks as it says, but not in the memory.
  EXPECT_FALSE(changed([=](DeviceWelcome& w) {
    w.welcome.pool_bytes = most / block * block;
    w.pool.block_count = most / block;
  }));
  EXPECT_FALSE(changed([=](DeviceWelcome& w) {
    w.welcome.pool_bytes += 4 * block;
    w.pool.block_count += 4;
  }));
  EXPECT_FALSE(changed([](DeviceWelcome& w) { --w.pool.block_count; }));
  EXPECT_FALSE(changed([=](DeviceWelcome& w) { w.pool.offset += block; }));
  EXPECT_FALSE(changed([=](DeviceWelcome& w) { w.pool.offset = most; }));
  EXPECT_FALSE(changed([](DeviceWelcome& w) { w.pool.allocation_bytes += 1 << 20; }));
  EXPECT_FALSE(changed([](DeviceWelcome& w) { w.pool.block_stride_bytes *= 2; }));
  EXPECT_FALSE(changed([](DeviceWelcome& w) { w.pool.layer_stride_bytes = 0; }));
  EXPECT_FALSE(changed([](DeviceWelcome& w) { w.pool.memory.fill(0xff); }));
  EXPECT_EQ(PeerMappings(), 0);
}

// As two GPUs without peer access. The prefill worker hears of it by the end of the connection.
TEST_F(DevicePoolTest, APoolThatCannotBeReachedIsTriedAgainAfterAWhile) {
  StartServer();
  SharedPools pools(layout_, clock_, true, decode_.copier.get());
  const SharedPoolOffer offer{server_->socket(), server_->token(), /*device=*/true};
  decode_.copier->refuses =
      MakeError(absl::StatusCode::kFailedPrecondition, "SHARED_MEMORY", "no peer access");
  pools.Offer(9, offer);
  pools.WaitUntilTried();
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kFailed);
  EXPECT_EQ(pools.Find(9).pool, nullptr);
  decode_.copier->refuses = absl::OkStatus();
  pools.Offer(9, offer);
  pools.WaitUntilTried();
  EXPECT_EQ(decode_.copier->opened, 1);
  clock_.Advance(absl::Seconds(30));
  pools.Offer(9, offer);
  pools.WaitUntilTried();
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kOpened);
}

// The device reads something else than the pool: no KV comes that way, ever.
TEST_F(DevicePoolTest, APoolWhoseProbeBlockDiffersIsNotRead) {
  StartServer();
  SharedPools pools(layout_, clock_, true, decode_.copier.get());
  const SharedPoolOffer offer{server_->socket(), server_->token(), /*device=*/true};
  decode_.copier->misreads = true;
  pools.Offer(9, offer);
  pools.WaitUntilTried();
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kUnproven);
  EXPECT_EQ(pools.Find(9).pool, nullptr);
  EXPECT_EQ(PeerMappings(), 0);
  decode_.copier->misreads = false;
  clock_.Advance(absl::Hours(1));
  pools.Offer(9, offer);
  pools.WaitUntilTried();
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kUnproven);
  EXPECT_EQ(decode_.copier->opened, 1);
  // A pool of another worker is taken.
  pools.Offer(10, offer);
  pools.WaitUntilTried();
  EXPECT_EQ(pools.Find(10).reason, PlaneReason::kOpened);
}

// Opening one that hangs keeps no transfer from another way.
TEST_F(DevicePoolTest, WhileAPoolIsBeingOpenedKvComesOverGrpc) {
  StartServer();
  absl::Notification opening, goes_on;
  decode_.copier->before_open = [&] {
    opening.Notify();
    goes_on.WaitForNotification();
  };
  SharedPools pools(layout_, clock_, true, decode_.copier.get());
  pools.Offer(9, {server_->socket(), server_->token(), /*device=*/true});
  opening.WaitForNotification();
  EXPECT_FALSE(pools.WaitUntilTried(absl::Milliseconds(1)));
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kConnecting);
  Transfer transfer = MakeTransfer();
  KvReceiver receiver(Plan(transfer, pools.Find(9).pool));
  ASSERT_TRUE(Give(Send(transfer, nullptr), receiver).ok());
  ExpectArrived(transfer);
  goes_on.Notify();
  EXPECT_TRUE(pools.WaitUntilTried(absl::Minutes(1)));
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kOpened);
}

// What each kind of reader takes.
TEST_F(DevicePoolTest, PoolsOfAnotherKindAreNotAskedFor) {
  StartServer();
  const SharedPoolOffer offer{server_->socket(), server_->token(), /*device=*/true};
  SharedPools host_only(layout_, clock_), device_only(layout_, clock_, false, decode_.copier.get());
  EXPECT_FALSE(host_only.opens_device_pools());
  host_only.Offer(9, offer);
  EXPECT_EQ(host_only.Find(9).reason, PlaneReason::kNotOffered);
  device_only.Offer(9, {"baton-no-such-socket", server_->token(), /*device=*/false});
  EXPECT_EQ(device_only.Find(9).reason, PlaneReason::kNotOffered);
  device_only.Offer(9, offer);
  device_only.WaitUntilTried();
  EXPECT_EQ(device_only.Find(9).reason, PlaneReason::kOpened);
  // Even if an offer says the wrong thing.
  const auto pool =
      SharedPool::Connect(server_->socket(), server_->token(), layout_, absl::Minutes(1), nullptr);
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kFailedPrecondition) << pool.status();
}

// Freeing memory that others have open is undefined, so the server waits for them.
TEST_F(DevicePoolTest, TheServerEndsWhenNoReaderHasThePoolOpen) {
  StartServer();
  SharedPools pools(layout_, clock_, true, decode_.copier.get());
  pools.Offer(9, {server_->socket(), server_->token(), /*device=*/true});
  pools.WaitUntilTried();
  ASSERT_EQ(pools.Find(9).reason, PlaneReason::kOpened);
  EXPECT_EQ(PeerMappings(), 1);
  Transfer transfer = MakeTransfer();
  const auto messages =
      Send(transfer, server_->Open(pools.Find(9).pool->connection(), transfer.id));
  // The last transfer has the pool until it ends.
  auto receiver = std::make_unique<KvReceiver>(Plan(transfer, pools.Find(9).pool));
  std::thread ends([&] {
    while (pools.Find(9).pool != nullptr) std::this_thread::yield();
    EXPECT_EQ(PeerMappings(), 1);
    EXPECT_TRUE(Give(messages, *receiver).ok());
  });
  server_.reset();
  EXPECT_EQ(PeerMappings(), 0);
  ends.join();
  ExpectArrived(transfer);
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kNotOffered);
}

TEST_F(DevicePoolTest, AReaderThatClosesNothingHoldsTheServerNoLongerThanTheGrace) {
  SharedPoolServer::Options options;
  options.grace = absl::Milliseconds(20);
  StartServer(options);
  const auto shared = Connect();
  Transfer transfer = MakeTransfer();
  Send(transfer, server_->Open(shared->connection(), transfer.id));
  server_.reset();
  transfer.released->WaitForNotification();
}

// The decode worker of the tests below: opens the pool, says its connection, then answers each
// transfer (id, frames) with the status of its receiver and the bytes of its pool.
TEST_F(DevicePoolTest, TheReader) {
  testing::ParentEnd parent;
  if (!parent) GTEST_SKIP() << "a part of the other tests";
  std::string socket, token;
  ASSERT_TRUE(parent.ReceiveText(&socket) && parent.ReceiveText(&token));
  const auto shared = ConnectTo(socket, token);
  ASSERT_TRUE(shared.ok()) << shared.status();
  const uint64_t connection = (*shared)->connection();
  parent.Send(&connection, sizeof(connection));
  Transfer transfer;
  while (parent.Receive(&transfer.id, sizeof(transfer.id))) {
    transfer.target.resize(kDeviceSent);
    std::iota(transfer.target.begin(), transfer.target.end(), 0);
    KvReceiver receiver(Plan(transfer, *shared));
    std::string bytes;
    absl::Status status;
    while (parent.ReceiveText(&bytes) && !bytes.empty()) {
      const grpc::Slice slice(bytes);
      status.Update(Give({grpc::ByteBuffer(&slice, 1)}, receiver));
    }
    parent.SendText(ErrorReason(status));
    parent.Send(decode_.pool.base, decode_.bytes);
  }
}

// The prefill worker of the test below: says where its socket is, and waits.
TEST_F(DevicePoolTest, TheExporter) {
  testing::ParentEnd parent;
  if (!parent) GTEST_SKIP() << "a part of another test";
  StartServer();
  parent.SendText(server_->socket());
  parent.SendText(server_->token());
  char word;
  parent.Receive(&word, 1);
}

// Before the probe block is read, and behind that.
TEST_F(DevicePoolTest, AnExporterThatDiesWhileItsPoolIsOpenedIsNotRead) {
  for (const bool before : {true, false}) {
    testing::ChildProcess exporter("DevicePoolTest.TheExporter", "exporter");
    SharedPoolOffer offer;
    offer.device = true;
    ASSERT_TRUE(exporter.ReceiveText(&offer.socket) && exporter.ReceiveText(&offer.token));
    const auto kill = [&] {
      exporter.Kill(SIGKILL);
      exporter.Wait();
    };
    decode_.copier->before_open = before ? std::function<void()>(kill) : [] {};
    decode_.copier->after_open = before ? [] {} : std::function<void()>(kill);
    SharedPools pools(layout_, clock_, true, decode_.copier.get());
    pools.Offer(9, offer);
    pools.WaitUntilTried();
    while (pools.Find(9).pool != nullptr) std::this_thread::yield();
    EXPECT_EQ(pools.Find(9).reason, before ? PlaneReason::kFailed : PlaneReason::kNotOffered);
    while (PeerMappings() > 0) std::this_thread::yield();
  }
}

class TwoProcessesTest : public DevicePoolTest {
 protected:
  void StartReader() {
    reader_ = std::make_unique<testing::ChildProcess>("DevicePoolTest.TheReader", "reader");
    reader_->SendText(server_->socket());
    reader_->SendText(server_->token());
    ASSERT_TRUE(reader_->Receive(&connection_, sizeof(connection_)));
  }
  void SendFrames(const Transfer& transfer, const std::vector<grpc::ByteBuffer>& messages) {
    reader_->Send(&transfer.id, sizeof(transfer.id));
    for (const grpc::ByteBuffer& message : messages) {
      std::vector<grpc::Slice> slices;
      ASSERT_TRUE(message.Dump(&slices).ok());
      std::string bytes;
      for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
      reader_->SendText(bytes);
    }
  }
  std::unique_ptr<testing::ChildProcess> reader_;
  uint64_t connection_ = 0;
};

TEST_F(TwoProcessesTest, BlocksGoFromOneToTheOther) {
  StartServer();
  StartReader();
  for (int round = 0; round < 3; ++round) {
    Transfer transfer = MakeTransfer();
    SendFrames(transfer, Send(transfer, server_->Open(connection_, transfer.id)));
    reader_->SendText("");
    std::string reason, pool(decode_.bytes, 0);
    ASSERT_TRUE(reader_->ReceiveText(&reason));
    EXPECT_EQ(reason, "");
    ASSERT_TRUE(reader_->Receive(pool.data(), pool.size()));
    std::memcpy(decode_.pool.base, pool.data(), pool.size());
    transfer.target.resize(kDeviceSent);
    std::iota(transfer.target.begin(), transfer.target.end(), 0);
    ExpectArrived(transfer);
    transfer.released->WaitForNotification();
  }
  reader_->Close();
  EXPECT_EQ(reader_->Wait(), 0);
  EXPECT_EQ(server_->open_leases(), 0);
}

// The kernel closes its socket; one that is stopped has the grace.
TEST_F(TwoProcessesTest, AKilledReadersBlocksAreFreed) {
  StartServer();
  StartReader();
  Transfer transfer = MakeTransfer();
  const auto messages = Send(transfer, server_->Open(connection_, transfer.id));
  SendFrames(transfer, {messages[0], messages[1]});
  EXPECT_FALSE(transfer.released->HasBeenNotified());
  reader_->Kill(SIGKILL);
  transfer.released->WaitForNotification();
  EXPECT_EQ(server_->open_leases(), 0);
}

TEST_F(TwoProcessesTest, AStoppedReadersBlocksAreFreedAfterTheGraceAndItFindsOut) {
  StartServer();
  StartReader();
  reader_->Kill(SIGSTOP);
  Transfer transfer = MakeTransfer();
  const auto messages = Send(transfer, server_->Open(connection_, transfer.id));
  clock_.Advance(SharedPoolServer::Options().grace - absl::Milliseconds(1));
  Connect();  // wakes the server
  EXPECT_FALSE(transfer.released->HasBeenNotified());
  clock_.Advance(absl::Milliseconds(1));
  Connect();
  transfer.released->WaitForNotification();
  reader_->Kill(SIGCONT);
  SendFrames(transfer, messages);
  reader_->SendText("");
  std::string reason;
  ASSERT_TRUE(reader_->ReceiveText(&reason));
  EXPECT_EQ(reason, "PREFILL_LOST");
}

}  // namespace
}  // namespace baton::transfer
