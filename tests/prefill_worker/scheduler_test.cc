#include "prefill_worker/scheduler.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/base/error.h"
#include "common/transfer/kv_sender.h"

namespace baton::prefill_worker {
namespace {

std::vector<int32_t> Tokens(int count, int first = 0) {
  std::vector<int32_t> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = first + i;
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
  void Make(int blocks, SchedulerOptions options = {}) {
    pool_ = std::make_unique<kv::BlockPool>(blocks);
    cache_ = std::make_unique<kv::RadixCache>(*pool_, 16);
    scheduler_ = std::make_unique<PrefillScheduler>(options, *pool_, cache_.get());
  }
  ~PrefillSchedulerTest() override {
    scheduler_.reset();
    cache_.reset();
  }
  // Runs steps until a started job is computed; donates and removes it.
  void Finish(uint64_t id) {
    while (true) {
      for (const Chunk& chunk : scheduler_->NextBatch()) {
        scheduler_->Computed(chunk);
        if (chunk.job->id != id || !chunk.last()) continue;
        scheduler_->Donate(*chunk.job);
        scheduler_->Remove(id);
        Check();
        return;
      }
      Check();
    }
  }
  void Check() {
    pool_->CheckIntegrity();
    cache_->CheckIntegrity();
  }

  std::unique_ptr<kv::BlockPool> pool_;
  std::unique_ptr<kv::RadixCache> cache_;
  std::unique_ptr<PrefillScheduler> scheduler_;
};

TEST_F(PrefillSchedulerTest, ChunksAreWholeBlocksWithinTheBudget) {
  SchedulerOptions options;
  options.max_num_batched_tokens = 40;
  Make(100, options);
  ASSERT_TRUE(scheduler_->Submit(Job(1, Tokens(50))).ok());
  ASSERT_TRUE(scheduler_->Submit(Job(2, Tokens(30, 1000))).ok());
  EXPECT_EQ(scheduler_->StartJobs().size(), 2u);
  std::vector<Chunk> batch = scheduler_->NextBatch();
  ASSERT_EQ(batch.size(), 1u);  // 32 of job 1; the 8 left are less than a block of job 2
  EXPECT_EQ(batch[0].end, 32);
  scheduler_->Computed(batch[0]);
  batch = scheduler_->NextBatch();
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0].begin, 32);
  EXPECT_EQ(batch[0].end, 50);
  EXPECT_TRUE(batch[0].last());
  EXPECT_EQ(batch[1].end, 16);
  EXPECT_FALSE(batch[1].last());
  EXPECT_EQ(scheduler_->queued_tokens(), 18 + 30);
}

TEST_F(PrefillSchedulerTest, TheSecondPromptReusesTheFirstsBlocksButComputesOneToken) {
  Make(100);
  ASSERT_TRUE(scheduler_->Submit(Job(1, Tokens(64))).ok());
  scheduler_->StartJobs();
  Finish(1);
  EXPECT_EQ(pool_->counts().cached, 4);
  ASSERT_TRUE(scheduler_->Submit(Job(2, Tokens(64))).ok());
  std::vector<PrefillJob*> started = scheduler_->StartJobs();
  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(started[0]->cached_tokens, 48);
  EXPECT_EQ(started[0]->blocks.size(), 4);
  Finish(2);
  EXPECT_EQ(pool_->counts().cached, 4);
  EXPECT_EQ(pool_->counts().free, 96);
}

TEST_F(PrefillSchedulerTest, CachedBlocksGiveWayButOnlyWhenThatIsEnough) {
  Make(8);
  ASSERT_TRUE(scheduler_->Submit(Job(1, Tokens(64))).ok());
  scheduler_->StartJobs();
  Finish(1);
  ASSERT_TRUE(scheduler_->Submit(Job(2, Tokens(64, 1000))).ok());
  ASSERT_EQ(scheduler_->StartJobs().size(), 1u);  // takes the four free blocks
  ASSERT_TRUE(scheduler_->Submit(Job(3, Tokens(80, 5000))).ok());
  EXPECT_TRUE(scheduler_->StartJobs().empty());
  EXPECT_EQ(pool_->counts().cached, 4) << "evicted for a job that could not start";
  Finish(2);
  EXPECT_EQ(scheduler_->StartJobs().size(), 1u);
  Finish(3);
  Check();
}

TEST_F(PrefillSchedulerTest, BoundsRefuseWithAReason) {
  SchedulerOptions options;
  options.max_queued_requests = 1;
  options.max_queued_tokens = 100;
  Make(8, options);
  EXPECT_EQ(ErrorReason(scheduler_->Submit(Job(1, Tokens(129)))), "KV_POOL_TOO_SMALL");
  ASSERT_TRUE(scheduler_->Submit(Job(2, Tokens(128))).ok()) << "a lone prompt is let in";
  const absl::Status full = scheduler_->Submit(Job(3, Tokens(16)));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(full), "QUEUE_FULL");
}

TEST_F(PrefillSchedulerTest, RemoveFreesAtEveryStage) {
  Make(8);
  ASSERT_TRUE(scheduler_->Submit(Job(1, Tokens(64))).ok());
  ASSERT_TRUE(scheduler_->Submit(Job(2, Tokens(128, 1000))).ok());
  scheduler_->StartJobs();
  EXPECT_NE(scheduler_->Remove(2), nullptr);  // waiting
  EXPECT_NE(scheduler_->Remove(1), nullptr);  // running
  EXPECT_EQ(scheduler_->Remove(1), nullptr);
  EXPECT_TRUE(scheduler_->empty());
  EXPECT_EQ(scheduler_->queued_tokens(), 0);
  EXPECT_EQ(pool_->counts().free, 8);
}

TEST_F(PrefillSchedulerTest, RandomTrafficKeepsTheBooksAndEnds) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  SchedulerOptions options;
  options.max_num_batched_tokens = 48;
  options.max_num_seqs = 3;
  Make(12, options);
  uint64_t next_id = 1;
  int done = 0;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 3 == 0) {
      // Few distinct beginnings, so that prefixes repeat.
      const int family = static_cast<int>(random() % 4) * 1000;
      (void)scheduler_->Submit(Job(next_id++, Tokens(1 + static_cast<int>(random() % 150), family)));
    }
    if (random() % 10 == 0 && next_id > 1) scheduler_->Remove(1 + random() % next_id);
    scheduler_->StartJobs();
    int budget = 0;
    std::vector<uint64_t> finished;
    for (const Chunk& chunk : scheduler_->NextBatch()) {
      EXPECT_EQ(chunk.begin % 16, 0);
      EXPECT_TRUE(chunk.last() || chunk.end % 16 == 0);
      budget += chunk.end - chunk.begin;
      scheduler_->Computed(chunk);
      if (!chunk.last()) continue;
      scheduler_->Donate(*chunk.job);
      finished.push_back(chunk.job->id);
    }
    EXPECT_LE(budget, 48);
    for (uint64_t id : finished) scheduler_->Remove(id);
    done += static_cast<int>(finished.size());
    ASSERT_TRUE(scheduler_->empty() || budget > 0 || !finished.empty()) << "stuck";
    Check();
  }
  EXPECT_GT(done, 500);
}

}  // namespace
}  // namespace baton::prefill_worker
