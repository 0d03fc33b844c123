// How long answers take from their first token to their last, learned from those that have ended.
#ifndef BATON_ROUTER_REQUEST_ANSWER_PACE_H_
#define BATON_ROUTER_REQUEST_ANSWER_PACE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/numeric/bits.h"
#include "absl/time/time.h"

namespace baton::router {

// Few answers use all of the tokens that they may have, and how many do depends on how many that
// is: who asks for 16 needs them, who names no bound has the model's. So the share that is used is
// learned for each power of two apart. Unsynchronized.
class AnswerPace {
 public:
  // `tokens` came, the last `took` after the first, of an answer that may have had `max_tokens`.
  // `whole`: it was not cut short.
  void OnAnswer(int64_t tokens, int64_t max_tokens, absl::Duration took, bool whole) {
    if (tokens >= 2) token_s_.Add(absl::ToDoubleSeconds(took) / static_cast<double>(tokens - 1));
    if (whole && max_tokens >= 1) {
      ShareOf(max_tokens).Add(static_cast<double>(tokens) / static_cast<double>(max_tokens));
    }
  }

  // Of an answer of at most `max_tokens` (1 or more). Zero while nothing is known of such answers:
  // a guess that is too long would refuse what could be done.
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

  // Of all at first, then of the recent ones.
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
