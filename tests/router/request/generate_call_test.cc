// One request among failing workers, step by step under a fake clock.
#include "router/request/generate_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/router/call_harness.h"

namespace baton::router {
namespace {

using ::baton::testing::CallHarness;
using ::baton::testing::FakeSink;
using ::baton::testing::Ids;
using ::baton::testing::kEndToken;
using ::baton::testing::kSocketClosed;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using DecodeResponse = internal::v1::DecodeResponse;

const std::string kAnswer = "the whole answer";

using FailoverTest = CallHarness;

TEST_F(FailoverTest, UsageSaysWhereCachedAndDroppedTokensComeFrom) {
  auto request = Request();
  request.set_text(std::string(40, 's') + std::string(100, 'h') + std::string(10, 'u'));
  request.mutable_stop()->set_max_tokens(28);
  request.mutable_truncation()->set_keep_first(40);
  request.mutable_truncation()->set_retention_ratio(0.6f);
  for (const auto& [source, length] :
       {std::pair(v1::PROMPT_SOURCE_SYSTEM, 40), std::pair(v1::PROMPT_SOURCE_HISTORY, 100),
        std::pair(v1::PROMPT_SOURCE_USER, 10)}) {
    request.add_segments()->set_source(source);
    request.mutable_segments()->rbegin()->set_length(length);
  }
  FakeSink& sink = Start(request);
  const int sent = stream(0).request.tokens_size();
  EXPECT_EQ(sent, 150 - 2 * 40) << "room for 100, steps of 40";
  DecodeResponse first;
  first.add_token_ids('x');
  first.mutable_usage()->set_cached_prompt_tokens(48);
  stream(0).Say(first);
  stream(0).Finish("y");
  ASSERT_TRUE(sink.End().ok());
  const v1::Usage usage = sink.choice().usage();
  EXPECT_EQ(usage.prompt_tokens(), sent);
  EXPECT_EQ(usage.dropped_prompt_tokens(), 150 - sent);
  ASSERT_EQ(usage.by_source_size(), 3);
  EXPECT_EQ(usage.by_source(0).tokens(), 40);
  EXPECT_EQ(usage.by_source(0).cached(), 40);
  EXPECT_EQ(usage.by_source(1).tokens(), sent - 50);
  EXPECT_EQ(usage.by_source(1).cached(), 8);
  EXPECT_EQ(usage.by_source(2).tokens(), 10);
  EXPECT_EQ(usage.by_source(2).cached(), 0);
}

TEST_F(FailoverTest, TheRoutersLimitsHoldBeforeAnyWorkerIsAsked) {
  options_.max_output_tokens = 10;
  auto request = Request();
  request.mutable_stop()->set_max_tokens(11);
  EXPECT_EQ(ErrorReason(Start(request).End()), "OUTPUT_LIMIT");
  EXPECT_EQ(network_.count(), 0u);
  request.mutable_stop()->clear_max_tokens();
  Start(request);
  EXPECT_EQ(stream(0).request.max_tokens(), 10);
  stream(0).Finish("x");
}

TEST_F(FailoverTest, AnAnsweredRequestNoLongerCountsForItsTenant) {
  caller_.tenant = "a";
  caller_.limits.max_concurrent_requests = 1;
  FakeSink& first = Start(Request());
  EXPECT_EQ(ErrorReason(Start(Request()).End()), "TENANT_LIMIT");
  stream(0).Finish("x");
  ASSERT_TRUE(first.End().ok());
  // The call itself may still exist, as gRPC lets go of it later.
  FakeSink& second = Start(Request());
  stream(1).Finish("y");
  EXPECT_TRUE(second.End().ok());
}

TEST_F(FailoverTest, WhereverTheWorkerDiesTheClientSeesOneText) {
  const int n = static_cast<int>(kAnswer.size());
  for (int lost_after : {1, 2, n / 2, n - 1}) {
    for (bool one_by_one : {false, true}) {
      SCOPED_TRACE(lost_after);
      const std::string prompt = "a prompt of more than a block of tokens:";
      auto request = Request();
      request.set_text(prompt);
      request.mutable_stop()->set_max_tokens(n);
      request.mutable_sampling()->set_seed(9);
      const size_t first = network_.count();
      FakeSink& sink = Start(request);
      for (int i = 0; i < lost_after && one_by_one; ++i) {
        stream(first).SayTokens(kAnswer.substr(i, 1));
      }
      if (!one_by_one) stream(first).SayTokens(kAnswer.substr(0, lost_after));
      stream(first).End(kSocketClosed);
      const auto& sent = stream(first + 1).request;
      EXPECT_NE(stream(first + 1).worker, stream(first).worker);
      EXPECT_EQ(stream(first + 1).Tokens(), prompt + kAnswer.substr(0, lost_after));
      EXPECT_EQ(sent.prompt_tokens(), static_cast<int>(prompt.size()));
      EXPECT_EQ(sent.max_tokens(), n - lost_after);
      EXPECT_EQ(sent.sampling().seed(), 9u);
      EXPECT_EQ(sent.sampling().choice(), 0u);
      EXPECT_EQ(sent.prefill().address(), stream(first).request.prefill().address())
          << "which has the prompt";
      stream(first + 1).Finish(kAnswer.substr(lost_after));
      EXPECT_TRUE(sink.End().ok());
      EXPECT_EQ(sink.choice().text(), kAnswer);
      EXPECT_THAT(sink.choice().token_ids(), ElementsAreArray(Ids(kAnswer)));
      EXPECT_EQ(sink.choice().usage().generated_tokens(), n);
      EXPECT_EQ(sink.choice().finish_reason(), v1::FINISH_REASON_LENGTH);
    }
  }
}

TEST_F(FailoverTest, UsageAndTimingsAreOfTheWhole) {
  FakeSink& sink = Start(Request());
  DecodeResponse first;
  first.add_token_ids('a');
  first.mutable_usage()->set_cached_prompt_tokens(4);
  first.mutable_usage()->set_kv_bytes(1000);
  first.mutable_usage()->set_draft_tokens(8);
  first.mutable_usage()->set_accepted_draft_tokens(5);
  first.mutable_timings()->set_queue_ms(5);
  first.mutable_timings()->set_prefill_ms(20);
  clock_.Advance(absl::Milliseconds(30));
  stream(0).Say(first);
  clock_.Advance(absl::Milliseconds(100));
  stream(0).End(kSocketClosed);
  first.set_token_ids(0, 'b');
  first.mutable_usage()->set_cached_prompt_tokens(7);
  first.mutable_usage()->set_kv_bytes(300);
  first.mutable_timings()->set_prefill_ms(2);
  stream(1).Say(first);
  clock_.Advance(absl::Milliseconds(100));
  DecodeResponse last;
  last.add_token_ids(kEndToken);
  last.set_finish(DecodeResponse::FINISH_STOP);
  *last.mutable_timings() = first.timings();
  last.mutable_timings()->set_kv_transfer_ms(1);
  last.mutable_timings()->set_decode_ms(99);
  *last.mutable_usage() = first.usage();
  last.mutable_usage()->set_draft_tokens(12);
  last.mutable_usage()->set_accepted_draft_tokens(7);
  stream(1).Say(last);
  ASSERT_TRUE(sink.End().ok());
  const auto answer = sink.choice();
  EXPECT_EQ(answer.usage().cached_prompt_tokens(), 4) << "of the client's prompt, at first";
  EXPECT_EQ(answer.usage().kv_bytes(), 1300);
  EXPECT_EQ(answer.usage().draft_tokens(), 8 + 12);
  EXPECT_EQ(answer.usage().accepted_draft_tokens(), 5 + 7);
  EXPECT_EQ(answer.usage().generated_tokens(), 3);
  EXPECT_EQ(answer.timings().queue_ms(), 10);
  EXPECT_EQ(answer.timings().prefill_ms(), 22);
  EXPECT_EQ(answer.timings().kv_transfer_ms(), 1);
  EXPECT_EQ(answer.timings().ttft_ms(), 30);
  EXPECT_EQ(answer.timings().decode_ms(), 200) << "the pause included";
}

TEST_F(FailoverTest, ASilentStreamIsLeftAndAHeartbeatKeepsIt) {
  options_.stall_timeout_ms = 2000;
  FakeSink& sink = Start(Request());
  stream(0).SayTokens("one ");
  Pass(absl::Milliseconds(1900));
  stream(0).Say(DecodeResponse());  // alive
  Pass(absl::Milliseconds(1900));
  EXPECT_FALSE(stream(0).cancelled);
  Pass(absl::Milliseconds(101));
  EXPECT_TRUE(stream(0).cancelled);
  EXPECT_NE(stream(1).worker, stream(0).worker);
  stream(0).SayTokens("late");  // what was on its way
  stream(1).SayTokens("text");
  stream(0).Finish("later");
  stream(0).End(grpc::Status::OK);
  EXPECT_FALSE(sink.ended());
  stream(1).Finish("!");
  EXPECT_TRUE(sink.End().ok());
  EXPECT_EQ(sink.choice().text(), "one text!");
}

TEST_F(FailoverTest, SilenceBeforeTheFirstMessageIsAWorkersQueue) {
  options_.stall_timeout_ms = 2000;
  FakeSink& sink = Start(Request());
  stream(0);
  for (int i = 0; i < 100; ++i) Pass(absl::Seconds(1));
  EXPECT_FALSE(stream(0).cancelled);
  stream(0).Finish("at last");
  EXPECT_EQ(sink.choice().text(), "at last");
}

TEST_F(FailoverTest, AnExpiredWorkersStreamIsContinuedWhenAnotherWorkerComes) {
  options_.stall_timeout_ms = 60'000;
  FakeSink& sink = Start(Request());
  stream(0).SayTokens("a");
  for (int worker : {2, 3, 4}) reporting_[worker] = false;
  for (int i = 0; i < 5; ++i) Pass(absl::Seconds(1));
  EXPECT_EQ(fleet_->roster.List()[stream(0).worker].state(), v1::WORKER_STATE_SUSPECT);
  EXPECT_FALSE(stream(0).cancelled);
  Pass(absl::Milliseconds(1001));
  EXPECT_TRUE(stream(0).cancelled);
  Introduce(3);
  Tick();
  stream(1).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

TEST_F(FailoverTest, AnotherProcessAtTheAddressIsNotTheWorkerThatWasAsked) {
  FakeSink& sink = Start(Request());
  stream(0).SayTokens("a");
  Introduce(stream(0).worker);  // with a new epoch
  Tick();
  EXPECT_TRUE(stream(0).cancelled);
  stream(0).SayTokens("stale");
  stream(1).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

// During an upgrade, a request may move from a worker of the one version to one of the other.
TEST_F(FailoverTest, OnlyWorkersWhoseCardSaysSoGetFixedTokens) {
  FakeSink& sink = Start(Request());
  EXPECT_EQ(stream(0).Tokens(), "prompt:");
  EXPECT_EQ(stream(0).request.fixed_tokens_size(), 0);
  for (int worker = 2; worker < kWorkers; ++worker) {
    takes_fixed_tokens_[worker] = true;
    if (worker != stream(0).worker) Introduce(worker);
  }
  stream(0).SayTokens("a");
  stream(0).End(kSocketClosed);
  EXPECT_EQ(stream(1).request.tokens_size(), 0);
  const auto& fixed = stream(1).request.fixed_tokens();
  EXPECT_EQ(std::string(fixed.begin(), fixed.end()), "prompt:a");
  EXPECT_EQ(stream(1).request.prompt_tokens(), 7);
  takes_fixed_tokens_[2] = takes_fixed_tokens_[3] = takes_fixed_tokens_[4] = false;
  for (int worker = 2; worker < kWorkers; ++worker) {
    if (worker != stream(1).worker) Introduce(worker);
  }
  stream(1).SayTokens("b");
  stream(1).End(kSocketClosed);
  EXPECT_EQ(stream(2).Tokens(), "prompt:ab");
  EXPECT_EQ(stream(2).request.fixed_tokens_size(), 0);
  stream(2).Finish("c");
  EXPECT_EQ(sink.choice().text(), "abc");
}

TEST_F(FailoverTest, WithoutAnotherWorkerARequestThatHasTokensWaitsForOne) {
  FakeSink& sink = Start(Request());
  stream(0).SayTokens("a");
  for (int worker : {2, 3, 4}) {
    reporting_[worker] = false;
    LoseWatch(worker);
  }
  stream(0).End(kSocketClosed);
  Pass(absl::Seconds(2));
  EXPECT_EQ(network_.count(), 1u);
  EXPECT_FALSE(sink.ended());
  Introduce(3);
  Tick();
  EXPECT_EQ(stream(1).worker, 3);
  stream(1).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

TEST_F(FailoverTest, TheWaitForAWorkerHasABound) {
  options_.failover_wait_ms = 3000;
  FakeSink& sink = Start(Request());
  stream(0).SayTokens("a");
  for (int worker : {2, 3, 4}) {
    reporting_[worker] = false;
    LoseWatch(worker);
  }
  stream(0).End(kSocketClosed);
  Pass(absl::Milliseconds(2900));
  EXPECT_FALSE(sink.ended());
  Pass(absl::Milliseconds(200));
  EXPECT_EQ(ErrorReason(sink.End()), "WORKER_LOST");
  EXPECT_TRUE(ErrorRetryAfter(sink.End()).has_value());
  EXPECT_EQ(sink.choice().finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
}

TEST_F(FailoverTest, ACutConnectionToTheOnlyWorkerIsOpenedAgainAfterAPause) {
  Begin();
  for (int worker : {3, 4}) {
    reporting_[worker] = false;
    LoseWatch(worker);
  }
  FakeSink& sink = Start(Request());
  stream(0).SayTokens("a");
  stream(0).End(kSocketClosed);
  Tick();
  EXPECT_EQ(network_.count(), 1u) << "not at once: it may just be dead";
  Pass(absl::Milliseconds(600));
  EXPECT_EQ(stream(1).worker, stream(0).worker);
  stream(1).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

TEST_F(FailoverTest, ThreeStreamsInARowWithoutATokenEndTheRequestAndATokenStartsTheCountAnew) {
  FakeSink& sink = Start(Request());
  size_t next = 0;
  for (int round = 0; round < 4; ++round) {
    stream(next).SayTokens("a");
    stream(next++).End(kSocketClosed);
    Pass(absl::Seconds(1));
  }
  EXPECT_FALSE(sink.ended());
  stream(next++).End(kSocketClosed);
  Pass(absl::Seconds(1));
  EXPECT_FALSE(sink.ended());
  stream(next).End(kSocketClosed);
  Pass(absl::Seconds(1));
  EXPECT_EQ(ErrorReason(sink.End()), "WORKER_LOST");
  EXPECT_EQ(sink.choice().text(), "aaaa");
}

TEST_F(FailoverTest, APrefillWorkerThatIsLostIsReplacedAndWithoutOneTheDecodeWorkerIsAlone) {
  FakeSink& sink = Start(Request());
  stream(0).SayTokens("a");  // overtook the KV, which then does not come
  stream(0).End(absl::StatusCode::kUnavailable, "PREFILL_LOST");
  EXPECT_NE(stream(1).request.prefill().address(), stream(0).request.prefill().address());
  stream(1).End(absl::StatusCode::kUnavailable, "PREFILL_LOST");
  EXPECT_FALSE(stream(2).request.has_prefill());
  stream(2).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

// OpenAI's default for completions, which a long prompt shortens.
TEST_F(FailoverTest, TheDefaultOfTheEndpointIsCappedToTheRoomThatIsLeft) {
  caller_.default_max_tokens = 16;
  options_.default_max_tokens = 50;
  auto request = Request();
  Start(request);
  EXPECT_EQ(stream(0).request.max_tokens(), 16);
  stream(0).Finish("x");
  request.set_text(std::string(max_model_len_ - 4, 'p'));
  Start(request);
  EXPECT_EQ(stream(1).request.max_tokens(), 4);
  stream(1).Finish("x");
  request.mutable_stop()->set_max_tokens(16);
  EXPECT_EQ(ErrorReason(Start(request).End()), "CONTEXT_LENGTH_EXCEEDED");
  request = Request();
  request.mutable_stop()->set_min_tokens(20);
  Start(request);
  EXPECT_EQ(stream(2).request.max_tokens(), 20);
  stream(2).Finish("x");
}

TEST_F(FailoverTest, APromptThatIsOnlyScoredEndsWithItsLogprobs) {
  auto request = Request();
  request.mutable_stop()->set_max_tokens(0);
  request.set_prompt_logprobs(1);
  FakeSink& sink = Start(request);
  EXPECT_EQ(stream(0).request.max_tokens(), 1);
  stream(0).End(kSocketClosed);
  DecodeResponse scored;
  scored.add_token_ids('x');
  scored.add_prompt_logprobs()->set_token_id('p');
  scored.set_finish(DecodeResponse::FINISH_LENGTH);
  stream(1).Say(scored);
  ASSERT_TRUE(sink.End().ok());
  EXPECT_EQ(sink.choice().text(), "");
  EXPECT_EQ(sink.choice().prompt_logprobs_size(), 1);
  EXPECT_EQ(sink.choice().usage().generated_tokens(), 0);
  EXPECT_EQ(sink.choice().finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_THAT(sink.token_counts(), ElementsAre(0));
}

TEST_F(FailoverTest, WhatWasCompleteNeedsNoWorker) {
  auto request = Request();
  request.mutable_stop()->set_max_tokens(2);
  FakeSink& sink = Start(request);
  stream(0).SayTokens("ab");
  stream(0).End(kSocketClosed);
  EXPECT_TRUE(sink.End().ok());
  EXPECT_EQ(sink.choice().finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(network_.count(), 1u);
}

TEST_F(FailoverTest, AResumedRequestThatIsRefusedTriesElsewhere) {
  FakeSink& sink = Start(Request());
  stream(0).SayTokens("a");
  stream(0).End(kSocketClosed);
  stream(1).End(absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  stream(2).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

TEST_F(FailoverTest, AnEmptyBudgetEndsTheRequestWhoseWorkerLivesAndSaysWhen) {
  budget_limits_ = {.share = 0.1, .reserve = 1, .capacity = 10};
  options_.failover_wait_ms = 3000;
  FakeSink& begun = Start(Request());
  stream(0).SayTokens("a");
  stream(0).End(kSocketClosed);
  stream(1).SayTokens("b");
  stream(1).End(kSocketClosed);
  FakeSink& not_begun = Start(Request());
  stream(2).End(kSocketClosed);
  Pass(absl::Milliseconds(2900));
  for (FakeSink* sink : {&begun, &not_begun}) EXPECT_FALSE(sink->ended());
  Pass(absl::Milliseconds(200));
  for (FakeSink* sink : {&begun, &not_begun}) {
    const absl::Status end = sink->End();
    EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ErrorReason(end), "RETRY_BUDGET_EXHAUSTED");
    EXPECT_TRUE(ErrorRetryAfter(end).has_value());
  }
  EXPECT_EQ(network_.count(), 3u);
}

TEST_F(FailoverTest, ARetryThatFindsNobodyCostsNothing) {
  options_.failover_wait_ms = 3000;
  Begin();
  for (int worker : {3, 4}) {
    reporting_[worker] = false;
    LoseWatch(worker);
  }
  const double level = budget_->level();
  FakeSink& sink = Start(Request());
  stream(0).End(kSocketClosed);
  EXPECT_NEAR(budget_->level(), level + 0.1, 1e-9);
  reporting_[2] = false;
  LoseWatch(2);
  Pass(absl::Milliseconds(100));
  EXPECT_FALSE(sink.ended());
  Pass(absl::Milliseconds(3000));
  EXPECT_EQ(ErrorReason(sink.End()), "WORKER_LOST");
  EXPECT_NEAR(budget_->level(), level + 0.1, 1e-9);
}

TEST_F(FailoverTest, CancelEndsAllStreamsOfTheCall) {
  FakeSink& sink = Start(Request(3));
  for (int choice : {0, 1, 2}) stream(0).SayTokens("a", choice);
  stream(0).End(kSocketClosed);
  stream(3);
  call().Cancel();
  EXPECT_EQ(sink.End().code(), absl::StatusCode::kCancelled);
  for (size_t i : {1, 2, 3}) EXPECT_TRUE(stream(i).cancelled);
  stream(1).SayTokens("b");
  stream(1).End(kSocketClosed);
  Tick();
  EXPECT_EQ(network_.count(), 4u);
}

TEST_F(FailoverTest, APairThatFailedTwiceIsAvoidedByLaterRequests) {
  Begin();
  // Only one pair for a start.
  for (int worker : {1, 3, 4}) LoseWatch(worker);
  for (size_t i : {0, 2}) {
    Start(Request());
    stream(i).End(absl::StatusCode::kUnavailable, "PREFILL_LOST");
    stream(i + 1).Finish("alone");  // which the decode worker can
    EXPECT_FALSE(stream(i + 1).request.has_prefill());
  }
  EXPECT_TRUE(stream(2).request.has_prefill()) << "once is not enough";
  Start(Request());
  EXPECT_FALSE(stream(4).request.has_prefill());
  Introduce(3);
  for (size_t i = 5; i < 9; ++i) {
    Start(Request());
    const bool bad_pair = stream(i).request.has_prefill() && stream(i).worker == 2;
    EXPECT_FALSE(bad_pair);
    stream(i).Finish("fine");
  }
}

using ChoicesTest = CallHarness;

TEST_F(ChoicesTest, EachHasItsTextItsEndAndItsStopStrings) {
  auto request = Request(3);
  request.mutable_stop()->add_stop("END");
  FakeSink& sink = Start(request);
  EXPECT_EQ(stream(0).request.n(), 3);
  stream(0).SayTokens("x", 0);
  stream(0).SayTokens("yE", 1);
  stream(0).SayTokens("zN", 2);
  stream(0).SayTokens("ND more", 1);
  stream(0).SayTokens("ignored", 1);
  stream(0).Finish("0", 0);
  EXPECT_FALSE(sink.ended());
  EXPECT_FALSE(stream(0).cancelled);
  stream(0).Finish("2", 2);
  ASSERT_TRUE(sink.End().ok());
  EXPECT_TRUE(stream(0).cancelled) << "choice 1 is still being written";
  EXPECT_EQ(sink.choice(0).text(), "x0");
  EXPECT_EQ(sink.choice(1).text(), "y");
  EXPECT_EQ(sink.choice(1).matched_stop(), "END");
  EXPECT_EQ(sink.choice(2).text(), "zN2");
  for (int i : {0, 1, 2}) {
    EXPECT_NE(sink.choice(i).finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
    EXPECT_EQ(sink.choice(i).seed(), stream(0).request.sampling().seed());
    EXPECT_FALSE(sink.choice(i).request_id().empty());
    EXPECT_TRUE(sink.choice(i).has_timings());
  }
  EXPECT_THAT(sink.token_counts(), ElementsAre(2, 4, 3));
  EXPECT_EQ(sink.choice(2).usage().generated_tokens(), 9);
}

TEST_F(ChoicesTest, AStreamWhoseWorkerHasEndedAllChoicesIsLeftToItself) {
  FakeSink& sink = Start(Request(2));
  stream(0).Finish("a", 0);
  stream(0).Finish("b", 1);
  EXPECT_TRUE(sink.End().ok());
  EXPECT_FALSE(stream(0).cancelled);
}

TEST_F(ChoicesTest, AfterALossEachUnfinishedOneGoesOnByItself) {
  auto request = Request(3);
  request.mutable_stop()->add_stop("!");
  request.mutable_stop()->set_max_tokens(20);
  FakeSink& sink = Start(request);
  stream(0).SayTokens("zero", 0);
  stream(0).SayTokens("one!", 1);
  stream(0).SayTokens("one", 1);
  stream(0).End(kSocketClosed);
  ASSERT_EQ(network_.count(), 3u);
  EXPECT_EQ(stream(1).Tokens(), "prompt:zero");
  EXPECT_EQ(stream(1).request.sampling().choice(), 0u);
  EXPECT_EQ(stream(1).request.n(), 1);
  EXPECT_EQ(stream(1).request.max_tokens(), 16);
  EXPECT_EQ(stream(2).Tokens(), "prompt:") << "it had nothing yet";
  EXPECT_EQ(stream(2).request.sampling().choice(), 2u);
  EXPECT_EQ(stream(2).request.max_tokens(), 20);
  stream(2).SayTokens("two", 2);
  stream(1).Finish("-0", 0);
  // And once more, in the middle.
  stream(2).End(kSocketClosed);
  EXPECT_EQ(stream(3).Tokens(), "prompt:two");
  stream(3).Finish("-2", 2);
  ASSERT_TRUE(sink.End().ok());
  EXPECT_EQ(sink.choice(0).text(), "zero-0");
  EXPECT_EQ(sink.choice(1).text(), "one");
  EXPECT_EQ(sink.choice(2).text(), "two-2");
  EXPECT_THAT(sink.token_counts(), ElementsAre(6, 4, 5));
  EXPECT_EQ(sink.choice(2).usage().generated_tokens(), 15);
}

TEST_F(ChoicesTest, BeforeAnyTokenAllAreSentAgainTogether) {
  FakeSink& sink = Start(Request(4));
  stream(0).End(kSocketClosed);
  EXPECT_EQ(stream(1).request.n(), 4);
  EXPECT_EQ(network_.count(), 2u);
  EXPECT_NEAR(budget_->level(), 32 + 0.4 - 4, 1e-9) << "counted in sequences";
  for (int i = 0; i < 4; ++i) stream(1).Finish("x", i);
  EXPECT_TRUE(sink.End().ok());
}

TEST_F(ChoicesTest, ASearchStartsAnewAndIsNotToldTwice) {
  auto request = Request(2);
  request.set_beam_width(4);
  FakeSink& sink = Start(request);
  DecodeResponse best;
  for (int32_t id : Ids("best")) best.add_token_ids(id);
  best.set_finish(DecodeResponse::FINISH_STOP);
  best.set_beam_score(-1.5);
  stream(0).Say(best);
  stream(0).End(kSocketClosed);
  EXPECT_EQ(stream(1).request.n(), 2);
  EXPECT_EQ(stream(1).request.beam_width(), 4);
  EXPECT_EQ(stream(1).Tokens(), "prompt:");
  stream(1).Say(best);
  EXPECT_FALSE(sink.ended());
  stream(1).Finish("next", 1);
  ASSERT_TRUE(sink.End().ok());
  EXPECT_EQ(sink.choice(0).text(), "bes") << "the last is a stop token";
  EXPECT_EQ(sink.choice(0).beam_score(), -1.5);
  EXPECT_THAT(sink.token_counts(), ElementsAre(4, 4));
}

// Each result of a prompt that is only scored is one token, which no client gets.
TEST_F(ChoicesTest, ASearchOfAPromptAloneStartsAnew) {
  auto request = Request(2);
  request.set_beam_width(4);
  request.mutable_stop()->set_max_tokens(0);
  request.set_prompt_logprobs(0);
  FakeSink& sink = Start(request);
  DecodeResponse result;
  result.add_token_ids(Ids("x")[0]);
  result.set_finish(DecodeResponse::FINISH_LENGTH);
  stream(0).Say(result);
  stream(0).End(kSocketClosed);
  stream(1).Say(result);
  EXPECT_FALSE(sink.ended());
  result.set_choice(1);
  stream(1).Say(result);
  ASSERT_TRUE(sink.End().ok());
}

using OverloadTest = CallHarness;

TEST_F(OverloadTest, PromptTokensAreBounded) {
  options_.max_inflight_prompt_tokens = 20;
  Start(Request());
  stream(0);
  Start(Request());
  stream(1);
  const absl::Status end = Start(Request()).End();
  EXPECT_EQ(end.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(end), "TOO_MANY_PROMPT_TOKENS");
  EXPECT_TRUE(ErrorRetryAfter(end).has_value());
}

TEST_F(OverloadTest, ADeadlineThatHasPassedAsksNoWorker) {
  const absl::Status end = Start(Request(), absl::ZeroDuration()).End();
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorReason(end), "DEADLINE_UNREACHABLE");
  EXPECT_EQ(network_.count(), 0u);
}

TEST_F(OverloadTest, ADeadlineBeforeThePromptsAheadAreDoneIsRefusedAtOnce) {
  // Ten always wait; one is done every half second.
  size_t sent = 0;
  for (; sent < 10; ++sent) {
    Start(Request());
    stream(sent);
  }
  for (int i = 0; i < 20; ++i, ++sent) {
    Pass(absl::Milliseconds(500));
    stream(i).Finish("x");
    Start(Request());
    stream(sent);
  }
  const absl::Status end = Start(Request(), absl::Seconds(2)).End();
  EXPECT_EQ(end.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(end), "DEADLINE_UNREACHABLE");
  EXPECT_NEAR(absl::ToDoubleSeconds(ErrorRetryAfter(end).value_or(absl::ZeroDuration())), 3.75,
              0.5);
  // Not quite five seconds, as estimated, are not to be all that there is.
  EXPECT_EQ(ErrorReason(Start(Request(), absl::Seconds(8)).End()), "DEADLINE_UNREACHABLE");
  Start(Request(), absl::Seconds(13));
  EXPECT_FALSE(stream(sent).cancelled) << "this one has a chance";
}

}  // namespace
}  // namespace baton::router
