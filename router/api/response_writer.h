// The two sinks of the gRPC face: a stream of deltas and one whole answer.
#ifndef BATON_ROUTER_API_RESPONSE_WRITER_H_
#define BATON_ROUTER_API_RESPONSE_WRITER_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/request/delta_merging.h"
#include "router/request/generate_call.h"
#include "router/request/response_sink.h"

namespace baton::router {

// Owns itself until OnDone. Bounded: while a write is under way, deltas merge.
class StreamWriter final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public ResponseSink {
 public:
  StreamWriter(std::shared_ptr<GenerateCall> call, grpc::CallbackServerContext* context)
      : call_(std::move(call)), context_(context) {}

  void Send(const v1::GenerateResponse& delta) override;
  void Heartbeat(const v1::GenerateResponse& empty) override;
  void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override;
  void Fail(const absl::Status& error) override;
  void Abort() override { context_->TryCancel(); }

  void OnWriteDone(bool ok) override;
  void OnCancel() override { call_->Cancel(); }
  void OnDone() override;

 private:
  enum class State { kOpen, kFinishing, kFinished };
  void Add(const v1::GenerateResponse& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartWriting(const v1::GenerateResponse& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<GenerateCall> call_;  // shared with the worker's stream
  grpc::CallbackServerContext* const context_;
  absl::Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpen;
  PendingDeltas pending_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer on_wire_ ABSL_GUARDED_BY(mutex_);
  grpc::Status end_ ABSL_GUARDED_BY(mutex_);  // once kFinishing
};

// Owns itself until OnDone. Refuses what would not fit in one message.
class OnceWriter final : public grpc::ServerUnaryReactor, public ResponseSink {
 public:
  OnceWriter(std::shared_ptr<GenerateCall> call, grpc::CallbackServerContext* context,
             grpc::ByteBuffer* response)
      : call_(std::move(call)), context_(context), response_(response) {}

  void Send(const v1::GenerateResponse& delta) override;
  bool Fits(const v1::GenerateResponse& delta) const override;
  void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override;
  void Fail(const absl::Status& error) override;
  void Abort() override { context_->TryCancel(); }

  void OnCancel() override { call_->Cancel(); }
  void OnDone() override;

 private:
  const std::shared_ptr<GenerateCall> call_;  // shared with the worker's stream
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  WholeAnswer answer_;  // unguarded: the call makes its calls one at a time
};

}  // namespace baton::router

#endif  // BATON_ROUTER_API_RESPONSE_WRITER_H_
