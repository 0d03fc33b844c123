// Do decode workers share the load? A cluster of real processes, whose decode workers are asked all
// the time what they run; the router's policy and workers in turn, one after the other.
//
//   decode_balance --model DIR [--decode 2] [--rounds 5] [--loads burst,poisson] [--svg FILE]
//   decode_balance --model DIR --disturb cold,pulse,join
//
// burst: so many different prompts at once, into a cluster that has just started (cold), and the
// same prompts again when all are answered (warm). poisson: open-loop arrivals at a share of what
// closed loops get from the cluster. Each policy of each round has a cluster that has just started,
// so that what a router has learned of its workers is its own doing; prompts are the same for all
// policies of a round. --disturb: see decode_disturbance.h.
//
// Counted are samples after the first --settle-s of a load: of a burst, until its first answer has
// ended (then it is shorter than the other's, that is all); of arrivals, until the last.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "benchmarks/decode_disturbance.h"
#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/fleet_balance.h"
#include "benchmarks/serving/load_report.h"
#include "benchmarks/serving/saturation.h"
#include "benchmarks/serving/traffic.h"
#include "cli/svg_plot.h"

namespace baton::benchmarks {
namespace {

// What tables and plots call the loads.
constexpr char kBurstCold[] = "burst, cold", kBurstWarm[] = "burst, warm", kPoisson[] = "poisson";

struct Options {
  ClusterOptions cluster;
  std::vector<std::string> policies = {"priced", "round_robin"};
  std::vector<std::string> loads = {"burst", "poisson"};
  std::vector<std::string> disturbances;
  DisturbanceOptions disturbance;
  std::string mix = "1:32-256:200";
  int burst = 24;
  int rounds = 5;
  double settle_s = 2;
  double load_s = 20;
  double rate = 0, rate_share = 0.7;
  double calibrate_s = 5;
  int max_callers = 64;
  uint64_t seed = 1;
  std::string svg;
};

// One load, once.
struct Phase {
  std::string load, policy;
  std::vector<double> requests;  // by decode worker
  BalanceFigures balance;
  double tokens_per_s = 0;
  double gap_p50_ms = 0, gap_p99_ms = 0;
  int asked = 0, failed = 0;
  std::vector<FleetSample> samples;
  double begin_s = 0;
};

// A cluster that has just started, and a client of it.
struct Fresh {
  std::unique_ptr<LocalCluster> cluster;
  std::unique_ptr<LoadGenerator> client;
  int vocab_size = 0;
};

Fresh StartFresh(const Options& options, const std::string& policy) {
  ClusterOptions wanted = options.cluster;
  AppendFlags("--routing-policy " + policy, &wanted.router_flags);
  Fresh fresh;
  fresh.cluster = StartCluster(wanted);
  fresh.client = std::make_unique<LoadGenerator>(std::vector{fresh.cluster->address("router")});
  fresh.vocab_size = VocabSizeOf(fresh.client.get());
  return fresh;
}

// Fills in what `outcomes` and the samples of [counted_s, end_s) say.
void Count(const std::vector<Outcome>& outcomes, const std::vector<std::vector<WorkerSample>>& told,
           double sample_s, double counted_s, double end_s, Phase* phase) {
  phase->requests = RequestsOf(told);
  phase->samples = OnGrid(told, phase->begin_s, end_s, sample_s);
  phase->balance = BalanceOf(phase->samples, counted_s, end_s);
  std::vector<double> gaps_ms;
  for (const Outcome& outcome : outcomes) {
    ++phase->asked;
    if (!outcome.status.ok()) {
      if (phase->failed++ == 0) std::fprintf(stderr, "%s\n", outcome.status.ToString().c_str());
      continue;
    }
    for (double gap : GapsMs(outcome)) gaps_ms.push_back(gap);
  }
  phase->gap_p50_ms = Percentile(gaps_ms, 0.5);
  phase->gap_p99_ms = Percentile(gaps_ms, 0.99);
}

// Tokens that arrived in [begin_s, end_s), a second.
double TokensPerSecond(const std::vector<Outcome>& outcomes, double begin_s, double end_s) {
  int64_t tokens = 0;
  for (const Outcome& outcome : outcomes) {
    tokens += std::count_if(outcome.token_s.begin(), outcome.token_s.end(),
                            [&](double at_s) { return at_s >= begin_s && at_s < end_s; });
  }
  return static_cast<double>(tokens) / (end_s - begin_s);
}

Phase RunBurst(const Options& options, const Fresh& fresh, const std::vector<LoadRequest>& asks) {
  Phase phase;
  FleetSampler sampler(*fresh.cluster, fresh.cluster->workers("decode"),
                       absl::Seconds(options.disturbance.sample_s));
  phase.begin_s = NowSeconds();
  const std::vector<Outcome> outcomes = fresh.client->SendAll(asks);
  const double end_s = NowSeconds();
  double first_end_s = end_s;
  for (const Outcome& outcome : outcomes) first_end_s = std::min(first_end_s, outcome.ended_s);
  Count(outcomes, sampler.Stop(), options.disturbance.sample_s, phase.begin_s + options.settle_s,
        first_end_s, &phase);
  phase.tokens_per_s = TokensPerSecond(outcomes, phase.begin_s, end_s);
  return phase;
}

Phase RunPoisson(const Options& options, const Fresh& fresh, const TrafficMix& mix,
                 const LoadOptions& load) {
  Phase phase;
  FleetSampler sampler(*fresh.cluster, fresh.cluster->workers("decode"),
                       absl::Seconds(options.disturbance.sample_s));
  phase.begin_s = NowSeconds();
  const std::vector<Outcome> outcomes = RunOpenLoop(fresh.client.get(), mix, load);
  const double counted_s = phase.begin_s + options.settle_s;
  const double end_s = phase.begin_s + load.duration_s;
  Count(outcomes, sampler.Stop(), options.disturbance.sample_s, counted_s, end_s, &phase);
  phase.tokens_per_s = TokensPerSecond(outcomes, counted_s, end_s);
  return phase;
}

void PrintPhase(int round, const Phase& phase) {
  const BalanceFigures& b = phase.balance;
  std::printf(
      "Round %d, %s, %s: requests by worker %s; max ÷ mean %.2f, at worst %.2f (%d samples); one "
      "idle while another is above the mean by two %.0f %%; %.0f tokens/s; inter-token p50 %.1f, "
      "p99 %.1f ms; %d of %d failed\n",
      round + 1, phase.load.c_str(), phase.policy.c_str(),
      absl::StrJoin(phase.requests, " + ").c_str(), b.max_over_mean, b.worst_max_over_mean,
      b.samples, 100 * b.idle_beside_loaded_share, phase.tokens_per_s, phase.gap_p50_ms,
      phase.gap_p99_ms, phase.failed, phase.asked);
  std::fflush(stdout);
}

// Of the figures that are numbers.
template <class FigureOf>
double Median(const std::vector<const Phase*>& phases, FigureOf figure_of) {
  std::vector<double> values;
  for (const Phase* phase : phases) {
    if (const double value = figure_of(*phase); !std::isnan(value)) values.push_back(value);
  }
  return Percentile(values, 0.5);
}

double BusiestShare(const Phase& phase) {
  const double sum = std::accumulate(phase.requests.begin(), phase.requests.end(), 0.0);
  return *std::max_element(phase.requests.begin(), phase.requests.end()) / sum;
}

// `phases`: of one load and policy, by round; `yardstick`: of the same load and rounds.
void PrintRow(const std::vector<const Phase*>& phases, const std::vector<const Phase*>& yardstick) {
  int asked = 0, failed = 0;
  std::vector<double> ratios;
  for (size_t round = 0; round < phases.size(); ++round) {
    asked += phases[round]->asked;
    failed += phases[round]->failed;
    ratios.push_back(phases[round]->tokens_per_s / yardstick[round]->tokens_per_s);
  }
  std::printf(
      "| %s | %s | %.2f | %.2f | %.2f | %.0f %% | %.0f | %.2f | %.1f | %.1f | %d of %d |\n",
      phases[0]->load.c_str(), phases[0]->policy.c_str(), Median(phases, BusiestShare),
      Median(phases, [](const Phase& p) { return p.balance.max_over_mean; }),
      Median(phases, [](const Phase& p) { return p.balance.worst_max_over_mean; }),
      100 * Median(phases, [](const Phase& p) { return p.balance.idle_beside_loaded_share; }),
      Median(phases, [](const Phase& p) { return p.tokens_per_s; }), Percentile(ratios, 0.5),
      Median(phases, [](const Phase& p) { return p.gap_p50_ms; }),
      Median(phases, [](const Phase& p) { return p.gap_p99_ms; }), failed, asked);
}

void PrintSummary(const Options& options, const std::vector<Phase>& phases) {
  std::printf(
      "\nMedians of the rounds; failed: of all.\n\n| load | policy | busiest worker's share of "
      "requests | max ÷ mean, over time | worst | one idle | tokens/s | ÷ %s's, by round | "
      "inter-token p50, ms | p99 | failed |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
      options.policies.back().c_str());
  const auto of = [&phases](const std::string& load, const std::string& policy) {
    std::vector<const Phase*> found;
    for (const Phase& phase : phases) {
      if (phase.load == load && phase.policy == policy) found.push_back(&phase);
    }
    return found;
  };
  for (const std::string load : {kBurstCold, kBurstWarm, kPoisson}) {
    for (const std::string& policy : options.policies) {
      const std::vector<const Phase*> found = of(load, policy);
      if (!found.empty()) PrintRow(found, of(load, options.policies.back()));
    }
  }
}

void WriteSvg(const Options& options, const std::vector<Chart>& charts) {
  if (options.svg.empty()) return;
  std::ofstream file(options.svg);
  file << cli::RenderSvg(charts, static_cast<int>(options.policies.size()));
  if (!file.flush()) Die(absl::UnavailableError("cannot write " + options.svg));
}

LoadOptions ArrivalsAt(const Options& options, const TrafficMix& mix) {
  const Fresh fresh = StartFresh(options, "round_robin");
  LoadOptions load;
  load.seed = options.seed;
  load.vocab_size = fresh.vocab_size;
  load.duration_s = options.calibrate_s;
  load.rate = options.rate > 0 ? options.rate
                               : options.rate_share * FindSaturation(fresh.client.get(), mix, load,
                                                                     options.max_callers);
  if (!(load.rate > 0)) Die(absl::UnavailableError("nothing was answered"));
  std::printf("Arrivals: %.2f a second.\n", load.rate);
  load.duration_s = options.load_s;
  load.timeout = [](int) { return absl::Minutes(5); };
  return load;
}

void RunLoads(const Options& options, const TrafficMix& mix) {
  const auto wanted = [&options](const char* load) {
    return std::find(options.loads.begin(), options.loads.end(), load) != options.loads.end();
  };
  LoadOptions arrivals;
  if (wanted("poisson")) arrivals = ArrivalsAt(options, mix);
  std::vector<Phase> phases;
  for (int round = 0; round < options.rounds; ++round) {
    for (const std::string& policy : options.policies) {
      const auto add = [&](Phase phase, const std::string& load) {
        phase.load = load;
        phase.policy = policy;
        PrintPhase(round, phase);
        phases.push_back(std::move(phase));
      };
      const uint64_t seed = options.seed + 1'000 * static_cast<uint64_t>(round + 1);
      if (wanted("burst")) {
        const Fresh fresh = StartFresh(options, policy);
        Random random(seed);
        std::vector<LoadRequest> asks;
        for (int i = 0; i < options.burst; ++i) {
          asks.push_back(MakeRequest(mix.Draw(&random), fresh.vocab_size, &random));
        }
        add(RunBurst(options, fresh, asks), kBurstCold);
        add(RunBurst(options, fresh, asks), kBurstWarm);
      }
      if (wanted("poisson")) {
        const Fresh fresh = StartFresh(options, policy);
        arrivals.seed = seed;
        add(RunPoisson(options, fresh, mix, arrivals), kPoisson);
      }
    }
  }
  PrintSummary(options, phases);
  std::vector<Chart> charts;
  const size_t of_a_round = phases.size() / static_cast<size_t>(options.rounds);
  for (size_t i = 0; i < of_a_round; ++i) {
    charts.push_back(SequencesChart(absl::StrCat(phases[i].load, ", ", phases[i].policy),
                                    phases[i].samples, phases[i].begin_s));
  }
  WriteSvg(options, charts);
}

void RunDisturbances(const Options& options, const TrafficMix& mix) {
  const LoadOptions arrivals = ArrivalsAt(options, mix);
  std::vector<DisturbanceResult> results;
  for (const std::string& kind : options.disturbances) {
    for (const std::string& policy : options.policies) {
      const Fresh fresh = StartFresh(options, policy);
      results.push_back(Disturb(kind, options.disturbance, mix, arrivals, fresh.client.get(),
                                fresh.cluster.get()));
      results.back().policy = policy;
    }
  }
  PrintDisturbances(results);
  WriteSvg(options, DisturbanceCharts(results));
}

int Run(const Options& options) {
  const auto mix = TrafficMix::Parse(options.mix);
  if (!mix.ok()) Die(mix.status());
  std::printf("Mix %s; %d prefill and %d decode workers; seed %llu.\n", options.mix.c_str(),
              options.cluster.prefill_workers, options.cluster.decode_workers,
              static_cast<unsigned long long>(options.seed));
  std::fflush(stdout);
  if (options.disturbances.empty()) {
    RunLoads(options, *mix);
  } else {
    RunDisturbances(options, *mix);
  }
  return 0;
}

void AddDisturbanceFlags(CLI::App* app, DisturbanceOptions* options) {
  const CLI::Range seconds(0.1, 86'400.0);
  app->add_option("--before-s", options->before_s, "Of load before a disturbance")->check(seconds);
  app->add_option("--after-s", options->after_s, "Of load after it")->check(seconds);
  app->add_option("--pulse-s", options->pulse_s, "How long pulses last")->check(seconds);
  app->add_option("--sample-s", options->sample_s, "Between two looks at a worker")
      ->check(CLI::Range(0.01, 10.0));
  app->add_option("--window-s", options->fair.window_s, "That a share is averaged over")
      ->check(seconds);
}

int Main(int argc, char** argv) {
  CLI::App app("Whether decode workers share the load, and how soon again after a disturbance");
  app.option_defaults()->always_capture_default();
  Options options;
  options.cluster.decode_workers = 2;
  AddClusterFlags(&app, &options.cluster);
  app.get_option("--model")->required();
  const CLI::Range seconds(0.1, 86'400.0);
  app.add_option("--prefill", options.cluster.prefill_workers)->check(CLI::Range(0, 64));
  app.add_option("--decode", options.cluster.decode_workers)->check(CLI::Range(1, 64));
  app.add_option("--policies", options.policies, "In turn; throughput is shown over the last one's")
      ->delimiter(',');
  app.add_option("--loads", options.loads)
      ->delimiter(',')
      ->check(CLI::IsMember({"burst", "poisson"}));
  app.add_option("--disturb", options.disturbances, "Instead of --loads")
      ->delimiter(',')
      ->check(CLI::IsMember(
          std::vector<std::string>(std::begin(kDisturbances), std::end(kDisturbances))));
  app.add_option("--mix", options.mix, "WEIGHT:PROMPT_LOW-PROMPT_HIGH:ANSWER_LOW-ANSWER_HIGH,...");
  app.add_option("--burst", options.burst, "Requests at once")->check(CLI::Range(1, 10'000));
  app.add_option("--rounds", options.rounds, "Of all policies in turn")->check(CLI::Range(1, 1000));
  app.add_option("--settle-s", options.settle_s, "Of each load; not counted")
      ->check(CLI::Range(0.0, 3'600.0));
  app.add_option("--load-s", options.load_s, "Of arrivals")->check(seconds);
  app.add_option("--rate", options.rate, "Arrivals a second; 0: --rate-share of saturation")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--rate-share", options.rate_share)->check(CLI::PositiveNumber);
  app.add_option("--calibrate-s", options.calibrate_s, "Of each closed loop")->check(seconds);
  app.add_option("--max-callers", options.max_callers, "Of the largest closed loop")
      ->check(CLI::Range(2, 1024));
  AddDisturbanceFlags(&app, &options.disturbance);
  app.add_option("--seed", options.seed);
  app.add_option("--svg", options.svg, "Also write plots here: of the first round");
  CLI11_PARSE(app, argc, argv);
  if (options.settle_s >= options.load_s) {
    std::fprintf(stderr, "decode_balance: --settle-s: not below --load-s\n");
    return 1;
  }
  return Run(options);
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) { return baton::benchmarks::Main(argc, argv); }
