// Bounds the requests inside the router, and estimates from their pace when a refused client may
// retry.
#ifndef BATON_ROUTER_REQUEST_ADMISSION_H_
#define BATON_ROUTER_REQUEST_ADMISSION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "router/request/answer_pace.h"

namespace baton::router {

// Events per second, exponentially weighted: an event that is `kMemory` old counts 1/e. Exact for a
// steady rate from the first second on. Unsynchronized; time must not run backwards.
class DecayingRate {
 public:
  static constexpr absl::Duration kMemory = absl::Seconds(10);

  void Add(absl::Duration now, double amount) {
    if (events_++ == 0) begin_ = last_ = now;
    sum_ = sum_ * std::exp(-absl::FDivDuration(now - last_, kMemory)) + amount;
    last_ = now;
  }

  // 0 before the first event.
  double PerSecond(absl::Duration now) const {
    if (sum_ == 0) return 0;
    const double decayed = sum_ * std::exp(-absl::FDivDuration(now - last_, kMemory));
    // What a steady rate of one event a second would have summed up to. Over at least a second: a
    // single event right after the start is no rate.
    const absl::Duration seen = std::max(Seen(now), absl::Seconds(1));
    const double window =
        absl::ToDoubleSeconds(kMemory) * (1 - std::exp(-absl::FDivDuration(seen, kMemory)));
    return decayed / window;
  }

  // Since the first event.
  absl::Duration Seen(absl::Duration now) const { return now - begin_; }
  // So far.
  int64_t events() const { return events_; }

 private:
  double sum_ = 0;
  int64_t events_ = 0;
  absl::Duration begin_, last_;
};

// Thread-safe. Must outlive its tickets.
class Admission {
 public:
  struct Limits {
    int requests = 0;
    int64_t prompt_tokens = 0;
    // The time to retry while the pace is not known.
    absl::Duration first_retry_after = absl::Seconds(1);
  };
  struct Inside {
    int requests = 0;
    int64_t prompt_tokens = 0;  // of the requests whose prompt is known, further prompts included
    int without_prompt = 0;     // the other requests
  };

  // A place inside, released by Leave or its destructor. Move-only; its methods are for one thread.
  class Ticket {
   public:
    explicit Ticket(Admission* admission) : admission_(admission) {}
    Ticket(Ticket&& other) noexcept
        : admission_(std::exchange(other.admission_, nullptr)),
          prompt_tokens_(std::exchange(other.prompt_tokens_, 0)),
          prompt_known_(std::exchange(other.prompt_known_, false)),
          waiting_(std::exchange(other.waiting_, false)),
          inside_(std::exchange(other.inside_, false)) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(admission_, other.admission_);
      std::swap(prompt_tokens_, other.prompt_tokens_);
      std::swap(prompt_known_, other.prompt_known_);
      std::swap(waiting_, other.waiting_);
      std::swap(inside_, other.inside_);
      return *this;
    }
    ~Ticket() {
      if (admission_ != nullptr) admission_->Forget(this);
    }

    // The request has ended. What is left of it, such as an answer that is still being read, takes
    // no place; AwaitEmpty waits for it all the same.
    void Leave() { admission_->Leave(this); }
    // Once, when the prompt's length is known. False if so many tokens do not fit; a prompt that is
    // alone always fits.
    bool TryAddPrompt(int64_t tokens) { return admission_->TryAddPrompt(tokens, this); }
    // The prompt is computed.
    void OnFirstToken() { admission_->OnFirstToken(this); }

   private:
    friend class Admission;
    Admission* admission_;
    int64_t prompt_tokens_ = 0;  // perhaps none of a prompt that is known
    bool prompt_known_ = false;
    bool waiting_ = false;  // for the first token
    bool inside_ = true;
  };

  // A further prompt of a request inside, until the destructor: it counts like the first one.
  // Move-only; its methods are for one thread.
  class FurtherPrompt {
   public:
    FurtherPrompt(FurtherPrompt&& other) noexcept
        : admission_(std::exchange(other.admission_, nullptr)), tokens_(other.tokens_) {}
    FurtherPrompt& operator=(FurtherPrompt&& other) noexcept {
      std::swap(admission_, other.admission_);
      std::swap(tokens_, other.tokens_);
      return *this;
    }
    ~FurtherPrompt() {
      if (admission_ != nullptr) admission_->EndPrompt(tokens_, /*computed=*/false);
    }
    // It leaves.
    void Computed() { std::exchange(admission_, nullptr)->EndPrompt(tokens_, /*computed=*/true); }

   private:
    friend class Admission;
    FurtherPrompt(Admission* admission, int64_t tokens) : admission_(admission), tokens_(tokens) {}
    Admission* admission_;
    int64_t tokens_;
  };

  // `on_change` is called under the lock, in order: it must be quick. `clock` must outlive it.
  Admission(const Limits& limits, const Clock& clock, std::function<void(const Inside&)> on_change)
      : limits_(limits), clock_(clock), on_change_(std::move(on_change)) {}

  // Nothing if all places are taken.
  std::optional<Ticket> TryEnter();

  // Nothing if so many tokens do not fit, unless `always`.
  std::optional<FurtherPrompt> TryAddFurther(int64_t tokens, bool always);

  struct Load {
    Inside inside;
    int before_first_token = 0;  // prompts: of the requests whose prompt is known
  };
  Load load() const {
    absl::MutexLock lock(&mutex_);
    return {inside_, waiting_};
  }

  // When a client that is refused now should retry: behind those refused before, at the pace at
  // which places become free while most are taken. Between 50 ms and 30 s. The pace is known once
  // it was measured over several answers and a second, or for long: the first answers of a process
  // take longer than later ones, and several may end at once.
  absl::Duration RetryAfter();

  // How long a prompt of `tokens` that arrives now would take to its first token, and its answer of
  // at most `max_tokens` to its last. Both zero unless there is load and the pace under load is
  // known: too long a guess would refuse requests that can be answered.
  struct Estimate {
    absl::Duration first_token, last_token;
  };
  Estimate EstimatedTimes(int64_t tokens, int64_t max_tokens) const;

  // See AnswerPace.
  void OnAnswer(int64_t tokens, int64_t max_tokens, absl::Duration took, bool whole) {
    absl::MutexLock lock(&mutex_);
    answer_pace_.OnAnswer(tokens, max_tokens, took, whole);
  }

  // Waits until the last ticket is gone. Its call must have nothing left by then that uses what the
  // waiter goes on to destroy.
  void AwaitEmpty();
  // AwaitEmpty would return at once.
  bool empty() const {
    absl::MutexLock lock(&mutex_);
    return tickets_ == 0;
  }

 private:
  bool TryAddPrompt(int64_t tokens, Ticket* ticket);
  void OnFirstToken(Ticket* ticket);
  void Leave(Ticket* ticket);
  void Forget(Ticket* ticket);
  void FreePlace(Ticket* ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndPrompt(int64_t tokens, bool computed);
  // So many prompts wait that their pace can be measured.
  bool Loaded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Most places are taken, so that the pace at which they become free can be measured.
  bool NearlyFull() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Advances the two clocks below. Before any change.
  void NoteTime() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWaiting(int64_t tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool KnowsPace() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Clock& clock_;
  const std::function<void(const Inside&)> on_change_;
  mutable absl::Mutex mutex_;
  Inside inside_ ABSL_GUARDED_BY(mutex_);
  int tickets_ ABSL_GUARDED_BY(mutex_) = 0;  // tickets with a place, and those that have left
  absl::Duration last_change_ ABSL_GUARDED_BY(mutex_);
  absl::Duration full_time_ ABSL_GUARDED_BY(mutex_);  // runs only while NearlyFull()
  DecayingRate completions_ ABSL_GUARDED_BY(mutex_);  // by that clock
  AnswerPace answer_pace_ ABSL_GUARDED_BY(mutex_);
  // Refused clients that are still to retry. They pass at the present pace, not at that of the time
  // when they were refused.
  double line_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration line_at_ ABSL_GUARDED_BY(mutex_);  // when it was so long

  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // prompts without a first token
  int64_t waiting_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration loaded_time_ ABSL_GUARDED_BY(mutex_);       // runs only while Loaded()
  DecayingRate prompt_tokens_done_ ABSL_GUARDED_BY(mutex_);  // by that clock
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ADMISSION_H_
