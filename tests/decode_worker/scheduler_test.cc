#include "decode_worker/scheduler.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/base/error.h"
#include "common/transfer/prefill_call.h"

namespace baton::decode_worker {
namespace {

std::unique_ptr<Sequence> Request(uint64_t id, int prompt_tokens, int max_tokens) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->tokens.resize(prompt_tokens);
  sequence->prompt_tokens = prompt_tokens;
  sequence->max_tokens = max_tokens;
  return sequence;
}

TEST(DecodeSchedulerTest, ReservesPromptAndAnswerInFull) {
  kv::BlockPool pool(10);
  DecodeScheduler scheduler({}, pool);
  ASSERT_TRUE(scheduler.Submit(Request(1, 16, 17)).ok());  // 32 tokens need KV: the last is not read
  Sequence* sequence = scheduler.Admit();
  ASSERT_NE(sequence, nullptr);
  EXPECT_EQ(sequence->blocks.size(), 2);
  EXPECT_EQ(scheduler.PromptBlocks(*sequence), 1);
  EXPECT_EQ(pool.counts().held, 2);
  scheduler.Commit(*sequence);
  EXPECT_EQ(pool.counts().held, 0);
  EXPECT_EQ(pool.counts().active, 2);
  scheduler.Remove(1);
  EXPECT_EQ(pool.counts().free, 10);
  pool.CheckIntegrity();
}

TEST(DecodeSchedulerTest, FirstComeFirstServedEvenIfALaterOneWouldFit) {
  kv::BlockPool pool(4);
  DecodeScheduler scheduler({}, pool);
  ASSERT_TRUE(scheduler.Submit(Request(1, 40, 1)).ok());  // 3 blocks
  ASSERT_TRUE(scheduler.Submit(Request(2, 60, 1)).ok());  // 4 blocks
  ASSERT_TRUE(scheduler.Submit(Request(3, 10, 1)).ok());  // 1 block
  EXPECT_EQ(scheduler.Admit()->id, 1u);
  EXPECT_EQ(scheduler.Admit(), nullptr);
  scheduler.Remove(1);
  EXPECT_EQ(scheduler.Admit()->id, 2u);
  EXPECT_EQ(scheduler.waiting_tokens(), 10);
}

TEST(DecodeSchedulerTest, BoundsRefuseWithAReason) {
  kv::BlockPool pool(4);
  SchedulerOptions options;
  options.max_queued_requests = 2;
  DecodeScheduler scheduler(options, pool);
  EXPECT_EQ(ErrorReason(scheduler.Submit(Request(1, 64, 2))), "KV_POOL_TOO_SMALL");
  ASSERT_TRUE(scheduler.Submit(Request(2, 64, 1)).ok());
  ASSERT_TRUE(scheduler.Submit(Request(3, 64, 1)).ok());
  EXPECT_EQ(ErrorReason(scheduler.Submit(Request(4, 1, 1))), "QUEUE_FULL");
}

TEST(DecodeSchedulerTest, RandomTrafficKeepsTheBooks) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  kv::BlockPool pool(20);
  SchedulerOptions options;
  options.max_num_seqs = 4;
  DecodeScheduler scheduler(options, pool);
  uint64_t next_id = 1;
  for (int step = 0; step < 5000; ++step) {
    if (random() % 2 == 0) {
      (void)scheduler.Submit(Request(next_id++, 1 + static_cast<int>(random() % 100),
                                     1 + static_cast<int>(random() % 60)));
    }
    while (scheduler.Admit() != nullptr) {
    }
    EXPECT_LE(scheduler.receiving_count() + scheduler.running_count(), 4);
    const std::vector<uint64_t> ids = scheduler.SequenceIds();
    if (!ids.empty()) {
      Sequence* sequence = scheduler.Find(ids[random() % ids.size()]);
      if (sequence->blocks.use() == kv::BlockUse::kHeld && !sequence->blocks.empty() &&
          random() % 2 == 0) {
        scheduler.Commit(*sequence);
      } else if (random() % 2 == 0) {
        scheduler.Remove(sequence->id);
      }
    }
    pool.CheckIntegrity();
  }
  for (uint64_t id : scheduler.SequenceIds()) scheduler.Remove(id);
  EXPECT_EQ(pool.counts().free, 20);
  EXPECT_EQ(scheduler.waiting_tokens(), 0);
}

}  // namespace
}  // namespace baton::decode_worker
