// A scoring call over a fake network: batches, losses, refusals, stalls, and the end.
#include "router/score/score_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "router/score/embedding.h"
#include "tests/router/score/score_harness.h"

namespace baton::testing {
namespace {

TEST_F(ScoreCallTest, ItemsGoToPrefillWorkersInBatchesAndComeBackInOrder) {
  Start(40);
  EXPECT_EQ(batch(0).request.items_size(), 32);
  EXPECT_EQ(batch(1).request.items_size(), 8);
  const auto& first = batch(0).request;
  EXPECT_LT(batch(0).worker, 2) << "no decode worker";
  EXPECT_EQ(std::string(first.prefix().begin(), first.prefix().end()),
            "a prefix of 24 bytes: \n\n");
  EXPECT_EQ(std::string(first.items(3).tokens().begin(), first.items(3).tokens().end()), "item 3");
  ASSERT_EQ(first.items(0).labels_size(), 2);
  EXPECT_EQ(first.items(0).labels(1).tokens_size(), 2);
  batch(1).ScoreAll();
  EXPECT_TRUE(sink().items().empty()) << "the first items come first";
  for (int i = 31; i >= 0; --i) batch(0).Score(i);
  EXPECT_EQ(sink().End(), absl::OkStatus());
  std::vector<uint64_t> all(40);
  for (size_t i = 0; i < 40; ++i) all[i] = i;
  EXPECT_EQ(Ids(), all);
  const v1::ItemScore item = sink().items()[0];
  EXPECT_EQ(item.labels(0).logprob(), -1);
  EXPECT_EQ(item.labels(1).logprob(), -2);
  EXPECT_DOUBLE_EQ(item.probability(), std::exp(-1.0) / (std::exp(-1.0) + std::exp(-2.0)));
  EXPECT_EQ(item.prompt_tokens(), 30);
  EXPECT_EQ(sink().usage().items(), 40);
  EXPECT_EQ(sink().usage().failed_items(), 0);
  EXPECT_EQ(registry_.size(), 0u);
}

v1::EmbedRequest Embed(int inputs) {
  v1::EmbedRequest request;
  request.set_request_id("embed");
  for (int i = 0; i < inputs; ++i) request.add_inputs()->set_text(absl::StrCat("text ", i));
  return request;
}

router::ScoreCall::Settings SettingsFor(v1::EmbedRequest request) {
  router::ScoreCall::Settings settings;
  settings.request = router::SettingsOf(request);
  settings.embed = std::move(request);
  return settings;
}

TEST_F(ScoreCallTest, InputsAreEmbeddedInTheirOrder) {
  v1::EmbedRequest request = Embed(33);
  request.mutable_inputs(1)->mutable_token_ids()->add_ids(7);
  Start(SettingsFor(request));
  ASSERT_EQ(batch(0).request.items_size(), 32);
  EXPECT_TRUE(batch(0).request.embed());
  EXPECT_EQ(batch(0).request.items(0).labels_size(), 0);
  const auto& tokens = batch(0).request.items(2).tokens();
  EXPECT_EQ(batch(0).request.prefix_size(), 0);
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), "text 2");
  ASSERT_EQ(batch(0).request.items(1).tokens_size(), 1);
  EXPECT_EQ(batch(0).request.items(1).tokens(0), 7);
  batch(1).ScoreAll();
  batch(0).ScoreAll();
  EXPECT_EQ(sink().End(), absl::OkStatus());
  ASSERT_EQ(sink().embeddings().size(), 33u);
  for (const std::vector<float>& embedding : sink().embeddings()) {
    EXPECT_EQ(embedding, (std::vector<float>{3 / 13.f, 4 / 13.f, 0, 12 / 13.f}));
  }
  EXPECT_EQ(sink().usage().items(), 33);
  EXPECT_EQ(sink().usage().prompt_tokens(), 9 * 6 + 1 + 23 * 7);
}

TEST_F(ScoreCallTest, AnEmbeddingOfFewerDimensionsHasLengthOneAgain) {
  v1::EmbedRequest request = Embed(1);
  request.set_dimensions(2);
  Start(SettingsFor(request));
  batch(0).ScoreAll();
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(sink().embeddings()[0], (std::vector<float>{0.6f, 0.8f}));
}

TEST_F(ScoreCallTest, BadEmbedCallsAreRefused) {
  const auto reason = [this](const v1::EmbedRequest& request) {
    Start(SettingsFor(request));
    return ErrorReason(sinks_.back()->End());
  };
  v1::EmbedRequest request = Embed(1);
  request.set_dimensions(0);
  EXPECT_EQ(reason(request), "OUT_OF_RANGE");
  request.set_dimensions(5);
  EXPECT_EQ(reason(request), "OUT_OF_RANGE");
  EXPECT_EQ(reason(Embed(0)), "OUT_OF_RANGE");
  EXPECT_EQ(reason(Embed(2049)), "OUT_OF_RANGE");
  request = Embed(2);
  request.mutable_inputs(1)->mutable_token_ids()->add_ids(400);
  EXPECT_EQ(reason(request), "OUT_OF_RANGE");
  request = Embed(40);
  request.mutable_inputs(39)->set_text("");
  EXPECT_EQ(reason(request), "EMPTY_PROMPT");
  request.mutable_inputs(39)->set_text(std::string(200, 'x'));
  EXPECT_EQ(reason(request), "PROMPT_TOO_LONG") << "the call fails, and not one input alone";
  request.set_model("another");
  EXPECT_EQ(reason(request), "MODEL_NOT_FOUND");
  EXPECT_EQ(ErrorReason(router::CheckEmbeddings(Embed(1), router::ModelInfo())),
            "NOT_AN_EMBEDDING_MODEL");
}

TEST(EmbeddingTest, AnAnswerBeyondAMessageIsRefusedBeforehand) {
  router::ModelInfo model;
  model.embeddings.emplace().set_dimensions(1024);
  EXPECT_TRUE(router::CheckAnswerSize(Embed(1000), model).ok());
  EXPECT_EQ(ErrorReason(router::CheckAnswerSize(Embed(1024), model)), "ANSWER_TOO_LARGE");
  v1::EmbedRequest fewer = Embed(1024);
  fewer.set_dimensions(512);
  EXPECT_TRUE(router::CheckAnswerSize(fewer, model).ok());
}

TEST_F(ScoreCallTest, LostInputsAreEmbeddedElsewhereOrFailTheCall) {
  Start(SettingsFor(Embed(3)));
  batch(0).Score(1);
  batch(0).End(kSocketClosed);
  batch(1).ScoreAll();
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(sink().embeddings().size(), 3u);

  Start(SettingsFor(Embed(3)));
  for (size_t i = 2; i < 5; ++i) {
    batch(i).End(kSocketClosed);
    PassForCalls(router::kSameWorkerPause);
  }
  EXPECT_EQ(ErrorReason(sink(1).End()), "WORKER_LOST");
}

TEST_F(ScoreCallTest, AVectorOfAnotherLengthOrNotFiniteIsNoResult) {
  for (const std::vector<float>& bad :
       {std::vector<float>{1, 2, 3}, std::vector<float>{1, 2, 3, INFINITY}, std::vector<float>{}}) {
    Start(SettingsFor(Embed(1)));
    auto& stream = batch(score_network_.count() == 0 ? 0 : sinks_.size() - 1);
    internal::v1::ScoredItem result;
    result.mutable_embedding()->Add(bad.begin(), bad.end());
    stream.listener->OnScored(stream.number, result);
    EXPECT_FALSE(sinks_.back()->End().ok());
  }
}

TEST_F(ScoreCallTest, ItemsInFlightAreBounded) {
  Start(1000);
  batch(7);  // 128 items for each of two prefill workers
  EXPECT_EQ(score_network_.count(), 8u);
  batch(0).ScoreAll();
  batch(8);
  EXPECT_EQ(score_network_.count(), 9u);
}

TEST_F(ScoreCallTest, WhatALostStreamLeavesGoesElsewhereAndIsAnsweredOnce) {
  Start(10);
  const int lost = batch(0).worker;
  for (const int i : {0, 1, 7}) batch(0).Score(i);
  batch(0).End(kSocketClosed);
  auto& second = batch(1);
  EXPECT_NE(second.worker, lost);
  EXPECT_EQ(second.request.items_size(), 7);
  batch(0).Score(5);  // late
  second.ScoreAll();
  second.Score(0);  // twice
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(sink().items().size(), 10u);
  EXPECT_EQ(sink().usage().items(), 10);
}

TEST_F(ScoreCallTest, AnItemThatIsLostThreeTimesHasTheErrorAndOthersGoOn) {
  Start(2);
  batch(0).Score(1);
  for (size_t i = 0; i < 3; ++i) {
    batch(i).End(kSocketClosed);
    PassForCalls(router::kSameWorkerPause);
  }
  EXPECT_EQ(sink().End(), absl::OkStatus());
  ASSERT_EQ(sink().items().size(), 2u);
  EXPECT_EQ(sink().items()[0].error().reason(), "WORKER_LOST");
  EXPECT_FALSE(sink().items()[1].has_error());
  EXPECT_EQ(sink().usage().failed_items(), 1);
}

TEST_F(ScoreCallTest, WorkersThatDieCostItemsInTheirQueueNothing) {
  budget_limits_ = {.share = 0, .reserve = 0, .capacity = 1};
  Start(2);
  for (size_t i = 0; i < 6; ++i) {
    const int worker = batch(i).worker;
    PassForCalls(absl::Seconds(2));
    LoseWatch(worker);
    batch(i).End(kSocketClosed);
    PassForCalls(router::kSameWorkerPause);
    Introduce(worker);
    PassForCalls(absl::Milliseconds(50));
  }
  batch(6).ScoreAll();
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(sink().usage().failed_items(), 0);
}

TEST_F(ScoreCallTest, ItemsThatEndThreeWorkersAreNotSentToAFourth) {
  Start(2);
  for (size_t i = 0; i < 3; ++i) {
    const int worker = batch(i).worker;
    batch(i).Heartbeat();
    batch(i).End(kSocketClosed);  // the stream ends before the Watch stream
    LoseWatch(worker);
    Introduce(worker);
    PassForCalls(router::kSameWorkerPause);
    PassForCalls(router::kSameWorkerPause);
  }
  EXPECT_EQ(sink().End(), absl::OkStatus());
  ASSERT_EQ(sink().items().size(), 2u);
  for (const auto& item : sink().items()) EXPECT_EQ(item.error().reason(), "WORKERS_DIED");
  EXPECT_EQ(score_network_.count(), 3u);
}

TEST_F(ScoreCallTest, ABusyClusterRefusesANewCallAndKeepsOneThatRuns) {
  Start(2);
  for (size_t i = 0; i < 2; ++i) {
    for (const int item : {0, 1}) {
      batch(i).Refuse(item, absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
    }
  }
  EXPECT_EQ(ErrorReason(sink().End()), "QUEUE_FULL");
  EXPECT_TRUE(ErrorRetryAfter(sink().End()).has_value());
}

TEST_F(ScoreCallTest, ARunningCallWaitsForRoom) {
  Start(2);
  batch(0).Score(0);
  batch(0).Refuse(1, absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  for (size_t i = 1; i < 4; ++i) {
    batch(i).Refuse(0, absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
    EXPECT_FALSE(sink().ended());
    const absl::Duration pause = absl::Milliseconds(200) * (1 << i);
    PassForCalls(pause - absl::Milliseconds(1));
    EXPECT_EQ(score_network_.count(), i + 1) << "asked again too soon";
    PassForCalls(absl::Milliseconds(1));
  }
  batch(4).Score(0);
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(sink().usage().failed_items(), 0);
}

TEST_F(ScoreCallTest, RefusalsOfBatchesThatWereSentTogetherAreOne) {
  Start(40);
  const int full = batch(0).worker;
  if (batch(1).worker != full) LoseWatch(1 - full);
  batch(1);
  PassForCalls(absl::Milliseconds(50));
  for (const size_t i : {0, 1}) {
    for (int item = 0; item < batch(i).request.items_size(); ++item) {
      batch(i).Refuse(item, absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
    }
    EXPECT_FALSE(sink().ended()) << i << ": " << sink().End();
  }
  for (size_t i = 2; !sink().ended(); ++i) batch(i).ScoreAll();
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(sink().usage().failed_items(), 0);
}

TEST_F(ScoreCallTest, ANewCallPaysForTheRetryOfARefusal) {
  budget_limits_ = {.share = 0, .reserve = 1, .capacity = 1};
  for (const size_t i : {0, 1}) {
    Start(1);
    batch(2 * i).Refuse(0, absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
    EXPECT_EQ(budget_->level(), 0);
    if (i == 1) break;
    batch(1).ScoreAll();
    EXPECT_EQ(sink(0).End(), absl::OkStatus());
  }
  EXPECT_EQ(ErrorReason(sink(1).End()), "QUEUE_FULL") << "nothing is left";
  EXPECT_EQ(score_network_.count(), 3u);
}

TEST_F(ScoreCallTest, WhatWaitsForAWorkerTakesNothingFromTheBudget) {
  budget_limits_ = {.share = 0, .reserve = 2, .capacity = 2};
  options_.failover_wait_ms = 1000;
  Start(2);
  batch(0).Score(0);
  internal::v1::WatchResponse drains;
  drains.mutable_load()->set_draining(true);
  for (const int worker : {0, 1}) {
    reporting_[worker] = false;
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, drains).ok());
  }
  batch(0).End(kSocketClosed);
  EXPECT_EQ(budget_->level(), 2) << "the worker lives, and there is no other";
  PassForCalls(absl::Milliseconds(999));
  EXPECT_FALSE(sink().ended());
  PassForCalls(absl::Milliseconds(1));
  EXPECT_EQ(ErrorReason(sink().End()), "WORKER_LOST");
  EXPECT_EQ(budget_->level(), 2);
}

// The streams end before the deaths are known: one death is enough for the items to go on.
TEST_F(ScoreCallTest, AThirdLossWaitsUntilDeathsAreKnown) {
  Start(2);
  for (size_t i = 0; i < 3; ++i) {
    batch(i).Heartbeat();
    batch(i).End(kSocketClosed);
    EXPECT_TRUE(sink().items().empty());
    if (i < 2) PassForCalls(router::kSameWorkerPause);
  }
  LoseWatch(batch(0).worker);
  Introduce(batch(0).worker);
  PassForCalls(router::kSameWorkerPause);
  batch(3).ScoreAll();
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(sink().usage().failed_items(), 0);
}

// A result of another batch has items sent before the next tick.
TEST_F(ScoreCallTest, ItemsThatAreLostTooOftenAreSentByNoEvent) {
  Start(40);
  batch(1).Heartbeat();
  for (const size_t i : {0, 2, 3}) {
    batch(i).Heartbeat();
    batch(i).End(kSocketClosed);
    if (i < 3) PassForCalls(router::kSameWorkerPause);
  }
  Pass(router::kSameWorkerPause);
  batch(1).ScoreAll();
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(sink().usage().failed_items(), 32);
  EXPECT_EQ(score_network_.count(), 4u);
}

TEST_F(ScoreCallTest, AResultThatMakesNoSenseIsTheItemsError) {
  Start(3);
  batch(0).Score(0, std::nanf(""));
  batch(0).Score(1, 0.5f);
  internal::v1::ScoredItem nothing;
  nothing.set_item(2);
  batch(0).listener->OnScored(batch(0).number, nothing);
  nothing.set_item(-1);
  batch(0).listener->OnScored(batch(0).number, nothing);
  EXPECT_EQ(sink().End(), absl::OkStatus());
  ASSERT_EQ(sink().items().size(), 3u);
  for (const v1::ItemScore& item : sink().items()) {
    EXPECT_EQ(item.error().reason(), "WORKER_FAILED") << item.ShortDebugString();
  }
}

TEST_F(ScoreCallTest, WithoutPrefillWorkersItIsRefused) {
  Begin();
  LoseWatch(0);
  LoseWatch(1);
  baton::testing::RunFor(absl::Seconds(10), clock_, awake_);
  for (int worker = 2; worker < kWorkers; ++worker) Report(worker);
  fleet_->roster.Tick();
  Start(2);
  EXPECT_EQ(ErrorReason(sink().End()), "NO_PREFILL_WORKER") << sink().End();
  EXPECT_EQ(score_network_.count(), 0u);
}

TEST_F(ScoreCallTest, WithoutPrefillWorkersDecodeWorkersThatCanScoreDo) {
  decode_capabilities_ = {v1::WORKER_CAPABILITY_SCORE, v1::WORKER_CAPABILITY_ANSWER};
  Begin();
  LoseWatch(0);
  LoseWatch(1);
  Start(40);
  EXPECT_GE(batch(0).worker, 2);
  EXPECT_EQ(batch(0).request.prefill_epoch(), cards_[batch(0).worker].epoch());
  EXPECT_NE(batch(1).worker, batch(0).worker) << "the other one is idle";
  batch(1).ScoreAll();
  // What a lost one leaves goes to another one.
  LoseWatch(batch(0).worker);
  batch(0).End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  EXPECT_GE(batch(2).worker, 2);
  EXPECT_NE(batch(2).worker, batch(0).worker);
  batch(2).ScoreAll();
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(sink().usage().failed_items(), 0);
  EXPECT_EQ(Ids().size(), 40u);
}

TEST_F(ScoreCallTest, CancelsAndDeadlinesEndTheStreams) {
  router::ScoreCall& call = Start(2, {"y"}, absl::Seconds(60));
  batch(0);
  EXPECT_EQ(registry_.Cancel("", "judge"), 1);
  EXPECT_EQ(ErrorReason(sink().End()), "CANCELLED_BY_ID");
  EXPECT_TRUE(batch(0).cancelled);
  call.Cancel();  // nothing more happens
}

TEST_F(ScoreCallTest, ResultsThatAreNotReadTakeNoPlaceAndAreGivenUp) {
  Start(2);
  batch(0).Score(0);
  sink().Stall();
  PassForCalls(absl::Milliseconds(50));
  EXPECT_EQ(ErrorReason(sink().End()), "READER_STALLED") << "while items are scored";
  EXPECT_EQ(ErrorReason(sink().abort()), "READER_STALLED");
  EXPECT_TRUE(batch(0).cancelled);

  router::ScoreCall& call = Start(2);
  batch(1).ScoreAll();
  EXPECT_TRUE(sink(1).End().ok());
  EXPECT_EQ(admission_->load().inside.requests, 0);
  PassForCalls(absl::Milliseconds(50));
  EXPECT_TRUE(sink(1).abort().ok());
  sink(1).Stall();
  PassForCalls(absl::Milliseconds(50));
  EXPECT_EQ(ErrorReason(sink(1).abort()), "READER_STALLED") << "behind the last result";

  router::ScoreCall& read = Start(2);
  batch(2).ScoreAll();
  read.OnSinkGone();
  sink(2).Stall();
  PassForCalls(absl::Milliseconds(50));
  EXPECT_TRUE(sink(2).abort().ok());
  call.OnSinkGone();
}

TEST_F(ScoreCallTest, ItEndsAtItsDeadline) {
  Start(2, {"y"}, absl::Seconds(60));
  batch(0).Score(0);
  PassForCalls(absl::Seconds(61));
  EXPECT_TRUE(absl::IsDeadlineExceeded(sink().End()));
  EXPECT_TRUE(batch(0).cancelled);
}

// The worker reports, and its connection works: only the batch is silent.
TEST_F(ScoreCallTest, ABatchThatIsNeverAnsweredGoesToAnotherWorker) {
  options_.stall_timeout_ms = 5'000;
  Start(3);
  batch(0).Score(0);
  for (int i = 0; i < 20; ++i) {
    PassForCalls(absl::Seconds(4));
    batch(0).Heartbeat();  // it waits for room
  }
  EXPECT_EQ(score_network_.count(), 1u);
  PassForCalls(absl::Seconds(4));
  EXPECT_FALSE(batch(0).cancelled);
  PassForCalls(absl::Seconds(2));
  EXPECT_TRUE(batch(0).cancelled);
  EXPECT_NE(batch(1).worker, batch(0).worker);
  EXPECT_EQ(batch(1).request.items_size(), 2);
  batch(0).ScoreAll();  // too late
  batch(1).ScoreAll();
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(Ids(), (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(sink().usage().failed_items(), 0);
}

TEST_F(ScoreCallTest, AStallIsChargedToTheRetryBudget) {
  budget_limits_ = {.share = 0, .reserve = 1, .capacity = 1};
  Start(2);
  batch(0);
  PassForCalls(absl::Seconds(6));
  batch(1);  // the one retry
  PassForCalls(absl::Seconds(6));
  PassForCalls(router::kSameWorkerPause);
  PassForCalls(absl::Seconds(6));
  EXPECT_EQ(ErrorReason(sink().End()), "RETRY_BUDGET_EXHAUSTED") << sink().End();
  EXPECT_EQ(score_network_.count(), 2u);
}

TEST_F(ScoreCallTest, ItemsThatStallThreeWorkersHaveTheError) {
  Start(1);
  for (size_t i = 0; i < 3; ++i) {
    batch(i);
    PassForCalls(absl::Seconds(6));
    PassForCalls(router::kSameWorkerPause);
  }
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(sink().items()[0].error().reason(), "WORKER_STALLED");
}

}  // namespace
}  // namespace baton::testing
