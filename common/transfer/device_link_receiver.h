// The decode worker's end of a device link (device_link_end.h).
#ifndef BATON_COMMON_TRANSFER_DEVICE_LINK_RECEIVER_H_
#define BATON_COMMON_TRANSFER_DEVICE_LINK_RECEIVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/kv/block_pool.h"
#include "common/transfer/device_link_end.h"

namespace baton::transfer {

// Thread-safe.
class DeviceLinkReceiver final : public DeviceLinkEnd {
 public:
  DeviceLinkReceiver(std::shared_ptr<backend::DeviceLinks> devices, const Clock& clock,
                     DeviceLinkTimeouts timeouts = {});

  // The link's connection, once it is open; names it in PrefillRequests.
  uint64_t connection() const;
  int most_chunks() const { return most_chunks_; }

  struct Operation {
    backend::SlotRange slots;
    std::vector<int32_t> pages;  // which the chunks go to
    // Called once, on any thread, unless the transfer is forgotten before. False: nothing was
    // written, and nothing will be.
    std::function<void(bool stored)> on_end;
  };
  // Receives the operation when its turn comes. False: it does not come. The link has failed, or
  // the prefill worker has withdrawn the operation: a frame may be behind the message that says so.
  // REQUIRES: at most most_chunks() chunks. Calls no on_end.
  bool Expect(uint64_t number, uint64_t transfer, Operation operation);
  // When this returns, nothing writes to the transfer's blocks, and none of its on_end runs. Do not
  // call from on_end.
  void Forget(uint64_t transfer);

 private:
  // Prefill workers announce a few at a time.
  static constexpr uint64_t kMostAhead = 4096;
  struct Entry {
    uint64_t transfer = 0;
    Operation operation;  // without blocks: it is received and dropped
    bool skipped = false;
    int chunk_count = 0;
  };

  absl::Status Handle(const internal::v1::KvLinkMessage& message) override;
  void WarmUp(backend::DeviceLink& link) override { link.Receive(1); }
  absl::Duration Continue(backend::DeviceLink& link, absl::Duration now) override;
  void EndAll(const absl::Status& status) override;
  // Stores the operation's chunks, if `link` is not null, and calls its on_end, unless its transfer
  // is forgotten. Forget waits for both. False: the operation has ended before.
  bool End(uint64_t number, backend::DeviceLink* link);

  const int most_chunks_;
  mutable absl::Mutex operations_mutex_;
  uint64_t connection_ ABSL_GUARDED_BY(operations_mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(operations_mutex_) = false;                    // EndAll has run
  absl::Status error_ ABSL_GUARDED_BY(operations_mutex_);                    // that Step fails with
  std::map<uint64_t, Entry> operations_ ABSL_GUARDED_BY(operations_mutex_);  // from next_ on
  uint64_t next_ ABSL_GUARDED_BY(operations_mutex_) = 1;                     // to be received
  bool receiving_ ABSL_GUARDED_BY(operations_mutex_) = false;                // next_ is in progress
  // Transfers whose blocks are being written, or whose on_end runs, each as often.
  std::vector<uint64_t> ending_ ABSL_GUARDED_BY(operations_mutex_);
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_DEVICE_LINK_RECEIVER_H_
