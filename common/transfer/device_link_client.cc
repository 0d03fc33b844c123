#include "common/transfer/device_link_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "baton/internal/v1/kv.grpc.pb.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/rpc/grpc_status.h"
#include "common/transfer/device_link_reactor.h"

namespace baton::transfer {
namespace {

using internal::v1::KvLinkMessage;

constexpr absl::Duration kTryLinkAgain = absl::Seconds(30);
constexpr int kMostDoublings = 7;  // to about an hour

// Before the next attempt, after so many in a row that did not open.
absl::Duration PauseAfter(int failures) {
  return kTryLinkAgain * (1 << std::clamp(failures - 1, 0, kMostDoublings));
}

}  // namespace

class DeviceLinkClient::Stream final
    : public DeviceLinkReactor<grpc::ClientBidiReactor<KvLinkMessage, KvLinkMessage>> {
 public:
  Stream(std::shared_ptr<DeviceLinkEnd> end, const std::shared_ptr<grpc::Channel>& channel)
      : DeviceLinkReactor(std::move(end)), stub_(internal::v1::KvLinkService::NewStub(channel)) {}
  ~Stream() override { AwaitDone(); }
  void AwaitDone() { done_.WaitForNotification(); }

  void Begin(KvLinkMessage hello) {
    stub_->async()->Link(&context_, this);
    AddHold();  // writes come from other threads
    Read();
    Write(std::move(hello));
    StartCall();
  }
  bool done() const { return done_.HasBeenNotified(); }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      Take();
    } else {
      EndOfInput();  // the status comes with OnDone
    }
  }
  void Interrupt(bool) override { context_.TryCancel(); }
  void EndStream(const absl::Status&) override { RemoveHold(); }
  void OnDone(const grpc::Status& status) override {
    absl::Status error = FromGrpcStatus(status);
    if (error.ok() || ErrorReason(error).empty()) {
      error = MakeError(absl::StatusCode::kUnavailable, "PREFILL_LOST",
                        absl::StrCat("the stream of the device link ended: ", error.message()));
    }
    end().Fail(error);
    // The thread that closed the stream may still hold it.
    { absl::MutexLock lock(&mutex()); }
    done_.Notify();
  }

  const std::unique_ptr<internal::v1::KvLinkService::Stub> stub_;
  grpc::ClientContext context_;
  absl::Notification done_;
};

DeviceLinkClient::DeviceLinkClient(std::shared_ptr<backend::DeviceLinks> devices,
                                   std::string worker_id, const kv::KvLayout& layout,
                                   ChannelTo channel_to, const Clock& clock,
                                   DeviceLinkTimeouts timeouts)
    : devices_(std::move(devices)),
      worker_id_(std::move(worker_id)),
      layout_(layout),
      channel_to_(std::move(channel_to)),
      clock_(clock),
      timeouts_(timeouts),
      runner_(clock) {}

DeviceLinkClient::~DeviceLinkClient() {
  for (Entry& entry : entries_) {
    if (entry.stream != nullptr) entry.stream->Close(absl::CancelledError("this worker stops"));
  }
  // With all references at hand: a gRPC thread must not drop the last one.
  for (Entry& entry : entries_) {
    if (entry.stream != nullptr) entry.stream->AwaitDone();
  }
  entries_.clear();
}

void DeviceLinkClient::Offer(uint64_t prefill_epoch) {
  absl::MutexLock lock(&mutex_);
  // Workers that have gone leave theirs behind. Offers are repeated with each transfer.
  if (offers_.size() >= kMostWorkers) offers_.clear();
  offers_.insert(prefill_epoch);
}

bool DeviceLinkClient::Offered(uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  return offers_.erase(epoch) > 0;
}

void DeviceLinkClient::DropEnded() {
  for (Entry& entry : entries_) {
    if (entry.stream == nullptr || !entry.stream->done()) continue;
    BATON_LOG(Warning) << "KV of prefill worker epoch " << absl::StrCat(absl::Hex(entry.epoch))
                       << " comes over gRPC: " << entry.link->status();
    entry.stream = nullptr;
    entry.link = nullptr;
    // An attempt that fails costs the prefill worker a thread of NCCL, which waits for this end.
    if (!std::exchange(entry.logged, false)) ++entry.failures;
    entry.failed_at = clock_.SinceStart();
  }
}

void DeviceLinkClient::MakeRoom(const Entry& entry) {
  const auto links = std::count_if(entries_.begin(), entries_.end(),
                                   [](const Entry& other) { return other.link != nullptr; });
  if (links < devices_->most_links()) return;
  // The list is in the order of use.
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    if (&*it == &entry || it->link == nullptr) continue;
    if (clock_.SinceStart() - it->link->used_at() >= kDeviceLinkIdle) {
      it->link->Fail(MakeError(absl::StatusCode::kUnavailable, "DEVICE_LINK",
                               "the device link was not used, and another one needs its memory"));
    }
    return;
  }
}

void DeviceLinkClient::Begin(Entry& entry, const std::shared_ptr<grpc::Channel>& channel) {
  entry.link = std::make_shared<DeviceLinkReceiver>(devices_, clock_, timeouts_);
  entry.stream = std::make_shared<Stream>(entry.link, channel);
  entry.link->Attach(entry.stream);
  runner_.Add(entry.link);
  KvLinkMessage message;
  KvLinkMessage::Hello& hello = *message.mutable_hello();
  hello.set_prefill_epoch(entry.epoch);
  hello.set_worker_id(worker_id_);
  hello.set_kv_layout_fingerprint(layout_.Fingerprint());
  hello.set_device(devices_->device());
  hello.set_version(devices_->version());
  hello.set_takes_layer_runs(true);
  entry.stream->Begin(std::move(message));
}

DeviceLinkClient::Found DeviceLinkClient::Find(uint64_t prefill_epoch, const std::string& address) {
  DropEnded();
  const bool offered = Offered(prefill_epoch);
  auto it = std::find_if(entries_.begin(), entries_.end(),
                         [&](const Entry& entry) { return entry.epoch == prefill_epoch; });
  if (it == entries_.end()) {
    if (!offered) return {};
    if (entries_.size() >= kMostWorkers) {
      const auto spare = std::find_if(entries_.rbegin(), entries_.rend(),
                                      [](const Entry& entry) { return entry.stream == nullptr; });
      if (spare == entries_.rend()) return {};
      entries_.erase(std::next(spare).base());
    }
    entries_.emplace_front().epoch = prefill_epoch;
  } else {
    entries_.splice(entries_.begin(), entries_, it);
  }
  Entry& entry = entries_.front();
  if (entry.link == nullptr) {
    if (!offered || runner_.stuck() ||
        clock_.SinceStart() < entry.failed_at + PauseAfter(entry.failures)) {
      return {nullptr, PlaneReason::kFailed};
    }
    MakeRoom(entry);
    Begin(entry, channel_to_(address));
  }
  if (!entry.link->open()) {
    return {nullptr, entry.link->failed() ? PlaneReason::kFailed : PlaneReason::kConnecting};
  }
  entry.failures = 0;
  if (!std::exchange(entry.logged, true)) {
    BATON_LOG(Info) << "KV of prefill worker epoch " << absl::StrCat(absl::Hex(prefill_epoch))
                    << " comes over a device link from now on";
  }
  return {entry.link, PlaneReason::kLinked};
}

}  // namespace baton::transfer
