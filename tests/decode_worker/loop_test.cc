#include "decode_worker/loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/error.h"
#include "decode_worker/response.h"
#include "tests/decode_worker/loop_harness.h"

namespace baton::decode_worker {
namespace {

using testing::FakeEngine;

TEST_P(LoopTest, AnswersHereAndByTransfer) {
  Make(64, ByHand());
  for (const bool remote : {false, true}) {
    const std::vector<int32_t> prompt = Prompt(40, remote ? 500 : 1);
    const auto stream = Ask({.prompt = prompt, .max_tokens = 20, .remote = remote});
    Run();
    if (remote) {
      ASSERT_EQ(transfers_.size(), 1u);
      Commit(*transfers_[0]);
      Run();
    }
    EXPECT_EQ(stream->finish, absl::OkStatus());
    EXPECT_EQ(stream->tokens[0], FakeEngine::Answer(prompt, 20));
  }
  EXPECT_EQ(load_.counts.active + load_.counts.held, 0);
}

// A router that finds a stop string never sees the last message.
TEST_P(LoopTest, UsageSaysWhatHasComeAsSoonAsItHas) {
  Make(64, ByHand());
  const auto stream = Ask({.prompt = Prompt(40), .max_tokens = 20, .remote = true});
  Turn();
  ASSERT_EQ(transfers_.size(), 1u);
  Commit(*transfers_[0]);
  Turn();
  int64_t kv_bytes = 0;
  for (const internal::v1::DecodeResponse& message : stream->messages) {
    EXPECT_EQ(message.finish(), 0);
    if (message.has_usage()) kv_bytes = message.usage().kv_bytes();
  }
  EXPECT_EQ(kv_bytes, 3 * engine_->kv_layout().BlockBytes());
  Run();
  EXPECT_EQ(stream->messages.back().usage().kv_bytes(), kv_bytes);
}

// A transfer measures its link where its frames arrive. What the loop does meanwhile, such as a
// long step, changes nothing.
TEST_P(LoopTest, LinksAreReportedAsTheirTransfersMeasuredThem) {
  Make(64, ByHand());
  const auto stream = Ask({.prompt = Prompt(40), .max_tokens = 20, .remote = true});
  Turn();
  ASSERT_EQ(transfers_.size(), 1u);
  transfer::LinkMeter::Transfer& link = *transfers_[0]->plan.link;
  link.OnFrame(link.Now());
  clock_.Advance(absl::Milliseconds(10));
  link.OnKv(link.Now(), 1'000'000, /*was_ready=*/true);
  EXPECT_EQ(load_.links, nullptr);
  link.Committed();
  clock_.Advance(absl::Seconds(5));
  Commit(*transfers_[0]);
  Turn();
  ASSERT_NE(load_.links, nullptr);
  ASSERT_EQ(load_.links->size(), 1u);
  EXPECT_EQ(load_.links->front().worker_id, "p");
  EXPECT_EQ(load_.links->front().epoch, 5u);
  EXPECT_NEAR(load_.links->front().bytes_per_second, 1e8, 1);
  EXPECT_EQ(load_.read_at - load_.links->front().measured_at, absl::Seconds(5));
  EXPECT_NEAR(Metric("baton_kv_link_bytes_per_second", "median"), 1e8, 1);
  const auto reported = load_.links;
  Run();
  EXPECT_EQ(stream->finish, absl::OkStatus());
  EXPECT_EQ(load_.links, reported) << "built again, though nothing changed";
}

// So the timings of an answer that ends at its first token say how long its prompt took.
TEST_P(LoopTest, TheFirstTokenComesWithItsTimings) {
  LoopOptions options = ByHand();
  options.scheduler.max_num_seqs = 1;
  Make(64, options);
  const auto before = Ask({.prompt = Prompt(40), .max_tokens = 1});
  engine_->on_step = [this](const engine::Batch&) { clock_.Advance(absl::Milliseconds(20)); };
  const auto stream = Ask({.prompt = Prompt(40, 500), .max_tokens = 20, .remote = true});
  Run();
  ASSERT_EQ(before->finish, absl::OkStatus());
  ASSERT_EQ(transfers_.size(), 1u);
  clock_.Advance(absl::Milliseconds(30));
  SendFirstToken(*transfers_[0]);
  Turn();
  ASSERT_EQ(stream->tokens[0].size(), 1u);
  const internal::v1::DecodeTimings timings = stream->messages.back().timings();
  EXPECT_EQ(timings.queue_ms(), 20);
  EXPECT_EQ(timings.prefill_ms(), 30);
  EXPECT_EQ(timings.kv_transfer_ms(), 0);
  // The commit has the prefill worker's own times.
  clock_.Advance(absl::Milliseconds(5));
  SendKv(*transfers_[0], {.queue_ms = 12, .prefill_ms = 17});
  Turn();
  const auto last = std::find_if(stream->messages.rbegin(), stream->messages.rend(),
                                 [](const auto& message) { return message.has_timings(); });
  ASSERT_NE(last, stream->messages.rend());
  EXPECT_EQ(last->timings().queue_ms(), 32);
  EXPECT_EQ(last->timings().prefill_ms(), 17);
  EXPECT_EQ(last->timings().kv_transfer_ms(), 5);
}

TEST_P(LoopTest, WhoGaveUpInTheQueueSaysNothingOfItsPace) {
  LoopOptions options = ByHand();
  options.scheduler.max_num_seqs = 1;
  Make(64, options);
  const auto first = Ask({.prompt = Prompt(40), .max_tokens = 2});
  const auto gave_up = Ask({.prompt = Prompt(500, 100), .max_tokens = 1});
  Turn();
  EXPECT_EQ(load_.queued, 1);
  loop_->Cancel(2);
  Run();
  EXPECT_EQ(gave_up->finish->code(), absl::StatusCode::kCancelled);
  clock_.Advance(absl::Hours(1));
  const auto late = Ask({.prompt = Prompt(500, 200), .max_tokens = 100});
  Turn();
  EXPECT_EQ(load_.running, 1);
  const auto waits = Ask({.prompt = Prompt(40, 300), .max_tokens = 1});
  Turn();
  EXPECT_EQ(load_.queued, 1);
  const auto next = Ask({.prompt = Prompt(40, 400), .max_tokens = 1, .within = absl::Seconds(5)});
  Run();
  for (const auto& stream : {first, late, waits, next}) {
    EXPECT_EQ(stream->finish, absl::OkStatus());
  }
}

TEST_P(LoopTest, TheQueuesPaceIsThatOfWhoWaited) {
  LoopOptions options = ByHand();
  options.scheduler.max_num_seqs = 1;
  Make(64, options);
  // Each takes a second, once it has the only place.
  engine_->on_step = [this](const engine::Batch&) { clock_.Advance(absl::Seconds(1)); };
  // Those that enter at once say nothing, however many they are.
  for (int i = 0; i < 20; ++i) {
    Ask({.prompt = Prompt(10, i * 7), .max_tokens = 1});
    Run();
  }
  for (int i = 0; i < 20; ++i) Ask({.prompt = Prompt(10, i * 11), .max_tokens = 1});
  for (int i = 0; i < 10; ++i) Turn();
  // Ten still wait, at one a second.
  const auto hasty = Ask({.prompt = Prompt(10), .max_tokens = 1, .within = absl::Seconds(8)});
  const auto patient = Ask({.prompt = Prompt(10), .max_tokens = 1, .within = absl::Seconds(15)});
  Run();
  ASSERT_TRUE(hasty->finish.has_value());
  EXPECT_EQ(ErrorReason(*hasty->finish), "DEADLINE_UNREACHABLE") << *hasty->finish;
  EXPECT_EQ(patient->finish, absl::OkStatus());
}

TEST_P(LoopTest, AFloodDuringAStepIsRefusedAtOnceAndBounded) {
  LoopOptions options = ByHand();
  options.scheduler.max_queued_requests = 3;
  options.scheduler.max_num_seqs = 2;
  Make(64, options);
  std::vector<std::shared_ptr<FakeStream>> accepted = {
      Ask({.prompt = Prompt(20), .max_tokens = 9})};
  accepted.push_back(Ask({.prompt = Prompt(20, 50), .max_tokens = 9}));
  Turn();
  int refused = 0;
  engine_->on_step = [&, flooded = false](const engine::Batch&) mutable {
    if (std::exchange(flooded, true)) return;
    for (int i = 0; i < 100; ++i) {
      auto stream = Ask({.prompt = Prompt(20, i), .max_tokens = 1});
      if (!stream->finish) {
        accepted.push_back(std::move(stream));
        continue;
      }
      EXPECT_EQ(ErrorReason(*stream->finish), "QUEUE_FULL");
      EXPECT_TRUE(ErrorRetryAfter(*stream->finish).has_value());
      ++refused;
    }
  };
  Turn();
  EXPECT_EQ(refused, 97);
  EXPECT_EQ(Metric("baton_rejections_total", "queue_full"), 97);
  Run();
  for (const auto& stream : accepted) EXPECT_EQ(stream->finish, absl::OkStatus());
  loop_->SetDraining(true);
  const auto late = Ask({.prompt = Prompt(20)});
  ASSERT_TRUE(late->finish.has_value()) << "refused without a turn";
  EXPECT_EQ(ErrorReason(*late->finish), "DRAINING");
}

TEST_P(LoopTest, ContinuationsFindRoomInAFullQueueAndNewRequestsDoNot) {
  LoopOptions options = ByHand();
  options.scheduler.max_num_seqs = 1;
  options.scheduler.max_queued_requests = 2;
  Make(64, options);
  std::vector<std::shared_ptr<FakeStream>> accepted = {
      Ask({.prompt = Prompt(20), .max_tokens = 9})};
  Turn();
  const auto ask = [&](bool continuation) {
    const int first = 50 * static_cast<int>(accepted.size());
    auto stream = Ask({.prompt = Prompt(20, first), .max_tokens = 1, .continuation = continuation});
    if (stream->finish.has_value()) {
      EXPECT_EQ(ErrorReason(*stream->finish), "QUEUE_FULL");
      return false;
    }
    accepted.push_back(std::move(stream));
    return true;
  };
  // Posted, then queued: the bounds are the same.
  EXPECT_TRUE(ask(false));
  EXPECT_TRUE(ask(false));
  EXPECT_FALSE(ask(false));
  EXPECT_TRUE(ask(true));
  Turn();
  EXPECT_FALSE(ask(false));
  EXPECT_TRUE(ask(true));
  EXPECT_FALSE(ask(true));
  Turn();
  EXPECT_FALSE(ask(true));
  EXPECT_EQ(load_.queued, 4);
  Run();
  EXPECT_EQ(accepted.size(), 5u);
  for (const auto& stream : accepted) EXPECT_EQ(stream->finish, absl::OkStatus());
}

TEST_P(LoopTest, AContinuationIsNotRefusedForNewRequestsThatItGoesBefore) {
  LoopOptions options = ByHand();
  options.scheduler.max_num_seqs = 1;
  Make(64, options);
  engine_->on_step = [this](const engine::Batch&) { clock_.Advance(absl::Seconds(1)); };
  for (int i = 0; i < 20; ++i) Ask({.prompt = Prompt(10, i * 11), .max_tokens = 1});
  for (int i = 0; i < 10; ++i) Turn();
  // Ten still wait, at one a second.
  LoopWish wish = {.prompt = Prompt(10, 500), .max_tokens = 1, .within = absl::Seconds(5)};
  const auto fresh = Ask(wish);
  wish.continuation = true;
  const auto resumed = Ask(wish);
  Run();
  ASSERT_TRUE(fresh->finish.has_value());
  EXPECT_EQ(ErrorReason(*fresh->finish), "DEADLINE_UNREACHABLE") << *fresh->finish;
  EXPECT_EQ(resumed->finish, absl::OkStatus());
}

TEST_P(LoopTest, BeamsHaveTheLogProbabilitiesOfTheirTokens) {
  Make(450, ByHand());
  for (const int length : {5, 1500}) {
    const auto stream =
        Ask({.prompt = Prompt(20), .max_tokens = length, .beam_width = 2, .logprobs = true});
    const auto bare = Ask({.prompt = Prompt(20), .max_tokens = length, .beam_width = 2});
    Run();
    EXPECT_EQ(stream->finish, absl::OkStatus());
    ASSERT_EQ(stream->tokens[0].size(), static_cast<size_t>(length));
    EXPECT_EQ(stream->tokens, bare->tokens);
    size_t at = 0;
    for (const internal::v1::DecodeResponse& message : stream->messages) {
      EXPECT_EQ(message.logprobs_size(), message.token_ids_size());
      EXPECT_LE(message.token_ids_size(), kMaxTokensPerMessage);
      for (const v1::TokenLogprobs& logprobs : message.logprobs()) {
        EXPECT_EQ(logprobs.token_id(), stream->tokens[0][at++]);
        EXPECT_FLOAT_EQ(logprobs.logprob(), -static_cast<float>(logprobs.token_id()) / 1000);
      }
    }
    EXPECT_EQ(at, static_cast<size_t>(length));
    EXPECT_EQ(stream->messages.back().finish(), internal::v1::DecodeResponse::FINISH_LENGTH);
    EXPECT_LT(stream->messages.back().beam_score(), 0);
    for (const auto& message : bare->messages) EXPECT_EQ(message.logprobs_size(), 0);
  }
}

TEST_P(LoopTest, CountersCountWhatTheySay) {
  LoopOptions options = ByHand();
  options.scheduler.max_num_seqs = 8;
  Make(20, options);
  const std::string tokens = "baton_decode_tokens_total";
  const std::string local = "baton_local_prefill_tokens_total";
  // One, and eleven by three choices.
  Ask({.prompt = Prompt(1), .max_tokens = 1});
  Run();
  EXPECT_EQ(Metric(tokens), 1);
  EXPECT_EQ(Metric(local), 1);
  Ask({.prompt = Prompt(40, 100), .max_tokens = 11, .n = 3});
  Run();
  EXPECT_EQ(Metric(tokens), 1 + 33);
  EXPECT_EQ(Metric(local), 1 + 40);
  EXPECT_EQ(Metric("baton_decode_batch_size"), 1 + 11);
  // The first token is the prefill worker's.
  Ask({.prompt = Prompt(40, 200), .max_tokens = 5, .remote = true});
  Turn();
  Commit(*transfers_.at(0));
  Run();
  EXPECT_EQ(Metric(tokens), 34 + 4);
  EXPECT_EQ(Metric(local), 41);
  Ask({.prompt = Prompt(10, 300), .max_tokens = 6, .n = 2, .beam_width = 4});
  Run();
  EXPECT_EQ(Metric(tokens), 38 + 12);
  EXPECT_EQ(Metric("baton_prefix_cache_query_tokens_total"), 1 + 40 + 40 + 10);
  EXPECT_EQ(Metric("baton_prefix_cache_hit_tokens_total"), 0);
  // Two that don't fit together, so that one comes twice.
  Ask({.prompt = Prompt(200, 500), .max_tokens = 40});
  Ask({.prompt = Prompt(60, 900), .max_tokens = 90});
  Run();
  EXPECT_GT(Metric("baton_preemptions_total"), 0);
  EXPECT_EQ(Metric("baton_prefix_cache_query_tokens_total"), 91 + 260);
  EXPECT_EQ(Metric(tokens), 50 + 130);
  EXPECT_EQ(load_.generated_tokens, 50 + 130);
  EXPECT_EQ(load_.computed_prompt_tokens, Metric(local));
}

TEST_P(LoopTest, TransfersAreMeasuredFromTheFirstTokenOn) {
  Make(64, ByHand());
  Ask({.prompt = Prompt(40), .max_tokens = 5, .remote = true, .continuation = true});
  Turn();
  EXPECT_EQ(Metric("baton_requests_queued", "transfer"), 1);
  EXPECT_EQ(Metric("baton_queue_duration_seconds", "normal"), 1);
  EXPECT_EQ(Metric("baton_recomputes_total", "failover"), 1);
  clock_.Advance(absl::Seconds(2));  // the prompt is computed
  SendFirstToken(*transfers_.at(0));
  Turn();
  EXPECT_EQ(Metric("baton_active_context_tokens"), 41);
  clock_.Advance(absl::Milliseconds(250));
  SendKv(*transfers_.at(0));
  Turn();
  EXPECT_DOUBLE_EQ(testing::HistogramSum(registry_, "baton_kv_transfer_duration_seconds"), 0.25);
  const double bytes = 3.0 * static_cast<double>(engine_->kv_layout().BlockBytes());
  EXPECT_EQ(testing::HistogramSum(registry_, "baton_kv_transfer_size_bytes", "received"), bytes);
  EXPECT_EQ(Metric("baton_kv_transfer_bytes_total", "received"), bytes);
  Run();
  EXPECT_EQ(Metric("baton_requests_queued"), 0);
  EXPECT_EQ(Metric("baton_active_context_tokens"), 0);
}

TEST_P(LoopTest, ARefusedTransferIsNoLostPeer) {
  Make(64, ByHand());
  const auto refused = Ask({.prompt = Prompt(40), .max_tokens = 5, .remote = true});
  Turn();
  Fail(*transfers_.at(0), MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "full"));
  Turn();
  EXPECT_EQ(ErrorReason(*refused->finish), "QUEUE_FULL");
  EXPECT_EQ(Metric("baton_kv_transfer_failures_total", "refused"), 1);
  EXPECT_EQ(Metric("baton_kv_transfer_failures_total", "peer_lost"), 0);
}

TEST_P(LoopTest, ACallThatNobodyEndsEndsAtItsDeadline) {
  Make(64, ByHand());
  const auto stuck = Ask({.prompt = Prompt(40), .remote = true, .within = absl::Minutes(30)});
  const auto other = Ask({.prompt = Prompt(40), .remote = true, .within = absl::Minutes(40)});
  Turn();
  clock_.Advance(absl::Minutes(30) - absl::Seconds(1));
  Turn();
  EXPECT_FALSE(stuck->finish.has_value());
  EXPECT_LE(loop_->UntilNextHeartbeat(), DecodeLoop::kHeartbeat) << "it will be looked at in time";
  clock_.Advance(absl::Seconds(1));
  Turn();
  ASSERT_TRUE(stuck->finish.has_value());
  EXPECT_EQ(stuck->finish->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorReason(*stuck->finish), "DEADLINE");
  EXPECT_TRUE(transfers_.at(0)->cancelled.load()) << "its peer is told";
  EXPECT_FALSE(other->finish.has_value());
  for (const auto& call : transfers_) Fail(*call, absl::CancelledError("as asked"));
  Turn();
  EXPECT_EQ(load_.counts.free, 64);
}

TEST_P(LoopTest, APeerThatCommitsAndStaysCannotHoldUpAStop) {
  LoopOptions options = ByHand();
  options.own_thread = true;
  Make(64, options);
  absl::Notification opened;
  std::shared_ptr<FakePrefillCall> call;
  on_transfer_ = [&](const std::shared_ptr<FakePrefillCall>& started) {
    call = started;
    opened.Notify();
  };
  const auto stream = Ask({.prompt = Prompt(40), .max_tokens = 5, .remote = true});
  opened.WaitForNotification();
  absl::Notification cancelled;
  call->on_cancel = [&] {
    call->events.on_closed();
    cancelled.Notify();
  };
  Commit(*call, /*closed=*/false);
  std::thread stop([this] { loop_->Stop(); });
  const bool let_go = cancelled.WaitForNotificationWithTimeout(absl::Seconds(20));
  EXPECT_TRUE(let_go);
  if (!let_go) call->events.on_closed();
  stop.join();
}

// Neither is a reason to try another worker: the model would compute the same there.
TEST_P(LoopTest, LogitsThatAreNoNumbersAreAnErrorWhereverTheyWereComputed) {
  Make(64, ByHand());
  const absl::Status error = MakeError(absl::StatusCode::kInternal, "NON_FINITE_LOGITS", "NaN");
  engine_->draw_error = error;
  const auto here = Ask({.prompt = Prompt(40), .max_tokens = 5});
  const auto there = Ask({.prompt = Prompt(40, 100), .max_tokens = 5, .remote = true});
  const auto lost = Ask({.prompt = Prompt(40, 200), .max_tokens = 5, .remote = true});
  Turn();
  Fail(*transfers_.at(0), error);
  Fail(*transfers_.at(1), absl::InternalError("RST_STREAM"));
  Turn();
  EXPECT_EQ(here->finish, error);
  EXPECT_EQ(there->finish, error);
  EXPECT_EQ(lost->finish->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(load_.counts.free, 64 - load_.counts.cached);
}

// The engine checks, at each step, that all KV is what it must be.
TEST_P(LoopTest, PreemptedKvComesBackFromTheHostOrIsComputedAgain) {
  for (const bool caching : {false, true}) {
    for (const int64_t host_kv_bytes : {0, 1 << 20}) {
      LoopOptions options = ByHand();
      options.enable_prefix_caching = caching;
      options.host_kv_bytes = host_kv_bytes;
      Make(10, options);
      const double preemptions = Metric("baton_preemptions_total");
      const double swaps = Metric("baton_preemptions_total", "swap");
      const double recomputes = Metric("baton_recomputes_total", "preemption");
      const double kept = Metric("baton_host_kv_kept_bytes_total");
      const double restored = Metric("baton_host_kv_restored_bytes_total");
      const double computed = Metric("baton_local_prefill_tokens_total");
      std::vector<std::shared_ptr<FakeStream>> streams;
      for (int i = 0; i < 3; ++i) {
        streams.push_back(Ask({.prompt = Prompt(35, 100 * i), .max_tokens = 100}));
      }
      Run();
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(streams[static_cast<size_t>(i)]->tokens[0],
                  FakeEngine::Answer(Prompt(35, 100 * i), 100));
      }
      EXPECT_GT(Metric("baton_preemptions_total"), preemptions);
      EXPECT_EQ(Metric("baton_preemptions_total", "swap") > swaps, host_kv_bytes > 0);
      EXPECT_EQ(Metric("baton_recomputes_total", "preemption") > recomputes, host_kv_bytes == 0);
      EXPECT_EQ(Metric("baton_host_kv_kept_bytes_total") > kept, host_kv_bytes > 0);
      EXPECT_EQ(Metric("baton_host_kv_restored_bytes_total") > restored, host_kv_bytes > 0);
      const bool again = Metric("baton_local_prefill_tokens_total") > computed + 3 * 35;
      EXPECT_EQ(again, host_kv_bytes == 0) << "caching " << caching;
    }
  }
}

TEST_P(LoopTest, WhatIsCachedAfterAPreemptionIsNotCountedAsCachedOfThePrompt) {
  Make(/*blocks=*/7, ByHand());
  const auto rival = Ask({.prompt = Prompt(15), .max_tokens = 60});
  const auto beams =
      Ask({.prompt = Prompt(17, 500), .max_tokens = 20, .remote = true, .beam_width = 2});
  Turn();
  ASSERT_EQ(transfers_.size(), 1u);
  Commit(*transfers_[0], /*closed=*/true, /*cached_prompt_tokens=*/16);
  size_t committed = 1;
  while (!beams->finish.has_value()) {
    Run();
    if (beams->finish.has_value()) break;
    ASSERT_LT(committed, transfers_.size()) << "nothing is under way";
    FakePrefillCall& again = *transfers_[committed++];
    Commit(again, /*closed=*/true, /*cached_prompt_tokens=*/again.request.tokens_size());
  }
  ASSERT_TRUE(beams->finish->ok()) << *beams->finish;
  ASSERT_GT(committed, 1u) << "nothing was preempted";
  for (const auto& message : beams->messages) {
    if (!message.has_usage()) continue;
    EXPECT_EQ(message.usage().cached_prompt_tokens(), 16);
  }
}

TEST_P(LoopTest, TheHostKeepsNoMoreThanItMay) {
  LoopOptions options = ByHand();
  options.enable_prefix_caching = false;
  options.host_kv_bytes = 1;
  Make(10, options);
  const auto first = Ask({.prompt = Prompt(35), .max_tokens = 100});
  const auto second = Ask({.prompt = Prompt(35, 100), .max_tokens = 100});
  Run();
  EXPECT_EQ(second->tokens[0], FakeEngine::Answer(Prompt(35, 100), 100));
  EXPECT_GT(Metric("baton_preemptions_total"), 0);
  EXPECT_EQ(Metric("baton_host_kv_kept_bytes_total"), 0);
}

// The router leaves a worker that is silent for some seconds.
TEST_P(LoopTest, ALongPromptComputedHereSilencesNobody) {
  LoopOptions options = ByHand();
  options.scheduler.max_num_batched_tokens = 4096;
  Make(400, options);
  absl::Duration longest;
  engine_->on_step = [&](const engine::Batch& batch) {
    const absl::Duration took = absl::Seconds(batch.rows() / 100.0);
    longest = std::max(longest, took);
    clock_.Advance(took);
  };
  const auto running = Ask({.prompt = Prompt(10), .max_tokens = 100});
  Turn();
  const auto large = Ask({.prompt = Prompt(4000, 100), .max_tokens = 1});
  const absl::Duration begin = clock_.SinceStart();
  for (int turns = 1; !large->finish; ++turns) {
    Turn();
    // A token or a heartbeat a turn, once a second has gone.
    const double seconds = absl::ToDoubleSeconds(clock_.SinceStart() - begin);
    EXPECT_GE(large->messages.size() + 1, static_cast<size_t>(seconds / 2));
    ASSERT_LT(turns, 1000);
  }
  EXPECT_LT(longest, absl::Seconds(1));
  EXPECT_EQ(running->tokens[0], FakeEngine::Answer(Prompt(10), 100));
  EXPECT_EQ(large->tokens[0], FakeEngine::Answer(Prompt(4000, 100), 1));
}

TEST_P(LoopTest, TheNextStepIsLaunchedBeforeThisOnesTokensAreKnown) {
  Make(64, ByHand());
  const auto stream = Ask({.prompt = Prompt(20), .max_tokens = 10});
  Turn();
  EXPECT_EQ(stream->tokens[0].size(), 1u);
  Turn();
  EXPECT_EQ(stream->tokens[0].size(), 2u) << "a turn, a step";
  EXPECT_EQ(engine_->most_under_way(), GetParam() ? 2 : 0);
  const auto joins = Ask({.prompt = Prompt(30, 400), .max_tokens = 10});
  Run();
  EXPECT_EQ(stream->tokens[0], FakeEngine::Answer(Prompt(20), 10));
  EXPECT_EQ(joins->tokens[0], FakeEngine::Answer(Prompt(30, 400), 10));
  EXPECT_TRUE(engine_->nothing_under_way()) << "the last token of an answer is known beforehand";
}

TEST_P(LoopTest, WhoJoinsBringsNothingToAHalt) {
  Make(64, ByHand());
  const auto stream = Ask({.prompt = Prompt(20), .max_tokens = 30});
  const auto joins = Ask({.prompt = Prompt(30, 400), .max_tokens = 10, .remote = true});
  const auto seen =
      Ask({.prompt = Prompt(30, 700), .max_tokens = 10, .remote = true, .logprobs = true});
  Turn();
  Turn();
  ASSERT_EQ(transfers_.size(), 2u);
  Commit(*transfers_[0]);
  Turn();
  EXPECT_EQ(engine_->nothing_under_way(), !GetParam()) << "it joined the step ahead";
  Turn();
  EXPECT_EQ(joins->tokens[0].size(), GetParam() ? 2u : 3u)
      << "of the step behind the one under way";
  Commit(*transfers_[1]);
  Turn();
  EXPECT_TRUE(engine_->nothing_under_way()) << "the host has to see its logits";
  Run();
  EXPECT_EQ(stream->tokens[0], FakeEngine::Answer(Prompt(20), 30));
  EXPECT_EQ(joins->tokens[0], FakeEngine::Answer(Prompt(30, 400), 10));
  EXPECT_EQ(seen->tokens[0], FakeEngine::Answer(Prompt(30, 700), 10));
}

TEST_P(LoopTest, ADrawBehindAStopTokenIsNobodys) {
  LoopOptions options = ByHand();
  options.enable_prefix_caching = false;
  Make(8, options);
  const std::vector<int32_t> answer = FakeEngine::Answer(Prompt(20), 30);
  for (int round = 0; round < 3; ++round) {
    const auto stream =
        Ask({.prompt = Prompt(20), .max_tokens = 30, .stop_token_ids = {answer[12]}});
    const auto other = Ask({.prompt = Prompt(20, 100), .max_tokens = 30});
    Run();
    EXPECT_EQ(stream->tokens[0], std::vector<int32_t>(answer.begin(), answer.begin() + 13));
    EXPECT_EQ(stream->messages.back().finish(), internal::v1::DecodeResponse::FINISH_STOP);
    EXPECT_EQ(other->tokens[0], FakeEngine::Answer(Prompt(20, 100), 30));
    EXPECT_EQ(load_.counts.free, 8);
  }
}

// What is under way still reads and writes them.
TEST_P(LoopTest, BlocksOfACancelledAnswerAreNotWrittenByATransferTooEarly) {
  LoopOptions options = ByHand();
  options.enable_prefix_caching = false;
  Make(4, options);
  Ask({.prompt = Prompt(40), .max_tokens = 20});
  Turn();
  loop_->Cancel(last_id_);
  const auto next = Ask({.prompt = Prompt(50, 300), .max_tokens = 5, .remote = true});
  on_transfer_ = [&](const auto&) { EXPECT_TRUE(engine_->nothing_under_way()); };
  Turn();
  EXPECT_EQ(transfers_.size(), GetParam() ? 0u : 1u);
  Turn();
  ASSERT_EQ(transfers_.size(), 1u);
  Commit(*transfers_[0]);
  Run();
  EXPECT_EQ(next->tokens[0], FakeEngine::Answer(Prompt(50, 300), 5));
  EXPECT_EQ(load_.counts.free, 4);
}

TEST_P(LoopTest, AStopWaitsForWhatIsUnderWay) {
  Make(64, ByHand());
  const auto stream = Ask({.prompt = Prompt(20), .max_tokens = 10});
  Turn();
  EXPECT_EQ(engine_->nothing_under_way(), !GetParam());
  loop_->Stop();
  EXPECT_TRUE(engine_->nothing_under_way());
  EXPECT_EQ(stream->finish->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->tokens[0].size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Engines, LoopTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "that_runs_ahead" : "step_by_step";
});

}  // namespace
}  // namespace baton::decode_worker
