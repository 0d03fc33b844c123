// Histogram buckets, one list for each kind of quantity, so that histograms of the same quantity
// from different processes can be added.
#ifndef BATON_COMMON_TELEMETRY_BUCKETS_H_
#define BATON_COMMON_TELEMETRY_BUCKETS_H_

#include <vector>

#include "absl/types/span.h"

namespace baton::telemetry {

// Upper bounds in seconds. They start at milliseconds: with a first bound of 0.3 s, a fast system
// would seem to have a p99 of 0.3 s.

// Time to first token.
inline constexpr double kFirstTokenSecondsBuckets[] = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                                       0.1,   0.25,  0.5,  0.75, 1,    2.5,  5,
                                                       7.5,   10,    20,   40,   80,   160};

// Inter-token latency; one decode step.
inline constexpr double kTokenSecondsBuckets[] = {0.0005, 0.001, 0.002, 0.005, 0.01,  0.015, 0.02,
                                                  0.025,  0.03,  0.04,  0.05,  0.075, 0.1,   0.15,
                                                  0.2,    0.3,   0.5,   1,     2.5};

// Whole requests, queue times, prefills.
inline constexpr double kRequestSecondsBuckets[] = {
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800};

// KV transfers, and the wait for their blocks.
inline constexpr double kTransferSecondsBuckets[] = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};

// Bytes of a KV transfer: 2 KiB to 8 GiB, each bound four times the one before.
inline constexpr double kTransferBytesBuckets[] = {1 << 11, 1 << 13, 1 << 15,      1 << 17,
                                                   1 << 19, 1 << 21, 1 << 23,      1 << 25,
                                                   1 << 27, 1 << 29, 2147483648.0, 8589934592.0};

// Counts of tokens or sequences: 1, 2, 5, 10, 20, ... up to the first bound that is at least
// `max_count`, e.g. the longest context. REQUIRES: max_count >= 1.
std::vector<double> CountBuckets(int max_count);

// Converts one of the lists above to the type that prometheus-cpp takes.
inline std::vector<double> Buckets(absl::Span<const double> bounds) {
  return std::vector<double>(bounds.begin(), bounds.end());
}

}  // namespace baton::telemetry

#endif  // BATON_COMMON_TELEMETRY_BUCKETS_H_
