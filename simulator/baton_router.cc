#include "simulator/baton_router.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "router/routing/priced_policy.h"
#include "router/routing/route_planner.h"
#include "router/routing/routed_fleet.h"
#include "simulator/sim_clock.h"
#include "simulator/sim_decode_worker.h"

namespace baton::simulator {
namespace {

namespace worker_pb = ::baton::internal::v1;

// A tier that is not simulated has one worker, with room for all.
std::vector<std::string> Addresses(const char* letter, int workers, bool simulated) {
  std::vector<std::string> addresses;
  for (int i = 0; i < (simulated ? workers : 1); ++i)
    addresses.push_back(absl::StrCat(letter, i, ":1"));
  return addresses;
}

class BatonRouter final : public SimRouter {
 public:
  BatonRouter(std::unique_ptr<router::Policy> policy, const RouterSetup& setup,
              BatonOptions options)
      : setup_(setup),
        hears_links_(options.hears_links),
        ample_prefill_(setup.workers == 0 && !options.computes_on_decode),
        computes_on_decode_(options.computes_on_decode),
        trace_(*setup.trace),
        policy_(std::move(policy)),
        fleet_(Addresses("p", setup.workers, !ample_prefill_),
               Addresses("d", setup.decode_workers, setup.decode_workers > 0),
               /*tokenizer_fingerprint=*/1, *policy_, clock_, OptionsOf(setup, options)) {
    if (ample_prefill_) ample_.push_back(0);
    if (setup.decode_workers == 0) ample_.push_back(setup.workers);
    for (int worker : ample_) {
      fleet_.roster.OnStreamStarted(worker);
      worker_pb::WatchResponse event;
      const bool decode = setup.decode_workers == 0;
      *event.mutable_card() =
          SimCard(decode ? v1::WORKER_ROLE_DECODE : v1::WORKER_ROLE_PREFILL, "ample", 1,
                  kSimBlockTokens / setup.reported_blocks, kAmpleBlocks);
      event.mutable_card()->set_prefix_caching(false);
      Tell(worker, event);
      event.Clear();
      event.mutable_snapshot()->set_last(true);
      Tell(worker, event);
    }
    ReportAmpleWorkers();
  }

  void OnStreamStarted(int worker, int64_t now_us) override {
    Advance(now_us);
    fleet_.roster.OnStreamStarted(NumberOf(worker));
  }
  void OnStreamLost(int worker, int64_t now_us) override {
    Advance(now_us);
    fleet_.roster.OnStreamLost(NumberOf(worker), absl::UnavailableError("the worker was killed"));
  }
  void OnEvent(int worker, const worker_pb::WatchResponse& event, int64_t now_us) override {
    Advance(now_us);
    if (event.load().links_size() > 0 && !hears_links_) {
      worker_pb::WatchResponse without = event;
      without.mutable_load()->clear_links();
      Tell(NumberOf(worker), without);
    } else {
      Tell(NumberOf(worker), event);
    }
    if (event.has_card()) epochs_[worker] = event.card().epoch();
  }

  SimRoute Choose(int request, int avoid, int64_t now_us) override {
    Advance(now_us);
    const SimRequest& r = trace_.requests[request];
    keys_.clear();
    ForEachKey(r.blocks, setup_.reported_blocks,
               [this](kv::PrefixKey key) { keys_.push_back(key); });
    router::RouteRequest ask;
    ask.model_fingerprint = 1;
    ask.keys = keys_;
    ask.prompt_tokens = r.prompt_tokens;
    if (avoid >= 0) ask.avoid.push_back({NumberOf(avoid), epochs_[avoid]});
    absl::StatusOr<router::Route> route = fleet_.planner.Choose(ask);
    if (!route.ok() || (route->together() && !computes_on_decode_)) return {};
    SimRoute found;
    if (setup_.workers > 0 && !route->together()) found.prefill = route->computes.worker;
    if (route->kv_holder.worker < setup_.workers) found.holder = route->kv_holder.worker;
    if (setup_.decode_workers > 0) {
      found.decode = route->answers.worker - (ample_prefill_ ? 1 : 0);
    }
    routes_.insert_or_assign(request, *std::move(route));
    return found;
  }
  void OnAnswer(int request, const SimRoute&, int64_t now_us) override {
    Advance(now_us);
    const auto found = routes_.find(request);
    fleet_.planner.OnFirstToken(found->second);
    if (setup_.decode_workers > 0) return;  // its answer is still to come
    fleet_.planner.OnRouteWorked(found->second, /*kv_moved=*/true);
    fleet_.planner.OnRouteEnded(found->second);
    routes_.erase(found);
  }
  void OnEnd(int request, const SimRoute&, const SimAnswer& answer, int64_t now_us) override {
    Advance(now_us);
    const auto found = routes_.find(request);
    fleet_.planner.OnRouteWorked(found->second, answer.moved_tokens > 0);
    fleet_.planner.OnRouteEnded(found->second);
    fleet_.planner.OnAnswered(
        answer.generated_tokens,
        static_cast<int64_t>(static_cast<double>(answer.moved_tokens) * setup_.kv_bytes_per_token),
        absl::Microseconds(answer.moved_us));
    routes_.erase(found);
  }
  void OnLoss(int request, const SimRoute&, int64_t now_us) override {
    Advance(now_us);
    const auto found = routes_.find(request);
    const bool decodes = setup_.decode_workers > 0;
    fleet_.planner.OnRouteFailed(found->second,
                                 decodes ? router::Blame::kAnswers : router::Blame::kPair);
    routes_.erase(found);
  }

  int64_t IndexBytes() const override { return fleet_.index.memory_bytes(); }

 private:
  static router::RouteOptions OptionsOf(const RouterSetup& setup, const BatonOptions& options) {
    router::RouteOptions route;
    route.kv_fetch = options.kv_fetch;
    if (options.prices_fetches) route.kv_fetch_bytes_per_second = setup.fetch_bytes_per_second;
    return route;
  }
  static constexpr int kAmpleBlocks = 1 << 24;

  // In the roster, where a tier that is not simulated has a worker, too.
  int NumberOf(int worker) const { return ample_prefill_ ? worker + 1 : worker; }

  void Advance(int64_t now_us) {
    clock_.Set(now_us);
    if (now_us < next_tick_us_) return;
    next_tick_us_ = now_us + 500'000;
    ReportAmpleWorkers();
    fleet_.roster.Tick();
  }
  void Tell(int worker, const worker_pb::WatchResponse& event) {
    const absl::Status told = fleet_.roster.OnEvent(worker, event);
    BATON_CHECK(told.ok()) << told.ToString();
  }
  // Decode workers never tell what prefill would cost there: none computes a prompt itself.
  void ReportAmpleWorkers() {
    for (int worker : ample_) {
      worker_pb::WatchResponse event;
      event.mutable_load()->set_free_blocks(kAmpleBlocks);
      Tell(worker, event);
    }
  }

  const RouterSetup setup_;
  const bool hears_links_;
  const bool ample_prefill_, computes_on_decode_;
  const Trace& trace_;
  SimClock clock_;
  std::unique_ptr<router::Policy> policy_;
  router::RoutedFleet fleet_;
  absl::flat_hash_map<int, router::Route> routes_;
  absl::flat_hash_map<int, uint64_t> epochs_;  // of the workers, as they last said
  std::vector<kv::PrefixKey> keys_;
  std::vector<int> ample_;  // numbers of the workers that are not simulated
  int64_t next_tick_us_ = 0;
};

}  // namespace

std::unique_ptr<router::Policy> SimPolicy(uint64_t seed) { return LocalPolicy(0)(seed); }

MakePolicy LocalPolicy(int max_local_prefill_tokens) {
  return [max_local_prefill_tokens](uint64_t seed) {
    router::PricedOptions priced;
    priced.max_local_prefill_tokens = max_local_prefill_tokens;
    priced.seed = seed;
    return std::make_unique<router::PricedPolicy>(priced);
  };
}

MakeRouter MakeBatonRouter(MakePolicy make_policy, BatonOptions options) {
  return [make_policy, options](const RouterSetup& setup) {
    return std::make_unique<BatonRouter>(make_policy(setup.seed), setup, options);
  };
}

}  // namespace baton::simulator
