#include "router/routing/fleet_load.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace baton::router {
namespace {

constexpr absl::Duration kFirstMoment = absl::Seconds(1000);
constexpr int kPrefill = 0, kOther = 1, kDecode = 2;

class FleetLoadTest : public ::testing::Test {
 protected:
  FleetLoadTest() {
    fleet_.Grow(3);
    for (int i : {kPrefill, kOther})
      fleet_.OnReady(i, {v1::WORKER_ROLE_PREFILL, 7, 1, 100, 16, 0, "cpu"});
    fleet_.OnReady(kDecode, {v1::WORKER_ROLE_DECODE, 7, 2, 100, 16, 64, "cpu"});
  }
  internal::v1::LoadReport Report(double remaining_s) {
    internal::v1::LoadReport report;
    report.set_remaining_work_us(static_cast<int64_t>(remaining_s * 1e6));
    report.set_free_blocks(50);
    return report;
  }
  void ToldCost(int worker, double token_us) {
    internal::v1::LoadReport report = Report(0);
    report.mutable_prefill_cost()->set_fixed_us(1000);
    report.mutable_prefill_cost()->set_token_us(token_us);
    report.mutable_prefill_cost()->set_pair_us(0.5);
    fleet_.OnReport(worker, report, now_);
  }
  std::vector<Candidate> Collect(v1::WorkerRole role, std::vector<int> matched = {}) {
    FleetLoad::Query query;
    query.role = role;
    query.model_fingerprint = 7;
    query.prompt_tokens = 64;
    query.matched_blocks = matched;
    Candidates found;
    fleet_.Collect(query, now_, &found);
    std::vector<Candidate> candidates;
    found.CopyTo(&candidates);
    return candidates;
  }
  Candidate Of(int worker, std::vector<int> matched = {}) {
    const auto role = worker == kDecode ? v1::WORKER_ROLE_DECODE : v1::WORKER_ROLE_PREFILL;
    for (const Candidate& c : Collect(role, matched)) {
      if (c.worker == worker) return c;
    }
    ADD_FAILURE() << "worker " << worker << " is no candidate";
    return Candidate();
  }

  absl::Duration now_ = kFirstMoment;
  FleetLoad fleet_;
};

TEST_F(FleetLoadTest, OnlyThoseThatServeTheModelInTheRoleAreCandidates) {
  EXPECT_EQ(Collect(v1::WORKER_ROLE_PREFILL).size(), 2u);
  fleet_.OnUnavailable(kPrefill);
  EXPECT_EQ(Collect(v1::WORKER_ROLE_PREFILL).size(), 1u);
  fleet_.OnReady(kOther, {v1::WORKER_ROLE_PREFILL, 8, 1, 100, 16, 0, "cpu"});
  EXPECT_TRUE(Collect(v1::WORKER_ROLE_PREFILL).empty());
  EXPECT_EQ(Collect(v1::WORKER_ROLE_DECODE).size(), 1u);
  fleet_.Forget(kDecode);
  EXPECT_TRUE(Collect(v1::WORKER_ROLE_DECODE).empty());
}

TEST_F(FleetLoadTest, AWorkerThatHasComputedAPromptGoesOnWithItsAnswer) {
  fleet_.OnReport(kDecode, Report(0), now_);
  const int64_t sent = fleet_.OnDispatch(kDecode, now_, {64, 2.0, 4, 64});
  EXPECT_EQ(Of(kDecode).last_sent, sent);
  EXPECT_EQ(Of(kDecode).queue_s, 2);
  fleet_.OnComputed(kDecode, sent, now_);
  EXPECT_EQ(Of(kDecode).queue_s, 0);
  EXPECT_EQ(Of(kDecode).queued, 1);
  EXPECT_EQ(Of(kDecode).queued_tokens, 0);
  EXPECT_EQ(Of(kDecode).context_tokens, 64);
  EXPECT_EQ(Of(kDecode).free_blocks, 46);
  fleet_.OnDone(kDecode, sent, now_);
  EXPECT_EQ(Of(kDecode).queued, 0);
  EXPECT_EQ(Of(kDecode).context_tokens, 0);
  EXPECT_EQ(Of(kDecode).free_blocks, 50);
  fleet_.OnComputed(kDecode, sent, now_);
  fleet_.OnComputed(-1, sent, now_);
  EXPECT_EQ(Of(kDecode).queued, 0);
}

TEST_F(FleetLoadTest, WhatADecodeWorkerComputesForAnotherIsWorkAndNoSequence) {
  fleet_.OnReport(kDecode, Report(0.5), now_);
  const int64_t lent = fleet_.OnDispatch(kDecode, now_, {64, 2.0, 4, 0});
  EXPECT_NEAR(Of(kDecode).queue_s, 2.5, 1e-9);
  EXPECT_EQ(Of(kDecode).queued, 0);
  EXPECT_EQ(Of(kDecode).context_tokens, 0);
  EXPECT_EQ(Of(kDecode).free_blocks, 46);
  fleet_.OnComputed(kDecode, lent, now_);
  EXPECT_NEAR(Of(kDecode).queue_s, 0.5, 1e-9);
  EXPECT_EQ(Of(kDecode).free_blocks, 50);
  fleet_.OnDone(kDecode, lent, now_);
  EXPECT_EQ(Of(kDecode).queued, 0);
  // Once a report shows it, its end is the report's to show, and no sequence has ended.
  const int64_t reported = fleet_.OnDispatch(kDecode, now_, {64, 2.0, 4, 0});
  now_ += absl::Milliseconds(60);
  internal::v1::LoadReport report = Report(1.9);
  report.set_running(3);
  fleet_.OnReport(kDecode, report, now_);
  fleet_.OnComputed(kDecode, reported, now_);
  EXPECT_NEAR(Of(kDecode).queue_s, 1.9, 1e-9);
  EXPECT_EQ(Of(kDecode).running, 3);
}

TEST_F(FleetLoadTest, AnAnswerReceivesUntilItsPromptIsComputed) {
  const auto send = [this] { return fleet_.OnDispatch(kDecode, now_, {1, 0, 4, 64, true}); };
  const int64_t computed = send();
  send();
  EXPECT_EQ(Of(kDecode).queued, 2);
  EXPECT_EQ(Of(kDecode).receiving, 2);
  fleet_.OnComputed(kDecode, computed, now_);
  fleet_.OnComputed(kDecode, computed, now_);
  EXPECT_EQ(Of(kDecode).receiving, 1);
  EXPECT_EQ(Of(kDecode).queued, 2);
  // So it does as part of what the worker reports.
  const int64_t reported = send();
  now_ += absl::Milliseconds(60);
  internal::v1::LoadReport report = Report(0);
  report.set_running(3);
  report.set_receiving(2);
  fleet_.OnReport(kDecode, report, now_);
  EXPECT_EQ(Of(kDecode).receiving, 2);
  fleet_.OnComputed(kDecode, reported, now_);
  EXPECT_EQ(Of(kDecode).receiving, 2) << "its KV may still be on its way, as the next report shows";
  report.set_receiving(1000);
  fleet_.OnReport(kDecode, report, now_);
  EXPECT_EQ(Of(kDecode).receiving, 3) << "no more than run";
  report.set_receiving(-1);
  fleet_.OnReport(kDecode, report, now_);
  EXPECT_EQ(Of(kDecode).receiving, 0);
  // One that ends before its KV has come no longer counts, reported or not.
  fleet_.OnDone(kDecode, send(), now_);
  EXPECT_EQ(Of(kDecode).receiving, 0);
  const int64_t lost = send();
  now_ += absl::Milliseconds(60);
  report.set_receiving(2);
  fleet_.OnReport(kDecode, report, now_);
  fleet_.OnDone(kDecode, lost, now_);
  EXPECT_EQ(Of(kDecode).running, 2);
  EXPECT_EQ(Of(kDecode).receiving, 1);
}

TEST_F(FleetLoadTest, AnAnswerThatHasEndedIsTakenFromTheReportThatShowsIt) {
  internal::v1::LoadReport with = Report(0), without = Report(0);
  with.set_running(3);
  with.set_context_tokens(500);
  with.set_free_blocks(46);
  without.set_running(2);
  without.set_context_tokens(420);
  const auto expect = [this](int running, int context_tokens, int free_blocks) {
    const Candidate c = Of(kDecode);
    EXPECT_EQ(c.running, running);
    EXPECT_EQ(c.queued, 0);
    EXPECT_EQ(c.context_tokens, context_tokens);
    EXPECT_EQ(c.free_blocks, free_blocks);
  };
  fleet_.OnReport(kDecode, without, now_);
  for (const absl::Duration until_report : {absl::Milliseconds(100), absl::Milliseconds(20)}) {
    const int64_t sent = fleet_.OnDispatch(kDecode, now_, {1, 0, 4, 64});
    now_ += until_report;
    fleet_.OnReport(kDecode, with, now_);
    now_ += absl::Milliseconds(10);
    fleet_.OnDone(kDecode, sent, now_);
    expect(2, 436, 50);
    fleet_.OnDone(kDecode, sent, now_);
    expect(2, 436, 50);
    // This report is from before the answer's end.
    now_ += absl::Milliseconds(5);
    with.set_age_us(10'000);
    fleet_.OnReport(kDecode, with, now_);
    expect(2, 436, 50);
    with.set_age_us(0);
    fleet_.OnReport(kDecode, without, now_);
    expect(2, 420, 50);
  }
  // This report was on its way when the answer ended.
  const int64_t short_one = fleet_.OnDispatch(kDecode, now_, {1, 0, 4, 64});
  now_ += absl::Milliseconds(20);
  fleet_.OnDone(kDecode, short_one, now_);
  expect(2, 420, 50);
  now_ += absl::Milliseconds(5);
  with.set_age_us(10'000);
  fleet_.OnReport(kDecode, with, now_);
  expect(2, 436, 50);
  fleet_.OnReport(kDecode, without, now_);
  // This request is sent after the moment that the report shows.
  without.set_age_us(10'000);
  now_ += absl::Milliseconds(20);
  const int64_t sent = fleet_.OnDispatch(kDecode, now_, {1, 0, 4, 64});
  now_ += absl::Milliseconds(5);
  fleet_.OnReport(kDecode, without, now_);
  fleet_.OnDone(kDecode, sent, now_);
  expect(2, 420, 50);
}

TEST_F(FleetLoadTest, NoMoreEndsThanWasReported) {
  int64_t sent = fleet_.OnDispatch(kDecode, now_, {1, 0, 60, 64});
  now_ += absl::Milliseconds(100);
  fleet_.OnReport(kDecode, Report(0), now_);
  fleet_.OnDone(kDecode, sent, now_);
  Candidate c = Of(kDecode);
  EXPECT_EQ(c.running + c.queued, 0);
  EXPECT_EQ(c.context_tokens, 0);
  EXPECT_EQ(c.free_blocks, 100);
  // The report shows an answer's prompt and what was generated.
  sent = fleet_.OnDispatch(kDecode, now_, {1, 0, 4, 64});
  now_ += absl::Milliseconds(100);
  internal::v1::LoadReport report = Report(0);
  report.set_running(1);
  report.set_context_tokens(70);
  fleet_.OnReport(kDecode, report, now_);
  EXPECT_EQ(Of(kDecode).context_tokens, 70);
  fleet_.OnDone(kDecode, sent, now_);
  EXPECT_EQ(Of(kDecode).context_tokens, 0);
  // If the worker goes silent then, its last report counts again.
  now_ += absl::Seconds(6);
  fleet_.Tick(now_);
  EXPECT_EQ(Of(kDecode).running, 1);
}

TEST_F(FleetLoadTest, TheQueueIsWhatWasReportedLessTheTimeSinceThen) {
  fleet_.OnReport(kPrefill, Report(2), now_);
  EXPECT_NEAR(Of(kPrefill).queue_s, 2, 1e-9);
  now_ += absl::Milliseconds(500);
  EXPECT_NEAR(Of(kPrefill).queue_s, 1.5, 1e-9);
  EXPECT_NEAR(Of(kPrefill).silence_s, 0.5, 1e-9);
  now_ += absl::Seconds(5);
  EXPECT_EQ(Of(kPrefill).queue_s, 0);
}

TEST_F(FleetLoadTest, OwnDispatchesCountUntilAReportCanContainThem) {
  fleet_.OnReport(kPrefill, Report(1), now_);
  now_ += absl::Milliseconds(400);
  fleet_.OnDispatch(kPrefill, now_, {48, 0.5, 4, 0});
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.6 + 0.5, 1e-9);
  EXPECT_EQ(Of(kPrefill).queued, 1);
  EXPECT_EQ(Of(kPrefill).queued_tokens, 48);
  EXPECT_EQ(Of(kPrefill).free_blocks, 46);
  // On its way when the dispatch was made.
  now_ += absl::Milliseconds(10);
  fleet_.OnReport(kPrefill, Report(0.59), now_);
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.59 + 0.5, 1e-9);
  now_ += absl::Milliseconds(100);
  fleet_.OnReport(kPrefill, Report(0.98), now_);
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.98, 1e-9);
  EXPECT_EQ(Of(kPrefill).queued, 0);
  EXPECT_EQ(Of(kPrefill).free_blocks, 50);
}

TEST_F(FleetLoadTest, ADispatchThatIsNeverReportedIsForgotten) {
  fleet_.OnReport(kDecode, Report(0), now_);
  fleet_.OnDispatch(kDecode, now_, {1, 0, 10, 0});
  EXPECT_EQ(Of(kDecode).free_blocks, 40);
  now_ += absl::Seconds(6);
  fleet_.Tick(now_);
  EXPECT_EQ(Of(kDecode).free_blocks, 50);
}

// Its role is not known when it is chosen, and has been forgotten when the dispatch is counted.
TEST_F(FleetLoadTest, ADispatchIsTakenBackAsItWasCounted) {
  fleet_.Forget(kDecode);
  fleet_.OnDispatch(kDecode, now_, {10, 0.1, 1, 0});
  fleet_.OnReady(kDecode, {v1::WORKER_ROLE_DECODE, 7, 2, 100, 16, 64, "cpu"});
  now_ += absl::Seconds(6);
  fleet_.Tick(now_);
  EXPECT_EQ(Of(kDecode).queued, 0);
}

TEST_F(FleetLoadTest, WhatTheFirstWorkerReportsHoldsForItsEquals) {
  EXPECT_FALSE(Of(kPrefill).cost_known);
  EXPECT_NEAR(Of(kPrefill).service_s, kDefaultPrefillCost.Prefill(64, 0), 1e-9);
  ToldCost(kPrefill, 100);
  // 64 tokens at 100 µs, 64 · 32 pairs at 0.5 µs.
  EXPECT_NEAR(Of(kPrefill).service_s, 1e-3 + 6.4e-3 + 64 * 32 * 0.5e-6, 1e-9);
  EXPECT_NEAR(Of(kPrefill, {2}).service_s, 1e-3 + 3.2e-3 + 32 * (32 + 16) * 0.5e-6, 1e-9);
  // All of it is cached: the last token is computed all the same.
  EXPECT_NEAR(Of(kPrefill, {4}).service_s, 1e-3 + 1e-4 + 63.5 * 0.5e-6, 1e-9);
  EXPECT_TRUE(Of(kOther).cost_known);
  EXPECT_NEAR(Of(kOther).service_s, Of(kPrefill).service_s, 1e-9);
}

// What is done counts no longer, whether or not a report has come since: with prompts that take
// less than the time for which reports are doubted, the one who has a prefix would seem busy with
// all it has done lately.
TEST_F(FleetLoadTest, WhatIsDoneIsNoLongerWaitedFor) {
  fleet_.OnReport(kPrefill, Report(0), now_);
  const int64_t first = fleet_.OnDispatch(kPrefill, now_, {10, 0.3, 1, 0});
  const int64_t second = fleet_.OnDispatch(kPrefill, now_, {10, 0.2, 1, 0});
  EXPECT_NE(first, second);
  now_ += absl::Milliseconds(100);
  fleet_.OnDone(kPrefill, first, now_);
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.2, 1e-9);
  EXPECT_EQ(Of(kPrefill).queued, 1);
  fleet_.OnDone(kPrefill, first, now_);
  EXPECT_EQ(Of(kPrefill).queued, 1) << "once is enough";
  fleet_.OnDone(kPrefill, second, now_);
  EXPECT_EQ(Of(kPrefill).queue_s, 0);
  // One that a report has counted is the report's to end.
  const int64_t third = fleet_.OnDispatch(kPrefill, now_, {10, 0.3, 1, 0});
  now_ += absl::Milliseconds(60);
  fleet_.OnReport(kPrefill, Report(0.24), now_);
  fleet_.OnDone(kPrefill, third, now_);
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.24, 1e-9);
  fleet_.OnDone(-1, third, now_);
  fleet_.OnDone(kOther, third, now_);
}

// A worker hears of nothing new during a step, and repeats what it said before.
TEST_F(FleetLoadTest, AReportCountsFromWhenItsNumbersWere) {
  now_ += absl::Seconds(1);
  fleet_.OnDispatch(kPrefill, now_ - absl::Milliseconds(400), {64, 0.3, 1, 0});
  internal::v1::LoadReport report = Report(0.5);
  report.set_age_us(200'000);
  report.set_accepted_age_us(600'000);
  fleet_.OnReport(kPrefill, report, now_);
  EXPECT_EQ(Of(kPrefill).queued, 1) << "sent after requests were last taken in";
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.5 - 0.2 + 0.3, 1e-9);
  report.set_age_us(0);
  report.set_accepted_age_us(0);
  fleet_.OnReport(kPrefill, report, now_);
  EXPECT_EQ(Of(kPrefill).queued, 0);
  EXPECT_NEAR(Of(kPrefill).queue_s, 0.5, 1e-9);
}

TEST_F(FleetLoadTest, NonsenseFromAWorkerIsTakenAsNothing) {
  internal::v1::LoadReport report;
  report.set_remaining_work_us(-5);
  report.set_running(-1);
  report.set_queued(-7);
  report.set_queued_tokens(-9);
  report.set_free_blocks(-2);
  report.mutable_prefill_cost()->set_fixed_us(std::numeric_limits<double>::quiet_NaN());
  report.mutable_prefill_cost()->set_token_us(-std::numeric_limits<double>::infinity());
  report.mutable_prefill_cost()->set_pair_us(-1);
  fleet_.OnReport(kPrefill, report, now_);
  const Candidate c = Of(kPrefill);
  EXPECT_EQ(c.queue_s, 0);
  EXPECT_EQ(c.running + c.queued + c.queued_tokens + c.free_blocks, 0);
  EXPECT_FALSE(c.cost_known);
  EXPECT_NEAR(c.service_s, kDefaultPrefillCost.Prefill(64, 0), 1e-9);
  report.set_remaining_work_us(std::numeric_limits<int64_t>::max());
  report.set_age_us(-7);
  report.set_accepted_age_us(std::numeric_limits<int64_t>::max());
  report.set_running(std::numeric_limits<int32_t>::max());
  report.set_queued(std::numeric_limits<int32_t>::max());
  report.set_queued_tokens(std::numeric_limits<int64_t>::max());
  report.mutable_prefill_cost()->set_token_us(1e300);
  fleet_.OnReport(kPrefill, report, now_);
  EXPECT_LE(Of(kPrefill).queue_s, 86'400);
  fleet_.OnDispatch(kPrefill, now_, {10, 0, 1, 0});
  EXPECT_GT(1 + Of(kPrefill).running + Of(kPrefill).queued, 0);
  EXPECT_GT(Of(kPrefill).queued_tokens, 0);
}

TEST_F(FleetLoadTest, WhatWasSentCountsAmongTheContextBeforeAnyReport) {
  internal::v1::LoadReport report = Report(0);
  report.set_running(3);
  report.set_context_tokens(500);
  fleet_.OnReport(kDecode, report, now_);
  now_ += absl::Milliseconds(200);
  EXPECT_EQ(Of(kDecode).context_tokens, 500);
  const int64_t sent = fleet_.OnDispatch(kDecode, now_, {1, 0, 4, 64});
  EXPECT_EQ(Of(kDecode).context_tokens, 564);
  EXPECT_EQ(Of(kDecode).running + Of(kDecode).queued, 4);
  EXPECT_EQ(Of(kDecode).last_sent, sent);
  fleet_.OnDispatch(kDecode, now_, {1, 0, 4, 60});
  fleet_.OnDone(kDecode, sent, now_);
  EXPECT_EQ(Of(kDecode).context_tokens, 560);
  // A report that can contain it takes its place.
  now_ += absl::Milliseconds(100);
  report.set_context_tokens(570);
  fleet_.OnReport(kDecode, report, now_);
  EXPECT_EQ(Of(kDecode).context_tokens, 570);
}

// Decode workers that get all KV from others report no cost of prompts, ever.
TEST_F(FleetLoadTest, ADecodeWorkerThatHasComputedNoPromptHasTheCostOfItsKind) {
  EXPECT_FALSE(Of(kDecode).cost_known);
  ToldCost(kPrefill, 100);
  EXPECT_TRUE(Of(kDecode).cost_known);
  EXPECT_NEAR(Of(kDecode).service_s, Of(kPrefill).service_s, 1e-9);
  EXPECT_TRUE(fleet_.PrefillCost(kDecode).has_value());
  // What it measures itself takes the place of that, whatever prefill workers report from then on.
  ToldCost(kDecode, 300);
  EXPECT_NEAR(Of(kDecode).service_s, 1e-3 + 64 * 300e-6 + 64 * 32 * 0.5e-6, 1e-9);
  ToldCost(kPrefill, 50);
  fleet_.Tick(now_);
  EXPECT_NEAR(Of(kDecode).service_s, 1e-3 + 64 * 300e-6 + 64 * 32 * 0.5e-6, 1e-9);
  EXPECT_NEAR(Of(kPrefill).service_s, 1e-3 + 64 * 50e-6 + 64 * 32 * 0.5e-6, 1e-9);
}

TEST_F(FleetLoadTest, TheCostOfTheKindComesBeforeThatOfOthers) {
  fleet_.OnReady(kOther, {v1::WORKER_ROLE_PREFILL, 7, 1, 100, 16, 0, "another"});
  ToldCost(kOther, 900);
  EXPECT_NEAR(Of(kDecode).service_s, 1e-3 + 64 * 900e-6 + 64 * 32 * 0.5e-6, 1e-9)
      << "nothing is known of its kind";
  ToldCost(kPrefill, 100);
  fleet_.Tick(now_);
  EXPECT_NEAR(Of(kDecode).service_s, 1e-3 + 64 * 100e-6 + 64 * 32 * 0.5e-6, 1e-9);
  // Of two decode workers, the one of another kind reports.
  fleet_.Forget(kOther);
  fleet_.OnReady(kOther, {v1::WORKER_ROLE_DECODE, 7, 1, 100, 16, 64, "another"});
  ToldCost(kOther, 900);
  fleet_.Tick(now_);
  EXPECT_NEAR(Of(kDecode).service_s, 1e-3 + 64 * 100e-6 + 64 * 32 * 0.5e-6, 1e-9);
}

// As where decode workers compute all short prompts themselves, and no long one comes.
TEST_F(FleetLoadTest, APrefillWorkerThatHasComputedNoPromptHasTheCostOfItsKind) {
  ToldCost(kDecode, 300);
  EXPECT_TRUE(Of(kPrefill).cost_known);
  EXPECT_NEAR(Of(kPrefill).service_s, Of(kDecode).service_s, 1e-9);
  ToldCost(kOther, 100);
  EXPECT_NEAR(Of(kPrefill).service_s, 1e-3 + 64 * 100e-6 + 64 * 32 * 0.5e-6, 1e-9);
  EXPECT_NEAR(Of(kDecode).service_s, 1e-3 + 64 * 300e-6 + 64 * 32 * 0.5e-6, 1e-9);
}

// Else a worker whose kind is slower elsewhere would never be measured.
TEST_F(FleetLoadTest, ACostThatStandsInFadesUntilAPromptIsComputedThere) {
  ToldCost(kPrefill, 100);
  const double full_s = Of(kDecode).service_s;
  const auto pass = [this](double seconds) {
    now_ += absl::Seconds(seconds);
    fleet_.OnReport(kDecode, Report(0), now_);
  };
  pass(0);
  EXPECT_NEAR(Of(kDecode).service_s, full_s, 1e-9) << "it is as new";
  const int64_t first = fleet_.OnDispatch(kDecode, now_, {64, 0.1, 4, 64});
  fleet_.OnDone(kDecode, first, now_);
  pass(10);
  EXPECT_NEAR(Of(kDecode).service_s, full_s / 2, 1e-6);
  fleet_.OnDispatch(kDecode, now_, {1, 0, 4, 64});
  pass(10);
  EXPECT_NEAR(Of(kDecode).service_s, full_s / 4, 1e-6) << "it was only sent KV";
  fleet_.OnDispatch(kDecode, now_, {64, 0.1, 4, 64});
  EXPECT_NEAR(Of(kDecode).service_s, full_s, 1e-6);
  // What is measured does not fade.
  ToldCost(kDecode, 100);
  pass(60);
  EXPECT_NEAR(Of(kDecode).service_s, full_s, 1e-6);
}

TEST_F(FleetLoadTest, DecodeStepsAreEstimatedFromReports) {
  EXPECT_EQ(Of(kDecode).step.fixed_s, kDefaultDecodeCost.fixed_s);
  internal::v1::LoadReport report = Report(0);
  report.mutable_decode_cost()->set_fixed_us(2000);
  report.mutable_decode_cost()->set_sequence_us(300);
  report.mutable_decode_cost()->set_context_token_us(0.5);
  fleet_.OnReport(kDecode, report, now_);
  EXPECT_NEAR(Of(kDecode).step.DecodeStep(4, 1000), 2e-3 + 1.2e-3 + 0.5e-3, 1e-9);
  report.mutable_decode_cost()->set_expert_us(100);
  report.mutable_decode_cost()->set_experts(64);
  report.mutable_decode_cost()->set_experts_per_token(16);
  fleet_.OnReport(kDecode, report, now_);
  fleet_.Tick(now_);
  EXPECT_NEAR(Of(kDecode).step.DecodeStep(2, 1000), 2e-3 + 0.6e-3 + 0.5e-3 + 28 * 100e-6, 1e-9);
}

TEST_F(FleetLoadTest, LoadsAreOfAllWorkersThatReport) {
  std::vector<LoadOfWorker> loads;
  fleet_.ListLoads(now_, &loads);
  EXPECT_TRUE(loads.empty()) << "none has reported";
  internal::v1::LoadReport busy = Report(1.5);
  busy.mutable_prefill_cost()->mutable_measured()->set_seconds(2 / std::log(2.0));
  fleet_.OnReport(kPrefill, busy, now_);
  fleet_.OnUnavailable(kPrefill);
  internal::v1::LoadReport answers = Report(0);
  answers.set_running(3);
  answers.set_queued(2);
  answers.set_context_tokens(300);
  answers.set_queued_tokens(70);
  fleet_.OnReport(kDecode, answers, now_);
  fleet_.OnDispatch(kDecode, now_, {1, 0, 4, 64, /*receives=*/true});
  fleet_.ListLoads(now_, &loads);
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_FALSE(loads[0].ready) << "a worker that drains is a part of the load";
  EXPECT_NEAR(loads[0].busy, 1, 1e-9);
  EXPECT_NEAR(loads[0].backlog_s, 1.5, 1e-6);
  EXPECT_TRUE(loads[1].ready);
  EXPECT_EQ(loads[1].running, 3);
  EXPECT_EQ(loads[1].queued, 3);
  EXPECT_EQ(loads[1].context_tokens, 364);
  EXPECT_EQ(loads[1].queued_tokens, 70) << "what was just sent is among the used blocks";
  EXPECT_EQ(loads[1].used_blocks, 54);
  EXPECT_EQ(loads[1].total_blocks, 100);
  EXPECT_EQ(loads[1].max_sequences, 64);
  // Two seconds later half of it counts; after more silence, nothing does.
  fleet_.ListLoads(now_ + absl::Seconds(2), &loads);
  EXPECT_NEAR(loads[0].busy, 0.5, 1e-9);
  fleet_.ListLoads(now_ + absl::Seconds(4), &loads);
  EXPECT_TRUE(loads.empty());
}

TEST_F(FleetLoadTest, AWorkerThatDrainsKeepsTheCostOfItsSteps) {
  internal::v1::LoadReport report = Report(0);
  report.mutable_decode_cost()->set_fixed_us(80'000);
  report.mutable_decode_cost()->set_fitted_steps(50);
  fleet_.OnReport(kDecode, report, now_);
  fleet_.OnUnavailable(kDecode);
  std::vector<LoadOfWorker> loads;
  fleet_.ListLoads(now_, &loads);
  ASSERT_EQ(loads.size(), 1u);
  EXPECT_NEAR(loads[0].step.fixed_s, 0.08, 1e-9);
}

TEST_F(FleetLoadTest, NonsenseInAReportIsNoLoad) {
  internal::v1::LoadReport report = Report(0);
  report.mutable_prefill_cost()->mutable_measured()->set_seconds(
      std::numeric_limits<double>::quiet_NaN());
  report.set_free_blocks(1 << 30);
  fleet_.OnReport(kPrefill, report, now_);
  std::vector<LoadOfWorker> loads;
  fleet_.ListLoads(now_, &loads);
  EXPECT_EQ(loads[0].busy, 0);
  EXPECT_EQ(loads[0].used_blocks, 0);
}

}  // namespace
}  // namespace baton::router
