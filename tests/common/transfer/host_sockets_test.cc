#include "common/transfer/host_sockets.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/random_id.h"
#include "common/transfer/shared_pool_server.h"
#include "common/transfer/shared_pools.h"

namespace baton::transfer {
namespace {

constexpr int kHostBlocks = 4;

TEST(HostSocketsTest, NamesSayWhatTheyWereMadeOf) {
  for (const bool device : {false, true}) {
    const PoolName made = {device, 0x00ab'cdef'0123'4567, 0xfedc'ba98'7654'3210};
    const std::string name = MakePoolName(made);
    EXPECT_NE(name, MakePoolName(made));
    const std::optional<PoolName> read = ParsePoolName(name);
    ASSERT_TRUE(read.has_value()) << name;
    EXPECT_EQ(read->device, device);
    EXPECT_EQ(read->layout, made.layout);
    EXPECT_EQ(read->epoch, made.epoch);
  }
  for (const char* name :
       {"", "baton-kv-pool-", "baton-kv-pool-host-1-2", "baton-kv-pool-disk-1-2-3",
        "baton-kv-pool-host-x-2-3", "baton-kv-pool-host-1-2-3-4", "baton-kv-reader-1-2",
        "baton-kv-pool-host-11112222333344445-2-3"}) {
    EXPECT_FALSE(ParsePoolName(name).has_value()) << name;
  }
}

TEST(HostSocketsTest, SocketsThatListenAreFound) {
  const std::string name = MakePoolName({false, RandomId64(), RandomId64()});
  const auto found = [&] {
    const std::vector<std::string> names = PoolSockets();
    return std::count(names.begin(), names.end(), name);
  };
  EXPECT_EQ(found(), 0);
  {
    const auto listener = OpenAbstractSocket(name, SocketEnd::kListen);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ(found(), 1);
    // Connected sockets have the name, too.
    const auto connected = OpenAbstractSocket(name, SocketEnd::kConnect);
    ASSERT_TRUE(connected.ok()) << connected.status();
    EXPECT_TRUE(IsOfThisUser(connected->get()));
    EXPECT_EQ(found(), 1);
  }
  EXPECT_EQ(found(), 0);
}

// A prefill worker's pool, and decode workers that no request offers it to.
class FoundPoolsTest : public ::testing::Test {
 protected:
  FoundPoolsTest() {
    // Each test uses another layout, so that workers of other tests do not take its pools.
    layout_.layers = 2;
    layout_.kv_heads = 2;
    layout_.head_dim = 16;
    layout_.numerics = RandomIdText();
    const auto bytes = static_cast<size_t>(kHostBlocks * layout_.BlockBytes());
    file_ = FileDescriptor(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    BATON_CHECK_EQ(ftruncate(file_.get(), static_cast<off_t>(bytes)), 0);
    BATON_CHECK_EQ(fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    pool_.shared_file = file_.get();
    pool_.block_stride_bytes = layout_.BlockBytes();
    pool_.layer_stride_bytes = layout_.ChunkBytes();
    pool_.block_count = kHostBlocks;
  }
  static std::string TokenOf(absl::string_view socket) {
    return std::string(socket.substr(socket.size() - kSocketTokenBytes));
  }
  std::unique_ptr<SharedPoolServer> StartServer(uint64_t epoch) {
    SharedPoolServer::Options options;
    options.socket = MakePoolName({false, layout_.Fingerprint(), epoch});
    options.token = TokenOf(options.socket);
    return *SharedPoolServer::Start(pool_, layout_, Clock::Real(), options);
  }
  std::unique_ptr<SharedPools> StartReader(SharedPools::TokenOf token_of = TokenOf,
                                           bool host_pools = true) {
    return std::make_unique<SharedPools>(layout_, Clock::Real(), host_pools, nullptr,
                                         std::move(token_of));
  }

  kv::KvLayout layout_;
  FileDescriptor file_;
  backend::KvPool pool_;
};

TEST_F(FoundPoolsTest, AReaderThatStartsFindsThePoolsThatAreThere) {
  const auto first = StartServer(5), second = StartServer(6);
  const auto reader = StartReader();
  ASSERT_TRUE(reader->WaitUntilTried(absl::Minutes(1)));
  EXPECT_EQ(reader->Find(5).reason, PlaneReason::kMapped);
  EXPECT_EQ(reader->Find(6).reason, PlaneReason::kMapped);
  // Each pool is that of its epoch.
  EXPECT_NE(first->Open(reader->Find(5).pool->connection(), 1), nullptr);
  EXPECT_NE(second->Open(reader->Find(6).pool->connection(), 1), nullptr);
  EXPECT_EQ(second->Open(reader->Find(5).pool->connection(), 1), nullptr);
}

TEST_F(FoundPoolsTest, APoolThatStartsCallsItsReadersAndWaitsForThem) {
  const auto reader = StartReader(), other = StartReader();
  ASSERT_TRUE(reader->WaitUntilTried(absl::Minutes(1)));
  EXPECT_EQ(reader->Find(5).reason, PlaneReason::kNotOffered);
  for (const uint64_t epoch : {5, 6}) {
    const auto server = StartServer(epoch);
    EXPECT_EQ(CallReaders(layout_.Fingerprint(), absl::Minutes(1)), 2);
    EXPECT_EQ(reader->Find(epoch).reason, PlaneReason::kMapped);
    EXPECT_EQ(other->Find(epoch).reason, PlaneReason::kMapped);
  }
}

TEST_F(FoundPoolsTest, WhatIsNotForAReaderIsNotTaken) {
  const auto server = StartServer(5);
  kv::KvLayout layout = layout_;
  layout.numerics += "x";
  SharedPools of_other_model(layout, Clock::Real(), true, nullptr, TokenOf);
  const auto of_no_kind = StartReader(TokenOf, /*host_pools=*/false);
  const auto of_other_secret =
      StartReader([](absl::string_view) { return std::string(kSocketTokenBytes, 'x'); });
  const auto without_names = StartReader(nullptr);
  for (SharedPools* reader :
       {&of_other_model, of_no_kind.get(), of_other_secret.get(), without_names.get()}) {
    ASSERT_TRUE(reader->WaitUntilTried(absl::Minutes(1)));
    EXPECT_EQ(reader->Find(5).pool, nullptr);
  }
  EXPECT_EQ(of_other_secret->Find(5).reason, PlaneReason::kFailed);
  EXPECT_EQ(of_other_model.Find(5).reason, PlaneReason::kNotOffered);
  // Two of them are called and try again what they may.
  EXPECT_EQ(CallReaders(layout_.Fingerprint(), absl::Minutes(1)), 2);
  EXPECT_EQ(CallReaders(layout.Fingerprint(), absl::Minutes(1)), 1);
}

// Names are public: a stranger can make one up with a worker's epoch. What the worker itself offers
// is tried at once, also after its secret has changed, and takes the place of a stranger's pool.
TEST_F(FoundPoolsTest, AMadeUpNameDoesNotKeepAWorkersOfferFromBeingTried) {
  const auto real = StartServer(7);  // of another epoch, by its name
  const std::vector<std::string> names = PoolSockets();
  const auto name = std::find_if(names.begin(), names.end(), [&](const std::string& socket) {
    return ParsePoolName(socket)->epoch == 7 &&
           ParsePoolName(socket)->layout == layout_.Fingerprint();
  });
  ASSERT_NE(name, names.end());
  // One name refuses, one leads to another pool, and one is tried with an old token.
  const auto closed =
      OpenAbstractSocket(MakePoolName({false, layout_.Fingerprint(), 5}), SocketEnd::kListen);
  ASSERT_TRUE(closed.ok());
  ASSERT_EQ(shutdown(closed->get(), SHUT_RDWR), 0);
  const auto impostor = StartServer(6);
  const auto reader = StartReader([&](absl::string_view socket) {
    return socket == *name ? std::string(kSocketTokenBytes, 'x') : TokenOf(socket);
  });
  ASSERT_TRUE(reader->WaitUntilTried(absl::Minutes(1)));
  EXPECT_EQ(reader->Find(6).reason, PlaneReason::kMapped);
  EXPECT_EQ(reader->Find(7).reason, PlaneReason::kFailed);
  for (const uint64_t epoch : {5, 6, 7}) {
    reader->Offer(epoch, {*name, TokenOf(*name), false});
    ASSERT_TRUE(reader->WaitUntilTried(absl::Minutes(1)));
    ASSERT_EQ(reader->Find(epoch).reason, PlaneReason::kMapped) << epoch;
    const std::shared_ptr<SharedPool> pool = reader->Find(epoch).pool;
    EXPECT_NE(real->Open(pool->connection(), 1), nullptr) << epoch;
    // The same offer again changes nothing.
    reader->Offer(epoch, {*name, TokenOf(*name), false});
    ASSERT_TRUE(reader->WaitUntilTried(absl::Minutes(1)));
    EXPECT_EQ(reader->Find(epoch).pool, pool);
  }
}

// A decode worker that has stopped holds up no prefill worker for long.
TEST_F(FoundPoolsTest, AReaderThatDoesNotAnswerIsNotWaitedFor) {
  const auto stopped =
      OpenAbstractSocket(MakeReaderName(layout_.Fingerprint()), SocketEnd::kListen);
  const auto reader = StartReader();
  const auto server = StartServer(5);
  const absl::Time begin = absl::Now();
  EXPECT_EQ(CallReaders(layout_.Fingerprint(), absl::Milliseconds(300)), 2);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(290));
  while (reader->Find(5).pool == nullptr) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(CallReaders(layout_.Fingerprint() + 1, absl::Minutes(1)), 0);
}

}  // namespace
}  // namespace baton::transfer
