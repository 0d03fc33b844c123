// Bounds what waits in a router for its clients to read: answers that are generated faster than
// their clients read them, or that are not read at all.
#ifndef BATON_ROUTER_REQUEST_UNREAD_ANSWERS_H_
#define BATON_ROUTER_REQUEST_UNREAD_ANSWERS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "router/request/delta_merging.h"

namespace baton::router {

// ABORTED, READER_BEHIND: more than so many bytes of one answer would wait.
absl::Status ReaderBehind(int64_t answer_bytes);
// ABORTED, READER_BEHIND: more than so many bytes of all answers would wait.
absl::Status ReadersBehind(int64_t all_bytes);

// The check of one answer's stream: READER_BEHIND if more than `answer_bytes` would wait with
// `delta`, unless `delta` alone would wait.
inline absl::Status AcceptBehind(const PendingDeltas& waiting, const v1::GenerateResponse& delta,
                                 int64_t answer_bytes) {
  if (waiting.empty() || waiting.bytes() + PendingDeltas::BytesOf(delta) <= answer_bytes) {
    return absl::OkStatus();
  }
  return ReaderBehind(answer_bytes);
}

// Beyond its bound it ends the answers that have waited longest since their client took something,
// and no others: clients that read have almost nothing waiting, and go on. Thread-safe.
class UnreadAnswers {
 public:
  // What an answer takes beside the bytes that wait, from its end until it is read.
  static constexpr int64_t kAnswerBytes = 16 << 10;

  // The bytes of one answer that wait, which count until the destructor. Its methods are called one
  // at a time.
  class Answer {
   public:
    // `all` outlives it. `cut` ends the client's stream at once. Any thread may call it, under
    // locks, at most once and never after the destructor: it must not wait, or call back.
    Answer(UnreadAnswers& all, std::function<void()> cut) : all_(all), cut_(std::move(cut)) {}
    ~Answer() { Update(0, false); }
    Answer(const Answer&) = delete;
    Answer& operator=(const Answer&) = delete;

    // So many bytes wait now. `taken`: the client has taken something since the last call. Takes a
    // lock only where something waits, or did.
    void Update(int64_t bytes, bool taken);

   private:
    friend class UnreadAnswers;
    UnreadAnswers& all_;
    const std::function<void()> cut_;
    int64_t reported_ = 0;  // bytes of the last Update
    // Guarded by the lock of all_.
    int64_t counted_ = 0;  // above zero: the answer is in its list
    bool was_cut_ = false;
    std::list<Answer*>::iterator at_;
  };

  // Both functions are called under the lock, so they must be quick. `on_change`: so many bytes
  // wait now. `on_cut`: an answer was ended.
  UnreadAnswers(int64_t most_bytes, std::function<void(int64_t)> on_change,
                std::function<void()> on_cut)
      : most_bytes_(most_bytes), on_change_(std::move(on_change)), on_cut_(std::move(on_cut)) {}

  int64_t most_bytes() const { return most_bytes_; }
  int64_t bytes() const {
    absl::MutexLock lock(&mutex_);
    return bytes_;
  }

 private:
  void Set(Answer& answer, int64_t bytes, bool taken);
  void Count(Answer& answer, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t most_bytes_;
  const std::function<void(int64_t)> on_change_;
  const std::function<void()> on_cut_;
  mutable absl::Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // The answers of which something waits; first the one whose client took something the longest
  // time ago.
  std::list<Answer*> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_UNREAD_ANSWERS_H_
