#include "common/transfer/device_link_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"
#include "common/base/random_id.h"
#include "common/base/rpc/grpc_status.h"
#include "common/transfer/device_link_reactor.h"

namespace baton::transfer {
namespace {

class AcceptedStream final : public DeviceLinkReactor<DeviceLinkServer::Reactor> {
 public:
  AcceptedStream(std::shared_ptr<DeviceLinkEnd> end, grpc::CallbackServerContext* context)
      : DeviceLinkReactor(std::move(end)), context_(context) {}
  // gRPC keeps the stream until OnDone.
  void Begin(std::shared_ptr<AcceptedStream> self) {
    self_ = std::move(self);
    Read();
  }

 private:
  static absl::Status Ended() {
    return MakeError(absl::StatusCode::kUnavailable, "DEVICE_LINK",
                     "the decode worker ended the stream of its device link");
  }
  void OnReadDone(bool ok) override {
    if (ok) {
      Take();
    } else {
      end().Fail(Ended());
    }
  }
  // A write that the decode worker does not read would hold up the end.
  void Interrupt(bool writing) override {
    if (writing) context_->TryCancel();
  }
  void OnCancel() override { end().Fail(Ended()); }
  void EndStream(const absl::Status& status) override { Finish(ToGrpcStatus(status)); }
  void OnDone() override {
    std::shared_ptr<AcceptedStream> self;  // perhaps the last reference: dies after the lock
    // The thread that finished may still hold it.
    absl::MutexLock lock(&mutex());
    self.swap(self_);
  }
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<AcceptedStream> self_;
};

absl::Status Stopping() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING", "this worker is shutting down");
}

}  // namespace

DeviceLinkServer::DeviceLinkServer(std::shared_ptr<backend::DeviceLinks> devices,
                                   DeviceLinkSender::Identity self, const Clock& clock,
                                   DeviceLinkTimeouts timeouts)
    : devices_(std::move(devices)),
      self_(std::move(self)),
      clock_(clock),
      timeouts_(timeouts),
      runner_(std::make_unique<DeviceLinkRunner>(clock)) {
  thread_ = NamedThread("device-links", [this] {
    while (!ends_) callbacks_->RunPending(absl::InfiniteDuration());
    callbacks_->RunPending(absl::ZeroDuration());
  });
}

DeviceLinkServer::~DeviceLinkServer() {
  Stop();
  runner_ = nullptr;
  callbacks_->Post([this] { ends_ = true; });
  callbacks_->Close();
  thread_.join();
}

absl::Status DeviceLinkServer::MakeRoom() {
  if (runner_->stuck()) {
    return MakeError(absl::StatusCode::kUnavailable, "DEVICE_LINK",
                     "a device link of this worker hangs while it is aborted");
  }
  std::shared_ptr<DeviceLinkSender> oldest;
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return Stopping();
    std::erase_if(senders_, [](const auto& sender) { return sender->failed(); });
    if (static_cast<int>(senders_.size()) < devices_->most_links()) return absl::OkStatus();
    const auto used_first = [](const auto& a, const auto& b) {
      return a->used_at() < b->used_at();
    };
    oldest = *std::min_element(senders_.begin(), senders_.end(), used_first);
  }
  if (clock_.SinceStart() - oldest->used_at() >= kDeviceLinkIdle) {
    // Its device memory is free once it is aborted: the next attempt finds room.
    oldest->Fail(MakeError(absl::StatusCode::kUnavailable, "DEVICE_LINK",
                           "the device link was not used, and another one needs its memory"));
  }
  return MakeError(absl::StatusCode::kResourceExhausted, "DEVICE_LINK",
                   absl::StrCat("this worker has ", devices_->most_links(),
                                " device links, and memory for no more"));
}

DeviceLinkServer::Reactor* DeviceLinkServer::Accept(grpc::CallbackServerContext* context,
                                                    const absl::Status& allowed) {
  const absl::Status status = allowed.ok() ? MakeRoom() : allowed;
  auto sender = std::make_shared<DeviceLinkSender>(
      devices_, self_, RandomId64(), clock_, timeouts_,
      [callbacks = callbacks_](std::function<void()> f) { callbacks->Post(std::move(f)); });
  auto stream = std::make_shared<AcceptedStream>(sender, context);
  sender->Attach(stream);
  Reactor* const reactor = stream.get();
  stream->Begin(stream);
  if (!status.ok()) {
    sender->Fail(status);
    return reactor;
  }
  bool stopped;
  {
    absl::MutexLock lock(&mutex_);
    stopped = stopped_;
    if (!stopped) senders_.push_back(sender);
  }
  if (stopped) sender->Fail(Stopping());
  runner_->Add(std::move(sender));
  return reactor;
}

void DeviceLinkServer::Stop() {
  std::vector<std::shared_ptr<DeviceLinkSender>> senders;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    senders.swap(senders_);
  }
  for (const std::shared_ptr<DeviceLinkSender>& sender : senders) sender->Fail(Stopping());
}

std::shared_ptr<DeviceLinkSender> DeviceLinkServer::Find(uint64_t connection) {
  absl::MutexLock lock(&mutex_);
  const auto it = std::find_if(senders_.begin(), senders_.end(), [&](const auto& sender) {
    return sender->connection() == connection && sender->open();
  });
  return it == senders_.end() ? nullptr : *it;
}

}  // namespace baton::transfer
