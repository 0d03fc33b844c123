// How much is inside at once, how fast it leaves, and so when those refused may try again.
#ifndef BATON_ROUTER_REQUEST_ADMISSION_H_
#define BATON_ROUTER_REQUEST_ADMISSION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "router/request/answer_pace.h"
#include "router/request/decaying_rate.h"

namespace baton::router {

// Thread-safe. Must outlive its tickets.
class Admission {
 public:
  struct Limits {
    int requests = 0;
    int64_t prompt_tokens = 0;
    // Told to those refused while the speed is not known yet.
    absl::Duration first_retry_after = absl::Seconds(1);
  };
  struct Inside {
    int requests = 0;
    int64_t prompt_tokens = 0;
  };

  // A place inside, given back by its destructor. Move-only; its methods are for one thread.
  class Ticket {
   public:
    explicit Ticket(Admission* admission) : admission_(admission) {}
    Ticket(Ticket&& other) noexcept
        : admission_(std::exchange(other.admission_, nullptr)),
          prompt_tokens_(std::exchange(other.prompt_tokens_, 0)),
          waiting_(std::exchange(other.waiting_, false)) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(admission_, other.admission_);
      std::swap(prompt_tokens_, other.prompt_tokens_);
      std::swap(waiting_, other.waiting_);
      return *this;
    }
    ~Ticket() {
      if (admission_ != nullptr) admission_->Leave(*this);
    }

    // Once, when the prompt's length is known. False if there is no room for so many; a prompt
    // that is alone always has room.
    bool TryAddPrompt(int64_t tokens) { return admission_->TryAddPrompt(tokens, this); }
    // The prompt waits for nobody any more.
    void OnFirstToken() { admission_->OnFirstToken(this); }

   private:
    friend class Admission;
    Admission* admission_;
    int64_t prompt_tokens_ = 0;
    bool waiting_ = false;  // for the first token
  };

  // `on_change` is called under the lock: in order, and so must be quick. `clock` must outlive it.
  Admission(const Limits& limits, const Clock& clock, std::function<void(const Inside&)> on_change)
      : limits_(limits), clock_(clock), on_change_(std::move(on_change)) {}

  // Nothing if all places are taken.
  std::optional<Ticket> TryEnter();

  // When one who is refused now is to come again: in a line with those refused before, at the pace
  // at which places become free while most are taken. Between 50 ms and 30 s.
  absl::Duration RetryAfter();

  // When a prompt of `tokens` that came now would have its first token, and its answer of at most
  // `max_tokens` its last, from now on; both zero unless the pace under load is known and there is
  // load: a guess that is too long would refuse what could be done.
  struct Estimate {
    absl::Duration first_token, last_token;
  };
  Estimate EstimatedTimes(int64_t tokens, int64_t max_tokens) const;

  // See AnswerPace.
  void OnAnswer(int64_t tokens, int64_t max_tokens, absl::Duration took, bool whole) {
    absl::MutexLock lock(&mutex_);
    answer_pace_.OnAnswer(tokens, max_tokens, took, whole);
  }

  void AwaitEmpty();

 private:
  bool TryAddPrompt(int64_t tokens, Ticket* ticket);
  void OnFirstToken(Ticket* ticket);
  void Leave(const Ticket& ticket);
  // The pace of prompts is taken while at least so many wait: a single one does not show it.
  bool Loaded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The pace at which places become free is taken while most are: when few come, few leave.
  bool NearlyFull() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Before anything changes.
  void NoteTime() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWaiting(int64_t tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Clock& clock_;
  const std::function<void(const Inside&)> on_change_;
  mutable absl::Mutex mutex_;
  Inside inside_ ABSL_GUARDED_BY(mutex_);
  absl::Duration last_change_ ABSL_GUARDED_BY(mutex_);
  absl::Duration full_time_ ABSL_GUARDED_BY(mutex_);  // stands still unless NearlyFull()
  DecayingRate completions_ ABSL_GUARDED_BY(mutex_);  // by that clock
  AnswerPace answer_pace_ ABSL_GUARDED_BY(mutex_);
  absl::Duration next_turn_ ABSL_GUARDED_BY(mutex_);  // of the line of those refused

  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // requests without a first token
  int64_t waiting_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration loaded_time_ ABSL_GUARDED_BY(mutex_);  // stands still unless Loaded()
  int loaded_samples_ ABSL_GUARDED_BY(mutex_) = 0;
  DecayingRate prompt_tokens_done_ ABSL_GUARDED_BY(mutex_);  // by that clock
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ADMISSION_H_
