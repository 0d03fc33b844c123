#include "cli/progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::cli {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr int kBar = 30;

}  // namespace

Progress::Progress(std::ostream& out, bool shown, std::string unit, int64_t total,
                   const Clock& clock, int64_t unit_size)
    : out_(out),
      shown_(shown),
      unit_(std::move(unit)),
      total_(total),
      unit_size_(unit_size),
      clock_(clock),
      start_(clock.SinceStart()),
      next_(start_) {}

Progress::~Progress() {
  if (shown_) out_ << "\r\x1b[K" << std::flush;
}

void Progress::Advance(int64_t by, const std::string& note) {
  if (!shown_) return;
  absl::MutexLock lock(&mutex_);
  done_ += by;
  const absl::Duration now = clock_.SinceStart();
  if (now < next_) return;
  next_ = now + kPause;
  const double share =
      total_ == 0 ? 0 : std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const double seconds = absl::ToDoubleSeconds(now - start_);
  const int filled = static_cast<int>(share * kBar);
  std::string line = absl::StrFormat("\r%3d %% [%s%s] %d/%d %s", static_cast<int>(share * 100),
                                     std::string(filled, '='), std::string(kBar - filled, ' '),
                                     done_ / unit_size_, total_ / unit_size_, unit_);
  if (seconds > 0) {
    absl::StrAppendFormat(&line, ", %.1f/s", static_cast<double>(done_ / unit_size_) / seconds);
  }
  if (share > 0 && share < 1) {
    absl::StrAppendFormat(&line, ", %.0f s left", seconds * (1 - share) / share);
  }
  out_ << line << (note.empty() ? "" : ", ") << note << "\x1b[K" << std::flush;
}

}  // namespace baton::cli
