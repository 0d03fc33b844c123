// Three prefill and two decode workers as a RoutePlanner with the priced policy knows them: by
// cards, reports and caches that a test makes up.
#ifndef BATON_TESTS_ROUTER_ROUTING_ROUTE_PLANNER_FIXTURE_H_
#define BATON_TESTS_ROUTER_ROUTING_ROUTE_PLANNER_FIXTURE_H_

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "router/fleet/roster.h"
#include "router/routing/priced_policy.h"
#include "router/routing/routed_fleet.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/fake_worker.h"

namespace baton::router {

inline constexpr uint64_t kFleetTokenizer = 77;
inline constexpr int kFleetPrefill0 = 0, kFleetPrefill1 = 1, kPrefill2 = 2, kDecode0 = 3,
                     kDecode1 = 4;
inline const std::vector<uint64_t> kPromptKeys = {1, 2, 3, 4, 5, 6};
inline constexpr int64_t kBlockBytes = 128 << 10;

class RoutePlannerTest : public ::testing::Test {
 protected:
  explicit RoutePlannerTest(const RouteOptions& options = RouteOptions(), int tier_segment = 0,
                            const PricedOptions& priced = {.max_local_prefill_tokens = 0})
      : tier_segment_(tier_segment),
        policy_(priced),
        fleet_({"p0:1", "p1:1", "p2:1"}, {"d0:1", "d1:1"}, kFleetTokenizer, policy_, clock_,
               options) {
    for (int worker = kFleetPrefill0; worker <= kDecode1; ++worker) Start(worker);
  }
  void Start(int worker) {
    const bool decode = worker >= kDecode0;
    roster_.OnStreamStarted(worker);
    internal::v1::WatchResponse event;
    *event.mutable_card() = testing::FakeCard(
        decode ? v1::WORKER_ROLE_DECODE : v1::WORKER_ROLE_PREFILL, kFleetTokenizer);
    event.mutable_card()->set_total_blocks(pool_blocks_);
    event.mutable_card()->set_kv_block_bytes(kBlockBytes);
    event.mutable_card()->set_prefix_caching(true);
    event.mutable_card()->set_device(devices_[worker]);
    for (const auto capability : capabilities_[worker]) {
      event.mutable_card()->add_capabilities(capability);
    }
    event.mutable_card()->set_kv_tier_segment_tokens(tier_segment_);
    event.mutable_card()->set_kv_tier_max_segments(tier_segment_ > 0 ? 100 : 0);
    if (state_bytes_ > 0) {
      internal::v1::BlockShape& shape = *event.mutable_card()->mutable_block_shape();
      shape.set_full_pages(1);
      shape.set_window_pages(state_bytes_ / kBlockBytes);
      shape.set_window_blocks(1);
      shape.set_recurrent(true);
      shape.set_window_bytes(state_bytes_);
      event.mutable_card()->set_kv_block_bytes(kBlockBytes + state_bytes_);
    }
    Tell(worker, event);
    event.Clear();
    event.mutable_snapshot()->set_last(true);
    event.mutable_snapshot()->set_sequence(1);
    Tell(worker, event);
    Report(worker);
    sequence_[worker] = 1;
  }
  void Tell(int worker, const internal::v1::WatchResponse& event) {
    const absl::Status told = roster_.OnEvent(worker, event);
    ASSERT_TRUE(told.ok()) << told;
  }
  // 10 ms, and 1 ms a token.
  void Report(int worker, double remaining_s = 0, int running = 0) {
    internal::v1::WatchResponse event;
    internal::v1::LoadReport& load = *event.mutable_load();
    load.set_free_blocks(1000);
    load.set_running(running);
    load.set_remaining_work_us(static_cast<int64_t>(remaining_s * 1e6));
    if (worker < kDecode0) {
      load.mutable_prefill_cost()->set_fixed_us(10'000);
      load.mutable_prefill_cost()->set_token_us(1000);
    }
    load.set_kv_tier_load_us(tier_load_us_);
    Tell(worker, event);
  }
  void Cache(int worker, std::vector<uint64_t> added) {
    internal::v1::WatchResponse event;
    event.mutable_delta()->set_sequence(++sequence_[worker]);
    event.mutable_delta()->mutable_added()->Assign(added.begin(), added.end());
    Tell(worker, event);
  }
  absl::StatusOr<Route> Choose(const std::vector<uint64_t>& keys, bool dispatch = true,
                               bool may_refuse = true) {
    RouteRequest request;
    request.model_fingerprint = 0xA0DE1;
    request.keys = keys;
    request.prompt_tokens = static_cast<int>(keys.size()) * 16 + 4;
    request.dispatch = dispatch;
    request.may_refuse = may_refuse;
    request.explain = true;
    return planner_.Choose(request);
  }

  void LosePrefillWorkers() {
    for (int worker = kFleetPrefill0; worker <= kPrefill2; ++worker) {
      roster_.OnStreamLost(worker, absl::UnavailableError("killed"));
    }
  }

  const int tier_segment_;  // tokens; 0: workers have no KV tiers
  int64_t tier_load_us_ = 0;
  int64_t state_bytes_ = 0;  // of a recurrent model's state, whole blocks'
  int pool_blocks_ = 1000;
  // On cards, from the next start of the worker on.
  std::array<std::string, 5> devices_;
  std::array<std::vector<v1::WorkerCapability>, 5> capabilities_;
  testing::FakeClock clock_;
  PricedPolicy policy_;
  router::RoutedFleet fleet_;
  Roster& roster_ = fleet_.roster;
  RoutePlanner& planner_ = fleet_.planner;
  std::array<uint64_t, 5> sequence_ = {};
};

}  // namespace baton::router

#endif  // BATON_TESTS_ROUTER_ROUTING_ROUTE_PLANNER_FIXTURE_H_
