// One end of a device link as the workers use it: the communicator (common/backend/device_link.h)
// and the KvLink stream between the two workers, which says what comes next.
//
//   decode worker                         prefill worker
//   hello ───────────────────────────▶    makes the id
//        ◀─────────────────────────── welcome: connection, id
//   connected ◀──────────────────────▶ connected        each after an operation without a number
//        ◀── frame of a Prefill stream: chunk comes as operation n
//   ready n, receives ───────────────▶ sends
//   stores the chunk, stored n ──────▶ drops the blocks
//
// Operations have numbers and are carried out in their order, one at a time. The prefill worker
// sends nothing before the ready of the operation: a rank that waits for a peer that does not take
// part would wait on its device. An operation of a transfer that has ended is skipped, unless the
// decode worker has said ready before: then both carry it out, and the bytes are dropped.
//
// Whatever fails ends the link on both sides: the stream closes and both abort their communicator.
// Blocks are never at risk: a communicator touches staging memory only. What was not stored is sent
// over the Prefill stream instead.
#ifndef BATON_COMMON_TRANSFER_DEVICE_LINK_END_H_
#define BATON_COMMON_TRANSFER_DEVICE_LINK_END_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/internal/v1/kv.pb.h"
#include "common/backend/device_link.h"
#include "common/base/clock.h"

namespace baton::transfer {

// The stream to the other end. Thread-safe.
class DeviceLinkStream {
 public:
  virtual ~DeviceLinkStream() = default;
  virtual void Write(internal::v1::KvLinkMessage message) = 0;
  // Ends the stream. Idempotent.
  virtual void Close(const absl::Status& status) = 0;
};

// A link that no operation has used for so long may be closed for a new one.
inline constexpr absl::Duration kDeviceLinkIdle = absl::Seconds(10);

struct DeviceLinkTimeouts {
  absl::Duration connect = absl::Seconds(30);  // from the hello to both ends' connected
  // Time for one operation, once both ends could begin it.
  absl::Duration operation = absl::Seconds(2);
};

// Thread-safe. A DeviceLinkRunner calls Step and TakeLink.
class DeviceLinkEnd {
 public:
  DeviceLinkEnd(std::shared_ptr<backend::DeviceLinks> devices, const Clock& clock,
                DeviceLinkTimeouts timeouts);
  virtual ~DeviceLinkEnd();
  DeviceLinkEnd(const DeviceLinkEnd&) = delete;
  DeviceLinkEnd& operator=(const DeviceLinkEnd&) = delete;

  // Call before messages come. The end closes the stream when it fails.
  void Attach(std::weak_ptr<DeviceLinkStream> stream);
  // A message that this end does not expect fails the link.
  void OnMessage(const internal::v1::KvLinkMessage& message);
  // Ends the link, now. Operations that are not stored end with `status`. Idempotent.
  void Fail(const absl::Status& status);

  bool open() const { return open_; }      // both ends have connected
  bool failed() const { return failed_; }  // for good
  // Why it has failed; OK before.
  absl::Status status() const;
  // When an operation last began, by the clock.
  absl::Duration used_at() const;

  // Does what can be done without waiting. Returns when to call again at the latest, by the clock;
  // zero: soon, as what is in progress can only be polled. Call from one thread.
  absl::Duration Step();
  // Takes the communicator of an end that has failed, to be aborted; null if there is none. Call
  // from the thread that calls Step.
  std::unique_ptr<backend::DeviceLink> TakeLink() { return std::move(link_); }
  // Called when Step has something to do.
  void SetWaker(std::function<void()> wake);

 protected:
  // Called without locks. An error fails the link.
  virtual absl::Status Handle(const internal::v1::KvLinkMessage& message) = 0;
  // Begins an operation of one chunk that is stored nowhere.
  virtual void WarmUp(backend::DeviceLink& link) = 0;
  // Ends the operation in progress and begins the next. Step calls it for an open link that is
  // idle. Returns as Step.
  virtual absl::Duration Continue(backend::DeviceLink& link, absl::Duration now) = 0;
  // Ends all operations. Called once, without locks.
  virtual void EndAll(const absl::Status& status) = 0;

  // Makes Step connect, with the id that the other end gave; with an empty one it makes one, as
  // rank 0, and sends the welcome.
  void Connect(std::string id, uint64_t connection);
  void Write(internal::v1::KvLinkMessage message);
  void Wake();
  static absl::Status ProtocolError(absl::string_view message);
  void OperationBegan(absl::Duration now) { used_at_ = absl::ToInt64Nanoseconds(now); }
  const Clock& clock() const { return clock_; }
  const DeviceLinkTimeouts& timeouts() const { return timeouts_; }
  // The deadline of the operation in progress.
  absl::Duration deadline_ = absl::InfiniteDuration();  // of the thread that calls Step

 private:
  absl::Status MakeLink(const std::string& id, uint64_t connection);

  const std::shared_ptr<backend::DeviceLinks> devices_;
  const Clock& clock_;
  const DeviceLinkTimeouts timeouts_;
  const absl::Duration connect_deadline_;
  std::unique_ptr<backend::DeviceLink> link_;  // of the thread that calls Step
  bool warmed_up_ = false;                     // of that thread
  bool said_connected_ = false;                // of that thread
  std::atomic<bool> open_{false};
  std::atomic<bool> failed_{false};
  std::atomic<int64_t> used_at_;

  mutable absl::Mutex mutex_;
  std::weak_ptr<DeviceLinkStream> stream_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool connects_ ABSL_GUARDED_BY(mutex_) = false;  // Step is to make the link
  std::string id_ ABSL_GUARDED_BY(mutex_);
  uint64_t connection_ ABSL_GUARDED_BY(mutex_) = 0;
  bool self_connected_ ABSL_GUARDED_BY(mutex_) = false;
  bool peer_connected_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_DEVICE_LINK_END_H_
