// Fetching cached KV, turned by hand: the calls are what the test says.
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/error.h"
#include "common/prefill/loop.h"
#include "tests/common/prefill/fake_transfer.h"
#include "tests/decode_worker/fake_engine.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/registry_values.h"

namespace baton::prefill {
namespace {

constexpr int kBlockTokens = testing::FakeEngine::kBlockTokens;

class FakeFetch final : public transfer::PrefillCall {
 public:
  void Cancel() override { cancelled = true; }
  std::string address;
  internal::v1::FetchKvRequest request;
  absl::Time deadline;
  transfer::TransferPlan plan;
  transfer::PrefillEvents events;
  bool cancelled = false;
};

std::vector<int32_t> Counting(int tokens, int start) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < tokens; ++i) prompt.push_back((start + i) % 1000);
  return prompt;
}

class KvFetchTest : public ::testing::Test {
 protected:
  void Make(int blocks = 64, bool own_thread = false) {
    loop_.reset();
    engine_ = std::make_unique<testing::FakeEngine>(blocks);
    engine_->on_step = [this](const engine::Batch& batch) {
      clock_.Advance(absl::Microseconds(100) * batch.rows());
      ++steps_;
    };
    LoopOptions options;
    options.own_thread = own_thread;
    options.kv_holder.enabled = true;
    options.kv_fetch.worker_id = "this";
    options.kv_fetch.awake = &awake_;
    options.kv_fetch.start =
        [this](const std::string& address, const internal::v1::FetchKvRequest& request,
               absl::Time deadline, transfer::TransferPlan plan, transfer::PrefillEvents events) {
          auto call = std::make_shared<FakeFetch>();
          call->address = address;
          call->request = request;
          call->deadline = deadline;
          call->plan = std::move(plan);
          call->events = std::move(events);
          fetches_.push_back(call);
          return call;
        };
    loop_ = std::make_unique<PrefillLoop>(options, *engine_, journal_, clock_, metrics_,
                                          [this](const worker::WorkerLoad& load) { load_ = load; });
  }
  void Run() {
    do {
      loop_->CheckIntegrity();
    } while (loop_->Turn(absl::ZeroDuration()));
    loop_->CheckIntegrity();
  }
  std::shared_ptr<FakeTransfer> Ask(std::vector<int32_t> prompt, int held = 0,
                                    const std::string& holder = "holder") {
    auto transfer = std::make_shared<FakeTransfer>();
    auto job = std::make_unique<PrefillJob>();
    job->id = ++last_id_;
    job->prompt_tokens = static_cast<int>(prompt.size());
    job->tokens = std::move(prompt);
    if (held > 0) {
      job->kv_hint.holder.set_address("h:1");
      job->kv_hint.holder.set_worker_id(holder);
      job->kv_hint.holder.set_epoch(5);
      job->kv_hint.tokens = held;
    }
    transfer->JoinTo(*job);
    loop_->jobs().Submit(std::move(job));
    Run();
    return transfer;
  }
  // The first `count` of the requested blocks come.
  void Bring(FakeFetch& fetch, int count) {
    const int first = fetch.plan.first_block * kBlockTokens;
    for (int i = 0; i < count * kBlockTokens; ++i) {
      engine_->WriteKv(fetch.plan.blocks, i, fetch.request.tokens(first + i));
    }
    transfer::TransferSummary summary;
    summary.block_count = count;
    summary.kv_bytes = count * engine_->kv_layout().BlockBytes();
    fetch.events.on_end(absl::OkStatus(), summary);
    fetch.events.on_closed();
    Run();
  }
  void Fail(FakeFetch& fetch, const absl::Status& status) {
    fetch.events.on_end(status, {});
    fetch.events.on_closed();
    Run();
  }
  double Fetches(const std::string& result) {
    return testing::MetricValue(registry_, "baton_kv_fetches_total", result);
  }
  void ExpectNothingHeld() {
    const kv::BlockCounts& counts = loop_->block_counts();
    EXPECT_EQ(counts.free + counts.cached, counts.total);
  }

  testing::FakeClock clock_;
  AwakeClock awake_{clock_, /*own_thread=*/false};
  worker::CacheJournal journal_;
  prometheus::Registry registry_;
  PrefillMetrics metrics_{registry_, "model"};
  std::unique_ptr<testing::FakeEngine> engine_;
  uint64_t last_id_ = 0;
  int steps_ = 0;
  worker::WorkerLoad load_;
  std::vector<std::shared_ptr<FakeFetch>> fetches_;
  std::unique_ptr<PrefillLoop> loop_;  // goes first
};

TEST_F(KvFetchTest, AJobWaitsForItsFetchWhileOthersAreComputed) {
  Make();
  const auto job = Ask(Counting(200, 1), 160);
  ASSERT_EQ(fetches_.size(), 1u);
  const FakeFetch& fetch = *fetches_[0];
  EXPECT_EQ(fetch.address, "h:1");
  EXPECT_EQ(fetch.request.holder_epoch(), 5u);
  EXPECT_EQ(fetch.request.tokens_size(), 160);
  EXPECT_EQ(fetch.request.first_block(), 0);
  EXPECT_EQ(fetch.plan.blocks.size(), 10u);
  EXPECT_EQ(loop_->block_counts().held, 10);
  EXPECT_LE(fetch.deadline, clock_.Now() + KvFetcher::kMostTime);
  EXPECT_FALSE(job->finish.has_value());
  EXPECT_EQ(steps_, 0);
  const auto other = Ask(Counting(40, 500));
  EXPECT_EQ(other->finish, absl::OkStatus());
  EXPECT_FALSE(job->finish.has_value());
  Bring(*fetches_[0], 10);
  EXPECT_EQ(job->finish, absl::OkStatus());
  EXPECT_EQ(job->cached, 160);
  EXPECT_EQ(job->token, testing::FakeEngine::Answer(Counting(200, 1), 1)[0]);
  EXPECT_EQ(load_.computed_prompt_tokens, 40 + 40);
  EXPECT_EQ(Fetches("fetched"), 1);
  ExpectNothingHeld();
}

// A step of prompts may take seconds on a CPU: a holder is asked when it is busy.
TEST_F(KvFetchTest, ABusyHolderSendsWhatIsCachedWhileItsStepRuns) {
  const std::vector<int32_t> cached = Counting(160, 1);
  Make(64, /*own_thread=*/true);
  absl::Notification cached_all, step_runs, step_may_end;
  bool blocks = false;
  engine_->on_step = [&](const engine::Batch&) {
    if (!blocks) return;
    step_runs.Notify();
    step_may_end.WaitForNotification();
  };
  const auto submit = [&](std::vector<int32_t> prompt, absl::Notification& ended) {
    auto transfer = std::make_shared<FakeTransfer>();
    transfer->on_finish = [&ended] { ended.Notify(); };
    auto job = std::make_unique<PrefillJob>();
    job->id = ++last_id_;
    job->prompt_tokens = static_cast<int>(prompt.size());
    job->tokens = std::move(prompt);
    transfer->JoinTo(*job);
    loop_->jobs().Submit(std::move(job));
    return transfer;
  };
  const auto first = submit(Counting(165, 1), cached_all);
  cached_all.WaitForNotification();
  blocks = true;
  absl::Notification computed, fetched, fetched_again;
  const auto second = submit(Counting(100, 500), computed);
  step_runs.WaitForNotification();
  blocks = false;
  const auto fetch = std::make_shared<FakeTransfer>();
  fetch->on_finish = [&] { fetched.Notify(); };
  loop_->kv_holder().Submit({.tokens = cached, .sender = fetch});
  EXPECT_TRUE(fetched.WaitForNotificationWithTimeout(absl::Seconds(20)))
      << "the fetch waits for the end of the step";
  // The pool's share for fetches has room for one such fetch at a time.
  const auto again = std::make_shared<FakeTransfer>();
  again->on_finish = [&] { fetched_again.Notify(); };
  loop_->kv_holder().Submit({.tokens = cached, .sender = again});
  EXPECT_TRUE(fetched_again.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_FALSE(computed.HasBeenNotified());
  step_may_end.Notify();
  computed.WaitForNotification();
  fetched.WaitForNotification();
  fetched_again.WaitForNotification();
  for (const auto& transfer : {fetch, again}) {
    EXPECT_EQ(transfer->finish, absl::OkStatus());
    EXPECT_EQ(transfer->blocks, 10);
  }
  loop_->Stop();
}

TEST_F(KvFetchTest, WhateverComesTheAnswerIsTheSame) {
  const std::vector<absl::Status> failures = {
      MakeError(absl::StatusCode::kDataLoss, "CHECKSUM", "damaged"),
      MakeError(absl::StatusCode::kUnavailable, "PREFILL_LOST", "gone"),
      MakeError(absl::StatusCode::kResourceExhausted, "KV_FETCH_LIMIT", "full"),
      absl::DeadlineExceededError("late"),
      MakeError(absl::StatusCode::kFailedPrecondition, "STALE_EPOCH", "another epoch")};
  for (const absl::Status& failure : failures) {
    Make();
    fetches_.clear();
    const auto job = Ask(Counting(200, 1), 160);
    ASSERT_EQ(fetches_.size(), 1u);
    Fail(*fetches_[0], failure);
    EXPECT_EQ(job->finish, absl::OkStatus()) << failure;
    EXPECT_EQ(job->cached, 0);
    EXPECT_EQ(job->token, testing::FakeEngine::Answer(Counting(200, 1), 1)[0]);
    ExpectNothingHeld();
    // That holder is left alone for a while.
    Ask(Counting(200, 300), 160);
    EXPECT_EQ(fetches_.size(), 1u);
    testing::RunFor(KvFetcher::kPause, clock_, awake_);
    Ask(Counting(200, 600), 160);
    EXPECT_EQ(fetches_.size(), 2u);
    Bring(*fetches_[1], 0);
  }
  EXPECT_EQ(Fetches("refused"), 1);
  EXPECT_EQ(Fetches("failed"), 4);
  EXPECT_EQ(Fetches("partial"), 5);
  Make();
  fetches_.clear();
  const auto job = Ask(Counting(200, 1), 160);
  Bring(*fetches_[0], 7);
  EXPECT_EQ(job->finish, absl::OkStatus());
  EXPECT_EQ(job->cached, 112) << "the holder has evicted the rest";
  ExpectNothingHeld();
}

// During the pause the fetch's deadline has passed, or the holder has closed the connection.
TEST_F(KvFetchTest, AFetchThatAPauseOfThisProcessEndedIsNotTheHoldersFault) {
  for (const absl::Status& failure :
       {absl::DeadlineExceededError("late"),
        MakeError(absl::StatusCode::kUnavailable, "PREFILL_LOST", "closed")}) {
    Make();
    fetches_.clear();
    Ask(Counting(200, 1), 160);
    clock_.Advance(absl::Seconds(8));
    awake_.Beat();
    Fail(*fetches_[0], failure);
    testing::RunFor(absl::Milliseconds(50), clock_, awake_);
    Ask(Counting(200, 300), 160);
    ASSERT_EQ(fetches_.size(), 2u) << failure;
    testing::RunFor(absl::Seconds(1), clock_, awake_);
    Fail(*fetches_[1], failure);
    Ask(Counting(200, 600), 160);
    EXPECT_EQ(fetches_.size(), 2u) << "the pause was before that one";
    testing::RunFor(KvFetcher::kPause, clock_, awake_);
  }
}

TEST_F(KvFetchTest, AJobThatEndsCancelsItsFetchWhoseBlocksStayUntilItsEnd) {
  Make();
  const auto job = Ask(Counting(200, 1), 160);
  loop_->jobs().Cancel(last_id_);
  Run();
  EXPECT_TRUE(absl::IsCancelled(*job->finish));
  EXPECT_TRUE(fetches_[0]->cancelled);
  EXPECT_EQ(loop_->block_counts().held, 10) << "something may still write to them";
  Fail(*fetches_[0], absl::CancelledError("cancelled"));
  ExpectNothingHeld();
  EXPECT_EQ(loop_->block_counts().cached, 0);
  // What we cancelled says nothing of the holder.
  Ask(Counting(200, 300), 160);
  ASSERT_EQ(fetches_.size(), 2u);
  // A commit that was on its way when the job ended is as good.
  loop_->jobs().Cancel(last_id_);
  Run();
  Bring(*fetches_[1], 10);
  EXPECT_EQ(loop_->block_counts().cached, 10);
  ExpectNothingHeld();
}

TEST_F(KvFetchTest, JobsOfOnePrefixShareAFetch) {
  Make();
  const auto first = Ask(Counting(200, 1), 160);
  std::vector<int32_t> prompt = Counting(160, 1);
  prompt.push_back(999);
  const auto second = Ask(prompt, 160);
  const auto third = Ask(prompt);
  EXPECT_EQ(fetches_.size(), 1u);
  EXPECT_EQ(steps_, 0);
  loop_->jobs().Cancel(1);
  Run();
  EXPECT_FALSE(fetches_[0]->cancelled) << "two others wait for it";
  Bring(*fetches_[0], 10);
  EXPECT_EQ(second->cached, 160);
  EXPECT_EQ(third->cached, 160);
  EXPECT_EQ(load_.computed_prompt_tokens, 2);
  ExpectNothingHeld();
}

TEST_F(KvFetchTest, OnlyWhatIsWorthItIsFetched) {
  Make();
  Ask(Counting(200, 1), 3 * kBlockTokens);
  EXPECT_TRUE(fetches_.empty()) << "too little";
  Ask(Counting(200, 1), 160);
  EXPECT_TRUE(fetches_.empty()) << "it is here";
  Ask(Counting(200, 300), 160, "this");
  EXPECT_TRUE(fetches_.empty()) << "the worker itself";
  Ask(Counting(1000, 400), 990);
  EXPECT_TRUE(fetches_.empty()) << "more than a quarter of the pool";
  // The worker gets to know its cost: 100 us a token. A holder that took 1 s is no use then.
  for (int i = 0; i < 20; ++i) Ask(Counting(40 + i, 20 * i + 3));
  Ask(Counting(200, 700), 160, "slow");
  ASSERT_EQ(fetches_.size(), 1u);
  clock_.Advance(absl::Seconds(1));
  Bring(*fetches_[0], 10);
  Ask(Counting(200, 250), 160, "slow");
  EXPECT_EQ(fetches_.size(), 1u);
  Ask(Counting(200, 850), 160, "another");
  ASSERT_EQ(fetches_.size(), 2u);
  Bring(*fetches_[1], 10);
  ExpectNothingHeld();
}

TEST_F(KvFetchTest, TheHolderPinsNoMoreThanItsShareAndServesEveryFetchToItsEnd) {
  Make();  // a quarter: 16 blocks
  Ask(Counting(160, 1));
  Ask(Counting(160, 400));
  Ask(Counting(160, 700));
  const auto fetch = [&](int start, bool keep, int first_block = 0, int tokens = 160) {
    auto sender = std::make_shared<FakeTransfer>();
    sender->keep = keep;
    worker::KvFetch wanted;
    wanted.tokens = Counting(tokens, start);
    wanted.first_block = first_block;
    wanted.sender = sender;
    loop_->kv_holder().Submit(std::move(wanted));
    Run();
    return sender;
  };
  const auto first = fetch(1, true);
  EXPECT_EQ(first->blocks, 10);
  EXPECT_TRUE(first->committed);
  EXPECT_EQ(loop_->block_counts().held, 10);
  const auto second = fetch(400, true);
  EXPECT_EQ(second->blocks, 6) << "what is left of the share";
  const auto third = fetch(700, true);
  ASSERT_TRUE(third->finish.has_value());
  EXPECT_EQ(ErrorReason(*third->finish), "KV_FETCH_LIMIT");
  first->unsent = nullptr;
  Run();
  EXPECT_EQ(fetch(700, false, 4)->blocks, 6);
  EXPECT_EQ(fetch(2, false)->blocks, 0) << "nothing of it is cached";
  EXPECT_EQ(fetch(1, false, 0, 320)->blocks, 10);
  second->unsent = nullptr;
  Run();
  ExpectNothingHeld();
  // Places.
  std::vector<std::shared_ptr<void>> places;
  for (int i = 0; i < 8; ++i) places.push_back(loop_->kv_holder().Enter().value());
  EXPECT_EQ(ErrorReason(loop_->kv_holder().Enter().status()), "KV_FETCH_LIMIT");
  places.pop_back();
  EXPECT_TRUE(loop_->kv_holder().Enter().ok());
  loop_->SetDraining(true);
  EXPECT_EQ(ErrorReason(*fetch(1, false)->finish), "DRAINING");
  loop_->Stop();
  auto sender = std::make_shared<FakeTransfer>();
  worker::KvFetch late;
  late.tokens = Counting(160, 1);
  late.sender = sender;
  loop_->kv_holder().Submit(std::move(late));
  EXPECT_EQ(ErrorReason(*sender->finish), "DRAINING");
}

TEST_F(KvFetchTest, AnOfferIsTakenIfThereIsRoomAndNothingElseToDo) {
  Make();
  using internal::v1::OfferKvResponse;
  const auto offer = [&](int tokens, int start) {
    worker::KvOffer offered;
    offered.request_id = "test";
    offered.holder.set_address("d:1");
    offered.holder.set_worker_id("decode");
    offered.tokens = Counting(tokens, start);
    std::optional<OfferKvResponse::Result> answer;
    loop_->jobs().Offer(std::move(offered), [&](auto result) { answer = result.value(); });
    Run();
    return *answer;
  };
  Ask(Counting(64, 1));
  EXPECT_EQ(offer(64, 1), OfferKvResponse::RESULT_CACHED);
  EXPECT_EQ(offer(96, 1), OfferKvResponse::RESULT_TAKEN);
  ASSERT_EQ(fetches_.size(), 1u);
  EXPECT_EQ(fetches_[0]->request.first_block(), 4);
  EXPECT_EQ(fetches_[0]->plan.blocks.size(), 2u);
  EXPECT_EQ(offer(96, 300), OfferKvResponse::RESULT_TAKEN);
  EXPECT_EQ(offer(96, 500), OfferKvResponse::RESULT_BUSY) << "two are on their way";
  Bring(*fetches_[0], 2);
  EXPECT_EQ(offer(96, 1), OfferKvResponse::RESULT_CACHED);
  Fail(*fetches_[1], absl::CancelledError("gone"));
  EXPECT_EQ(offer(64 * kBlockTokens, 0), OfferKvResponse::RESULT_BUSY) << "no room";
  EXPECT_EQ(testing::MetricValue(registry_, "baton_kv_offers_total", "taken"), 2);
  EXPECT_EQ(testing::MetricValue(registry_, "baton_kv_offers_total", "busy"), 2);
  ExpectNothingHeld();
  EXPECT_EQ(offer(96, 300), OfferKvResponse::RESULT_BUSY) << "the holder has just failed";
  testing::RunFor(KvFetcher::kPause, clock_, awake_);
  EXPECT_EQ(offer(96, 300), OfferKvResponse::RESULT_TAKEN);
  const auto large = Ask(Counting(63 * kBlockTokens, 100));
  EXPECT_FALSE(large->finish.has_value());
  EXPECT_TRUE(fetches_.back()->cancelled) << "it makes way for a job";
  Fail(*fetches_.back(), absl::CancelledError("cancelled"));
  EXPECT_EQ(large->finish, absl::OkStatus());
  // A fetch for a job that waits goes first.
  Ask(Counting(200, 600), 160, "other");
  EXPECT_EQ(offer(96, 300), OfferKvResponse::RESULT_BUSY);
  Bring(*fetches_.back(), 10);
  loop_->Stop();
  absl::Status late;
  loop_->jobs().Offer({}, [&](auto result) { late = result.status(); });
  EXPECT_EQ(ErrorReason(late), "DRAINING");
}

}  // namespace
}  // namespace baton::prefill
