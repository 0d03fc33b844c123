#include "benchmarks/serving/fleet_balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "benchmarks/serving/http_call.h"
#include "benchmarks/serving/traffic.h"

namespace baton::benchmarks {
namespace {

constexpr absl::Duration kScrapeTimeout = absl::Seconds(1);
constexpr double kLeastMean = 2;  // sequences a worker, for a sample to say anything of balance

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Each worker's part of the sum; NaN of nothing.
std::vector<double> PartsOf(std::vector<double> values) {
  const double sum = Sum(values);
  for (double& value : values) {
    value = sum > 0 ? value / sum : std::numeric_limits<double>::quiet_NaN();
  }
  return values;
}

// Mean sequences by worker of the samples in [begin_s, end_s).
std::vector<double> MeanSequences(const std::vector<FleetSample>& samples, double begin_s,
                                  double end_s) {
  std::vector<double> sums(samples.empty() ? 0 : samples.front().sequences.size());
  int count = 0;
  for (const FleetSample& sample : samples) {
    if (sample.at_s < begin_s || sample.at_s >= end_s) continue;
    ++count;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += sample.sequences[i];
  }
  for (double& sum : sums) sum /= std::max(1, count);
  return sums;
}

bool IsFair(const std::vector<FleetSample>& samples, int worker, double begin_s,
            const FairShare& fair) {
  const std::vector<double> shares =
      PartsOf(MeanSequences(samples, begin_s, begin_s + fair.window_s));
  const double fair_share = 1 / static_cast<double>(shares.size());
  return std::abs(shares[worker] - fair_share) <= fair.tolerance * fair_share;
}

}  // namespace

double MetricIn(const std::string& text, const std::string& name) {
  double sum = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    double value = 0;
    if (absl::StartsWith(line, absl::StrCat(name, "{")) &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      sum += value;
    }
  }
  return sum;
}

FleetSampler::FleetSampler(const LocalCluster& cluster, std::vector<std::string> workers,
                           absl::Duration interval)
    : samples_(workers.size()) {
  for (size_t i = 0; i < workers.size(); ++i) {
    threads_.emplace_back([this, url = "http://" + cluster.metrics_address(workers[i]), interval,
                           i] { Sample(url, interval, &samples_[i]); });
  }
}

std::vector<std::vector<WorkerSample>> FleetSampler::Stop() {
  stopping_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  return std::exchange(samples_, {});
}

void FleetSampler::Sample(const std::string& url, absl::Duration interval,
                          std::vector<WorkerSample>* samples) {
  for (bool last = false; !last; absl::SleepFor(last ? absl::ZeroDuration() : interval)) {
    last = stopping_;
    WorkerSample sample = samples->empty() ? WorkerSample() : samples->back();
    const auto text = HttpGet(url, "/metrics", kScrapeTimeout);
    if (absl::IsDeadlineExceeded(text.status())) continue;  // stopped by a signal
    sample.at_s = NowSeconds();
    sample.sequences = text.ok() ? MetricIn(*text, "baton_active_sequences") : 0;
    if (text.ok()) {
      sample.tokens = MetricIn(*text, "baton_decode_tokens_total");
      sample.requests = MetricIn(*text, "baton_decode_requests_total");
    }
    samples->push_back(sample);
  }
}

std::vector<FleetSample> OnGrid(const std::vector<std::vector<WorkerSample>>& workers,
                                double begin_s, double end_s, double step_s) {
  std::vector<FleetSample> grid;
  std::vector<size_t> next(workers.size());
  FleetSample now;
  now.sequences.resize(workers.size());
  now.tokens.resize(workers.size());
  const int count = std::max(0, static_cast<int>((end_s - begin_s) / step_s));
  for (int step = 0; step <= count; ++step) {
    now.at_s = begin_s + step * step_s;
    for (size_t i = 0; i < workers.size(); ++i) {
      for (; next[i] < workers[i].size() && workers[i][next[i]].at_s <= now.at_s; ++next[i]) {
        const WorkerSample& sample = workers[i][next[i]];
        now.sequences[i] = sample.sequences;
        // A counter that is lower than before began anew, in another process.
        const double before = next[i] == 0 ? sample.tokens : workers[i][next[i] - 1].tokens;
        now.tokens[i] += sample.tokens >= before ? sample.tokens - before : sample.tokens;
      }
    }
    grid.push_back(now);
  }
  return grid;
}

BalanceFigures BalanceOf(const std::vector<FleetSample>& samples, double begin_s, double end_s) {
  BalanceFigures figures;
  int idle = 0;
  for (const FleetSample& sample : samples) {
    if (sample.at_s < begin_s || sample.at_s >= end_s || sample.sequences.empty()) continue;
    const double mean = Sum(sample.sequences) / static_cast<double>(sample.sequences.size());
    if (mean < kLeastMean) continue;
    const auto [least, most] =
        std::minmax_element(sample.sequences.begin(), sample.sequences.end());
    ++figures.samples;
    figures.max_over_mean += *most / mean;
    figures.worst_max_over_mean = std::max(figures.worst_max_over_mean, *most / mean);
    idle += *least == 0 && *most >= mean + 2;
  }
  if (figures.samples == 0) {
    const double none = std::numeric_limits<double>::quiet_NaN();
    return {0, none, none, none};
  }
  figures.max_over_mean /= figures.samples;
  figures.idle_beside_loaded_share = static_cast<double>(idle) / figures.samples;
  return figures;
}

std::vector<double> RequestsOf(const std::vector<std::vector<WorkerSample>>& workers) {
  std::vector<double> requests;
  for (const std::vector<WorkerSample>& samples : workers) {
    requests.push_back(samples.empty() ? 0 : samples.back().requests - samples.front().requests);
  }
  return requests;
}

std::vector<ShareBucket> SharesOf(const std::vector<FleetSample>& samples, double begin_s,
                                  double end_s, double width_s) {
  std::vector<ShareBucket> buckets;
  for (int i = 0; begin_s + (i + 1) * width_s <= end_s; ++i) {
    ShareBucket bucket;
    bucket.begin_s = begin_s + i * width_s;
    bucket.sequences = PartsOf(MeanSequences(samples, bucket.begin_s, bucket.begin_s + width_s));
    const auto at = [&](double time_s) {
      return std::find_if(samples.begin(), samples.end(),
                          [&](const FleetSample& s) { return s.at_s >= time_s; });
    };
    const auto first = at(bucket.begin_s), last = at(bucket.begin_s + width_s);
    if (first == samples.end() || last == samples.end()) break;
    for (size_t w = 0; w < first->tokens.size(); ++w) {
      bucket.tokens.push_back(last->tokens[w] - first->tokens[w]);
    }
    bucket.tokens = PartsOf(std::move(bucket.tokens));
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

double SecondsUntilFair(const std::vector<FleetSample>& samples, int worker, double from_s,
                        double end_s, const FairShare& fair) {
  for (const FleetSample& sample : samples) {
    if (sample.at_s < from_s || sample.at_s + fair.window_s > end_s) continue;
    if (IsFair(samples, worker, sample.at_s, fair)) return sample.at_s - from_s;
  }
  return std::numeric_limits<double>::infinity();
}

double FairWindows(const std::vector<FleetSample>& samples, int worker, double from_s, double end_s,
                   const FairShare& fair) {
  int windows = 0, are_fair = 0;
  for (const FleetSample& sample : samples) {
    if (sample.at_s < from_s || sample.at_s + fair.window_s > end_s) continue;
    ++windows;
    are_fair += IsFair(samples, worker, sample.at_s, fair);
  }
  return windows == 0 ? std::numeric_limits<double>::quiet_NaN()
                      : static_cast<double>(are_fair) / windows;
}

Chart SequencesChart(const std::string& title, const std::vector<FleetSample>& samples,
                     double begin_s) {
  Chart chart{title, "seconds", "sequences", {}};
  const size_t workers = samples.empty() ? 0 : samples.front().sequences.size();
  for (size_t i = 0; i < workers; ++i) {
    Series series;
    series.name = absl::StrCat("decode-", i);
    for (const FleetSample& sample : samples) {
      if (sample.at_s >= begin_s) {
        series.points.emplace_back(sample.at_s - begin_s, sample.sequences[i]);
      }
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace baton::benchmarks
