#include "common/transfer/device_link_end.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::transfer {
namespace {

// Connecting takes 100 ms and more.
constexpr absl::Duration kConnectPoll = absl::Milliseconds(2);

absl::Status Late(absl::string_view what, absl::Duration timeout) {
  return MakeError(absl::StatusCode::kUnavailable, "DEVICE_LINK",
                   absl::StrCat("the other end of the device link has not ", what, " within ",
                                absl::FormatDuration(timeout)));
}

}  // namespace

DeviceLinkEnd::DeviceLinkEnd(std::shared_ptr<backend::DeviceLinks> devices, const Clock& clock,
                             DeviceLinkTimeouts timeouts)
    : devices_(std::move(devices)),
      clock_(clock),
      timeouts_(timeouts),
      connect_deadline_(clock.SinceStart() + timeouts.connect),
      used_at_(absl::ToInt64Nanoseconds(clock.SinceStart())) {}

absl::Status DeviceLinkEnd::ProtocolError(absl::string_view message) {
  return MakeError(absl::StatusCode::kDataLoss, "PROTOCOL", absl::StrCat("device link: ", message));
}

// The runner has taken the link, or the end was never given to one and has none.
DeviceLinkEnd::~DeviceLinkEnd() = default;

void DeviceLinkEnd::Attach(std::weak_ptr<DeviceLinkStream> stream) {
  absl::MutexLock lock(&mutex_);
  stream_ = std::move(stream);
}

void DeviceLinkEnd::SetWaker(std::function<void()> wake) {
  absl::MutexLock lock(&mutex_);
  wake_ = std::move(wake);
}

absl::Status DeviceLinkEnd::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

absl::Duration DeviceLinkEnd::used_at() const { return absl::Nanoseconds(used_at_.load()); }

void DeviceLinkEnd::Wake() {
  std::function<void()> wake;
  {
    absl::MutexLock lock(&mutex_);
    wake = wake_;
  }
  if (wake) wake();
}

void DeviceLinkEnd::Write(internal::v1::KvLinkMessage message) {
  std::shared_ptr<DeviceLinkStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    stream = stream_.lock();
  }
  if (stream != nullptr) stream->Write(std::move(message));
}

void DeviceLinkEnd::Fail(const absl::Status& status) {
  std::shared_ptr<DeviceLinkStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    if (failed_.exchange(true)) return;
    open_ = false;
    status_ = status;
    stream = stream_.lock();
  }
  // First: the other end is to know.
  if (stream != nullptr) stream->Close(status);
  EndAll(status);
  Wake();
}

void DeviceLinkEnd::OnMessage(const internal::v1::KvLinkMessage& message) {
  if (failed_) return;
  if (message.message_case() == internal::v1::KvLinkMessage::kConnected) {
    absl::MutexLock lock(&mutex_);
    peer_connected_ = true;
    if (self_connected_ && !failed_) open_ = true;
    return;
  }
  if (absl::Status status = Handle(message); !status.ok()) Fail(status);
}

void DeviceLinkEnd::Connect(std::string id, uint64_t connection) {
  {
    absl::MutexLock lock(&mutex_);
    connects_ = true;
    id_ = std::move(id);
    connection_ = connection;
  }
  Wake();
}

absl::Status DeviceLinkEnd::MakeLink(const std::string& given_id, uint64_t connection) {
  std::string id = given_id;
  if (id.empty()) {
    BATON_ASSIGN_OR_RETURN(id, devices_->MakeId());
  }
  BATON_ASSIGN_OR_RETURN(link_, devices_->Connect(id, given_id.empty() ? 0 : 1));
  if (!given_id.empty()) return absl::OkStatus();
  internal::v1::KvLinkMessage message;
  message.mutable_welcome()->set_connection(connection);
  message.mutable_welcome()->set_id(id);
  Write(std::move(message));
  return absl::OkStatus();
}

absl::Duration DeviceLinkEnd::Step() {
  using State = backend::DeviceLink::State;
  const absl::Duration now = clock_.SinceStart();
  bool connects;
  std::string id;
  uint64_t connection;
  {
    absl::MutexLock lock(&mutex_);
    connects = std::exchange(connects_, false);
    id = id_;
    connection = connection_;
  }
  if (failed_) return absl::InfiniteDuration();
  if (connects) {
    if (absl::Status status = MakeLink(id, connection); !status.ok()) {
      Fail(status);
      return absl::InfiniteDuration();
    }
  }
  if (!open_ && now >= connect_deadline_) {
    Fail(Late("connected", timeouts_.connect));
    return absl::InfiniteDuration();
  }
  if (link_ == nullptr) return connect_deadline_;
  switch (link_->Poll()) {
    case State::kFailed:
      Fail(link_->error());
      return absl::InfiniteDuration();
    case State::kConnecting:
      return now + kConnectPoll;
    case State::kBusy:
      if (now < deadline_) return absl::ZeroDuration();
      Fail(Late("finished an operation", timeouts_.operation));
      return absl::InfiniteDuration();
    case State::kIdle:
      break;
  }
  if (!warmed_up_) {
    // The first operation sets up the way between the devices, which may take long.
    warmed_up_ = true;
    deadline_ = connect_deadline_;
    WarmUp(*link_);
    return absl::ZeroDuration();
  }
  if (!said_connected_) {
    said_connected_ = true;
    internal::v1::KvLinkMessage message;
    message.set_connected(true);
    Write(std::move(message));
    absl::MutexLock lock(&mutex_);
    self_connected_ = true;
    if (peer_connected_ && !failed_) open_ = true;
  }
  if (!open_) return connect_deadline_;
  const absl::Duration next = Continue(*link_, now);
  if (next != absl::InfiniteDuration() && next != absl::ZeroDuration() && now >= next) {
    Fail(Late("begun an operation", timeouts_.operation));
    return absl::InfiniteDuration();
  }
  return failed_ ? absl::InfiniteDuration() : next;
}

}  // namespace baton::transfer
