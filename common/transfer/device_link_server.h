// The prefill worker's device links.
#ifndef BATON_COMMON_TRANSFER_DEVICE_LINK_SERVER_H_
#define BATON_COMMON_TRANSFER_DEVICE_LINK_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "baton/internal/v1/kv.pb.h"
#include "common/base/mailbox.h"
#include "common/transfer/device_link_runner.h"
#include "common/transfer/device_link_sender.h"

namespace baton::transfer {

// Thread-safe. Must outlive the gRPC server.
class DeviceLinkServer {
 public:
  DeviceLinkServer(std::shared_ptr<backend::DeviceLinks> devices, DeviceLinkSender::Identity self,
                   const Clock& clock, DeviceLinkTimeouts timeouts = {});
  ~DeviceLinkServer();

  using Reactor = grpc::ServerBidiReactor<internal::v1::KvLinkMessage, internal::v1::KvLinkMessage>;
  // The reactor of a KvLinkService.Link call. `allowed`: an error ends the call with it.
  Reactor* Accept(grpc::CallbackServerContext* context, const absl::Status& allowed);
  // Null if the link is not open.
  std::shared_ptr<DeviceLinkSender> Find(uint64_t connection);

  // Ends all links, and refuses new ones.
  void Stop();

 private:
  // Makes room for one more. RESOURCE_EXHAUSTED, UNAVAILABLE.
  absl::Status MakeRoom();

  const std::shared_ptr<backend::DeviceLinks> devices_;
  const DeviceLinkSender::Identity self_;
  const Clock& clock_;
  const DeviceLinkTimeouts timeouts_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<DeviceLinkSender>> senders_ ABSL_GUARDED_BY(mutex_);
  // Callbacks of operations, at most a few for each.
  const std::shared_ptr<Mailbox> callbacks_ = std::make_shared<Mailbox>();
  std::atomic<bool> ends_{false};  // the thread, once the mailbox is closed
  std::thread thread_;
  std::unique_ptr<DeviceLinkRunner> runner_;
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_DEVICE_LINK_SERVER_H_
