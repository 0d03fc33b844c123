// Does `baton plan --cluster` predict what a cluster does? A cluster of real processes on loopback,
// whose workers compute on paced devices (tests/testing/paced_backend.h), gets a load in an open
// loop; the planner's simulation gets the same requests at the same times, and the costs that the
// cluster's router tells. Both are printed side by side.
//
//   planner --model models/demo [--prefill 2] [--decode 2] [--loads poisson,sessions,bursts]
//
// The model computes in earnest, beside the device's modelled time, so its context is made longer
// than it was trained for: the text means nothing. Decode workers compute no prompts for other
// workers, as in the simulation; --max-local-prefill-tokens says which they compute for themselves.
// Each load has a cluster that has just started.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/load_report.h"
#include "benchmarks/serving/paced_programs.h"
#include "benchmarks/serving/traffic.h"
#include "cli/cluster_costs.h"
#include "cli/plan_cluster.h"
#include "common/base/log.h"
#include "common/base/splitmix64.h"
#include "simulator/load_generator.h"
#include "tests/testing/model_dir.h"

namespace baton::benchmarks {
namespace {

using ::baton::simulator::kSimBlockTokens;
using ::baton::simulator::SimRequest;
using ::baton::simulator::Trace;

constexpr int kMaxPositions = 16'384;
constexpr double kFastLink_gbits = 100;  // loopback: what a prompt's KV takes is not measured here

struct Options {
  ClusterOptions cluster;
  std::vector<std::string> loads = {"poisson", "sessions", "bursts"};
  std::string costs;  // instead of what the router tells
  std::string prefill_cost = "5000,200,0.005", decode_cost = "20000,300,0.5";
  int requests = 240;
  double rate = 2;
  int burst = 12;
  int max_local_prefill_tokens = 16'384;
  int rounds = 1;
  uint64_t seed = 1;
};

// A directory of the model whose config.json allows longer sequences.
std::unique_ptr<testing::ModelDir> LongerModel(const std::string& model_dir) {
  auto dir = std::make_unique<testing::ModelDir>();
  for (const auto& entry : std::filesystem::directory_iterator(model_dir)) {
    const std::string name = entry.path().filename();
    if (name == "config.json" || !entry.is_regular_file()) continue;
    std::filesystem::create_symlink(std::filesystem::absolute(entry.path()),
                                    std::filesystem::path(dir->path()) / name);
  }
  std::ifstream file(std::filesystem::path(model_dir) / "config.json");
  nlohmann::json config = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) Die(absl::NotFoundError(model_dir + " has no config.json"));
  config["max_position_embeddings"] = kMaxPositions;
  dir->Write("config.json", config.dump());
  return dir;
}

Trace MakeLoad(const Options& options, const std::string& load) {
  simulator::LoadShape shape;
  shape.requests = options.requests;
  shape.mean_gap_s = 1 / options.rate;
  shape.seed = options.seed;
  if (load == "poisson") return simulator::PoissonLoad(shape);
  if (load == "bursts") return simulator::BurstLoad(shape, options.burst);
  if (load == "sessions") {
    Trace trace = simulator::SessionLoad(shape);
    // What the cluster answers is not what the next turn's prompt says it did.
    for (SimRequest& request : trace.requests) request.answer_blocks.clear();
    return trace;
  }
  absl::StatusOr<Trace> trace = simulator::ReadMooncakeTrace(load, load);
  if (!trace.ok()) Die(trace.status());
  return *std::move(trace);
}

// Equal blocks have equal tokens; what is behind them is the request's own.
std::vector<int32_t> TokensOf(const SimRequest& request, size_t number, int vocab_size) {
  std::vector<int32_t> tokens;
  tokens.reserve(request.prompt_tokens);
  // Not those at the end of the vocabulary, some of which are special.
  const uint64_t usable = vocab_size - 16;
  for (const int32_t block : request.blocks) {
    for (uint64_t i = 0; i < kSimBlockTokens; ++i) {
      tokens.push_back(static_cast<int32_t>(SplitMix64(block * 4096ull + i) % usable));
    }
  }
  while (static_cast<int>(tokens.size()) < request.prompt_tokens) {
    tokens.push_back(static_cast<int32_t>(
        SplitMix64((number + 1) * 1'000'003ull + tokens.size() + (1ull << 40)) % usable));
  }
  return tokens;
}

struct Figures {
  double ttft_p50_ms = 0, ttft_p99_ms = 0, gap_p50_ms = 0, gap_p99_ms = 0;
};

Figures FiguresOf(const std::vector<Outcome>& outcomes, double* lag_p99_ms) {
  std::vector<double> first_ms, gaps_ms, lag_ms;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.status.ok()) Die(outcome.status);
    first_ms.push_back(outcome.ttft_s() * 1e3);
    lag_ms.push_back((outcome.sent_s - outcome.due_s) * 1e3);
    for (double gap : GapsMs(outcome)) gaps_ms.push_back(gap);
  }
  *lag_p99_ms = Percentile(lag_ms, 0.99);
  return {Percentile(first_ms, 0.5), Percentile(first_ms, 0.99), Percentile(gaps_ms, 0.5),
          Percentile(gaps_ms, 0.99)};
}

// Until routers know what steps cost.
void WarmUp(LoadGenerator* generator, int vocab_size, int workers) {
  std::vector<LoadRequest> asks;
  for (int i = 0; i < 16 * workers; ++i) {
    const SimRequest request = {0, 64 + 32 * (i % 16), {}, 8, {}};
    asks.push_back(MakeRequest(TokensOf(request, 1'000'000 + i, vocab_size), 8));
  }
  for (size_t i = 0; i < asks.size(); i += 4) {
    const size_t end = std::min(asks.size(), i + 4);
    for (const Outcome& outcome : generator->SendAll({asks.begin() + i, asks.begin() + end})) {
      if (!outcome.status.ok()) Die(outcome.status);
    }
  }
}

void Compare(const Options& options, const std::string& load) {
  const Trace trace = MakeLoad(options, load);
  std::unique_ptr<LocalCluster> cluster = StartCluster(options.cluster);
  LoadGenerator generator({cluster->address("router")});
  const int vocab_size = VocabSizeOf(&generator);
  WarmUp(&generator, vocab_size,
         std::max(options.cluster.prefill_workers, options.cluster.decode_workers));
  size_t next = 0;
  const std::vector<Outcome> outcomes =
      generator.RunOpenLoop([&]() -> std::optional<LoadGenerator::Arrival> {
        if (next == trace.requests.size()) return std::nullopt;
        const SimRequest& request = trace.requests[next];
        LoadGenerator::Arrival arrival;
        arrival.at_s = static_cast<double>(request.at_us) * 1e-6;
        arrival.request =
            MakeRequest(TokensOf(request, next, vocab_size), std::max(request.output_tokens, 2));
        ++next;
        return arrival;
      });
  double lag_p99_ms = 0;
  const Figures measured = FiguresOf(outcomes, &lag_p99_ms);
  const absl::StatusOr<cli::ClusterCosts> costs =
      options.costs.empty() ? cli::FetchCosts(cluster->address("router"), {}, absl::Seconds(30))
                            : cli::ReadCosts(options.costs);
  if (!costs.ok()) Die(costs.status());
  cluster.reset();
  cli::ClusterPlanOptions plan;
  plan.link_gbits = kFastLink_gbits;
  plan.max_local_prefill_tokens = options.max_local_prefill_tokens;
  plan.slo_ttft_ms = plan.slo_inter_token_ms = 1e6;
  const simulator::CellResult predicted =
      simulator::SimulateCluster(trace, cli::QuestionOf(plan, *costs),
                                 options.cluster.prefill_workers, options.cluster.decode_workers)
          .result;
  const auto row = [&](const char* what, double predicted_s, double measured_ms) {
    std::printf("| %s | %s | %.1f | %.1f | %+.0f %% |\n", trace.name.c_str(), what,
                predicted_s * 1e3, measured_ms, 100 * (predicted_s * 1e3 / measured_ms - 1));
  };
  row("TTFT p50", predicted.p50_ttft_s, measured.ttft_p50_ms);
  row("TTFT p99", predicted.p99_ttft_s, measured.ttft_p99_ms);
  row("inter-token p50", predicted.decode.p50_gap_s, measured.gap_p50_ms);
  row("inter-token p99", predicted.decode.p99_gap_s, measured.gap_p99_ms);
  std::fflush(stdout);
  std::fprintf(stderr,
               "%s: %zu requests; 99 %% sent within %.1f ms; prefill busy %.0f %%, decode slots "
               "%.0f %%; costs: prefill %.0f + %.1f n + %.4f pairs us, decode %.0f + "
               "%.1f n + %.3f c us\n",
               trace.name.c_str(), outcomes.size(), lag_p99_ms, 100 * predicted.prefill_busy,
               100 * predicted.decode.slots_used, costs->prefill.fixed_us, costs->prefill.token_us,
               costs->prefill.pair_us, costs->decode.fixed_us, costs->decode.sequence_us,
               costs->decode.context_token_us);
}

int Main(int argc, char** argv) {
  Options options;
  options.cluster.prefill_workers = options.cluster.decode_workers = 2;
  AppendFlags("--local-prefill-max-tokens 0 --no-serve-prefill", &options.cluster.decode_flags);
  AppendFlags("--num-blocks 16384", &options.cluster.worker_flags);
  CLI::App app("Predictions of baton plan --cluster beside a cluster of paced workers");
  app.option_defaults()->always_capture_default();
  AddClusterFlags(&app, &options.cluster);
  app.get_option("--model")->required();
  app.add_option("--prefill", options.cluster.prefill_workers)->check(CLI::Range(0, 32));
  app.add_option("--decode", options.cluster.decode_workers)->check(CLI::Range(1, 32));
  app.add_option("--loads", options.loads, "poisson, sessions, bursts, or files of traces")
      ->delimiter(',');
  app.add_option("--prefill-cost", options.prefill_cost,
                 "Of the paced devices, us: step,token,pair");
  app.add_option("--decode-cost", options.decode_cost,
                 "Of the paced devices, us: step,sequence,token of context");
  app.add_option("--costs", options.costs, "A file of --save-costs, not what the router tells");
  app.add_option("--requests", options.requests, "Of a load")->check(CLI::Range(1, 1'000'000));
  app.add_option("--rate", options.rate, "Requests a second")->check(CLI::Range(0.01, 1000.0));
  app.add_option("--burst", options.burst, "Requests that come at once")
      ->check(CLI::Range(1, 1000));
  app.add_option("--max-local-prefill-tokens", options.max_local_prefill_tokens, "The router's");
  app.add_option("--rounds", options.rounds, "Each load so often")->check(CLI::Range(1, 100));
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  SetLogLevel(LogLevel::kError);  // of simulated workers that join
  const auto model = LongerModel(options.cluster.model_dir);
  const auto programs = PacedPrograms(options.cluster.bin_dir, "baton-paced");
  options.cluster.model_dir = model->path();
  options.cluster.bin_dir = programs->path();
  AppendFlags(absl::StrCat("--max-local-prefill-tokens ", options.max_local_prefill_tokens),
              &options.cluster.router_flags);
  AppendFlags(absl::StrCat("--device-prefill-cost ", options.prefill_cost, " --device-decode-cost ",
                           options.decode_cost),
              &options.cluster.worker_flags);
  std::printf(
      "%d prefill and %d decode workers; devices take %s us for a step, a prompt token and a pair "
      "of tokens, and %s us for a step, a sequence and a token of context.\n\n"
      "| load | figure | predicted ms | measured ms | difference |\n|---|---|---|---|---|\n",
      options.cluster.prefill_workers, options.cluster.decode_workers, options.prefill_cost.c_str(),
      options.decode_cost.c_str());
  for (int round = 0; round < options.rounds; ++round) {
    for (const std::string& load : options.loads) Compare(options, load);
  }
  return 0;
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) { return baton::benchmarks::Main(argc, argv); }
