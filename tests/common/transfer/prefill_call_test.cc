#include "common/transfer/prefill_call.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "common/base/error.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server.h"

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

}  // namespace
}  // namespace baton::transfer
