#include "router/api/response_writer.h"

#include "common/base/rpc/grpc_status.h"
#include "router/api/wire.h"

namespace baton::router {

void StreamWriter::Add(const v1::GenerateResponse& delta) {
  if (!writing_ && pending_.empty() && state_ != State::kFinished) {
    // The usual case: nothing waits, and nothing need be kept.
    pending_.Pass(delta);
    StartWriting(delta);
    return;
  }
  pending_.Add(delta);
  WriteNext();
}

void StreamWriter::Send(const v1::GenerateResponse& delta) {
  absl::MutexLock lock(&mutex_);
  Add(delta);
}

void StreamWriter::Heartbeat(const v1::GenerateResponse& empty) {
  absl::MutexLock lock(&mutex_);
  // What is being written shows as much, and who does not read it needs no more.
  if (!writing_ && pending_.empty() && state_ == State::kOpen) StartWriting(empty);
}

void StreamWriter::Finish(const v1::GenerateResponse& last, absl::Span<const int>) {
  absl::MutexLock lock(&mutex_);
  state_ = State::kFinishing;
  Add(last);
}

void StreamWriter::Fail(const absl::Status& error) {
  absl::MutexLock lock(&mutex_);
  end_ = ToGrpcStatus(error);
  state_ = State::kFinishing;
  WriteNext();
}

void StreamWriter::WriteNext() {
  if (writing_ || state_ == State::kFinished) return;
  if (!pending_.empty()) {
    StartWriting(pending_.Next());
  } else if (state_ == State::kFinishing) {
    state_ = State::kFinished;
    ServerWriteReactor::Finish(end_);
  }
}

void StreamWriter::StartWriting(const v1::GenerateResponse& delta) {
  on_wire_ = ToBytes(delta);
  if (state_ == State::kFinishing && pending_.empty()) {
    // In one piece with the status: one system call, and no callback in between.
    state_ = State::kFinished;
    StartWriteAndFinish(&on_wire_, grpc::WriteOptions(), end_);
    return;
  }
  writing_ = true;
  StartWrite(&on_wire_);
}

void StreamWriter::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) pending_.Clear();  // the client is gone
    WriteNext();
  }
  if (!ok) call_->Cancel();
}

void StreamWriter::OnDone() {
  call_->OnSinkGone();
  // The thread that called Finish of gRPC may still hold the lock.
  { absl::MutexLock lock(&mutex_); }
  delete this;
}

void OnceWriter::Send(const v1::GenerateResponse& delta) { answer_.Add(delta); }

bool OnceWriter::Fits(const v1::GenerateResponse& delta) const { return answer_.Fits(delta); }

void OnceWriter::Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) {
  *response_ = ToBytes(answer_.Take(last, token_counts));
  ServerUnaryReactor::Finish(grpc::Status::OK);
}

void OnceWriter::Fail(const absl::Status& error) {
  ServerUnaryReactor::Finish(ToGrpcStatus(error));
}

void OnceWriter::OnDone() {
  call_->OnSinkGone();
  delete this;
}

}  // namespace baton::router
