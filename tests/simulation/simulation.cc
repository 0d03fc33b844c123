#include "tests/simulation/simulation.h"

#include <google/protobuf/stubs/logging.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/router.h"
#include "tests/simulation/worker.h"

namespace baton::simulation {
namespace {

volatile uint64_t seed_running = 0;

constexpr Micros kArrivals = 8 * kSecond;  // requests and faults come within it
// Keepalive and the longest partition, and then some.
constexpr Micros kUntilIdle = 60 * kSecond;
constexpr Micros kUntilIdleInCalm = kSecond;

class Simulation {
 public:
  Simulation(uint64_t seed, Bug bug) : world_(seed), bug_(bug) {}

  Outcome Run() {
    Build();
    const Micros last_fault = PlanFaults();
    PlanRequests();
    while (!world_.failed() && world_.RunNext()) {
      if (router_->AllEnded()) {
        if (ended_at_ < 0) ended_at_ = std::max(world_.now(), last_fault);
        if (world_.now() > last_fault && AllIdle()) break;
        const Micros bound = calm_ ? kUntilIdleInCalm : kUntilIdle;
        if (world_.now() > ended_at_ + bound) world_.Fail("never idle: " + Describe());
      }
    }
    return Result();
  }

 private:
  Random& random() { return world_.random; }

  void Build() {
    calm_ = random().Chance(0.25);
    if (!calm_) {
      faults_.flip = random().Chance(0.3) ? 0.02 : 0;
      faults_.truncate = random().Chance(0.2) ? 0.01 : 0;
      faults_.lose = random().Chance(0.2) ? 0.01 : 0;
    }
    if (bug_ == Bug::kChecksumSkipped) faults_.flip = 0.05;
    faults_.duplicate = random().Chance(0.3) ? 0.1 : 0;
    faults_.reorder = random().Chance(0.3) ? 0.1 : 0;
    faults_.checksum_skipped = bug_ == Bug::kChecksumSkipped;
    faults_.pins_ignored = bug_ == Bug::kPinsIgnored;
    faults_.pins_leaked = bug_ == Bug::kPinsLeaked;
    faults_.commit_unheard = bug_ == Bug::kCommitUnheard;
    const int prefill_count = random().Between(1, 3);
    const int decode_count = random().Chance(0.5) ? 1 : random().Between(2, 3);
    tight_queues_ = random().Chance(0.2);
    for (int i = 0; i < prefill_count; ++i) {
      HashEngineOptions engine = EngineOptions();
      engine.num_blocks = random().Between(25, random().Chance(0.5) ? 28 : 60);
      prefill_worker::LoopOptions loop;
      loop.own_thread = false;
      loop.enable_prefix_caching = !random().Chance(0.1);
      loop.scheduler.block_tokens = kBlockTokens;
      loop.scheduler.max_num_batched_tokens = engine.max_num_batched_tokens;
      loop.scheduler.max_num_seqs = engine.max_num_seqs;
      if (tight_queues_) loop.scheduler.max_queued_requests = random().Between(1, 4);
      if (tight_queues_) loop.scheduler.max_queued_tokens = random().Between(50, 300);
      prefill_.push_back(
          std::make_unique<PrefillWorker>(world_, absl::StrCat("p", i), engine, loop, faults_));
    }
    for (int i = 0; i < decode_count; ++i) {
      HashEngineOptions engine = EngineOptions();
      engine.num_blocks = random().Between(25, random().Chance(0.6) ? 28 : 50);
      engine.max_num_batched_tokens = engine.max_num_seqs + random().Between(kBlockTokens, 40);
      engine.runs_ahead = random().Chance(0.5);
      decode_worker::LoopOptions loop;
      loop.own_thread = false;
      loop.worker_id = absl::StrCat("d", i);
      loop.enable_prefix_caching = !random().Chance(0.1);
      loop.host_kv_bytes = random().Chance(0.5) ? random().Between(0, 10'000) : 0;
      loop.scheduler.block_tokens = kBlockTokens;
      loop.scheduler.max_num_seqs = engine.max_num_seqs;
      loop.scheduler.max_num_batched_tokens = engine.max_num_batched_tokens;
      if (random().Chance(0.3)) loop.scheduler.local_prefill_max_tokens = random().Between(1, 60);
      if (random().Chance(0.2)) loop.scheduler.long_context_tokens = random().Between(20, 60);
      if (tight_queues_) loop.scheduler.max_queued_requests = random().Between(1, 6);
      if (tight_queues_ && random().Chance(0.5)) loop.scheduler.max_tenant_requests = 3;
      loop.scheduler.fair_quantum_tokens = random().Between(1, 64);
      decode_.push_back(
          std::make_unique<DecodeWorker>(world_, absl::StrCat("d", i), engine, loop, faults_,
                                         [this](const std::string& address) -> PrefillWorker* {
                                           for (const auto& worker : prefill_) {
                                             if (worker->address() == address) return worker.get();
                                           }
                                           return nullptr;
                                         }));
    }
    for (Worker* worker : Workers()) worker->Start();
    std::vector<PrefillWorker*> prefill;
    std::vector<DecodeWorker*> decode;
    for (const auto& worker : prefill_) prefill.push_back(worker.get());
    for (const auto& worker : decode_) decode.push_back(worker.get());
    router_ = std::make_unique<Router>(world_, prefill, decode);
    router_->loses_a_token = bug_ == Bug::kResumeLosesToken;
  }

  HashEngineOptions EngineOptions() {
    HashEngineOptions engine;
    engine.max_num_seqs = random().Between(2, 6);
    engine.max_num_batched_tokens = random().Between(kBlockTokens, 48);
    engine.step_time = random().Time(200, 5'000);
    engine.token_time = random().Time(0, 300);
    engine.copies_nothing = bug_ == Bug::kCopiesNothing;
    return engine;
  }

  std::vector<Worker*> Workers() {
    std::vector<Worker*> workers;
    for (const auto& worker : prefill_) workers.push_back(worker.get());
    for (const auto& worker : decode_) workers.push_back(worker.get());
    return workers;
  }

  void PlanRequests() {
    const int count = random().Between(4, 30);
    const int families = random().Between(1, 4);
    const Micros spread = random().Chance(0.6) ? 100 * kMillisecond : kArrivals;
    for (int i = 0; i < count; ++i) {
      RequestSpec spec;
      spec.start = random().Time(0, spread);
      spec.deadline =
          spec.start +
          (calm_ || random().Chance(0.7) ? kAmpleTime : random().Time(10'000, 20 * kSecond));
      if (random().Chance(0.2)) {
        spec.cancel_at = spec.start + (random().Chance(0.7) ? random().Time(0, 200 * kMillisecond)
                                                            : random().Time(0, 3 * kSecond));
      }
      // Few beginnings, so that prefixes repeat.
      const int family = random().Below(families) * 100;
      const int size = random().Between(1, 70);
      const int own_from = random().Between(0, 70);
      for (int t = 0; t < size; ++t) {
        spec.prompt.push_back(t < own_from ? family + t : random().Below(3));
      }
      spec.sampling.temperature = random().Chance(0.5) ? 0.0f : 1.0f;
      spec.sampling.seed = random().Next();
      if (random().Chance(0.2)) spec.sampling.repetition_penalty = 1.5f;
      if (random().Chance(0.1)) spec.sampling.logprobs = random().Between(0, 3);
      spec.n = random().Chance(0.2) ? random().Between(2, 3) : 1;
      spec.max_tokens = random().Between(1, 30);
      if (random().Chance(0.1)) {
        spec.beam_width = random().Between(2, 3);
        spec.n = random().Between(1, spec.beam_width);
        spec.length_penalty = static_cast<float>(random().Between(0, 2));
        spec.sampling.logprobs.reset();
      }
      if (random().Chance(0.3)) {
        for (int s = 0; s < 40; ++s) spec.stop_token_ids.push_back(random().Below(kVocab));
        spec.min_tokens = random().Chance(0.5) ? random().Between(0, spec.max_tokens) : 0;
      }
      if (random().Chance(0.1)) spec.prompt_logprobs = random().Between(0, 2);
      spec.priority = static_cast<v1::Priority>(random().Between(0, 3));
      spec.tenant = absl::StrCat("tenant-", random().Below(3));
      if (random().Chance(0.1)) spec.cache_salt = "salt";
      spec.aggregated = random().Chance(0.1);
      router_->Submit(spec);
    }
  }

  // Returns when the last one is over.
  Micros PlanFaults() {
    if (calm_) return 0;
    const int count = random().Between(0, 8);
    for (int i = 0; i < count; ++i) {
      world_.At(random().Time(0, kArrivals), [this] { Fault(); });
    }
    return kArrivals + 25 * kSecond;
  }

  void Fault() {
    const std::vector<Worker*> workers = Workers();
    Worker& worker =
        *workers[static_cast<size_t>(random().Below(static_cast<int>(workers.size())))];
    Worker& other = *workers[static_cast<size_t>(random().Below(static_cast<int>(workers.size())))];
    const int peer = random().Chance(0.4) ? router_->node() : other.node();
    const Micros a_while = random().Chance(0.7) ? random().Time(kMillisecond, kSecond)
                                                : random().Time(kSecond, 20 * kSecond);
    switch (random().Below(6)) {
      case 0:
        Restart(worker, random().Chance(0.2));
        break;
      case 1:
        if (worker.alive()) world_.Freeze(worker.node(), world_.now() + a_while);
        break;
      case 2:
        world_.Block(worker.node(), peer, world_.now() + a_while);
        break;
      case 3:
        world_.Block(worker.node(), peer, world_.now() + a_while);
        world_.Block(peer, worker.node(), world_.now() + a_while);
        break;
      case 4:
        world_.DropStreams(worker.node(), peer);
        break;
      case 5:
        if (!worker.alive()) break;
        worker.Drain();
        world_.At(world_.now() + random().Time(kMillisecond, 3 * kSecond),
                  [this, &worker] { Restart(worker, false); });
        break;
    }
  }

  void Restart(Worker& worker, bool machine_gone) {
    if (!worker.alive()) return;
    worker.Kill(machine_gone);
    world_.At(world_.now() + random().Time(kMillisecond, 4 * kSecond), [&worker] {
      if (!worker.alive()) worker.Start();
    });
  }

  bool AllIdle() {
    for (const Worker* worker : Workers()) {
      if (!worker->Idle()) return false;
    }
    return true;
  }

  std::string Describe() {
    std::string text;
    for (const Worker* worker : Workers()) absl::StrAppend(&text, worker->Describe(), "; ");
    return text;
  }

  Outcome Result() {
    Outcome outcome;
    const Router::Counts& counts = router_->counts();
    outcome.failure = world_.failure();
    outcome.finished = counts.finished;
    outcome.failed = counts.failed;
    outcome.failed_by_reason = router_->failed_by_reason();
    outcome.cancelled = counts.cancelled;
    outcome.resumed = counts.resumed;
    outcome.tokens = counts.tokens;
    for (const auto& worker : decode_) outcome.preemptions += worker->preemptions();
    outcome.events = world_.event_count();
    outcome.time = world_.now();
    return outcome;
  }

  World world_;
  const Bug bug_;
  FrameFaults faults_;
  bool calm_ = false;
  bool tight_queues_ = false;
  Micros ended_at_ = -1;
  std::vector<std::unique_ptr<PrefillWorker>> prefill_;
  std::vector<std::unique_ptr<DecodeWorker>> decode_;
  std::unique_ptr<Router> router_;
};

}  // namespace

Outcome Simulate(uint64_t seed, Bug bug) {
  // Spoilt requests don't parse, which protobuf would print each time.
  google::protobuf::SetLogHandler(nullptr);
  seed_running = seed;
  Outcome outcome = Simulation(seed, bug).Run();
  seed_running = 0;
  return outcome;
}

void SaySeedOnAbort() {
  signal(SIGABRT, [](int) {
    char text[64];
    const int length = snprintf(text, sizeof(text), "in the simulation of seed %llu\n",
                                static_cast<unsigned long long>(seed_running));
    (void)!write(STDERR_FILENO, text, static_cast<size_t>(length));
  });
}

}  // namespace baton::simulation
