// A prompt's retained beginning under a flood of other prompts.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "common/prefill/scheduler.h"
#include "tests/router/fake_clock.h"

namespace baton::prefill {
namespace {

constexpr int kBlock = 16;
constexpr int kPoolBlocks = 64;
constexpr int kRubricTokens = 10 * kBlock;

struct Hits {
  int64_t cached = 0;
  int64_t wanted = 0;
  double share() const { return static_cast<double>(cached) / static_cast<double>(wanted); }
};

// Prompts of a rubric and a question each. Between two of them come other prompts; all of these
// together have ten times the blocks of the pool. Returns what was cached of the rubric.
Hits FloodedRubric(int priority) {
  testing::FakeClock clock;
  kv::BlockPool pool(kPoolBlocks);
  kv::RadixCache cache(pool, kBlock, {0.25, clock});
  PrefillScheduler scheduler({}, pool, &cache);
  uint64_t id = 0;
  int next_token = 1000;
  // Returns how many tokens of the prompt were cached.
  const auto run = [&](std::vector<int32_t> tokens, int own_tokens,
                       const worker::PromptRetention& retained) {
    for (int i = 0; i < own_tokens; ++i) tokens.push_back(next_token++);
    auto job = std::make_unique<PrefillJob>();
    job->id = ++id;
    job->tokens = std::move(tokens);
    job->root = 1;
    job->retention = retained;
    EXPECT_TRUE(scheduler.Submit(std::move(job), absl::UnixEpoch(), std::nullopt).ok());
    int cached = 0;
    while (!scheduler.empty()) {
      const StepPlan plan = scheduler.NextStep();
      for (const PrefillJob* started : plan.started) cached = started->cached_tokens;
      for (const Chunk& chunk : plan.chunks) {
        scheduler.Computed(chunk);
        scheduler.InsertIntoCache(*chunk.job);
        if (chunk.last()) scheduler.Remove(chunk.job->id);
      }
      pool.CheckIntegrity();
      cache.CheckIntegrity();
    }
    clock.Advance(absl::Seconds(1));
    return cached;
  };

  std::vector<int32_t> rubric(kRubricTokens);
  for (int i = 0; i < kRubricTokens; ++i) rubric[i] = i;
  const worker::PromptRetention retained = {kRubricTokens, {priority, absl::Minutes(1)}};
  run(rubric, kBlock, retained);
  Hits hits;
  constexpr int kFloodTokens = 20 * kBlock;
  for (int flooded = 0; flooded < 10 * kPoolBlocks * kBlock;) {
    for (int i = 0; i < 4; ++i, flooded += kFloodTokens) run({}, kFloodTokens, {});
    hits.cached += run(rubric, kBlock, retained);
    hits.wanted += kRubricTokens;
  }
  return hits;
}

TEST(PrefillRetentionTest, ARetainedRubricOutlivesAFloodOfTenPools) {
  const Hits with = FloodedRubric(50);
  const Hits without = FloodedRubric(0);
  EXPECT_EQ(with.wanted, 8 * kRubricTokens);
  EXPECT_GE(with.share(), 0.95);
  EXPECT_EQ(without.cached, 0) << "the flood was none";
}

}  // namespace
}  // namespace baton::prefill
