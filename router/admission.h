// How many requests are inside at once, and the wait for the last of them to leave.
#ifndef BATON_ROUTER_ADMISSION_H_
#define BATON_ROUTER_ADMISSION_H_

#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton::router {

// Thread-safe. Must outlive its tickets.
class Admission {
 public:
  // A place inside, given back by its destructor. Move-only.
  class Ticket {
   public:
    explicit Ticket(Admission* admission) : admission_(admission) {}
    Ticket(Ticket&& other) noexcept : admission_(std::exchange(other.admission_, nullptr)) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(admission_, other.admission_);
      return *this;
    }
    ~Ticket() {
      if (admission_ != nullptr) admission_->Leave();
    }

   private:
    Admission* admission_;
  };

  // `on_change` gets how many are inside, under the lock: in order, and so must be quick.
  Admission(int capacity, std::function<void(int inside)> on_change)
      : capacity_(capacity), on_change_(std::move(on_change)) {}

  // Nothing if all places are taken.
  std::optional<Ticket> TryEnter() {
    absl::MutexLock lock(&mutex_);
    if (inside_ >= capacity_) return std::nullopt;
    on_change_(++inside_);
    return Ticket(this);
  }

  void AwaitEmpty() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* inside) { return *inside == 0; }, &inside_));
  }

 private:
  void Leave() {
    absl::MutexLock lock(&mutex_);
    on_change_(--inside_);
  }

  const int capacity_;
  const std::function<void(int)> on_change_;
  mutable absl::Mutex mutex_;
  int inside_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ADMISSION_H_
