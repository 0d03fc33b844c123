#include "common/transfer/prefill_call.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "absl/synchronization/notification.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "common/base/error.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server.h"
#include "common/transfer/kv_sender.h"
#include "tests/testing/device_kv.h"

namespace baton::transfer {
namespace {

// Ends each call at once, as told; or never, if told OK.
class EndingService final : public internal::v1::PrefillService::WithRawCallbackMethod_Prefill<
                                internal::v1::PrefillService::Service> {
 public:
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Prefill(grpc::CallbackServerContext*,
                                                      const grpc::ByteBuffer*) override {
    class Reactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
     public:
      explicit Reactor(const grpc::Status& end) : ended_(!end.ok()) {
        if (ended_) Finish(end);
      }
      void OnCancel() override {
        if (!ended_) Finish(grpc::Status::CANCELLED);
      }
      void OnDone() override { delete this; }

     private:
      const bool ended_;
    };
    return new Reactor(end);
  }
  grpc::Status end;
};

class PrefillCallTest : public ::testing::Test {
 protected:
  PrefillCallTest() {
    rpc_ = *RpcServer::Start({}, {&service_}, {"baton.internal.v1.PrefillService"});
    channel_ = MakeChannel(rpc_->address());
  }

  absl::Status EndOfCall(const grpc::Status& said, bool cancel = false,
                         absl::Duration timeout = absl::Seconds(60)) {
    service_.end = said;
    absl::Status end;
    absl::Notification closed;
    PrefillEvents events;
    events.on_first_token = [](const FirstToken&) {};
    events.on_end = [&end](absl::Status status, const TransferSummary&) { end = status; };
    events.on_closed = [&closed] { closed.Notify(); };
    TransferPlan plan;
    plan.transfer_id = 1;
    const auto call = PrefillCall::Start(channel_, internal::v1::PrefillRequest(),
                                         absl::Now() + timeout, std::move(plan), std::move(events));
    if (cancel) call->Cancel();
    closed.WaitForNotification();
    return end;
  }

  EndingService service_;
  std::unique_ptr<RpcServer> rpc_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(PrefillCallTest, AnErrorWithoutAReasonIsALossWhateverItsCode) {
  for (const auto code :
       {grpc::UNAVAILABLE, grpc::CANCELLED, grpc::INTERNAL, grpc::UNKNOWN, grpc::UNIMPLEMENTED,
        grpc::DATA_LOSS, grpc::ABORTED, grpc::FAILED_PRECONDITION}) {
    const absl::Status end = EndOfCall({code, "RST_STREAM"});
    EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
    EXPECT_EQ(ErrorReason(end), "PREFILL_LOST") << end;
  }
}

TEST_F(PrefillCallTest, WhatThePrefillWorkerSaysStands) {
  const auto said = MakeError(absl::StatusCode::kInternal, "COMPUTE_FAILED", "said the worker");
  EXPECT_EQ(ErrorReason(EndOfCall(ToGrpcStatus(said))), "COMPUTE_FAILED");
}

TEST_F(PrefillCallTest, OurOwnCancelOurDeadlineAndAFullQueueAreNoLoss) {
  EXPECT_EQ(EndOfCall(grpc::Status::OK, /*cancel=*/true).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(EndOfCall(grpc::Status::OK, false, absl::Milliseconds(20)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(EndOfCall({grpc::RESOURCE_EXHAUSTED, "too large"}).code(),
            absl::StatusCode::kResourceExhausted);
}

constexpr int kLargeLayers = 5, kLargeBlocks = 32;

kv::KvLayout LargeLayout() {
  kv::KvLayout layout;
  layout.layers = kLargeLayers;
  layout.kv_heads = 16;
  layout.head_dim = 256;  // layers of 8 MiB: larger than what a connection takes without a reader
  layout.dtype = kv::KvDtype::kBF16;
  return layout;
}

backend::KvPool PoolOf(const kv::KvLayout& layout) {
  backend::KvPool pool;
  pool.block_stride_bytes = static_cast<int64_t>(layout.BlockBytes());
  pool.layer_stride_bytes = static_cast<int64_t>(layout.ChunkBytes());
  pool.block_count = kLargeBlocks;
  return pool;
}

// Sends all blocks of a pool that is in a device, to one call.
class DeviceService final : public internal::v1::PrefillService::WithRawCallbackMethod_Prefill<
                                internal::v1::PrefillService::Service> {
 public:
  DeviceService() {
    for (std::byte& byte : device.memory()) byte = static_cast<std::byte>(random_());
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Prefill(grpc::CallbackServerContext*,
                                                      const grpc::ByteBuffer*) override {
    FrameSender::Options options;
    options.transfer_id = 1;
    options.epoch = epoch;
    options.layout = layout_;
    options.pool = pool_;
    options.max_payload_bytes = 8 << 20;
    options.on_peer_gone = [this] { gone.Notify(); };
    sender = std::make_shared<GrpcKvSender>(options);
    std::vector<int32_t> pages(kLargeBlocks);
    std::iota(pages.begin(), pages.end(), 0);
    const auto pinned = std::make_shared<PinnedBlocks>(pages, [] {});
    sender->SendAccepted(kLargeBlocks, 0);
    for (int layer = 0; layer < kLargeLayers; ++layer) {
      sender->SendLayer(layer, 0, kLargeBlocks, pinned, nullptr);
    }
    sender->SendFirstToken(3, {});
    sender->SendCommit(0, 1);
    if (finishes) sender->Finish(absl::OkStatus());
    return GrpcKvSender::Open(sender);
  }

 private:
  const kv::KvLayout layout_ = LargeLayout();
  backend::KvPool pool_ = PoolOf(layout_);
  std::minstd_rand random_{7};

 public:
  testing::DeviceKv device{pool_, kLargeLayers};
  uint64_t epoch = 2;
  bool finishes = true;
  std::shared_ptr<GrpcKvSender> sender;
  absl::Notification gone;
};

// A transfer goes from one device to another.
class DeviceCallTest : public ::testing::Test {
 protected:
  DeviceCallTest() {
    rpc_ = *RpcServer::Start({}, {&service_}, {"baton.internal.v1.PrefillService"});
    channel_ = MakeChannel(rpc_->address(), kTransferChannel);
  }
  std::shared_ptr<PrefillCall> Start() {
    PrefillEvents events;
    events.on_first_token = [](const FirstToken&) {};
    events.on_end = [this](absl::Status status, const TransferSummary&) {
      ++ends_;
      end_ = status;
    };
    events.on_closed = [this] { closed_.Notify(); };
    TransferPlan plan;
    plan.transfer_id = 1;
    plan.sender_epoch = 2;
    plan.layout = LargeLayout();
    plan.pool = pool_;
    plan.blocks.resize(kLargeBlocks);
    std::iota(plan.blocks.begin(), plan.blocks.end(), 0);
    plan.token_count = 10;
    return PrefillCall::Start(channel_, internal::v1::PrefillRequest(),
                              absl::Now() + absl::Seconds(300), std::move(plan), std::move(events));
  }

  backend::KvPool pool_ = PoolOf(LargeLayout());
  testing::DeviceKv device_{pool_, kLargeLayers};
  DeviceService service_;
  int ends_ = 0;
  absl::Status end_;
  absl::Notification closed_;
  std::unique_ptr<RpcServer> rpc_;
  std::shared_ptr<grpc::Channel> channel_;
};

// While one layer is written to the device, the receiver reads the next one; while a third is on
// its way, the sender reads the fourth from its device.
TEST_F(DeviceCallTest, DevicesAreReadAndWrittenWhileFramesAreSent) {
  std::atomic<int> reads_of_first = 0;
  device_.before_write = [&] {
    if (device_.writes() == 0) {
      EXPECT_TRUE(service_.device.AwaitReads(4));
      reads_of_first = service_.device.reads();
    }
  };
  const auto call = Start();
  closed_.WaitForNotification();
  EXPECT_TRUE(end_.ok()) << end_;
  EXPECT_EQ(ends_, 1);
  EXPECT_EQ(reads_of_first, 4);  // and no more: what is held for a slow receiver has a bound
  EXPECT_EQ(device_.writes(), kLargeLayers);
  EXPECT_TRUE(device_.memory() == service_.device.memory());
}

TEST_F(DeviceCallTest, NothingIsWrittenBehindAFrameThatIsWrong) {
  service_.epoch = 3;
  const auto call = Start();
  closed_.WaitForNotification();
  EXPECT_EQ(ErrorReason(end_), "STALE_EPOCH") << end_;
  EXPECT_EQ(ends_, 1);
  EXPECT_EQ(device_.writes(), 0);
}

TEST_F(DeviceCallTest, ACancelWhileALayerIsWritten) {
  service_.finishes = false;
  std::shared_ptr<PrefillCall> call;
  absl::Notification started;
  device_.before_write = [&] {
    if (device_.writes() > 0) return;
    EXPECT_TRUE(service_.device.AwaitReads(4));
    started.WaitForNotification();
    call->Cancel();
    service_.gone.WaitForNotification();
    service_.sender->Finish(absl::CancelledError());
  };
  call = Start();
  started.Notify();
  closed_.WaitForNotification();
  EXPECT_EQ(end_.code(), absl::StatusCode::kCancelled) << end_;
  EXPECT_EQ(ends_, 1);
}

}  // namespace
}  // namespace baton::transfer
