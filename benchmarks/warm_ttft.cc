// What does a warm prefix save? Time to first token through a running cluster, for prompts whose
// first three quarters are cached on the prefill worker, against prompts that nobody has seen.
//
//   warm_ttft --address HOST:PORT [--prompt-tokens 1024] [--rounds 9]
//
// The goal: warm / cold <= 1.1 x the share of the prompt still to compute.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/load_report.h"
#include "benchmarks/serving/traffic.h"

namespace baton::benchmarks {
namespace {

Outcome FirstTokens(LoadGenerator* generator, const std::vector<int32_t>& prompt) {
  LoadRequest request = MakeRequest(prompt, 2);
  request.timeout = absl::Minutes(5);
  Outcome outcome = generator->SendAndWait(request);
  if (!outcome.status.ok()) Die(outcome.status);
  return outcome;
}

double Median(const std::vector<double>& values) { return Percentile(values, 0.5); }

int Main(int argc, char** argv) {
  CLI::App app("Warm against cold time to first token");
  std::string address;
  int prompt_tokens = 1024, rounds = 9, vocabulary = 1000;
  app.add_option("--address", address, "router")->required();
  app.add_option("--prompt-tokens", prompt_tokens)->check(CLI::Range(64, 1 << 20));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--vocabulary", vocabulary, "draw token ids below this")
      ->check(CLI::Range(1, 1 << 20));
  CLI11_PARSE(app, argc, argv);
  std::mt19937 random(std::random_device{}());
  const auto tokens = [&](int count) {
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocabulary);
    return ids;
  };
  LoadGenerator client({address});
  FirstTokens(&client, tokens(prompt_tokens));  // warm-up: connections, code, clocks
  const int shared = prompt_tokens * 3 / 4 / 16 * 16;
  std::vector<double> cold, warm, share, ratio;
  for (int round = 0; round < rounds; ++round) {
    std::vector<int32_t> prompt = tokens(prompt_tokens);
    const Outcome first = FirstTokens(&client, prompt);
    const std::vector<int32_t> tail = tokens(prompt_tokens - shared);
    std::copy(tail.begin(), tail.end(), prompt.begin() + shared);
    const Outcome second = FirstTokens(&client, prompt);
    cold.push_back(first.ttft_s() * 1e3);
    warm.push_back(second.ttft_s() * 1e3);
    share.push_back(1.0 - static_cast<double>(second.usage.cached_prompt_tokens()) / prompt_tokens);
    ratio.push_back(second.ttft_s() / first.ttft_s());
  }
  std::printf("prompt %d tokens, %d shared, medians of %d rounds\n", prompt_tokens, shared, rounds);
  std::printf("%-22s %10.2f ms\n%-22s %10.2f ms\n", "TTFT cold", Median(cold), "TTFT warm",
              Median(warm));
  std::printf("%-22s %10.3f\n%-22s %10.3f\n%-22s %10.3f (goal <= 1.1)\n", "warm / cold",
              Median(ratio), "share to compute", Median(share), "ratio / share",
              Median(ratio) / Median(share));
  return 0;
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) { return baton::benchmarks::Main(argc, argv); }
