// What does a routing decision cost, and how fast can workers tell what they have cached? 1,000
// workers, 10 M blocks indexed: the index alone, and whole decisions through the router's own
// RoutePlanner, by 1 to 4 threads.
//
//   build/cpu-release/bin/router_bench [--workers=1000] [--blocks=10000000] [--benchmark_filter=…]
//
// The goals: 10 µs a decision on one core, 1 M blocks of changes a second; bytes per indexed block
// are printed beside.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "router/routing/priced_policy.h"
#include "router/routing/routed_fleet.h"

namespace baton::router {
namespace {

int worker_count = 1000;
int64_t block_count = 10'000'000;

// Agent-like: a third of all chains begin with one of a few system prompts that most workers have;
// each goes on with documents that some have, and with a session that one or two have.
class Fleet {
 public:
  static constexpr int kPromptBlocks = 750;  // 12,000 tokens

  static Fleet& The() {
    static Fleet fleet;
    return fleet;
  }

  uint64_t Key(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t x = a * 0x9E3779B97F4A7C15u + b * 0xC2B2AE3D27D4EB4Fu + c * 0x165667B19E3779F9u + 1;
    x = (x ^ x >> 31) * 0xD6E8FEB86659FD93u;
    return x ^ x >> 29;
  }

  // System prompt, document, session: the chain's first 200, next 250 and last blocks.
  std::vector<kv::PrefixKey> Chain(uint64_t system, uint64_t document, uint64_t session, int size) {
    std::vector<kv::PrefixKey> chain;
    for (int i = 0; i < size; ++i) {
      chain.push_back(i < 200   ? Key(1, system, i)
                      : i < 450 ? Key(2, system * 1'000'003 + document, i)
                                : Key(3, session, i));
    }
    return chain;
  }

  router::RoutedFleet& routed() { return *routed_; }
  PrefixIndex& index() { return *index_; }
  const std::vector<std::vector<kv::PrefixKey>>& prompts() const { return prompts_; }
  int64_t indexed() const { return indexed_; }
  // Each decode worker tells of links to 32 prefill workers, one in eight of them slow.
  void HearLinks() {
    for (int worker = worker_count; worker < routed_->roster.worker_count(); ++worker) {
      internal::v1::WatchResponse event;
      event.mutable_load()->set_free_blocks(1 << 19);
      for (int i = 0; i < 32; ++i) {
        internal::v1::LinkRate& link = *event.mutable_load()->add_links();
        link.set_worker_id(absl::StrCat("w", (worker * 101 + i * 31) % worker_count));
        link.set_epoch(1);
        link.set_bytes_per_second(i % 8 == 0 ? 1.25e8 : 1.25e9);
      }
      BATON_CHECK(routed_->roster.OnEvent(worker, event).ok());
    }
  }
  // All workers tell of their load: silent ones would become suspect.
  void HearAll() {
    for (int worker = 0; worker < routed_->roster.worker_count(); ++worker) Report(worker);
  }

 private:
  static constexpr int kSystems = 8, kDocuments = 4000;

  Fleet() {
    SetLogLevel(LogLevel::kError);
    std::vector<std::string> prefill, decode;
    for (int i = 0; i < worker_count; ++i) prefill.push_back(absl::StrCat("p", i, ":1"));
    for (int i = 0; i < 64; ++i) decode.push_back(absl::StrCat("d", i, ":1"));
    routed_ = std::make_unique<router::RoutedFleet>(prefill, decode, 1, policy_, Clock::Real());
    index_ = std::make_unique<PrefixIndex>(worker_count);
    std::mt19937_64 random(1);
    const int64_t each = block_count / worker_count;
    for (int w = 0; w < worker_count + 64; ++w) {
      std::vector<uint64_t> keys;
      const bool is_prefill = w < worker_count;
      while (is_prefill && static_cast<int64_t>(keys.size()) < each) {
        const uint64_t system = random() % kSystems, document = random() % kDocuments;
        // A block twice is once: what is told below is what is counted.
        const uint64_t session = random() % (block_count / 400);
        const auto chain = Chain(system, document, session, kPromptBlocks - 50);
        keys.insert(keys.end(), chain.begin(), chain.end());
        if (random() % 500 == 0)
          prompts_.push_back(Chain(system, document, session, kPromptBlocks));
      }
      if (is_prefill) keys.resize(each);
      Introduce(w, is_prefill, keys);
      if (!is_prefill) continue;
      index_->SetCapacity(w, each);
      BATON_CHECK(index_->Add(w, keys));
      indexed_ += index_->key_count(w);
    }
    for (int i = 0; i < 1000; ++i) {
      prompts_.push_back(
          Chain(random() % kSystems, random() % kDocuments, random(), kPromptBlocks));
    }
    std::shuffle(prompts_.begin(), prompts_.end(), random);
  }

  void Introduce(int worker, bool prefill, const std::vector<uint64_t>& keys) {
    routed_->roster.OnStreamStarted(worker);
    internal::v1::WatchResponse event;
    internal::v1::WorkerCard& card = *event.mutable_card();
    card.set_role(prefill ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE);
    card.set_worker_id(absl::StrCat("w", worker));
    card.set_epoch(1);
    card.set_model_fingerprint(1);
    card.set_tokenizer_fingerprint(1);
    card.mutable_kv_layout()->set_block_tokens(16);
    card.mutable_kv_layout()->set_layers(32);
    card.mutable_kv_layout()->set_kv_heads(8);
    card.mutable_kv_layout()->set_head_dim(128);
    card.set_max_model_len(1 << 17);
    card.set_total_blocks(1 << 20);
    card.set_kv_block_bytes(2 << 20);
    card.set_prefix_caching(true);
    BATON_CHECK(routed_->roster.OnEvent(worker, event).ok());
    event.Clear();
    event.mutable_snapshot()->mutable_keys()->Assign(keys.begin(), keys.end());
    event.mutable_snapshot()->set_last(true);
    BATON_CHECK(routed_->roster.OnEvent(worker, event).ok());
    Report(worker);
  }

  void Report(int worker) {
    internal::v1::WatchResponse event;
    internal::v1::LoadReport& load = *event.mutable_load();
    load.set_free_blocks(1 << 19);
    load.set_remaining_work_us(worker * 7919 % 100'000);
    load.mutable_prefill_cost()->set_fixed_us(5000);
    load.mutable_prefill_cost()->set_token_us(125);
    load.mutable_prefill_cost()->set_pair_us(3.9e-3);
    BATON_CHECK(routed_->roster.OnEvent(worker, event).ok());
  }

  PricedPolicy policy_{{.max_local_prefill_tokens = 0}};  // pairs
  std::unique_ptr<router::RoutedFleet> routed_;
  std::unique_ptr<PrefixIndex> index_;  // the same content, alone
  std::vector<std::vector<kv::PrefixKey>> prompts_;
  int64_t indexed_ = 0;
};

// All depths of a prompt of 750 blocks.
void BM_Match(benchmark::State& state) {
  Fleet& fleet = Fleet::The();
  size_t next = static_cast<size_t>(state.thread_index()) * 7919;
  std::vector<int> depths;
  for (auto _ : state) {
    depths.clear();
    fleet.index().Match(fleet.prompts()[next++ % fleet.prompts().size()], &depths);
    benchmark::DoNotOptimize(depths.data());
  }
  state.counters["bytes/block"] = static_cast<double>(fleet.index().memory_bytes()) /
                                  static_cast<double>(fleet.indexed()) /
                                  static_cast<double>(state.threads());
  state.counters["distinct"] =
      static_cast<double>(fleet.index().distinct_key_count()) / state.threads();
  state.counters["indexed"] = static_cast<double>(fleet.indexed()) / state.threads();
}
BENCHMARK(BM_Match)->ThreadRange(1, 4)->UseRealTime()->Unit(benchmark::kMicrosecond);

void Decide(benchmark::State& state, bool links) {
  Fleet& fleet = Fleet::The();
  size_t next = static_cast<size_t>(state.thread_index()) * 7919;
  if (state.thread_index() == 0) {  // the others wait at the loop
    fleet.HearAll();
    if (links) fleet.HearLinks();
    fleet.routed().roster.Tick();
  }
  for (auto _ : state) {
    RouteRequest request;
    request.model_fingerprint = 1;
    request.keys = fleet.prompts()[next++ % fleet.prompts().size()];
    request.prompt_tokens = Fleet::kPromptBlocks * 16;
    request.dispatch = state.range(0) != 0;
    request.explain = true;  // as for every request
    absl::StatusOr<Route> route = fleet.routed().planner.Choose(request);
    BATON_CHECK(route.ok()) << route.status();
    benchmark::DoNotOptimize(route->matched_blocks);
    // As the watch's thread does ten times a second; here at every thousandth decision.
    if (state.thread_index() == 0 && next % 1000 == 0) {
      fleet.routed().roster.Tick();
      state.PauseTiming();  // what workers tell comes on threads of their own
      fleet.HearAll();
      if (links) fleet.HearLinks();
      state.ResumeTiming();
    }
  }
  state.counters["decisions/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// A whole decision. `dispatch` 0: only asked; 1: noted, too, with what it will leave in the cache.
void BM_Choose(benchmark::State& state) { Decide(state, /*links=*/false); }
BENCHMARK(BM_Choose)->Arg(0)->Arg(1)->ThreadRange(1, 4)->UseRealTime()->Unit(
    benchmark::kMicrosecond);

// Chains of 50 blocks come and go.
void BM_Delta(benchmark::State& state) {
  Fleet& fleet = Fleet::The();
  const int worker = state.thread_index();
  fleet.index().SetCapacity(worker, 1 << 30);
  uint64_t serial = static_cast<uint64_t>(worker) << 40;
  constexpr int kBlocks = 50;
  std::vector<uint64_t> added(kBlocks);
  for (auto _ : state) {
    for (int i = 0; i < kBlocks; ++i) added[i] = fleet.Key(9, serial, i);
    BATON_CHECK(fleet.index().Add(worker, added));
    ++serial;
    fleet.index().Remove(worker, added);
  }
  state.counters["blocks/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * 2 * kBlocks, benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Delta)->ThreadRange(1, 4)->UseRealTime()->Unit(benchmark::kMicrosecond);

// A snapshot of 10,000 blocks of a worker that was dropped, the sweep of its old ones included.
void BM_Snapshot(benchmark::State& state) {
  Fleet& fleet = Fleet::The();
  std::vector<uint64_t> keys(10'000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = fleet.Key(8, i / 100, i);
  fleet.index().SetCapacity(0, 1 << 30);
  for (auto _ : state) {
    fleet.index().DropWorker(0);
    BATON_CHECK(fleet.index().Add(0, keys));
  }
  state.counters["blocks/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(keys.size()),
                         benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Snapshot)->UseRealTime()->Unit(benchmark::kMillisecond);

// BM_Choose where links are measured. Last, since the links that it reports stay.
void BM_ChooseByLinks(benchmark::State& state) { Decide(state, /*links=*/true); }
BENCHMARK(BM_ChooseByLinks)
    ->Arg(0)
    ->Arg(1)
    ->ThreadRange(1, 4)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// Takes its own flags out of the command line.
void TakeFlags(int* argc, char** argv) {
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    if (std::strncmp(argv[i], "--workers=", 10) == 0) {
      worker_count = std::atoi(argv[i] + 10);
    } else if (std::strncmp(argv[i], "--blocks=", 9) == 0) {
      block_count = std::atoll(argv[i] + 9);
    } else {
      argv[kept++] = argv[i];
    }
  }
  *argc = kept;
}

}  // namespace
}  // namespace baton::router

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as router/main.cc
  baton::router::TakeFlags(&argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
