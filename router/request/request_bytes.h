// Bounds the bytes of requests that a router has taken in: HTTP bodies as they arrive, and what is
// read from them; gRPC messages. They count until the request's answer has ended.
#ifndef BATON_ROUTER_REQUEST_REQUEST_BYTES_H_
#define BATON_ROUTER_REQUEST_REQUEST_BYTES_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton::router {

// Thread-safe. Must outlive its shares.
class RequestBytes {
 public:
  // The bytes of one request, which count until the destructor. Move-only; its methods are for one
  // thread at a time.
  class Share {
   public:
    Share() = default;  // counts nowhere
    Share(Share&& other) noexcept
        : all_(std::exchange(other.all_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(all_, other.all_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() {
      if (all_ != nullptr) all_->Change(-bytes_);
    }

    // False, and nothing changes, if so many more do not fit; a request that is alone always fits.
    bool TryGrow(int64_t bytes) {
      if (all_ != nullptr && !all_->TryAdd(bytes, bytes_)) return false;
      bytes_ += bytes;
      return true;
    }
    // True if TryGrow would succeed now.
    bool MayGrow(int64_t bytes) const { return all_ == nullptr || all_->Fits(bytes, bytes_); }
    // REQUIRES: at most bytes().
    void Shrink(int64_t bytes) {
      if (all_ != nullptr) all_->Change(-bytes);
      bytes_ -= bytes;
    }
    int64_t bytes() const { return bytes_; }

   private:
    friend class RequestBytes;
    explicit Share(RequestBytes* all) : all_(all) {}
    RequestBytes* all_ = nullptr;
    int64_t bytes_ = 0;
  };

  // `on_change` is called under the lock, in order, with the bytes of all shares: it must be quick.
  RequestBytes(int64_t limit, std::function<void(int64_t)> on_change)
      : limit_(limit), on_change_(std::move(on_change)) {}

  Share Open() { return Share(this); }
  int64_t limit() const { return limit_; }

 private:
  bool FitsLocked(int64_t more, int64_t own) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return bytes_ == own || bytes_ + more <= limit_;
  }
  bool Fits(int64_t more, int64_t own) const {
    absl::MutexLock lock(&mutex_);
    return FitsLocked(more, own);
  }
  bool TryAdd(int64_t more, int64_t own) {
    absl::MutexLock lock(&mutex_);
    if (!FitsLocked(more, own)) return false;
    bytes_ += more;
    on_change_(bytes_);
    return true;
  }
  void Change(int64_t by) {
    if (by == 0) return;
    absl::MutexLock lock(&mutex_);
    bytes_ += by;
    on_change_(bytes_);
  }

  const int64_t limit_;
  const std::function<void(int64_t)> on_change_;
  mutable absl::Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_REQUEST_BYTES_H_
