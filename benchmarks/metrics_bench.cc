// What do the metrics cost a decode step, and a token in the router?
//
//   build/cpu-release/bin/metrics_bench [--benchmark_filter=…]
//
// The goal: at most 0.5 % of a decode step and of the router's work for a token.
#include <benchmark/benchmark.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <sstream>

#include "decode_worker/metrics.h"
#include "common/prefill/metrics.h"
#include "router/metrics.h"

namespace baton {
namespace {

worker::WorkerLoad Load(int sequences) {
  worker::WorkerLoad load;
  load.running = sequences;
  load.counts = {.total = 1024, .free = 512, .active = 256, .cached = 256, .held = 0};
  load.context_tokens = 1000 * sequences;
  return load;
}

// All that a step of `state.range(0)` sequences reports, and the load that the loop publishes then.
void BM_DecodeStep(benchmark::State& state) {
  prometheus::Registry registry;
  decode_worker::DecodeMetrics metrics(registry, "model");
  const int sequences = static_cast<int>(state.range(0));
  const worker::WorkerLoad load = Load(sequences);
  for (auto _ : state) {
    metrics.Stepped(absl::Milliseconds(7), sequences);
    metrics.PrefilledHere(0);
    for (int i = 0; i < sequences; ++i) metrics.Generated(1);
    metrics.SetLoad(load);
  }
}
BENCHMARK(BM_DecodeStep)->Arg(1)->Arg(16)->Arg(64)->Arg(256);

// A prompt: admission, one step, its KV in 24 frames.
void BM_Prefill(benchmark::State& state) {
  prometheus::Registry registry;
  prefill::PrefillMetrics metrics(registry, "model");
  const worker::WorkerLoad load = Load(1);
  prefill::PrefillJob job;
  job.tokens.resize(1000);
  for (auto _ : state) {
    metrics.jobs().Started(job);
    metrics.jobs().Computed(absl::Milliseconds(70));
    for (int frame = 0; frame < 24; ++frame) metrics.jobs().BytesSent(1 << 20, transfer::Plane::kGrpc);
    metrics.jobs().Sent(absl::Milliseconds(3), 24 << 20, transfer::Plane::kGrpc);
    metrics.SetLoad(load);
  }
}
BENCHMARK(BM_Prefill);

router::RouterMetrics& Router() {
  static auto* const registry = new prometheus::Registry();
  static auto* const metrics = new router::RouterMetrics(registry, "model");
  return *metrics;
}

// As GenerateCall: gaps are added to the histogram 64 at a time.
void BM_RouterToken(benchmark::State& state) {
  router::RouterMetrics& metrics = Router();
  router::RouterMetrics::TokenGaps gaps;
  for (auto _ : state) {
    gaps.Add(absl::Milliseconds(7), 1);
    if (gaps.count() >= 64) metrics.NextTokens(&gaps);
  }
}
BENCHMARK(BM_RouterToken)->ThreadRange(1, 2)->UseRealTime();

// What a request reports beside its tokens.
void BM_RouterRequest(benchmark::State& state) {
  router::RouterMetrics& metrics = Router();
  router::RouterMetrics::RequestEnd end;
  end.finish_reason = v1::FINISH_REASON_STOP;
  end.usage.set_prompt_tokens(1000);
  end.usage.set_generated_tokens(100);
  end.longest_choice_tokens = 100;
  end.decode_duration = absl::Milliseconds(700);
  for (auto _ : state) {
    metrics.SetInflight(1, 0, 1);
    metrics.SetInflight(1, 1000, 0);
    metrics.Routed("prefix", "priced");
    metrics.Dispatched(absl::Milliseconds(1), v1::PRIORITY_NORMAL);
    metrics.FirstToken(absl::Milliseconds(80));
    metrics.Predicted(900, 900, absl::Milliseconds(70), absl::Milliseconds(80));
    metrics.SecondToken(absl::Milliseconds(9));
    metrics.RequestEnded(end);
    metrics.SetInflight(0, 0, 0);
  }
}
BENCHMARK(BM_RouterRequest)->ThreadRange(1, 2)->UseRealTime();

// The /metrics of a decode worker, as text.
void BM_Scrape(benchmark::State& state) {
  prometheus::Registry registry;
  const decode_worker::DecodeMetrics metrics(registry, "model");
  for (auto _ : state) {
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, registry.Collect());
    benchmark::DoNotOptimize(text.str().size());
  }
}
BENCHMARK(BM_Scrape)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace baton

BENCHMARK_MAIN();
