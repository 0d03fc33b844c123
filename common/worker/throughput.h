// How many tokens per second a worker's steps compute, for the retry times in refusals.
#ifndef BATON_COMMON_WORKER_THROUGHPUT_H_
#define BATON_COMMON_WORKER_THROUGHPUT_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace baton::worker {

// The tokens of the measured steps over their seconds, both weighted so that a step's weight halves
// with each `half_life` of computing after it: idle time changes nothing. Measure only steps that
// had as much to do as they could take: one with little work says nothing about the rate under
// load.
//
// Thread: owned by a loop.
class Throughput {
 public:
  explicit Throughput(const Clock& clock, absl::Duration half_life = absl::Seconds(10))
      : clock_(clock), half_life_(half_life) {}

  void StepBegins() { begin_ = clock_.SinceStart(); }
  // Ends the step that began last. REQUIRES: tokens >= 0.
  void StepEnds(int64_t tokens);

  // nullopt before the first step that took any time.
  std::optional<double> tokens_per_second() const;

 private:
  const Clock& clock_;
  const absl::Duration half_life_;
  absl::Duration begin_;
  double tokens_ = 0;
  double seconds_ = 0;
};

// Returns the retry time of a refusal when `tokens` must be computed first: the time they take at
// that rate, at least 10 ms, at most a minute. One second while no rate is known.
absl::Duration RetryAfter(int64_t tokens, std::optional<double> tokens_per_second);

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_THROUGHPUT_H_
