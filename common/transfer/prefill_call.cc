#include "common/transfer/prefill_call.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/rpc/call_headers.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server.h"
#include "common/transfer/frame_codec.h"

namespace baton::transfer {
namespace {

constexpr char kPrefill[] = "/baton.internal.v1.PrefillService/Prefill";
constexpr char kFetch[] = "/baton.internal.v1.KvService/FetchKv";

class GrpcPrefillCall final : public PrefillCall,
                              public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  GrpcPrefillCall(const std::shared_ptr<grpc::Channel>& channel, TransferPlan plan,
                  PrefillEvents events)
      : stub_(channel), receiver_(std::move(plan)), events_(std::move(events)) {}

  void Begin(std::shared_ptr<GrpcPrefillCall> self, const char* method, const std::string& bytes,
             const TraceContext& trace, absl::Time deadline) {
    self_ = std::move(self);
    AddTrace(trace, &context_);
    context_.set_deadline(absl::ToChronoTime(deadline));
    grpc::Slice slice(bytes);
    request_ = grpc::ByteBuffer(&slice, 1);
    stub_.PrepareBidiStreamingCall(&context_, method, {}, this);
    StartWriteLast(&request_, grpc::WriteOptions());
    StartRead(&read_);
    StartCall();
  }

  void Cancel() override {
    cancelled_ = true;
    context_.TryCancel();
  }

 private:
  // Reads the next frame while one is written to the blocks, and no more: frames that come
  // meanwhile wait for the thread that does it.
  void OnReadDone(bool ok) override {
    if (!ok) return;  // the status comes with OnDone
    grpc::ByteBuffer frame;
    {
      absl::MutexLock lock(&mutex_);
      frame.Swap(&read_);
      if (failed_) return;
      if (receiving_) {
        waiting_ = std::move(frame);
        return;
      }
      receiving_ = true;
    }
    do {
      StartRead(&read_);
    } while (Receive(frame) && TakeWaiting(&frame));
  }

  // False: no frame waits, and the next one is received by the thread that has read it.
  bool TakeWaiting(grpc::ByteBuffer* frame) {
    absl::MutexLock lock(&mutex_);
    if (!waiting_) {
      receiving_ = false;
      return false;
    }
    *frame = *std::exchange(waiting_, std::nullopt);
    return true;
  }

  // False: the transfer has failed, and no further frame is taken.
  bool Receive(const grpc::ByteBuffer& frame) {
    const bool had_token = receiver_.first_token().has_value();
    absl::Status status = Take(frame);
    if (!status.ok()) {
      {
        absl::MutexLock lock(&mutex_);
        failed_ = true;
      }
      // No further frame is taken, so nothing writes to the blocks any more.
      context_.TryCancel();
      End(std::move(status));
      return false;
    }
    if (!had_token && receiver_.first_token()) {
      events_.on_first_token(*receiver_.first_token());
    }
    if (receiver_.phase() == KvReceiver::Phase::kCommitted) End(absl::OkStatus());
    return true;
  }

  absl::Status Take(const grpc::ByteBuffer& frame) {
    absl::StatusOr<DecodedFrame> decoded = DecodeFrame(frame);
    if (!decoded.ok()) {
      receiver_.Abort();
      return MakeError(absl::StatusCode::kDataLoss, "PROTOCOL", decoded.status().message());
    }
    return receiver_.OnFrame(decoded->frame, decoded->payload);
  }

  void OnDone(const grpc::Status& status) override {
    if (!ended_) {
      receiver_.Abort();
      absl::Status error = FromGrpcStatus(status);
      if (error.ok()) {
        error = MakeError(absl::StatusCode::kDataLoss, "PROTOCOL",
                          "KV transfer: the sender ended the stream without a commit");
      } else if (absl::IsUnauthenticated(error) || absl::IsPermissionDenied(error)) {
        // This is not the request's fault: another pair may do.
        error = MakeError(absl::StatusCode::kUnavailable, "PREFILL_REFUSED", error.message());
      } else if (ErrorReason(error).empty() && IsLoss(error)) {
        error = MakeError(absl::StatusCode::kUnavailable, "PREFILL_LOST", error.message());
      }
      End(std::move(error));
    }
    const std::function<void()> on_closed = events_.on_closed;
    std::shared_ptr<GrpcPrefillCall> self = std::move(self_);
    self.reset();  // may be the last reference: no member is touched below
    on_closed();
  }

  // Errors without a reason, which prefill workers give, come from the transport: it speaks, by
  // whatever code, of a connection that broke or a server that stops and cancels its calls. What it
  // says of this side is no loss.
  bool IsLoss(const absl::Status& error) const {
    const bool ours = absl::IsCancelled(error) && cancelled_;
    return !ours && !absl::IsDeadlineExceeded(error) && !absl::IsResourceExhausted(error);
  }

  void End(absl::Status status) {
    if (ended_) return;
    ended_ = true;
    events_.on_end(std::move(status), receiver_.summary());
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer read_;  // belongs to gRPC while it reads
  absl::Mutex mutex_;
  bool receiving_ ABSL_GUARDED_BY(mutex_) = false;  // a thread has a frame
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::ByteBuffer> waiting_ ABSL_GUARDED_BY(mutex_);  // the frame behind it
  KvReceiver receiver_;  // of the thread that has a frame
  const PrefillEvents events_;
  std::atomic<bool> cancelled_{false};  // by us
  bool ended_ = false;                  // of the thread that has a frame; then of OnDone
  std::shared_ptr<GrpcPrefillCall> self_;
};

std::shared_ptr<PrefillCall> StartCall(const std::shared_ptr<grpc::Channel>& channel,
                                       const char* method, const std::string& request,
                                       absl::Time deadline, TransferPlan plan,
                                       PrefillEvents events) {
  const TraceContext trace = plan.trace;
  auto call = std::make_shared<GrpcPrefillCall>(channel, std::move(plan), std::move(events));
  call->Begin(call, method, request, trace, deadline);
  return call;
}

}  // namespace

std::shared_ptr<PrefillCall> PrefillCall::Start(const std::shared_ptr<grpc::Channel>& channel,
                                                const internal::v1::PrefillRequest& request,
                                                absl::Time deadline, TransferPlan plan,
                                                PrefillEvents events) {
  return StartCall(channel, kPrefill, request.SerializeAsString(), deadline, std::move(plan),
                   std::move(events));
}

std::shared_ptr<PrefillCall> PrefillCall::StartFetch(const std::shared_ptr<grpc::Channel>& channel,
                                                     const internal::v1::FetchKvRequest& request,
                                                     absl::Time deadline, TransferPlan plan,
                                                     PrefillEvents events) {
  BATON_CHECK(plan.fetch);
  return StartCall(channel, kFetch, request.SerializeAsString(), deadline, std::move(plan),
                   std::move(events));
}

}  // namespace baton::transfer
