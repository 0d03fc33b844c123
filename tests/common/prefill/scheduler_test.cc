#include "common/prefill/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <vector>

#include "common/base/error.h"
#include "tests/testing/seed.h"

namespace baton::prefill {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Tokens(int count, int first = 0) {
  std::vector<int32_t> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = first + i;
  return tokens;
}

// A prompt that begins like Tokens(shared) and goes on in its own way.
std::vector<int32_t> Branch(int shared, int own, int first_own) {
  std::vector<int32_t> tokens = Tokens(shared);
  const std::vector<int32_t> rest = Tokens(own, first_own);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

std::unique_ptr<PrefillJob> Job(uint64_t id, std::vector<int32_t> tokens) {
  auto job = std::make_unique<PrefillJob>();
  job->id = id;
  job->tokens = std::move(tokens);
  job->root = 1;
  return job;
}

class PrefillSchedulerTest : public ::testing::Test {
 protected:
  void Make(int blocks, SchedulerOptions options = {}, bool caching = true,
            const kv::BlockShape& shape = {}) {
    scheduler_.reset();
    cache_.reset();
    pool_ = std::make_unique<kv::BlockPool>(blocks, shape);
    if (caching) cache_ = std::make_unique<kv::RadixCache>(*pool_, 16);
    scheduler_ = std::make_unique<PrefillScheduler>(options, *pool_, cache_.get());
  }
  ~PrefillSchedulerTest() override {
    pinned_.clear();
    scheduler_.reset();
    cache_.reset();
  }

  absl::Status Submit(std::unique_ptr<PrefillJob> job) {
    return scheduler_->Submit(std::move(job), absl::UnixEpoch(), std::nullopt);
  }
  void MustSubmit(uint64_t id, std::vector<int32_t> tokens) {
    const absl::Status status = Submit(Job(id, std::move(tokens)));
    ASSERT_TRUE(status.ok()) << status;
  }

  struct Ran {
    uint64_t id;
    int begin;
    int end;
    bool operator==(const Ran&) const = default;
    friend void PrintTo(const Ran& ran, std::ostream* out) {
      *out << "job " << ran.id << " [" << ran.begin << ", " << ran.end << ")";
    }
  };
  // Runs one step as the loop does.
  std::vector<Ran> Step() {
    std::vector<Ran> ran;
    const StepPlan plan = scheduler_->NextStep();
    Check();
    for (const Chunk& chunk : plan.chunks) {
      ran.push_back({chunk.job->id, chunk.begin, chunk.end});
      computed_ += chunk.end - chunk.begin;
      scheduler_->Computed(chunk);
      scheduler_->InsertIntoCache(*chunk.job);
      EXPECT_TRUE(chunk.job->running());
      if (!chunk.last()) scheduler_->MoveWindows(*chunk.job);
      if (chunk.last()) {
        const std::unique_ptr<PrefillJob> job = scheduler_->Remove(chunk.job->id);
        if (pinned_jobs_ > 0) {
          pinned_.push_back(job->blocks.Share(0, job->blocks.size(), kv::BlockUse::kHeld));
        }
      }
      Check();
    }
    while (static_cast<int>(pinned_.size()) > pinned_jobs_) pinned_.pop_front();
    return ran;
  }
  // Steps until `id` has been computed.
  void Finish(uint64_t id) {
    for (int i = 0; i < 10'000; ++i) {
      bool left = false;
      scheduler_->ForEachJob([&](const PrefillJob& job) { left = left || job.id == id; });
      if (!left) return;
      ASSERT_FALSE(Step().empty()) << "stuck";
    }
    FAIL() << "job " << id << " never ends";
  }
  void FinishAll() {
    while (!scheduler_->empty()) ASSERT_FALSE(Step().empty()) << "stuck";
  }
  void Check() {
    pool_->CheckIntegrity();
    if (cache_ != nullptr) cache_->CheckIntegrity();
    scheduler_->CheckIntegrity();
  }

  std::unique_ptr<kv::BlockPool> pool_;
  std::unique_ptr<kv::RadixCache> cache_;
  std::unique_ptr<PrefillScheduler> scheduler_;
  int64_t computed_ = 0;
  // As many jobs as this keep their blocks after their end, like frames that are still to be sent.
  int pinned_jobs_ = 0;
  std::deque<kv::BlockLease> pinned_;
};

SchedulerOptions Budget(int tokens) {
  SchedulerOptions options;
  options.max_num_batched_tokens = tokens;
  return options;
}

TEST_F(PrefillSchedulerTest, ChunksAreWholeBlocksWithinTheBudget) {
  Make(100, Budget(40));
  MustSubmit(1, Tokens(50));
  MustSubmit(2, Tokens(60, 1000));
  EXPECT_THAT(Step(), ElementsAre(Ran{1, 0, 32}));  // the 8 left are less than a block
  EXPECT_THAT(Step(), ElementsAre(Ran{1, 32, 50}, Ran{2, 0, 16}));
  EXPECT_EQ(scheduler_->queued_tokens(), 44);
  const PrefillWork left = scheduler_->remaining_work();
  EXPECT_EQ(left.tokens, 44);
  EXPECT_EQ(left.pairs, 44 * (16 + 44 / 2));
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 16, 48}));
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 48, 60}));
  EXPECT_THAT(Step(), IsEmpty());
}

TEST_F(PrefillSchedulerTest, WhatIsLeftOfTheBudgetGoesToAPromptThatItFinishes) {
  Make(100, Budget(40));
  MustSubmit(1, Tokens(5, 1000));
  MustSubmit(2, Tokens(3, 2000));
  MustSubmit(3, Tokens(32, 3000));
  MustSubmit(4, Tokens(90, 4000));
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 0, 3}, Ran{1, 0, 5}, Ran{3, 0, 32}));
}

TEST_F(PrefillSchedulerTest, ShortPromptsPassALongOneThatRuns) {
  Make(100, Budget(64));
  MustSubmit(1, Tokens(1000));
  Step();
  MustSubmit(2, Tokens(40, 2000));
  MustSubmit(3, Tokens(20, 3000));
  EXPECT_THAT(Step(), ElementsAre(Ran{3, 0, 20}, Ran{2, 0, 40}));
  EXPECT_THAT(Step(), ElementsAre(Ran{1, 64, 128}));
}

TEST_F(PrefillSchedulerTest, AJobStartsOnlyWhenTheStepHasRoomForIt) {
  Make(100, Budget(32));
  for (uint64_t id = 1; id <= 5; ++id) MustSubmit(id, Tokens(64, 1000 * static_cast<int>(id)));
  Step();
  EXPECT_EQ(scheduler_->running_count(), 1);
  EXPECT_EQ(pool_->counts().free, 96) << "waiting jobs hold no blocks";
}

TEST_F(PrefillSchedulerTest, PrioritiesGoFirstStrictly) {
  Make(100, Budget(32));
  auto low = Job(1, Tokens(16, 1000));
  low->priority = v1::PRIORITY_LOW;
  auto normal = Job(2, Tokens(48, 2000));
  auto high = Job(3, Tokens(64, 3000));
  high->priority = v1::PRIORITY_HIGH;
  ASSERT_TRUE(Submit(std::move(low)).ok());
  ASSERT_TRUE(Submit(std::move(normal)).ok());
  ASSERT_TRUE(Submit(std::move(high)).ok());
  EXPECT_THAT(Step(), ElementsAre(Ran{3, 0, 32}));
  EXPECT_THAT(Step(), ElementsAre(Ran{3, 32, 64}));
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 0, 32}));
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 32, 48}, Ran{1, 0, 16}));
}

// The bound of the header: done when R + Q tokens have been computed after it came. Without ageing
// the short ones, of which there are always enough for a whole step, would keep the long one out
// for ever.
TEST_F(PrefillSchedulerTest, ALongPromptEndsWithinTheBoundWhateverComes) {
  for (const int long_tokens : {16, 100, 500, 1000}) {
    Make(400, Budget(64));
    int next_first = 100'000;
    uint64_t next_id = 2;
    int64_t outstanding = 0;
    int64_t most_outstanding = 0;
    const auto fill = [&] {
      while (scheduler_->queued_tokens() < 300) {
        MustSubmit(next_id++, Tokens(16, next_first));
        next_first += 1000;
      }
      outstanding = scheduler_->queued_tokens();
      most_outstanding = std::max(most_outstanding, outstanding);
    };
    fill();
    MustSubmit(1, Tokens(long_tokens));
    const int64_t before = computed_;
    bool passed = false;
    while (true) {
      outstanding = scheduler_->queued_tokens();
      most_outstanding = std::max(most_outstanding, outstanding);
      const std::vector<Ran> ran = Step();
      const auto mine =
          std::find_if(ran.begin(), ran.end(), [](const Ran& r) { return r.id == 1; });
      if (mine == ran.end()) passed = true;
      if (mine != ran.end() && mine->end == long_tokens) break;
      ASSERT_LE(computed_ - before, long_tokens + most_outstanding) << long_tokens;
      fill();
    }
    EXPECT_LE(computed_ - before, long_tokens + most_outstanding) << long_tokens;
    EXPECT_TRUE(passed || long_tokens < 100) << "nothing competed with it";
    scheduler_.reset();
    cache_.reset();
  }
}

TEST_F(PrefillSchedulerTest, AJobThatDoesNotFitIsPassedOnlySoOften) {
  Make(10, Budget(16));
  pinned_jobs_ = 6;
  uint64_t id = 2;
  const auto add_short = [&] {
    MustSubmit(id, Tokens(16, 10'000 + 100 * static_cast<int>(id)));
    ++id;
  };
  for (int i = 0; i < 6; ++i) {
    add_short();
    Step();
  }
  ASSERT_EQ(pool_->counts().held, 6);
  MustSubmit(1, Tokens(80, 1000));  // five blocks, and never more than four free
  int64_t passed = 0;
  bool started = false;
  for (int step = 0; step < 100 && !started; ++step) {
    add_short();  // one that fits
    const std::vector<Ran> ran = Step();
    for (const Ran& r : ran) {
      started |= r.id == 1;
      if (!started) passed += r.end - r.begin;
    }
    if (ran.empty() && !pinned_.empty()) pinned_.pop_front();  // what has been sent is released
  }
  EXPECT_TRUE(started);
  EXPECT_GT(passed, 0) << "a job that waits for blocks must not keep others from theirs";
  // 80 of those that come soon enough to rank before it, then 80 that pass it, and the last of
  // these.
  EXPECT_LE(passed, 80 + 80 + 16);
}

TEST_F(PrefillSchedulerTest, AFollowerWaitsForALeaderThatWaitsForBlocks) {
  Make(10, Budget(64));
  kv::BlockLease held = *pool_->Acquire(4, kv::BlockUse::kHeld);
  auto leader = Job(1, Branch(64, 64, 1000));  // eight blocks
  leader->priority = v1::PRIORITY_HIGH;
  ASSERT_TRUE(Submit(std::move(leader)).ok());
  MustSubmit(2, Branch(64, 5, 2000));  // five
  EXPECT_THAT(Step(), IsEmpty());
  MustSubmit(3, Tokens(20, 3000));
  EXPECT_THAT(Step(), ElementsAre(Ran{3, 0, 20}));
  held.Release();
  EXPECT_THAT(Step(), ElementsAre(Ran{1, 0, 64}));
  EXPECT_THAT(Step(), ElementsAre(Ran{1, 64, 128}));
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 64, 69}));
}

TEST_F(PrefillSchedulerTest, AFollowerWaitsForALeaderWhosePrefixWasEvictedMeanwhile) {
  Make(10, Budget(64));
  MustSubmit(1, Tokens(64));
  Finish(1);
  kv::BlockLease held = *pool_->Acquire(5, kv::BlockUse::kHeld);
  kv::BlockLease one_more = *pool_->Acquire(1, kv::BlockUse::kHeld);
  auto leader = Job(2, Branch(64, 64, 1000));  // eight blocks, four of them cached
  leader->priority = v1::PRIORITY_HIGH;
  ASSERT_TRUE(Submit(std::move(leader)).ok());
  MustSubmit(3, Branch(64, 5, 2000));
  EXPECT_THAT(Step(), IsEmpty());
  ASSERT_EQ(cache_->Clear(), 4);
  one_more.Release();
  EXPECT_THAT(Step(), IsEmpty()) << "the follower has room, and would compute the prefix";
  held.Release();
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 0, 64}));
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 64, 128}));
  EXPECT_THAT(Step(), ElementsAre(Ran{3, 64, 69}));
}

TEST_F(PrefillSchedulerTest, TheSecondPromptReusesTheFirstsBlocksButComputesOneToken) {
  Make(100);
  MustSubmit(1, Tokens(64));
  Finish(1);
  EXPECT_EQ(pool_->counts().cached, 4);
  MustSubmit(2, Tokens(64));
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 48, 64}));
  EXPECT_EQ(pool_->counts().cached, 4);
  EXPECT_EQ(pool_->counts().free, 96);
}

TEST_F(PrefillSchedulerTest, CachedBlocksGiveWayButOnlyWhenThatIsEnough) {
  Make(8, Budget(16));
  MustSubmit(1, Tokens(64));
  Finish(1);
  MustSubmit(2, Tokens(64, 1000));
  Step();  // takes the four free blocks
  MustSubmit(3, Tokens(80, 5000));
  Step();
  EXPECT_EQ(scheduler_->running_count(), 1);
  EXPECT_EQ(pool_->counts().cached, 4) << "evicted for a job that could not start";
  FinishAll();
  EXPECT_EQ(pool_->counts().free + pool_->counts().cached, 8);
}

TEST_F(PrefillSchedulerTest, EightPromptsWithOneColdPrefixComputeItOnce) {
  Make(200, Budget(64));
  for (int i = 0; i < 8; ++i) MustSubmit(i + 1, Branch(320, 48, 1000 * (i + 1)));
  EXPECT_EQ(scheduler_->queued_tokens(), 320 + 8 * 48);
  FinishAll();
  EXPECT_EQ(computed_, 320 + 8 * 48);
}

TEST_F(PrefillSchedulerTest, AFollowerStartsAsSoonAsTheSharedPartIsComputed) {
  Make(200, Budget(64));
  MustSubmit(1, Branch(128, 500, 1000));
  Step();
  MustSubmit(2, Branch(128, 30, 2000));
  EXPECT_THAT(Step(), ElementsAre(Ran{1, 64, 128}));
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 128, 158}, Ran{1, 128, 160}));
}

TEST_F(PrefillSchedulerTest, ALeaderIsServedInTheFirstFollowersPlaceUpToWhatTheyShare) {
  Make(200, Budget(32));
  auto leader = Job(1, Branch(64, 500, 1000));
  leader->priority = v1::PRIORITY_LOW;
  ASSERT_TRUE(Submit(std::move(leader)).ok());
  Step();
  MustSubmit(2, Tokens(64, 5000));  // unrelated
  auto urgent = Job(3, Branch(64, 16, 2000));
  urgent->priority = v1::PRIORITY_HIGH;
  ASSERT_TRUE(Submit(std::move(urgent)).ok());
  EXPECT_THAT(Step(), ElementsAre(Ran{1, 32, 64}));
  EXPECT_THAT(Step(), ElementsAre(Ran{3, 64, 80}, Ran{2, 0, 16}));
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 16, 48}));
}

TEST_F(PrefillSchedulerTest, FollowersDoNotHoldUpUnrelatedJobs) {
  Make(200, Budget(64));
  MustSubmit(1, Branch(320, 16, 1000));
  Step();
  for (int i = 2; i < 8; ++i) MustSubmit(i, Branch(320, 16, 1000 * i));
  MustSubmit(9, Tokens(20, 90'000));
  // The unrelated one is the shortest of all.
  EXPECT_THAT(Step(), ElementsAre(Ran{9, 0, 20}, Ran{1, 64, 96}));
}

TEST_F(PrefillSchedulerTest, WhereTheLeaderIsCancelledTheNextTakesOver) {
  Make(200, Budget(64));
  for (int i = 1; i <= 4; ++i) MustSubmit(i, Branch(320, 16, 1000 * i));
  Step();
  EXPECT_NE(scheduler_->Remove(1), nullptr);
  Check();
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 64, 128})) << "goes on where the first was";
  EXPECT_NE(scheduler_->Remove(3), nullptr);  // one that waits
  EXPECT_NE(scheduler_->Remove(2), nullptr);
  EXPECT_THAT(Step(), ElementsAre(Ran{4, 128, 192}));
  FinishAll();
  EXPECT_EQ(computed_, 320 + 16);
}

TEST_F(PrefillSchedulerTest, OtherRootsOtherTokensAndNoCacheShareNothing) {
  Make(200, Budget(64));
  MustSubmit(1, Tokens(64));
  auto salted = Job(2, Tokens(64));
  salted->root = 2;
  ASSERT_TRUE(Submit(std::move(salted)).ok());
  MustSubmit(3, Branch(15, 49, 500));  // differs within the first block
  EXPECT_EQ(scheduler_->queued_tokens(), 3 * 64);
  FinishAll();
  EXPECT_EQ(computed_, 3 * 64);

  scheduler_.reset();
  cache_.reset();
  computed_ = 0;
  Make(200, Budget(64), /*caching=*/false);
  MustSubmit(1, Tokens(100));
  MustSubmit(2, Tokens(100));
  EXPECT_EQ(scheduler_->queued_tokens(), 200);
  FinishAll();
  EXPECT_EQ(computed_, 200);
  EXPECT_EQ(pool_->counts().free, 200);
}

TEST_F(PrefillSchedulerTest, AJobThatComputesAllWaitsForNobodyAndMayLead) {
  Make(200, Budget(64));
  MustSubmit(1, Tokens(128));
  Step();
  auto all = Job(2, Tokens(128));
  all->prompt_logprobs = 0;
  all->priority = v1::PRIORITY_HIGH;
  ASSERT_TRUE(Submit(std::move(all)).ok());
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 0, 64}));
  FinishAll();
  EXPECT_EQ(computed_, 256);

  auto leader = Job(3, Tokens(128, 7000));
  leader->prompt_logprobs = 0;
  ASSERT_TRUE(Submit(std::move(leader)).ok());
  MustSubmit(4, Tokens(128, 7000));
  FinishAll();
  EXPECT_EQ(computed_, 256 + 128 + 16);
}

TEST_F(PrefillSchedulerTest, BoundsRefuseWithAReasonAndATimeFromTheQueue) {
  SchedulerOptions options;
  options.max_queued_requests = 2;
  options.max_queued_tokens = 150;
  Make(8, options);
  EXPECT_EQ(ErrorReason(Submit(Job(1, Tokens(129)))), "KV_POOL_TOO_SMALL");
  MustSubmit(2, Tokens(128));
  EXPECT_EQ(ErrorReason(Submit(Job(3, Tokens(32, 1000)))), "QUEUE_FULL") << "by tokens";
  MustSubmit(4, Tokens(16, 2000));
  const absl::Status full = scheduler_->Submit(Job(5, Tokens(1, 3000)), absl::UnixEpoch(), 100.0);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << "by requests";
  EXPECT_EQ(ErrorReason(full), "QUEUE_FULL");
  EXPECT_EQ(ErrorRetryAfter(full), absl::Milliseconds(1440));
  Check();
}

TEST_F(PrefillSchedulerTest, ALonePromptIsLetInHoweverLong) {
  SchedulerOptions options;
  options.max_queued_tokens = 10;
  Make(8, options);
  MustSubmit(1, Tokens(128));
}

TEST_F(PrefillSchedulerTest, ADeadlineThatTheQueueRulesOutIsRefusedAtOnce) {
  Make(100, Budget(64));
  const auto submit = [this](uint64_t id, int tokens, absl::Duration left,
                             std::optional<double> rate, v1::Priority priority) {
    auto job = Job(id, Tokens(tokens, 1000 * static_cast<int>(id)));
    job->deadline = absl::UnixEpoch() + left;
    job->priority = priority;
    return scheduler_->Submit(std::move(job), absl::UnixEpoch(), rate);
  };
  const v1::Priority normal = v1::PRIORITY_NORMAL;
  EXPECT_TRUE(submit(1, 500, absl::Seconds(1), 100.0, normal).ok()) << "nothing is before it";
  EXPECT_TRUE(submit(2, 600, absl::Seconds(1), std::nullopt, normal).ok()) << "no rate is known";
  const absl::Status late = submit(3, 900, absl::Seconds(19), 100.0, normal);
  EXPECT_EQ(late.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(late), "DEADLINE_UNREACHABLE");
  EXPECT_EQ(ErrorRetryAfter(late), absl::Seconds(11));
  EXPECT_TRUE(submit(4, 900, absl::Seconds(21), 100.0, normal).ok());
  EXPECT_TRUE(submit(5, 50, absl::Seconds(1), 100.0, normal).ok()) << "it passes the others";
  EXPECT_TRUE(submit(6, 200, absl::Seconds(1), 100.0, v1::PRIORITY_HIGH).ok());
  EXPECT_FALSE(submit(7, 50, absl::Milliseconds(-5), 100.0, v1::PRIORITY_LOW).ok());
  EXPECT_TRUE(submit(8, 50, absl::InfiniteDuration(), 100.0, v1::PRIORITY_LOW).ok());
}

TEST_F(PrefillSchedulerTest, RemoveFreesAtEveryStage) {
  Make(8, Budget(16));
  MustSubmit(1, Tokens(64));
  MustSubmit(2, Tokens(128, 1000));
  Step();
  EXPECT_NE(scheduler_->Remove(2), nullptr);  // waiting
  EXPECT_NE(scheduler_->Remove(1), nullptr);  // running
  EXPECT_EQ(scheduler_->Remove(1), nullptr);
  EXPECT_TRUE(scheduler_->empty());
  EXPECT_EQ(scheduler_->queued_tokens(), 0);
  EXPECT_EQ(pool_->counts().free + pool_->counts().cached, 8);
  EXPECT_EQ(pool_->counts().cached, 1) << "the block computed before the cancel";
}

TEST_F(PrefillSchedulerTest, TenantsHaveEqualShares) {
  Make(1000, Budget(16));
  const auto ask = [this](uint64_t id, const std::string& tenant, int tokens) {
    auto job = Job(id, Tokens(tokens, 1000 * static_cast<int>(id)));
    job->tenant = tenant;
    ASSERT_TRUE(Submit(std::move(job)).ok());
  };
  for (uint64_t id = 1; id <= 20; ++id) ask(id, "many", 64);
  for (int i = 0; i < 8; ++i)
    EXPECT_THAT(Step(),
                ElementsAre(Ran{static_cast<uint64_t>(1 + i / 4), i % 4 * 16, i % 4 * 16 + 16}));
  // What the other was served before says nothing against it, nor for the new one.
  ask(21, "one", 64);
  std::vector<uint64_t> order;
  for (int i = 0; i < 8; ++i) order.push_back(Step().at(0).id);
  EXPECT_EQ(std::count(order.begin(), order.end(), 21), 4) << "half of the steps until it is done";
  // Its next prompt begins anew: it has saved up nothing while it had none.
  for (int i = 0; i < 8; ++i) Step();
  ask(22, "one", 128);
  order.clear();
  for (int i = 0; i < 16; ++i) order.push_back(Step().at(0).id);
  EXPECT_EQ(std::count(order.begin(), order.end(), 22), 8);
  FinishAll();
}

TEST_F(PrefillSchedulerTest, AFloodOfOneTenantIsNoReasonToRefuseAnother) {
  Make(1000, Budget(16));
  const auto ask = [this](uint64_t id, const std::string& tenant) {
    auto job = Job(id, Tokens(100, 1000 * static_cast<int>(id)));
    job->tenant = tenant;
    job->deadline = absl::UnixEpoch() + absl::Seconds(3);
    return scheduler_->Submit(std::move(job), absl::UnixEpoch(), /*tokens_per_second=*/100);
  };
  EXPECT_TRUE(ask(1, "many").ok());
  EXPECT_TRUE(ask(2, "many").ok());
  EXPECT_TRUE(ask(3, "many").ok());
  EXPECT_EQ(ErrorReason(ask(4, "many")), "DEADLINE_UNREACHABLE");
  EXPECT_TRUE(ask(5, "one").ok()) << "it has half of the worker";
}

TEST_F(PrefillSchedulerTest, StartsLeaveWhatOthersMayTake) {
  Make(8, Budget(64));
  MustSubmit(1, Tokens(48));
  StepRoom room;
  const auto waits = [&](bool blocked) {
    EXPECT_THAT(scheduler_->NextStep(room).chunks, IsEmpty());
    ASSERT_NE(scheduler_->held_up(), nullptr);
    EXPECT_EQ(scheduler_->held_up()->id, 1u);
    EXPECT_EQ(scheduler_->blocked() != nullptr, blocked);
  };
  room.spare_pages = 6;
  waits(/*blocked=*/true);
  room = StepRoom();
  room.free_jobs = 0;
  waits(/*blocked=*/true);
  room = StepRoom();
  room.jobs = 0;
  waits(/*blocked=*/false);
  room = StepRoom();
  room.pages = 2;
  waits(/*blocked=*/false);
  room.pages = 3;
  room.spare_pages = 5;
  room.tokens = 16;
  const StepPlan plan = scheduler_->NextStep(room);
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].end, 16);
  EXPECT_EQ(scheduler_->held_up(), nullptr);
  // The room is for running jobs, too.
  MustSubmit(2, Tokens(16, 1000));
  room.spare_pages = 0;
  room.tokens = 64;
  EXPECT_EQ(scheduler_->NextStep(room).chunks.size(), 1u);
  ASSERT_NE(scheduler_->held_up(), nullptr);
  EXPECT_EQ(scheduler_->held_up()->id, 2u);
}

// The rows of labels come with the step that ends a prompt: of many items, few end in one step.
TEST_F(PrefillSchedulerTest, LabelsTakeOfTheBudget) {
  Make(64, Budget(64));
  for (uint64_t id = 1; id <= 3; ++id) {
    auto job = Job(id, Tokens(16, static_cast<int>(id) * 1000));
    job->scoring = std::make_unique<Scoring>();
    job->scoring->labels = {std::vector<int32_t>(9, 1), std::vector<int32_t>(9, 2)};
    ASSERT_TRUE(Submit(std::move(job)).ok());
  }
  EXPECT_EQ(scheduler_->NextStep().chunks.size(), 2u) << "32 tokens and rows of each";
}

// A state takes two pages.
constexpr kv::BlockShape kStates = {
    .full_pages = 1, .window_pages = 2, .window_blocks = 1, .recurrent = true};

TEST_F(PrefillSchedulerTest, APromptLeavesSnapshotsAtItsEndAndItsChunksEnds) {
  Make(200, Budget(64), /*caching=*/true, kStates);
  MustSubmit(1, Tokens(200));
  FinishAll();
  EXPECT_EQ(cache_->Peek(1, Tokens(200)), 192);
  EXPECT_EQ(cache_->Peek(1, Tokens(191)), 128);
  EXPECT_EQ(cache_->Peek(1, Tokens(70)), 64);
  EXPECT_EQ(cache_->snapshot_count(), 3);
}

TEST_F(PrefillSchedulerTest, TheSecondPromptThatLeavesAPathLeavesASnapshotForTheThird) {
  Make(200, Budget(400), /*caching=*/true, kStates);
  MustSubmit(1, Tokens(200));
  FinishAll();
  MustSubmit(2, Branch(100, 60, 1000));
  EXPECT_THAT(Step(), ElementsAre(Ran{2, 0, 160})) << "the path has no snapshot before";
  MustSubmit(3, Branch(100, 60, 2000));
  EXPECT_THAT(Step(), ElementsAre(Ran{3, 96, 160}));
  MustSubmit(4, Tokens(200));
  EXPECT_THAT(Step(), ElementsAre(Ran{4, 192, 200}));
}

TEST_F(PrefillSchedulerTest, OfPromptsThatComeTogetherOneLeavesTheStateForTheOthers) {
  Make(400, Budget(1000), /*caching=*/true, kStates);
  for (uint64_t id = 1; id <= 8; ++id) {
    MustSubmit(id, Branch(1 + 160, 30, static_cast<int>(1000 * id)));
  }
  EXPECT_THAT(Step(), ElementsAre(Ran{1, 0, 191}));
  EXPECT_EQ(Step().size(), 7u);
  EXPECT_EQ(computed_, 160 + 8 * 31);
}

// What it left behind others keep, and they have the rest of the pool.
TEST_F(PrefillSchedulerTest, AJobWithoutASpareWaits) {
  Make(24, Budget(32), /*caching=*/true, kStates);
  MustSubmit(1, Tokens(160));  // ten blocks and two states: 14 pages
  EXPECT_THAT(Step(), ElementsAre(Ran{1, 0, 32}));
  kv::Match match = cache_->MatchPrefix(1, Tokens(32), 32);
  ASSERT_EQ(match.tokens, 32);
  kv::BlockLease others = *pool_->Acquire(pool_->counts().free, kv::BlockUse::kHeld, 0, 0);
  EXPECT_THAT(Step(), ElementsAre(Ran{1, 32, 64}));
  EXPECT_THAT(Step(), IsEmpty());
  match.blocks.Release();
  EXPECT_THAT(Step(), ElementsAre(Ran{1, 64, 96})) << "the snapshot makes room";
  others.Release();
  FinishAll();
}

// Random prompts, few beginnings, cancels at any moment, leases that stay a while after the end,
// with and without a cache. Everything ends; the books are checked after every change; and where
// nothing is evicted or cancelled, each distinct block is computed once.
TEST_F(PrefillSchedulerTest, RandomTrafficKeepsTheBooksAndEnds) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) {
    const bool caching = round % 4 != 0;
    const bool gentle = round % 4 == 1;  // no cancel, no eviction
    const bool recurrent = round % 4 == 3;
    SchedulerOptions options = Budget(16 + static_cast<int>(random() % 100));
    options.max_num_seqs = 1 + static_cast<int>(random() % 6);
    Make(gentle ? 4000 : 12 + static_cast<int>(random() % 20) + (recurrent ? 10 : 0), options,
         caching, recurrent ? kStates : kv::BlockShape());
    computed_ = 0;
    uint64_t next_id = 1;
    int64_t unshared = 0;
    std::vector<kv::BlockLease> pinned;
    std::vector<std::vector<int32_t>> prompts;
    const auto random_job = [&] {
      std::vector<int32_t> tokens = Tokens(1 + static_cast<int>(random() % 180));
      const int cut = static_cast<int>(random() % 12) * 16;
      for (size_t i = cut; i < tokens.size(); ++i) tokens[i] = static_cast<int>(random() % 3);
      auto job = Job(next_id++, std::move(tokens));
      job->root = 1 + random() % 2;
      job->priority = static_cast<v1::Priority>(1 + random() % 3);
      job->tenant = std::string(random() % 3, 't');
      if (!gentle && random() % 8 == 0) job->prompt_logprobs = 0;
      return job;
    };
    for (int turn = 0; turn < 300 || !scheduler_->empty(); ++turn) {
      ASSERT_LT(turn, 5000) << "does not end";
      while (turn < 300 && random() % 2 == 0) {
        if (Submit(random_job()).ok()) ++unshared;
      }
      if (!gentle && random() % 4 == 0) scheduler_->Remove(1 + random() % next_id);
      if (!pinned.empty() && random() % 2 == 0) pinned.erase(pinned.begin());
      Check();
      int budget = 0;
      const StepPlan plan = scheduler_->NextStep();
      Check();
      std::vector<uint64_t> ended;
      for (const Chunk& chunk : plan.chunks) {
        EXPECT_EQ(chunk.begin % 16, 0);
        EXPECT_TRUE(chunk.last() || chunk.end % 16 == 0);
        EXPECT_LT(chunk.begin, chunk.end);
        budget += chunk.end - chunk.begin;
        EXPECT_TRUE(chunk.job->running());
        scheduler_->Computed(chunk);
        scheduler_->InsertIntoCache(*chunk.job);
        if (recurrent && cache_->Peek(chunk.job->root, chunk.job->tokens) < chunk.end / 16 * 16) {
          EXPECT_TRUE(chunk.last()) << "a chunk's end has no snapshot";
        }
        if (chunk.last()) {
          ended.push_back(chunk.job->id);
        } else {
          scheduler_->MoveWindows(*chunk.job);
        }
      }
      computed_ += budget;
      EXPECT_LE(budget, options.max_num_batched_tokens);
      for (const uint64_t id : ended) {
        std::unique_ptr<PrefillJob> job = scheduler_->Remove(id);
        if (random() % 2 == 0) {
          pinned.push_back(job->blocks.Share(0, job->blocks.size(), kv::BlockUse::kHeld));
        }
        prompts.push_back(std::move(job->tokens));
        prompts.back().push_back(static_cast<int32_t>(job->root));
      }
      ASSERT_TRUE(scheduler_->empty() || budget > 0 || !pinned.empty()) << "stuck";
      Check();
    }
    pinned.clear();
    EXPECT_EQ(pool_->counts().active + pool_->counts().held, 0);
    if (gentle) {
      // What must be computed: every distinct whole block once, and of each prompt at least what is
      // behind its last whole block before its last token.
      std::set<std::vector<int32_t>> blocks;
      int64_t least = 0;
      int64_t most = 0;
      for (const std::vector<int32_t>& prompt : prompts) {
        const int size = static_cast<int>(prompt.size()) - 1;
        for (int end = 16; end <= size; end += 16) {
          std::vector<int32_t> prefix(prompt.begin(), prompt.begin() + end);
          prefix.push_back(prompt.back());
          if (blocks.insert(std::move(prefix)).second) least += 16;
        }
        most += size - (size - 1) / 16 * 16;
      }
      EXPECT_LE(computed_, least + most);
    }
    scheduler_.reset();
    cache_.reset();
  }
}

}  // namespace
}  // namespace baton::prefill
