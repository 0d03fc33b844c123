// When a call is tried again: the rules of docs/errors.md, "When to retry", and the Python
// client's.
#ifndef BATON_CLIENT_CPP_RETRIES_H_
#define BATON_CLIENT_CPP_RETRIES_H_

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace baton::client {

inline constexpr absl::Duration kFirstBackoff = absl::Milliseconds(200);
inline constexpr absl::Duration kMaxBackoff = absl::Seconds(5);

// The deadline of one call, and its retries: exponential back-off with full jitter after the time
// that the router asks for (Brooker, "Exponential Backoff And Jitter", AWS, 2015). Used by one
// thread at a time. `clock` outlives it.
class Retries {
 public:
  // `random` returns numbers from 0 to below 1.
  Retries(absl::Duration timeout, int max_retries, const Clock& clock,
          std::function<double()> random);

  // Until the deadline; not below zero.
  absl::Duration TimeLeft() const;
  // The pause before the next attempt, which counts as made; nullopt if `error` is final.
  std::optional<absl::Duration> PauseAfter(const absl::Status& error);

 private:
  const Clock& clock_;
  const std::function<double()> random_;
  const absl::Duration deadline_;  // of clock_.SinceStart()
  int left_;
  absl::Duration backoff_ = kFirstBackoff;
};

}  // namespace baton::client

#endif  // BATON_CLIENT_CPP_RETRIES_H_
