#include "benchmarks/decode_disturbance.h"

#include <signal.h>

#include <cmath>
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "benchmarks/serving/http_call.h"

namespace baton::benchmarks {
namespace {

// Of `pulse`: three times as slow.
constexpr absl::Duration kPulseStopped = absl::Milliseconds(100);
constexpr absl::Duration kPulseRuns = absl::Milliseconds(50);
constexpr absl::Duration kColdStop = absl::Seconds(1);
// A restarted worker that is not chosen for so long has no first step.
constexpr double kFirstRequest_s = 10;
constexpr double kGoal_s = 10;
constexpr double kBucket_s = 1;

void SleepUntil(double at_s) { absl::SleepFor(absl::Seconds(at_s - NowSeconds())); }

// Stops the worker as soon as it has a sequence. False if it gets none.
bool StopInFirstSteps(LocalCluster* cluster, const std::string& worker) {
  const std::string url = "http://" + cluster->metrics_address(worker);
  for (const double end_s = NowSeconds() + kFirstRequest_s; NowSeconds() < end_s;
       absl::SleepFor(absl::Milliseconds(1))) {
    const auto text = HttpGet(url, "/metrics", absl::Seconds(1));
    if (!text.ok() || MetricIn(*text, "baton_active_sequences") == 0) continue;
    cluster->Signal(worker, SIGSTOP);
    absl::SleepFor(kColdStop);  // the disturbance's own length
    cluster->Signal(worker, SIGCONT);
    return true;
  }
  return false;
}

void Pulse(LocalCluster* cluster, const std::string& worker, double end_s) {
  while (NowSeconds() < end_s) {
    cluster->Signal(worker, SIGSTOP);
    absl::SleepFor(kPulseStopped);
    cluster->Signal(worker, SIGCONT);
    absl::SleepFor(kPulseRuns);
  }
}

// When it was over: after the last signal, or when a worker that was started was ready.
double Inject(const std::string& kind, const DisturbanceOptions& options, const std::string& worker,
              LocalCluster* cluster) {
  if (kind == "pulse") {
    Pulse(cluster, worker, NowSeconds() + options.pulse_s);
    return NowSeconds();
  }
  if (kind == "cold") cluster->Kill(worker);
  absl::Status status = cluster->Restart(worker);
  if (status.ok()) status = cluster->AwaitReady("router");
  if (!status.ok()) Die(status);
  const double ready_s = NowSeconds();
  if (kind == "join") return ready_s;
  if (StopInFirstSteps(cluster, worker)) return NowSeconds();
  std::printf("%s was sent nothing for %g s after its restart: it was not stopped.\n",
              worker.c_str(), kFirstRequest_s);
  return ready_s;
}

}  // namespace

DisturbanceResult Disturb(const std::string& kind, const DisturbanceOptions& options,
                          const TrafficMix& mix, LoadOptions load, LoadGenerator* client,
                          LocalCluster* cluster) {
  const std::vector<std::string> workers = cluster->workers("decode");
  const int disturbed = static_cast<int>(workers.size()) - 1;
  const std::string& worker = workers.back();
  if (kind == "join") cluster->Kill(worker);
  load.duration_s = options.before_s + options.after_s;
  if (kind == "pulse") load.duration_s += options.pulse_s;
  FleetSampler sampler(*cluster, workers, absl::Seconds(options.sample_s));
  const double load_s = NowSeconds();
  std::vector<Outcome> outcomes;
  std::thread load_thread([&] { outcomes = RunOpenLoop(client, mix, load); });
  SleepUntil(load_s + options.before_s);
  const double begin_s = NowSeconds();
  const double end_s = Inject(kind, options, worker, cluster);
  load_thread.join();
  const double load_end_s = load_s + load.duration_s;
  const std::vector<FleetSample> samples =
      OnGrid(sampler.Stop(), load_s, load_end_s, options.sample_s);
  DisturbanceResult result;
  result.kind = kind;
  result.begin_s = begin_s - load_s;
  result.end_s = end_s - load_s;
  result.fair_before = FairWindows(samples, disturbed, load_s, begin_s, options.fair);
  result.seconds_until_fair = SecondsUntilFair(samples, disturbed, end_s, load_end_s, options.fair);
  result.fair_after =
      FairWindows(samples, disturbed, end_s + result.seconds_until_fair, load_end_s, options.fair);
  result.shares = SharesOf(samples, load_s, load_end_s, kBucket_s);
  for (ShareBucket& bucket : result.shares) bucket.begin_s -= load_s;
  result.requests = static_cast<int>(outcomes.size());
  for (const Outcome& outcome : outcomes) result.failed += !outcome.status.ok();
  return result;
}

void PrintDisturbances(const std::vector<DisturbanceResult>& results) {
  std::printf(
      "\n| disturbance | policy | from, s | to, s | fair windows before | fair again after, s "
      "(goal ≤ %g) | fair windows after that | requests | failed |\n"
      "|---|---|---|---|---|---|---|---|---|\n",
      kGoal_s);
  const auto percent = [](double share) {
    return std::isnan(share) ? std::string("–") : absl::StrFormat("%.0f %%", 100 * share);
  };
  for (const DisturbanceResult& r : results) {
    std::printf("| %s | %s | %.1f | %.1f | %s | %s | %s | %d | %d |\n", r.kind.c_str(),
                r.policy.c_str(), r.begin_s, r.end_s, percent(r.fair_before).c_str(),
                std::isfinite(r.seconds_until_fair)
                    ? absl::StrFormat("%.1f", r.seconds_until_fair).c_str()
                    : "not",
                percent(r.fair_after).c_str(), r.requests, r.failed);
  }
  for (const DisturbanceResult& r : results) {
    std::printf("\n%s, %s: by second, each worker's share of the sequences and of the tokens.\n",
                r.kind.c_str(), r.policy.c_str());
    for (const ShareBucket& bucket : r.shares) {
      std::string line = absl::StrFormat("%4.0f s ", bucket.begin_s);
      for (double share : bucket.sequences) absl::StrAppendFormat(&line, " %4.2f", share);
      absl::StrAppend(&line, "  |");
      for (double share : bucket.tokens) absl::StrAppendFormat(&line, " %4.2f", share);
      const bool disturbed = bucket.begin_s + kBucket_s > r.begin_s && bucket.begin_s < r.end_s;
      std::printf("%s%s\n", line.c_str(), disturbed ? "  disturbed" : "");
    }
  }
}

std::vector<Chart> DisturbanceCharts(const std::vector<DisturbanceResult>& results) {
  std::vector<Chart> charts;
  for (const DisturbanceResult& r : results) {
    Chart chart{
        absl::StrCat(r.kind, ", ", r.policy), "seconds", "share of the disturbed worker", {}};
    Series sequences{"of sequences", {}}, tokens{"of tokens", {}}, fair{"fair", {}, true},
        begin{"disturbance", {{r.begin_s, 0}, {r.begin_s, 1}}, true},
        end{"its end", {{r.end_s, 0}, {r.end_s, 1}}, true};
    for (const ShareBucket& bucket : r.shares) {
      const double middle_s = bucket.begin_s + kBucket_s / 2;
      sequences.points.emplace_back(middle_s, bucket.sequences.back());
      tokens.points.emplace_back(middle_s, bucket.tokens.back());
      fair.points.emplace_back(middle_s, 1 / static_cast<double>(bucket.sequences.size()));
    }
    chart.series = {sequences, tokens, fair, begin, end};
    charts.push_back(std::move(chart));
  }
  return charts;
}

}  // namespace baton::benchmarks
