#include "tests/simulation/simulation.h"

#include <google/protobuf/stubs/logging.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/draw_request.h"
#include "tests/simulation/router.h"
#include "tests/simulation/worker.h"

namespace baton::simulation {
namespace {

volatile uint64_t seed_running = 0;

constexpr Micros kArrivals = 8 * kSecond;  // requests and faults come within it
// Keepalive and the longest partition, and then some.
constexpr Micros kUntilIdle = 60 * kSecond;
constexpr Micros kUntilIdleInCalm = kSecond;
constexpr Micros kIntroduced = kSecond;

// What happens beside the requests.
enum class Weather {
  kCalm,
  kDeaths,  // of one worker at a time, while others of its role live
  kStormy,  // all kinds of faults, several at a time
};

class Simulation {
 public:
  // The model of every third seed has a layer with a window, that of the next one is recurrent.
  Simulation(uint64_t seed, Bug bug)
      : world_(seed),
        bug_(bug),
        window_(seed % 3 == 1 ? 2 + static_cast<int>(seed / 3 % 29) : 0),
        recurrent_(seed % 3 == 2) {}

  Outcome Run() {
    DrawWeather();
    BuildWorkers();
    BuildRouters();
    quiet_from_ = PlanFaults();
    PlanRequests();
    while (!world_.failed() && world_.RunNext()) {
      if (!clients_->AllEnded()) continue;
      if (ended_at_ < 0) ended_at_ = std::max(world_.now(), quiet_from_);
      if (world_.now() > quiet_from_ && AllIdle()) break;
      const Micros bound = weather_ == Weather::kCalm ? kUntilIdleInCalm : kUntilIdle;
      if (world_.now() > ended_at_ + bound) world_.Fail("never idle: " + Describe());
    }
    CheckRetryBudgets();
    const Outcome outcome = Result();
    world_.EndStreams();
    return outcome;
  }

 private:
  Random& random() { return world_.random; }

  void DrawWeather() {
    weather_ = random().Chance(0.2)   ? Weather::kCalm
               : random().Chance(0.3) ? Weather::kDeaths
                                      : Weather::kStormy;
    if (weather_ == Weather::kStormy) {
      faults_.flip = random().Chance(0.3) ? 0.02 : 0;
      faults_.truncate = random().Chance(0.2) ? 0.01 : 0;
      faults_.lose = random().Chance(0.2) ? 0.01 : 0;
      faults_.duplicate = random().Chance(0.3) ? 0.1 : 0;
      faults_.reorder = random().Chance(0.3) ? 0.1 : 0;
    }
    if (bug_ == Bug::kChecksumSkipped) faults_.flip = 0.05;
    faults_.checksum_skipped = bug_ == Bug::kChecksumSkipped;
    faults_.pins_ignored = bug_ == Bug::kPinsIgnored;
    faults_.pins_leaked = bug_ == Bug::kPinsLeaked;
    faults_.commit_unheard = bug_ == Bug::kCommitUnheard;
    may_fail_.faults = weather_ == Weather::kStormy;
    if (weather_ == Weather::kStormy) may_fail_.bounds.insert("DEADLINE_UNREACHABLE");
    tight_queues_ = weather_ != Weather::kDeaths && random().Chance(0.2);
    if (tight_queues_) may_fail_.bounds.insert("QUEUE_FULL");
  }

  void BuildWorkers() {
    const int prefill_count = random().Chance(0.1) ? 0 : random().Between(1, 3);
    const int decode_count =
        weather_ != Weather::kDeaths && random().Chance(0.5) ? 1 : random().Between(2, 3);
    for (int i = 0; i < prefill_count; ++i) AddPrefillWorker();
    for (int i = 0; i < decode_count; ++i) AddDecodeWorker();
    // Listed, and never there.
    const bool no_prefill = random().Chance(0.05);
    for (Worker* worker : Workers()) {
      if (!no_prefill || worker->role() == v1::WORKER_ROLE_DECODE) worker->Start();
    }
  }

  void AddPrefillWorker() {
    HashEngineOptions engine = EngineOptions();
    engine.num_blocks = random().Between(25, random().Chance(0.5) ? 28 : 60);
    prefill::LoopOptions loop;
    loop.own_thread = false;
    loop.enable_prefix_caching = !random().Chance(0.1);
    loop.scheduler.block_tokens = kBlockTokens;
    loop.scheduler.max_num_batched_tokens = engine.max_num_batched_tokens;
    loop.scheduler.max_num_seqs = engine.max_num_seqs;
    if (tight_queues_) loop.scheduler.max_queued_requests = random().Between(1, 4);
    if (tight_queues_) loop.scheduler.max_queued_tokens = random().Between(50, 300);
    prefill_.push_back(std::make_unique<PrefillWorker>(world_, absl::StrCat("p", prefill_.size()),
                                                       engine, loop, faults_));
  }

  Worker* WorkerAt(const std::string& address) {
    for (Worker* worker : Workers()) {
      if (worker->address() == address) return worker;
    }
    return nullptr;
  }

  void AddDecodeWorker() {
    HashEngineOptions engine = EngineOptions();
    engine.num_blocks = random().Between(25, random().Chance(0.6) ? 28 : 50);
    engine.max_num_batched_tokens = engine.max_num_seqs + random().Between(2 * kBlockTokens, 40);
    engine.runs_ahead = random().Chance(0.5);
    decode_worker::LoopOptions loop;
    loop.own_thread = false;
    loop.worker_id = absl::StrCat("d", decode_.size());
    loop.enable_prefix_caching = !random().Chance(0.1);
    loop.host_kv_bytes = random().Chance(0.5) ? random().Between(0, 10'000) : 0;
    loop.scheduler.block_tokens = kBlockTokens;
    loop.scheduler.max_num_seqs = engine.max_num_seqs;
    loop.scheduler.max_num_batched_tokens = engine.max_num_batched_tokens;
    if (random().Chance(0.3)) loop.scheduler.local_prefill_max_tokens = random().Between(1, 60);
    if (random().Chance(0.2)) loop.scheduler.long_context_tokens = random().Between(20, 60);
    DrawSpeculation(&loop.speculation);
    if (tight_queues_) loop.scheduler.max_queued_requests = random().Between(1, 6);
    if (tight_queues_ && random().Chance(0.5)) {
      loop.scheduler.max_tenant_requests = 3;
      may_fail_.bounds.insert("TENANT_LIMIT");
    }
    loop.scheduler.fair_quantum_tokens = random().Between(1, 64);
    loop.jobs.scheduler.block_tokens = kBlockTokens;
    loop.jobs.scheduler.max_num_batched_tokens = engine.max_num_batched_tokens;
    loop.jobs.scheduler.max_num_seqs = engine.max_num_seqs;
    const bool first = decode_.empty();
    may_fail_.least_blocks =
        first ? engine.num_blocks : std::min(may_fail_.least_blocks, engine.num_blocks);
    may_fail_.least_sequences =
        first ? engine.max_num_seqs : std::min(may_fail_.least_sequences, engine.max_num_seqs);
    decode_.push_back(std::make_unique<DecodeWorker>(
        world_, loop.worker_id, engine, loop, faults_,
        [this](const std::string& address) { return WorkerAt(address); },
        /*serves_prefill=*/random().Chance(0.6), DraftEngineOptions(engine.max_num_seqs)));
  }

  void DrawSpeculation(decode_worker::SpeculationOptions* speculation) {
    using Mode = decode_worker::SpeculationOptions::Mode;
    speculation->mode =
        std::array{Mode::kOff, Mode::kSuffix, Mode::kNgram, Mode::kDraft}[random().Below(4)];
    speculation->max_drafts = random().Between(1, 8);
    speculation->ngram_min = random().Between(1, 2);
    speculation->ngram_max = random().Between(2, 4);
  }

  HashEngineOptions DraftEngineOptions(int max_num_seqs) {
    HashEngineOptions draft;
    draft.draft_errors = random().Between(2, 50);
    draft.num_blocks = random().Between(4, 60);
    if (random().Chance(0.3)) draft.window = random().Between(1, 12);
    draft.max_num_seqs = max_num_seqs;
    draft.max_num_batched_tokens =
        std::max(random().Between(8, 64), max_num_seqs * decode_worker::DraftModel::kMostMissing);
    if (random().Chance(0.2)) draft.max_model_len = random().Between(20, 100);
    draft.step_time = random().Time(20, 2'000);
    draft.token_time = random().Time(0, 50);
    return draft;
  }

  HashEngineOptions EngineOptions() {
    HashEngineOptions engine;
    engine.max_num_seqs = random().Between(2, 6);
    engine.max_num_batched_tokens = random().Between(kBlockTokens, 48);
    engine.step_time = random().Time(200, 5'000);
    engine.token_time = random().Time(0, 300);
    engine.copies_nothing = bug_ == Bug::kCopiesNothing;
    engine.stores_last_only = bug_ == Bug::kSnapshotsUnstored;
    engine.believes_drafts = bug_ == Bug::kDraftsBelieved;
    engine.state_over_drafts = bug_ == Bug::kDraftsInState;
    engine.window = window_;
    engine.recurrent = recurrent_;
    return engine;
  }

  void BuildRouters() {
    options_.served_model_name = "hash";
    if (random().Chance(0.3)) options_.routing_policy = router::kRoutingPolicies[random().Below(3)];
    // Without a bound, most prompts would be computed where they are answered.
    options_.max_local_prefill_tokens =
        random().Chance(0.6) ? 0 : random().Between(1, random().Chance(0.5) ? 60 : 300);
    // With 0 %, a budget is its reserve again once all is given back.
    if (random().Chance(0.5)) options_.retry_budget_percent = 0;
    if (random().Chance(0.5)) options_.retry_budget_reserve = random().Between(0, 8);
    if (weather_ != Weather::kDeaths && random().Chance(0.2)) {
      options_.max_inflight_requests = random().Between(2, 8);
      options_.max_inflight_prompt_tokens = random().Between(50, 400);
      options_.max_queued_prompts = random().Between(1, 2);
      may_fail_.bounds.insert(
          {"TOO_MANY_REQUESTS", "TOO_MANY_PROMPT_TOKENS", "TOKENIZER_QUEUE_FULL"});
    }
    if (weather_ != Weather::kDeaths && random().Chance(0.05)) {
      options_.ttft_slo_ms = random().Between(1'000, 5'000);
      may_fail_.bounds.insert("TTFT_SLO_UNREACHABLE");
    }
    std::vector<PrefillWorker*> prefill;
    std::vector<DecodeWorker*> decode;
    for (const auto& worker : prefill_) prefill.push_back(worker.get());
    for (const auto& worker : decode_) decode.push_back(worker.get());
    for (int i = random().Between(1, 3); i > 0; --i) {
      routers_.push_back(std::make_unique<Router>(world_, absl::StrCat("r", routers_.size()),
                                                  prefill, decode, options_, bug_));
      routers_.back()->Start();
    }
    clients_ = std::make_unique<Clients>(world_, routers_, may_fail_);
  }

  void PlanRequests() {
    RequestDraw draw;
    draw.calm = weather_ != Weather::kStormy;
    // Until then, all know of each other.
    if (draw.calm || random().Chance(0.7)) draw.earliest = kIntroduced;
    draw.spread = random().Chance(0.6) ? 100 * kMillisecond : kArrivals;
    draw.families = random().Between(1, 4);
    for (int i = random().Between(4, 30); i > 0; --i) {
      RequestSpec spec = DrawRequest(random(), draw);
      spec.window = window_;
      spec.recurrent = recurrent_;
      // The router has what is unread until then.
      if (!spec.reads) quiet_from_ = std::max(quiet_from_, spec.deadline);
      clients_->Submit(spec);
    }
  }

  std::vector<Worker*> Workers() const {
    std::vector<Worker*> workers;
    for (const auto& worker : prefill_) workers.push_back(worker.get());
    for (const auto& worker : decode_) workers.push_back(worker.get());
    return workers;
  }

  template <class T>
  T& AnyOf(const std::vector<T*>& all) {
    return *all[static_cast<size_t>(random().Below(static_cast<int>(all.size())))];
  }

  // Returns when the last one is over.
  Micros PlanFaults() {
    if (weather_ == Weather::kCalm) return 0;
    if (weather_ == Weather::kDeaths) return PlanDeaths();
    for (int i = random().Between(0, 8); i > 0; --i) {
      // Most requests are short, and come early.
      const Micros last = random().Chance(0.5) ? kIntroduced + kSecond : kArrivals;
      world_.At(random().Time(0, last), [this] { Fault(); });
    }
    const Micros over = kArrivals + 25 * kSecond;
    // If this went on, a prompt of many frames might meet a spoilt one in every attempt until its
    // deadline.
    world_.At(over, [this] { faults_.EndSpoiling(); });
    return over;
  }

  // Each when the one before has been back for as long as routers take to see it.
  Micros PlanDeaths() {
    Micros when = kIntroduced;
    for (int i = random().Between(1, 3); i > 0; --i) {
      when += random().Chance(0.7) ? random().Time(0, 300 * kMillisecond)
                                   : random().Time(0, 3 * kSecond);
      Worker& worker = AnyOf(Workers());
      const bool machine_gone = random().Chance(0.2);
      const Micros gone_for = random().Time(kMillisecond, 4 * kSecond);
      world_.At(when, [this, &worker, machine_gone, gone_for] {
        Restart(worker, machine_gone, gone_for);
      });
      when += gone_for + 8 * kSecond;
    }
    return when + 10 * kSecond;
  }

  void Fault() {
    Worker& worker = AnyOf(Workers());
    Router& router =
        *routers_[static_cast<size_t>(random().Below(static_cast<int>(routers_.size())))];
    const int other = AnyOf(Workers()).node();
    const int peer = random().Chance(0.4) ? router.node() : other;
    const Micros a_while = random().Chance(0.7) ? random().Time(kMillisecond, kSecond)
                                                : random().Time(kSecond, 20 * kSecond);
    switch (random().Below(8)) {
      case 0:
        Restart(worker, random().Chance(0.2), random().Time(kMillisecond, 4 * kSecond));
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
        worker.SetDraining(true);
        world_.At(world_.now() + random().Time(kMillisecond, 3 * kSecond), [this, &worker] {
          if (!random().Chance(0.5)) {
            Restart(worker, false, random().Time(kMillisecond, 4 * kSecond));
          } else if (worker.alive()) {
            worker.SetDraining(false);
          }
        });
        break;
      case 6:
        Restart(router, random().Chance(0.2), random().Time(kMillisecond, 4 * kSecond));
        break;
      case 7:
        if (router.alive()) world_.Freeze(router.node(), world_.now() + a_while);
        break;
    }
  }

  // Of a worker or a router.
  template <class Process>
  void Restart(Process& process, bool machine_gone, Micros after) {
    if (!process.alive()) return;
    process.Kill(machine_gone);
    world_.At(world_.now() + after, [&process] {
      if (!process.alive()) process.Start();
    });
  }

  bool AllIdle() {
    size_t watches = 0;
    for (const Worker* worker : Workers()) {
      if (!worker->Idle()) return false;
    }
    for (const auto& router : routers_) {
      if (!router->Idle()) return false;
      watches += router->watch_count();
    }
    return world_.open_stream_count() == watches;
  }

  std::string Describe() {
    std::string text;
    for (const Worker* worker : Workers()) absl::StrAppend(&text, worker->Describe(), "; ");
    for (const auto& router : routers_) absl::StrAppend(&text, router->Describe(), "; ");
    return absl::StrCat(text, world_.open_stream_count(), " open streams");
  }

  // Deaths cost it nothing, once they are known; and without losses and refusals nothing does.
  void CheckRetryBudgets() {
    if (world_.failed()) return;
    const double reserve = options_.retry_budget_reserve;
    const bool whole = weather_ != Weather::kStormy && !tight_queues_;
    for (const auto& router : routers_) {
      if (!router->alive()) continue;
      const double level = router->retry_budget_level();
      const bool bounded = level >= 0 && level <= options_.retry_budget_capacity;
      const double slack = 1e-6;
      const bool back = level >= reserve - slack &&
                        (options_.retry_budget_percent > 0 || level <= reserve + slack);
      if (bounded && (back || !whole)) continue;
      world_.Fail(absl::StrCat("a retry budget of ", reserve, " is ", level, " afterwards"));
    }
  }

  Outcome Result() {
    Outcome outcome;
    outcome.failure = world_.failure();
    outcome.clients = clients_->counts();
    outcome.failed_by_reason = clients_->failed_by_reason();
    for (const auto& router : routers_) outcome.resumed += router->counts().resumed;
    for (const auto& worker : decode_) {
      outcome.preemptions += worker->preemptions();
      outcome.accepted_drafts += worker->accepted_drafts();
    }
    outcome.events = world_.event_count();
    outcome.time = world_.now();
    return outcome;
  }

  World world_;
  const Bug bug_;
  const int window_;  // of the model; 0: none
  const bool recurrent_;
  Weather weather_ = Weather::kCalm;
  FrameFaults faults_;
  MayFail may_fail_;
  router::Options options_;
  bool tight_queues_ = false;
  Micros quiet_from_ = 0;  // nothing breaks any more
  Micros ended_at_ = -1;
  std::vector<std::unique_ptr<PrefillWorker>> prefill_;
  std::vector<std::unique_ptr<DecodeWorker>> decode_;
  std::vector<std::unique_ptr<Router>> routers_;
  std::unique_ptr<Clients> clients_;
};

}  // namespace

void Outcome::Add(const Outcome& other) {
  clients.finished += other.clients.finished;
  clients.failed += other.clients.failed;
  clients.cancelled += other.clients.cancelled;
  clients.late += other.clients.late;
  clients.never_fit += other.clients.never_fit;
  clients.lost_routers += other.clients.lost_routers;
  clients.calls += other.clients.calls;
  clients.cut += other.clients.cut;
  clients.heartbeats += other.clients.heartbeats;
  clients.tokens += other.clients.tokens;
  for (const auto& [reason, calls] : other.failed_by_reason) failed_by_reason[reason] += calls;
  resumed += other.resumed;
  preemptions += other.preemptions;
  accepted_drafts += other.accepted_drafts;
  events += other.events;
  time += other.time;
}

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
