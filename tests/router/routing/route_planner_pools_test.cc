// Requests of a pool, and of none, among workers of pools: who serves them, and when they spill.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "router/routing/priced_policy.h"
#include "router/routing/route_planner.h"
#include "router/routing/routed_fleet.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/fake_worker.h"

namespace baton::router {
namespace {

using ::baton::testing::FakeCard;
using ::baton::testing::FakeClock;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kPooledTokenizer = 78;

// Workers 0 and 1 compute prompts: of no pool, and of "long". Workers 2 and 3 decode, likewise.
class RoutePlannerPoolsTest : public ::testing::Test {
 protected:
  RoutePlannerPoolsTest()
      : fleet_({"p0:1", "p1:1"}, {"d2:1", "d3:1"}, kPooledTokenizer, policy_, clock_) {
    for (int worker : {0, 2}) Join(worker, "");
    for (int worker : {1, 3}) Join(worker, "long");
  }
  void Join(int worker, const std::string& pool) {
    fleet_.roster.OnStreamStarted(worker);
    internal::v1::WatchResponse event;
    *event.mutable_card() =
        FakeCard(worker < 2 ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE, kPooledTokenizer);
    event.mutable_card()->set_pool(pool);
    event.mutable_card()->set_total_blocks(100);
    Say(worker, event);
    event.Clear();
    event.mutable_snapshot()->set_last(true);
    event.mutable_snapshot()->set_sequence(1);
    Say(worker, event);
    SetFree(worker, 100);
  }
  void Say(int worker, const internal::v1::WatchResponse& event) {
    const absl::Status said = fleet_.roster.OnEvent(worker, event);
    ASSERT_TRUE(said.ok()) << said;
  }
  void SetFree(int worker, int blocks) {
    internal::v1::WatchResponse event;
    event.mutable_load()->set_free_blocks(blocks);
    Say(worker, event);
  }
  void Lose(int worker) { fleet_.roster.OnStreamLost(worker, absl::UnavailableError("gone")); }
  absl::StatusOr<Route> Choose(const std::string& pool, bool spill = true,
                               std::vector<Incarnation> avoid = {}) {
    RouteRequest request;
    request.model_fingerprint = 0xA0DE1;
    request.prompt_tokens = 64;
    request.pool = pool;
    request.spill = spill;
    request.avoid = std::move(avoid);
    request.avoided_prefill_may_do = true;
    request.explain = true;
    request.dispatch = false;
    return fleet_.planner.Choose(request);
  }
  // The workers of the choice that compute and answer.
  std::pair<int, int> Chosen(const std::string& pool, bool spill = true) {
    const auto route = Choose(pool, spill);
    EXPECT_TRUE(route.ok()) << route.status();
    return route.ok() ? std::pair(route->computes.worker, route->answers.worker)
                      : std::pair(-9, -9);
  }

  FakeClock clock_;
  PricedPolicy policy_;
  router::RoutedFleet fleet_;
};

TEST_F(RoutePlannerPoolsTest, RequestsGoToTheWorkersOfTheirPool) {
  EXPECT_EQ(Chosen(""), std::pair(0, 2));
  EXPECT_EQ(Chosen("long"), std::pair(1, 3));
  const auto route = Choose("long");
  EXPECT_THAT(route->spilled, IsEmpty());
  EXPECT_EQ(route->why->pool, "long");
  ASSERT_EQ(route->why->candidates.size(), 2u);
  EXPECT_EQ(route->why->candidates[0].pool, "long");
}

TEST_F(RoutePlannerPoolsTest, WithoutAReadyWorkerTheySpillIfTheyMay) {
  Lose(1);
  const auto route = Choose("long");
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->computes.worker, 0);
  EXPECT_EQ(route->answers.worker, 3);
  EXPECT_THAT(route->spilled, ElementsAre(v1::WORKER_ROLE_PREFILL));
  EXPECT_THAT(route->why->spilled, ElementsAre(v1::WORKER_ROLE_PREFILL));
  EXPECT_EQ(Chosen("long", /*spill=*/false), std::pair(3, 3))
      << "the decode worker of the pool computes the prompt";
  Lose(3);
  EXPECT_EQ(Chosen("long"), std::pair(0, 2));
  SetFree(2, 3);
  EXPECT_EQ(Chosen("long"), std::pair(0, 2)) << "it waits there, as a request of no pool does";
  SetFree(2, 100);
  const absl::Status none = Choose("long", /*spill=*/false).status();
  EXPECT_EQ(ErrorReason(none), "NO_WORKER");
  EXPECT_THAT(std::string(none.message()), ::testing::HasSubstr("long"));
  EXPECT_EQ(Chosen(""), std::pair(0, 2));
}

TEST_F(RoutePlannerPoolsTest, AFullPoolSpills) {
  SetFree(3, 3);  // of the 4 blocks that the prompt takes
  EXPECT_EQ(Chosen("long"), std::pair(1, 2));
  EXPECT_EQ(Chosen("long", /*spill=*/false), std::pair(1, 3)) << "it waits there";
  SetFree(2, 3);
  EXPECT_EQ(Chosen("long"), std::pair(1, 3)) << "the others are full, too";
  SetFree(3, 4);
  EXPECT_EQ(Chosen("long"), std::pair(1, 3));
}

TEST_F(RoutePlannerPoolsTest, AWorkerThatRefusedTheRequestIsFull) {
  const Route first = *Choose("long");
  const auto again = Choose("long", true, {first.computes.incarnation()});
  EXPECT_EQ(again->computes.worker, 0);
  EXPECT_THAT(again->spilled, ElementsAre(v1::WORKER_ROLE_PREFILL));
  EXPECT_EQ(Choose("long", false, {first.computes.incarnation()})->computes.worker, 1);
}

TEST_F(RoutePlannerPoolsTest, RequestsOfNoPoolSpillIntoPoolsOnlyIfTheyMay) {
  Lose(2);
  EXPECT_EQ(Chosen(""), std::pair(0, 3));
  EXPECT_EQ(ErrorReason(Choose("", /*spill=*/false).status()), "NO_WORKER");
}

TEST_F(RoutePlannerPoolsTest, APoolThatNoWorkerHasIsOneWithoutAReadyWorker) {
  EXPECT_EQ(Chosen("typo"), std::pair(0, 2)) << "those of no pool before those of others";
  for (int worker : {2, 3}) SetFree(worker, 3);
  EXPECT_TRUE(Choose("typo").ok()) << "all are full: it waits at one";
  for (int worker : {2, 3}) SetFree(worker, 100);
  EXPECT_THAT(Choose("typo")->spilled,
              ElementsAre(v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE));
  EXPECT_EQ(ErrorReason(Choose("typo", /*spill=*/false).status()), "NO_WORKER");
}

TEST_F(RoutePlannerPoolsTest, ARoleWithoutTheWorkersOfAPoolServesItAsItServesNone) {
  for (int worker : {1, 3}) Lose(worker);
  Join(1, "prompts");  // decode workers have no such pool
  Join(3, "");
  for (bool spill : {true, false}) {
    const auto route = Choose("prompts", spill);
    ASSERT_TRUE(route.ok()) << route.status();
    EXPECT_EQ(route->computes.worker, 1);
    EXPECT_THAT(route->spilled, IsEmpty());
  }
}

TEST_F(RoutePlannerPoolsTest, ListWorkersNamesThePool) {
  EXPECT_EQ(fleet_.roster.List()[0].pool(), "");
  EXPECT_EQ(fleet_.roster.List()[3].pool(), "long");
  Lose(1);
  fleet_.roster.OnStreamStarted(1);
  internal::v1::WatchResponse event;
  *event.mutable_card() = FakeCard(v1::WORKER_ROLE_PREFILL, kPooledTokenizer);
  event.mutable_card()->set_pool("a b");
  EXPECT_EQ(ErrorReason(fleet_.roster.OnEvent(1, event)), "BAD_WORKER_CARD");
}

}  // namespace
}  // namespace baton::router
