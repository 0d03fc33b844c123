// A bounded queue for many producers and many consumers, which can be closed.
#ifndef BATON_COMMON_BASE_BOUNDED_QUEUE_H_
#define BATON_COMMON_BASE_BOUNDED_QUEUE_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton {

// Thread-safe.
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False, leaving `item` as it was, if the queue is full or closed.
  bool TryPush(T&& item) {
    absl::MutexLock lock(&mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    return true;
  }

  // Takes the oldest item. Empty after `timeout`, or once the queue is closed and has no items.
  std::optional<T> Pop(absl::Duration timeout = absl::InfiniteDuration()) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &BoundedQueue::Ready), timeout);
    return TakeFront();
  }

  std::optional<T> TryPop() {
    absl::MutexLock lock(&mutex_);
    return TakeFront();
  }

  // Refuses further items; Pop() still returns those inside. Wakes all waiting threads.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  size_t size() const {
    absl::MutexLock lock(&mutex_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  bool Ready() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return closed_ || !items_.empty(); }
  std::optional<T> TakeFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const size_t capacity_;
  mutable absl::Mutex mutex_;
  std::deque<T> items_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_BOUNDED_QUEUE_H_
