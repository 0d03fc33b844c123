// Counts of durations in buckets of 0.1 %: quantiles of millions of them.
#ifndef BATON_SIMULATOR_LOG_HISTOGRAM_H_
#define BATON_SIMULATOR_LOG_HISTOGRAM_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton::simulator {

class LogHistogram {
 public:
  void Add(int64_t us, int64_t times = 1) {
    if (times <= 0) return;
    const double log = std::log(static_cast<double>(std::max<int64_t>(us, 1)));
    const auto bucket = static_cast<size_t>(log / kRatio);
    if (bucket >= counts_.size()) counts_.resize(bucket + 1);
    counts_[bucket] += times;
    count_ += times;
    sum_us_ += static_cast<double>(us) * static_cast<double>(times);
  }
  int64_t count() const { return count_; }
  double mean_s() const { return count_ == 0 ? 0 : sum_us_ * 1e-6 / static_cast<double>(count_); }
  // Returns the middle of the bucket of the smallest duration that a share `q` of all durations
  // does not exceed; 0 of nothing.
  double Quantile_s(double q) const {
    // The small factor keeps products that are whole numbers from being rounded up.
    const double rank = std::ceil(q * static_cast<double>(count_) * (1 - 1e-12));
    auto below = std::max<int64_t>(static_cast<int64_t>(rank) - 1, 0);
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (below < counts_[i]) return std::exp((static_cast<double>(i) + 0.5) * kRatio) * 1e-6;
      below -= counts_[i];
    }
    return 0;
  }

 private:
  static constexpr double kRatio = 1e-3;

  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  double sum_us_ = 0;
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_LOG_HISTOGRAM_H_
