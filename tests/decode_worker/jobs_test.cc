// Jobs in a decode loop: prompts that other workers answer share its steps and blocks with answers,
// and both always progress.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "tests/common/prefill/fake_transfer.h"
#include "tests/decode_worker/loop_harness.h"
#include "tests/testing/seed.h"

namespace baton::decode_worker {
namespace {

using prefill::FakeTransfer;
using testing::FakeEngine;

class JobsTest : public LoopTest {
 protected:
  static LoopOptions WithJobs(int max_num_batched_tokens = 256) {
    LoopOptions options = ByHand();
    options.scheduler.max_num_batched_tokens = max_num_batched_tokens;
    options.jobs.scheduler.max_num_batched_tokens = max_num_batched_tokens;
    options.jobs.scheduler.max_num_seqs = options.scheduler.max_num_seqs;
    return options;
  }
  std::unique_ptr<prefill::PrefillJob> Job(std::vector<int32_t> prompt) {
    auto job = std::make_unique<prefill::PrefillJob>();
    job->id = ++last_job_;
    job->prompt_tokens = static_cast<int>(prompt.size());
    job->tokens = std::move(prompt);
    job->root = kv::RootPrefixKey(engine_->config().fingerprint, "", "");
    return job;
  }
  std::shared_ptr<FakeTransfer> Compute(std::vector<int32_t> prompt) {
    auto transfer = std::make_shared<FakeTransfer>();
    std::unique_ptr<prefill::PrefillJob> job = Job(std::move(prompt));
    transfer->JoinTo(*job);
    loop_->jobs().Submit(std::move(job));
    return transfer;
  }
  bool AllFree() const { return load_.counts.active + load_.counts.held == 0; }

  uint64_t last_job_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Engines, JobsTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "that_runs_ahead" : "step_by_step";
});

TEST_P(JobsTest, AJobSharesStepsWithAnswers) {
  Make(64, WithJobs(/*max_num_batched_tokens=*/64));
  int shared = 0;
  engine_->on_step = [&shared](const engine::Batch& batch) {
    shared += batch.entries.size() == 2 ? 1 : 0;
  };
  const auto answer = Ask({.prompt = Prompt(20), .max_tokens = 30});
  Turn();
  const auto job = Compute(Prompt(200, 500));
  // Steps that were launched ahead have none of it.
  for (int i = 0; i < 3 && load_.running_jobs == 0; ++i) Turn();
  EXPECT_EQ(load_.running_jobs, 1);
  Run();
  EXPECT_GT(shared, 2);
  EXPECT_EQ(job->finish, absl::OkStatus());
  EXPECT_EQ(job->token, FakeEngine::Next(Prompt(200, 500), 0));
  EXPECT_EQ(answer->finish, absl::OkStatus());
  EXPECT_EQ(answer->tokens[0], FakeEngine::Answer(Prompt(20), 30));
  EXPECT_TRUE(AllFree());
  EXPECT_EQ(load_.computed_prompt_tokens, 220);
}

TEST_P(JobsTest, AnAnswerTakesFromTheCacheWhatAJobHasComputed) {
  Make(64, WithJobs());
  const auto job = Compute(Prompt(64));
  Run();
  ASSERT_EQ(job->finish, absl::OkStatus());
  const auto answer = Ask({.prompt = Prompt(70), .max_tokens = 2});
  Run();
  EXPECT_EQ(answer->tokens[0], FakeEngine::Answer(Prompt(70), 2));
  EXPECT_EQ(answer->messages.front().usage().cached_prompt_tokens(), 64);
}

// Both prompts are longer than half of the pool: the answer's next block is the job's.
TEST_P(JobsTest, AnAnswerThatLacksABlockWaitsForTheJobThatHasIt) {
  Make(8, WithJobs(/*max_num_batched_tokens=*/32));
  const auto answer = Ask({.prompt = Prompt(16 * 4), .max_tokens = 40});
  Turn();
  const auto job = Compute(Prompt(16 * 3, 500));
  Run();
  EXPECT_EQ(job->finish, absl::OkStatus());
  EXPECT_EQ(answer->finish, absl::OkStatus());
  EXPECT_EQ(answer->tokens[0], FakeEngine::Answer(Prompt(16 * 4), 40));
  EXPECT_TRUE(AllFree());
}

// Requests come without end, and would always have the blocks.
TEST_P(JobsTest, AJobThatFitsIntoTheReserveDoesNotWaitForRequestsToCome) {
  Make(12, WithJobs(/*max_num_batched_tokens=*/64));
  int asked = 0;
  std::vector<std::shared_ptr<FakeStream>> answers;
  const auto ask = [&] {
    answers.push_back(Ask({.prompt = Prompt(32, 100 + 40 * asked++ % 800), .max_tokens = 8}));
  };
  for (int i = 0; i < 8; ++i) ask();
  Turn();
  const auto job = Compute(Prompt(16 * 6, 900));
  int turns = 0;
  while (!job->finish && ++turns < 500) {
    ask();
    Turn();
  }
  EXPECT_EQ(job->finish, absl::OkStatus()) << "after " << turns << " turns";
  EXPECT_LT(turns, 40);
  Run();
  for (const auto& answer : answers) EXPECT_EQ(answer->finish, absl::OkStatus());
  EXPECT_TRUE(AllFree());
}

// Jobs come without end, and fill their reserve; the request needs more than the rest.
TEST_P(JobsTest, ARequestThatNeedsMoreThanJobsLeaveIsAdmittedAfterAWhile) {
  Make(12, WithJobs(/*max_num_batched_tokens=*/64));
  int asked = 0;
  std::vector<std::shared_ptr<FakeTransfer>> jobs;
  const auto compute = [&] { jobs.push_back(Compute(Prompt(80, 100 + 90 * asked++ % 800))); };
  for (int i = 0; i < 4; ++i) compute();
  Turn();
  const auto answer = Ask({.prompt = Prompt(16 * 11), .max_tokens = 4});
  int turns = 0;
  while (!answer->finish && ++turns < 500) {
    compute();
    clock_.Advance(absl::Milliseconds(100));
    Turn();
  }
  EXPECT_EQ(answer->finish, absl::OkStatus()) << "after " << turns << " turns";
  EXPECT_LT(turns, 100);
  EXPECT_EQ(answer->tokens[0], FakeEngine::Answer(Prompt(16 * 11), 4));
}

// Answers whose KV other workers compute hold the pool: they make room, or two workers might wait
// for each other.
TEST_P(JobsTest, AnswersThatReceiveGiveBackWhatAJobLacks) {
  Make(8, WithJobs());
  const auto first = Ask({.prompt = Prompt(16 * 3), .max_tokens = 2, .remote = true});
  const auto second = Ask({.prompt = Prompt(16 * 3, 300), .max_tokens = 2, .remote = true});
  Turn();
  ASSERT_EQ(transfers_.size(), 2u);
  const auto job = Compute(Prompt(16 * 4, 500));
  Turn();
  EXPECT_FALSE(transfers_[0]->cancelled);
  ASSERT_TRUE(transfers_[1]->cancelled) << "the last in rank";
  Fail(*transfers_[1], absl::CancelledError("by the worker"));
  Run();
  EXPECT_EQ(job->finish, absl::OkStatus());
  // While jobs come, no more is received into than half of the pool.
  EXPECT_EQ(transfers_.size(), 2u);
  Commit(*transfers_[0]);
  Run();
  EXPECT_EQ(first->finish, absl::OkStatus());
  ASSERT_EQ(transfers_.size(), 3u);
  Commit(*transfers_[2]);
  Run();
  EXPECT_EQ(second->finish, absl::OkStatus());
  EXPECT_TRUE(AllFree());
}

TEST_P(JobsTest, AJobThatDoesNotFitIntoTheReserveIsRefusedAfterAWhile) {
  Make(8, WithJobs());
  const auto receiving = Ask({.prompt = Prompt(16 * 4), .max_tokens = 2, .remote = true});
  Turn();
  ASSERT_EQ(transfers_.size(), 1u);
  const auto waiting = Ask({.prompt = Prompt(16 * 6, 300), .max_tokens = 2});
  const auto job = Compute(Prompt(16 * 5, 500));
  for (int i = 0; i < 4; ++i) {
    Turn();
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_FALSE(job->finish.has_value());
  clock_.Advance(prefill::PrefillJobs::kLongestWait);
  Turn();
  ASSERT_TRUE(job->finish.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(*job->finish));
  EXPECT_EQ(ErrorReason(*job->finish), "QUEUE_FULL");
  EXPECT_TRUE(ErrorRetryAfter(*job->finish).has_value());
  EXPECT_FALSE(receiving->finish.has_value());
  Commit(*transfers_[0]);
  Run();
  EXPECT_EQ(receiving->finish, absl::OkStatus());
  EXPECT_EQ(waiting->finish, absl::OkStatus());
}

TEST_P(JobsTest, ADrainWaitsForJobs) {
  Make(64, WithJobs(/*max_num_batched_tokens=*/32));
  const auto job = Compute(Prompt(200));
  Turn();
  loop_->SetDraining(true);
  const auto refused = Compute(Prompt(20));
  ASSERT_TRUE(refused->finish.has_value()) << "before the loop's turn";
  EXPECT_EQ(ErrorReason(*refused->finish), "DRAINING");
  Turn();
  EXPECT_FALSE(load_.drained);
  Run();
  EXPECT_EQ(job->finish, absl::OkStatus());
  EXPECT_TRUE(load_.drained);
}

TEST_P(JobsTest, AFetchBringsThePromptOfAnAnswer) {
  std::vector<internal::v1::FetchKvRequest> fetches;
  transfer::TransferPlan plan;
  transfer::PrefillEvents events;
  LoopOptions options = WithJobs();
  options.jobs.kv_fetch.worker_id = "this";
  options.jobs.kv_fetch.start = [&](const std::string&, const internal::v1::FetchKvRequest& request,
                                    absl::Time, transfer::TransferPlan wanted,
                                    transfer::PrefillEvents heard) {
    fetches.push_back(request);
    plan = std::move(wanted);
    events = std::move(heard);
    return std::make_shared<FakePrefillCall>();
  };
  Make(64, options);
  const auto ask = [this](const LoopWish& wish) {
    internal::v1::DecodeRequest request;
    request.mutable_tokens()->Add(wish.prompt.begin(), wish.prompt.end());
    request.mutable_sampling()->set_top_p(1);
    request.set_max_tokens(wish.max_tokens);
    request.mutable_kv_holder()->set_address("h:1");
    request.mutable_kv_holder()->set_worker_id("holder");
    request.set_kv_holder_tokens(160);
    auto sequence = MakeSequence(request, absl::InfiniteFuture(), *engine_);
    auto stream = std::make_shared<FakeStream>();
    sequence->call->id = ++last_id_;
    sequence->call->stream = stream;
    loop_->Submit(std::move(sequence));
    return stream;
  };
  const auto answer = ask({.prompt = Prompt(165), .max_tokens = 3});
  const auto cancelled = ask({.prompt = Prompt(165), .max_tokens = 3});
  Turn();
  ASSERT_EQ(fetches.size(), 1u) << "both wait for one fetch";
  EXPECT_EQ(load_.queued, 2);
  loop_->Cancel(last_id_);
  Turn();
  EXPECT_TRUE(cancelled->finish.has_value());
  EXPECT_TRUE(answer->messages.empty()) << "nothing is computed meanwhile";
  for (int i = 0; i < 160; ++i) engine_->WriteKv(plan.blocks, i, Prompt(165)[i]);
  transfer::TransferSummary summary;
  summary.block_count = 10;
  summary.kv_bytes = 10 * engine_->kv_layout().BlockBytes();
  events.on_end(absl::OkStatus(), summary);
  events.on_closed();
  Run();
  EXPECT_EQ(answer->finish, absl::OkStatus());
  EXPECT_EQ(answer->tokens[0], FakeEngine::Answer(Prompt(165), 3));
  EXPECT_EQ(answer->messages.front().usage().cached_prompt_tokens(), 160);
  EXPECT_TRUE(AllFree());
}

// Whatever comes, in whatever order: each answer and each job ends with its tokens, and no block is
// left behind.
TEST_P(JobsTest, EverythingEndsInARandomHistory) {
  const uint64_t seed = testing::TestSeed();
  std::mt19937_64 random(seed);
  const auto between = [&random](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  for (int round = 0; round < 30; ++round) {
    const int blocks = between(6, 24);
    LoopOptions options = WithJobs(between(4 + 2 * 16, 90));
    options.enable_prefix_caching = between(0, 4) > 0;
    options.host_kv_bytes = between(0, 1) * 4096;
    transfers_.clear();
    last_id_ = 0;
    Make(blocks, options);
    struct Answer {
      LoopWish wish;
      std::shared_ptr<FakeStream> stream;
      uint64_t id;
    };
    std::vector<Answer> answers;
    std::vector<std::pair<std::vector<int32_t>, std::shared_ptr<FakeTransfer>>> jobs;
    size_t committed = 0;
    const auto all_ended = [&] {
      return std::all_of(answers.begin(), answers.end(),
                         [](const Answer& a) { return a.stream->finish.has_value(); }) &&
             std::all_of(jobs.begin(), jobs.end(),
                         [](const auto& job) { return job.second->finish.has_value(); });
    };
    for (int turn = 0; turn < 200 || !all_ended(); ++turn) {
      ASSERT_LT(turn, 20'000) << "seed " << seed << ", round " << round;
      const int what = turn < 200 ? between(0, 9) : 9;
      if (what < 2) {
        LoopWish wish = {.prompt = Prompt(between(1, blocks * 8), 50 * between(0, 5)),
                         .max_tokens = between(1, blocks * 16 / 3)};
        wish.remote = between(0, 1) == 1;
        const auto stream = Ask(wish);
        answers.push_back({wish, stream, last_id_});
      } else if (what < 4) {
        std::vector<int32_t> prompt = Prompt(between(1, blocks * 15), 50 * between(0, 5));
        const auto transfer = Compute(prompt);
        transfer->keep = between(0, 1) == 1;
        jobs.emplace_back(std::move(prompt), transfer);
      } else if (what == 4 && !answers.empty() && between(0, 3) == 0) {
        loop_->Cancel(
            answers[static_cast<size_t>(between(0, static_cast<int>(answers.size()) - 1))].id);
      } else if (committed < transfers_.size() && between(0, 2) == 0) {
        FakePrefillCall& call = *transfers_[committed++];
        if (call.cancelled) {
          Fail(call, absl::CancelledError("by the worker"));
        } else {
          Commit(call);
        }
      }
      for (const auto& [prompt, transfer] : jobs) {
        if (between(0, 3) == 0) transfer->unsent = nullptr;
      }
      clock_.Advance(absl::Milliseconds(between(0, 300)));
      Turn();
    }
    for (const auto& [prompt, transfer] : jobs) transfer->unsent = nullptr;
    Run();
    for (const Answer& answer : answers) {
      if (!answer.stream->finish->ok()) continue;  // cancelled, or refused
      EXPECT_EQ(answer.stream->tokens[0],
                FakeEngine::Answer(answer.wish.prompt, answer.wish.max_tokens))
          << "seed " << seed;
    }
    for (const auto& [prompt, transfer] : jobs) {
      if (transfer->finish->ok()) {
        EXPECT_EQ(transfer->token, FakeEngine::Next(prompt, 0));
      }
    }
    EXPECT_TRUE(AllFree()) << "seed " << seed;
    loop_->Stop();
  }
}

}  // namespace
}  // namespace baton::decode_worker
