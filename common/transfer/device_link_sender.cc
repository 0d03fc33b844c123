#include "common/transfer/device_link_sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::transfer {
namespace {

using internal::v1::KvLinkMessage;

absl::Status Refused(absl::string_view reason, absl::string_view message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason,
                   absl::StrCat("device link: ", message));
}

}  // namespace

DeviceLinkSender::DeviceLinkSender(std::shared_ptr<backend::DeviceLinks> devices, Identity self,
                                   uint64_t connection, const Clock& clock,
                                   DeviceLinkTimeouts timeouts, Executor execute)
    : DeviceLinkEnd(devices, clock, timeouts),
      self_(std::move(self)),
      connection_(connection),
      device_(devices->device()),
      version_(devices->version()),
      most_chunks_(devices->most_chunks()),
      execute_(std::move(execute)) {
  BATON_CHECK(connection != 0);
}

bool DeviceLinkSender::MayAnnounce(std::function<void()> resume) {
  absl::MutexLock lock(&operations_mutex_);
  if (ended_ || operations_.size() < kWindow) return true;
  waiting_.push_back(std::move(resume));
  return false;
}

uint64_t DeviceLinkSender::Announce(uint64_t transfer, Operation operation) {
  BATON_CHECK(!operation.pages.empty() && operation.slots.count > 0 &&
              static_cast<size_t>(operation.slots.count) * operation.pages.size() <=
                  static_cast<size_t>(most_chunks_));
  uint64_t number;
  {
    absl::MutexLock lock(&operations_mutex_);
    if (!open() || ended_ || operations_.size() >= kMostOperations) return 0;
    number = ++last_;
    if (number == next_) next_since_ = clock().SinceStart();
    Entry& entry = operations_[number];
    entry.transfer = transfer;
    entry.operation = std::move(operation);
  }
  Wake();
  return number;
}

void DeviceLinkSender::Withdraw(uint64_t transfer) {
  std::vector<uint64_t> skip;
  {
    absl::MutexLock lock(&operations_mutex_);
    for (auto& [number, entry] : operations_) {
      if (entry.transfer != transfer || entry.withdrawn) continue;
      entry.withdrawn = true;
      if (entry.state == State::kAnnounced) skip.push_back(number);
    }
  }
  for (const uint64_t number : skip) {
    KvLinkMessage message;
    message.set_skip(number);
    Write(std::move(message));
  }
}

int DeviceLinkSender::open_operations() const {
  absl::MutexLock lock(&operations_mutex_);
  return static_cast<int>(operations_.size());
}

absl::Status DeviceLinkSender::OnHello(const KvLinkMessage::Hello& hello) {
  {
    absl::MutexLock lock(&operations_mutex_);
    if (std::exchange(greeted_, true)) return ProtocolError("a second hello");
  }
  if (hello.prefill_epoch() != self_.epoch) {
    return Refused("STALE_EPOCH",
                   absl::StrCat("the caller means epoch ", absl::Hex(hello.prefill_epoch()),
                                ", this worker has ", absl::Hex(self_.epoch)));
  }
  if (hello.kv_layout_fingerprint() != self_.layout.Fingerprint()) {
    return Refused(
        "KV_LAYOUT",
        absl::StrCat("the caller has KV layout ", absl::Hex(hello.kv_layout_fingerprint()),
                     ", this worker ", absl::Hex(self_.layout.Fingerprint())));
  }
  if (hello.device() == device_) {
    return Refused("DEVICE_LINK", absl::StrCat("both workers use device ", device_,
                                               ", which cannot be linked with itself"));
  }
  if (hello.version() != version_) {
    return Refused("DEVICE_LINK", absl::StrCat("the caller's library has version ", hello.version(),
                                               ", this worker's ", version_));
  }
  takes_layer_runs_ = hello.takes_layer_runs();
  Connect("", connection_);
  return absl::OkStatus();
}

absl::Status DeviceLinkSender::Handle(const KvLinkMessage& message) {
  switch (message.message_case()) {
    case KvLinkMessage::kHello:
      return OnHello(message.hello());
    case KvLinkMessage::kReady: {
      {
        absl::MutexLock lock(&operations_mutex_);
        const auto it = operations_.find(message.ready());
        if (it == operations_.end() || it->second.state != State::kAnnounced) {
          return ProtocolError(absl::StrCat("ready for operation ", message.ready(),
                                            ", which does not wait for it"));
        }
        it->second.state = State::kReady;
      }
      Wake();
      return absl::OkStatus();
    }
    case KvLinkMessage::kSkipped: {
      {
        absl::MutexLock lock(&operations_mutex_);
        const auto it = operations_.find(message.skipped());
        if (it == operations_.end() || !it->second.withdrawn ||
            it->second.state != State::kAnnounced) {
          return ProtocolError(
              absl::StrCat("operation ", message.skipped(), " was skipped without being asked to"));
        }
      }
      End(message.skipped(), false);
      Wake();
      return absl::OkStatus();
    }
    case KvLinkMessage::kStored: {
      {
        absl::MutexLock lock(&operations_mutex_);
        const auto it = operations_.find(message.stored());
        // The other end may have received all before this one's Step has seen the end.
        if (it == operations_.end() ||
            (it->second.state != State::kSent && message.stored() != sending_)) {
          return ProtocolError(
              absl::StrCat("operation ", message.stored(), " was stored before it was sent"));
        }
      }
      End(message.stored(), true);
      return absl::OkStatus();
    }
    default:
      return ProtocolError("a message that prefill workers do not get");
  }
}

absl::Duration DeviceLinkSender::Continue(backend::DeviceLink& link, absl::Duration now) {
  backend::SlotRange slots;
  std::vector<int32_t> pages;
  std::shared_ptr<const PinnedBlocks> pin;
  {
    absl::MutexLock lock(&operations_mutex_);
    if (sending_ != 0) {
      const auto it = operations_.find(sending_);  // may have been stored
      if (it != operations_.end()) {
        it->second.state = State::kSent;
        it->second.sent_at = now;
      }
      sending_ = 0;
      next_since_ = now;
    }
    // Skipped ones are gone.
    while (next_ <= last_ && !operations_.contains(next_)) {
      ++next_;
      next_since_ = now;
    }
    // What was sent first has to be stored some time.
    absl::Duration late = absl::InfiniteDuration();
    if (!operations_.empty() && operations_.begin()->second.state == State::kSent) {
      late = operations_.begin()->second.sent_at + timeouts().operation;
    }
    if (next_ > last_ || now >= late) return late;
    const Entry& entry = operations_[next_];
    if (entry.state != State::kReady) return std::min(late, next_since_ + timeouts().operation);
    sending_ = next_++;
    next_since_ = now;
    slots = entry.operation.slots;
    pages = entry.operation.pages;
    pin = entry.operation.pin;
  }
  deadline_ = now + timeouts().operation;
  OperationBegan(now);
  // Without the lock: the first launch of a kernel may wait for the device.
  link.Send(slots, pages);
  return absl::ZeroDuration();
}

void DeviceLinkSender::End(uint64_t number, bool stored) {
  Operation ended;  // its blocks are dropped without the lock
  bool withdrawn;
  std::vector<std::function<void()>> resumed;
  {
    absl::MutexLock lock(&operations_mutex_);
    const auto it = operations_.find(number);
    if (it == operations_.end()) return;
    ended = std::move(it->second.operation);
    withdrawn = it->second.withdrawn;
    operations_.erase(it);
    resumed.swap(waiting_);
  }
  if (withdrawn && resumed.empty()) return;
  if (withdrawn) ended.on_end = nullptr;
  auto call = [on_end = std::move(ended.on_end), stored, resumed = std::move(resumed)] {
    if (on_end) on_end(stored);
    for (const std::function<void()>& resume : resumed) resume();
  };
  if (execute_) {
    execute_(std::move(call));
  } else {
    call();
  }
}

void DeviceLinkSender::EndAll(const absl::Status&) {
  std::vector<uint64_t> numbers;
  {
    absl::MutexLock lock(&operations_mutex_);
    ended_ = true;
    for (const auto& [number, entry] : operations_) numbers.push_back(number);
  }
  // Resumes those that wait, too: they do only while there are operations.
  for (const uint64_t number : numbers) End(number, false);
}

}  // namespace baton::transfer
