// Does goodput stay flat past saturation? A cluster of real processes under 1 to 5 times the load
// that it can carry: answers in time, time to refuse, latencies and memory.
//
//   load_bench --model DIR [--level-s 20] [--levels 1,1.5,2,3,4,5] [--rounds 3] [--svg goodput.svg]
//
// First one request at a time (what an idle cluster takes: the objectives are multiples of it),
// then closed loops of more and more callers until throughput grows no more: the saturation rate.
// Then, for each level, Poisson arrivals at that multiple of it, each with its objective as its
// deadline; rounds go up and down the levels in turn, so that none is always first. The goals:
// goodput at 3x >= 90 % of the peak; p99 of the time to refuse <= 50 ms; flat memory.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/load_report.h"
#include "benchmarks/serving/saturation.h"
#include "benchmarks/serving/traffic.h"
#include "common/base/resident_memory.h"

namespace baton::benchmarks {
namespace {

constexpr int kUnloadedRequests = 12;

struct Options {
  ClusterOptions cluster;
  std::string mix = "7:32-256:16-64,3:512-896:32-96";
  std::vector<double> levels = {1, 1.5, 2, 3, 4, 5};
  int rounds = 1;
  double level_s = 20;
  double warm_up_s = -1;  // below 0: a tenth of the level
  double calibrate_s = 10;
  int max_callers = 64;
  double rate = 0;
  double slo_ttft_ms = 0, slo_token_ms = 0;
  double slo_ttft_scale = 5, slo_token_scale = 3;
  uint64_t seed = 1;
  std::string svg;
};

// Samples the memory of all processes, and of this one, until it is stopped.
class MemoryRecorder {
 public:
  MemoryRecorder(const LocalCluster& cluster, double interval_s)
      : thread_([this, &cluster, interval_s] {
          do {
            MemorySample sample;
            sample.at_s = NowSeconds();
            for (const auto& [name, pid] : cluster.pids()) {
              sample.resident_bytes[name] = ResidentBytesOf(pid);
            }
            sample.resident_bytes["load generator"] = ResidentBytesOf(getpid());
            samples_.push_back(std::move(sample));
          } while (!stop_.WaitForNotificationWithTimeout(absl::Seconds(interval_s)));
        }) {}

  // Ends the sampling. Once.
  std::vector<MemorySample> Stop() {
    stop_.Notify();
    thread_.join();
    return std::move(samples_);
  }

 private:
  absl::Notification stop_;
  std::vector<MemorySample> samples_;
  std::thread thread_;
};

// The objectives, from what requests take that have the cluster to themselves.
Slo MakeSlo(const Options& options, LoadGenerator* client, const TrafficMix& mix, int vocab_size) {
  Random random(options.seed);
  std::vector<double> ttft_ms, gap_ms;
  for (int i = 0; i < kUnloadedRequests; ++i) {
    const Outcome outcome =
        client->SendAndWait(MakeRequest(mix.Draw(&random), vocab_size, &random));
    if (!outcome.status.ok()) Die(outcome.status);
    if (i == 0) continue;  // connections, code, clocks
    ttft_ms.push_back(outcome.ttft_s() * 1e3);
    for (double gap : GapsMs(outcome)) gap_ms.push_back(gap);
  }
  const double ttft = Percentile(ttft_ms, 0.9), gap = Percentile(gap_ms, 0.5);
  Slo slo;
  slo.ttft_s =
      (options.slo_ttft_ms > 0 ? options.slo_ttft_ms : ttft * options.slo_ttft_scale) / 1e3;
  slo.per_token_s =
      (options.slo_token_ms > 0 ? options.slo_token_ms : gap * options.slo_token_scale) / 1e3;
  std::printf(
      "Unloaded: TTFT %.1f ms (p90), %.2f ms a token (p50). Deadline: %.0f ms + %.1f ms for each "
      "token after the first, which is to come within the former.\n",
      ttft, gap, slo.ttft_s * 1e3, slo.per_token_s * 1e3);
  return slo;
}

LevelFigures RunLevel(double multiple, double saturation, const Slo& slo, double warm_up_s,
                      const TrafficMix& mix, LoadGenerator* client, LoadOptions load,
                      std::vector<LevelSpan>* spans) {
  load.rate = multiple * saturation;
  const double begin_s = NowSeconds();
  const std::vector<Outcome> outcomes = RunOpenLoop(client, mix, load);
  const double end_s = begin_s + load.duration_s;
  LevelFigures figures = Summarize(outcomes, slo, begin_s + warm_up_s, end_s);
  figures.multiple = multiple;
  figures.offered_rate = load.rate;
  spans->push_back({multiple, begin_s, end_s});
  std::printf("%gx: goodput %.2f/s, %d refused (p99 %.1f ms), %d expired, %d failed\n", multiple,
              figures.goodput, figures.refused, figures.refusal_p99_ms, figures.expired,
              figures.failed);
  std::fflush(stdout);
  return figures;
}

int Run(const Options& options) {
  const auto mix = TrafficMix::Parse(options.mix);
  if (!mix.ok()) Die(mix.status());
  const std::unique_ptr<LocalCluster> cluster = StartCluster(options.cluster);
  LoadGenerator client({cluster->address("router")});
  const int vocab_size = VocabSizeOf(&client);
  std::printf("Mix %s; %d prefill and %d decode workers; seed %llu.\n", options.mix.c_str(),
              options.cluster.prefill_workers, options.cluster.decode_workers,
              static_cast<unsigned long long>(options.seed));
  // Several samples in each tenth of a level, but not more than people can look at.
  MemoryRecorder recorder(*cluster, std::clamp(options.level_s / 50, 0.05, 1.0));
  const Slo slo = MakeSlo(options, &client, *mix, vocab_size);
  LoadOptions load;
  load.seed = options.seed;
  load.vocab_size = vocab_size;
  load.duration_s = options.calibrate_s;
  const double saturation =
      options.rate > 0 ? options.rate : FindSaturation(&client, *mix, load, options.max_callers);
  std::printf("Saturation: %.2f answers a second.\n", saturation);
  std::fflush(stdout);
  if (!(saturation > 0)) Die(absl::UnavailableError("nothing was answered"));

  load.duration_s = options.level_s;
  load.timeout = [&slo](int tokens) { return absl::Seconds(slo.finish_s(tokens)); };
  const double warm_up_s = options.warm_up_s < 0 ? options.level_s / 10 : options.warm_up_s;
  std::vector<std::vector<LevelFigures>> of_level(options.levels.size());
  std::vector<LevelSpan> spans;
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < of_level.size(); ++i) {
      const size_t level = round % 2 == 0 ? i : of_level.size() - 1 - i;
      load.seed += 1'000;
      of_level[level].push_back(
          RunLevel(options.levels[level], saturation, slo, warm_up_s, *mix, &client, load, &spans));
    }
  }
  std::vector<LevelFigures> levels;
  for (const std::vector<LevelFigures>& rounds : of_level) levels.push_back(MedianOf(rounds));
  const std::vector<MemorySample> samples = recorder.Stop();
  std::printf(
      "\n%d round(s) of %g s a level, of which the first %g s are not counted; medians of the "
      "rounds, counts of all.\n\n%s\n%s\n%s\n%s\n",
      options.rounds, options.level_s, warm_up_s, GoodputTable(levels).c_str(),
      LatencyTable(levels).c_str(), ReasonTable(levels).c_str(),
      MemoryTable(samples, spans).c_str());
  if (!options.svg.empty()) {
    std::ofstream file(options.svg);
    file << LoadPlot(levels, samples);
    if (!file.flush()) Die(absl::UnavailableError("cannot write " + options.svg));
  }
  if (absl::Status status = cluster->CheckAlive(); !status.ok()) Die(status);
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("Goodput, refusals, latencies and memory under 1 to 5 times saturation");
  app.option_defaults()->always_capture_default();
  Options options;
  AddClusterFlags(&app, &options.cluster);
  app.get_option("--model")->required();
  const CLI::Range seconds(0.1, 86'400.0);
  app.add_option("--prefill", options.cluster.prefill_workers)->check(CLI::Range(0, 64));
  app.add_option("--decode", options.cluster.decode_workers)->check(CLI::Range(1, 64));
  app.add_option("--mix", options.mix, "WEIGHT:PROMPT_LOW-PROMPT_HIGH:ANSWER_LOW-ANSWER_HIGH,...");
  app.add_option("--levels", options.levels, "Multiples of the saturation rate")
      ->delimiter(',')
      ->check(CLI::Range(0.01, 1000.0));
  app.add_option("--rounds", options.rounds, "Of all levels, upwards and downwards in turn")
      ->check(CLI::Range(1, 1000));
  app.add_option("--level-s", options.level_s, "Of arrivals at each level")->check(seconds);
  app.add_option("--warm-up-s", options.warm_up_s, "Not counted; below 0: a tenth of the level");
  app.add_option("--calibrate-s", options.calibrate_s, "Of each closed loop")->check(seconds);
  app.add_option("--max-callers", options.max_callers, "Of the largest closed loop")
      ->check(CLI::Range(2, 1024));
  app.add_option("--rate", options.rate, "The saturation rate, if it is known")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--slo-ttft-ms", options.slo_ttft_ms, "0: --slo-ttft-scale times unloaded p90")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--slo-token-ms", options.slo_token_ms, "0: --slo-token-scale times unloaded p50")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--slo-ttft-scale", options.slo_ttft_scale)->check(CLI::PositiveNumber);
  app.add_option("--slo-token-scale", options.slo_token_scale)->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed);
  app.add_option("--svg", options.svg, "Also write a plot here");
  CLI11_PARSE(app, argc, argv);
  if (options.warm_up_s >= options.level_s) {
    std::fprintf(stderr, "load_bench: --warm-up-s: not below --level-s\n");
    return 1;
  }
  return Run(options);
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) { return baton::benchmarks::Main(argc, argv); }
