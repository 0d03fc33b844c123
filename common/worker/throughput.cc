#include "common/worker/throughput.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace baton::worker {
namespace {

constexpr absl::Duration kUnknown = absl::Seconds(1);
constexpr absl::Duration kShortest = absl::Milliseconds(10);
constexpr absl::Duration kLongest = absl::Minutes(1);

}  // namespace

void Throughput::StepEnds(int64_t tokens) {
  BATON_CHECK_GE(tokens, 0);
  const absl::Duration took = clock_.SinceStart() - begin_;
  const double kept = std::exp2(-absl::FDivDuration(took, half_life_));
  tokens_ = tokens_ * kept + static_cast<double>(tokens);
  seconds_ = seconds_ * kept + absl::ToDoubleSeconds(took);
}

std::optional<double> Throughput::tokens_per_second() const {
  if (seconds_ <= 0 || tokens_ <= 0) return std::nullopt;
  return tokens_ / seconds_;
}

absl::Duration RetryAfter(int64_t tokens, std::optional<double> tokens_per_second) {
  if (!tokens_per_second || *tokens_per_second <= 0) return kUnknown;
  const absl::Duration wait = absl::Seconds(static_cast<double>(tokens) / *tokens_per_second);
  return std::clamp(wait, kShortest, kLongest);
}

}  // namespace baton::worker
