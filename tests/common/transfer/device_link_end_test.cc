#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "baton/internal/v1/kv.grpc.pb.h"
#include "common/base/error.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/server.h"
#include "common/transfer/device_link_client.h"
#include "common/transfer/device_link_receiver.h"
#include "common/transfer/device_link_runner.h"
#include "common/transfer/device_link_sender.h"
#include "common/transfer/device_link_server.h"
#include "common/transfer/frame_codec.h"
#include "common/transfer/kv_receiver.h"
#include "common/transfer/shared_pool_server.h"
#include "tests/common/transfer/pool_ends.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/fake_device_links.h"
#include "tests/testing/seed.h"

namespace baton::transfer::device_link_test {
namespace {

using internal::v1::KvLinkMessage;
using testing::DeviceLinkFaults;
using testing::FakeClock;
using testing::FakeDeviceLinks;

constexpr int kLayers = 3, kBlocks = 64, kMostChunks = 4;
constexpr uint64_t kEpoch = 0xe1, kConnection = 0xc1;

kv::KvLayout Layout() {
  kv::KvLayout layout;
  layout.layers = kLayers;
  layout.kv_heads = 1;
  layout.head_dim = 8;  // chunks of 512 bytes
  return layout;
}

class Pool {
 public:
  Pool() : memory_(static_cast<size_t>(kBlocks * Layout().BlockBytes())) {}
  backend::KvPool kv() {
    backend::KvPool pool;
    pool.base = memory_.data();
    pool.block_stride_bytes = Layout().BlockBytes();
    pool.layer_stride_bytes = Layout().ChunkBytes();
    pool.block_count = kBlocks;
    return pool;
  }
  void Fill(uint32_t seed) {
    std::mt19937 random(seed);
    for (std::byte& byte : memory_) byte = static_cast<std::byte>(random());
  }
  absl::Span<const std::byte> Chunk(int layer, int block) const {
    return absl::MakeConstSpan(memory_).subspan(
        static_cast<size_t>(block * Layout().BlockBytes() + layer * Layout().ChunkBytes()),
        static_cast<size_t>(Layout().ChunkBytes()));
  }
  const std::vector<std::byte>& memory() const { return memory_; }

 private:
  std::vector<std::byte> memory_;
};

// A stream whose messages the test delivers.
class TestStream final : public DeviceLinkStream {
 public:
  void Write(KvLinkMessage message) override { waiting.push_back(std::move(message)); }
  void Close(const absl::Status& status) override { closed = status; }
  std::deque<KvLinkMessage> waiting;
  std::optional<absl::Status> closed;
};

// What GrpcKvSender does with chunks for a link, without gRPC.
class AnnouncingSender final : public CollectingSender {
 public:
  using CollectingSender::CollectingSender;

 private:
  uint64_t Announce(const SendItem& item) override {
    const absl::Span<const int32_t> pages = PagesOf(item);
    return options().device_link->Announce(
        options().transfer_id, {{options().pool.PlaceOf(item.layer).slot, item.layer_count},
                                {pages.begin(), pages.end()},
                                item.blocks,
                                [](bool) {}});
  }
};

// Both ends of a link, without threads.
class DeviceLinkTest : public ::testing::Test {
 protected:
  ~DeviceLinkTest() override { EndLinks(); }
  void EndLinks() {
    sender_->Fail(absl::CancelledError("the test ends"));
    receiver_->Fail(absl::CancelledError("the test ends"));
    for (DeviceLinkEnd* end : {static_cast<DeviceLinkEnd*>(sender_.get()),
                               static_cast<DeviceLinkEnd*>(receiver_.get())}) {
      if (std::unique_ptr<backend::DeviceLink> link = end->TakeLink()) link->Abort();
    }
  }
  void SetUp() override {
    from_.Fill(1);
    to_.Fill(2);
    Make();
  }
  void Make() {
    sender_ = std::make_shared<DeviceLinkSender>(
        from_device_, DeviceLinkSender::Identity{kEpoch, Layout()}, kConnection, clock_);
    receiver_ = std::make_shared<DeviceLinkReceiver>(to_device_, clock_);
    sender_->Attach(sent_);
    receiver_->Attach(received_);
  }

  // Another link in place of this one.
  void Renew() {
    EndLinks();
    sent_ = std::make_shared<TestStream>();
    received_ = std::make_shared<TestStream>();
    outcomes_.clear();
    Make();
  }

  static KvLinkMessage Hello() {
    KvLinkMessage message;
    message.mutable_hello()->set_prefill_epoch(kEpoch);
    message.mutable_hello()->set_worker_id("decode-1");
    message.mutable_hello()->set_kv_layout_fingerprint(Layout().Fingerprint());
    message.mutable_hello()->set_device("GPU-b");
    message.mutable_hello()->set_version(22809);
    message.mutable_hello()->set_takes_layer_runs(true);
    return message;
  }

  // What one end has written reaches the other. `count`: so many messages.
  static void Deliver(TestStream& from, DeviceLinkEnd& to, size_t count = 1000) {
    for (; count > 0 && !from.waiting.empty(); --count) {
      const KvLinkMessage message = std::move(from.waiting.front());
      from.waiting.pop_front();
      to.OnMessage(message);
    }
    // The peer of a stream that is closed sees its end.
    if (from.closed && from.waiting.empty()) to.Fail(absl::UnavailableError("stream ended"));
  }
  // Until nothing changes.
  void Pump() {
    for (int quiet = 0; quiet < 4; ++quiet) {
      if (!sent_->waiting.empty() || !received_->waiting.empty()) quiet = 0;
      Deliver(*sent_, *receiver_);
      Deliver(*received_, *sender_);
      const bool busy = sender_->Step() == absl::ZeroDuration();
      if ((receiver_->Step() == absl::ZeroDuration() || busy) && !Hangs()) quiet = 0;
    }
  }
  bool Hangs() const {
    return from_faults_.hangs_at != 0 || to_faults_.hangs_at != 0 || to_faults_.never_connects;
  }
  void Open() {
    sender_->OnMessage(Hello());
    Pump();
    ASSERT_TRUE(sender_->open()) << sender_->status();
    ASSERT_TRUE(receiver_->open()) << receiver_->status();
    EXPECT_EQ(receiver_->connection(), kConnection);
  }

  // Announces and expects one operation; what becomes of it is in outcomes_.
  struct Outcome {
    std::optional<bool> sent, received;  // on_end's
  };
  uint64_t Announce(uint64_t transfer, int layer, const std::vector<kv::BlockId>& blocks) {
    const auto outcome = std::make_shared<Outcome>();
    const uint64_t number = sender_->Announce(
        transfer, {{layer},
                   blocks,
                   std::make_shared<PinnedBlocks>(blocks, [this] { ++unpinned_; }),
                   [outcome](bool stored) {
                     EXPECT_FALSE(outcome->sent.has_value());
                     outcome->sent = stored;
                   }});
    if (number != 0) outcomes_[number] = outcome;
    return number;
  }
  bool Expect(uint64_t number, uint64_t transfer, int layer,
              const std::vector<kv::BlockId>& blocks) {
    return receiver_->Expect(number, transfer,
                             {{layer}, blocks, [outcome = outcomes_.at(number)](bool stored) {
                                EXPECT_FALSE(outcome->received.has_value());
                                outcome->received = stored;
                              }});
  }

  // Sends so many blocks of all layers over the open link, and returns the number of operations.
  int Transfer(bool together, int blocks) {
    FrameSender::Options options;
    options.transfer_id = 8;
    options.epoch = kEpoch;
    options.layout = Layout();
    options.pool = from_.kv();
    options.layer_runs = true;
    options.device_link = sender_;
    TransferPlan plan;
    plan.transfer_id = options.transfer_id;
    plan.sender_epoch = kEpoch;
    plan.layout = Layout();
    plan.pool = to_.kv();
    plan.token_count = 10;
    plan.device_link = receiver_;
    std::vector<kv::BlockId> sources;
    for (int i = 0; i < blocks; ++i) {
      sources.push_back(3 * i + 1);
      plan.blocks.push_back(40 - i);
    }
    const int before = from_faults_.operations;
    AnnouncingSender frames(std::move(options));
    frames.holds = together;
    frames.SendAccepted(blocks, 0);
    const auto pin = std::make_shared<const PinnedBlocks>(sources, [] {});
    for (int layer = 0; layer < kLayers; ++layer) {
      frames.SendLayer(layer, 0, blocks, pin, nullptr);
    }
    frames.Release();
    KvReceiver receiver(plan);
    const auto give = [&] {
      for (const grpc::ByteBuffer& message : std::exchange(frames.messages, {})) {
        const auto decoded = DecodeFrame(message);
        EXPECT_TRUE(receiver.OnFrame(decoded->frame, decoded->payload).ok());
      }
    };
    give();
    Pump();
    frames.holds = false;
    frames.SendFirstToken(7, {});
    frames.SendCommit(1, 2);
    give();
    EXPECT_EQ(receiver.phase(), KvReceiver::Phase::kCommitted);
    EXPECT_EQ(receiver.summary().linked_kv_bytes, blocks * Layout().BlockBytes());
    for (int i = 0; i < blocks; ++i) {
      for (int layer = 0; layer < kLayers; ++layer) {
        EXPECT_EQ(to_.Chunk(layer, 40 - i), from_.Chunk(layer, 3 * i + 1));
      }
    }
    return from_faults_.operations - before;
  }

  FakeClock clock_;
  DeviceLinkFaults from_faults_, to_faults_;
  Pool from_, to_;
  std::shared_ptr<FakeDeviceLinks> from_device_ =
      std::make_shared<FakeDeviceLinks>("GPU-a", from_.kv(), from_faults_, kMostChunks);
  std::shared_ptr<FakeDeviceLinks> to_device_ =
      std::make_shared<FakeDeviceLinks>("GPU-b", to_.kv(), to_faults_, kMostChunks);
  std::shared_ptr<TestStream> sent_ = std::make_shared<TestStream>();
  std::shared_ptr<TestStream> received_ = std::make_shared<TestStream>();
  std::shared_ptr<DeviceLinkSender> sender_;
  std::shared_ptr<DeviceLinkReceiver> receiver_;
  std::map<uint64_t, std::shared_ptr<Outcome>> outcomes_;
  int unpinned_ = 0;
};

TEST_F(DeviceLinkTest, ChunksCrossToOtherBlocks) {
  Open();
  ASSERT_EQ(Announce(7, 2, {5, 9, 1}), 1u);
  ASSERT_EQ(Announce(7, 0, {4}), 2u);
  // The second frame overtakes the first one.
  ASSERT_TRUE(Expect(2, 7, 0, {33}));
  Pump();
  EXPECT_EQ(unpinned_, 0);
  EXPECT_FALSE(outcomes_[2]->received.has_value()) << "operations have an order";
  ASSERT_TRUE(Expect(1, 7, 2, {20, 21, 22}));
  Pump();
  for (const uint64_t number : {1u, 2u}) {
    EXPECT_EQ(outcomes_[number]->sent, true);
    EXPECT_EQ(outcomes_[number]->received, true);
  }
  EXPECT_EQ(unpinned_, 2);
  EXPECT_EQ(to_.Chunk(2, 20), from_.Chunk(2, 5));
  EXPECT_EQ(to_.Chunk(2, 21), from_.Chunk(2, 9));
  EXPECT_EQ(to_.Chunk(2, 22), from_.Chunk(2, 1));
  EXPECT_EQ(to_.Chunk(0, 33), from_.Chunk(0, 4));
}

TEST_F(DeviceLinkTest, SeveralLayersAreOneOperation) {
  Open();
  EXPECT_TRUE(sender_->takes_layer_runs());
  const int before = from_faults_.operations;
  const auto pin = std::make_shared<PinnedBlocks>(std::vector<kv::BlockId>{5, 9}, [] {});
  std::optional<bool> stored;
  const uint64_t number =
      sender_->Announce(7, {{1, 2}, {5, 9}, pin, [&](bool ok) { stored = ok; }});
  ASSERT_TRUE(receiver_->Expect(number, 7, {{1, 2}, {20, 21}, [](bool ok) { EXPECT_TRUE(ok); }}));
  const std::vector<std::byte> first(to_.Chunk(0, 20).begin(), to_.Chunk(0, 20).end());
  Pump();
  EXPECT_EQ(stored, true);
  EXPECT_EQ(from_faults_.operations, before + 1);
  for (const int layer : {1, 2}) {
    EXPECT_EQ(to_.Chunk(layer, 20), from_.Chunk(layer, 5));
    EXPECT_EQ(to_.Chunk(layer, 21), from_.Chunk(layer, 9));
  }
  EXPECT_EQ(to_.Chunk(0, 20), first);
}

// An older decode worker, which says nothing of it.
TEST_F(DeviceLinkTest, LayersGoAloneToAWorkerThatDoesNotKnowRuns) {
  KvLinkMessage hello = Hello();
  hello.mutable_hello()->clear_takes_layer_runs();
  sender_->OnMessage(hello);
  Pump();
  EXPECT_TRUE(sender_->open());
  EXPECT_FALSE(sender_->takes_layer_runs());
  EXPECT_EQ(Transfer(/*together=*/true, 1), kLayers);
}

// From frames to blocks, with all layers there when the first frame is asked for.
TEST_F(DeviceLinkTest, LayersThatWaitTogetherAreOneOperation) {
  Open();
  EXPECT_EQ(Transfer(/*together=*/false, 1), kLayers);
  EXPECT_EQ(Transfer(/*together=*/true, 1), 1);
  // A second layer would not fit into an operation.
  EXPECT_EQ(Transfer(/*together=*/true, 3), kLayers);
}

class KeptLease final : public ReadLease {
 public:
  bool Keep(std::shared_ptr<const PinnedBlocks>) override { return true; }
  int slot() const override { return 0; }
  uint64_t number() const override { return 1; }
};

// The counts of docs/results/kv_transport_grpc.md: a model of 24 layers of 8 KiB a block, and links
// of 4 MiB an operation.
TEST_F(DeviceLinkTest, OperationsOfACachedPrefix) {
  from_device_ = std::make_shared<FakeDeviceLinks>("GPU-a", from_.kv(), from_faults_, 512);
  to_device_ = std::make_shared<FakeDeviceLinks>("GPU-b", to_.kv(), to_faults_, 512);
  Renew();
  Open();
  FrameSender::Options options;
  options.layout.layers = 24;
  options.layout.kv_heads = 2;
  options.layout.head_dim = 64;
  ASSERT_EQ(options.layout.ChunkBytes(), 8 << 10);
  options.pool.block_stride_bytes = options.layout.BlockBytes();
  options.pool.layer_stride_bytes = options.layout.ChunkBytes();
  options.layer_runs = true;
  options.check_shared = false;  // there is no pool that could be read
  const auto count = [&](FrameSender::Options of, int tokens) {
    AnnouncingSender frames(std::move(of));
    frames.holds = true;
    const int blocks = tokens / options.layout.block_tokens;
    const auto pin = std::make_shared<const PinnedBlocks>(
        std::vector<kv::BlockId>(static_cast<size_t>(blocks), 1), [] {});
    for (int layer = 0; layer < options.layout.layers; ++layer) {
      frames.SendLayer(layer, 0, blocks, pin, nullptr);
    }
    frames.Release();
    return static_cast<int>(frames.messages.size());
  };
  FrameSender::Options linked = options, named = options;
  linked.device_link = sender_;
  named.lease = std::make_shared<KeptLease>();
  EXPECT_EQ(count(linked, 80), 1);
  EXPECT_EQ(count(linked, 1024), 3);
  EXPECT_EQ(count(linked, 4096), 12);
  EXPECT_EQ(sender_->open_operations(), 1 + 3 + 12);
  EXPECT_EQ(count(named, 80), 1);
  EXPECT_EQ(count(named, 1024), 2);
  EXPECT_EQ(count(named, 4096), 6);
  linked.layer_runs = false;
  for (const int tokens : {80, 1024, 4096}) EXPECT_EQ(count(linked, tokens), 24);
}

TEST_F(DeviceLinkTest, NothingIsSentBeforeTheOtherEndIsReady) {
  Open();
  const int before = from_faults_.operations;
  Announce(7, 0, {1});
  Pump();
  EXPECT_EQ(from_faults_.operations, before);
  EXPECT_EQ(to_faults_.operations, 1) << "the one that connects";
  Expect(1, 7, 0, {2});
  Pump();
  EXPECT_EQ(from_faults_.operations, before + 1);
}

// Any order of frames, ends of transfers and messages: each operation has one end at either side,
// and what is stored is right.
TEST_F(DeviceLinkTest, RandomTransfersEndOnce) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  Open();
  struct Frame {
    uint64_t number, transfer;
    int layer;
    std::vector<kv::BlockId> from, to;
  };
  std::vector<Frame> frames, named;
  std::set<uint64_t> withdrawn, forgotten;
  int next_target = 0;
  const auto step = [&] {
    switch (random() % 6) {
      case 0:
        Deliver(*sent_, *receiver_, 1);
        break;
      case 1:
        Deliver(*received_, *sender_, 1);
        break;
      case 2:
        sender_->Step();
        break;
      case 3:
        receiver_->Step();
        break;
      case 4:
        if (!frames.empty()) {  // a frame arrives
          const size_t at = random() % frames.size();
          const Frame frame = frames[at];
          frames.erase(frames.begin() + static_cast<ptrdiff_t>(at));
          if (!forgotten.contains(frame.transfer) &&
              Expect(frame.number, frame.transfer, frame.layer, frame.to)) {
            named.push_back(frame);
          }
        }
        break;
      case 5:
        if (random() % 16 == 0) {  // a stream breaks: each side sees it some time
          const uint64_t transfer = 1 + random() % 200;
          if (withdrawn.contains(transfer) || random() % 2 == 0) {
            receiver_->Forget(transfer);
            forgotten.insert(transfer);
            if (!withdrawn.contains(transfer)) sender_->Withdraw(transfer);
          } else {
            sender_->Withdraw(transfer);
          }
          withdrawn.insert(transfer);
        }
        break;
    }
  };
  for (int i = 0; i < 400; ++i) {
    const uint64_t transfer = 1 + random() % 200;
    if (!withdrawn.contains(transfer)) {
      Frame frame{0, transfer, static_cast<int>(random() % kLayers), {}, {}};
      const int count = 1 + static_cast<int>(random() % kMostChunks);
      for (int k = 0; k < count; ++k) {
        frame.from.push_back(static_cast<int>(random() % kBlocks));
        frame.to.push_back(next_target++ % kBlocks);
      }
      frame.number = Announce(transfer, frame.layer, frame.from);
      ASSERT_NE(frame.number, 0u);
      frames.push_back(frame);
    }
    for (int k = 0; k < 20; ++k) step();
    ASSERT_FALSE(sender_->failed()) << sender_->status();
    ASSERT_FALSE(receiver_->failed()) << receiver_->status();
  }
  // The frames of transfers that broke never arrive.
  std::erase_if(frames, [&](const Frame& frame) { return withdrawn.contains(frame.transfer); });
  for (const Frame& frame : frames) {
    ASSERT_TRUE(Expect(frame.number, frame.transfer, frame.layer, frame.to));
    named.push_back(frame);
  }
  Pump();
  EXPECT_EQ(sender_->open_operations(), 0);
  int stored = 0;
  for (const Frame& frame : named) {
    const Outcome& outcome = *outcomes_[frame.number];
    if (withdrawn.contains(frame.transfer)) continue;
    EXPECT_EQ(outcome.sent, true) << frame.number;
    EXPECT_EQ(outcome.received, true) << frame.number;
    ++stored;
  }
  EXPECT_GT(stored, 50);
  EXPECT_EQ(unpinned_, static_cast<int>(outcomes_.size()));
}

// Bytes, with blocks that are written once.
TEST_F(DeviceLinkTest, WhatIsStoredHasTheSendersBytesAndNothingElseIsTouched) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  Open();
  const Pool before = to_;
  std::map<std::pair<int, int>, std::pair<int, int>> expected;  // (layer, to) -> (layer, from)
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int block = 0; block + kMostChunks <= kBlocks; block += kMostChunks) {
      const uint64_t transfer = 1 + random() % 10;
      std::vector<kv::BlockId> from, to;
      for (int k = 0; k < kMostChunks; ++k) {
        from.push_back(static_cast<int>(random() % kBlocks));
        to.push_back(block + k);
      }
      const uint64_t number = Announce(transfer, layer, from);
      Expect(number, transfer, layer, to);
      if (transfer <= 3) continue;  // forgotten below
      for (int k = 0; k < kMostChunks; ++k) expected[{layer, to[k]}] = {layer, from[k]};
    }
  }
  for (const uint64_t transfer : {1u, 2u, 3u}) receiver_->Forget(transfer);
  Pump();
  ASSERT_FALSE(receiver_->failed()) << receiver_->status();
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int block = 0; block < kBlocks; ++block) {
      const auto it = expected.find({layer, block});
      EXPECT_EQ(to_.Chunk(layer, block), it == expected.end()
                                             ? before.Chunk(layer, block)
                                             : from_.Chunk(it->second.first, it->second.second))
          << layer << " " << block;
    }
  }
}

// The misbehaviours of a communicator, each at one end or the other, in the middle of operations.
struct Fault {
  const char* name;
  bool at_sender;
  std::atomic<int> DeviceLinkFaults::*which;
};
class DeviceLinkFaultTest : public DeviceLinkTest, public ::testing::WithParamInterface<Fault> {};

INSTANTIATE_TEST_SUITE_P(
    Faults, DeviceLinkFaultTest,
    ::testing::Values(Fault{"SenderHangs", true, &DeviceLinkFaults::hangs_at},
                      Fault{"ReceiverHangs", false, &DeviceLinkFaults::hangs_at},
                      Fault{"SenderFails", true, &DeviceLinkFaults::fails_at},
                      Fault{"ReceiverFails", false, &DeviceLinkFaults::fails_at}),
    [](const auto& info) { return info.param.name; });

TEST_P(DeviceLinkFaultTest, BothEndsFailAndNothingIsWrittenAfterwards) {
  Open();
  const Fault& fault = GetParam();
  DeviceLinkFaults& faults = fault.at_sender ? from_faults_ : to_faults_;
  (faults.*fault.which) = faults.operations + 3;
  for (uint64_t number = 1; number <= 6; ++number) {
    ASSERT_EQ(Announce(number % 2, 0, {static_cast<int>(number)}), number);
    ASSERT_TRUE(Expect(number, number % 2, 0, {static_cast<int>(40 + number)}));
  }
  Pump();
  EXPECT_EQ(outcomes_[2]->sent, true);
  clock_.Advance(absl::Seconds(6));
  Pump();
  EXPECT_TRUE(sender_->failed());
  EXPECT_TRUE(receiver_->failed());
  EXPECT_TRUE(sent_->closed.has_value());
  EXPECT_TRUE(received_->closed.has_value());
  EXPECT_EQ(sender_->open_operations(), 0);
  EXPECT_EQ(unpinned_, 6);
  for (uint64_t number = 1; number <= 6; ++number) {
    ASSERT_TRUE(outcomes_[number]->received.has_value()) << number;
    // A prefill worker that hears nothing sends the chunk again; it never takes a lost one as
    // stored.
    EXPECT_LE(*outcomes_[number]->sent, *outcomes_[number]->received) << number;
  }
  EXPECT_EQ(outcomes_[6]->sent, false);
  EXPECT_EQ(outcomes_[6]->received, false);
  const int stores = to_faults_.stores;
  EXPECT_EQ(Announce(9, 0, {1}), 0u);
  EXPECT_FALSE(receiver_->Expect(7, 9, {{0}, {1}, [](bool) { ADD_FAILURE(); }}));
  Pump();
  EXPECT_EQ(to_faults_.stores, stores);
}

TEST_F(DeviceLinkTest, AnEndThatNeverConnectsIsGivenUp) {
  to_faults_.never_connects = true;
  sender_->OnMessage(Hello());
  Pump();
  EXPECT_FALSE(sender_->open());
  EXPECT_EQ(Announce(1, 0, {1}), 0u);
  clock_.Advance(absl::Seconds(31));
  Pump();
  EXPECT_TRUE(sender_->failed());
  EXPECT_TRUE(receiver_->failed());
  EXPECT_TRUE(absl::StrContains(receiver_->status().message(), "30s")) << receiver_->status();
}

TEST_F(DeviceLinkTest, ADecodeWorkerThatSaysNothingIsGivenUp) {
  clock_.Advance(absl::Seconds(31));
  sender_->Step();
  EXPECT_TRUE(sender_->failed());
}

TEST_F(DeviceLinkTest, ADeviceThatRefusesEndsTheLink) {
  to_faults_.refuses = true;
  sender_->OnMessage(Hello());
  Pump();
  EXPECT_TRUE(absl::StrContains(receiver_->status().message(), "told to refuse"));
  EXPECT_TRUE(sender_->failed());
}

// An operation that is announced and never named, as its frame is lost with its stream.
TEST_F(DeviceLinkTest, AFrameThatNeverComesFailsTheLinkUnlessItsTransferIsWithdrawn) {
  Open();
  Announce(1, 0, {1});
  Announce(2, 0, {2});
  Expect(2, 2, 0, {3});
  Pump();
  EXPECT_FALSE(outcomes_[2]->received.has_value());
  sender_->Withdraw(1);
  Pump();
  EXPECT_EQ(outcomes_[2]->sent, true);
  // The frame comes after all, and is too late.
  EXPECT_FALSE(Expect(1, 1, 0, {5}));
  EXPECT_FALSE(outcomes_[1]->sent.has_value());
  Announce(3, 0, {1});
  Pump();
  clock_.Advance(absl::Seconds(6));
  Pump();
  EXPECT_TRUE(sender_->failed());
  EXPECT_EQ(outcomes_[3]->sent, false);
}

TEST_F(DeviceLinkTest, TransfersTakeTurnsWithinAWindow) {
  Open();
  std::vector<int> resumed;
  int announced = 0;
  while (sender_->MayAnnounce([&] { resumed.push_back(1); })) {
    ASSERT_NE(Announce(1, 0, {1}), 0u);
    ASSERT_LT(++announced, 100);
  }
  EXPECT_EQ(announced, 8);
  EXPECT_FALSE(sender_->MayAnnounce([&] { resumed.push_back(2); }));
  Expect(1, 1, 0, {2});
  Pump();
  EXPECT_EQ(resumed, (std::vector<int>{1, 2}));
  EXPECT_TRUE(sender_->MayAnnounce([&] { ADD_FAILURE(); }));
}

TEST_F(DeviceLinkTest, AFailureResumesThoseThatWait) {
  Open();
  while (sender_->MayAnnounce([] {})) Announce(1, 0, {1});
  int resumed = 0;
  EXPECT_FALSE(sender_->MayAnnounce([&] { ++resumed; }));
  sender_->Fail(absl::UnavailableError("over"));
  EXPECT_EQ(resumed, 1);
  EXPECT_TRUE(sender_->MayAnnounce([] { ADD_FAILURE(); }));
}

TEST_F(DeviceLinkTest, HellosThatDoNotFitAreRefused) {
  const struct {
    std::function<void(KvLinkMessage::Hello&)> spoil;
    const char* reason;
    const char* message;
  } cases[] = {
      {[](auto& hello) { hello.set_prefill_epoch(1); }, "STALE_EPOCH", "epoch 1"},
      {[](auto& hello) { hello.set_kv_layout_fingerprint(1); }, "KV_LAYOUT", "layout 1"},
      {[](auto& hello) { hello.set_device("GPU-a"); }, "DEVICE_LINK", "both workers use"},
      {[](auto& hello) { hello.set_version(21900); }, "DEVICE_LINK", "version 21900"},
  };
  for (const auto& c : cases) {
    Renew();
    KvLinkMessage message = Hello();
    c.spoil(*message.mutable_hello());
    sender_->OnMessage(message);
    EXPECT_TRUE(sender_->failed());
    EXPECT_EQ(ErrorReason(sender_->status()), c.reason);
    EXPECT_TRUE(absl::StrContains(sender_->status().message(), c.message)) << sender_->status();
    EXPECT_EQ(from_faults_.links, 0);
  }
}

// Messages that the protocol does not allow: the link fails, with a reason, and nothing else.
TEST_F(DeviceLinkTest, MessagesOutOfPlaceFailTheLink) {
  const auto number = [](auto set) {
    KvLinkMessage message;
    set(message);
    return message;
  };
  const KvLinkMessage to_sender[] = {
      KvLinkMessage(),
      Hello(),
      number([](auto& m) { m.set_ready(2); }),
      number([](auto& m) { m.set_stored(1); }),
      number([](auto& m) { m.set_skipped(1); }),
      number([](auto& m) { m.set_skip(1); }),
      number([](auto& m) { m.mutable_welcome()->set_connection(1); }),
  };
  for (const KvLinkMessage& message : to_sender) {
    SCOPED_TRACE(message.ShortDebugString());
    Renew();
    Open();
    Announce(1, 0, {1});
    sender_->OnMessage(message);
    EXPECT_TRUE(sender_->failed());
    EXPECT_EQ(ErrorReason(sender_->status()), "PROTOCOL");
    EXPECT_EQ(outcomes_[1]->sent, false);
  }
  const KvLinkMessage to_receiver[] = {
      KvLinkMessage(),
      Hello(),
      number([](auto& m) { m.mutable_welcome()->set_connection(1); }),
      number([](auto& m) { m.set_skip(uint64_t{1} << 40); }),
      number([](auto& m) { m.set_ready(1); }),
  };
  for (const KvLinkMessage& message : to_receiver) {
    SCOPED_TRACE(message.ShortDebugString());
    Renew();
    Open();
    receiver_->OnMessage(message);
    EXPECT_TRUE(receiver_->failed());
    EXPECT_EQ(ErrorReason(receiver_->status()), "PROTOCOL");
  }
  Renew();
  Open();
  EXPECT_FALSE(receiver_->Expect(uint64_t{1} << 40, 1, {{0}, {1}, [](bool) { ADD_FAILURE(); }}));
  receiver_->Step();
  EXPECT_TRUE(receiver_->failed());
}

// While a chunk is copied into a block, the block cannot be freed.
TEST_F(DeviceLinkTest, ForgetWaitsForACopyInProgress) {
  Open();
  absl::Notification copying, go_on;
  to_faults_.on_store = [&] {
    copying.Notify();
    go_on.WaitForNotification();
  };
  Announce(7, 0, {5});
  Expect(1, 7, 0, {33});
  std::thread steps([&] { Pump(); });
  copying.WaitForNotification();
  std::atomic<bool> forgotten{false};
  std::thread forgets([&] {
    receiver_->Forget(7);
    forgotten = true;
  });
  for (int i = 0; i < 1000; ++i) {
    std::this_thread::yield();
    EXPECT_FALSE(forgotten);
  }
  go_on.Notify();
  forgets.join();
  EXPECT_EQ(to_.Chunk(0, 33), from_.Chunk(0, 5)) << "Forget returned before the copy's end";
  steps.join();
  EXPECT_EQ(outcomes_[1]->sent, true);
}

TEST_F(DeviceLinkTest, AnAbortThatHangsIsNoticedAndLeftBehind) {
  Open();
  from_faults_.abort_hangs = true;
  auto runner = std::make_unique<DeviceLinkRunner>(clock_, absl::Milliseconds(50));
  runner->Add(sender_);
  EXPECT_EQ(runner->open_ends(), 1);
  sender_->Fail(absl::UnavailableError("over"));
  while (runner->aborting() == 0) std::this_thread::yield();
  EXPECT_FALSE(runner->stuck());
  // What waits for the one that hangs is not it.
  while (!runner->stuck()) clock_.Advance(absl::Milliseconds(20));
  EXPECT_EQ(runner->open_ends(), 0);
  runner.reset();
  EXPECT_EQ(from_faults_.links, 1) << "its memory is not given to others";
  from_faults_.released.Notify();
  while (from_faults_.links > 0) std::this_thread::yield();
}

// Over gRPC, with the threads of both sides.
class DeviceLinkRpcTest : public DeviceLinkTest {
 protected:
  class Service final : public internal::v1::KvLinkService::WithCallbackMethod_Link<
                            internal::v1::KvLinkService::Service> {
   public:
    explicit Service(DeviceLinkServer& server) : server_(server) {}
    DeviceLinkServer::Reactor* Link(grpc::CallbackServerContext* context) override {
      return server_.Accept(context, allowed);
    }
    absl::Status allowed = absl::OkStatus();

   private:
    DeviceLinkServer& server_;
  };
  void Serve(uint64_t epoch = kEpoch) {
    rpc_ = nullptr;
    service_ = nullptr;
    server_ = std::make_unique<DeviceLinkServer>(
        from_device_, DeviceLinkSender::Identity{epoch, Layout()}, clock_);
    service_ = std::make_unique<Service>(*server_);
    rpc_ = std::move(RpcServer::Start({}, {service_.get()}, {}).value());
    client_ = std::make_unique<DeviceLinkClient>(
        to_device_, "decode-1", Layout(),
        [this](const std::string&) { return MakeChannel(rpc_->address()); }, clock_);
  }
  DeviceLinkClient::Found WaitFor(PlaneReason reason, uint64_t epoch = kEpoch) {
    while (true) {
      client_->Offer(epoch);
      DeviceLinkClient::Found found = client_->Find(epoch, "");
      if (found.reason == reason) return found;
      std::this_thread::yield();
    }
  }
  void TearDown() override {
    client_ = nullptr;
    rpc_ = nullptr;
    service_ = nullptr;
    server_ = nullptr;
  }

  std::unique_ptr<DeviceLinkServer> server_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<RpcServer> rpc_;
  std::unique_ptr<DeviceLinkClient> client_;
};

TEST_F(DeviceLinkRpcTest, IsMadeForTheAskingAndEndsWithItsStream) {
  Serve();
  EXPECT_EQ(client_->Find(kEpoch, "").reason, PlaneReason::kNotOffered);
  const auto found = WaitFor(PlaneReason::kLinked);
  std::shared_ptr<DeviceLinkSender> sender;
  while (sender == nullptr) sender = server_->Find(found.link->connection());
  EXPECT_EQ(server_->Find(found.link->connection() + 1), nullptr);
  absl::Notification stored;
  const uint64_t number = sender->Announce(
      5,
      {{1}, {3}, std::make_shared<PinnedBlocks>(std::vector<kv::BlockId>{3}, [] {}), [&](bool ok) {
         EXPECT_TRUE(ok);
         stored.Notify();
       }});
  ASSERT_TRUE(found.link->Expect(number, 5, {{1}, {8}, [](bool ok) { EXPECT_TRUE(ok); }}));
  stored.WaitForNotification();
  EXPECT_EQ(to_.Chunk(1, 8), from_.Chunk(1, 3));
  // Whichever side goes: the other one gives its memory back.
  client_ = nullptr;
  while (from_faults_.links + to_faults_.links > 0) std::this_thread::yield();
  EXPECT_EQ(server_->Find(found.link->connection()), nullptr);
}

// What an operation's end sets off may wait for a step of the model. The link goes on.
TEST_F(DeviceLinkRpcTest, CallbacksHoldUpNoMessages) {
  Serve();
  const auto found = WaitFor(PlaneReason::kLinked);
  std::shared_ptr<DeviceLinkSender> sender;
  while (sender == nullptr) sender = server_->Find(found.link->connection());
  absl::Notification first_ends, go_on, first_ended, second_stored;
  const auto pin = std::make_shared<PinnedBlocks>(std::vector<kv::BlockId>{3}, [] {});
  const uint64_t first = sender->Announce(5, {{1}, {3}, pin, [&](bool) {
                                                first_ends.Notify();
                                                go_on.WaitForNotification();
                                                first_ended.Notify();
                                              }});
  ASSERT_TRUE(found.link->Expect(first, 5, {{1}, {8}, [](bool) {}}));
  first_ends.WaitForNotification();
  const uint64_t second = sender->Announce(6, {{2}, {3}, pin, [](bool) {}});
  ASSERT_TRUE(found.link->Expect(second, 6, {{2}, {8}, [&](bool stored) {
                                               EXPECT_TRUE(stored);
                                               second_stored.Notify();
                                             }}));
  second_stored.WaitForNotification();
  while (sender->open_operations() > 0) std::this_thread::yield();
  go_on.Notify();
  first_ended.WaitForNotification();  // which waits on what is here
  server_->Stop();
  while (from_faults_.links > 0) std::this_thread::yield();
}

TEST_F(DeviceLinkRpcTest, OfAServerThatGoesIsTriedAgainLater) {
  Serve();
  WaitFor(PlaneReason::kLinked);
  rpc_->Stop(absl::ZeroDuration());
  WaitFor(PlaneReason::kFailed);
  while (from_faults_.links + to_faults_.links > 0) std::this_thread::yield();
  client_->Offer(kEpoch);
  EXPECT_EQ(client_->Find(kEpoch, "").reason, PlaneReason::kFailed);
  clock_.Advance(absl::Seconds(31));
  client_->Offer(kEpoch);
  client_->Find(kEpoch, "");
  WaitFor(PlaneReason::kFailed);  // again, as no server answers
}

TEST_F(DeviceLinkRpcTest, StrangersGetNoLink) {
  Serve();
  service_->allowed = MakeError(absl::StatusCode::kUnauthenticated, "WRONG_WORKER_SECRET", "no");
  WaitFor(PlaneReason::kFailed);
  EXPECT_EQ(from_faults_.links, 0);
}

// A device has memory for so many links: the one that was not used for long gives way.
TEST_F(DeviceLinkRpcTest, AnIdleLinkGivesWay) {
  from_device_ = std::make_shared<FakeDeviceLinks>("GPU-a", from_.kv(), from_faults_, kMostChunks,
                                                   /*most_links=*/1);
  Serve();
  const auto first = WaitFor(PlaneReason::kLinked);
  DeviceLinkClient other(
      std::make_shared<FakeDeviceLinks>("GPU-c", to_.kv(), to_faults_, kMostChunks), "decode-2",
      Layout(), [this](const std::string&) { return MakeChannel(rpc_->address()); }, clock_);
  const auto try_other = [&] {
    DeviceLinkClient::Found found;
    do {
      other.Offer(kEpoch);
      found = other.Find(kEpoch, "");
      std::this_thread::yield();
    } while (found.reason == PlaneReason::kConnecting || found.reason == PlaneReason::kNotOffered);
    return found.reason;
  };
  EXPECT_EQ(try_other(), PlaneReason::kFailed);
  EXPECT_TRUE(first.link->open());
  // The next attempt makes room, and one after that finds it.
  while (try_other() != PlaneReason::kLinked) clock_.Advance(absl::Seconds(121));
  EXPECT_TRUE(first.link->failed());
}

}  // namespace
}  // namespace baton::transfer::device_link_test
