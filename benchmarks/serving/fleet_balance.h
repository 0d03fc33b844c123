// How evenly a fleet of decode workers is loaded: what each worker says of itself over time, and
// figures of it.
#ifndef BATON_BENCHMARKS_SERVING_FLEET_BALANCE_H_
#define BATON_BENCHMARKS_SERVING_FLEET_BALANCE_H_

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "benchmarks/serving/cluster_flags.h"
#include "cli/svg_plot.h"

namespace baton::benchmarks {

using cli::Chart;
using cli::Series;

// What a decode worker's /metrics said at a time of NowSeconds().
struct WorkerSample {
  double at_s = 0;
  double sequences = 0;  // that it decodes or receives
  double tokens = 0;     // drawn since its start
  double requests = 0;   // ended since its start
};

// The sum of a metric's series in Prometheus' text format; 0 of one that is not there.
double MetricIn(const std::string& text, const std::string& name);

// Samples decode workers from its construction to Stop(). Each has a thread of its own: one that is
// stopped by a signal answers no scrape, and must not hold the others' up. It has no samples
// meanwhile; one that is killed has samples without sequences. The cluster must outlive it.
class FleetSampler {
 public:
  FleetSampler(const LocalCluster& cluster, std::vector<std::string> workers,
               absl::Duration interval);
  ~FleetSampler() { Stop(); }
  // Takes a last sample of each, and returns all by worker. A second call returns nothing.
  std::vector<std::vector<WorkerSample>> Stop();

 private:
  void Sample(const std::string& url, absl::Duration interval, std::vector<WorkerSample>* samples);

  std::atomic<bool> stopping_{false};
  std::vector<std::vector<WorkerSample>> samples_;  // one vector for each thread
  std::vector<std::thread> threads_;
};

// The whole fleet at one time.
struct FleetSample {
  double at_s = 0;
  std::vector<double> sequences;  // by worker
  std::vector<double> tokens;     // drawn until now, restarts included
};

// Every `step_s` from `begin_s` to `end_s`: the last sample of each worker before it.
std::vector<FleetSample> OnGrid(const std::vector<std::vector<WorkerSample>>& workers,
                                double begin_s, double end_s, double step_s);

// Of the samples of a time that have two or more sequences a worker: fewer cannot be shared evenly.
struct BalanceFigures {
  int samples = 0;
  double max_over_mean = 0;        // of sequences, averaged over time; NaN without samples
  double worst_max_over_mean = 0;  // NaN without samples
  // Of samples in which a worker is idle while another has two sequences more than the mean.
  double idle_beside_loaded_share = 0;
};
BalanceFigures BalanceOf(const std::vector<FleetSample>& samples, double begin_s, double end_s);

// Requests that ended at each worker in the time of its samples.
std::vector<double> RequestsOf(const std::vector<std::vector<WorkerSample>>& workers);

// Shares of the workers in a second, or another width.
struct ShareBucket {
  double begin_s = 0;
  std::vector<double> sequences;  // of the mean number that ran; NaN if none did
  std::vector<double> tokens;     // of those drawn in it; NaN if none was
};
std::vector<ShareBucket> SharesOf(const std::vector<FleetSample>& samples, double begin_s,
                                  double end_s, double width_s);

// When a worker's share of the sequences that run, averaged over a window, is the fair one: within
// `tolerance` of 1 / workers, e.g. 0.1 of it. Windows begin at each sample and end by `end_s`.
struct FairShare {
  double window_s = 3;
  double tolerance = 0.1;
};
// From `from_s` to the begin of the first fair window; infinity if none is.
double SecondsUntilFair(const std::vector<FleetSample>& samples, int worker, double from_s,
                        double end_s, const FairShare& fair);
// The share of windows that are fair, of those that begin at `from_s` or later; NaN of none.
double FairWindows(const std::vector<FleetSample>& samples, int worker, double from_s, double end_s,
                   const FairShare& fair);

// Sequences of each worker over time, from 0 at `begin_s`.
Chart SequencesChart(const std::string& title, const std::vector<FleetSample>& samples,
                     double begin_s);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_SERVING_FLEET_BALANCE_H_
