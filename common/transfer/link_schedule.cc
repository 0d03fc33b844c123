#include "common/transfer/link_schedule.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::transfer {

LinkSchedule::Transfer LinkSchedule::Join(std::string link, int64_t bytes, absl::Time deadline) {
  const absl::Time slowest =
      clock_.Now() + absl::Seconds(static_cast<double>(bytes) / kSlowestBytesPerSecond);
  absl::MutexLock lock(&mutex_);
  transfers_[++last_] = {std::move(link), std::min(deadline, slowest), nullptr};
  return last_;
}

bool LinkSchedule::MaySend(Transfer transfer, std::function<void()> resume) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = transfers_.at(transfer);
  Order& order = links_[entry.link];
  order.emplace(entry.due, transfer);
  const bool first = order.begin()->second == transfer;
  entry.resume = first ? nullptr : std::move(resume);
  return first;
}

std::function<void()> LinkSchedule::Pause(Transfer transfer) {
  absl::MutexLock lock(&mutex_);
  return Remove(transfer);
}

void LinkSchedule::Leave(Transfer transfer) {
  std::function<void()> next;
  {
    absl::MutexLock lock(&mutex_);
    next = Remove(transfer);
    BATON_CHECK_EQ(transfers_.erase(transfer), 1u);
  }
  if (next != nullptr) next();
}

std::function<void()> LinkSchedule::Remove(Transfer transfer) {
  Entry& entry = transfers_.at(transfer);
  entry.resume = nullptr;
  const auto link = links_.find(entry.link);
  if (link == links_.end()) return nullptr;
  Order& order = link->second;
  order.erase({entry.due, transfer});
  if (order.empty()) {
    links_.erase(link);
    return nullptr;
  }
  return std::exchange(transfers_.at(order.begin()->second).resume, nullptr);
}

}  // namespace baton::transfer
