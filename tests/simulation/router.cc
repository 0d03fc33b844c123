#include "tests/simulation/router.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/awake_clock.h"
#include "common/chat/model_chat.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/access.h"
#include "router/request/admission.h"
#include "router/request/call_watch.h"
#include "router/request/prompt_history.h"
#include "router/request/retry_budget.h"
#include "router/request/tenant_limits.h"
#include "router/request/unread_answers.h"
#include "router/request/work_pool.h"
#include "router/routing/decision_log.h"
#include "router/routing/priced_policy.h"
#include "router/routing/routed_fleet.h"
#include "tests/simulation/vocabulary.h"

namespace baton::simulation {
namespace {

// As in router/server.cc and router/fleet/worker_watch.cc; silence is judged less often, which
// costs less.
constexpr Micros kCallTick = 50 * kMillisecond;
constexpr Micros kTick = 200 * kMillisecond;

std::vector<std::string> Addresses(const auto& workers) {
  std::vector<std::string> addresses;
  for (const auto* worker : workers) addresses.push_back(worker->address());
  return addresses;
}

std::unique_ptr<router::Policy> MakePolicy(const router::Options& options, World& world) {
  if (options.routing_policy == "round_robin") return std::make_unique<router::RoundRobin>();
  if (options.routing_policy == "prefix_then_load") {
    return std::make_unique<router::PrefixThenLoad>();
  }
  router::PricedOptions priced;
  priced.max_local_prefill_tokens = options.max_local_prefill_tokens;
  priced.seed = world.random.Next();
  return std::make_unique<router::PricedPolicy>(priced);
}

router::RouteOptions RouteOptionsOf(const router::Options& options, World& world) {
  router::RouteOptions route;
  route.ttft_slo = absl::Milliseconds(options.ttft_slo_ms);
  route.random = [&world] { return world.random.Next(); };
  return route;
}

}  // namespace

// What router/server.h has, but for gRPC, discovery and threads. In the order in which each needs
// those before it.
struct Router::Process {
  Process(Router& router, const router::Options& options, World& world)
      : awake(world, /*own_thread=*/false),
        policy(MakePolicy(options, world)),
        fleet(Addresses(router.prefill_), Addresses(router.decode_), HashTokenizer().fingerprint(),
              *policy, awake, RouteOptionsOf(options, world)),
        admission({options.max_inflight_requests, options.max_inflight_prompt_tokens,
                   absl::Milliseconds(options.retry_after_ms)},
                  awake, [this](const router::Admission::Inside& now) { inside = now; }),
        retry_budget({options.retry_budget_percent / 100.0,
                      static_cast<double>(options.retry_budget_reserve),
                      static_cast<double>(options.retry_budget_capacity)}),
        continuations([](int) {}),
        pool(/*thread_count=*/0, options.max_queued_prompts),
        call_watch(absl::Microseconds(kCallTick), /*own_thread=*/false),
        decisions(options.explain_log_every, metrics),
        tenants(world),
        network(world, router.node_, router.decode_, static_cast<int>(router.prefill_.size()),
                router.counts_, continuations, router.bug_),
        parts{options,       HashTokenizer(), world,     awake,        fleet.roster,
              fleet.planner, metrics,         admission, retry_budget, continuations,
              pool,          call_watch,      unread,    network,      decisions,
              access,        tenants,         chat,      registry,     prompts} {
    if (router.bug_ == Bug::kChargeNotGivenBack) return;
    fleet.roster.SetOnDeath([this](const router::Incarnation& dead) {
      retry_budget.OnDeath(dead, awake.SinceStart());
    });
  }
  ~Process() { calls.clear(); }

  AwakeClock awake;
  router::Admission::Inside inside;
  router::RouterMetrics metrics{nullptr, "hash"};
  const std::unique_ptr<router::Policy> policy;
  router::RoutedFleet fleet;
  router::CallRegistry registry;
  router::Admission admission;
  router::RetryBudget retry_budget;
  router::ContinuationLine continuations;
  router::WorkPool pool;
  router::CallWatch call_watch;
  router::DecisionLog decisions;
  const router::Access access;
  router::PromptHistory prompts{1 << 20};
  router::TenantLimits tenants;
  router::UnreadAnswers unread{0, [](int64_t) {}, [] {}};  // only sinks of connections use it
  const chat::ModelChat chat;
  SimDecodeNetwork network;
  router::RouterParts parts;

  std::vector<std::shared_ptr<Stream>> watches;  // null: none is open
  std::list<std::shared_ptr<Call>> calls;
  bool ticks_calls = false;
};

// As router/response_writer.h: it has the request until the client has read the last of it, or is
// gone.
class Router::Call final : public router::ResponseSink {
 public:
  Call(Router& router, v1::GenerateRequest request, bool client_reads, std::shared_ptr<Judge> judge,
       std::function<void()> on_lost)
      : router_(router),
        request_(std::move(request)),
        client_reads_(client_reads),
        judge_(std::move(judge)),
        on_lost_(std::move(on_lost)),
        call_(std::make_shared<router::GenerateCall>(router.process_->parts)) {}

  router::GenerateCall& call() { return *call_; }
  const v1::GenerateRequest& request() const { return request_; }
  void Enter(std::list<std::shared_ptr<Call>>::iterator place) { place_ = place; }
  void Lose() {
    if (!judge_->ended()) on_lost_();
  }

  void Send(const v1::GenerateResponse& delta) override {
    judge_->Send(Leaking(delta));
    if (Has(Bug::kDeltaTwice) && router_.world_.random.Chance(0.02)) judge_->Send(delta);
  }
  void Heartbeat(const v1::GenerateResponse& empty) override {
    v1::GenerateResponse delta = empty;
    if (Has(Bug::kHeartbeatHasText)) delta.set_text("a");
    judge_->Heartbeat(delta);
  }
  void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override {
    judge_->Finish(Leaking(last), token_counts);
    Ended();
  }
  void Fail(const absl::Status& error) override {
    if (Has(Bug::kFailureAsFinish) && judge_->begun()) {
      v1::GenerateResponse last;
      last.set_finish_reason(v1::FINISH_REASON_STOP);
      judge_->Finish(last, {});
    } else {
      judge_->Fail(error);
    }
    Ended();
  }
  void Abort(const absl::Status& why) override {
    judge_->Abort(why);
    GoSoon();
  }

 private:
  bool Has(Bug bug) const { return router_.bug_ == bug; }
  v1::GenerateResponse Leaking(v1::GenerateResponse delta) const {
    if (Has(Bug::kStopStringLeaks)) delta.mutable_text()->append(delta.matched_stop());
    return delta;
  }
  void Ended() {
    // Where nothing was sent, nothing is unread.
    if (client_reads_ || !judge_->begun()) GoSoon();
  }
  // Never at once: the call is in the middle of something.
  void GoSoon() {
    if (std::exchange(goes_, true)) return;
    router_.After(router_.world_.random.Time(0, 2 * kMillisecond), [this] {
      call_->OnSinkGone();
      const std::shared_ptr<Call> last = *place_;
      router_.process_->calls.erase(place_);
    });
  }

  Router& router_;
  const v1::GenerateRequest request_;
  const bool client_reads_;
  const std::shared_ptr<Judge> judge_;
  const std::function<void()> on_lost_;
  const std::shared_ptr<router::GenerateCall> call_;
  std::list<std::shared_ptr<Call>>::iterator place_;
  bool goes_ = false;
};

Router::Router(World& world, std::string name, std::vector<PrefillWorker*> prefill,
               std::vector<DecodeWorker*> decode, const router::Options& options, Bug bug)
    : world_(world),
      name_(std::move(name)),
      prefill_(std::move(prefill)),
      decode_(std::move(decode)),
      options_(options),
      bug_(bug),
      node_(world.AddNode()) {
  counts_.calls.resize(decode_.size());
  world_.Kill(node_, false);  // until it is started
}

Router::~Router() = default;

void Router::Start() {
  world_.SetAlive(node_);
  process_ = std::make_shared<Process>(*this, options_, world_);
  process_->watches.resize(prefill_.size() + decode_.size());
  for (size_t i = 0; i < process_->watches.size(); ++i) OpenWatch(static_cast<int>(i));
  Tick();
}

void Router::Kill(bool machine_gone) {
  if (!alive()) return;
  world_.Kill(node_, machine_gone);
  const std::shared_ptr<Process> process = std::move(process_);
  for (const std::shared_ptr<Call>& call : process->calls) call->Lose();
}

void Router::After(Micros time, std::function<void()> event) {
  world_.AtNode(node_, world_.now() + time,
                [process = std::weak_ptr<Process>(process_), event = std::move(event)] {
                  if (const auto live = process.lock()) event();
                });
}

Worker& Router::worker(int index) const {
  const size_t at = static_cast<size_t>(index);
  if (at < prefill_.size()) return *prefill_[at];
  return *decode_[at - prefill_.size()];
}

void Router::OpenWatch(int index) {
  std::shared_ptr<Stream>& watch = process_->watches[static_cast<size_t>(index)];
  if (watch != nullptr) return;
  watch = world_.Open(node_, worker(index).node());
  process_->fleet.roster.OnStreamStarted(index);
  const std::weak_ptr<Stream> weak = watch;
  watch->OnLost(0, [this, index] { LoseWatch(index, absl::UnavailableError("lost")); });
  watch->Send(0, [this, index, weak] {
    const auto stream = weak.lock();
    if (stream == nullptr) return;
    worker(index).Watch(stream, [this, index](const internal::v1::WatchResponse& response) {
      const absl::Status status = process_->fleet.roster.OnEvent(index, response);
      if (status.ok()) return;
      world_.Fail(absl::StrCat("a worker's report was refused: ", status.ToString()));
    });
  });
}

void Router::LoseWatch(int index, const absl::Status& why) {
  std::shared_ptr<Stream>& watch = process_->watches[static_cast<size_t>(index)];
  if (watch == nullptr) return;
  watch->Close(0);
  watch->Break(0, 0);
  watch = nullptr;
  process_->fleet.roster.OnStreamLost(index, why);
  After(world_.random.Time(200 * kMillisecond, kSecond), [this, index] { OpenWatch(index); });
}

void Router::Tick() {
  process_->awake.Beat();
  for (const int index : process_->fleet.roster.Tick()) {
    LoseWatch(index, absl::UnavailableError("silent"));
  }
  After(kTick, [this] { Tick(); });
}

// While there are calls, for which alone it is.
void Router::TickCalls() {
  process_->call_watch.Turn();
  process_->ticks_calls = !process_->calls.empty();
  if (process_->ticks_calls) After(kCallTick, [this] { TickCalls(); });
}

std::weak_ptr<Router::Call> Router::Take(const v1::GenerateRequest& request, Micros deadline,
                                         bool client_reads, std::shared_ptr<Judge> judge,
                                         std::function<void()> on_lost) {
  Process& process = *process_;
  auto call =
      std::make_shared<Call>(*this, request, client_reads, std::move(judge), std::move(on_lost));
  call->Enter(process.calls.insert(process.calls.end(), call));
  After(0, [this, weak = std::weak_ptr<Call>(call), deadline] {
    const absl::Time due = absl::UnixEpoch() + absl::Microseconds(deadline);
    if (const auto live = weak.lock()) live->call().Start(live->request(), due, live.get());
    // A thread of the pool is free.
    After(world_.random.Time(0, 10 * kMillisecond), [this] { process_->pool.Turn(); });
  });
  if (!std::exchange(process.ticks_calls, true)) {
    After(world_.random.Time(0, kCallTick), [this] { TickCalls(); });
  }
  return call;
}

void Router::Cancel(const std::weak_ptr<Call>& call) {
  if (!alive()) return;
  const bool by_id = world_.random.Chance(0.5);
  After(0, [this, call, by_id] {
    const auto live = call.lock();
    if (live == nullptr) return;
    const v1::GenerateRequest& request = live->request();
    if (by_id && process_->registry.Cancel(request.tenant(), request.request_id()) > 0) return;
    live->call().Cancel();
  });
}

bool Router::Idle() const {
  if (!alive()) return true;
  const Process& process = *process_;
  return process.calls.empty() && process.network.live_calls() == 0 &&
         process.inside.requests == 0 && process.inside.prompt_tokens == 0 &&
         process.admission.empty() && process.registry.size() == 0 &&
         process.continuations.waiting() == 0 && process.continuations.holds() == 0;
}

std::string Router::Describe() const {
  if (!alive()) return absl::StrCat(name_, ": dead");
  const Process& process = *process_;
  return absl::StrCat(name_, ": ", process.calls.size(), " calls, ", process.network.live_calls(),
                      " decode calls, ", process.inside.requests, " requests of ",
                      process.inside.prompt_tokens, " prompt tokens inside, ",
                      process.continuations.waiting(), " continuations wait, ",
                      process.continuations.holds(), " hold room");
}

size_t Router::watch_count() const {
  if (!alive()) return 0;
  return static_cast<size_t>(std::count_if(process_->watches.begin(), process_->watches.end(),
                                           [](const auto& watch) { return watch != nullptr; }));
}

double Router::retry_budget_level() const { return process_->retry_budget.level(); }

}  // namespace baton::simulation
