// Decides which of the KV transfers that share a connection sends next: the one that is due first
// (earliest deadline first).
//
// HTTP/2 as gRPC speaks it knows no order. It takes a message from each stream in turn, so beside a
// long prompt's frames of 1 MiB a short prompt's small frames would wait for one of them each.
#ifndef BATON_COMMON_TRANSFER_LINK_SCHEDULE_H_
#define BATON_COMMON_TRANSFER_LINK_SCHEDULE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace baton::transfer {

// A transfer is due at its caller's deadline, or, if that is earlier, when its bytes had crossed at
// kSlowestBytesPerSecond from its first frame on. So of two that start together the smaller goes
// first, and a large one is not held back for ever: 32k tokens of 12 KiB are due after 40 s.
inline constexpr double kSlowestBytesPerSecond = 10e6;

// Thread-safe.
class LinkSchedule {
 public:
  explicit LinkSchedule(const Clock& clock) : clock_(clock) {}

  using Transfer = uint64_t;  // never 0
  // `link` names the connection. `bytes`: of the whole transfer.
  Transfer Join(std::string link, int64_t bytes, absl::Time deadline);
  // Call for each frame. If false, another transfer is due first, and `resume` is called once this
  // one may try again. Until Pause or Leave the transfer counts as sending, and those that are due
  // later wait for it.
  bool MaySend(Transfer transfer, std::function<void()> resume);
  // Nothing is ready to be sent. Returns the callback of the transfer that is next, perhaps null:
  // call it without locks.
  [[nodiscard]] std::function<void()> Pause(Transfer transfer);
  // Call exactly once. `resume` may still be running. Calls that of the transfer that is next.
  void Leave(Transfer transfer);

 private:
  struct Entry {
    std::string link;
    absl::Time due;
    std::function<void()> resume;  // set while it waits
  };
  using Order = std::set<std::pair<absl::Time, Transfer>>;

  // Takes the transfer out of its link's order. Returns the callback of the one that is next.
  std::function<void()> Remove(Transfer transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  absl::Mutex mutex_;
  Transfer last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Transfer, Entry> transfers_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Order> links_ ABSL_GUARDED_BY(mutex_);  // those that send or wait
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_LINK_SCHEDULE_H_
