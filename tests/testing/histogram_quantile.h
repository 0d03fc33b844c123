// Quantiles of histograms as PromQL's histogram_quantile() estimates them, and their exact values.
#ifndef BATON_TESTS_TESTING_HISTOGRAM_QUANTILE_H_
#define BATON_TESTS_TESTING_HISTOGRAM_QUANTILE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/base/check.h"

namespace baton::testing {

// bounds: upper bounds, without +Inf; rising. counts: cumulative, one more, the last of all values.
// Linear between the bounds of the quantile's bucket, the first of which begins at 0; the last
// finite bound beyond it.
inline double HistogramQuantile(double quantile, const std::vector<double>& bounds,
                                const std::vector<double>& counts) {
  BATON_CHECK_EQ(counts.size(), bounds.size() + 1);
  double rank = quantile * counts.back();
  if (counts.back() == 0) return std::numeric_limits<double>::quiet_NaN();
  const size_t bucket = static_cast<size_t>(
      std::lower_bound(counts.begin(), counts.end() - 1, rank) - counts.begin());
  if (bucket == bounds.size()) return bounds.back();
  const double begin = bucket > 0 ? bounds[bucket - 1] : 0;
  const double before = bucket > 0 ? counts[bucket - 1] : 0;
  rank -= before;
  return begin + (bounds[bucket] - begin) * rank / (counts[bucket] - before);
}

// The least value that at least `quantile` of the values do not exceed.
inline double ExactQuantile(double quantile, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(quantile * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

// The bucket that a value belongs to; bounds.size() beyond the last bound.
inline int BucketOf(double value, const std::vector<double>& bounds) {
  return static_cast<int>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin());
}

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_HISTOGRAM_QUANTILE_H_
