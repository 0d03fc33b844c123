#include "common/transfer/shared_pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/random_id.h"
#include "common/transfer/frame_codec.h"
#include "common/transfer/kv_receiver.h"
#include "common/transfer/kv_sender.h"
#include "common/transfer/shared_pool_server.h"
#include "common/transfer/shared_pools.h"
#include "tests/common/transfer/pool_ends.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/device_kv.h"
#include "tests/testing/seed.h"

namespace baton::transfer {
namespace {

using internal::v1::PrefillFrame;

constexpr int kLayers = 3, kBlocks = 40, kSent = 21, kFirst = 4;
constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

kv::KvLayout Layout() {
  kv::KvLayout layout;
  layout.layers = kLayers;
  layout.kv_heads = 2;
  layout.head_dim = 16;  // chunks of 2 KiB
  return layout;
}

// A memory file, mapped for writing.
class MemoryFile {
 public:
  explicit MemoryFile(int64_t bytes, int seals = kSealed)
      : bytes_(static_cast<size_t>(bytes)),
        file_(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    BATON_CHECK_EQ(ftruncate(file_.get(), bytes), 0);
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    BATON_CHECK(data_ != MAP_FAILED);
    if (seals != 0) BATON_CHECK_EQ(fcntl(file_.get(), F_ADD_SEALS, seals), 0);
  }
  ~MemoryFile() { munmap(data_, bytes_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return bytes_; }
  int fd() const { return file_.get(); }

 private:
  const size_t bytes_;
  FileDescriptor file_;
  void* data_;
};

// A prefill worker's pool and server, and a receiver's pool in host or device memory.
class SharedPoolTest : public ::testing::TestWithParam<bool> {
 protected:
  SharedPoolTest() : layout_(Layout()), memory_(kBlocks * layout_.BlockBytes()) {
    std::mt19937 random(testing::TestSeed(7));
    for (size_t i = 0; i < memory_.size(); ++i) {
      memory_.data()[i] = static_cast<std::byte>(random());
    }
    pool_ = PoolOf(memory_.data());
    pool_.shared_file = memory_.fd();
    target_ = PoolOf(nullptr);
    if (GetParam()) {
      device_ = std::make_unique<testing::DeviceKv>(target_, kLayers);
    } else {
      host_.assign(static_cast<size_t>(kBlocks * layout_.BlockBytes()), std::byte{0xee});
      target_.base = host_.data();
    }
  }

  backend::KvPool PoolOf(std::byte* base) const {
    backend::KvPool pool;
    pool.base = base;
    pool.block_stride_bytes = layout_.BlockBytes();
    pool.layer_stride_bytes = layout_.ChunkBytes();
    pool.block_count = kBlocks;
    return pool;
  }
  void StartServer(SharedPoolServer::Options options = {}) {
    server_ = *SharedPoolServer::Start(pool_, layout_, clock_, std::move(options));
  }
  std::shared_ptr<SharedPool> Connect() {
    auto pool = SharedPool::Connect(server_->socket(), server_->token(), layout_, absl::Minutes(1));
    BATON_CHECK(pool.ok()) << pool.status();
    return *std::move(pool);
  }

  // The blocks of a transfer, pinned until `released`.
  struct Transfer {
    uint64_t id = 0;
    std::vector<kv::BlockId> source, target;
    std::shared_ptr<const PinnedBlocks> pin;
    std::shared_ptr<absl::Notification> released = std::make_shared<absl::Notification>();
  };
  Transfer MakeTransfer() {
    Transfer transfer;
    transfer.id = RandomId64();
    std::vector<kv::BlockId> all(kBlocks);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random_);
    transfer.source.assign(all.begin(), all.begin() + kFirst + kSent);
    std::shuffle(all.begin(), all.end(), random_);
    transfer.target.assign(all.begin(), all.begin() + kSent);
    transfer.pin = std::make_shared<const PinnedBlocks>(
        transfer.source, [released = transfer.released] { released->Notify(); });
    return transfer;
  }
  std::unique_ptr<CollectingSender> Send(Transfer& transfer, std::shared_ptr<ReadLease> lease,
                                         bool check_shared = true, bool together = false) {
    FrameSender::Options options;
    options.transfer_id = transfer.id;
    options.epoch = 6;
    options.layout = layout_;
    options.pool = pool_;
    if (!together) options.max_payload_bytes = 4 * layout_.ChunkBytes();
    options.layer_runs = together;
    options.lease = std::move(lease);
    options.check_shared = check_shared;
    auto sender = std::make_unique<CollectingSender>(std::move(options));
    sender->holds = together;
    sender->SendAccepted(kSent, 0);
    for (int layer = 0; layer < kLayers; ++layer) {
      sender->SendLayer(layer, kFirst, kSent, transfer.pin, nullptr);
    }
    sender->SendFirstToken(7, {});
    sender->SendCommit(1, 2);
    sender->Release();
    transfer.pin.reset();
    return sender;
  }
  TransferPlan Plan(const Transfer& transfer, std::shared_ptr<SharedPool> shared) const {
    TransferPlan plan;
    plan.transfer_id = transfer.id;
    plan.sender_epoch = 6;
    plan.layout = layout_;
    plan.pool = target_;
    plan.first_block = kFirst;
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
  void ExpectArrived(const Transfer& transfer) {
    const std::byte* received = device_ ? device_->memory().data() : host_.data();
    const size_t bytes = static_cast<size_t>(layout_.BlockBytes());
    for (int i = 0; i < kSent; ++i) {
      EXPECT_EQ(std::memcmp(received + transfer.target[i] * bytes,
                            memory_.data() + transfer.source[kFirst + i] * bytes, bytes),
                0)
          << "block " << i;
    }
  }

  const kv::KvLayout layout_;
  MemoryFile memory_;
  backend::KvPool pool_, target_;
  std::vector<std::byte> host_;
  std::unique_ptr<testing::DeviceKv> device_;
  testing::FakeClock clock_;
  std::unique_ptr<SharedPoolServer> server_;
  std::mt19937 random_{testing::TestSeed(11)};
};

// Layers that wait together are named together, up to a bound.
TEST_P(SharedPoolTest, ChunksOfSeveralLayersAreReadFromThePool) {
  StartServer();
  const auto shared = Connect();
  for (const bool checked : {true, false}) {
    Transfer transfer = MakeTransfer();
    const auto sender = Send(transfer, server_->Open(shared->connection(), transfer.id), checked,
                             /*together=*/true);
    EXPECT_EQ(sender->messages.size(), 4u) << "one of KV";
    KvReceiver receiver(Plan(transfer, shared));
    ASSERT_TRUE(Give(sender->messages, receiver).ok());
    EXPECT_EQ(receiver.phase(), KvReceiver::Phase::kCommitted);
    EXPECT_EQ(receiver.summary().shared_kv_bytes, kSent * layout_.BlockBytes());
    ExpectArrived(transfer);
    transfer.released->WaitForNotification();
  }
}

TEST_P(SharedPoolTest, BlocksAreReadFromThePoolAndReleased) {
  StartServer();
  const auto shared = Connect();
  for (const bool checked : {true, false}) {
    Transfer transfer = MakeTransfer();
    auto sender = Send(transfer, server_->Open(shared->connection(), transfer.id), checked);
    int64_t wire = 0;
    for (const grpc::ByteBuffer& message : sender->messages) {
      wire += static_cast<int64_t>(message.Length());
    }
    EXPECT_LT(wire, kSent * layout_.BlockBytes() / 50);
    KvReceiver receiver(Plan(transfer, shared));
    EXPECT_FALSE(transfer.released->HasBeenNotified());
    ASSERT_TRUE(Give(sender->messages, receiver).ok());
    EXPECT_EQ(receiver.phase(), KvReceiver::Phase::kCommitted);
    EXPECT_EQ(receiver.summary().kv_bytes, kSent * layout_.BlockBytes());
    EXPECT_EQ(receiver.summary().shared_kv_bytes, kSent * layout_.BlockBytes());
    ExpectArrived(transfer);
    transfer.released->WaitForNotification();  // while sender and receiver live
    EXPECT_EQ(server_->open_leases(), 0);
  }
}

TEST_P(SharedPoolTest, EveryWayInWhichAReceiverEndsReleases) {
  StartServer();
  const auto shared = Connect();
  for (const bool abort : {true, false}) {
    Transfer transfer = MakeTransfer();
    auto sender = Send(transfer, server_->Open(shared->connection(), transfer.id));
    sender->messages.resize(3);
    {
      KvReceiver receiver(Plan(transfer, shared));
      ASSERT_TRUE(Give(sender->messages, receiver).ok());
      EXPECT_FALSE(transfer.released->HasBeenNotified());
      if (abort) receiver.Abort();
    }
    transfer.released->WaitForNotification();
  }
}

TEST_P(SharedPoolTest, AReaderThatGoesReleasesAllItsTransfers) {
  StartServer();
  auto gone = Connect();
  const auto stays = Connect();
  Transfer one = MakeTransfer(), two = MakeTransfer(), other = MakeTransfer();
  auto first = Send(one, server_->Open(gone->connection(), one.id));
  auto second = Send(two, server_->Open(gone->connection(), two.id));
  auto third = Send(other, server_->Open(stays->connection(), other.id));
  const uint64_t connection = gone->connection();
  gone.reset();
  one.released->WaitForNotification();
  two.released->WaitForNotification();
  EXPECT_FALSE(other.released->HasBeenNotified());
  // The connection is no more, so further KV is sent.
  EXPECT_EQ(server_->Open(connection, 77), nullptr);
  Transfer late = MakeTransfer();
  KvReceiver receiver(Plan(late, nullptr));
  ASSERT_TRUE(Give(Send(late, nullptr)->messages, receiver).ok());
  ExpectArrived(late);
}

// A decode worker that is stopped, and goes on after the blocks are another prompt's.
TEST_P(SharedPoolTest, AReaderThatIsTooLateFindsOut) {
  StartServer();
  const auto shared = Connect();
  Transfer transfer = MakeTransfer();
  auto sender = Send(transfer, server_->Open(shared->connection(), transfer.id));
  KvReceiver receiver(Plan(transfer, shared));
  const std::vector<grpc::ByteBuffer> messages = std::move(sender->messages);
  ASSERT_TRUE(Give({messages[0], messages[1]}, receiver).ok());
  sender.reset();  // the stream has ended
  clock_.Advance(SharedPoolServer::Options().grace - absl::Milliseconds(1));
  // Something that wakes the server: it looks at the time.
  Connect();
  EXPECT_FALSE(transfer.released->HasBeenNotified());
  clock_.Advance(absl::Milliseconds(1));
  Connect();
  transfer.released->WaitForNotification();
  const absl::Status status = Give({messages[2]}, receiver);
  EXPECT_EQ(ErrorReason(status), "PREFILL_LOST") << status;
  EXPECT_EQ(receiver.phase(), KvReceiver::Phase::kAborted);
  EXPECT_EQ(server_->open_leases(), 0);
}

TEST_P(SharedPoolTest, LeasesThatHaveEndedInTheMiddleAreNoDanger) {
  StartServer();
  const auto shared = Connect();
  Transfer transfer = MakeTransfer();
  auto lease = server_->Open(shared->connection(), transfer.id);
  shared->Release(transfer.id);
  while (server_->open_leases() > 0) std::this_thread::yield();
  // The sender falls back to payloads.
  KvReceiver receiver(Plan(transfer, shared));
  ASSERT_TRUE(Give(Send(transfer, lease)->messages, receiver).ok());
  EXPECT_EQ(receiver.summary().shared_kv_bytes, 0);
  ExpectArrived(transfer);
}

TEST_P(SharedPoolTest, SlotsAreBoundedAndUsedAgain) {
  SharedPoolServer::Options options;
  options.lease_slots = 2;
  StartServer(options);
  const auto shared = Connect();
  const auto a = server_->Open(shared->connection(), 1);
  const auto b = server_->Open(shared->connection(), 2);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_EQ(server_->Open(shared->connection(), 1), nullptr) << "the same transfer twice";
  EXPECT_EQ(server_->Open(shared->connection(), 3), nullptr);
  EXPECT_TRUE(shared->LeaseStands(a->slot(), a->number()));
  EXPECT_FALSE(shared->LeaseStands(a->slot(), b->number()));
  EXPECT_FALSE(shared->LeaseStands(2, b->number()));
  EXPECT_FALSE(shared->LeaseStands(-1, b->number()));
  shared->Release(1);
  while (server_->open_leases() == 2) std::this_thread::yield();
  EXPECT_FALSE(shared->LeaseStands(a->slot(), a->number()));
  const auto c = server_->Open(shared->connection(), 3);
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(c->slot(), a->slot());
  EXPECT_NE(c->number(), a->number());
}

// The server may go first: handles are held by streams.
TEST_P(SharedPoolTest, TheServerReleasesAllAndWhatIsMappedCanBeRead) {
  StartServer();
  const auto shared = Connect();
  Transfer transfer = MakeTransfer();
  auto lease = server_->Open(shared->connection(), transfer.id);
  auto sender = Send(transfer, lease);
  server_.reset();
  transfer.released->WaitForNotification();
  EXPECT_FALSE(lease->Keep(nullptr));
  pollfd gone{shared->socket(), POLLIN, 0};
  EXPECT_EQ(poll(&gone, 1, -1), 1);
  KvReceiver receiver(Plan(transfer, shared));
  ASSERT_TRUE(Give(sender->messages, receiver).ok());
  ExpectArrived(transfer);
}

// Whatever is damaged, in a frame or in the memory, no transfer commits with other bytes.
TEST_P(SharedPoolTest, DamageIsFound) {
  StartServer();
  const auto shared = Connect();
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 10'000; ++round) {
    Transfer transfer = MakeTransfer();
    auto sender = Send(transfer, server_->Open(shared->connection(), transfer.id));
    std::vector<grpc::ByteBuffer> messages = std::move(sender->messages);
    // A bit of a frame, or of a block between its checksum and its copy.
    std::byte* damaged = nullptr;
    std::byte bit{};
    if (random() % 2 == 0) {
      grpc::ByteBuffer& message = messages[random() % messages.size()];
      std::vector<grpc::Slice> slices;
      ASSERT_TRUE(message.Dump(&slices).ok());
      std::string bytes;
      for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
      const grpc::Slice slice(bytes);
      message = grpc::ByteBuffer(&slice, 1);
    } else {
      const int64_t block = transfer.source[kFirst + random() % kSent];
      damaged = memory_.data() + block * layout_.BlockBytes() +
                static_cast<int64_t>(random() % layout_.BlockBytes());
      bit = static_cast<std::byte>(1 << random() % 8);
      *damaged ^= bit;
    }
    KvReceiver receiver(Plan(transfer, shared));
    const absl::Status status = Give(messages, receiver);
    if (damaged != nullptr) *damaged ^= bit;
    ASSERT_FALSE(status.ok());
    ASSERT_NE(receiver.phase(), KvReceiver::Phase::kCommitted);
    receiver.Abort();
    transfer.released->WaitForNotification();
  }
  EXPECT_EQ(server_->open_leases(), 0);
}

TEST_P(SharedPoolTest, NamesOfBlocksAreChecked) {
  StartServer();
  const auto shared = Connect();
  const auto give = [&](const std::function<void(PrefillFrame&)>& change, bool mapped = true) {
    Transfer transfer = MakeTransfer();
    auto sender = Send(transfer, server_->Open(shared->connection(), transfer.id));
    PrefillFrame frame = DecodeFrame(sender->messages[1])->frame;
    change(frame);
    frame.set_checksum(FrameChecksum(frame, {}));
    KvReceiver receiver(Plan(transfer, mapped ? shared : nullptr));
    BATON_CHECK(Give({sender->messages[0]}, receiver).ok());
    const absl::Status status = receiver.OnFrame(frame, {});
    if (!mapped) shared->Release(transfer.id);
    return ErrorReason(status);
  };
  EXPECT_EQ(give([](PrefillFrame&) {}), "");
  EXPECT_EQ(give([](PrefillFrame&) {}, /*mapped=*/false), "PROTOCOL");
  for (const int block : {-1, kBlocks, 1 << 30}) {
    EXPECT_EQ(give([block](PrefillFrame& frame) {
                frame.mutable_kv_chunk()->set_shared_blocks(1, block);
              }),
              "PROTOCOL");
  }
  EXPECT_EQ(give([](PrefillFrame& frame) { frame.mutable_kv_chunk()->add_shared_blocks(0); }),
            "PROTOCOL");
  EXPECT_EQ(give([](PrefillFrame& frame) {
              frame.mutable_kv_chunk()->mutable_shared_blocks()->RemoveLast();
            }),
            "PROTOCOL");
  for (const int slot : {-1, 4096, 1 << 30}) {
    EXPECT_EQ(give([slot](PrefillFrame& frame) { frame.mutable_kv_chunk()->set_lease_slot(slot); }),
              "PREFILL_LOST");
  }
  EXPECT_EQ(give([](PrefillFrame& frame) { frame.mutable_kv_chunk()->set_lease(0); }),
            "PREFILL_LOST");
  EXPECT_EQ(give([](PrefillFrame& frame) { frame.mutable_kv_chunk()->set_shared_checksum(1); }),
            "CHECKSUM");
}

TEST_P(SharedPoolTest, StrangersGetNothing) {
  StartServer();
  const auto refused = [&](const std::string& token) {
    return SharedPool::Connect(server_->socket(), token, layout_, absl::Minutes(1)).status();
  };
  EXPECT_EQ(refused(std::string(kSocketTokenBytes, 'x')).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(refused("").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(SharedPool::Connect("baton-no-such-socket", server_->token(), layout_, absl::Minutes(1))
                .status()
                .code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(SharedPool::Connect(std::string(500, 'x'), server_->token(), layout_, absl::Minutes(1))
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
  // Garbage of any length ends the connection.
  for (const size_t size : {1, 8, 24, 25, 5000}) {
    const auto socket = OpenAbstractSocket(server_->socket(), SocketEnd::kConnect);
    ASSERT_TRUE(socket.ok());
    const std::string garbage(size, 'x');
    ASSERT_EQ(send(socket->get(), garbage.data(), size, 0), static_cast<ssize_t>(size));
    pollfd end{socket->get(), POLLIN, 0};
    ASSERT_EQ(poll(&end, 1, -1), 1);
    char byte;
    EXPECT_LE(recv(socket->get(), &byte, 1, MSG_DONTWAIT), 0);
  }
  // So does a message that is no release.
  const auto shared = Connect();
  ASSERT_EQ(send(shared->socket(), "abc", 3, 0), 3);
  pollfd end{shared->socket(), POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, -1), 1);
  // Nor can a reader write.
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.fd(), 0), MAP_FAILED);
}

TEST_P(SharedPoolTest, OtherUsersOfTheMachineGetNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  StartServer();
  std::thread([&] {
    // The system call changes this thread alone.
    BATON_CHECK_EQ(syscall(SYS_setresuid, -1, 65534, -1), 0);
    const auto pool =
        SharedPool::Connect(server_->socket(), server_->token(), layout_, absl::Minutes(1));
    EXPECT_EQ(pool.status().code(), absl::StatusCode::kFailedPrecondition) << pool.status();
    // One that does not look whose socket it is.
    const auto socket = OpenAbstractSocket(server_->socket(), SocketEnd::kConnect);
    ASSERT_TRUE(socket.ok()) << socket.status();
    SocketHello hello;
    std::memcpy(hello.token, server_->token().data(), sizeof(hello.token));
    send(socket->get(), &hello, sizeof(hello), MSG_NOSIGNAL);
    pollfd ready{socket->get(), POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, -1), 1);
    char byte;
    EXPECT_LE(recv(socket->get(), &byte, 1, 0), 0);
  }).join();
  Connect();
}

TEST_P(SharedPoolTest, AConnectionWithoutAHelloIsClosedInTime) {
  SharedPoolServer::Options options;
  options.max_connections = 1;
  StartServer(options);
  const auto silent = OpenAbstractSocket(server_->socket(), SocketEnd::kConnect);
  ASSERT_TRUE(silent.ok());
  std::thread passing([&] {
    // The server counts from when it has accepted.
    pollfd end{silent->get(), POLLIN, 0};
    while (poll(&end, 1, 1) == 0) clock_.Advance(absl::Seconds(1));
  });
  Connect();  // waits for the place
  passing.join();
}

// Descriptors of this process for MemoryFiles.
int OpenMemoryFiles() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += absl::StrContains(std::filesystem::read_symlink(entry, gone).string(), "/memfd:test");
  }
  return count;
}

TEST_P(SharedPoolTest, AFaultyWelcomeIsRefused) {
  const MemoryFile words(4096);
  const MemoryFile unsealed(kBlocks * layout_.BlockBytes(), /*seals=*/0);
  const MemoryFile small(layout_.BlockBytes());
  SocketWelcome good;
  good.connection = 5;
  good.kv_layout_fingerprint = layout_.Fingerprint();
  good.pool_bytes = memory_.size();
  good.lease_slots = 512;
  const auto connect = [&](const SocketWelcome& welcome, std::vector<int> files) {
    FaultyServer server(welcome, std::move(files));
    return SharedPool::Connect(server.name, std::string(kSocketTokenBytes, 'x'), layout_,
                               absl::Minutes(1))
        .status();
  };
  const std::vector<int> files{memory_.fd(), words.fd()};
  const int open_before = OpenMemoryFiles();
  EXPECT_TRUE(connect(good, files).ok());
  EXPECT_FALSE(connect(good, {}).ok());
  EXPECT_FALSE(connect(good, {memory_.fd()}).ok());
  EXPECT_FALSE(connect(good, {memory_.fd(), words.fd(), words.fd(), words.fd()}).ok());
  EXPECT_FALSE(connect(good, {unsealed.fd(), words.fd()}).ok());
  EXPECT_FALSE(connect(good, {memory_.fd(), unsealed.fd()}).ok());
  EXPECT_FALSE(connect(good, {small.fd(), words.fd()}).ok());
  EXPECT_FALSE(connect(good, {0, 0}).ok());
  const auto changed = [&](auto change) {
    SocketWelcome welcome = good;
    change(welcome);
    return connect(welcome, files);
  };
  EXPECT_FALSE(changed([](SocketWelcome& w) { ++w.magic; }).ok());
  EXPECT_FALSE(changed([](SocketWelcome& w) { ++w.kv_layout_fingerprint; }).ok());
  EXPECT_FALSE(changed([](SocketWelcome& w) { w.pool_bytes = 0; }).ok());
  EXPECT_FALSE(changed([](SocketWelcome& w) { w.pool_bytes -= 1; }).ok());
  EXPECT_FALSE(changed([](SocketWelcome& w) { w.pool_bytes = ~uint64_t{0}; }).ok());
  EXPECT_FALSE(changed([](SocketWelcome& w) { w.lease_slots = 0; }).ok());
  EXPECT_FALSE(changed([](SocketWelcome& w) { w.lease_slots = 513; }).ok());
  EXPECT_FALSE(changed([](SocketWelcome& w) { w.lease_slots = ~uint64_t{0}; }).ok());
  // No file of theirs stays open.
  EXPECT_EQ(OpenMemoryFiles(), open_before);
}

TEST_P(SharedPoolTest, AServerThatDoesNotReadLosesTheConnectionInsteadOfHoldingUpTheReader) {
  const MemoryFile words(4096);
  SocketWelcome welcome;
  welcome.kv_layout_fingerprint = layout_.Fingerprint();
  welcome.pool_bytes = memory_.size();
  welcome.lease_slots = 512;
  FaultyServer server(welcome, {memory_.fd(), words.fd()});
  const auto shared = SharedPool::Connect(server.name, std::string(kSocketTokenBytes, 'x'), layout_,
                                          absl::Minutes(1));
  ASSERT_TRUE(shared.ok()) << shared.status();
  pollfd end{(*shared)->socket(), POLLIN, 0};
  int sent = 0;
  while (poll(&end, 1, 0) == 0) (*shared)->Release(++sent);
  EXPECT_GT(sent, 100);
}

TEST_P(SharedPoolTest, PoolsAreMappedInTheBackgroundAndGoWithTheirWorker) {
  StartServer();
  SharedPools pools(layout_, clock_);
  EXPECT_EQ(pools.host(), server_->host());
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kNotOffered);
  pools.Offer(9, {server_->socket(), server_->token()});
  pools.WaitUntilTried();
  const auto found = pools.Find(9);
  EXPECT_EQ(found.reason, PlaneReason::kMapped);
  ASSERT_NE(found.pool, nullptr);
  EXPECT_NE(server_->Open(found.pool->connection(), 1), nullptr);
  EXPECT_EQ(pools.Find(8).pool, nullptr);
  // Another offer changes nothing.
  pools.Offer(9, {server_->socket(), server_->token()});
  pools.WaitUntilTried();
  EXPECT_EQ(pools.Find(9).pool, found.pool);
  server_.reset();
  while (pools.Find(9).pool != nullptr) std::this_thread::yield();
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kNotOffered);
  // Only a transfer that still reads keeps the memory.
  while (found.pool.use_count() > 1) std::this_thread::yield();
}

TEST_P(SharedPoolTest, WhatFailedIsTriedAgainAfterAWhile) {
  StartServer();
  SharedPools pools(layout_, clock_);
  const SharedPoolOffer good{server_->socket(), server_->token()};
  pools.Offer(9, {server_->socket(), std::string(kSocketTokenBytes, 'x')});
  pools.WaitUntilTried();
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kFailed);
  pools.Offer(9, good);
  pools.WaitUntilTried();
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kFailed);
  clock_.Advance(absl::Seconds(30));
  pools.Offer(9, good);
  pools.WaitUntilTried();
  EXPECT_EQ(pools.Find(9).reason, PlaneReason::kMapped);
}

TEST_P(SharedPoolTest, TheNumberOfPoolsIsBounded) {
  SharedPools pools(layout_, clock_);
  for (uint64_t epoch = 1; epoch <= 300; ++epoch) {
    pools.Offer(epoch, {"baton-no-such-socket", std::string(kSocketTokenBytes, 'x')});
  }
  pools.WaitUntilTried();
  EXPECT_EQ(pools.Find(300).reason, PlaneReason::kFailed);
  EXPECT_EQ(pools.Find(1).reason, PlaneReason::kNotOffered);
}

INSTANTIATE_TEST_SUITE_P(IntoHostAndDeviceMemory, SharedPoolTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Device" : "Host"; });

}  // namespace
}  // namespace baton::transfer
