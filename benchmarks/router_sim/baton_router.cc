#include "benchmarks/router_sim/baton_router.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"

namespace baton::benchmarks {
namespace {

namespace worker_pb = ::baton::internal::v1;

class SimClock final : public Clock {
 public:
  absl::Duration SinceStart() const override { return now_; }
  absl::Time Now() const override { return absl::UnixEpoch() + now_; }
  void Set(int64_t now_us) { now_ = absl::Microseconds(now_us); }

 private:
  absl::Duration now_;
};

std::vector<std::string> Addresses(int workers) {
  std::vector<std::string> addresses;
  for (int i = 0; i < workers; ++i) addresses.push_back(absl::StrCat("p", i, ":1"));
  return addresses;
}

class BatonRouter final : public SimRouter {
 public:
  BatonRouter(std::unique_ptr<router::Policy> policy, const RouterSetup& setup)
      : trace_(*setup.trace),
        decode_(setup.workers),
        policy_(std::move(policy)),
        membership_(Addresses(setup.workers), {"d:1"}, /*tokenizer_fingerprint=*/1, *policy_,
                    clock_),
        mirror_(setup.workers) {
    // One decode worker with room for all, which never tells what prefill would cost there.
    membership_.OnStreamStarted(decode_);
    worker_pb::WatchResponse event;
    *event.mutable_card() = SimWorker(Trace(), setup.cost, 1).Card("d");
    event.mutable_card()->set_role(v1::WORKER_ROLE_DECODE);
    event.mutable_card()->set_epoch(1);
    event.mutable_card()->set_total_blocks(kDecodeBlocks);
    Tell(decode_, event);
    event.Clear();
    event.mutable_snapshot()->set_last(true);
    Tell(decode_, event);
    ReportDecodeWorker();
  }

  void OnStreamStarted(int worker, int64_t now_us) override {
    Advance(now_us);
    membership_.OnStreamStarted(worker);
  }
  void OnStreamLost(int worker, int64_t now_us) override {
    Advance(now_us);
    membership_.OnStreamLost(worker, absl::UnavailableError("the worker was killed"));
  }
  void OnEvent(int worker, const worker_pb::WatchResponse& event, int64_t now_us) override {
    Advance(now_us);
    Tell(worker, event);
    if (event.has_card()) {
      epochs_[worker] = event.card().epoch();
      mirror_.DropWorker(worker);
      mirror_.SetCapacity(worker, event.card().total_blocks());
    }
    mirror_.Remove(worker, event.delta().removed());
    mirror_.Add(worker, event.snapshot().keys());
    mirror_.Add(worker, event.delta().added());
  }

  int Choose(int request, int avoid, int64_t now_us) override {
    Advance(now_us);
    const SimRequest& r = trace_.requests[request];
    keys_.clear();
    for (int32_t block : r.blocks) keys_.push_back(BlockKey(block));
    router::RouteRequest ask;
    ask.model_fingerprint = 1;
    ask.keys = keys_;
    ask.prompt_tokens = r.prompt_tokens;
    if (avoid >= 0) ask.avoid.push_back({avoid, epochs_[avoid]});
    absl::StatusOr<router::Route> route = membership_.Choose(ask);
    if (!route.ok() || route->prefill.worker == router::kNoWorker) return -1;
    const int worker = route->prefill.worker;
    routes_.insert_or_assign(request, *std::move(route));
    return worker;
  }
  void OnAnswer(int request, int worker, int64_t now_us) override {
    Advance(now_us);
    const auto found = routes_.find(request);
    membership_.OnFirstToken(found->second);
    membership_.OnRouteWorked(found->second, /*kv_moved=*/true);
    routes_.erase(found);
  }
  void OnLoss(int request, int worker, int64_t now_us) override {
    Advance(now_us);
    const auto found = routes_.find(request);
    membership_.OnRouteFailed(found->second, router::Blame::kPair);
    routes_.erase(found);
  }

  int64_t IndexBytes() const override { return mirror_.memory_bytes(); }

 private:
  static constexpr int kDecodeBlocks = 1 << 24;

  void Advance(int64_t now_us) {
    clock_.Set(now_us);
    if (now_us < next_tick_us_) return;
    next_tick_us_ = now_us + 500'000;
    ReportDecodeWorker();
    membership_.Tick();
  }
  void Tell(int worker, const worker_pb::WatchResponse& event) {
    const absl::Status told = membership_.OnEvent(worker, event);
    BATON_CHECK(told.ok()) << told.ToString();
  }
  void ReportDecodeWorker() {
    worker_pb::WatchResponse event;
    event.mutable_load()->set_free_blocks(kDecodeBlocks);
    Tell(decode_, event);
  }

  const Trace& trace_;
  const int decode_;
  SimClock clock_;
  std::unique_ptr<router::Policy> policy_;
  router::Membership membership_;
  router::PrefixIndex mirror_;  // told the same, to be weighed: a Membership shows no index
  absl::flat_hash_map<int, router::Route> routes_;
  absl::flat_hash_map<int, uint64_t> epochs_;  // of the workers, as they last said
  std::vector<kv::PrefixKey> keys_;
  int64_t next_tick_us_ = 0;
};

}  // namespace

MakeRouter MakeBatonRouter(MakePolicy make_policy) {
  return [make_policy](const RouterSetup& setup) {
    return std::make_unique<BatonRouter>(make_policy(), setup);
  };
}

}  // namespace baton::benchmarks
