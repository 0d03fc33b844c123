#include "router/http/exchange.h"

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "router/options.h"
#include "router/request/delta_merging.h"

namespace baton::router {
namespace {

// The stream sends this between events, so that proxies and clients see that it lives.
constexpr char kComment[] = ": keep-alive\n\n";

class WholeExchange final : public Exchange {
 public:
  using Exchange::Exchange;
  void Send(const v1::GenerateResponse& delta) override {
    size_.Add(delta);
    format_->Count(delta);
    format_->Add(delta);
  }
  absl::Status Accepts(const v1::GenerateResponse& delta) const override {
    return size_.Accepts(delta);
  }
  void Finish(const v1::GenerateResponse& last, absl::Span<const int>) override {
    Send(last);
    HttpResponse response = Ok("application/json", format_->Whole(last.usage()));
    unread_.Update(UnreadAnswers::kAnswerBytes + static_cast<int64_t>(response.body.size()), true);
    responder_->Respond(std::move(response));
  }
  void Fail(const absl::Status& error) override { RespondError(error); }

 private:
  WholeAnswerSize size_;  // needs no lock: the call makes its calls one at a time
};

// Sends nothing before the first token, so that an error has its own status until then.
class StreamExchange final : public Exchange {
 public:
  using Exchange::Exchange;

  absl::Status Accepts(const v1::GenerateResponse& delta) const override {
    absl::MutexLock lock(&mutex_);
    return AcceptBehind(pending_, delta, parts_.options.unread_answer_bytes);
  }
  void Send(const v1::GenerateResponse& delta) override {
    absl::MutexLock lock(&mutex_);
    format_->Count(delta);
    pending_.Add(delta);
    WriteNext();
    CountUnread(false);
  }
  void Heartbeat(const v1::GenerateResponse&) override {
    absl::MutexLock lock(&mutex_);
    if (begun_ && !writing_ && pending_.empty() && end_ == End::kOpen) Write(kComment);
  }
  void Finish(const v1::GenerateResponse& last, absl::Span<const int>) override {
    absl::MutexLock lock(&mutex_);
    format_->Count(last);
    pending_.Add(last);
    end_ = End::kFinished;
    usage_ = last.usage();
    WriteNext();
    CountUnread(false);
  }
  void Fail(const absl::Status& error) override {
    absl::MutexLock lock(&mutex_);
    if (!begun_) {
      end_ = End::kDone;
      return RespondError(error);
    }
    end_ = End::kFinished;
    failure_ = error;
    WriteNext();
  }
  void OnWritten() override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    piece_bytes_ = 0;
    WriteNext();
    CountUnread(true);
  }

 private:
  enum class End { kOpen, kFinished, kDone };
  // A piece of one token is smaller. It does not count while it is being written, because counting
  // takes a lock.
  static constexpr size_t kSmallPiece = 4096;

  void CountUnread(bool taken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int64_t bytes = pending_.bytes() + (end_ != End::kOpen ? UnreadAnswers::kAnswerBytes : 0);
    if (piece_bytes_ > kSmallPiece) bytes += static_cast<int64_t>(piece_bytes_);
    unread_.Update(bytes, taken);
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || end_ == End::kDone) return;
    std::string text;
    while (text.empty() && !pending_.empty()) text = format_->Chunk(pending_.Next());
    if (end_ == End::kFinished && pending_.empty()) {
      end_ = End::kDone;
      text += failure_.ok() ? format_->StreamEnd(usage_) : format_->StreamError(failure_);
    }
    if (!text.empty()) Write(std::move(text));
    if (end_ == End::kDone) responder_->End();
  }
  void Write(std::string text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    piece_bytes_ = text.size();
    if (std::exchange(begun_, true)) return responder_->Write(std::move(text));
    HttpResponse head = Ok("text/event-stream; charset=utf-8", std::move(text));
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");  // nginx: pass events on at once
    responder_->Begin(std::move(head));
  }

  mutable absl::Mutex mutex_;
  PendingDeltas pending_ ABSL_GUARDED_BY(mutex_);
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  size_t piece_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes that are being written
  End end_ ABSL_GUARDED_BY(mutex_) = End::kOpen;
  v1::Usage usage_ ABSL_GUARDED_BY(mutex_);  // of a finished answer
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Exchange> MakeExchange(bool stream, RouterParts& parts, const Caller& caller,
                                       std::shared_ptr<HttpResponder> responder,
                                       HttpHeaders headers, std::unique_ptr<AnswerFormat> format,
                                       int prompts) {
  if (stream) {
    return std::make_shared<StreamExchange>(parts, caller, std::move(responder), std::move(headers),
                                            std::move(format), prompts);
  }
  return std::make_shared<WholeExchange>(parts, caller, std::move(responder), std::move(headers),
                                         std::move(format), prompts);
}

}  // namespace baton::router
