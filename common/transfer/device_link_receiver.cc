#include "common/transfer/device_link_receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::transfer {
namespace {

using internal::v1::KvLinkMessage;

}  // namespace

DeviceLinkReceiver::DeviceLinkReceiver(std::shared_ptr<backend::DeviceLinks> devices,
                                       const Clock& clock, DeviceLinkTimeouts timeouts)
    : DeviceLinkEnd(devices, clock, timeouts), most_chunks_(devices->most_chunks()) {}

uint64_t DeviceLinkReceiver::connection() const {
  absl::MutexLock lock(&operations_mutex_);
  return connection_;
}

bool DeviceLinkReceiver::Expect(uint64_t number, uint64_t transfer, Operation operation) {
  const size_t chunks = static_cast<size_t>(operation.slots.count) * operation.pages.size();
  BATON_CHECK(chunks > 0 && chunks <= static_cast<size_t>(most_chunks_)) << chunks;
  bool far;
  {
    absl::MutexLock lock(&operations_mutex_);
    if (ended_ || number < next_ || operations_.contains(number)) return false;
    far = number - next_ >= kMostAhead;
    if (far) {
      // Step fails the link: the caller may hold locks that on_end wants.
      error_ =
          ProtocolError(absl::StrCat("a frame names operation ", number, ", expected one of the ",
                                     kMostAhead, " from ", next_, " on"));
    } else {
      Entry& entry = operations_[number];
      entry.transfer = transfer;
      entry.chunk_count = static_cast<int>(chunks);
      entry.operation = std::move(operation);
    }
  }
  if (!far) {
    KvLinkMessage message;
    message.set_ready(number);
    Write(std::move(message));
  }
  Wake();
  return !far;
}

void DeviceLinkReceiver::Forget(uint64_t transfer) {
  absl::MutexLock lock(&operations_mutex_);
  for (auto& [number, entry] : operations_) {
    if (entry.transfer == transfer) entry.operation = {};
  }
  const auto done = [this, transfer]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(operations_mutex_) {
    return std::find(ending_.begin(), ending_.end(), transfer) == ending_.end();
  };
  operations_mutex_.Await(absl::Condition(&done));
}

absl::Status DeviceLinkReceiver::Handle(const KvLinkMessage& message) {
  switch (message.message_case()) {
    case KvLinkMessage::kWelcome: {
      const KvLinkMessage::Welcome& welcome = message.welcome();
      {
        absl::MutexLock lock(&operations_mutex_);
        if (connection_ != 0) return ProtocolError("a second welcome");
        if (welcome.connection() == 0 || welcome.id().empty()) {
          return ProtocolError("a welcome without a connection or an id");
        }
        connection_ = welcome.connection();
      }
      Connect(welcome.id(), welcome.connection());
      return absl::OkStatus();
    }
    case KvLinkMessage::kSkip: {
      const uint64_t number = message.skip();
      {
        absl::MutexLock lock(&operations_mutex_);
        // It is being received, or was: ready has been said, and the prefill worker sends it.
        if (number < next_ || operations_.contains(number)) return absl::OkStatus();
        if (number - next_ >= kMostAhead) {
          return ProtocolError(absl::StrCat("operation ", number,
                                            " is to be skipped, expected one of ", kMostAhead,
                                            " from ", next_, " on"));
        }
        operations_[number].skipped = true;
      }
      KvLinkMessage answer;
      answer.set_skipped(number);
      Write(std::move(answer));
      Wake();
      return absl::OkStatus();
    }
    default:
      return ProtocolError("a message that decode workers do not get");
  }
}

absl::Duration DeviceLinkReceiver::Continue(backend::DeviceLink& link, absl::Duration now) {
  uint64_t received = 0;
  absl::Status error;
  {
    absl::MutexLock lock(&operations_mutex_);
    if (receiving_) received = next_;
    error = error_;
  }
  if (!error.ok()) {
    Fail(error);
    return absl::InfiniteDuration();
  }
  if (received != 0 && End(received, &link)) {
    KvLinkMessage message;
    message.set_stored(received);
    Write(std::move(message));
  }
  int chunk_count = 0;
  {
    absl::MutexLock lock(&operations_mutex_);
    while (!ended_ && chunk_count == 0) {
      const auto it = operations_.find(next_);
      // The prefill worker watches over what it has announced.
      if (it == operations_.end()) return absl::InfiniteDuration();
      if (it->second.skipped) {
        operations_.erase(it);
        ++next_;
        continue;
      }
      receiving_ = true;
      chunk_count = it->second.chunk_count;
    }
  }
  if (chunk_count == 0) return absl::InfiniteDuration();
  deadline_ = now + timeouts().operation;
  OperationBegan(now);
  link.Receive(chunk_count);  // without the lock, as the sender does
  return absl::ZeroDuration();
}

bool DeviceLinkReceiver::End(uint64_t number, backend::DeviceLink* link) {
  Operation ended;
  uint64_t transfer;
  {
    absl::MutexLock lock(&operations_mutex_);
    const auto it = operations_.find(number);
    if (it == operations_.end()) return false;
    ended = std::move(it->second.operation);
    transfer = it->second.transfer;
    operations_.erase(it);
    if (number == next_) {
      ++next_;
      receiving_ = false;
    }
    if (ended.on_end == nullptr) return true;  // forgotten, or skipped
    ending_.push_back(transfer);
  }
  if (link != nullptr) link->Store(ended.slots, ended.pages);
  ended.on_end(link != nullptr);
  absl::MutexLock lock(&operations_mutex_);
  ending_.erase(std::find(ending_.begin(), ending_.end(), transfer));
  return true;
}

void DeviceLinkReceiver::EndAll(const absl::Status&) {
  std::vector<uint64_t> numbers;
  {
    absl::MutexLock lock(&operations_mutex_);
    ended_ = true;
    for (const auto& [number, entry] : operations_) numbers.push_back(number);
  }
  for (const uint64_t number : numbers) End(number, nullptr);
}

}  // namespace baton::transfer
