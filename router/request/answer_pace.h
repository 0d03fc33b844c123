// How long answers take from their first token to their last, learned from the answers so far.
#ifndef BATON_ROUTER_REQUEST_ANSWER_PACE_H_
#define BATON_ROUTER_REQUEST_ANSWER_PACE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/numeric/bits.h"
#include "absl/time/time.h"

namespace baton::router {

// Few answers are as long as max_tokens allows, and the smaller max_tokens, the more are. So the
// share that is used is learned for each power of two of max_tokens apart. Unsynchronized.
class AnswerPace {
 public:
  // An answer of `tokens` out of at most `max_tokens` has ended; its last token came `took` after
  // its first. `whole`: it was not cut short.
  void OnAnswer(int64_t tokens, int64_t max_tokens, absl::Duration took, bool whole) {
    if (tokens >= 2) token_s_.Add(absl::ToDoubleSeconds(took) / static_cast<double>(tokens - 1));
    if (whole && max_tokens >= 1) {
      ShareOf(max_tokens).Add(static_cast<double>(tokens) / static_cast<double>(max_tokens));
    }
  }

  // For an answer of at most `max_tokens` (1 or more). Zero until enough such answers have ended:
  // too long a guess would refuse requests that can be answered.
  absl::Duration Expected(int64_t max_tokens) const {
    const Mean& share = shares_[Class(max_tokens)];
    if (share.count < kSamplesToTrust || token_s_.count < kSamplesToTrust) {
      return absl::ZeroDuration();
    }
    const double tokens = share.value * static_cast<double>(max_tokens);
    return absl::Seconds(std::max(tokens - 1, 0.0) * token_s_.value);
  }

 private:
  static constexpr int kSamplesToTrust = 8;
  static constexpr int kMemory = 32;  // answers

  // The plain mean at first, then that of the recent samples.
  struct Mean {
    int count = 0;
    double value = 0;
    void Add(double sample) {
      count = std::min(count + 1, kMemory);
      value += (sample - value) / count;
    }
  };

  static size_t Class(int64_t max_tokens) {
    return static_cast<size_t>(absl::bit_width(static_cast<uint64_t>(max_tokens)));
  }
  Mean& ShareOf(int64_t max_tokens) { return shares_[Class(max_tokens)]; }

  Mean token_s_;
  std::array<Mean, 65> shares_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ANSWER_PACE_H_
