// Estimates how long queued requests will wait, from how fast the queue has moved lately, and
// whether the KV of a preempted sequence is cheaper to swap out or to compute again.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_LOAD_ESTIMATE_H_
#define BATON_DECODE_WORKER_LOAD_ESTIMATE_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace baton::decode_worker {

class LoadEstimate {
 public:
  // Call one of the two after each round of admissions: requests still wait, or none do.
  void OnQueueNonEmpty(absl::Duration now);
  void OnQueueEmpty() { waiting_since_.reset(); }
  // A request of `tokens` prompt tokens was admitted; `more`: others still wait. Counts only while
  // requests wait: one that is admitted at once says nothing about how fast the queue moves.
  void OnAdmitted(int64_t tokens, bool more, absl::Duration now);
  // The time until `tokens` prompt tokens are admitted. nullopt before the first measurement.
  std::optional<absl::Duration> TimeToAdmit(int64_t tokens) const;

  // Prompt tokens admitted from the queue per second. nullopt before the first measurement.
  std::optional<double> tokens_per_second() const {
    return queue_.PerSecond() > 0 ? std::optional<double>(queue_.PerSecond()) : std::nullopt;
  }

  // `tokens` prompt tokens were computed, here or on a prefill worker, in `took`.
  void Prefilled(int64_t tokens, absl::Duration took) { prefill_.Add(tokens, took); }
  void Copied(int64_t bytes, absl::Duration took) { copy_.Add(bytes, took); }
  // True if copying `bytes` out and in takes less time than computing the tokens again, and before
  // any measurement: a copy at memory speed is rarely slower.
  bool CopyIsCheaper(int64_t bytes, int64_t tokens) const;

 private:
  // A sum of amounts over a sum of times, in which older ones count less.
  struct Rate {
    double amount = 0;
    double seconds = 0;
    void Add(int64_t more, absl::Duration took);
    // 0: not measured.
    double PerSecond() const { return seconds > 0 ? amount / seconds : 0; }
  };
  Rate queue_;
  Rate prefill_;
  Rate copy_;
  std::optional<absl::Duration> waiting_since_;  // or time of the last admission
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_LOAD_ESTIMATE_H_
