// The sending side of a server-streaming call: any thread pushes items, which are written in order,
// one message at a time. Where encoding takes long, the next message is encoded while one is sent.
#ifndef BATON_COMMON_BASE_RPC_SERVER_STREAM_H_
#define BATON_COMMON_BASE_RPC_SERVER_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

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
        ++urgent_;
      } else if (items_.empty() || !Merge(items_, item)) {
        items_.push_back(std::move(item));
      }
      if (busy_) return;
      busy_ = true;
    }
    Continue();
  }

  // Pushes items in order, all before the first of them is taken: those that join can. Not urgent.
  void PushAll(std::vector<Item> items) {
    {
      absl::MutexLock lock(&mutex_);
      if (items.empty() || broken_ || finish_) return;
      for (Item& item : items) {
        if (items_.empty() || !Merge(items_, item)) items_.push_back(std::move(item));
      }
      if (busy_) return;
      busy_ = true;
    }
    Continue();
  }

  // Puts back an item that Encode took and that needs another message, in front of all that wait
  // but the urgent ones. Unlike Push also after Finish(OK). REQUIRES: MayWrite holds back an item
  // behind it, so that the stream is open.
  void PutBack(Item item) {
    {
      absl::MutexLock lock(&mutex_);
      if (broken_ || (finish_ && !finish_->ok())) return;
      items_.insert(items_.begin() + urgent_, std::move(item));
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
      if (!status.ok()) DropItems();
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
  // Whether to encode `next` while the message before it is sent, if an item waits behind it that
  // does not join it. Called with the lock held, by a thread of gRPC that encodes then.
  virtual bool EncodesAhead(const Item& next) { return false; }
  // If false, `next` and what follows wait for Resume or the next Push. Called with the lock held.
  virtual bool MayWrite(const Item& next) { return true; }
  // Called when no item waits any more, with the lock held: else it could take back what MayWrite
  // does for the next item. What it returns, perhaps null, is called without the lock.
  virtual std::function<void()> OnEmpty() { return nullptr; }
  // Called once if the peer cancels, its deadline passes or its connection breaks.
  virtual void OnPeerGone() {}

 private:
  void OnCancel() final {
    std::shared_ptr<ServerStream> self;  // OnDone may come while OnPeerGone runs
    bool finish;  // what MayWrite held back is gone, and no Resume comes for it
    std::function<void()> when_empty;
    {
      absl::MutexLock lock(&mutex_);
      self = self_;
      broken_ = true;
      DropItems();
      finish = finish_ && !busy_;
      if (finish) busy_ = true;
      when_empty = OnEmpty();
    }
    if (when_empty) when_empty();
    OnPeerGone();
    if (finish) Continue();
  }

  void OnWriteDone(bool ok) final {
    {
      absl::MutexLock lock(&mutex_);
      if (!ok) {
        broken_ = true;
        DropItems();
      }
      if (encoding_ahead_) {
        written_ = true;
        return;
      }
    }
    Continue(/*on_write_done=*/true);
  }

  void OnDone() final {
    std::shared_ptr<ServerStream> self;  // may be the last reference: dies after the lock
    absl::MutexLock lock(&mutex_);
    self.swap(self_);
  }

  void DropItems() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    items_.clear();
    urgent_ = 0;
    drop_ahead_ = true;
  }

  // Writes the next item, finishes, or pauses. REQUIRES: busy_, no write in progress, and nothing
  // is being encoded.
  void Continue(bool on_write_done = false) {
    bool again = true;
    while (again) {
      message_.Clear();  // what it points to may be freed
      std::optional<Item> item;
      std::optional<grpc::Status> finish;
      std::function<void()> when_empty;
      bool write = false;
      {
        absl::MutexLock lock(&mutex_);
        if (drop_ahead_) {
          ahead_.Clear();
          has_ahead_ = drop_ahead_ = false;
        }
        if (has_ahead_ && urgent_ == 0) {
          message_.Swap(&ahead_);
          has_ahead_ = false;
          write = true;
        } else if (!items_.empty()) {
          if (!MayWrite(items_.front())) {
            busy_ = false;
            return;
          }
          item = TakeFront();
          write = true;
        } else {
          finish = finish_;  // then busy_ stays set, so nothing follows
          busy_ = finish.has_value();
          when_empty = OnEmpty();
        }
      }
      if (finish) grpc::ServerWriteReactor<Message>::Finish(*finish);
      if (when_empty) when_empty();
      if (!write) return;  // after Finish, `this` may be gone
      if (item) Encode(*std::move(item), &message_);
      // A thread that pushes, a worker's loop say, encodes no more than it must.
      again = on_write_done && WriteAndEncodeAhead();
      if (!on_write_done) this->StartWrite(&message_);
    }
  }

  // Writes message_. True: the next one has been encoded meanwhile, and the write has ended. Else
  // `this` may be gone.
  bool WriteAndEncodeAhead() {
    std::optional<Item> next;
    std::shared_ptr<ServerStream> self;  // the call does not end before the next write
    {
      absl::MutexLock lock(&mutex_);
      next = TakeAhead();
      encoding_ahead_ = next.has_value();
      if (next) self = self_;
    }
    this->StartWrite(&message_);
    if (!next) return false;
    Encode(*std::move(next), &ahead_);
    absl::MutexLock lock(&mutex_);
    encoding_ahead_ = false;
    has_ahead_ = true;
    return std::exchange(written_, false);
  }

  // Takes an item and all that join it. What is urgent goes alone.
  Item TakeFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Item item = std::move(items_.front());
    items_.pop_front();
    if (urgent_ > 0) {
      --urgent_;
      return item;
    }
    while (!items_.empty() && Join(item, items_.front())) items_.pop_front();
    return item;
  }

  // Takes the item that is to be encoded ahead, if there is one.
  std::optional<Item> TakeAhead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (has_ahead_ || urgent_ > 0 || items_.size() < 2 || !EncodesAhead(items_.front()) ||
        !MayWrite(items_.front())) {
      return std::nullopt;
    }
    std::optional<Item> next = TakeFront();
    if (!items_.empty()) return next;
    items_.push_front(*std::move(next));  // others may still join it
    return std::nullopt;
  }

  mutable absl::Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  int urgent_ ABSL_GUARDED_BY(mutex_) = 0;       // so many of them are urgent, the first ones
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;    // a write or the finish is in progress
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // the peer is gone
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ServerStream> self_ ABSL_GUARDED_BY(mutex_);
  // The next message: has been encoded; is being encoded, and the write before it has ended.
  bool has_ahead_ ABSL_GUARDED_BY(mutex_) = false;
  bool encoding_ahead_ ABSL_GUARDED_BY(mutex_) = false;
  bool written_ ABSL_GUARDED_BY(mutex_) = false;
  bool drop_ahead_ ABSL_GUARDED_BY(mutex_) = false;  // it is not to be sent
  Message message_;  // of the write in progress
  Message ahead_;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_SERVER_STREAM_H_
