#include "router/response_writer.h"

#include "common/base/rpc/grpc_status.h"
#include "router/wire.h"

namespace baton::router {

void StreamWriter::Send(const v1::GenerateResponse& delta) {
  absl::MutexLock lock(&mutex_);
  MergeDelta(delta, &pending_);
  has_pending_ = true;
  WriteNext();
}

void StreamWriter::Finish(const v1::GenerateResponse& last) {
  absl::MutexLock lock(&mutex_);
  MergeDelta(last, &pending_);
  has_pending_ = true;
  state_ = State::kFinishing;
  WriteNext();
}

void StreamWriter::Fail(const absl::Status& error) {
  absl::MutexLock lock(&mutex_);
  end_ = ToGrpcStatus(error);
  state_ = State::kFinishing;
  WriteNext();
}

void StreamWriter::WriteNext() {
  if (writing_ || state_ == State::kFinished) return;
  if (has_pending_) {
    on_wire_ = ToBytes(pending_);
    pending_.Clear();
    has_pending_ = false;
    writing_ = true;
    StartWrite(&on_wire_);
  } else if (state_ == State::kFinishing) {
    state_ = State::kFinished;
    ServerWriteReactor::Finish(end_);
  }
}

void StreamWriter::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) has_pending_ = false;  // nobody reads any more
    WriteNext();
  }
  if (!ok) call_->Cancel();
}

void StreamWriter::OnDone() {
  // Whoever called gRPC's Finish may still be leaving the lock.
  { absl::MutexLock lock(&mutex_); }
  delete this;
}

void OnceWriter::Finish(const v1::GenerateResponse& last) {
  MergeDelta(last, &whole_);
  v1::GenerateOnceResponse answer;
  answer.set_text(std::move(*whole_.mutable_text()));
  *answer.mutable_token_ids() = std::move(*whole_.mutable_token_ids());
  *answer.mutable_usage() = whole_.usage();
  answer.set_finish_reason(whole_.finish_reason());
  answer.set_matched_stop(whole_.matched_stop());
  *answer.mutable_timings() = whole_.timings();
  answer.set_seed(whole_.seed());
  answer.set_request_id(whole_.request_id());
  *response_ = ToBytes(answer);
  ServerUnaryReactor::Finish(grpc::Status::OK);
}

void OnceWriter::Fail(const absl::Status& error) {
  ServerUnaryReactor::Finish(ToGrpcStatus(error));
}

}  // namespace baton::router
