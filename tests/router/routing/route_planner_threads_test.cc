// Decisions of a RoutePlanner side by side, while workers come, go and report.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "router/routing/priced_policy.h"
#include "router/routing/route_planner.h"
#include "router/routing/routed_fleet.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/fake_worker.h"

namespace baton::router {
namespace {

using ::baton::testing::FakeCard;
using ::baton::testing::FakeClock;

constexpr uint64_t kTokenizerOfAll = 77;
constexpr int kPrefillWorkers = 6, kAllWorkers = 9;
const std::vector<kv::PrefixKey> kSharedKeys = {1, 2, 3, 4};

// Until so many choose at the same time, none has chosen.
class MeetingPolicy final : public Policy {
 public:
  explicit MeetingPolicy(int callers) : all_here_(callers) {}
  absl::string_view name() const override { return "meeting"; }
  RouteChoice Choose(const RouteQuery&, const Candidates&, absl::Span<const Candidate>) override {
    all_here_.Block();
    RouteChoice choice;
    choice.prefill = 0;
    choice.decision = "load";
    return choice;
  }

 private:
  absl::Barrier all_here_;
};

std::vector<std::string> AddressesOf(const char* letter, int count) {
  std::vector<std::string> addresses;
  for (int i = 0; i < count; ++i) addresses.push_back(absl::StrCat(letter, i, ":1"));
  return addresses;
}

class RoutePlannerThreadsTest : public ::testing::Test {
 protected:
  void Make(Policy& policy) {
    fleet_.emplace(AddressesOf("p", kPrefillWorkers),
                   AddressesOf("d", kAllWorkers - kPrefillWorkers), kTokenizerOfAll, policy,
                   clock_);
    for (int worker = 0; worker < kAllWorkers; ++worker) Start(worker, /*epoch=*/1);
  }
  void Start(int worker, uint64_t epoch) {
    const bool decode = worker >= kPrefillWorkers;
    fleet_->roster.OnStreamStarted(worker);
    internal::v1::WatchResponse event;
    *event.mutable_card() =
        FakeCard(decode ? v1::WORKER_ROLE_DECODE : v1::WORKER_ROLE_PREFILL, kTokenizerOfAll);
    event.mutable_card()->set_epoch(epoch);
    event.mutable_card()->set_prefix_caching(!decode);
    Tell(worker, event);
    event.Clear();
    event.mutable_snapshot()->set_last(true);
    event.mutable_snapshot()->mutable_keys()->Add(1);
    Tell(worker, event);
    Report(worker, 0);
  }
  void Tell(int worker, const internal::v1::WatchResponse& event) {
    const absl::Status told = fleet_->roster.OnEvent(worker, event);
    EXPECT_TRUE(told.ok()) << told;
  }
  void Report(int worker, int64_t remaining_us) {
    internal::v1::WatchResponse event;
    internal::v1::LoadReport& load = *event.mutable_load();
    load.set_free_blocks(1000);
    load.set_remaining_work_us(remaining_us);
    load.mutable_prefill_cost()->set_fixed_us(10'000);
    load.mutable_prefill_cost()->set_token_us(1000);
    Tell(worker, event);
  }
  absl::StatusOr<Route> Choose() {
    RouteRequest request;
    request.model_fingerprint = 0xA0DE1;
    request.keys = kSharedKeys;
    request.prompt_tokens = static_cast<int>(kSharedKeys.size()) * 16 + 4;
    request.explain = true;
    return fleet_->planner.Choose(request);
  }

  FakeClock clock_;
  std::optional<router::RoutedFleet> fleet_;
};

TEST_F(RoutePlannerThreadsTest, DecisionsAreMadeSideBySide) {
  constexpr int kCallers = 4;
  MeetingPolicy policy(kCallers);
  Make(policy);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([this] { EXPECT_TRUE(Choose().ok()); });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(RoutePlannerThreadsTest, AllThatIsSentIsCountedAndAllThatEndsIsNot) {
  PricedPolicy policy;
  Make(policy);
  std::atomic<bool> stop{false};
  std::thread fleet([&] {
    for (int turn = 0; !stop; ++turn) {
      const int worker = turn % (kPrefillWorkers - 1);  // the last one stays, and decode workers do
      if (turn % 7 == 0) {
        fleet_->roster.OnStreamLost(worker, absl::UnavailableError("lost"));
        Start(worker, /*epoch=*/2 + turn);
      } else {
        Report(worker, turn % 5 * 1000);
      }
      fleet_->roster.Tick();
    }
  });
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([this] {
      for (int i = 0; i < 300; ++i) {
        const absl::StatusOr<Route> route = Choose();
        ASSERT_TRUE(route.ok()) << route.status();
        EXPECT_GE(route->answers.worker, kPrefillWorkers);
        EXPECT_FALSE(route->answers.address.empty());
        fleet_->planner.OnFirstToken(*route);
        fleet_->planner.OnRouteWorked(*route, /*kv_moved=*/true);
        fleet_->planner.OnAnswered(10, 1000, absl::Milliseconds(1));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  stop = true;
  fleet.join();
  // Nothing is left of those that have ended: all workers are idle.
  for (int worker = 0; worker < kAllWorkers; ++worker) Report(worker, 0);
  clock_.Advance(absl::Milliseconds(100));
  for (int worker = 0; worker < kAllWorkers; ++worker) Report(worker, 0);
  const absl::StatusOr<Route> route = Choose();
  ASSERT_TRUE(route.ok());
  for (const DecisionCandidate& c : route->why->candidates) {
    EXPECT_EQ(c.queue_seconds, 0) << c.address;
  }
}

}  // namespace
}  // namespace baton::router
