#include "router/api/response_writer.h"

#include <algorithm>

#include "common/base/rpc/grpc_status.h"
#include "router/api/wire.h"

namespace baton::router {
namespace {

// gRPC's clients take messages of 4 MiB, if they are told nothing else.
constexpr size_t kMaxMessageBytes = 4 << 20;
// Deltas merge up to here; one alone is below the other bound, as prompt_logprobs have their own.
constexpr size_t kMaxMergedBytes = 1 << 20;
// The rest is for what does not grow, and for the first choice's text, which is told twice.
constexpr size_t kMaxOnceBytes = kMaxMessageBytes - (512 << 10);

// Of what adds up over the deltas.
size_t GrowingBytes(const v1::GenerateResponse& delta) {
  constexpr size_t kTagAndLength = 5;
  constexpr size_t kMaxTokenIdBytes = 5;
  size_t bytes = delta.text().size() + kMaxTokenIdBytes * delta.token_ids_size();
  for (const v1::TokenLogprobs& one : delta.logprobs()) bytes += one.ByteSizeLong() + kTagAndLength;
  for (const v1::TokenLogprobs& one : delta.prompt_logprobs()) {
    bytes += one.ByteSizeLong() + kTagAndLength;
  }
  return bytes;
}

}  // namespace

void StreamWriter::Add(const v1::GenerateResponse& delta) {
  if (delta.has_usage()) usage_ = delta.usage();
  if (!writing_ && pending_.empty() && state_ != State::kFinished) {
    // The usual case: nothing waits, and nothing need be kept.
    StartWriting(delta);
    return;
  }
  const size_t bytes = GrowingBytes(delta);
  const auto same = std::find_if(pending_.rbegin(), pending_.rend(), [&](const Pending& pending) {
    return pending.delta.choice() == delta.choice();
  });
  // The order of the deltas of one choice is its text; between choices there is none to keep.
  if (same == pending_.rend() || same->bytes + bytes > kMaxMergedBytes) {
    pending_.push_back({delta, bytes});
  } else {
    MergeDelta(delta, &same->delta);
    same->bytes += bytes;
  }
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
    // A choice that has waited must not tell of less than one that has overtaken it.
    *pending_.front().delta.mutable_usage() = usage_;
    const v1::GenerateResponse next = std::move(pending_.front().delta);
    pending_.pop_front();
    StartWriting(next);
  } else if (state_ == State::kFinishing) {
    state_ = State::kFinished;
    ServerWriteReactor::Finish(end_);
  }
}

void StreamWriter::StartWriting(const v1::GenerateResponse& delta) {
  on_wire_ = ToBytes(delta);
  writing_ = true;
  StartWrite(&on_wire_);
}

void StreamWriter::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) pending_.clear();  // nobody reads any more
    WriteNext();
  }
  if (!ok) call_->Cancel();
}

void StreamWriter::OnDone() {
  call_->OnSinkGone();
  // Whoever called gRPC's Finish may still be leaving the lock.
  { absl::MutexLock lock(&mutex_); }
  delete this;
}

void OnceWriter::Send(const v1::GenerateResponse& delta) {
  bytes_ += GrowingBytes(delta);
  MergeDelta(delta, &choices_[delta.choice()]);
}

bool OnceWriter::Fits(const v1::GenerateResponse& delta) const {
  return bytes_ + GrowingBytes(delta) <= kMaxOnceBytes;
}

void OnceWriter::Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) {
  Send(last);
  v1::GenerateOnceResponse answer;
  for (auto& [index, whole] : choices_) {
    v1::Choice* choice = answer.add_choices();
    choice->set_text(whole.text());
    *choice->mutable_token_ids() = whole.token_ids();
    choice->set_finish_reason(whole.finish_reason());
    choice->set_matched_stop(whole.matched_stop());
    *choice->mutable_logprobs() = std::move(*whole.mutable_logprobs());
    choice->set_beam_score(whole.beam_score());
    // They came with whichever choice was first.
    if (!whole.prompt_logprobs().empty()) {
      *answer.mutable_prompt_logprobs() = std::move(*whole.mutable_prompt_logprobs());
    }
    choice->set_generated_tokens(token_counts[index]);
  }
  const v1::GenerateResponse& first = choices_.begin()->second;
  answer.set_text(first.text());
  *answer.mutable_token_ids() = first.token_ids();
  answer.set_finish_reason(first.finish_reason());
  answer.set_matched_stop(first.matched_stop());
  *answer.mutable_usage() = last.usage();
  *answer.mutable_timings() = last.timings();
  answer.set_seed(last.seed());
  answer.set_request_id(last.request_id());
  *response_ = ToBytes(answer);
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
