// Counts the requests that have lost a worker and wait for another one, and keeps room for them.
//
// They are not queued: each asks a worker again after its pause; where pauses end together, the
// older request asks first (CallWatch's order). While workers refuse them for want of room, the
// router refuses new requests, which would take the room that becomes free during the pauses.
#ifndef BATON_ROUTER_REQUEST_CONTINUATION_LINE_H_
#define BATON_ROUTER_REQUEST_CONTINUATION_LINE_H_

#include <functional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton::router {

// Thread-safe. Must outlive its places and holds.
class ContinuationLine {
 public:
  // One waiting attempt. Released by its destructor. Move-only.
  class Place {
   public:
    explicit Place(ContinuationLine* line) : line_(line) { line_->Count(1); }
    Place(Place&& other) noexcept : line_(std::exchange(other.line_, nullptr)) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(line_, other.line_);
      return *this;
    }
    ~Place() {
      if (line_ != nullptr) line_->Count(-1);
    }

   private:
    ContinuationLine* line_;
  };

  // Keeps new requests out until it is destroyed, at the latest until its time. Move-only.
  class Hold {
   public:
    Hold(ContinuationLine* line, absl::Duration until) : line_(line), until_(until) {
      line_->AddHold(until_);
    }
    Hold(Hold&& other) noexcept
        : line_(std::exchange(other.line_, nullptr)), until_(other.until_) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(line_, other.line_);
      std::swap(until_, other.until_);
      return *this;
    }
    ~Hold() {
      if (line_ != nullptr) line_->RemoveHold(until_);
    }

   private:
    ContinuationLine* line_;
    absl::Duration until_;
  };

  // `on_change(waiting)` is called under the lock, in order: it must be quick.
  explicit ContinuationLine(std::function<void(int)> on_change)
      : on_change_(std::move(on_change)) {}

  // Some continuation was refused for want of room, and its hold has not expired.
  bool KeepsNewOut(absl::Duration now) const {
    absl::MutexLock lock(&mutex_);
    return !holds_.empty() && now < *holds_.rbegin();
  }
  int waiting() const {
    absl::MutexLock lock(&mutex_);
    return waiting_;
  }
  // How many holds live, those whose time has passed included.
  int holds() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int>(holds_.size());
  }

 private:
  void Count(int more) {
    absl::MutexLock lock(&mutex_);
    on_change_(waiting_ += more);
  }
  void AddHold(absl::Duration until) {
    absl::MutexLock lock(&mutex_);
    holds_.insert(until);
  }
  void RemoveHold(absl::Duration until) {
    absl::MutexLock lock(&mutex_);
    holds_.erase(holds_.find(until));
  }

  const std::function<void(int)> on_change_;
  mutable absl::Mutex mutex_;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::multiset<absl::Duration> holds_ ABSL_GUARDED_BY(mutex_);  // their ends
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_CONTINUATION_LINE_H_
