// When the requests of a benchmark arrive.
#ifndef BATON_CLI_BENCH_ARRIVALS_H_
#define BATON_CLI_BENCH_ARRIVALS_H_

#include <cstdint>
#include <vector>

namespace baton::cli {

// Returns the arrival times of `count` requests, in seconds after the start, in ascending order.
// The gaps are drawn from a gamma distribution with shape `burstiness` and mean 1 / `rate`, so
// their coefficient of variation is 1 / sqrt(burstiness): 1 is a Poisson process, below 1 is
// burstier, infinity is evenly spaced. All times are then scaled so that the last is count / rate,
// as in vLLM: runs with different seeds have the same mean rate. An infinite rate gives zeros.
// Depends only on the arguments. REQUIRES: `rate` and `burstiness` above 0.
std::vector<double> ArrivalTimes(int count, double rate, double burstiness, uint64_t seed);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_ARRIVALS_H_
