// The two sinks of the gRPC face: a stream of deltas and one whole answer.
#ifndef BATON_ROUTER_RESPONSE_WRITER_H_
#define BATON_ROUTER_RESPONSE_WRITER_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/generate_call.h"
#include "router/response_sink.h"

namespace baton::router {

// Owns itself until OnDone. Bounded: while a write is under way, the deltas of a choice merge into
// one message, which is never longer than its answer.
class StreamWriter final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public ResponseSink {
 public:
  explicit StreamWriter(std::shared_ptr<GenerateCall> call) : call_(std::move(call)) {}

  void Send(const v1::GenerateResponse& delta) override;
  void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override;
  void Fail(const absl::Status& error) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override { call_->Cancel(); }
  void OnDone() override;

 private:
  enum class State { kOpen, kFinishing, kFinished };
  void Add(const v1::GenerateResponse& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartWriting(const v1::GenerateResponse& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<GenerateCall> call_;  // shared with the worker's stream
  absl::Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpen;
  // At most one for each choice, in the order in which they began.
  std::deque<v1::GenerateResponse> pending_ ABSL_GUARDED_BY(mutex_);
  v1::Usage usage_ ABSL_GUARDED_BY(mutex_);  // the newest, of all choices
  grpc::ByteBuffer on_wire_ ABSL_GUARDED_BY(mutex_);
  grpc::Status end_ ABSL_GUARDED_BY(mutex_);  // once kFinishing
};

// Owns itself until OnDone.
class OnceWriter final : public grpc::ServerUnaryReactor, public ResponseSink {
 public:
  OnceWriter(std::shared_ptr<GenerateCall> call, grpc::ByteBuffer* response)
      : call_(std::move(call)), response_(response) {}

  void Send(const v1::GenerateResponse& delta) override {
    MergeDelta(delta, &choices_[delta.choice()]);
  }
  void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override;
  void Fail(const absl::Status& error) override;

  void OnCancel() override { call_->Cancel(); }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<GenerateCall> call_;  // shared with the worker's stream
  grpc::ByteBuffer* const response_;
  std::map<int, v1::GenerateResponse> choices_;  // the call makes its calls one at a time
};

}  // namespace baton::router

#endif  // BATON_ROUTER_RESPONSE_WRITER_H_
