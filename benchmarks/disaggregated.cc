// What does it bring to compute prompts on another worker? The same programs on the same cores: one
// prefill and one decode worker with half of the threads each, against one decode worker with all
// of them that computes the prompts itself.
//
//   disaggregated --model DIR [--threads 2] [--rounds 3] [--load-s 30] [--rate 0]
//
// First a mix of long and short prompts, arriving at the same moments in both set-ups, at a share
// of the load that the weakest of them can carry: time to first token and between tokens. Then what
// running streams feel of a long prompt that arrives: their gaps before it, and from its arrival to
// its first token. Both clusters are up all the time, and rounds alternate: only one of them works
// at a time.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/blocking_counter.h"
#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/load_report.h"
#include "benchmarks/serving/traffic.h"

namespace baton::benchmarks {
namespace {

constexpr int kClosedLoopCallers = 8;
constexpr int kStreamPromptTokens = 64;
constexpr char kDisaggregated[] = "disaggregated", kAggregated[] = "aggregated";

struct Options {
  ClusterOptions cluster;
  std::vector<std::string> setups = {kDisaggregated, kAggregated, "aggregated:256"};
  int threads = 2;
  int local_prefill_max_tokens = 1 << 20;
  int rounds = 3;
  std::string mix = "7:32-256:16-64,3:1024-2048:16-64";
  double rate = 0, rate_share = 0.6;
  double calibrate_s = 15, load_s = 30;
  int streams = 1, stream_tokens = 256, quiet_tokens = 48;
  int arrival_tokens = 2000, arrival_rounds = 5;
  uint64_t seed = 1;
};

// Of all rounds.
struct Gaps {
  std::vector<double> before_ms, during_ms;
  std::vector<double> longest_ms;  // one a round, during
  std::vector<double> ttft_ms;     // of the prompt that arrives
};

struct Setup {
  std::string name, description;
  std::unique_ptr<LocalCluster> cluster;
  std::unique_ptr<LoadGenerator> client;
  int vocab_size = 0;
  std::vector<Outcome> load;
  Gaps gaps;
};

// Of "aggregated:N" N; 0 of the other names, and -1 of what is no name.
int StepTokens(absl::string_view name) {
  if (name == kDisaggregated || name == kAggregated) return 0;
  int tokens = 0;
  const bool well_formed = absl::ConsumePrefix(&name, kAggregated) &&
                           absl::ConsumePrefix(&name, ":") && absl::SimpleAtoi(name, &tokens) &&
                           tokens > 0;
  return well_formed ? tokens : -1;
}

Setup StartSetup(const Options& options, const std::string& name) {
  ClusterOptions cluster = options.cluster;
  Setup setup;
  setup.name = name;
  if (name == kDisaggregated) {
    const std::string threads = absl::StrCat(" --threads ", options.threads / 2);
    cluster.prefill_workers = cluster.decode_workers = 1;
    AppendFlags(threads, &cluster.worker_flags);
    AppendFlags("--max-local-prefill-tokens 0", &cluster.router_flags);
    setup.description = absl::StrCat("a prefill and a decode worker,", threads, " each");
  } else {
    std::string flags = absl::StrCat(" --threads ", options.threads, " --local-prefill-max-tokens ",
                                     options.local_prefill_max_tokens);
    if (const int step_tokens = StepTokens(name); step_tokens > 0) {
      absl::StrAppend(&flags, " --max-num-batched-tokens ", step_tokens);
    }
    cluster.prefill_workers = 0;
    cluster.decode_workers = 1;
    AppendFlags(flags, &cluster.decode_flags);
    setup.description = absl::StrCat("a decode worker alone,", flags);
  }
  setup.cluster = StartCluster(cluster);
  setup.client = std::make_unique<LoadGenerator>(std::vector{setup.cluster->address("router")});
  setup.vocab_size = VocabSizeOf(setup.client.get());
  return setup;
}

// What closed loops get from the weakest set-up, times the share.
double ChooseRate(const Options& options, const TrafficMix& mix, std::vector<Setup>* setups) {
  if (options.rate > 0) return options.rate;
  double lowest = 0;
  for (Setup& setup : *setups) {
    LoadOptions load;
    load.duration_s = options.calibrate_s;
    load.seed = options.seed;
    load.vocab_size = setup.vocab_size;
    load.timeout = [](int) { return absl::Minutes(5); };
    const double begin_s = NowSeconds();
    const auto outcomes = RunClosedLoop(setup.client.get(), mix, kClosedLoopCallers, load);
    const Slo none{1e9, 1e9};
    const double goodput =
        Summarize(outcomes, none, begin_s + options.calibrate_s / 5, begin_s + options.calibrate_s)
            .goodput;
    std::printf("%s (%s): %.2f answers a second with %d callers\n", setup.name.c_str(),
                setup.description.c_str(), goodput, kClosedLoopCallers);
    std::fflush(stdout);
    if (!(goodput > 0)) Die(absl::UnavailableError(setup.name + ": nothing was answered"));
    lowest = lowest == 0 ? goodput : std::min(lowest, goodput);
  }
  return options.rate_share * lowest;
}

void RunLoad(const Options& options, const TrafficMix& mix, double rate, int round, Setup* setup) {
  LoadOptions load;
  load.rate = rate;
  load.duration_s = options.load_s;
  load.seed = options.seed + 1'000 * static_cast<uint64_t>(round + 1);
  load.vocab_size = setup->vocab_size;
  load.timeout = [](int) { return absl::Minutes(5); };
  for (Outcome& outcome : RunOpenLoop(setup->client.get(), mix, load)) {
    setup->load.push_back(std::move(outcome));
  }
}

// Streams run; once each has had its quiet tokens, a long prompt arrives.
void RunArrival(const Options& options, int round, Setup* setup) {
  Random random(options.seed + 7'919 * static_cast<uint64_t>(round + 1));
  std::vector<Outcome> streams(options.streams);
  absl::BlockingCounter quiet_over(options.streams), ended(options.streams + 1);
  for (int i = 0; i < options.streams; ++i) {
    Shape shape;
    shape.prompt_tokens = kStreamPromptTokens;
    shape.answer_tokens = options.stream_tokens;
    LoadRequest ask = MakeRequest(shape, setup->vocab_size, &random);
    ask.timeout = absl::Minutes(10);
    ask.on_tokens = [&, told = false](int tokens) mutable {
      if (tokens >= options.quiet_tokens && !std::exchange(told, true)) quiet_over.DecrementCount();
      return true;
    };
    setup->client->Send(ask, NowSeconds(), [&, i](Outcome outcome) {
      // Or nobody would ever come to say why.
      if (static_cast<int>(outcome.tokens.size()) < options.quiet_tokens) {
        Die(outcome.status.ok() ? absl::UnavailableError("a stream ended early") : outcome.status);
      }
      streams[i] = std::move(outcome);
      ended.DecrementCount();
    });
  }
  quiet_over.Wait();
  Shape shape;
  shape.prompt_tokens = options.arrival_tokens;
  shape.answer_tokens = 2;
  LoadRequest ask = MakeRequest(shape, setup->vocab_size, &random);
  ask.timeout = absl::Minutes(10);
  Outcome arrival;
  setup->client->Send(ask, NowSeconds(), [&](Outcome outcome) {
    arrival = std::move(outcome);
    ended.DecrementCount();
  });
  ended.Wait();
  if (!arrival.status.ok()) Die(arrival.status);
  const double first_s = arrival.token_s.front();
  double longest_ms = 0;
  for (const Outcome& stream : streams) {
    if (!stream.status.ok()) Die(stream.status);
    if (stream.token_s.back() < first_s) {
      Die(
          absl::OutOfRangeError("a stream ended before the prompt's first token: its tokens after "
                                "that are needed, too; raise --stream-tokens"));
    }
    for (size_t i = 1; i < stream.token_s.size(); ++i) {
      const double gap_ms = (stream.token_s[i] - stream.token_s[i - 1]) * 1e3;
      if (stream.token_s[i] <= arrival.due_s) {
        setup->gaps.before_ms.push_back(gap_ms);
      } else if (stream.token_s[i - 1] < first_s) {
        setup->gaps.during_ms.push_back(gap_ms);
        longest_ms = std::max(longest_ms, gap_ms);
      }
    }
  }
  setup->gaps.longest_ms.push_back(longest_ms);
  setup->gaps.ttft_ms.push_back(arrival.ttft_s() * 1e3);
}

void PrintLoad(const std::vector<Setup>& setups, int classes) {
  std::printf("\n| set-up | answered | failed |");
  for (int c = 0; c < classes; ++c) std::printf(" TTFT p50, prompts of kind %d | p99 |", c + 1);
  std::printf(" inter-token p50 | p99 | longest |\n|---|---|---|");
  for (int c = 0; c < classes; ++c) std::printf("---|---|");
  std::printf("---|---|---|\n");
  for (const Setup& setup : setups) {
    std::map<int, std::vector<double>> ttft_ms;
    std::vector<double> gap_ms;
    int answered = 0;
    for (const Outcome& outcome : setup.load) {
      if (FateOf(outcome) != Fate::kAnswered) continue;
      ++answered;
      ttft_ms[outcome.kind].push_back(outcome.ttft_s() * 1e3);
      for (double gap : GapsMs(outcome)) gap_ms.push_back(gap);
    }
    std::printf("| %s | %d | %d |", setup.name.c_str(), answered,
                static_cast<int>(setup.load.size()) - answered);
    for (int c = 0; c < classes; ++c) {
      std::printf(" %.0f | %.0f |", Percentile(ttft_ms[c], 0.5), Percentile(ttft_ms[c], 0.99));
    }
    std::printf(" %.1f | %.1f | %.1f |\n", Percentile(gap_ms, 0.5), Percentile(gap_ms, 0.99),
                Percentile(gap_ms, 1));
    std::map<std::string, int> failures;
    for (const Outcome& outcome : setup.load) {
      if (!outcome.status.ok()) ++failures[outcome.status.ToString()];
    }
    for (const auto& [failure, count] : failures) {
      std::fprintf(stderr, "%s: %d x %s\n", setup.name.c_str(), count, failure.c_str());
    }
  }
}

void PrintGaps(const Options& options, const std::vector<Setup>& setups) {
  std::printf(
      "\n%d stream(s) running, then a prompt of %d tokens; %d rounds:\n\n"
      "| set-up | gap before it, p50 | p99 | gap until its first token, p50 | p99 | longest a "
      "round, "
      "median | longest | its TTFT, median |\n|---|---|---|---|---|---|---|---|\n",
      options.streams, options.arrival_tokens, options.arrival_rounds);
  for (const Setup& setup : setups) {
    const Gaps& g = setup.gaps;
    std::printf("| %s | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.0f |\n", setup.name.c_str(),
                Percentile(g.before_ms, 0.5), Percentile(g.before_ms, 0.99),
                Percentile(g.during_ms, 0.5), Percentile(g.during_ms, 0.99),
                Percentile(g.longest_ms, 0.5), Percentile(g.longest_ms, 1),
                Percentile(g.ttft_ms, 0.5));
  }
  std::printf("\nTimes in milliseconds.\n");
}

int Run(const Options& options) {
  const auto mix = TrafficMix::Parse(options.mix);
  if (!mix.ok()) Die(mix.status());
  std::vector<Setup> setups;
  for (const std::string& name : options.setups) setups.push_back(StartSetup(options, name));
  const double rate = ChooseRate(options, *mix, &setups);
  std::printf("Mix %s at %.2f requests a second, %d rounds of %g s each; seed %llu\n",
              options.mix.c_str(), rate, options.rounds, options.load_s,
              static_cast<unsigned long long>(options.seed));
  std::fflush(stdout);
  for (int round = 0; round < options.rounds; ++round) {
    for (Setup& setup : setups) RunLoad(options, *mix, rate, round, &setup);
    std::reverse(setups.begin(), setups.end());  // neither is always first
  }
  for (int round = 0; round < options.arrival_rounds; ++round) {
    for (Setup& setup : setups) RunArrival(options, round, &setup);
    std::reverse(setups.begin(), setups.end());
  }
  std::sort(setups.begin(), setups.end(),
            [](const Setup& a, const Setup& b) { return a.name < b.name; });
  PrintLoad(setups, mix->classes());
  PrintGaps(options, setups);
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("Prompts computed on another worker, against one worker that does it all");
  app.option_defaults()->always_capture_default();
  Options options;
  options.cluster.worker_flags = {"--kv-cache-memory", "512MB"};
  AddClusterFlags(&app, &options.cluster);
  app.get_option("--model")->required();
  app.add_option("--setups", options.setups,
                 "disaggregated, aggregated, aggregated:MAX_NUM_BATCHED_TOKENS")
      ->delimiter(',')
      ->check([](const std::string& name) {
        return StepTokens(name) < 0 ? "no such set-up: " + name : std::string();
      });
  app.add_option("--threads", options.threads, "Of each set-up: an even number")
      ->check(CLI::Range(2, 1024));
  app.add_option("--local-prefill-max-tokens", options.local_prefill_max_tokens,
                 "Of the decode worker that is alone")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--rounds", options.rounds, "Of the mix")->check(CLI::Range(0, 1000));
  app.add_option("--mix", options.mix, "WEIGHT:PROMPT_LOW-PROMPT_HIGH:ANSWER_LOW-ANSWER_HIGH,...");
  app.add_option("--rate", options.rate, "Arrivals a second; 0: --rate-share of saturation")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--rate-share", options.rate_share)->check(CLI::Range(0.01, 10.0));
  const CLI::Range seconds(0.1, 86'400.0);
  app.add_option("--calibrate-s", options.calibrate_s, "Of each closed loop")->check(seconds);
  app.add_option("--load-s", options.load_s, "Of each round of the mix")->check(seconds);
  app.add_option("--streams", options.streams, "That run when the long prompt arrives")
      ->check(CLI::Range(1, 256));
  app.add_option("--stream-tokens", options.stream_tokens)->check(CLI::Range(2, 1 << 20));
  app.add_option("--quiet-tokens", options.quiet_tokens, "Of a stream before the prompt arrives")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--arrival-tokens", options.arrival_tokens, "Of the long prompt")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--arrival-rounds", options.arrival_rounds)->check(CLI::Range(0, 1000));
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  if (options.threads % 2 != 0 || options.quiet_tokens >= options.stream_tokens) {
    std::fprintf(stderr,
                 "disaggregated: expected an even --threads, and fewer --quiet-tokens than "
                 "--stream-tokens\n");
    return 1;
  }
  return Run(options);
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) { return baton::benchmarks::Main(argc, argv); }
