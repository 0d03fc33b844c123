#include "benchmarks/serving/saturation.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "benchmarks/serving/load_report.h"

namespace baton::benchmarks {
namespace {

constexpr double kGrowth = 1.05;  // a closed loop that gains less over the best gains nothing …
constexpr int kNoGain = 2;        // … and so many in turn are enough: one may be unlucky
constexpr double kWarmUp = 0.2;   // the share of a closed loop's time that is not counted

}  // namespace

double FindSaturation(LoadGenerator* client, const TrafficMix& mix, LoadOptions load,
                      int max_callers) {
  double best = 0;
  int without_gain = 0;
  load.timeout = [](int) { return absl::Minutes(5); };
  for (int callers = 2; callers <= max_callers; callers *= 2) {
    load.seed += 1;
    const double begin_s = NowSeconds();
    const std::vector<Outcome> outcomes = RunClosedLoop(client, mix, callers, load);
    const Slo none{1e9, 1e9};
    const LevelFigures f =
        Summarize(outcomes, none, begin_s + kWarmUp * load.duration_s, begin_s + load.duration_s);
    std::printf("Closed loop, %d callers: %.2f answers a second, %d failed, TTFT p50 %.0f ms\n",
                callers, f.goodput, f.failed + f.refused + f.expired, f.ttft_p50_ms);
    std::fflush(stdout);
    without_gain = f.goodput < best * kGrowth ? without_gain + 1 : 0;
    best = std::max(best, f.goodput);
    if (without_gain == kNoGain) break;
  }
  return best;
}

}  // namespace baton::benchmarks
