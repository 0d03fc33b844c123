// The load at which a cluster answers no faster, however many ask.
#ifndef BATON_BENCHMARKS_SERVING_SATURATION_H_
#define BATON_BENCHMARKS_SERVING_SATURATION_H_

#include "benchmarks/serving/traffic.h"

namespace baton::benchmarks {

// Answers a second of the best of closed loops with 2, 4, 8, ... callers, of `load.duration_s`
// each; ends when more callers bring no more, or at `max_callers`. Prints a line for each. Ignores
// the rate and the timeout of `load`.
double FindSaturation(LoadGenerator* client, const TrafficMix& mix, LoadOptions load,
                      int max_callers);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_SERVING_SATURATION_H_
