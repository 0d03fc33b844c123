// What a disturbance of one decode worker leaves behind in the router's choices, under a steady
// load: how long after its end the worker has its fair share of the sequences again.
#ifndef BATON_BENCHMARKS_DECODE_DISTURBANCE_H_
#define BATON_BENCHMARKS_DECODE_DISTURBANCE_H_

#include <string>
#include <vector>

#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/fleet_balance.h"
#include "benchmarks/serving/traffic.h"

namespace baton::benchmarks {

// cold:  a worker is killed and started again, and is stopped for a second in the first steps of
//        its first request.
// pulse: a worker gets a third of its time for a while: stopped and continued in turn.
// join:  a worker that the router lists is not there at first, and is started under load.
inline constexpr const char* kDisturbances[] = {"cold", "pulse", "join"};

struct DisturbanceOptions {
  double before_s = 10;  // of load before the disturbance, and after its end
  double after_s = 30;
  double pulse_s = 20;  // how long the pulses last
  double sample_s = 0.1;
  FairShare fair;
};

struct DisturbanceResult {
  std::string kind, policy;
  double begin_s = 0, end_s = 0;  // of the disturbance, after the begin of the load
  double fair_before = 0;         // share of the windows before it that are fair
  double seconds_until_fair = 0;  // after its end; infinity: not by the end of the load
  double fair_after = 0;          // share of the windows after that
  int requests = 0, failed = 0;
  std::vector<ShareBucket> shares;  // by second, from the begin of the load
};

// Disturbs the last decode worker of a cluster that has just started. Of `load`, the duration is
// set here. For the thread that started the cluster. Ends the program where a worker cannot be
// started again.
DisturbanceResult Disturb(const std::string& kind, const DisturbanceOptions& options,
                          const TrafficMix& mix, LoadOptions load, LoadGenerator* client,
                          LocalCluster* cluster);

// One line for each result, and a line for each second of each.
void PrintDisturbances(const std::vector<DisturbanceResult>& results);
// The disturbed worker's shares over time.
std::vector<Chart> DisturbanceCharts(const std::vector<DisturbanceResult>& results);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_DECODE_DISTURBANCE_H_
