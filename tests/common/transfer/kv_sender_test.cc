#include "common/transfer/kv_sender.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/synchronization/notification.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "common/base/check.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/server.h"
#include "common/transfer/checksum.h"
#include "common/transfer/frame_codec.h"
#include "common/transfer/kv_receiver.h"
#include "tests/common/transfer/pool_ends.h"
#include "tests/testing/device_kv.h"
#include "tests/testing/seed.h"

namespace baton::transfer {
namespace {

using internal::v1::PrefillFrame;

// A Prefill method whose sender the test drives.
class SenderService final : public internal::v1::PrefillService::WithRawCallbackMethod_Prefill<
                                internal::v1::PrefillService::Service> {
 public:
  std::shared_ptr<GrpcKvSender> sender;

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Prefill(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request) override {
    return GrpcKvSender::Open(sender);
  }
};

class KvSenderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GrpcKvSender::Options options;
    options.transfer_id = 5;
    options.epoch = 6;
    service_.sender = std::make_shared<GrpcKvSender>(std::move(options));
    auto server = RpcServer::Start({}, {&service_}, {"baton.internal.v1.PrefillService"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // All frames as an ordinary Protobuf client reads them, each checksum verified. What the sender
  // has been given before the call waits for it.
  std::vector<PrefillFrame> ReadAll() {
    auto stub = internal::v1::PrefillService::NewStub(MakeChannel(server_->address()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    auto reader = stub->Prefill(&context, {});
    std::vector<PrefillFrame> frames;
    PrefillFrame frame;
    while (reader->Read(&frame)) {
      EXPECT_EQ(frame.checksum(), FrameChecksum(frame, {}));
      frames.push_back(frame);
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return frames;
  }

  static std::vector<v1::TokenLogprobs> Logprobs(int count) {
    std::vector<v1::TokenLogprobs> all(count);
    for (int i = 0; i < count; ++i) {
      all[i].set_token_id(100000 + i);
      all[i].set_logprob(-1);
      for (int k = 0; k < 20; ++k) {
        all[i].add_top()->set_token_id(150000);
        all[i].mutable_top(k)->set_logprob(-2);
      }
    }
    return all;
  }

  SenderService service_;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(KvSenderTest, PromptLogprobsComeInOrderInBoundedFramesBeforeTheFirstToken) {
  constexpr int kFirst = 9000, kSecond = 3;
  service_.sender->SendAccepted(0, 0);
  service_.sender->SendPromptLogprobs(1, Logprobs(kFirst));
  service_.sender->SendPromptLogprobs(1 + kFirst, Logprobs(kSecond));
  service_.sender->SendFirstToken(7, Logprobs(1)[0]);
  service_.sender->SendCommit(1, 2);
  service_.sender->Finish(absl::OkStatus());
  const std::vector<PrefillFrame> frames = ReadAll();
  int position = 1;
  size_t i = 1;
  ASSERT_TRUE(frames[0].has_accepted());
  for (; i < frames.size() && frames[i].has_prompt_logprobs(); ++i) {
    EXPECT_LE(frames[i].ByteSizeLong(), 1u << 20);
    EXPECT_EQ(frames[i].prompt_logprobs().first_position(), position);
    for (const v1::TokenLogprobs& logprobs : frames[i].prompt_logprobs().logprobs()) {
      const int index = position - 1 < kFirst ? position - 1 : position - 1 - kFirst;
      ASSERT_EQ(logprobs.token_id(), 100000 + index);
      EXPECT_EQ(logprobs.top_size(), 20);
      ++position;
    }
  }
  EXPECT_EQ(position, 1 + kFirst + kSecond);
  EXPECT_GE(i, 4u) << "more than a frame's worth";
  ASSERT_EQ(frames.size(), i + 2);
  EXPECT_EQ(frames[i].first_token().token_id(), 7);
  EXPECT_EQ(frames[i].first_token().logprobs().top_size(), 20);
  EXPECT_TRUE(frames[i + 1].has_commit());
}

TEST_F(KvSenderTest, AFirstTokenAloneOvertakesWhatWaits) {
  service_.sender->SendAccepted(0, 0);
  service_.sender->SendCommit(1, 2);
  service_.sender->SendFirstToken(7, {});
  service_.sender->Finish(absl::OkStatus());
  const std::vector<PrefillFrame> frames = ReadAll();
  ASSERT_EQ(frames.size(), 3u);
  // The first was taken for writing at once.
  EXPECT_TRUE(frames[0].has_accepted());
  EXPECT_EQ(frames[1].first_token().token_id(), 7);
  EXPECT_TRUE(frames[2].has_commit());
}

// Large transfers of a chunk's bytes over and over: all layers of the pool are one.
class LargeTransferTest : public ::testing::Test {
 protected:
  static constexpr int kLayers = 64, kBlocks = 16;  // a frame of 1 MiB a layer

  LargeTransferTest() {
    layout_.layers = kLayers;
    layout_.kv_heads = 2;
    layout_.head_dim = 512;
    memory_.resize(static_cast<size_t>(kBlocks * layout_.ChunkBytes()));
    auto server = RpcServer::Start({}, {&service_}, {"baton.internal.v1.PrefillService"});
    BATON_CHECK(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ =
        internal::v1::PrefillService::NewStub(MakeChannel(server_->address(), kTransferChannel));
  }

  struct Sending {
    std::shared_ptr<GrpcKvSender> sender;
    std::shared_ptr<std::atomic<int64_t>> encoded = std::make_shared<std::atomic<int64_t>>(0);
    std::shared_ptr<absl::Notification> released = std::make_shared<absl::Notification>();
  };
  // Everything of a transfer, which waits for the call.
  Sending Send(std::shared_ptr<LinkSchedule> schedule = nullptr) {
    Sending sending;
    GrpcKvSender::Options options;
    options.layout = layout_;
    options.pool.base = memory_.data();
    options.pool.block_stride_bytes = layout_.ChunkBytes();
    options.pool.block_count = kBlocks;
    options.schedule = std::move(schedule);
    options.on_bytes_sent = [encoded = sending.encoded](int64_t bytes, Plane) {
      *encoded += bytes;
    };
    sending.sender = std::make_shared<GrpcKvSender>(std::move(options));
    std::vector<kv::BlockId> ids(kBlocks);
    std::iota(ids.begin(), ids.end(), 0);
    const auto pin = std::make_shared<const PinnedBlocks>(
        ids, [released = sending.released] { released->Notify(); });
    sending.sender->SendAccepted(kBlocks, 0);
    for (int i = 0; i < kLayers; ++i) sending.sender->SendLayer(i, 0, kBlocks, pin, nullptr);
    sending.sender->SendFirstToken(7, {});
    sending.sender->SendCommit(1, 2);
    sending.sender->Finish(absl::OkStatus());
    service_.sender = sending.sender;
    return sending;
  }

  kv::KvLayout layout_;
  std::vector<std::byte> memory_;
  SenderService service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<internal::v1::PrefillService::Stub> stub_;
};

TEST_F(LargeTransferTest, AReceiverThatStopsHoldsBackTheSender) {
  constexpr int64_t kFrame = 1 << 20;
  const Sending stopped = Send();
  grpc::ClientContext context;
  auto reader = stub_->Prefill(&context, {});
  PrefillFrame frame;
  ASSERT_TRUE(reader->Read(&frame));
  // As long as a whole transfer takes beside it, over the same connection.
  const Sending other = Send();
  grpc::ClientContext other_context;
  auto other_reader = stub_->Prefill(&other_context, {});
  while (other_reader->Read(&frame)) {
  }
  EXPECT_TRUE(other_reader->Finish().ok());
  EXPECT_EQ(*other.encoded, kLayers * kFrame);
  other.released->WaitForNotification();
  // What the receiver's window has room for, and a frame of which a part has.
  EXPECT_GE(*stopped.encoded, kFrame);
  EXPECT_LE(*stopped.encoded, kTransferChannel.receive_window_bytes + 2 * kFrame);
  EXPECT_FALSE(stopped.released->HasBeenNotified());
  // It goes on where it stopped.
  int chunks = 0;
  while (reader->Read(&frame)) chunks += frame.has_kv_chunk();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(chunks, kLayers);
  stopped.released->WaitForNotification();
}

TEST_F(LargeTransferTest, AReceiverThatGoesReleasesTheBlocks) {
  const Sending sending = Send();
  grpc::ClientContext context;
  auto reader = stub_->Prefill(&context, {});
  PrefillFrame frame;
  ASSERT_TRUE(reader->Read(&frame));
  context.TryCancel();
  sending.released->WaitForNotification();
  EXPECT_FALSE(reader->Finish().ok());
  EXPECT_LT(*sending.encoded, kLayers << 20);
}

TEST_F(LargeTransferTest, KvWaitsForATransferThatIsDueFirstAndAFirstTokenDoesNot) {
  const auto schedule = std::make_shared<LinkSchedule>(Clock::Real());
  const LinkSchedule::Transfer first = schedule->Join("", 1, absl::InfiniteFuture());
  ASSERT_TRUE(schedule->MaySend(first, [] {}));
  const Sending sending = Send(schedule);
  grpc::ClientContext context;
  auto reader = stub_->Prefill(&context, {});
  PrefillFrame frame;
  ASSERT_TRUE(reader->Read(&frame));
  EXPECT_TRUE(frame.has_accepted());
  ASSERT_TRUE(reader->Read(&frame));
  EXPECT_TRUE(frame.has_first_token());
  EXPECT_EQ(*sending.encoded, 0);
  if (const auto next = schedule->Pause(first)) next();
  for (int i = 0; i < kLayers; ++i) {
    ASSERT_TRUE(reader->Read(&frame));
    EXPECT_TRUE(frame.has_kv_chunk());
  }
  ASSERT_TRUE(reader->Read(&frame));
  EXPECT_TRUE(frame.has_commit());
  EXPECT_FALSE(reader->Read(&frame));
  EXPECT_TRUE(reader->Finish().ok());
  schedule->Leave(first);
}

// Hands each frame to a receiver as it would come off the wire.
class DirectSender final : public CollectingSender {
 public:
  DirectSender(Options options, KvReceiver& receiver)
      : CollectingSender(std::move(options)), receiver_(receiver) {}

 private:
  void OnMessage(const grpc::ByteBuffer& message) override {
    const auto decoded = DecodeFrame(message);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const absl::Status status = receiver_.OnFrame(decoded->frame, decoded->payload);
    EXPECT_TRUE(status.ok()) << status;
  }

  KvReceiver& receiver_;
};

class CountedEvent final : public backend::Event {
 public:
  bool done = false;
  bool Done() const override { return done; }
  void Wait() const override { ++waits; }
  mutable int waits = 0;
};

// Either end's blocks are in the host's memory or in a device's.
class WholeTransferTest : public ::testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  static constexpr int kLayers = 3, kBlocks = 40, kSent = 21, kFirst = 4;

  WholeTransferTest() {
    layout_.layers = kLayers;
    layout_.kv_heads = 2;
    layout_.head_dim = 512;  // chunks of 64 KiB, 16 a frame
    layout_.block_tokens = 16;
    layout_.dtype = kv::KvDtype::kBF16;
    sending_ = MakeEnd(std::get<0>(GetParam()));
    receiving_ = MakeEnd(std::get<1>(GetParam()));
  }

  struct End {
    backend::KvPool pool;
    std::vector<std::byte> host;
    std::unique_ptr<baton::testing::DeviceKv> device;
    std::vector<std::byte>& memory() { return device ? device->memory() : host; }
  };
  std::unique_ptr<End> MakeEnd(bool on_device) const {
    auto end = std::make_unique<End>();
    end->pool.block_stride_bytes = layout_.BlockBytes();
    end->pool.layer_stride_bytes = layout_.ChunkBytes();
    end->pool.block_count = kBlocks;
    if (on_device) {
      end->device = std::make_unique<baton::testing::DeviceKv>(end->pool, kLayers);
    } else {
      end->host.assign(static_cast<size_t>(kBlocks * layout_.BlockBytes()), std::byte{0xee});
      end->pool.base = end->host.data();
    }
    return end;
  }

  kv::KvLayout layout_;
  std::unique_ptr<End> sending_, receiving_;
};

TEST_P(WholeTransferTest, EveryByteArrivesInItsPlace) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (std::byte& byte : sending_->memory()) byte = static_cast<std::byte>(random());
  std::vector<kv::BlockId> all(kBlocks);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  std::vector<kv::BlockId> sources(all.begin(), all.begin() + kFirst + kSent);
  std::shuffle(all.begin(), all.end(), random);

  TransferPlan plan;
  plan.layout = layout_;
  plan.pool = receiving_->pool;
  plan.first_block = kFirst;
  plan.blocks.assign(all.begin(), all.begin() + kSent);
  plan.token_count = 100;
  KvReceiver receiver(plan);
  GrpcKvSender::Options options;
  options.layout = layout_;
  options.pool = sending_->pool;
  int64_t sent_bytes = 0;
  options.on_bytes_sent = [&](int64_t bytes, Plane) { sent_bytes += bytes; };
  DirectSender sender(std::move(options), receiver);

  bool released = false;
  auto pin = std::make_shared<const PinnedBlocks>(sources, [&] { released = true; });
  const auto event = std::make_shared<CountedEvent>();
  sender.SendAccepted(kSent, 0);
  for (int layer = 0; layer < kLayers; ++layer) sender.SendLayer(layer, kFirst, kSent, pin, event);
  sender.SendFirstToken(7, {});
  sender.SendCommit(1, 2);
  EXPECT_EQ(receiver.phase(), KvReceiver::Phase::kCommitted);

  const size_t chunk = static_cast<size_t>(layout_.ChunkBytes());
  std::vector<std::byte> expected(receiving_->memory().size(), std::byte{0xee});
  for (int i = 0; i < kSent; ++i) {
    std::memcpy(&expected[plan.blocks[i] * chunk * kLayers],
                &sending_->memory()[sources[kFirst + i] * chunk * kLayers], chunk * kLayers);
  }
  EXPECT_TRUE(receiving_->memory() == expected);
  EXPECT_EQ(sent_bytes, static_cast<int64_t>(chunk) * kSent * kLayers);
  // 16 + 5 chunks a layer; each frame waits for the layer, and is one copy.
  EXPECT_EQ(event->waits, 2 * kLayers);
  EXPECT_EQ(sending_->device ? sending_->device->reads() : 2 * kLayers, 2 * kLayers);
  EXPECT_EQ(receiving_->device ? receiving_->device->writes() : 2 * kLayers, 2 * kLayers);
  // A frame that has its own copy holds no blocks.
  pin.reset();
  EXPECT_EQ(released, sending_->device != nullptr);
  sender.messages.clear();
  EXPECT_TRUE(released);
}

// Layers that wait together go together, as many as a frame has room for.
TEST_P(WholeTransferTest, SmallLayersShareFrames) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const size_t chunk = static_cast<size_t>(layout_.ChunkBytes());
  const auto done = std::make_shared<CountedEvent>();
  done->done = true;
  const auto pending = std::make_shared<CountedEvent>();
  // What each layer waits for, and the frames that come of it. Chunks of 64 KiB, 16 a frame.
  struct Case {
    int blocks;
    std::vector<std::shared_ptr<CountedEvent>> written;
    int frames;
    bool runs = true;
  };
  const std::vector<Case> cases = {
      {1, {nullptr, nullptr, nullptr}, 1},
      {5, {nullptr, nullptr, nullptr}, 1},
      {5, {done, done, done}, 1},
      {5, {pending, done, done}, 1},
      {5, {done, pending, done}, 2},
      {5, {nullptr, nullptr, pending}, 2},
      {6, {nullptr, nullptr, nullptr}, 2},
      {9, {nullptr, nullptr, nullptr}, 3},
      /* a receiver that takes one layer at a time */ {1, {nullptr, nullptr, nullptr}, 3, false}};
  for (const Case& one : cases) {
    SCOPED_TRACE(::testing::Message() << one.blocks << " blocks, " << one.frames << " frames");
    for (std::byte& byte : sending_->memory()) byte = static_cast<std::byte>(random());
    std::fill(receiving_->memory().begin(), receiving_->memory().end(), std::byte{0xee});
    std::vector<kv::BlockId> all(kBlocks);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    const std::vector<kv::BlockId> sources(all.begin(), all.begin() + one.blocks);
    std::shuffle(all.begin(), all.end(), random);
    TransferPlan plan;
    plan.layout = layout_;
    plan.pool = receiving_->pool;
    plan.blocks.assign(all.begin(), all.begin() + one.blocks);
    plan.token_count = 100;
    KvReceiver receiver(plan);
    GrpcKvSender::Options options;
    options.layout = layout_;
    options.pool = sending_->pool;
    options.layer_runs = one.runs;
    int64_t sent_bytes = 0;
    options.on_bytes_sent = [&](int64_t bytes, Plane) { sent_bytes += bytes; };
    const int reads = sending_->device ? sending_->device->reads() : 0;
    const int writes = receiving_->device ? receiving_->device->writes() : 0;
    DirectSender sender(std::move(options), receiver);
    sender.holds = true;
    const auto pin = std::make_shared<const PinnedBlocks>(sources, [] {});
    sender.SendAccepted(one.blocks, 0);
    for (int layer = 0; layer < kLayers; ++layer) {
      sender.SendLayer(layer, 0, one.blocks, pin, one.written[static_cast<size_t>(layer)]);
    }
    sender.SendFirstToken(7, {});
    sender.SendCommit(1, 2);
    sender.Release();
    EXPECT_EQ(receiver.phase(), KvReceiver::Phase::kCommitted);
    EXPECT_EQ(static_cast<int>(sender.messages.size()), 3 + one.frames);
    EXPECT_EQ(sent_bytes, static_cast<int64_t>(chunk) * one.blocks * kLayers);
    EXPECT_EQ(receiver.summary().kv_bytes, sent_bytes);
    std::vector<std::byte> expected(receiving_->memory().size(), std::byte{0xee});
    for (int i = 0; i < one.blocks; ++i) {
      std::memcpy(&expected[plan.blocks[static_cast<size_t>(i)] * chunk * kLayers],
                  &sending_->memory()[sources[static_cast<size_t>(i)] * chunk * kLayers],
                  chunk * kLayers);
    }
    EXPECT_TRUE(receiving_->memory() == expected);
    const int none = one.frames;  // of memory that the host reads and writes itself
    EXPECT_EQ(sending_->device ? sending_->device->reads() - reads : none, one.frames);
    EXPECT_EQ(receiving_->device ? receiving_->device->writes() - writes : none, one.frames);
  }
  EXPECT_EQ(pending->waits, 3) << "of frames alone that have such a layer";
}

INSTANTIATE_TEST_SUITE_P(Memory, WholeTransferTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "Device" : "Host") + "To" +
                                  (std::get<1>(info.param) ? "Device" : "Host");
                         });

}  // namespace
}  // namespace baton::transfer
