// Decisions of a RoutePlanner with the priced policy, from what workers reported and what was sent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "router/routing/decision_log.h"
#include "tests/router/routing/route_planner_fixture.h"

namespace baton::router {
namespace {

using ::baton::testing::FakeCard;

TEST_F(RoutePlannerTest, WhatWasSentIsMatchedAsIfItWereCachedAndExpires) {
  const auto first = Choose(kPromptKeys);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->matched_blocks, 0);
  EXPECT_EQ(first->predicted_ttft, absl::Milliseconds(10 + 100));
  clock_.Advance(absl::Milliseconds(20));
  // 90 + 14 ms behind the first, 110 ms on an idle worker.
  const auto second = Choose(kPromptKeys);
  EXPECT_EQ(second->computes.worker, first->computes.worker);
  EXPECT_EQ(second->matched_blocks, 6);
}

TEST_F(RoutePlannerTest, SentPromptsThatNoWorkerTellsOfAreForgotten) {
  const int worker = Choose(kPromptKeys)->computes.worker;
  clock_.Advance(absl::Milliseconds(2200));
  for (int i = kFleetPrefill0; i <= kDecode1; ++i) Report(i);
  roster_.Tick();
  EXPECT_EQ(Choose(kPromptKeys, /*dispatch=*/false)->matched_blocks, 0);
  Cache(worker, kPromptKeys);
  EXPECT_EQ(Choose(kPromptKeys, /*dispatch=*/false)->matched_blocks, 6);
}

TEST_F(RoutePlannerTest, AWorkerThatCameBackHasNothingOfWhatTheOldOneWasSent) {
  const int worker = Choose(kPromptKeys)->computes.worker;
  roster_.OnStreamLost(worker, absl::UnavailableError("killed"));
  Start(worker);
  const auto route = Choose(kPromptKeys, /*dispatch=*/false);
  EXPECT_EQ(route->matched_blocks, 0);
  for (const DecisionCandidate& c : route->why->candidates) EXPECT_EQ(c.cached_tokens, 0);
}

TEST_F(RoutePlannerTest, TheDecisionIsToldAsItWasMade) {
  Cache(kFleetPrefill1, {1, 2, 3, 4});
  Report(kFleetPrefill1, 0.02);
  const auto route = Choose(kPromptKeys);
  EXPECT_EQ(route->computes.worker, kFleetPrefill1);
  const Decision& why = *route->why;
  EXPECT_EQ(why.label, "prefix");
  EXPECT_EQ(why.policy, "priced");
  EXPECT_EQ(why.predicted_cached_tokens, 64);
  EXPECT_NEAR(why.predicted_ttft_seconds, 0.02 + 0.01 + 0.036, 1e-9);
  EXPECT_EQ(why.prefill_candidates, 3);
  ASSERT_GE(why.candidates.size(), 3u);
  EXPECT_EQ(why.candidates[0].worker, kFleetPrefill1);
  EXPECT_NEAR(why.candidates[0].queue_seconds, 0.02, 1e-9);
  EXPECT_NEAR(why.candidates[0].service_seconds, 0.046, 1e-9);
  EXPECT_NEAR(why.candidates[1].service_seconds, 0.110, 1e-9);
  EXPECT_GT(why.candidates[1].cost, why.candidates[0].cost);
}

class LocalPromptTest : public RoutePlannerTest {
 protected:
  LocalPromptTest() : RoutePlannerTest(RouteOptions(), 0, PricedOptions()) {}
  // What Report says of prefill workers.
  void TellCost(int worker, int running = 0, int64_t token_us = 1000) {
    internal::v1::WatchResponse event;
    event.mutable_load()->set_free_blocks(1000);
    event.mutable_load()->set_running(running);
    event.mutable_load()->mutable_prefill_cost()->set_fixed_us(10'000);
    event.mutable_load()->mutable_prefill_cost()->set_token_us(token_us);
    Tell(worker, event);
  }
  // From the choice to the end of the answer, each of which a report follows.
  Route Serve(const std::vector<uint64_t>& keys) {
    Route route = *Choose(keys);
    clock_.Advance(absl::Milliseconds(100));
    planner_.OnFirstToken(route);
    planner_.OnRouteEnded(route);
    for (int worker = kFleetPrefill0; worker <= kDecode1; ++worker) {
      computed_[worker] += route.computes.worker == worker ? 1 : 0;
      if (worker >= kDecode0 && computed_[worker] >= kPromptsToKnow) {
        TellCost(worker);
      } else {
        Report(worker);
      }
    }
    return route;
  }

  static constexpr int kPromptsToKnow = 11;  // as a worker's common/worker/step_cost.h has it
  std::array<int, 5> computed_ = {};
};

// Decode workers report what prompts cost there once they have computed some.
TEST_F(LocalPromptTest, OnAnIdleFleetPromptsAreComputedWhereTheyAreAnswered) {
  int local = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    local += Serve({100 + i}).decision == "local" ? 1 : 0;
    if (HasFailure()) return;
  }
  EXPECT_EQ(local, 40);
  EXPECT_EQ(computed_[kDecode0], 20);
  EXPECT_EQ(computed_[kDecode1], 20);
}

TEST_F(LocalPromptTest, AMeasuredCostTakesThePlaceOfTheOneThatStoodIn) {
  for (int worker : {kDecode0, kDecode1}) TellCost(worker, /*running=*/0, /*token_us=*/20'000);
  EXPECT_FALSE(Choose(kPromptKeys, false)->together()) << "2 s against 110 ms and the move";
}

TEST_F(LocalPromptTest, AShortTailOnADecodeWorkerThatAnswersOthersStaysThere) {
  for (int worker : {kDecode0, kDecode1}) TellCost(worker, /*running=*/3);
  EXPECT_FALSE(Choose(kPromptKeys, false)->together()) << "the whole prompt would delay the others";
  Cache(kDecode1, kPromptKeys);
  const auto route = Choose(kPromptKeys, false);
  EXPECT_EQ(route->decision, "local");
  EXPECT_TRUE(route->together());
  EXPECT_EQ(route->answers.worker, kDecode1);
  EXPECT_EQ(route->matched_blocks, 6);
}

TEST_F(LocalPromptTest, WhatADecodeWorkerWasSentToComputeIsMatchedAsIfItWereCached) {
  LosePrefillWorkers();
  const int worker = Choose(kPromptKeys)->computes.worker;
  const auto second = Choose(kPromptKeys, /*dispatch=*/false);
  EXPECT_EQ(second->decision, "decode_only");
  for (const DecisionCandidate& c : second->why->candidates) {
    EXPECT_EQ(c.cached_tokens, c.worker == worker ? 96 : 0) << c.worker;
  }
}

// All prefill workers are busy for 2 s and decode worker 0 for 1 s; decode worker 1 is idle, but
// its steps are slow, and it computes for others.
class LentPromptTest : public LocalPromptTest {
 protected:
  LentPromptTest() {
    devices_[kDecode1] = "slow steps";
    capabilities_[kDecode1] = {v1::WORKER_CAPABILITY_COMPUTE, v1::WORKER_CAPABILITY_ANSWER};
    roster_.OnStreamLost(kDecode1, absl::UnavailableError("restarted"));
    Start(kDecode1);
    for (int worker : {kFleetPrefill0, kFleetPrefill1, kPrefill2}) Report(worker, 2);
    for (int worker : {kDecode0, kDecode1}) {
      internal::v1::WatchResponse event;
      internal::v1::LoadReport& load = *event.mutable_load();
      load.set_free_blocks(1000);
      load.set_remaining_work_us(worker == kDecode0 ? 1'000'000 : 0);
      load.mutable_prefill_cost()->set_fixed_us(10'000);
      load.mutable_prefill_cost()->set_token_us(1000);
      load.mutable_decode_cost()->set_fixed_us(worker == kDecode0 ? 10'000 : 50'000);
      Tell(worker, event);
    }
    roster_.Tick();
  }
};

TEST_F(LentPromptTest, AnIdleDecodeWorkerComputesForOneThatAnswersFaster) {
  const auto route = Choose(kPromptKeys);
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->decision, "lent");
  EXPECT_EQ(route->computes.worker, kDecode1);
  EXPECT_EQ(route->answers.worker, kDecode0);
  EXPECT_FALSE(route->together());
  EXPECT_EQ(route->predicted_ttft, absl::Milliseconds(10 + 100));
  const Decision& why = *route->why;
  EXPECT_EQ(why.kappa, 0) << "a decode worker has no such price";
  const auto lender = std::find_if(why.candidates.begin(), why.candidates.end(),
                                   [](const auto& c) { return c.worker == kDecode1; });
  ASSERT_NE(lender, why.candidates.end());
  EXPECT_EQ(lender->role, v1::WORKER_ROLE_DECODE);
  EXPECT_NEAR(lender->service_seconds, 0.110, 1e-9);
  EXPECT_NEAR(lender->cost, 1, 1e-6)
      << "110 ms, the move, and what is left then of the second that worker 0 computes";
  EXPECT_EQ(std::count_if(why.candidates.begin(), why.candidates.end(),
                          [](const auto& c) { return c.worker == kDecode1; }),
            1);
  const v1::Decision told = ToProto(why);
  EXPECT_EQ(told.computes_address(), "d1:1");
  EXPECT_EQ(told.answers_address(), "d0:1");
  // The next one waits for this one there, until it is computed.
  const std::vector<uint64_t> next = {21, 22, 23, 24, 25, 26};
  EXPECT_EQ(Choose(next, false)->predicted_ttft, absl::Milliseconds(220));
  planner_.OnFirstToken(*route);
  EXPECT_EQ(Choose(next, false)->predicted_ttft, absl::Milliseconds(110));
  planner_.OnRouteEnded(*route);
}

TEST_F(LentPromptTest, ARequestThatHasFailedThereGoesAnotherWay) {
  const auto lent = Choose(kPromptKeys);
  ASSERT_EQ(lent->decision, "lent");
  planner_.OnRouteFailed(*lent, Blame::kPair);
  RouteRequest request;
  request.model_fingerprint = 0xA0DE1;
  request.keys = kPromptKeys;
  request.prompt_tokens = 100;
  request.failed = absl::MakeConstSpan(&*lent, 1);
  const auto other = planner_.Choose(request);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->decision, "local");
}

TEST_F(LentPromptTest, APairThatFailsTogetherDoesNotLend) {
  for (int i = 0; i < kFailuresToAvoid; ++i) {
    const auto route = Choose(kPromptKeys);
    ASSERT_EQ(route->decision, "lent");
    planner_.OnRouteFailed(*route, Blame::kPair);
  }
  const auto route = Choose(kPromptKeys);
  EXPECT_EQ(route->decision, "local");
  EXPECT_EQ(route->answers.worker, kDecode0);
}

// One worker for all of a request.
class AloneTest : public RoutePlannerTest {
 protected:
  AloneTest() {
    capabilities_[kDecode1] = {v1::WORKER_CAPABILITY_SCORE, v1::WORKER_CAPABILITY_ANSWER};
    roster_.OnStreamLost(kDecode1, absl::UnavailableError("restarted"));
    Start(kDecode1);
  }
  absl::StatusOr<Route> ChooseAlone(RouteRequest::Workers workers, Incarnation only = {}) {
    RouteRequest request;
    request.model_fingerprint = 0xA0DE1;
    request.prompt_tokens = 100;
    request.workers = workers;
    request.only = only;
    request.explain = true;
    return planner_.Choose(request);
  }
  absl::StatusOr<Route> ChooseToScore() { return ChooseAlone(RouteRequest::Workers::kScore); }
};

TEST_F(AloneTest, WithoutPrefillWorkersADecodeWorkerThatCanScoreDoes) {
  EXPECT_LT(ChooseToScore()->answers.worker, kDecode0) << "prefill workers first";
  LosePrefillWorkers();
  const auto route = ChooseToScore();
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->answers.worker, kDecode1);
  EXPECT_TRUE(route->together());
  EXPECT_EQ(route->why->prefill_candidates, 1);
  EXPECT_EQ(ToProto(*route->why).answers_address(), "d1:1");
  // It is work there, until it is done.
  const auto behind = ChooseToScore();
  EXPECT_EQ(behind->predicted_ttft, 2 * route->predicted_ttft);
  planner_.OnFirstToken(*behind);
  planner_.OnFirstToken(*route);
  EXPECT_EQ(ChooseToScore()->predicted_ttft, route->predicted_ttft);
  roster_.OnStreamLost(kDecode1, absl::UnavailableError("killed"));
  const absl::Status none = ChooseToScore().status();
  EXPECT_EQ(ErrorReason(none), "NO_PREFILL_WORKER");
  EXPECT_THAT(std::string(none.message()), ::testing::HasSubstr("decode worker that can score"));
}

TEST_F(AloneTest, APrefillWorkerThatDoesNotScoreIsNotAskedTo) {
  for (int worker : {kFleetPrefill0, kFleetPrefill1, kPrefill2}) {
    capabilities_[worker] = {v1::WORKER_CAPABILITY_COMPUTE};
    roster_.OnStreamLost(worker, absl::UnavailableError("restarted"));
    Start(worker);
  }
  EXPECT_EQ(ChooseToScore()->answers.worker, kDecode1);
  EXPECT_LT(Choose(kPromptKeys)->computes.worker, kDecode0);
}

TEST_F(AloneTest, ADecodeWorkerThatIsNamedComputesAlone) {
  const Incarnation named = roster_.Find("d0:1")->incarnation();
  const auto route = ChooseAlone(RouteRequest::Workers::kPrefill, named);
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->answers.worker, kDecode0);
  EXPECT_TRUE(route->together());
  planner_.OnFirstToken(*route);
  planner_.OnRouteEnded(*route);
  EXPECT_EQ(ErrorReason(ChooseAlone(RouteRequest::Workers::kPrefill, {kDecode0, 1}).status()),
            "NO_WORKER")
      << "another process at the address";
}

TEST_F(RoutePlannerTest, WhenAllPrefillWorkersAreSilentPromptsGoHome) {
  const auto silent_but = [this](std::vector<int> heard) {
    clock_.Advance(kSuspectAfter + absl::Milliseconds(1));
    for (int worker : heard) Report(worker);
    roster_.Tick();
  };
  silent_but({kFleetPrefill1, kDecode0, kDecode1});
  EXPECT_EQ(Choose(kPromptKeys, false)->computes.worker, kFleetPrefill1) << "the others hang";
  EXPECT_NE(Choose(kPromptKeys, false)->decision, "home");
  for (int worker : {kFleetPrefill0, kPrefill2}) Report(worker);
  silent_but({kDecode0, kDecode1});
  const auto home = Choose(kPromptKeys, false);
  EXPECT_EQ(home->decision, "home");
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Choose(kPromptKeys)->computes.worker, home->computes.worker)
        << "whatever was sent there";
  }
}

TEST_F(RoutePlannerTest, ALonePrefillWorkerThatIsSilentIsNotTrusted) {
  for (int worker : {kFleetPrefill0, kFleetPrefill1}) {
    roster_.OnStreamLost(worker, absl::UnavailableError("killed"));
  }
  clock_.Advance(kSuspectAfter + absl::Milliseconds(1));
  for (int worker : {kDecode0, kDecode1}) Report(worker);
  roster_.Tick();
  EXPECT_EQ(Choose(kPromptKeys)->decision, "decode_only");
}

TEST_F(RoutePlannerTest, AlreadyBusyDecodeWorkersGetFewerAnswers) {
  int to_first = 0;
  for (int i = 0; i < 40; ++i) to_first += Choose({100u + i})->answers.worker == kDecode0;
  EXPECT_GT(to_first, 10);
  EXPECT_LT(to_first, 30);
}

// Answers begin and end between two reports.
TEST_F(RoutePlannerTest, ShortAnswersAreSharedEvenlyHoweverOldTheReportsAre) {
  auto ask = [this, key = uint64_t{100}]() mutable {
    const Route route = *Choose({++key});
    planner_.OnFirstToken(route);
    planner_.OnRouteEnded(route);
    return route.answers.worker == kDecode0 ? 1 : 0;
  };
  int to_first = 0;
  for (int i = 0; i < 80; ++i) to_first += ask();
  EXPECT_EQ(to_first, 40);
  // Some reports show a worker in the middle of an answer.
  to_first = 0;
  for (int i = 0; i < 80; ++i) {
    const Route route = *Choose({1000u + i});
    to_first += route.answers.worker == kDecode0 ? 1 : 0;
    clock_.Advance(absl::Milliseconds(30));
    if (i % 7 == 0) Report(route.answers.worker, 0, /*running=*/1);
    clock_.Advance(absl::Milliseconds(1));
    planner_.OnFirstToken(route);
    planner_.OnRouteEnded(route);
  }
  EXPECT_EQ(to_first, 40);
  // What one worker reports is no reason to send it the next dozen.
  clock_.Advance(absl::Milliseconds(100));
  Report(kDecode0);
  to_first = 0;
  for (int i = 0; i < 80; ++i) to_first += ask();
  EXPECT_EQ(to_first, 40);
  // Requests that were lost count no more, either.
  for (int i = 0; i < 10; ++i) {
    const Route route = *Choose({2000u + i});
    planner_.OnRouteFailed(route, Blame::kNone);
  }
  to_first = 0;
  for (int i = 0; i < 80; ++i) to_first += ask();
  EXPECT_EQ(to_first, 40);
}

TEST_F(RoutePlannerTest, AfterALossAWorkerThatWasSilentForLongerIsTheLastChoice) {
  clock_.Advance(absl::Seconds(2));
  for (int worker : {kFleetPrefill0 + 1, kDecode1}) Report(worker, 0, /*running=*/20);
  RouteRequest request;
  request.model_fingerprint = 0xA0DE1;
  request.prompt_tokens = 4;
  EXPECT_EQ(planner_.Choose(request)->answers.worker, kDecode0) << "the idle one";
  request.after_loss = true;
  for (int i = 0; i < 5; ++i) {
    const Route route = *planner_.Choose(request);
    EXPECT_EQ(route.answers.worker, kDecode1);
    EXPECT_EQ(route.computes.worker, kFleetPrefill0 + 1);
  }
  // Where all are equally silent, load decides again.
  clock_.Advance(absl::Milliseconds(900));
  Report(kDecode0);
  EXPECT_EQ(planner_.Choose(request)->answers.worker, kDecode0);
}

TEST_F(RoutePlannerTest, WhatTransfersTakeIsLearned) {
  Cache(kDecode0, {1, 2, 3});
  for (int worker : {kDecode0, kDecode1}) {
    internal::v1::WatchResponse event;
    event.mutable_load()->set_free_blocks(1000);
    event.mutable_load()->set_running(worker == kDecode0 ? 2 : 0);
    Tell(worker, event);
  }
  // Three blocks of 128 KiB at 1 GB/s are less than what two sequences add to an answer's steps.
  EXPECT_EQ(Choose(kPromptKeys, false)->answers.worker, kDecode1);
  for (int i = 0; i < 10; ++i) planner_.OnAnswered(100, 1 << 20, absl::Seconds(1));
  EXPECT_EQ(Choose(kPromptKeys, false)->answers.worker, kDecode0);
  // Long answers turn it again.
  for (int i = 0; i < 200; ++i) planner_.OnAnswered(100'000, 0, absl::ZeroDuration());
  EXPECT_EQ(Choose(kPromptKeys, false)->answers.worker, kDecode1);
}

TEST_F(RoutePlannerTest, TransferTimesThatCannotBeAreBounded) {
  planner_.OnAnswered(100, 1 << 20, absl::InfiniteDuration());
  planner_.OnAnswered(100, 1 << 20, -absl::InfiniteDuration());
  const auto route = Choose(kPromptKeys, false);
  for (const DecisionCandidate& c : route->why->candidates) EXPECT_LT(c.cost, 100);
}

// What decode workers tell of their links, in bytes a second by prefill worker.
class MeasuredLinksTest : public RoutePlannerTest {
 protected:
  void Start(int worker, const std::string& id) {
    roster_.OnStreamStarted(worker);
    internal::v1::WatchResponse event;
    *event.mutable_card() = FakeCard(
        worker >= kDecode0 ? v1::WORKER_ROLE_DECODE : v1::WORKER_ROLE_PREFILL, kFleetTokenizer);
    event.mutable_card()->set_worker_id(id);
    event.mutable_card()->set_epoch(7);
    event.mutable_card()->set_total_blocks(pool_blocks_);
    event.mutable_card()->set_kv_block_bytes(kBlockBytes);
    Tell(worker, event);
    event.Clear();
    event.mutable_snapshot()->set_last(true);
    Tell(worker, event);
    Report(worker);
  }
  MeasuredLinksTest() {
    for (int worker = kFleetPrefill0; worker <= kDecode1; ++worker) {
      roster_.OnStreamLost(worker, absl::UnavailableError("restarted"));
      Start(worker, absl::StrCat("w", worker));
    }
  }
  void TellLinks(int decode, const std::vector<double>& rates, const std::string& prefix = "w") {
    internal::v1::WatchResponse event;
    event.mutable_load()->set_free_blocks(1000);
    for (size_t i = 0; i < rates.size(); ++i) {
      internal::v1::LinkRate& link = *event.mutable_load()->add_links();
      link.set_worker_id(absl::StrCat(prefix, i));
      link.set_epoch(7);
      link.set_bytes_per_second(rates[i]);
    }
    Tell(decode, event);
    clock_.Advance(absl::Milliseconds(200));
    roster_.Tick();
  }
};

TEST_F(MeasuredLinksTest, ASlowLinkIsAvoidedAndTheDecisionSaysWhatItTakes) {
  // Seven blocks of 128 KiB: 0.92 MB, at 1 MB/s longer than the prompt's 110 ms.
  TellLinks(kDecode0, {1e6, 1e6, 1e6});
  TellLinks(kDecode1, {1e7, 1e7, 1e7});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Choose(kPromptKeys, false)->answers.worker, kDecode1);
  const auto route = Choose(kPromptKeys, false);
  double chosen = -1, other = -1;
  for (const DecisionCandidate& c : route->why->candidates) {
    if (c.role != v1::WORKER_ROLE_DECODE) continue;
    (c.worker == kDecode1 ? chosen : other) = c.transfer_seconds;
  }
  const double bytes = 7 * kBlockBytes;
  EXPECT_NEAR(chosen, bytes / 1e7 / 2, 1e-6) << "hidden, but for one layer of two";
  EXPECT_NEAR(other, bytes / 1e6 * 1.5 - 0.110, 1e-5);
  EXPECT_NEAR(route->why->predicted_ttft_seconds, 0.110, 1e-9) << "the first token overtakes KV";
}

TEST_F(MeasuredLinksTest, ALinkIsForgottenWithTheProcessThatItWasMeasuredTo) {
  TellLinks(kDecode0, {1e6, 1e6, 1e6});
  TellLinks(kDecode1, {1e7, 1e7, 1e7});
  roster_.OnStreamLost(kDecode0, absl::UnavailableError("killed"));
  Start(kDecode0, "another");
  clock_.Advance(absl::Milliseconds(200));
  roster_.Tick();
  int to_first = 0;
  for (int i = 0; i < 40; ++i) to_first += Choose(kPromptKeys, false)->answers.worker == kDecode0;
  EXPECT_GT(to_first, 5) << "as the prefill workers' other links";
}

// Routers without such reports decide as they did: of links to unknown workers, too.
TEST_F(MeasuredLinksTest, WithoutAKnownLinkNothingChanges) {
  const auto choices = [this](bool told) {
    PricedPolicy policy;
    router::RoutedFleet fleet({"p0:1", "p1:1", "p2:1"}, {"d0:1", "d1:1"}, kFleetTokenizer, policy,
                              clock_);
    for (int worker = kFleetPrefill0; worker <= kDecode1; ++worker) {
      fleet.roster.OnStreamStarted(worker);
      internal::v1::WatchResponse event;
      *event.mutable_card() = FakeCard(
          worker >= kDecode0 ? v1::WORKER_ROLE_DECODE : v1::WORKER_ROLE_PREFILL, kFleetTokenizer);
      event.mutable_card()->set_total_blocks(pool_blocks_);
      event.mutable_card()->set_kv_block_bytes(kBlockBytes);
      EXPECT_TRUE(fleet.roster.OnEvent(worker, event).ok());
      event.Clear();
      event.mutable_snapshot()->set_last(true);
      EXPECT_TRUE(fleet.roster.OnEvent(worker, event).ok());
      event.Clear();
      event.mutable_load()->set_free_blocks(1000);
      if (told && worker >= kDecode0) {
        internal::v1::LinkRate& link = *event.mutable_load()->add_links();
        link.set_worker_id("unknown");
        link.set_epoch(7);
        link.set_bytes_per_second(worker == kDecode0 ? 1e6 : 1e9);
      }
      EXPECT_TRUE(fleet.roster.OnEvent(worker, event).ok());
    }
    fleet.roster.Tick();
    std::vector<std::string> chosen;
    for (uint64_t i = 0; i < 200; ++i) {
      const std::vector<uint64_t> keys = {i % 7, 1000 + i % 31, 5000 + i};
      RouteRequest request;
      request.model_fingerprint = 0xA0DE1;
      request.keys = keys;
      request.prompt_tokens = 52;
      request.explain = true;
      const auto route = fleet.planner.Choose(request);
      chosen.push_back(absl::StrCat(route->computes.worker, " ", route->answers.worker));
      for (const DecisionCandidate& c : route->why->candidates) {
        absl::StrAppend(&chosen.back(), " ", c.worker, ":", c.cost, ":", c.transfer_seconds);
      }
    }
    return chosen;
  };
  EXPECT_EQ(choices(true), choices(false));
}

class SloTest : public RoutePlannerTest {
 protected:
  static RouteOptions WithSlo() {
    RouteOptions options;
    options.ttft_slo = absl::Milliseconds(500);
    return options;
  }
  SloTest() : RoutePlannerTest(WithSlo()) {}
};

TEST_F(SloTest, WhatComesTooLateIsRefusedWithTheTimeToRetry) {
  for (int i = kFleetPrefill0; i <= kPrefill2; ++i) Report(i, 1 + i);
  const auto route = Choose(kPromptKeys);
  EXPECT_EQ(route.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(route.status()), "TTFT_SLO_UNREACHABLE");
  // 1 s of queue and 110 ms of its own, 610 ms too late.
  const absl::Duration retry = *ErrorRetryAfter(route.status());
  EXPECT_GE(retry, absl::Milliseconds(610));
  EXPECT_LE(retry, absl::Milliseconds(1220));
  EXPECT_TRUE(Choose(kPromptKeys, true, /*may_refuse=*/false).ok()) << "one that has begun goes on";
  clock_.Advance(absl::Milliseconds(700));
  EXPECT_TRUE(Choose(kPromptKeys).ok());
}

TEST_F(SloTest, NothingIsRefusedWhileNoWorkerHasReportedWhatPromptsTake) {
  LosePrefillWorkers();
  // The decode workers alone, which have told nothing.
  std::vector<uint64_t> keys(5000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i + 1;
  EXPECT_EQ(ErrorReason(Choose(keys).status()), "TTFT_SLO_UNREACHABLE") << "80 s on their kind";
  for (const absl::Duration passed : {kExpireAfter + absl::Milliseconds(1), absl::Seconds(1)}) {
    clock_.Advance(passed);
    for (int worker : {kDecode0, kDecode1}) Report(worker);
    roster_.Tick();
  }
  EXPECT_TRUE(Choose(keys).ok()) << "the prefill workers are forgotten";
}

// Asking is not sending: whoever asks about long prompts does not make the others' computing cheap.
// A worker always computes the last token, so it reuses no block that holds it.
TEST_F(RoutePlannerTest, ThePromptsLastTokenIsNeverPredictedToBeCached) {
  const std::vector<uint64_t> keys(kPromptKeys.begin(), kPromptKeys.begin() + 4);
  Cache(kFleetPrefill1, keys);
  const auto cached_of = [&](int prompt_tokens, bool dispatch) {
    RouteRequest request;
    request.model_fingerprint = 0xA0DE1;
    request.keys = keys;
    request.prompt_tokens = prompt_tokens;
    request.LimitTo(prompt_tokens, 16);
    request.dispatch = dispatch;
    request.explain = true;
    const auto route = planner_.Choose(request);
    EXPECT_TRUE(route.ok()) << route.status();
    EXPECT_EQ(route->computes.worker, kFleetPrefill1);
    EXPECT_EQ(route->matched_blocks * 16, route->why->predicted_cached_tokens);
    return route->why->predicted_cached_tokens;
  };
  EXPECT_EQ(cached_of(64, /*dispatch=*/false), 48);
  EXPECT_EQ(cached_of(65, /*dispatch=*/false), 64);
  // Nor where it was sent a moment ago.
  EXPECT_EQ(cached_of(64, /*dispatch=*/true), 48);
  EXPECT_EQ(cached_of(64, /*dispatch=*/false), 48);
}

TEST_F(RoutePlannerTest, AskingLeavesNoTrace) {
  const auto price = [this] {
    const absl::StatusOr<Route> route = Choose({77}, /*dispatch=*/false);
    return route->why->kappa;
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Choose({uint64_t(100 + i)}).ok());
  const double before = price();
  ASSERT_GT(before, 0);
  RouteRequest huge;
  huge.model_fingerprint = 0xA0DE1;
  huge.prompt_tokens = 100'000;
  huge.dispatch = false;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(planner_.Choose(huge).ok());
  EXPECT_DOUBLE_EQ(price(), before);
}

}  // namespace
}  // namespace baton::router
