#include "simulator/sim_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/testing/seed.h"

namespace baton::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Steps of up to 1,024 tokens, which take 1 ms and 10 us a token.
PrefillWorkerShape Batching() {
  PrefillWorkerShape shape;
  shape.cost = {1000, 10, 0};
  shape.step_tokens = 1024;
  return shape;
}

Trace Prompts(std::vector<SimRequest> requests, int blocks = 0) {
  Trace trace;
  trace.name = "prompts";
  trace.requests = std::move(requests);
  trace.block_count = blocks;
  return trace;
}

// When each request's prompt was computed, all of which came at time 0 in the order of the trace.
std::map<int, int64_t> EndsOf(SimWorker* worker, int requests) {
  std::map<int, int64_t> ends;
  for (int i = 0; i < requests; ++i) worker->Accept(i);
  for (int64_t now_us = 0; (now_us = worker->Begin(now_us)) >= 0;) {
    for (const SimWorker::Ended& ended : worker->End().ended) ends[ended.request] = now_us;
  }
  return ends;
}

TEST(SimWorkerTest, AStepHasChunksOfSeveralPromptsShortOnesFirst) {
  const Trace trace = Prompts({{0, 3000}, {0, 100}, {0, 200}});
  SimWorker worker(trace, Batching());
  worker.Start();
  const std::map<int, int64_t> ends = EndsOf(&worker, 3);
  // 100 + 200 + 720 of the long one, whose chunk is of whole blocks of 16 tokens; then 1,024 and
  // 1,024 and what is left, 232.
  EXPECT_EQ(ends.at(1), 1000 + 1020 * 10);
  EXPECT_EQ(ends.at(2), ends.at(1));
  EXPECT_EQ(ends.at(0), ends.at(1) + 2 * (1000 + 10'240) + 1000 + 2320);
  EXPECT_EQ(worker.busy_us(), ends.at(0));
}

TEST(SimWorkerTest, PairsOfTokensCostByTheContextBeforeAChunk) {
  const Trace trace = Prompts({{0, 1536}});
  PrefillWorkerShape shape = Batching();
  shape.cost = {0, 0, 0.001};
  SimWorker worker(trace, shape);
  worker.Start();
  worker.Accept(0);
  EXPECT_EQ(worker.Begin(0), static_cast<int64_t>(0.001 * 1024 * 512));
  EXPECT_THAT(worker.started(), ElementsAre(0));
  EXPECT_THAT(worker.End().ended, IsEmpty());
  EXPECT_EQ(worker.Begin(0), static_cast<int64_t>(0.001 * 512 * (1024 + 256)));
  EXPECT_THAT(worker.started(), IsEmpty());
  EXPECT_EQ(worker.End().ended.size(), 1u);
}

// A long prompt is passed by none that comes after as many tokens as it has were computed.
TEST(SimWorkerTest, ALongPromptAges) {
  std::vector<SimRequest> requests = {{0, 4096}};
  for (int i = 0; i < 40; ++i) requests.push_back({0, 512});
  const Trace trace = Prompts(requests);
  SimWorker worker(trace, Batching());
  worker.Start();
  worker.Accept(0);
  int next = 1, before = 0;
  int64_t now_us = 0;
  for (bool done = false; !done;) {
    // Two short prompts come with each step, which could fill all of it.
    for (int i = 0; i < 2 && next <= 40; ++i) worker.Accept(next++);
    now_us = worker.Begin(now_us);
    ASSERT_GE(now_us, 0);
    for (const SimWorker::Ended& ended : worker.End().ended) {
      before += ended.request != 0;
      done = done || ended.request == 0;
    }
  }
  EXPECT_GE(before, 6) << "short prompts pass it at first";
  EXPECT_LE(before * 512, 4096 + 2 * 1024) << "and not for ever";
}

TEST(SimWorkerTest, WhoSharesABlockWaitsForItAndIsComputedOnce) {
  const Trace trace = Prompts({{0, 1100, {0, 1}}, {0, 1101, {0, 1}}}, 2);
  SimWorker worker(trace, Batching());
  worker.Start();
  worker.Accept(0);
  worker.Accept(1);
  std::map<int, int> cached;
  int64_t now_us = 0;
  while ((now_us = worker.Begin(now_us)) >= 0) {
    for (const SimWorker::Ended& ended : worker.End().ended) {
      cached[ended.request] = ended.cached_tokens;
    }
  }
  EXPECT_THAT(cached, ElementsAre(std::pair(0, 0), std::pair(1, 1024)));
}

TEST(SimWorkerTest, ThePoolBoundsThePromptsThatRun) {
  const Trace trace = Prompts({{0, 2000}, {0, 2001}});
  PrefillWorkerShape shape = Batching();
  shape.step_tokens = 1 << 20;
  SimWorker roomy(trace, shape);
  roomy.Start();
  const auto together = EndsOf(&roomy, 2);
  EXPECT_EQ(together.at(0), together.at(1));
  shape.cache_blocks = 5;  // each prompt needs 4
  SimWorker tight(trace, shape);
  tight.Start();
  const auto apart = EndsOf(&tight, 2);
  EXPECT_LT(apart.at(0), apart.at(1));
}

// Whatever comes, all is computed, reports never contradict themselves, and routers that add up
// deltas know what is cached.
TEST(SimWorkerTest, DeltasAddUpToTheCache) {
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < 20; ++round) {
    const int count = 40;
    std::vector<SimRequest> requests;
    for (int i = 0; i < count; ++i) {
      // Paths of a tree: equal ids have equal predecessors.
      std::vector<int32_t> blocks;
      int32_t node = 0;
      for (int depth = static_cast<int>(random() % 4); depth > 0; --depth) {
        node = node * 2 + 1 + static_cast<int32_t>(random() % 2);
        blocks.push_back(node);
      }
      const int tail = 1 + static_cast<int>(random() % 511);
      requests.push_back({0, static_cast<int>(blocks.size()) * kSimBlockTokens + tail, blocks});
    }
    const Trace trace = Prompts(requests, 32);
    PrefillWorkerShape shape = Batching();
    shape.cache_blocks = 4 + static_cast<int>(random() % 8);
    shape.step_tokens = 256 << random() % 4;
    SimWorker worker(trace, shape);
    worker.Start();
    std::set<uint64_t> known;
    int next = 0, ended = 0;
    int64_t now_us = 0;
    while (ended < count) {
      for (int more = static_cast<int>(random() % 4); more > 0 && next < count; --more) {
        worker.Accept(next++);
      }
      const int64_t end_us = worker.Begin(now_us);
      if (end_us < 0) {
        if (next == count) break;
        continue;
      }
      ASSERT_GT(end_us, now_us);
      now_us = end_us;
      const SimWorker::Step step = worker.End();
      ended += static_cast<int>(step.ended.size());
      const internal::v1::CacheDelta delta = worker.Delta(step.changes);
      for (uint64_t key : delta.removed()) EXPECT_EQ(known.erase(key), 1u);
      for (uint64_t key : delta.added()) EXPECT_TRUE(known.insert(key).second);
      const auto snapshot = worker.Snapshot();
      EXPECT_EQ(known, std::set<uint64_t>(snapshot.keys().begin(), snapshot.keys().end()));
    }
    EXPECT_EQ(ended, count);
    EXPECT_EQ(worker.Load(now_us).remaining_work_us(), 0);
    EXPECT_EQ(worker.Load(now_us).queued_tokens(), 0);
  }
}

}  // namespace
}  // namespace baton::simulator
