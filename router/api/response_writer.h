// The two sinks of the gRPC face: a stream of deltas and one whole answer.
#ifndef BATON_ROUTER_API_RESPONSE_WRITER_H_
#define BATON_ROUTER_API_RESPONSE_WRITER_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/rpc/answer_watch.h"
#include "common/base/stall_watch.h"
#include "router/api/wire.h"
#include "router/request/delta_merging.h"
#include "router/request/generate_call.h"
#include "router/request/response_sink.h"
#include "router/request/router_parts.h"
#include "router/request/unread_answers.h"

namespace baton::router {

// Owns itself until OnDone. While a write is under way, deltas wait and merge, up to the bounds of
// UnreadAnswers and --unread-answer-memory.
class StreamWriter final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public ResponseSink {
 public:
  StreamWriter(std::shared_ptr<GenerateCall> call, grpc::CallbackServerContext* context,
               RouterParts& parts);

  absl::Status Accepts(const v1::GenerateResponse& delta) const override;
  void Send(const v1::GenerateResponse& delta) override;
  void Heartbeat(const v1::GenerateResponse& empty) override;
  void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override;
  void Fail(const absl::Status& error) override;
  bool Stalled(absl::Duration now) override;
  void Abort(const absl::Status& why) override { CutCall(context_->c_call(), why); }

  void OnWriteDone(bool ok) override;
  void OnCancel() override { call_->Cancel(); }
  void OnDone() override;

 private:
  enum class State { kOpen, kFinishing, kFinished };
  void Add(const v1::GenerateResponse& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartWriting(const v1::GenerateResponse& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool under_way() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return writing_ || state_ == State::kFinished;
  }
  // `taken`: a write has ended.
  void CountUnread(bool taken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<GenerateCall> call_;  // shared with the worker's stream
  grpc::CallbackServerContext* const context_;
  const int64_t most_unread_bytes_;
  mutable absl::Mutex mutex_;
  UnreadAnswers::Answer unread_ ABSL_GUARDED_BY(mutex_);
  StallWatch stall_ ABSL_GUARDED_BY(mutex_);
  bool moved_ ABSL_GUARDED_BY(mutex_) = false;  // a write moved since the last look
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
             grpc::ByteBuffer* response, RouterParts& parts);

  void Send(const v1::GenerateResponse& delta) override;
  absl::Status Accepts(const v1::GenerateResponse& delta) const override;
  void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override;
  void Fail(const absl::Status& error) override;
  void Abort(const absl::Status& why) override { CutCall(context_->c_call(), why); }

  void OnCancel() override { call_->Cancel(); }
  void OnDone() override;

 private:
  const std::shared_ptr<GenerateCall> call_;  // shared with the worker's stream
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  // No lock guards these, because the GenerateCall makes its calls one at a time.
  UnreadAnswers::Answer unread_;
  WholeAnswer answer_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_API_RESPONSE_WRITER_H_
