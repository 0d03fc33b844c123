// Sums of the counts that make up the usage of a request.
#ifndef BATON_ROUTER_REQUEST_USAGE_SUM_H_
#define BATON_ROUTER_REQUEST_USAGE_SUM_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace baton::router {

// The sum of two counts of 0 or more; the largest count that a message holds if it is beyond that.
inline int32_t SaturatedSum(int64_t a, int64_t b) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::min(a, kMost) + std::min(b, kMost - std::min(a, kMost)));
}

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_USAGE_SUM_H_
