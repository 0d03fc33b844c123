// The prefill worker's end of a device link (device_link_end.h).
#ifndef BATON_COMMON_TRANSFER_DEVICE_LINK_SENDER_H_
#define BATON_COMMON_TRANSFER_DEVICE_LINK_SENDER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"
#include "common/transfer/device_link_end.h"
#include "common/transfer/kv_sender.h"

namespace baton::transfer {

// Thread-safe.
class DeviceLinkSender final : public DeviceLinkEnd {
 public:
  struct Identity {
    uint64_t epoch = 0;  // of this prefill worker
    kv::KvLayout layout;
  };
  // Runs callbacks of operations. They may wait for a step of the model, which neither the stream's
  // messages nor the thread that polls the links can.
  using Executor = std::function<void(std::function<void()>)>;
  // connection: names the link in PrefillRequests, not 0. execute: empty to run them at once.
  DeviceLinkSender(std::shared_ptr<backend::DeviceLinks> devices, Identity self,
                   uint64_t connection, const Clock& clock, DeviceLinkTimeouts timeouts = {},
                   Executor execute = nullptr);

  uint64_t connection() const { return connection_; }
  int most_chunks() const { return most_chunks_; }
  // Whether the other end takes chunks of several layers as one operation.
  bool takes_layer_runs() const { return takes_layer_runs_; }

  struct Operation {
    backend::SlotRange slots;
    std::vector<int32_t> pages;
    std::shared_ptr<const PinnedBlocks> pin;  // kept until the operation has ended
    // Called at most once, on any thread, unless the transfer is withdrawn. False: the link has
    // failed, and the chunk has perhaps not been stored.
    std::function<void(bool stored)> on_end;
  };
  // True if few operations wait. Else false, and `resume` is called, once, when that has changed or
  // the link has failed. So transfers that share the link can be put in an order.
  bool MayAnnounce(std::function<void()> resume);
  // Queues the operation and returns its number, to be named in a frame of `transfer`. 0: the link
  // is not open, or too many operations wait. REQUIRES: the chunks are written; at most
  // most_chunks() of them.
  uint64_t Announce(uint64_t transfer, Operation operation);
  // Frames of the transfer are written no more.
  void Withdraw(uint64_t transfer);

  int open_operations() const;

 private:
  static constexpr size_t kMostOperations = 1024;
  // One is in progress, the frames of the next are on their way. MayAnnounce keeps it.
  static constexpr size_t kWindow = 8;
  enum class State { kAnnounced, kReady, kSent };
  struct Entry {
    uint64_t transfer = 0;
    Operation operation;
    State state = State::kAnnounced;
    bool withdrawn = false;
    absl::Duration sent_at;  // once kSent
  };

  absl::Status Handle(const internal::v1::KvLinkMessage& message) override;
  void WarmUp(backend::DeviceLink& link) override { link.SendStaging(1); }
  absl::Duration Continue(backend::DeviceLink& link, absl::Duration now) override;
  void EndAll(const absl::Status& status) override;
  absl::Status OnHello(const internal::v1::KvLinkMessage::Hello& hello);
  // Takes the operation out, and calls its on_end and those that wait.
  void End(uint64_t number, bool stored);

  const Identity self_;
  const uint64_t connection_;
  const std::string device_;
  const int version_;
  const int most_chunks_;
  const Executor execute_;
  std::atomic<bool> takes_layer_runs_{false};

  mutable absl::Mutex operations_mutex_;
  bool greeted_ ABSL_GUARDED_BY(operations_mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(operations_mutex_) = false;                    // EndAll has run
  std::map<uint64_t, Entry> operations_ ABSL_GUARDED_BY(operations_mutex_);  // by number
  uint64_t last_ ABSL_GUARDED_BY(operations_mutex_) = 0;
  uint64_t next_ ABSL_GUARDED_BY(operations_mutex_) = 1;     // to be sent
  uint64_t sending_ ABSL_GUARDED_BY(operations_mutex_) = 0;  // in progress; 0: none
  absl::Duration next_since_ ABSL_GUARDED_BY(operations_mutex_);
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(operations_mutex_);
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_DEVICE_LINK_SENDER_H_
