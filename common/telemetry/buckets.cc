#include "common/telemetry/buckets.h"

#include "common/base/check.h"

namespace baton::telemetry {

std::vector<double> CountBuckets(int max_count) {
  BATON_CHECK_GE(max_count, 1);
  std::vector<double> bounds;
  for (double decade = 1;; decade *= 10) {
    for (int step : {1, 2, 5}) {
      bounds.push_back(step * decade);
      if (bounds.back() >= max_count) return bounds;
    }
  }
}

}  // namespace baton::telemetry
