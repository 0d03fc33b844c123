// A KvLink stream as gRPC runs it, at either end. For device_link_server.cc and
// device_link_client.cc.
#ifndef BATON_COMMON_TRANSFER_DEVICE_LINK_REACTOR_H_
#define BATON_COMMON_TRANSFER_DEVICE_LINK_REACTOR_H_

#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "baton/internal/v1/kv.pb.h"
#include "common/transfer/device_link_end.h"

namespace baton::transfer {

// Reactor: a ServerBidiReactor or ClientBidiReactor of KvLinkMessages. Thread-safe.
template <class Reactor>
class DeviceLinkReactor : public Reactor, public DeviceLinkStream {
 public:
  explicit DeviceLinkReactor(std::shared_ptr<DeviceLinkEnd> end) : end_(std::move(end)) {}

  void Write(internal::v1::KvLinkMessage message) override {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    if (waiting_.size() >= kMostWaiting) {
      // The other end reads nothing. Fail is not called: the caller may hold what it wants.
      CloseLocked(absl::UnavailableError("the other end of the device link does not read"));
      return;
    }
    waiting_.push_back(std::move(message));
    WriteNext();
  }

  void Close(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    CloseLocked(status);
  }

 protected:
  // Called once. No write is in progress, and none follows.
  virtual void EndStream(const absl::Status& status) = 0;
  // Called once, before EndStream; a write may be in progress.
  virtual void Interrupt(bool writing) = 0;

  DeviceLinkEnd& end() { return *end_; }
  void Read() { this->StartRead(&read_); }
  // OnReadDone(true) calls it.
  void Take() {
    end_->OnMessage(read_);
    Read();
  }
  // OnReadDone(false) calls it. It is Close without Interrupt.
  void EndOfInput() {
    absl::MutexLock lock(&mutex_);
    CloseLocked(absl::OkStatus(), /*interrupt=*/false);
  }
  absl::Mutex& mutex() ABSL_LOCK_RETURNED(mutex_) { return mutex_; }

 private:
  static constexpr size_t kMostWaiting = 16384;

  void OnWriteDone(bool ok) final {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) waiting_.clear();
    if (closed_) {
      EndStream(status_);
    } else {
      WriteNext();
    }
  }
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || waiting_.empty()) return;
    writing_ = true;
    written_ = std::move(waiting_.front());
    waiting_.pop_front();
    this->StartWrite(&written_);
  }
  void CloseLocked(const absl::Status& status, bool interrupt = true)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (std::exchange(closed_, true)) return;
    status_ = status;
    waiting_.clear();
    if (interrupt) Interrupt(writing_);
    if (!writing_) EndStream(status_);
  }

  const std::shared_ptr<DeviceLinkEnd> end_;
  internal::v1::KvLinkMessage read_;
  absl::Mutex mutex_;
  std::deque<internal::v1::KvLinkMessage> waiting_ ABSL_GUARDED_BY(mutex_);
  internal::v1::KvLinkMessage written_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_DEVICE_LINK_REACTOR_H_
