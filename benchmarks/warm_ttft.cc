// What does a prompt cost on one machine, cold and with a warm prefix, by the way that KV moves?
// Time to first token of prompts that no worker has seen, and of prompts whose first three quarters
// are cached on the prefill worker; and the wall time of a burst of prompts. Of a pair over gRPC, a
// pair over shared memory, and a decode worker alone, which moves no KV; and, with --setups priced,
// of a pair whose router decides where each prompt is computed.
//
//   warm_ttft --model DIR [--threads 2] [--prompt-tokens 1024] [--rounds 9] [--burst 8]
//
// All clusters are up all the time, and rounds alternate: only one of them works at a time. All
// workers have all threads: of a pair only one computes at a time, but for the burst.
// The goal: warm / cold <= 1.1 x the share of the prompt still to compute.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/load_report.h"
#include "benchmarks/serving/traffic.h"

namespace baton::benchmarks {
namespace {

struct Setup {
  std::string name;
  std::unique_ptr<LocalCluster> cluster;
  std::unique_ptr<LoadGenerator> client;
  std::vector<double> cold, warm, share, ratio, burst;
};

Setup Start(const std::string& name, const ClusterOptions& options) {
  Setup setup;
  setup.name = name;
  ClusterOptions cluster = options;
  if (name == "alone") {
    cluster.prefill_workers = 0;
    AppendFlags("--local-prefill-max-tokens 1048576", &cluster.decode_flags);
  } else if (name != "priced") {
    AppendFlags("--max-local-prefill-tokens 0", &cluster.router_flags);
    // A decode worker that computes the last tokens of a warm prompt would hide the transfer.
    AppendFlags("--local-prefill-max-tokens 0", &cluster.decode_flags);
    AppendFlags(absl::StrCat("--kv-transport ", name), &cluster.worker_flags);
  }
  setup.cluster = StartCluster(cluster);
  setup.client =
      std::make_unique<LoadGenerator>(std::vector<std::string>{setup.cluster->address("router")});
  return setup;
}

LoadRequest Ask(const std::vector<int32_t>& prompt, int answer_tokens) {
  LoadRequest request = MakeRequest(prompt, answer_tokens);
  request.timeout = absl::Minutes(5);
  return request;
}

Outcome FirstTokens(Setup& setup, const std::vector<int32_t>& prompt) {
  Outcome outcome = setup.client->SendAndWait(Ask(prompt, 2));
  if (!outcome.status.ok()) Die(outcome.status);
  return outcome;
}

// Seconds until all have their whole answers.
double Burst(Setup& setup, const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<LoadRequest> requests;
  for (const std::vector<int32_t>& prompt : prompts) requests.push_back(Ask(prompt, 16));
  double wall = 0;
  for (const Outcome& outcome : setup.client->SendAll(requests)) {
    if (!outcome.status.ok()) Die(outcome.status);
    wall = std::max(wall, outcome.elapsed_s());
  }
  return wall;
}

double Median(const std::vector<double>& values) { return Percentile(values, 0.5); }

int Main(int argc, char** argv) {
  CLI::App app("Warm against cold time to first token, by the way that KV moves");
  ClusterOptions cluster;
  std::vector<std::string> setups = {"grpc", "shm", "alone"};
  int threads = 2, prompt_tokens = 1024, rounds = 9, burst = 8;
  AddClusterFlags(&app, &cluster);
  app.add_option("--setups", setups, "Of grpc, shm, alone, priced")->delimiter(',');
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024));
  app.add_option("--prompt-tokens", prompt_tokens)->check(CLI::Range(64, 1 << 20));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--burst", burst, "Prompts at once")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  AppendFlags(absl::StrCat("--threads ", threads), &cluster.worker_flags);
  std::vector<Setup> all;
  for (const std::string& name : setups) all.push_back(Start(name, cluster));
  const int vocabulary = VocabSizeOf(all[0].client.get());
  std::mt19937 random(std::random_device{}());
  const auto tokens = [&](int count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocabulary);
    return ids;
  };
  const int shared = prompt_tokens * 3 / 4 / 16 * 16;
  for (int round = 0; round <= rounds; ++round) {
    for (Setup& setup : all) {
      std::vector<int32_t> prompt = tokens(prompt_tokens);
      const Outcome cold = FirstTokens(setup, prompt);
      const std::vector<int32_t> tail = tokens(prompt_tokens - shared);
      std::copy(tail.begin(), tail.end(), prompt.begin() + shared);
      const Outcome warm = FirstTokens(setup, prompt);
      std::vector<std::vector<int32_t>> prompts;
      for (int i = 0; i < burst; ++i) prompts.push_back(tokens(prompt_tokens));
      const double wall = Burst(setup, prompts);
      if (round == 0) continue;  // warms up connections, code and clocks; the pool is mapped
      setup.cold.push_back(cold.ttft_s() * 1e3);
      setup.warm.push_back(warm.ttft_s() * 1e3);
      setup.share.push_back(1.0 -
                            static_cast<double>(warm.usage.cached_prompt_tokens()) / prompt_tokens);
      setup.ratio.push_back(warm.ttft_s() / cold.ttft_s());
      setup.burst.push_back(wall * 1e3);
    }
  }
  std::printf("Prompts of %d tokens, %d shared, bursts of %d; medians of %d rounds.\n\n",
              prompt_tokens, shared, burst, rounds);
  std::printf(
      "| KV | TTFT cold, ms | TTFT warm, ms | warm ÷ cold | share to compute | ratio ÷ share | "
      "burst, ms |\n|---|---|---|---|---|---|---|\n");
  for (const Setup& setup : all) {
    std::printf("| %s | %.1f | %.1f | %.3f | %.3f | %.2f | %.0f |\n", setup.name.c_str(),
                Median(setup.cold), Median(setup.warm), Median(setup.ratio), Median(setup.share),
                Median(setup.ratio) / Median(setup.share), Median(setup.burst));
  }
  return 0;
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) { return baton::benchmarks::Main(argc, argv); }
