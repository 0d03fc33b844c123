// The sending side of a server stream: items pushed from any thread, written one at a time in
// order.
#ifndef BATON_COMMON_BASE_RPC_SERVER_STREAM_H_
#define BATON_COMMON_BASE_RPC_SERVER_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton {

// Keeps itself alive from Open() until gRPC is done with the call. The code that opened it must
// call Finish() exactly once, cancelled or not: the call ends only then. Thread-safe.
template <class Message, class Item>
class ServerStream : public grpc::ServerWriteReactor<Message> {
 public:
  // Keeps `stream` alive until OnDone; returns it as the reactor that gRPC wants.
  static ServerStream* Open(std::shared_ptr<ServerStream> stream) {
    ServerStream* raw = stream.get();
    absl::MutexLock lock(&raw->mutex_);
    raw->self_ = std::move(stream);
    return raw;
  }

  // Dropped if the peer is gone or the stream finished. `urgent` items overtake the others.
  void Push(Item item, bool urgent = false) {
    {
      absl::MutexLock lock(&mutex_);
      if (broken_ || finish_) return;
      if (urgent) {
        items_.push_front(std::move(item));
      } else if (items_.empty() || !Merge(items_, item)) {
        items_.push_back(std::move(item));
      }
      if (busy_) return;
      busy_ = true;
    }
    Continue();
  }

  // OK: after what has been pushed. An error: at once, what is pending is dropped.
  void Finish(const grpc::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      if (finish_) return;
      finish_ = status;
      if (!status.ok()) items_.clear();
      if (busy_) return;
      busy_ = true;
    }
    Continue();
  }

  // Nothing is queued and no write is in flight.
  bool idle() const {
    absl::MutexLock lock(&mutex_);
    return !busy_;
  }

 protected:
  // Makes the message of an item. Called by one thread at a time, without locks.
  virtual void Encode(Item item, Message* message) = 0;
  // May add `next` to one of those that have not been sent yet, one or more, oldest first; false:
  // it is to be queued behind them. Called under the stream's lock.
  virtual bool Merge(std::deque<Item>& waiting, Item& next) { return false; }
  // The peer cancelled, its deadline passed or its connection broke.
  virtual void OnPeerGone() {}

 private:
  void OnCancel() final {
    std::shared_ptr<ServerStream> self;  // OnDone may come while OnPeerGone runs
    {
      absl::MutexLock lock(&mutex_);
      self = self_;
      broken_ = true;
      items_.clear();
    }
    OnPeerGone();
  }

  void OnWriteDone(bool ok) final {
    if (!ok) {
      absl::MutexLock lock(&mutex_);
      broken_ = true;
      items_.clear();
    }
    Continue();
  }

  void OnDone() final {
    std::shared_ptr<ServerStream> self;  // may be the last reference: dies after the lock
    absl::MutexLock lock(&mutex_);
    self.swap(self_);
  }

  // Writes the next item, finishes, or goes idle. REQUIRES: busy_ is set and no write is in flight.
  void Continue() {
    std::optional<Item> item;
    std::optional<grpc::Status> finish;
    {
      absl::MutexLock lock(&mutex_);
      if (!items_.empty()) {
        item.emplace(std::move(items_.front()));
        items_.pop_front();
      } else if (finish_) {
        finish = finish_;  // busy_ stays set: nothing may follow
      } else {
        busy_ = false;
        return;
      }
    }
    if (finish) {
      grpc::ServerWriteReactor<Message>::Finish(*finish);
      return;
    }
    message_.Clear();
    Encode(std::move(*item), &message_);
    this->StartWrite(&message_);
  }

  mutable absl::Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;    // a write or the finish runs
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // nothing can reach the peer any more
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ServerStream> self_ ABSL_GUARDED_BY(mutex_);
  Message message_;  // of the write in flight
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_SERVER_STREAM_H_
