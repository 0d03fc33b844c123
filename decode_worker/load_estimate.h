// How long what waits will wait, from how fast the queue has moved lately; and whether the KV of a
// preempted sequence is cheaper kept or computed again.
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
  // Whenever all who may enter have: something still waits, or nothing does.
  void Waits(absl::Duration now);
  void Idle() { waiting_since_.reset(); }
  // A request of that many prompt tokens entered; `more`: others still wait. Counts only while
  // something has waited: who enters at once says nothing of how fast a queue moves.
  void Left(int64_t tokens, bool more, absl::Duration now);
  // Until that many prompt tokens have left the queue. Nothing while that was never measured.
  std::optional<absl::Duration> TimeFor(int64_t tokens) const;

  // Prompt tokens that leave the queue. Nothing while that was never measured.
  std::optional<double> tokens_per_second() const {
    return queue_.PerSecond() > 0 ? std::optional<double>(queue_.PerSecond()) : std::nullopt;
  }

  // Prompt tokens were computed, here or elsewhere, in that time.
  void Prefilled(int64_t tokens, absl::Duration took) { prefill_.Add(tokens, took); }
  void Copied(int64_t bytes, absl::Duration took) { copy_.Add(bytes, took); }
  // To copy so many bytes out and in again takes less than to compute the tokens again. True while
  // neither was measured: a copy at memory speed is rarely slower.
  bool CopyIsCheaper(int64_t bytes, int64_t tokens) const;

 private:
  // Amounts over times, older ones counting less.
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
  std::optional<absl::Duration> waiting_since_;  // or since the last one left
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_LOAD_ESTIMATE_H_
