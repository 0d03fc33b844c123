#include "router/request/unread_answers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::router {

absl::Status ReaderBehind(int64_t answer_bytes) {
  return MakeError(absl::StatusCode::kAborted, "READER_BEHIND",
                   absl::StrCat("the client reads its answer more slowly than it is generated, and "
                                "more than ",
                                answer_bytes, " bytes of it would wait (--unread-answer-memory)"));
}

absl::Status ReadersBehind(int64_t all_bytes) {
  return MakeError(absl::StatusCode::kAborted, "READER_BEHIND",
                   absl::StrCat("more than ", all_bytes,
                                " bytes of answers would wait for their clients (--unread-memory), "
                                "and this one was not read for longest"));
}

void UnreadAnswers::Answer::Update(int64_t bytes, bool taken) {
  if (bytes == reported_ && (bytes == 0 || !taken)) return;
  reported_ = bytes;
  all_.Set(*this, bytes, taken);
}

void UnreadAnswers::Set(Answer& answer, int64_t bytes, bool taken) {
  absl::MutexLock lock(&mutex_);
  if (answer.was_cut_) return;
  Count(answer, bytes);
  if (taken && bytes > 0) waiting_.splice(waiting_.end(), waiting_, answer.at_);
  while (bytes_ > most_bytes_) {
    Answer& oldest = *waiting_.front();
    Count(oldest, 0);
    oldest.was_cut_ = true;
    on_cut_();  // before the client can see it
    oldest.cut_();
  }
  on_change_(bytes_);
}

void UnreadAnswers::Count(Answer& answer, int64_t bytes) {
  bytes_ += bytes - answer.counted_;
  if (answer.counted_ == 0 && bytes > 0) answer.at_ = waiting_.insert(waiting_.end(), &answer);
  if (answer.counted_ > 0 && bytes == 0) waiting_.erase(answer.at_);
  answer.counted_ = bytes;
}

}  // namespace baton::router
