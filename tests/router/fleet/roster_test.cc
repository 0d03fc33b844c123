#include "router/fleet/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/base/awake_clock.h"
#include "common/base/error.h"
#include "router/routing/routed_fleet.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/fake_worker.h"

namespace baton::router {
namespace {

using ::baton::testing::FakeCard;
using ::baton::testing::FakeClock;
using ::testing::HasSubstr;

constexpr uint64_t kTokenizer = 77;
constexpr int kPrefill0 = 0, kPrefill1 = 1, kDecode = 2;

class RosterTest : public ::testing::Test {
 protected:
  internal::v1::WorkerCard Card(int worker) {
    return FakeCard(worker == kDecode ? v1::WORKER_ROLE_DECODE : v1::WORKER_ROLE_PREFILL,
                    kTokenizer);
  }
  absl::Status Introduce(int worker, const internal::v1::WorkerCard& card) {
    roster_.OnStreamStarted(worker);
    internal::v1::WatchResponse event;
    *event.mutable_card() = card;
    return roster_.OnEvent(worker, event);
  }
  absl::Status Snapshot(int worker, uint64_t sequence, std::vector<uint64_t> keys,
                        bool last = true) {
    internal::v1::WatchResponse event;
    event.mutable_snapshot()->set_sequence(sequence);
    event.mutable_snapshot()->mutable_keys()->Assign(keys.begin(), keys.end());
    event.mutable_snapshot()->set_last(last);
    return roster_.OnEvent(worker, event);
  }
  absl::Status Delta(int worker, uint64_t sequence, std::vector<uint64_t> added,
                     std::vector<uint64_t> removed = {}) {
    internal::v1::WatchResponse event;
    event.mutable_delta()->set_sequence(sequence);
    event.mutable_delta()->mutable_added()->Assign(added.begin(), added.end());
    event.mutable_delta()->mutable_removed()->Assign(removed.begin(), removed.end());
    return roster_.OnEvent(worker, event);
  }
  absl::Status Load(int worker, int64_t queued_tokens = 0, bool draining = false) {
    internal::v1::WatchResponse event;
    event.mutable_load()->set_queued_tokens(queued_tokens);
    event.mutable_load()->set_free_blocks(64);
    event.mutable_load()->set_draining(draining);
    return roster_.OnEvent(worker, event);
  }
  void MakeReady(int worker, std::vector<uint64_t> keys = {}) {
    ASSERT_TRUE(Introduce(worker, Card(worker)).ok());
    ASSERT_TRUE(Snapshot(worker, 10, keys).ok());
    ASSERT_TRUE(Load(worker).ok());
  }
  v1::WorkerStatus StatusOf(int worker) { return roster_.List()[worker]; }
  absl::StatusOr<Route> Choose(std::vector<uint64_t> keys = {},
                               std::vector<Incarnation> avoid = {}) {
    RouteRequest request;
    request.model_fingerprint = Card(0).model_fingerprint();
    request.keys = keys;
    request.prompt_tokens = 100;
    request.avoid = avoid;
    return planner_.Choose(request);
  }

  void Pass(absl::Duration time) { testing::RunFor(time, machine_, clock_); }
  // Pauses the router's process: what workers send meanwhile arrives afterwards.
  void Pause(absl::Duration time) { machine_.Advance(time); }
  // Time passes in which workers report every 250 ms, as they do when they have no work.
  void Report(absl::Duration time, std::vector<int> workers) {
    for (absl::Duration end = clock_.SinceStart() + time; clock_.SinceStart() < end;) {
      Pass(absl::Milliseconds(250));
      for (int worker : workers) ASSERT_TRUE(Load(worker).ok());
      ASSERT_TRUE(roster_.Tick().empty());
    }
  }
  // How long the worker must be silent, in a router that ticks every 100 ms, until it is suspect.
  absl::Duration SilenceUntilSuspect(int worker, std::vector<int> others) {
    const absl::Duration begin = clock_.SinceStart();
    for (int tick = 0; StatusOf(worker).state() != v1::WORKER_STATE_SUSPECT; ++tick) {
      BATON_CHECK(tick < 100);
      Pass(absl::Milliseconds(100));
      for (int other : others) BATON_CHECK(Load(other).ok());
      roster_.Tick();
    }
    return clock_.SinceStart() - begin;
  }

  FakeClock machine_;
  AwakeClock clock_{machine_, /*own_thread=*/false};
  PrefixThenLoad policy_;
  router::RoutedFleet fleet_{{"p0:1", "p1:1"}, {"d0:1"}, kTokenizer, policy_, clock_};
  Roster& roster_ = fleet_.roster;
  RoutePlanner& planner_ = fleet_.planner;
};

TEST_F(RosterTest, ReadyAfterCardAndSnapshot) {
  EXPECT_EQ(StatusOf(kDecode).state(), v1::WORKER_STATE_CONNECTING);
  EXPECT_FALSE(roster_.model().has_value());
  ASSERT_TRUE(Introduce(kDecode, Card(kDecode)).ok());
  ASSERT_TRUE(Snapshot(kDecode, 1, {5}, /*last=*/false).ok());
  EXPECT_EQ(StatusOf(kDecode).state(), v1::WORKER_STATE_CONNECTING);
  ASSERT_TRUE(Snapshot(kDecode, 1, {6}).ok());
  EXPECT_EQ(StatusOf(kDecode).state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(StatusOf(kDecode).indexed_blocks(), 2);
  EXPECT_EQ(roster_.model()->max_model_len, 128);
  EXPECT_FALSE(roster_.Ready()) << "no prefill worker yet";
  MakeReady(kPrefill0);
  EXPECT_TRUE(roster_.Ready());
}

TEST_F(RosterTest, SilenceMakesSuspectThenExpired) {
  std::vector<v1::WorkerRole> expired;
  roster_.SetOnExpired([&expired](v1::WorkerRole role) { expired.push_back(role); });
  MakeReady(kPrefill0, {1, 2});
  MakeReady(kDecode);
  Pass(absl::Milliseconds(3001));
  EXPECT_TRUE(roster_.Tick().empty());
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_SUSPECT);
  EXPECT_EQ(StatusOf(kPrefill0).indexed_blocks(), 2) << "suspicion alone forgets nothing";
  EXPECT_EQ(Choose().status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(Load(kDecode).ok());  // a word is enough
  EXPECT_EQ(StatusOf(kDecode).state(), v1::WORKER_STATE_READY);
  Pass(absl::Milliseconds(3001));
  EXPECT_TRUE(expired.empty());
  EXPECT_EQ(roster_.Tick(), std::vector<int>{kPrefill0});
  EXPECT_EQ(expired, std::vector{v1::WORKER_ROLE_PREFILL});
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_EXPIRED);
  EXPECT_EQ(StatusOf(kPrefill0).indexed_blocks(), 0);
  // What still comes on the stream that is being ended is not believed.
  EXPECT_FALSE(Load(kPrefill0).ok());
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_EXPIRED);
  MakeReady(kPrefill0);
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_READY);
}

TEST_F(RosterTest, LostStreamGetsNoWorkAndExpiresIfItStaysAway) {
  MakeReady(kPrefill0, {1});
  roster_.OnStreamLost(kPrefill0, absl::UnavailableError("connection reset"));
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_CONNECTING);
  EXPECT_EQ(StatusOf(kPrefill0).detail(), "connection reset");
  EXPECT_EQ(StatusOf(kPrefill0).indexed_blocks(), 1);
  Pass(absl::Seconds(7));
  EXPECT_TRUE(roster_.Tick().empty()) << "there is no stream to end";
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_EXPIRED);
}

// A worker that hangs: its connection is closed after 5 s without an answer to a ping, and no new
// one is established.
TEST_F(RosterTest, StreamsThatAreTriedAgainDoNotEndTheSilence) {
  std::vector<v1::WorkerRole> expired;
  roster_.SetOnExpired([&expired](v1::WorkerRole role) { expired.push_back(role); });
  MakeReady(kPrefill0, {1});
  MakeReady(kDecode);
  const auto retry_for = [this](absl::Duration time) {
    for (absl::Duration end = clock_.SinceStart() + time; clock_.SinceStart() < end;) {
      ASSERT_TRUE(Load(kDecode).ok());
      roster_.OnStreamStarted(kPrefill0);
      Pass(absl::Milliseconds(1500));
      roster_.OnStreamLost(kPrefill0, absl::UnavailableError("no answer"));
      Pass(absl::Milliseconds(500));
      roster_.Tick();
    }
  };
  Pass(absl::Seconds(5));
  roster_.OnStreamLost(kPrefill0, absl::UnavailableError("keepalive"));
  retry_for(absl::Seconds(2));
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_EXPIRED);
  EXPECT_EQ(StatusOf(kPrefill0).indexed_blocks(), 0);
  retry_for(absl::Seconds(20));
  // Accepted, but nothing comes.
  roster_.OnStreamStarted(kPrefill0);
  Pass(absl::Seconds(7));
  ASSERT_TRUE(Load(kDecode).ok());
  EXPECT_EQ(roster_.Tick(), std::vector<int>{kPrefill0});
  EXPECT_EQ(expired, std::vector{v1::WORKER_ROLE_PREFILL}) << "once";
  MakeReady(kPrefill0);
  Pass(absl::Seconds(7));
  ASSERT_TRUE(Load(kDecode).ok());
  roster_.Tick();
  EXPECT_EQ(expired.size(), 2u) << "it came back and was lost again";
}

TEST_F(RosterTest, AWorkerThatDrainedIsNotMissed) {
  std::vector<v1::WorkerRole> expired;
  roster_.SetOnExpired([&expired](v1::WorkerRole role) { expired.push_back(role); });
  MakeReady(kPrefill0);
  ASSERT_TRUE(Load(kPrefill0, 0, /*draining=*/true).ok());
  roster_.OnStreamLost(kPrefill0, absl::UnavailableError("the worker ended its Watch stream"));
  Pass(absl::Seconds(7));
  roster_.Tick();
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_EXPIRED);
  EXPECT_TRUE(expired.empty());
}

TEST_F(RosterTest, NewEpochDropsWhatTheOldOneHad) {
  const auto card = Card(kPrefill0);
  ASSERT_TRUE(Introduce(kPrefill0, card).ok());
  ASSERT_TRUE(Snapshot(kPrefill0, 3, {1, 2, 3}).ok());
  roster_.OnStreamLost(kPrefill0, absl::UnavailableError("gone"));
  ASSERT_TRUE(Introduce(kPrefill0, card).ok());
  EXPECT_EQ(StatusOf(kPrefill0).indexed_blocks(), 3) << "the same life goes on";
  roster_.OnStreamLost(kPrefill0, absl::UnavailableError("gone"));
  auto reborn = card;
  reborn.set_epoch(card.epoch() + 1);
  ASSERT_TRUE(Introduce(kPrefill0, reborn).ok());
  EXPECT_EQ(StatusOf(kPrefill0).indexed_blocks(), 0);
  EXPECT_EQ(StatusOf(kPrefill0).epoch(), reborn.epoch());
}

TEST_F(RosterTest, GapsAndDisorderEndTheStream) {
  MakeReady(kPrefill0);
  EXPECT_TRUE(Delta(kPrefill0, 11, {1, 2}).ok());
  EXPECT_TRUE(Delta(kPrefill0, 12, {3}, {2}).ok());
  EXPECT_EQ(StatusOf(kPrefill0).indexed_blocks(), 2);
  const absl::Status gap = Delta(kPrefill0, 14, {4});
  EXPECT_THAT(std::string(gap.message()), HasSubstr("14 after 12"));
  EXPECT_FALSE(Delta(kPrefill0, 12, {4}).ok()) << "a repeated number is a gap too";
  roster_.OnStreamLost(kPrefill0, gap);
  // The next stream's snapshot replaces everything.
  ASSERT_TRUE(Introduce(kPrefill0, Card(kPrefill0)).ok());
  EXPECT_FALSE(Delta(kPrefill0, 15, {4}).ok()) << "before the snapshot";
  ASSERT_TRUE(Snapshot(kPrefill0, 20, {7}).ok());
  EXPECT_EQ(StatusOf(kPrefill0).indexed_blocks(), 1);
}

TEST_F(RosterTest, MoreKeysThanBlocksEndTheStream) {
  ASSERT_TRUE(Introduce(kPrefill0, Card(kPrefill0)).ok());
  std::vector<uint64_t> keys(65);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i + 1;
  EXPECT_FALSE(Snapshot(kPrefill0, 1, keys).ok());
  auto with_tiers = Card(kPrefill0);
  with_tiers.set_kv_tier_max_segments(1);
  with_tiers.set_kv_tier_segment_tokens(32);
  ASSERT_TRUE(Introduce(kPrefill0, with_tiers).ok());
  EXPECT_TRUE(Snapshot(kPrefill0, 1, keys).ok()) << "one of them is of a segment in a tier";
  EXPECT_FALSE(Delta(kPrefill0, 2, {66}).ok());
}

// A worker with another secret is REFUSED until it accepts a stream.
TEST_F(RosterTest, AWorkerThatRefusesTheRouterIsRefused) {
  for (const absl::Status& refusal :
       {absl::UnauthenticatedError("not the secret"), absl::PermissionDeniedError("no")}) {
    MakeReady(kPrefill0);
    roster_.OnStreamLost(kPrefill0, refusal);
    EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_REFUSED) << refusal;
    EXPECT_THAT(StatusOf(kPrefill0).detail(), HasSubstr(std::string(refusal.message())));
  }
  MakeReady(kPrefill0);
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_READY);
}

TEST_F(RosterTest, TheWordsOfAnErrorDecideNothing) {
  for (const char* words : {"last error: UNKNOWN: Timeout before the handshake was complete",
                            "Ssl handshake failed", "PERMISSION_DENIED", "Socket closed"}) {
    MakeReady(kPrefill0);
    roster_.OnStreamLost(kPrefill0, absl::UnavailableError(words));
    EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_CONNECTING) << words;
    EXPECT_EQ(StatusOf(kPrefill0).detail(), words);
  }
}

TEST_F(RosterTest, ForeignWorkersAreRefusedWithBothValues) {
  MakeReady(kDecode);
  struct Row {
    const char* reason;
    const char* in_detail;
    const char* in_detail_too;
    std::function<void(internal::v1::WorkerCard*)> change;
  };
  const std::vector<Row> rows = {
      {"MODEL_MISMATCH", "00000000000bad01", "00000000000a0de1",
       [](auto* card) { card->set_model_fingerprint(0xBAD01); }},
      {"KV_LAYOUT_MISMATCH", "block_tokens: 32", "block_tokens: 16",
       [](auto* card) {
         card->mutable_kv_layout()->set_block_tokens(32);
         card->mutable_kv_layout()->set_fingerprint(2);
       }},
      {"GENERATION_CONFIG_MISMATCH", "temperature: 0.5", "this cluster has generation defaults {}",
       [](auto* card) { card->mutable_generation_defaults()->set_temperature(0.5f); }},
      {"GENERATION_CONFIG_MISMATCH", "end tokens 256, 3", "this cluster has generation defaults {}",
       [](auto* card) { card->add_eos_token_ids(3); }},
      {"TOKENIZER_MISMATCH", "0000000000000005", "000000000000004d",
       [](auto* card) { card->set_tokenizer_fingerprint(5); }},
      {"ROLE_MISMATCH", "prefill", "decode",
       [](auto* card) { card->set_role(v1::WORKER_ROLE_DECODE); }},
      {"BAD_WORKER_CARD", "epoch", "id", [](auto* card) { card->set_epoch(0); }},
      {"BAD_WORKER_CARD", "-1 segments", "expected at most 1048576",
       [](auto* card) { card->set_kv_tier_max_segments(-1); }},
      {"BAD_WORKER_CARD", "1048577 segments", "expected at most 1048576",
       [](auto* card) { card->set_kv_tier_max_segments((1 << 20) + 1); }},
      {"BAD_WORKER_CARD", "of 0 pages", "expected 1 to 131072",
       [](auto* card) { card->mutable_block_shape()->set_full_pages(0); }},
      {"BAD_WORKER_CARD", "9 bytes of windows", "in 8, expected",
       [](auto* card) {
         card->set_kv_block_bytes(8);
         card->mutable_block_shape()->set_full_pages(1);
         card->mutable_block_shape()->set_window_bytes(9);
       }},
      {"BAD_WORKER_CARD", "24 tokens", "whole blocks",
       [](auto* card) { card->set_kv_tier_segment_tokens(24); }},
  };
  for (const Row& row : rows) {
    auto card = Card(kPrefill0);
    row.change(&card);
    const absl::Status refused = Introduce(kPrefill0, card);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ErrorReason(refused), row.reason);
    roster_.OnStreamLost(kPrefill0, refused);
    EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_REFUSED) << row.reason;
    EXPECT_EQ(StatusOf(kPrefill0).worker_id(), card.worker_id());
    EXPECT_THAT(StatusOf(kPrefill0).detail(), HasSubstr(row.in_detail));
    EXPECT_THAT(StatusOf(kPrefill0).detail(), HasSubstr(row.in_detail_too));
  }
  // The others go on, and the same address is welcome once it fits.
  MakeReady(kPrefill1);
  ASSERT_TRUE(Choose().ok());
  MakeReady(kPrefill0);
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_READY);
}

TEST_F(RosterTest, TheModelHasTheLowestGrammarLevelOfWorkersThatAnswer) {
  router::RoutedFleet fleet({"p:1"}, {"d0:1", "d1:1"}, kTokenizer, policy_, clock_);
  const auto introduce = [&fleet](int worker, internal::v1::GrammarLevel level) {
    internal::v1::WatchResponse event;
    *event.mutable_card() =
        FakeCard(worker == 0 ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE, kTokenizer);
    event.mutable_card()->set_grammar_level(level);
    fleet.roster.OnStreamStarted(worker);
    ASSERT_TRUE(fleet.roster.OnEvent(worker, event).ok());
  };
  introduce(0, internal::v1::GRAMMAR_LEVEL_UNSPECIFIED);
  EXPECT_EQ(fleet.roster.model()->grammar_level, internal::v1::GRAMMAR_LEVEL_MESSAGES)
      << "a prefill worker's does not count";
  introduce(1, internal::v1::GRAMMAR_LEVEL_MESSAGES);
  EXPECT_EQ(fleet.roster.model()->grammar_level, internal::v1::GRAMMAR_LEVEL_MESSAGES);
  introduce(2, internal::v1::GRAMMAR_LEVEL_UNSPECIFIED);
  EXPECT_EQ(fleet.roster.model()->grammar_level, internal::v1::GRAMMAR_LEVEL_UNSPECIFIED);
}

TEST_F(RosterTest, TheModelHasTheSmallestContextAndTheDecodeWorkersPools) {
  router::RoutedFleet fleet({"p:1"}, {"d0:1", "d1:1"}, kTokenizer, policy_, clock_);
  const auto introduce = [&fleet](int worker, int blocks, int max_model_len) {
    internal::v1::WatchResponse event;
    *event.mutable_card() =
        FakeCard(worker == 0 ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE, kTokenizer);
    event.mutable_card()->set_total_blocks(blocks);
    event.mutable_card()->set_max_model_len(max_model_len);
    fleet.roster.OnStreamStarted(worker);
    ASSERT_TRUE(fleet.roster.OnEvent(worker, event).ok());
  };
  introduce(0, 5, 512);
  EXPECT_TRUE(fleet.roster.model()->decode_pages.empty()) << "a prefill worker's does not count";
  introduce(1, 64, 1024);
  introduce(2, 32, 256);
  EXPECT_THAT(fleet.roster.model()->decode_pages, ::testing::ElementsAre(64, 32));
  EXPECT_EQ(fleet.roster.model()->max_model_len, 256);
  introduce(2, 96, 256);  // started again, with more memory
  EXPECT_THAT(fleet.roster.model()->decode_pages, ::testing::ElementsAre(64, 96));
  introduce(2, 64, 256);
  EXPECT_THAT(fleet.roster.model()->decode_pages, ::testing::ElementsAre(64));
}

TEST_F(RosterTest, WhenNoneOfTheOldModelIsLeftANewModelMayCome) {
  MakeReady(kPrefill0);
  Pass(absl::Seconds(10));
  roster_.Tick();
  auto card = Card(kPrefill1);
  card.set_model_fingerprint(0xBAD01);
  EXPECT_TRUE(Introduce(kPrefill1, card).ok());
  EXPECT_EQ(roster_.model()->fingerprint, 0xBAD01u);
}

TEST_F(RosterTest, DrainingWorkersGetNoNewWork) {
  MakeReady(kDecode);
  MakeReady(kPrefill0);
  ASSERT_TRUE(Load(kPrefill0, 0, /*draining=*/true).ok());
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_DRAINING);
  const auto alone = Choose();
  ASSERT_TRUE(alone.ok());
  EXPECT_TRUE(alone->together());
  EXPECT_EQ(alone->decision, "decode_only");
  ASSERT_TRUE(Load(kDecode, 0, /*draining=*/true).ok());
  const absl::Status none = Choose().status();
  EXPECT_EQ(ErrorReason(none), "NO_WORKER");
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("no decode worker is ready (1 listed: 1 draining)"));
  EXPECT_TRUE(ErrorRetryAfter(none).has_value());
}

TEST_F(RosterTest, ADrainedWorkerIsSoUntilItsReportsSayOtherwise) {
  MakeReady(kPrefill0);
  internal::v1::WatchResponse event;
  event.mutable_load()->set_draining(true);
  event.mutable_load()->set_drained(true);
  ASSERT_TRUE(roster_.OnEvent(kPrefill0, event).ok());
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_DRAINED);
  Pass(absl::Seconds(4));
  roster_.Tick();
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_SUSPECT);
  ASSERT_TRUE(roster_.OnEvent(kPrefill0, event).ok());
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_DRAINED);
  ASSERT_TRUE(Load(kPrefill0).ok());
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_READY);
}

TEST_F(RosterTest, LoadsHaveAnAgeAndEndWithTheProcess) {
  EXPECT_FALSE(roster_.Loads()[kDecode].has_age_ms());
  MakeReady(kDecode);
  internal::v1::WatchResponse event;
  event.mutable_load()->set_running(2);
  event.mutable_load()->set_age_us(20'000);
  ASSERT_TRUE(roster_.OnEvent(kDecode, event).ok());
  Pass(absl::Milliseconds(500));
  EXPECT_EQ(roster_.Loads()[kDecode].running(), 2);
  EXPECT_EQ(roster_.Loads()[kDecode].age_ms(), 520);
  event.mutable_load()->set_running(0);
  event.mutable_load()->set_age_us(3'600'000'000);
  ASSERT_TRUE(roster_.OnEvent(kDecode, event).ok());
  Pass(absl::Milliseconds(30));
  EXPECT_EQ(roster_.Loads()[kDecode].age_ms(), 30) << "an idle hour does not make numbers old";
  ASSERT_TRUE(Load(kDecode).ok());
  Pass(absl::Seconds(10));
  roster_.Tick();
  EXPECT_FALSE(roster_.Loads()[kDecode].has_age_ms());
  EXPECT_EQ(roster_.Loads()[kDecode].running(), 0);
}

TEST_F(RosterTest, WorkersAreFoundByAddressAndId) {
  const std::string address = StatusOf(kDecode).address();
  EXPECT_EQ(ErrorReason(roster_.Find(address).status()), "NO_WORKER") << "not reached yet";
  MakeReady(kDecode);
  for (const std::string& name : {address, StatusOf(kDecode).worker_id()}) {
    const auto found = roster_.Find(name);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->worker, kDecode);
    EXPECT_EQ(found->epoch, StatusOf(kDecode).epoch());
    EXPECT_NE(found->hold, nullptr);
  }
  EXPECT_EQ(ErrorReason(roster_.Find("").status()), "UNKNOWN_WORKER");
}

TEST_F(RosterTest, ListedPrefillWorkersAreWaitedForAMomentAfterTheStart) {
  MakeReady(kDecode);
  EXPECT_FALSE(roster_.Ready());
  Pass(kExpireAfter + absl::Milliseconds(1));
  ASSERT_TRUE(Load(kDecode).ok());
  EXPECT_TRUE(roster_.Ready());
}

TEST_F(RosterTest, APairThatFailsIsPassedOverUntilItIsTriedAgain) {
  for (int worker : {kPrefill0, kPrefill1, kDecode}) MakeReady(worker);
  const auto first = Choose();
  for (int i = 0; i < 2; ++i) planner_.OnRouteFailed(*first, Blame::kPair);
  for (int i = 0; i < 4; ++i) EXPECT_NE(Choose()->computes.worker, first->computes.worker);
  for (int i = 0; i < 2; ++i) {
    const Route other = *Choose();
    if (!other.together()) planner_.OnRouteFailed(other, Blame::kPair);
  }
  EXPECT_TRUE(Choose()->together()) << "all pairs of the only decode worker failed";
  Pass(kFirstAvoidance);
  for (int worker : {kPrefill0, kPrefill1, kDecode}) ASSERT_TRUE(Load(worker).ok());
  const auto probe = Choose();
  EXPECT_FALSE(probe->together());
  planner_.OnRouteWorked(*probe, /*kv_moved=*/true);
  // The other one is tried, too, by one request; the rest go where it works.
  EXPECT_NE(Choose()->computes.worker, probe->computes.worker);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Choose()->computes.worker, probe->computes.worker);
}

TEST_F(RosterTest, FailuresOfAnEarlierProcessAreNotHeldAgainstTheNext) {
  for (int worker : {kPrefill0, kPrefill1, kDecode}) MakeReady(worker);
  const auto before = Choose();
  const int prefill = before->computes.worker;
  MakeReady(prefill);  // a new process at the address
  for (int i = 0; i < 2; ++i) planner_.OnRouteFailed(*before, Blame::kPair);
  std::set<int> used;
  for (int i = 0; i < 4; ++i) used.insert(Choose()->computes.worker);
  EXPECT_TRUE(used.count(prefill));
}

TEST_F(RosterTest, AProcessMayLiveWhileItsWorkerIsSuspectAndNoOtherHasItsPlace) {
  MakeReady(kDecode);
  MakeReady(kPrefill0);
  const WorkerTarget target = Choose()->answers;
  EXPECT_EQ(roster_.LifeOf(target), ProcessLife::kLives);
  Pass(kSuspectAfter + absl::Milliseconds(1));
  roster_.Tick();
  EXPECT_EQ(roster_.LifeOf(target), ProcessLife::kLives) << "no other decode worker is ready";
  roster_.OnStreamLost(kDecode, absl::UnavailableError("cut"));
  EXPECT_EQ(roster_.LifeOf(target), ProcessLife::kLives);
  Pass(kExpireAfter);
  roster_.Tick();
  EXPECT_EQ(roster_.LifeOf(target), ProcessLife::kGone);
  MakeReady(kDecode);
  EXPECT_EQ(roster_.LifeOf(target), ProcessLife::kGone) << "another process";
}

TEST_F(RosterTest, ASuspectProcessIsLeftWhereAnotherWorkerIsReady) {
  for (int worker : {kPrefill0, kPrefill1, kDecode}) MakeReady(worker);
  const WorkerTarget target = Choose()->computes;
  const int other = target.worker == kPrefill0 ? kPrefill1 : kPrefill0;
  Pass(kSuspectAfter + absl::Milliseconds(1));
  ASSERT_TRUE(Load(other).ok());
  roster_.Tick();
  EXPECT_EQ(roster_.LifeOf(target), ProcessLife::kSuspect);
  ASSERT_TRUE(Load(target.worker).ok());
  EXPECT_EQ(roster_.LifeOf(target), ProcessLife::kLives);
}

// All fall silent together when the network is cut, for example. A request that moved from one
// suspect worker to the next would soon fail.
TEST_F(RosterTest, WhereAllFallSilentTogetherNoProcessIsLeft) {
  for (int worker : {kPrefill0, kPrefill1, kDecode}) MakeReady(worker);
  const WorkerTarget target = Choose()->computes;
  const int other = target.worker == kPrefill0 ? kPrefill1 : kPrefill0;
  for (int i = 0; i < 20; ++i) {
    Report(absl::Milliseconds(500), {target.worker, kDecode});
    ASSERT_TRUE(Load(other).ok());
  }
  SilenceUntilSuspect(target.worker, {});
  EXPECT_EQ(StatusOf(other).state(), v1::WORKER_STATE_READY) << "its signs come more rarely";
  EXPECT_EQ(roster_.LifeOf(target), ProcessLife::kLives);
  ASSERT_TRUE(Load(other).ok());
  roster_.Tick();
  EXPECT_EQ(roster_.LifeOf(target), ProcessLife::kSuspect);
}

TEST_F(RosterTest, AWorkerThatReportedRegularlyIsSuspectWithinTwoSecondsAndLosesNothing) {
  MakeReady(kPrefill0, {1, 2});
  MakeReady(kDecode);
  Report(absl::Seconds(20), {kPrefill0, kDecode});
  EXPECT_NEAR(absl::ToDoubleSeconds(SilenceUntilSuspect(kPrefill0, {kDecode})), 1.6, 0.11);
  EXPECT_EQ(StatusOf(kPrefill0).detail(), "silent for 1.6s");
  EXPECT_EQ(StatusOf(kPrefill0).indexed_blocks(), 2);
  EXPECT_EQ(StatusOf(kDecode).state(), v1::WORKER_STATE_READY);
  EXPECT_GE(roster_.Suspicion(kPrefill0), SignsOfLife::kSuspicious);
  EXPECT_GE(roster_.SilenceOf(kPrefill0), absl::Milliseconds(1500));
  EXPECT_EQ(roster_.Suspicion(kDecode), 0);
  ASSERT_TRUE(Load(kPrefill0).ok());
  EXPECT_EQ(StatusOf(kPrefill0).state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(StatusOf(kPrefill0).indexed_blocks(), 2);
}

TEST_F(RosterTest, APauseOfASecondMakesNoWorkerSuspect) {
  MakeReady(kDecode);
  Report(absl::Seconds(20), {kDecode});
  for (int pause = 0; pause < 50; ++pause) {
    for (int tick = 0; tick < 12; ++tick) {
      Pass(absl::Milliseconds(100));
      roster_.Tick();
      ASSERT_EQ(StatusOf(kDecode).state(), v1::WORKER_STATE_READY);
    }
    ASSERT_TRUE(Load(kDecode).ok());
    Report(absl::Seconds(5), {kDecode});
  }
}

// The messages of requests' streams are signs of life, too: a Watch stream may be slow alone.
TEST_F(RosterTest, MessagesOnStreamsOfRequestsKeepSuspicionAway) {
  MakeReady(kPrefill0);
  MakeReady(kDecode);
  Report(absl::Seconds(20), {kPrefill0, kDecode});
  const WorkerTarget target = Choose()->answers;
  for (int tick = 0; tick < 29; ++tick) {
    Pass(absl::Milliseconds(100));
    ASSERT_TRUE(Load(kPrefill0).ok());
    EXPECT_EQ(roster_.LifeOf(target, clock_.SinceStart()), ProcessLife::kLives);
    roster_.Tick();
    ASSERT_EQ(StatusOf(kDecode).state(), v1::WORKER_STATE_READY);
  }
  // Without reports, the router does not know the worker's load.
  Pass(absl::Milliseconds(200));
  EXPECT_EQ(roster_.LifeOf(target, clock_.SinceStart()), ProcessLife::kLives);
  roster_.Tick();
  EXPECT_EQ(StatusOf(kDecode).state(), v1::WORKER_STATE_SUSPECT);
  // Messages of an earlier process say nothing of this one.
  ASSERT_TRUE(Load(kDecode).ok());
  WorkerTarget earlier = target;
  ++earlier.epoch;
  Pass(absl::Seconds(1));
  EXPECT_EQ(roster_.LifeOf(earlier, clock_.SinceStart()), ProcessLife::kGone);
  EXPECT_EQ(roster_.SilenceOf(kDecode), absl::Seconds(1));
}

TEST_F(RosterTest, ARouterThatWasPausedBlamesNoWorker) {
  MakeReady(kPrefill0, {1, 2});
  MakeReady(kDecode);
  Report(absl::Seconds(20), {kPrefill0, kDecode});
  for (const absl::Duration pause : {absl::Seconds(4), absl::Seconds(8), absl::Minutes(10)}) {
    Pause(pause);
    // This holds both before and after the clock's first beat.
    EXPECT_TRUE(roster_.Tick().empty());
    clock_.Beat();
    EXPECT_TRUE(roster_.Tick().empty());
    Pass(absl::Milliseconds(500));
    EXPECT_TRUE(roster_.Tick().empty());
    for (int worker : {kPrefill0, kDecode}) {
      EXPECT_EQ(StatusOf(worker).state(), v1::WORKER_STATE_READY) << pause;
    }
    EXPECT_EQ(StatusOf(kPrefill0).indexed_blocks(), 2);
    EXPECT_TRUE(roster_.AnyDecodeWorkerReady());
    Report(absl::Seconds(20), {kPrefill0, kDecode});
  }
  // The router still notices workers that were lost meanwhile.
  Pause(absl::Seconds(8));
  clock_.Beat();
  roster_.Tick();
  EXPECT_LT(SilenceUntilSuspect(kPrefill0, {kDecode}), absl::Seconds(2));
}

// A worker closes the connection to a router that does not answer for 5 s.
TEST_F(RosterTest, AfterAPauseWorkersWhoseStreamBrokeAreAwaitedForAWhile) {
  MakeReady(kPrefill0, {1, 2});
  MakeReady(kDecode);
  Report(absl::Seconds(20), {kPrefill0, kDecode});
  EXPECT_FALSE(roster_.Awaited(v1::WORKER_CAPABILITY_ANSWER));
  Pause(absl::Seconds(8));
  for (int worker : {kPrefill0, kDecode}) {
    roster_.OnStreamLost(worker, absl::UnavailableError("Socket closed"));
  }
  for (const auto capability : {v1::WORKER_CAPABILITY_ANSWER, v1::WORKER_CAPABILITY_SCORE}) {
    EXPECT_TRUE(roster_.Awaited(capability));
  }
  EXPECT_TRUE(roster_.Ready());
  EXPECT_FALSE(roster_.AnyDecodeWorkerReady());
  clock_.Beat();
  Pass(kHearAgain - absl::Milliseconds(1));
  EXPECT_TRUE(roster_.Awaited(v1::WORKER_CAPABILITY_ANSWER));
  Pass(absl::Milliseconds(2));
  EXPECT_FALSE(roster_.Awaited(v1::WORKER_CAPABILITY_ANSWER));
  EXPECT_FALSE(roster_.Ready());
}

TEST_F(RosterTest, OnlyASuspectWorkerIsAwaitedWithoutAPause) {
  MakeReady(kDecode);
  Report(absl::Seconds(20), {kDecode});
  SilenceUntilSuspect(kDecode, {});
  EXPECT_TRUE(roster_.Awaited(v1::WORKER_CAPABILITY_ANSWER));
  EXPECT_FALSE(roster_.Awaited(v1::WORKER_CAPABILITY_SCORE));
  ASSERT_TRUE(Load(kDecode, 0, /*draining=*/true).ok());
  SilenceUntilSuspect(kDecode, {});
  EXPECT_FALSE(roster_.Awaited(v1::WORKER_CAPABILITY_ANSWER)) << "it takes no new requests";
  ASSERT_TRUE(Load(kDecode).ok());
  SilenceUntilSuspect(kDecode, {});
  roster_.OnStreamLost(kDecode, absl::UnavailableError("connection refused"));
  EXPECT_FALSE(roster_.Awaited(v1::WORKER_CAPABILITY_ANSWER)) << "its process is gone";
}

TEST_F(RosterTest, OwnDispatchesCountUntilReported) {
  MakeReady(kDecode);
  MakeReady(kPrefill0);
  MakeReady(kPrefill1);
  const auto first = Choose();
  ASSERT_TRUE(first.ok());
  // Not yet reported, so the other one is less loaded, whoever's turn it is.
  const auto second = Choose();
  ASSERT_TRUE(second.ok());
  EXPECT_NE(first->computes.worker, second->computes.worker);
  // Reports that came later contain the dispatches: what they say is all there is.
  Pass(absl::Seconds(1));
  ASSERT_TRUE(Load(first->computes.worker, 0).ok());
  ASSERT_TRUE(Load(second->computes.worker, 50).ok());
  EXPECT_EQ(Choose()->computes.worker, first->computes.worker);
}

TEST_F(RosterTest, AskingAloneChangesNothing) {
  MakeReady(kDecode);
  MakeReady(kPrefill0, {1, 2});
  MakeReady(kPrefill1);
  RouteRequest request;
  request.model_fingerprint = Card(0).model_fingerprint();
  const std::vector<uint64_t> keys = {1, 2, 3};
  request.keys = keys;
  request.prompt_tokens = 100;
  request.explain = true;
  request.dispatch = false;
  for (int i = 0; i < 3; ++i) {
    const auto route = planner_.Choose(request);
    ASSERT_TRUE(route.ok());
    const Decision& why = *route->why;
    EXPECT_EQ(why.computes, kPrefill0);
    EXPECT_EQ(why.computes_address, "p0:1");
    EXPECT_EQ(why.answers_address, "d0:1");
    EXPECT_EQ(why.label, "prefix");
    EXPECT_EQ(why.predicted_cached_tokens, 32);
    EXPECT_EQ(why.prefill_candidates, 2);
    ASSERT_EQ(why.candidates.size(), 3u);
    EXPECT_EQ(why.candidates[0].cached_tokens, 32);
    EXPECT_EQ(why.candidates[1].cached_tokens, 0);
    EXPECT_EQ(why.candidates[2].role, v1::WORKER_ROLE_DECODE);
    for (const DecisionCandidate& c : why.candidates)
      EXPECT_EQ(c.queue_seconds, 0) << "noted as sent";
  }
}

TEST_F(RosterTest, WarmPrefixWinsAndAvoidedWorkersAreUsedOnlyAlone) {
  MakeReady(kDecode);
  MakeReady(kPrefill0);
  MakeReady(kPrefill1, {1, 2, 3});
  for (int i = 0; i < 4; ++i) {
    const auto route = Choose({1, 2, 3, 4});
    ASSERT_TRUE(route.ok());
    EXPECT_EQ(route->computes.worker, kPrefill1);
    EXPECT_EQ(route->matched_blocks, 3);
  }
  const auto first = Choose({1, 2, 3, 4});
  const std::vector<Incarnation> avoid = {first->computes.incarnation(),
                                          first->answers.incarnation()};
  const auto other = Choose({1, 2, 3, 4}, avoid);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->computes.worker, kPrefill0);
  EXPECT_EQ(other->answers.worker, kDecode) << "there is no other";
  MakeReady(kPrefill1, {1, 2, 3});  // as another process
  EXPECT_EQ(Choose({1, 2, 3, 4}, avoid)->computes.worker, kPrefill1);
}

TEST_F(RosterTest, AProcessLooksDeadWithoutItsWatchStreamSilentOrReplaced) {
  std::vector<Incarnation> told;
  roster_.SetOnDeath([&told](const Incarnation& dead) { told.push_back(dead); });
  MakeReady(kPrefill0);
  MakeReady(kDecode);
  EXPECT_FALSE(roster_.LooksDead(WorkerTarget()));
  const Route first = *Choose();
  const auto dead = [&](const WorkerTarget& target) { return roster_.LooksDead(target); };
  EXPECT_FALSE(dead(first.answers) || dead(first.computes));
  EXPECT_TRUE(told.empty());

  // Its stream breaks, is tried again, and comes back from the same process.
  const internal::v1::WorkerCard same = [&] {
    internal::v1::WorkerCard card = Card(kDecode);
    card.set_worker_id(first.answers.worker_id);
    card.set_epoch(first.answers.epoch);
    return card;
  }();
  roster_.OnStreamLost(kDecode, absl::UnavailableError("reset"));
  EXPECT_TRUE(dead(first.answers));
  EXPECT_EQ(told, std::vector<Incarnation>{first.answers.incarnation()});
  roster_.OnStreamStarted(kDecode);
  EXPECT_TRUE(dead(first.answers)) << "the process may be gone";
  ASSERT_TRUE(Introduce(kDecode, same).ok());
  EXPECT_FALSE(dead(first.answers));
  ASSERT_TRUE(Snapshot(kDecode, 10, {}).ok());
  ASSERT_TRUE(Load(kDecode, 0, /*draining=*/true).ok());
  EXPECT_FALSE(dead(first.answers)) << "a worker that drains has not ended";

  told.clear();
  Pass(kSuspectAfter + absl::Milliseconds(1));
  ASSERT_TRUE(Load(kDecode).ok());
  roster_.Tick();
  EXPECT_TRUE(dead(first.computes));
  EXPECT_FALSE(dead(first.answers));
  EXPECT_EQ(told, std::vector<Incarnation>{first.computes.incarnation()});
  ASSERT_TRUE(Load(kPrefill0).ok());
  EXPECT_FALSE(dead(first.computes)) << "a word is enough";

  told.clear();
  MakeReady(kDecode);  // as another process
  EXPECT_TRUE(dead(first.answers));
  EXPECT_FALSE(dead(Choose()->answers));
  EXPECT_EQ(told, std::vector<Incarnation>{first.answers.incarnation()});
}

TEST_F(RosterTest, WhetherAnyDecodeWorkerIsReadyIsKnownWithoutAsking) {
  EXPECT_FALSE(roster_.AnyDecodeWorkerReady());
  MakeReady(kPrefill0);
  EXPECT_FALSE(roster_.AnyDecodeWorkerReady());
  MakeReady(kDecode);
  EXPECT_TRUE(roster_.AnyDecodeWorkerReady());
  ASSERT_TRUE(Load(kDecode, 0, /*draining=*/true).ok());
  EXPECT_FALSE(roster_.AnyDecodeWorkerReady());
  ASSERT_TRUE(Load(kDecode).ok());
  EXPECT_TRUE(roster_.AnyDecodeWorkerReady());
  Pass(kSuspectAfter + absl::Milliseconds(1));
  roster_.Tick();
  EXPECT_FALSE(roster_.AnyDecodeWorkerReady());
  ASSERT_TRUE(Load(kDecode).ok());
  roster_.OnStreamLost(kDecode, absl::UnavailableError("gone"));
  EXPECT_FALSE(roster_.AnyDecodeWorkerReady());
  MakeReady(kDecode);
  MakeReady(kDecode);
  EXPECT_TRUE(roster_.AnyDecodeWorkerReady());
  roster_.OnStreamLost(kDecode, absl::UnavailableError("gone"));
  EXPECT_FALSE(roster_.AnyDecodeWorkerReady());
}

}  // namespace
}  // namespace baton::router
