// The sending side of a server-streaming call: any thread pushes items, which are written in order,
// one message at a time.
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

// Lives from Open() until gRPC is done with the call, or longer if a shared_ptr is kept. The call
// ends only with Finish(), which its owner must call exactly once, even after a cancel.
// Thread-safe.
template <class Message, class Item>
class ServerStream : public grpc::ServerWriteReactor<Message> {
 public:
  // Keeps `stream` alive until gRPC is done with it, and returns it as the reactor of the call.
  static ServerStream* Open(std::shared_ptr<ServerStream> stream) {
    ServerStream* raw = stream.get();
    absl::MutexLock lock(&raw->mutex_);
    raw->self_ = std::move(stream);
    return raw;
  }

  // Drops the item if the peer is gone or the stream is finished. An `urgent` item goes before all
  // items that wait.
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

  // Puts an item in front again that Encode took and that needs another message. Unlike Push also
  // after Finish(OK). REQUIRES: MayWrite holds back an item behind it, so that the stream is open.
  void PutBack(Item item) {
    {
      absl::MutexLock lock(&mutex_);
      if (broken_ || (finish_ && !finish_->ok())) return;
      items_.push_front(std::move(item));
      if (busy_) return;
      busy_ = true;
    }
    Continue();
  }

  // OK is sent after the items that wait. An error is sent at once and drops them.
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

  // Asks MayWrite again.
  void Resume() {
    {
      absl::MutexLock lock(&mutex_);
      if (busy_) return;
      busy_ = true;
    }
    Continue();
  }

  // True if no item waits and no write is in progress.
  bool idle() const {
    absl::MutexLock lock(&mutex_);
    return !busy_ && items_.empty();
  }

 protected:
  // Converts an item to a message. Called by one thread at a time, without the lock.
  virtual void Encode(Item item, Message* message) = 0;
  // May merge `next` into one of the items that wait (at least one, oldest first) and return true;
  // else `next` is queued behind them. Called with the lock held.
  virtual bool Merge(std::deque<Item>& waiting, Item& next) { return false; }
  // May take `next`, which follows `taken`, into the same message and return true. Called with the
  // lock held.
  virtual bool Join(Item& taken, const Item& next) { return false; }
  // If false, `next` and what follows wait for Resume or the next Push. Called with the lock held.
  virtual bool MayWrite(const Item& next) { return true; }
  // Called when no item waits any more.
  virtual void OnEmpty() {}
  // Called once if the peer cancels, its deadline passes or its connection breaks.
  virtual void OnPeerGone() {}

 private:
  void OnCancel() final {
    std::shared_ptr<ServerStream> self;  // OnDone may come while OnPeerGone runs
    bool finish;  // what MayWrite held back is gone, and no Resume comes for it
    {
      absl::MutexLock lock(&mutex_);
      self = self_;
      broken_ = true;
      items_.clear();
      finish = finish_ && !busy_;
      if (finish) busy_ = true;
    }
    OnEmpty();
    OnPeerGone();
    if (finish) Continue();
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

  // Writes the next item, finishes, or pauses. REQUIRES: busy_, and no write in progress.
  void Continue() {
    message_.Clear();  // what it points to may be freed
    std::optional<Item> item;
    std::optional<grpc::Status> finish;
    {
      absl::MutexLock lock(&mutex_);
      if (!items_.empty()) {
        if (!MayWrite(items_.front())) {
          busy_ = false;
          return;
        }
        item.emplace(std::move(items_.front()));
        items_.pop_front();
        while (!items_.empty() && Join(*item, items_.front())) items_.pop_front();
      } else if (finish_) {
        finish = finish_;  // busy_ stays set, so nothing follows
      } else {
        busy_ = false;
      }
    }
    if (!item) OnEmpty();
    if (finish) grpc::ServerWriteReactor<Message>::Finish(*finish);
    if (!item) return;  // after Finish, `this` may be gone
    Encode(std::move(*item), &message_);
    this->StartWrite(&message_);
  }

  mutable absl::Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;    // a write or the finish is in progress
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // the peer is gone
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ServerStream> self_ ABSL_GUARDED_BY(mutex_);
  Message message_;  // of the write in progress
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_SERVER_STREAM_H_
