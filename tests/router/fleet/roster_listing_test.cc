// Workers that come and go while requests run: their numbers, what they get, what is forgotten.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "common/base/error.h"
#include "router/fleet/roster.h"
#include "router/fleet/worker_costs.h"
#include "router/routing/routed_fleet.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/seed.h"

namespace baton::router {
namespace {

using ::baton::testing::FakeCard;
using ::baton::testing::FakeClock;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kCardTokenizer = 77;
constexpr v1::WorkerRole kP = v1::WORKER_ROLE_PREFILL, kD = v1::WORKER_ROLE_DECODE;

class RosterListingTest : public ::testing::Test {
 protected:
  void MakeReady(int worker, v1::WorkerRole role, std::vector<uint64_t> keys = {},
                 uint64_t model = 0xA0DE1) {
    roster_.OnStreamStarted(worker);
    internal::v1::WatchResponse event;
    *event.mutable_card() = FakeCard(role, kCardTokenizer);
    event.mutable_card()->set_model_fingerprint(model);
    ASSERT_TRUE(roster_.OnEvent(worker, event).ok());
    event.mutable_snapshot()->mutable_keys()->Assign(keys.begin(), keys.end());
    event.mutable_snapshot()->set_last(true);
    ASSERT_TRUE(roster_.OnEvent(worker, event).ok());
    ASSERT_TRUE(Report(worker).ok());
  }
  absl::Status Report(int worker) {
    internal::v1::WatchResponse event;
    event.mutable_load()->set_free_blocks(64);
    return roster_.OnEvent(worker, event);
  }
  absl::StatusOr<Route> Choose(std::vector<uint64_t> keys = {}) {
    RouteRequest request;
    request.model_fingerprint = 0xA0DE1;
    request.keys = keys;
    request.prompt_tokens = 100;
    return planner_.Choose(request);
  }
  v1::WorkerStatus StatusOf(const std::string& address) {
    for (const v1::WorkerStatus& status : roster_.List()) {
      if (status.address() == address) return status;
    }
    return v1::WorkerStatus();
  }

  FakeClock clock_;
  PrefixThenLoad policy_;
  router::RoutedFleet fleet_{{"p0:1"}, {"d0:1"}, kCardTokenizer, policy_, clock_};
  Roster& roster_ = fleet_.roster;
  RoutePlanner& planner_ = fleet_.planner;
};

TEST_F(RosterListingTest, CostsAreThoseOfTheCardAndTheLastReport) {
  MakeReady(1, kD);
  const v1::WorkerCosts before = roster_.Loads()[1].costs();
  const internal::v1::WorkerCard card = FakeCard(kD, kCardTokenizer);
  EXPECT_EQ(before.max_num_seqs(), card.max_num_seqs());
  EXPECT_EQ(before.kv_blocks(), card.total_blocks());
  EXPECT_EQ(before.block_tokens(), card.kv_layout().block_tokens());
  EXPECT_FALSE(before.has_prompt_step() || before.has_decode_step()) << "nothing was measured";
  EXPECT_EQ(before.link_bytes_per_second(), 0);
  internal::v1::WatchResponse event;
  internal::v1::LoadReport& load = *event.mutable_load();
  load.mutable_prefill_cost()->set_token_us(40);
  load.mutable_decode_cost()->set_fixed_us(7000);
  load.mutable_decode_cost()->set_sequence_us(20);
  load.mutable_decode_cost()->set_context_token_us(0.5);
  for (const double rate : {1e9, 3e9, 0.0}) load.add_links()->set_bytes_per_second(rate);
  ASSERT_TRUE(roster_.OnEvent(1, event).ok());
  load.clear_links();  // as most reports are
  ASSERT_TRUE(roster_.OnEvent(1, event).ok());
  const v1::WorkerCosts after = roster_.Loads()[1].costs();
  EXPECT_EQ(after.prompt_step().token_us(), 40);
  EXPECT_EQ(after.decode_step().fixed_us(), 7000);
  EXPECT_EQ(after.decode_step().sequence_us(), 20);
  EXPECT_EQ(after.decode_step().context_token_us(), 0.5);
  EXPECT_DOUBLE_EQ(after.link_bytes_per_second(), 1.5e9) << "harmonic, of those with a rate";
  // A card of a new process begins without measurements.
  roster_.OnStreamLost(1, absl::UnavailableError("gone"));
  MakeReady(1, kD);
  EXPECT_FALSE(roster_.Loads()[1].costs().has_decode_step());
}

TEST(WorkerCostsTest, StatesOfRecurrentLayersAreNoKvOfTokens) {
  internal::v1::WorkerCard card = FakeCard(kD, kCardTokenizer);
  card.set_total_blocks(1200);  // pages
  card.set_kv_block_bytes(8000);
  internal::v1::BlockShape& shape = *card.mutable_block_shape();
  shape.set_full_pages(2);
  shape.set_window_pages(6);
  shape.set_window_blocks(1);
  shape.set_window_bytes(6000);
  const int block_tokens = card.kv_layout().block_tokens();
  const v1::WorkerCosts windows = WorkerCostsOf(card, {}, 0);
  EXPECT_EQ(windows.kv_blocks(), 150);
  EXPECT_DOUBLE_EQ(windows.kv_bytes_per_token(), 8000.0 / block_tokens);
  shape.set_recurrent(true);
  const v1::WorkerCosts states = WorkerCostsOf(card, {}, 0);
  EXPECT_EQ(states.kv_blocks(), 600);
  EXPECT_DOUBLE_EQ(states.kv_bytes_per_token(), 2000.0 / block_tokens);
}

TEST_F(RosterListingTest, AWorkersWorkIsThatOfItsCardOrElseOfItsRole) {
  EXPECT_THAT(StatusOf("d0:1").capabilities(), ElementsAre()) << "it has shown no card";
  MakeReady(0, kP);
  MakeReady(1, kD);
  EXPECT_THAT(StatusOf("p0:1").capabilities(),
              ElementsAre(v1::WORKER_CAPABILITY_COMPUTE, v1::WORKER_CAPABILITY_SCORE));
  EXPECT_THAT(StatusOf("d0:1").capabilities(), ElementsAre(v1::WORKER_CAPABILITY_ANSWER));
  roster_.OnStreamStarted(1);
  internal::v1::WatchResponse event;
  *event.mutable_card() = FakeCard(kD, kCardTokenizer);
  event.mutable_card()->set_epoch(event.card().epoch() + 1);
  event.mutable_card()->add_capabilities(v1::WORKER_CAPABILITY_ANSWER);
  event.mutable_card()->add_capabilities(v1::WORKER_CAPABILITY_SCORE);
  ASSERT_TRUE(roster_.OnEvent(1, event).ok());
  EXPECT_THAT(StatusOf("d0:1").capabilities(),
              ElementsAre(v1::WORKER_CAPABILITY_SCORE, v1::WORKER_CAPABILITY_ANSWER));
}

TEST_F(RosterListingTest, AWorkerThatIsAddedServesAndTheOthersKeepWhatTheyHave) {
  MakeReady(0, kP, {1, 2});
  MakeReady(1, kD);
  const int64_t version = roster_.roster_version();
  ASSERT_TRUE(roster_.SetWorkers({{kD, "d0:1"}, {kP, "p1:1"}, {kP, "p0:1"}}).ok());
  EXPECT_GT(roster_.roster_version(), version);
  EXPECT_THAT(roster_.Watched(), ElementsAre(0, 1, 2));
  EXPECT_EQ(roster_.address(2), "p1:1");
  EXPECT_EQ(StatusOf("p0:1").indexed_blocks(), 2);
  EXPECT_EQ(StatusOf("p1:1").state(), v1::WORKER_STATE_CONNECTING);
  EXPECT_EQ(Choose({7})->computes.worker, 0) << "the new one has not introduced itself";
  MakeReady(2, kP, {7, 8});
  EXPECT_EQ(Choose({7, 8})->computes.worker, 2);
  EXPECT_EQ(Choose({1, 2})->computes.worker, 0);
}

TEST_F(RosterListingTest, AWorkerThatIsNoLongerListedKeepsItsRequestsAndGetsNoOthers) {
  MakeReady(0, kP);
  MakeReady(1, kD);
  std::optional<Route> running = *Choose();
  ASSERT_TRUE(roster_.SetWorkers({{kD, "d0:1"}, {kP, "p1:1"}}).ok());
  EXPECT_EQ(StatusOf("p0:1").state(), v1::WORKER_STATE_DRAINING);
  EXPECT_EQ(StatusOf("p0:1").detail(), "no longer listed");
  EXPECT_TRUE(Choose()->together());
  ASSERT_TRUE(Report(0).ok());
  EXPECT_EQ(StatusOf("p0:1").state(), v1::WORKER_STATE_DRAINING) << "its word changes nothing";
  EXPECT_EQ(roster_.LifeOf(running->computes), ProcessLife::kLives);
  EXPECT_THAT(roster_.Departed(), IsEmpty()) << "a request is still there";
  EXPECT_FALSE(roster_.Release(0));
  running.reset();
  EXPECT_THAT(roster_.Departed(), ElementsAre(0));
  EXPECT_TRUE(roster_.Release(0));
  EXPECT_THAT(roster_.Watched(), ElementsAre(1, 2));
  EXPECT_EQ(StatusOf("p0:1").address(), "") << "not told of any more";
}

TEST_F(RosterListingTest, ItsSilenceStillEndsWhatRunsOnIt) {
  MakeReady(1, kD);
  const Route running = *Choose();
  ASSERT_TRUE(roster_.SetWorkers({{kD, "d1:1"}}).ok());
  clock_.Advance(kSuspectAfter + absl::Milliseconds(1));
  roster_.Tick();
  EXPECT_EQ(roster_.LifeOf(running.answers), ProcessLife::kLives);
  clock_.Advance(kExpireAfter);
  EXPECT_THAT(roster_.Tick(), ElementsAre(1));
  EXPECT_EQ(roster_.LifeOf(running.answers), ProcessLife::kGone);
}

TEST_F(RosterListingTest, ListedAgainItGoesOnWarm) {
  MakeReady(0, kP, {1, 2});
  MakeReady(1, kD);
  ASSERT_TRUE(roster_.SetWorkers({{kD, "d0:1"}}).ok());
  EXPECT_THAT(roster_.Departed(), ElementsAre(0));
  ASSERT_TRUE(roster_.SetWorkers({{kD, "d0:1"}, {kP, "p0:1"}}).ok());
  EXPECT_FALSE(roster_.Release(0)) << "its stream is to be opened again";
  EXPECT_THAT(roster_.Departed(), IsEmpty());
  const auto route = Choose({1, 2});
  EXPECT_EQ(route->computes.worker, 0);
  EXPECT_EQ(route->matched_blocks, 2);
}

TEST_F(RosterListingTest, ANumberIsUsedAgainOnlyWhenNothingRefersToItAndThenStartsCold) {
  MakeReady(0, kP, {1, 2});
  MakeReady(1, kD);
  std::optional<Route> running = *Choose({1, 2});
  for (int i = 0; i < 2; ++i) planner_.OnRouteFailed(*running, Blame::kPair);
  ASSERT_TRUE(roster_.SetWorkers({{kD, "d0:1"}, {kP, "p1:1"}}).ok());
  EXPECT_EQ(roster_.address(2), "p1:1") << "0 is not free yet";
  running.reset();
  ASSERT_TRUE(roster_.Release(0));
  ASSERT_TRUE(roster_.SetWorkers({{kD, "d0:1"}, {kP, "p1:1"}, {kP, "p2:1"}}).ok());
  EXPECT_EQ(roster_.address(0), "p2:1");
  EXPECT_EQ(StatusOf("p2:1").state(), v1::WORKER_STATE_CONNECTING);
  EXPECT_EQ(StatusOf("p2:1").indexed_blocks(), 0);
  MakeReady(0, kP);
  EXPECT_EQ(Choose({1, 2})->computes.worker, 0) << "failures of the earlier one are forgotten";
  EXPECT_EQ(roster_.worker_count(), 3);
}

TEST_F(RosterListingTest, AnAddressMayChangeItsRole) {
  MakeReady(0, kP);
  MakeReady(1, kD);
  ASSERT_TRUE(roster_.SetWorkers({{kD, "p0:1"}, {kP, "d0:1"}}).ok());
  EXPECT_THAT(roster_.Departed(), ElementsAre(0, 1));
  EXPECT_TRUE(roster_.Release(0));
  EXPECT_TRUE(roster_.Release(1));
  MakeReady(2, kD);
  MakeReady(3, kP);
  EXPECT_EQ(Choose()->answers.address, "p0:1");
}

TEST_F(RosterListingTest, ASetThatCannotBeChangesNothing) {
  MakeReady(0, kP);
  MakeReady(1, kD);
  const absl::Status twice = roster_.SetWorkers({{kP, "a:1"}, {kD, "a:1"}});
  EXPECT_EQ(ErrorReason(twice), "LISTED_TWICE");
  std::vector<WorkerAddress> many;
  for (int i = 0; i < kMaxWorkers - 1; ++i) many.push_back({kD, "x:" + std::to_string(i)});
  const absl::Status too_many = roster_.SetWorkers(many);
  EXPECT_EQ(ErrorReason(too_many), "TOO_MANY_WORKERS");
  EXPECT_EQ(roster_.worker_count(), 2);
  EXPECT_TRUE(Choose()->computes.worker == 0);
  many.pop_back();
  EXPECT_TRUE(roster_.SetWorkers(many).ok());
  EXPECT_EQ(roster_.worker_count(), kMaxWorkers);
}

TEST_F(RosterListingTest, WorkersThatAreLeavingDoNotKeepAnotherModelOut) {
  MakeReady(0, kP);
  MakeReady(1, kD);
  const Route running = *Choose();
  ASSERT_TRUE(roster_.SetWorkers({{kD, "d1:1"}}).ok());
  EXPECT_FALSE(roster_.model().has_value());
  EXPECT_THAT(std::string(Choose().status().message()), HasSubstr("1 listed: 1 connecting"));
  MakeReady(2, kD, {}, /*model=*/0xA0DE2);
  EXPECT_EQ(roster_.model()->fingerprint, 0xA0DE2u);
}

TEST_F(RosterListingTest, OneOfAnotherModelThatIsListedAgainIsRefused) {
  MakeReady(0, kP);
  MakeReady(1, kD);
  std::optional<Route> running = *Choose();
  ASSERT_TRUE(roster_.SetWorkers({{kD, "d1:1"}}).ok());
  MakeReady(2, kD, {}, /*model=*/0xA0DE2);
  ASSERT_TRUE(roster_.SetWorkers({{kD, "d1:1"}, {kD, "d0:1"}}).ok());
  EXPECT_EQ(StatusOf("d0:1").state(), v1::WORKER_STATE_REFUSED);
  EXPECT_EQ(roster_.model()->fingerprint, 0xA0DE2u);
  EXPECT_FALSE(Report(1).ok()) << "its stream is to be opened anew";
}

TEST_F(RosterListingTest, ASetMayGoBackToTheModelBefore) {
  MakeReady(1, kD);
  std::optional<Route> running = *Choose();
  ASSERT_TRUE(roster_.SetWorkers({{kD, "e0:1"}}).ok());
  MakeReady(2, kD, {}, /*model=*/0xA0DE2);
  ASSERT_TRUE(roster_.SetWorkers({{kD, "d0:1"}}).ok());
  EXPECT_EQ(StatusOf("d0:1").state(), v1::WORKER_STATE_READY) << "the other model leaves";
  EXPECT_EQ(Choose()->answers.address, "d0:1");
}

TEST_F(RosterListingTest, WhatIsSuspectAndNoLongerListedIsNoLastResort) {
  ASSERT_TRUE(roster_.SetWorkers({{kP, "p0:1"}, {kP, "p1:1"}, {kP, "p2:1"}, {kD, "d0:1"}}).ok());
  for (int worker : {0, 2, 3}) MakeReady(worker, kP);
  clock_.Advance(kSuspectAfter + absl::Milliseconds(1));
  MakeReady(1, kD);
  roster_.Tick();
  EXPECT_FALSE(Choose()->together()) << "all are silent: it is the router's ear";
  ASSERT_TRUE(roster_.SetWorkers({{kP, "p1:1"}, {kD, "d0:1"}}).ok());
  EXPECT_TRUE(Choose()->together());
}

TEST_F(RosterListingTest, OneProcessIsOneWorkerWhateverItsAddresses) {
  ASSERT_TRUE(roster_.SetWorkers({{kD, "127.0.0.1:1"}, {kD, "[::1]:1"}}).ok());
  internal::v1::WatchResponse event;
  *event.mutable_card() = FakeCard(kD, kCardTokenizer);
  for (int worker : {2, 3}) roster_.OnStreamStarted(worker);
  ASSERT_TRUE(roster_.OnEvent(2, event).ok());
  EXPECT_EQ(ErrorReason(roster_.OnEvent(3, event)), "SAME_WORKER");
  EXPECT_EQ(StatusOf("[::1]:1").state(), v1::WORKER_STATE_REFUSED);
  EXPECT_THAT(StatusOf("[::1]:1").detail(), HasSubstr("127.0.0.1:1"));
  // It may have the other address once it no longer has the first.
  ASSERT_TRUE(roster_.SetWorkers({{kD, "[::1]:1"}}).ok());
  roster_.OnStreamStarted(3);
  EXPECT_TRUE(roster_.OnEvent(3, event).ok());
}

// Random sets, requests and releases: a number that a request holds always means the same worker.
TEST_F(RosterListingTest, NumbersAreStableWhateverComesAndGoes) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<Route> running;
  int most_listed = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<WorkerAddress> listed = {{kD, "d0:1"}};
    for (int i = 0; i < 12; ++i) {
      if (random() % 2) listed.push_back({kP, "w:" + std::to_string(i)});
    }
    most_listed = std::max<int>(most_listed, listed.size());
    ASSERT_TRUE(roster_.SetWorkers(listed).ok());
    for (int worker : roster_.Departed()) {
      for (const Route& route : running) ASSERT_NE(route.computes.worker, worker);
      if (random() % 2) roster_.Release(worker);
    }
    for (int worker : roster_.Watched()) {
      const std::string address = roster_.address(worker);
      const v1::WorkerStatus status = StatusOf(address);
      if (status.state() == v1::WORKER_STATE_CONNECTING) {
        MakeReady(worker, address[0] == 'd' ? kD : kP);
      }
    }
    if (const auto route = Choose(); random() % 2 && route.ok()) running.push_back(*route);
    while (running.size() > 4) running.erase(running.begin() + random() % running.size());
    for (const Route& route : running) {
      if (route.together()) continue;
      ASSERT_EQ(roster_.address(route.computes.worker), route.computes.address);
      ASSERT_EQ(roster_.LifeOf(route.computes), ProcessLife::kLives);
    }
  }
  EXPECT_LE(roster_.worker_count(), 14) << "numbers are used again; most listed " << most_listed;
}

}  // namespace
}  // namespace baton::router
