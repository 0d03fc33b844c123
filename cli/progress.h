// A progress bar on a terminal: one line that is written over and over.
#ifndef BATON_CLI_PROGRESS_H_
#define BATON_CLI_PROGRESS_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace baton::cli {

// Thread-safe. Writes nothing if `shown` is false (no terminal). Writes at most ten times a second,
// and clears the line when it is destroyed.
class Progress {
 public:
  // `total`, in the numbers that Advance() gets, is shown in multiples of `unit_size` as so many of
  // `unit`; 0: not known.
  Progress(std::ostream& out, bool shown, std::string unit, int64_t total,
           const Clock& clock = Clock::Real(), int64_t unit_size = 1);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `note` stands at the end of the line.
  void Advance(int64_t by, const std::string& note = "");

 private:
  std::ostream& out_;
  const bool shown_;
  const std::string unit_;
  const int64_t total_;
  const int64_t unit_size_;
  const Clock& clock_;
  const absl::Duration start_;
  absl::Mutex mutex_;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration next_ ABSL_GUARDED_BY(mutex_);  // when to write again
};

}  // namespace baton::cli

#endif  // BATON_CLI_PROGRESS_H_
