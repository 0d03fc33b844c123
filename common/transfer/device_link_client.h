// The decode worker's device links.
#ifndef BATON_COMMON_TRANSFER_DEVICE_LINK_CLIENT_H_
#define BATON_COMMON_TRANSFER_DEVICE_LINK_CLIENT_H_

#include <grpcpp/channel.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/kv/kv_layout.h"
#include "common/transfer/device_link_receiver.h"
#include "common/transfer/device_link_runner.h"
#include "common/transfer/shared_pools.h"

namespace baton::transfer {

// Thread: owned by the loop, which makes and drops the streams; Offer may be called by any thread.
class DeviceLinkClient {
 public:
  // Gives the channel to the address of a prefill worker.
  using ChannelTo = std::function<std::shared_ptr<grpc::Channel>(const std::string&)>;
  // `worker_id`: of this worker.
  DeviceLinkClient(std::shared_ptr<backend::DeviceLinks> devices, std::string worker_id,
                   const kv::KvLayout& layout, ChannelTo channel_to, const Clock& clock,
                   DeviceLinkTimeouts timeouts = {});
  // Waits until its streams have ended.
  ~DeviceLinkClient();

  struct Found {
    std::shared_ptr<DeviceLinkReceiver> link;  // null unless kLinked
    PlaneReason reason = PlaneReason::kNotOffered;
  };
  // If the prefill worker has offered a link and there is none, begins one. One that has failed is
  // tried again after half a minute, or later each time.
  Found Find(uint64_t prefill_epoch, const std::string& address);
  // The prefill worker's device can be linked.
  void Offer(uint64_t prefill_epoch);

 private:
  static constexpr size_t kMostWorkers = 256;
  class Stream;
  struct Entry {
    uint64_t epoch = 0;
    std::shared_ptr<Stream> stream;
    std::shared_ptr<DeviceLinkReceiver> link;  // set with the stream
    bool logged = false;                       // that it is open
    int failures = 0;                          // in a row, to open it
    absl::Duration failed_at = -absl::InfiniteDuration();
  };

  bool Offered(uint64_t epoch);
  void Begin(Entry& entry, const std::shared_ptr<grpc::Channel>& channel);
  // Drops streams that have ended.
  void DropEnded();
  void MakeRoom(const Entry& entry);

  const std::shared_ptr<backend::DeviceLinks> devices_;
  const std::string worker_id_;
  const kv::KvLayout layout_;
  const ChannelTo channel_to_;
  const Clock& clock_;
  const DeviceLinkTimeouts timeouts_;
  std::list<Entry> entries_;  // newest use first
  absl::Mutex mutex_;
  std::set<uint64_t> offers_ ABSL_GUARDED_BY(mutex_);
  DeviceLinkRunner runner_;
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_DEVICE_LINK_CLIENT_H_
