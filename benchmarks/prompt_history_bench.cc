// What does a request pay for the explanation of cache misses in the router?
//
//   build/cpu-release/bin/prompt_history_bench [--benchmark_filter=…]
//
// The goal: at most 20 µs a request. Each iteration is what a request pays, whether it asks for an
// explanation or not: a comparison with the 64 prompts that are kept of its tenant, and its copy.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "router/request/prompt_history.h"

namespace baton::router {
namespace {

constexpr int kBlockTokens = 16;

struct BenchPrompt {
  std::vector<int32_t> tokens;
  std::vector<kv::PrefixKey> keys;

  explicit BenchPrompt(std::vector<int32_t> ids)
      : tokens(std::move(ids)), keys(kv::PrefixKeys(1, tokens, kBlockTokens)) {}
  PromptChain chain() const { return {"tenant", 1, kBlockTokens, tokens, keys}; }
};

std::vector<int32_t> RandomTokens(int count, std::mt19937& random) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 32'000);
  return tokens;
}

// Prompts of state.range(0) tokens whose common beginning is state.range(1) percent of them.
void BM_Request(benchmark::State& state) {
  std::mt19937 random(1);
  const int size = static_cast<int>(state.range(0));
  const int common = size * static_cast<int>(state.range(1)) / 100;
  const std::vector<int32_t> beginning = RandomTokens(common, random);
  std::vector<BenchPrompt> prompts;
  for (int i = 0; i < 256; ++i) {
    std::vector<int32_t> tokens = beginning;
    const std::vector<int32_t> rest = RandomTokens(size - common, random);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    prompts.emplace_back(std::move(tokens));
  }
  PromptHistory history(int64_t{1} << 30);
  for (const BenchPrompt& prompt : prompts) history.Add(prompt.chain(), "an id of a request");
  size_t next = 0;
  for (auto _ : state) {
    const PromptChain chain = prompts[next++ % prompts.size()].chain();
    benchmark::DoNotOptimize(history.Explain(chain, common / kBlockTokens * kBlockTokens));
    history.Add(chain, "an id of a request");
  }
}
BENCHMARK(BM_Request)
    ->ArgNames({"tokens", "common%"})
    ->ArgsProduct({{512, 2048, 8192, 32'768}, {0, 50, 95}})
    ->Unit(benchmark::kMicrosecond);

// The rest of a timestamp's prompt is found again.
void BM_ChangedInTheMiddle(benchmark::State& state) {
  std::mt19937 random(1);
  const int size = static_cast<int>(state.range(0));
  const std::vector<int32_t> text = RandomTokens(size, random);
  std::vector<BenchPrompt> prompts;
  for (int i = 0; i < 256; ++i) {
    std::vector<int32_t> tokens = text;
    for (int digit = 0; digit < 20; ++digit) {
      tokens[size / 2 + digit] = static_cast<int32_t>(random() % 32'000);
    }
    prompts.emplace_back(std::move(tokens));
  }
  PromptHistory history(int64_t{1} << 30);
  for (const BenchPrompt& prompt : prompts) history.Add(prompt.chain(), "an id of a request");
  size_t next = 0;
  for (auto _ : state) {
    const PromptChain chain = prompts[next++ % prompts.size()].chain();
    benchmark::DoNotOptimize(history.Explain(chain, size / 2 / kBlockTokens * kBlockTokens));
    history.Add(chain, "an id of a request");
  }
}
BENCHMARK(BM_ChangedInTheMiddle)
    ->ArgName("tokens")
    ->Arg(512)
    ->Arg(2048)
    ->Arg(8192)
    ->Arg(32'768)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace baton::router

BENCHMARK_MAIN();
