// Tells a peer that has stopped reading from one that reads slowly, and from a pause of this
// process.
#ifndef BATON_COMMON_BASE_STALL_WATCH_H_
#define BATON_COMMON_BASE_STALL_WATCH_H_

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace baton {

// ABORTED, READER_STALLED: a client has read nothing of its answer for so long.
absl::Status ReaderStalled(absl::Duration limit);

// Watches the writes to one peer, of which one is under way at a time. Its owner looks several
// times within the limit. Time counts only between looks, a quarter of the limit at most for each:
// a process that was stopped, or did not get a CPU, has looked once in all that time, and what the
// peer has read meanwhile shows at the next look. Unsynchronized.
class StallWatch {
 public:
  // A write gets the limit once, and again for each so many bytes that it has. The owner sees only
  // the end of a large write, and a slow peer must be able to reach it.
  static constexpr size_t kBytesPerLimit = 64 << 10;

  explicit StallWatch(absl::Duration limit) : limit_(limit) {}

  // How often to look. Nothing needs a look more often than every 10 ms.
  absl::Duration period() const {
    return std::clamp(limit_ / 8, absl::Milliseconds(10), absl::Seconds(1));
  }
  // Starts the count anew. Call it before the first look, and after a time without looks.
  void Begin(absl::Duration now) {
    looked_at_ = now;
    stalled_ = absl::ZeroDuration();
  }
  // True once the peer has taken nothing for the limit. `moved`: since the last look, a write has
  // begun, advanced or ended, or none is under way. `bytes`: size of the write, if the owner does
  // not see it advance.
  bool Look(absl::Duration now, bool moved, size_t bytes = 0) {
    const absl::Duration step = std::min(now - looked_at_, limit_ / 4);
    looked_at_ = now;
    stalled_ = moved ? absl::ZeroDuration() : stalled_ + step;
    return stalled_ >= limit_ * (1 + static_cast<double>(bytes / kBytesPerLimit));
  }

 private:
  const absl::Duration limit_;
  absl::Duration looked_at_;
  absl::Duration stalled_;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_STALL_WATCH_H_
