#include "router/api/response_writer.h"

#include <utility>

#include "common/base/rpc/grpc_status.h"
#include "router/api/wire.h"

namespace baton::router {
namespace {

// A message of one token is smaller. It does not count while it is being written, because counting
// takes a lock.
constexpr size_t kSmallMessage = 4096;

}  // namespace

StreamWriter::StreamWriter(std::shared_ptr<GenerateCall> call, grpc::CallbackServerContext* context,
                           RouterParts& parts)
    : call_(std::move(call)),
      context_(context),
      most_unread_bytes_(parts.options.unread_answer_bytes),
      unread_(parts.unread, CutBehind(context, parts)),
      stall_(StallLimit(parts)) {}

absl::Status StreamWriter::Accepts(const v1::GenerateResponse& delta) const {
  absl::MutexLock lock(&mutex_);
  return AcceptBehind(pending_, delta, most_unread_bytes_);
}

void StreamWriter::CountUnread(bool taken) {
  int64_t bytes = pending_.bytes() + (state_ != State::kOpen ? UnreadAnswers::kAnswerBytes : 0);
  const size_t written = under_way() ? on_wire_.Length() : 0;
  if (written > kSmallMessage) bytes += static_cast<int64_t>(written);
  unread_.Update(bytes, taken);
}

bool StreamWriter::Stalled(absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  return stall_.Look(now, std::exchange(moved_, false) || !under_way(), on_wire_.Length());
}

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
  CountUnread(false);
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
  CountUnread(false);
}

void StreamWriter::Fail(const absl::Status& error) {
  absl::MutexLock lock(&mutex_);
  end_ = ToGrpcStatus(error);
  state_ = State::kFinishing;
  WriteNext();
  CountUnread(false);
}

void StreamWriter::WriteNext() {
  if (writing_ || state_ == State::kFinished) return;
  if (!pending_.empty()) {
    StartWriting(pending_.Next());
  } else if (state_ == State::kFinishing) {
    state_ = State::kFinished;
    on_wire_.Clear();
    ServerWriteReactor::Finish(end_);
  }
}

void StreamWriter::StartWriting(const v1::GenerateResponse& delta) {
  on_wire_ = ToBytes(delta);
  moved_ = true;
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
    moved_ = true;
    if (!ok) pending_.Clear();  // the client is gone
    WriteNext();
    CountUnread(true);
  }
  if (!ok) call_->Cancel();
}

void StreamWriter::OnDone() {
  call_->OnSinkGone();
  // The thread that called Finish of gRPC may still hold the lock.
  { absl::MutexLock lock(&mutex_); }
  delete this;
}

OnceWriter::OnceWriter(std::shared_ptr<GenerateCall> call, grpc::CallbackServerContext* context,
                       grpc::ByteBuffer* response, RouterParts& parts)
    : call_(std::move(call)),
      context_(context),
      response_(response),
      unread_(parts.unread, CutBehind(context, parts)) {}

void OnceWriter::Send(const v1::GenerateResponse& delta) { answer_.Add(delta); }

absl::Status OnceWriter::Accepts(const v1::GenerateResponse& delta) const {
  return answer_.Accepts(delta);
}

void OnceWriter::Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) {
  *response_ = ToBytes(answer_.Take(last, token_counts));
  answer_ = WholeAnswer();
  unread_.Update(UnreadAnswers::kAnswerBytes + static_cast<int64_t>(response_->Length()), true);
  ServerUnaryReactor::Finish(grpc::Status::OK);
}

void OnceWriter::Fail(const absl::Status& error) {
  unread_.Update(UnreadAnswers::kAnswerBytes, true);
  ServerUnaryReactor::Finish(ToGrpcStatus(error));
}

void OnceWriter::OnDone() {
  call_->OnSinkGone();
  delete this;
}

}  // namespace baton::router
