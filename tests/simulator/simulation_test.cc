#include "simulator/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "simulator/baton_router.h"
#include "simulator/block_cache.h"
#include "simulator/load_generator.h"
#include "simulator/random.h"

namespace baton::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

Trace SmallLoad(uint64_t seed = 1) {
  LoadShape shape;
  shape.requests = 400;
  shape.seed = seed;
  return AgentLoad(shape);
}

// Prefill workers fetch from each other where that is sooner done than computing.
TEST(FetchSimulationTest, FastFetchesSpareComputingAndSlowOnesChangeNothing) {
  const Trace trace = SmallLoad();
  const auto run = [&](bool fetches, bool priced, double bytes_per_second) {
    Scenario scenario;
    scenario.routers = 2;
    scenario.fetch_bytes_per_second = bytes_per_second;
    return Simulate(trace, scenario,
                    MakeBatonRouter([](uint64_t) { return SimPolicy(/*seed=*/0); },
                                    {.kv_fetch = fetches, .prices_fetches = priced}));
  };
  const CellResult off = run(false, false, 10e9);
  EXPECT_EQ(off.fetched_tokens, 0);
  for (const bool priced : {false, true}) {
    const CellResult fast = run(true, priced, 10e9);
    EXPECT_GT(fast.fetched_tokens, 0);
    EXPECT_LT(fast.computed_tokens, off.computed_tokens);
    EXPECT_EQ(fast.unanswered, 0);
    // 128 KiB a token, which takes 0.125 ms to compute.
    const CellResult slow = run(true, priced, 100e6);
    EXPECT_EQ(slow.fetched_tokens, 0);
    EXPECT_EQ(slow.computed_tokens, off.computed_tokens);
    EXPECT_EQ(slow.mean_ttft_s, off.mean_ttft_s);
  }
}

// Notes all that a router is told and sends everything to worker `request % workers`.
class Recorder final : public SimRouter {
 public:
  struct Told {
    int64_t at_us;
    int worker;
    internal::v1::WatchResponse event;
  };
  struct Log {
    std::vector<Told> told;
    std::map<int, int64_t> answered_us;
    std::vector<int> lost;
  };
  Recorder(const RouterSetup& setup, Log* log) : workers_(setup.workers), log_(log) {}
  void OnStreamStarted(int, int64_t) override {}
  void OnStreamLost(int worker, int64_t) override { gone_.insert(worker); }
  void OnEvent(int worker, const internal::v1::WatchResponse& event, int64_t now_us) override {
    gone_.erase(worker);
    log_->told.push_back({now_us, worker, event});
  }
  SimRoute Choose(int request, int avoid, int64_t) override {
    for (int i = 0; i < workers_; ++i) {
      const int worker = (request + i) % workers_;
      if (worker != avoid && gone_.count(worker) == 0) return {worker, -1};
    }
    return {};
  }
  void OnAnswer(int request, const SimRoute&, int64_t now_us) override {
    log_->answered_us[request] = now_us;
  }
  void OnEnd(int, const SimRoute&, const SimAnswer&, int64_t) override {}
  void OnLoss(int request, const SimRoute&, int64_t) override { log_->lost.push_back(request); }
  int64_t IndexBytes() const override { return 0; }

 private:
  const int workers_;
  Log* const log_;
  std::set<int> gone_;
};

MakeRouter Record(Recorder::Log* log) {
  return [log](const RouterSetup& setup) { return std::make_unique<Recorder>(setup, log); };
}

TEST(BlockCacheTest, LeavesGoFirstAndTheLeastRecentlyUsedOfThem) {
  BlockCache cache(10, 4);
  std::vector<int32_t> added, removed;
  cache.Insert({0, 1}, &added, &removed);
  cache.Insert({0, 2}, &added, &removed);
  cache.Insert({3}, &added, &removed);
  EXPECT_THAT(added, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(removed, IsEmpty());
  cache.Insert({0, 1}, nullptr, nullptr);
  cache.Insert({4, 5}, nullptr, &removed);
  EXPECT_THAT(removed, ElementsAre(2, 3)) << "0 is older than 3 in its first use only";
  EXPECT_THAT(cache.Contents(), UnorderedElementsAre(0, 1, 4, 5));
  EXPECT_EQ(cache.Match({0, 1, 2}), 2);
  EXPECT_EQ(cache.Match({2}), 0);
  cache.Insert({6, 7, 8, 9, 3}, nullptr, nullptr);
  EXPECT_THAT(cache.Contents(), UnorderedElementsAre(6, 7, 8, 9)) << "the first blocks fit";
  cache.Clear();
  EXPECT_EQ(cache.size(), 0);
  EXPECT_EQ(cache.Match({6}), 0);
}

TEST(BlockCacheTest, HoldsAlwaysAllThatIsBeforeABlock) {
  const Trace trace = SmallLoad();
  std::map<int32_t, int32_t> parent;
  BlockCache cache(trace.block_count, 300);
  std::set<int32_t> model;
  for (const SimRequest& request : trace.requests) {
    for (size_t i = 1; i < request.blocks.size(); ++i) {
      parent[request.blocks[i]] = request.blocks[i - 1];
    }
    std::vector<int32_t> added, removed;
    cache.Insert(request.blocks, &added, &removed);
    for (int32_t block : removed) ASSERT_EQ(model.erase(block), 1u);
    for (int32_t block : added) ASSERT_TRUE(model.insert(block).second);
    ASSERT_LE(model.size(), 300u);
    ASSERT_EQ(cache.Match(request.blocks), static_cast<int>(request.blocks.size()));
    for (int32_t block : cache.Contents()) {
      ASSERT_TRUE(model.count(block));
      const auto before = parent.find(block);
      ASSERT_TRUE(before == parent.end() || cache.Contains(before->second));
    }
  }
}

TEST(TraceTest, KeysCanBeTurnedBack) {
  for (int32_t block : {0, 1, 77, 182'789, 2'000'000'000}) {
    EXPECT_EQ(BlockOfKey(BlockKey(block)), block);
  }
}

TEST(TraceTest, TheCeilingIsThatOfASetOfAllPrefixes) {
  for (const Trace& trace : {SmallLoad(3), SharedPrefixLoad(LoadShape{300, 0.2, 3})}) {
    std::set<std::vector<int32_t>> prefixes;
    double hit = 0, all = 0;
    for (const SimRequest& request : trace.requests) {
      int longest = 0;
      for (size_t n = 1; n <= request.blocks.size(); ++n) {
        const std::vector<int32_t> prefix(request.blocks.begin(), request.blocks.begin() + n);
        if (!prefixes.insert(prefix).second) longest = static_cast<int>(n);
      }
      hit += std::min(longest * kSimBlockTokens, request.prompt_tokens - 1);
      all += request.prompt_tokens;
    }
    EXPECT_GT(hit / all, 0.3);
    EXPECT_DOUBLE_EQ(InfiniteCacheHitRate(trace), hit / all);
  }
}

class TraceFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<Trace> Read(const std::string& text) {
    const std::string path = ::testing::TempDir() + "/router_sim_trace.jsonl";
    std::ofstream(path) << text;
    return ReadMooncakeTrace(path, "file");
  }
};

TEST_F(TraceFileTest, ReadsMooncakesFormat) {
  const auto trace =
      Read(R"({"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 9, 8]})"
           "\n"
           R"({"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [7, 9]})"
           "\n"
           R"({"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [50, 7]})"
           "\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->requests.size(), 3u);
  EXPECT_THAT(trace->requests[0].blocks, ElementsAre(0, 1)) << "whole blocks only";
  EXPECT_THAT(trace->requests[1].blocks, ElementsAre(0, 1));
  EXPECT_THAT(trace->requests[2].blocks, ElementsAre(2));
  EXPECT_EQ(trace->block_count, 3);
  EXPECT_EQ(trace->requests[1].at_us, 1'500'000) << "spread over the clock's tick";
  EXPECT_EQ(trace->requests[2].at_us, 3'000'000);
  EXPECT_EQ(trace->requests[0].output_tokens, 5);
}

TEST_F(TraceFileTest, EqualTimesOfAClockFinerThanSecondsAreABurst) {
  const auto trace = Read(R"({"timestamp": 0, "input_length": 100})"
                          "\n"
                          R"({"timestamp": 0, "input_length": 100})"
                          "\n"
                          R"({"timestamp": 3001, "input_length": 100})"
                          "\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->requests.size(), 3u);
  EXPECT_EQ(trace->requests[1].at_us, 0);
  EXPECT_EQ(trace->requests[2].at_us, 3'001'000);
}

TEST_F(TraceFileTest, APromptWithoutIdsSharesNothing) {
  const auto trace = Read(R"({"timestamp": 0, "input_length": 1100, "output_length": 5})"
                          "\n"
                          R"({"timestamp": 9, "input_length": 1100})");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_THAT(trace->requests[0].blocks, IsEmpty());
  EXPECT_EQ(trace->requests[0].output_tokens, 5);
  EXPECT_EQ(trace->requests[1].output_tokens, 0) << "unknown";
  EXPECT_EQ(trace->block_count, 0);
}

TEST_F(TraceFileTest, RefusesOtherFormsWithTheLine) {
  const std::string good = R"({"timestamp": 0, "input_length": 512, "hash_ids": [7]})";
  ASSERT_TRUE(Read(good).ok());
  for (const char* bad :
       {"{", "[]", R"({"timestamp": -1, "input_length": 512, "hash_ids": [7]})",
        R"({"timestamp": 0, "input_length": 0, "hash_ids": [7]})",
        R"({"timestamp": 0, "input_length": 99999999999, "hash_ids": [7]})",
        R"({"timestamp": 0, "input_length": 512, "hash_ids": ["x"]})",
        R"({"timestamp": 0, "input_length": 512, "hash_ids": []})",
        R"({"timestamp": 0, "input_length": 512, "hash_ids": 7})",
        R"({"timestamp": 0, "input_length": 9, "output_length": -1, "hash_ids": []})",
        R"({"timestamp": 0, "input_length": 9, "output_length": "5", "hash_ids": []})"}) {
    const auto trace = Read(good + "\n" + bad);
    EXPECT_FALSE(trace.ok()) << bad;
    EXPECT_THAT(std::string(trace.status().message()), HasSubstr(":2: expected")) << bad;
  }
}

TEST(LoadGeneratorTest, EqualSeedsGiveEqualLoadsWithEqualPredecessors) {
  const Trace a = SmallLoad(5), b = SmallLoad(5), c = SmallLoad(6);
  ASSERT_EQ(a.requests.size(), 400u);
  std::map<int32_t, int32_t> parent;
  bool differs = false;
  for (size_t i = 0; i < a.requests.size(); ++i) {
    EXPECT_EQ(a.requests[i].at_us, b.requests[i].at_us);
    EXPECT_EQ(a.requests[i].blocks, b.requests[i].blocks);
    differs = differs || a.requests[i].blocks != c.requests[i].blocks;
    EXPECT_GE(a.requests[i].at_us, a.requests[i == 0 ? 0 : i - 1].at_us);
    EXPECT_EQ(static_cast<int>(a.requests[i].blocks.size()),
              a.requests[i].prompt_tokens / kSimBlockTokens);
    int32_t before = -1;
    for (int32_t block : a.requests[i].blocks) {
      EXPECT_EQ(parent.try_emplace(block, before).first->second, before);
      before = block;
    }
  }
  EXPECT_TRUE(differs);
}

// Two equal prompts on one idle worker.
Trace TwoEqualPrompts(int64_t gap_us) {
  Trace trace;
  trace.name = "two";
  trace.block_count = 4;
  trace.requests = {{0, 2100, {0, 1, 2, 3}}, {gap_us, 2100, {0, 1, 2, 3}}};
  return trace;
}

TEST(SimulationTest, ServiceAndWaitingTakeWhatTheCostsSay) {
  Scenario scenario;
  scenario.workers = 1;
  Recorder::Log log;
  const CellResult apart = Simulate(TwoEqualPrompts(10'000'000), scenario, Record(&log));
  const int64_t cold_us = static_cast<int64_t>(5000 + 125.0 * 2100 + 0.0039 * 2100 * 1050);
  const int64_t warm_us = static_cast<int64_t>(5000 + 125.0 * 52 + 0.0039 * 52 * (2048 + 26));
  EXPECT_NEAR(apart.mean_ttft_s, static_cast<double>(cold_us + warm_us) / 2e6, 1e-6);
  EXPECT_NEAR(apart.hit_rate, 2048.0 / 4200, 1e-9);
  // At once: the second waits for the first, and finds its blocks.
  const CellResult at_once = Simulate(TwoEqualPrompts(0), scenario, Record(&log));
  EXPECT_NEAR(at_once.mean_ttft_s, static_cast<double>(2 * cold_us + warm_us) / 2e6, 1e-6);
  // On two workers nobody has what the other brings.
  scenario.workers = 2;
  const CellResult spread = Simulate(TwoEqualPrompts(0), scenario, Record(&log));
  EXPECT_NEAR(spread.mean_ttft_s, static_cast<double>(cold_us) / 1e6, 1e-6);
  EXPECT_EQ(spread.hit_rate, 0);
  EXPECT_EQ(spread.busy_variation, 0);
}

TEST(SimulationTest, RoutersHearLateAndInOrder) {
  Scenario scenario;
  scenario.workers = 2;
  scenario.event_delay_us = 20'000;
  Recorder::Log log;
  Simulate(TwoEqualPrompts(5'000'000), scenario, Record(&log));
  std::map<int, uint64_t> sequence;
  std::map<int, int64_t> last_load_us;
  int deltas = 0;
  for (const Recorder::Told& told : log.told) {
    EXPECT_GE(told.at_us, scenario.event_delay_us);
    if (told.event.has_delta()) {
      ++deltas;
      EXPECT_EQ(told.event.delta().sequence(), ++sequence[told.worker]);
      EXPECT_EQ(told.event.delta().added_size(), 4);
      EXPECT_EQ(told.at_us, log.answered_us[told.worker] + scenario.event_delay_us);
    }
    if (told.event.has_load()) {
      const int64_t last = last_load_us[told.worker];
      EXPECT_TRUE(last == 0 || told.at_us - last == scenario.report_every_us);
      last_load_us[told.worker] = told.at_us;
    }
  }
  EXPECT_EQ(deltas, 1) << "the second is answered last, and nothing is told after that";
}

TEST(SimulationTest, WorkLeftIsReportedInTime) {
  Scenario scenario;
  scenario.workers = 1;
  Recorder::Log log;
  Simulate(TwoEqualPrompts(0), scenario, Record(&log));
  int64_t least = 1 << 30, most = 0;
  for (const Recorder::Told& told : log.told) {
    if (!told.event.has_load()) continue;
    const int64_t left_us = told.event.load().remaining_work_us();
    const int64_t end_us = told.at_us - scenario.event_delay_us + left_us;
    if (left_us > 0) {
      EXPECT_NEAR(static_cast<double>(end_us), static_cast<double>(log.answered_us[1]), 2);
    }
    least = std::min(least, left_us);
    most = std::max(most, left_us);
  }
  EXPECT_EQ(least, 0);
  EXPECT_GT(most, 100'000);
}

TEST(SimulationTest, WhatAKilledWorkerHadIsAskedAgainAndItsNewLifeIsCold) {
  const Trace trace = SmallLoad();
  const double end_s = static_cast<double>(trace.requests.back().at_us) * 1e-6;
  Scenario scenario;
  scenario.workers = 3;
  scenario.outages = {{1, end_s / 3, end_s / 2}, {2, 0, end_s / 4}};
  Recorder::Log log;
  const CellResult result = Simulate(trace, scenario, Record(&log));
  EXPECT_EQ(result.unanswered, 0);
  EXPECT_EQ(log.answered_us.size(), trace.requests.size());
  EXPECT_EQ(result.retries, static_cast<int64_t>(log.lost.size()));
  EXPECT_FALSE(log.lost.empty());
  std::map<int, std::set<uint64_t>> epochs;
  for (const Recorder::Told& told : log.told) {
    if (told.event.has_card()) epochs[told.worker].insert(told.event.card().epoch());
    EXPECT_EQ(told.event.snapshot().keys_size(), 0);
    EXPECT_TRUE(told.worker != 2 || told.at_us > static_cast<int64_t>(end_s / 4 * 1e6));
  }
  EXPECT_EQ(epochs[0].size(), 1u);
  EXPECT_EQ(epochs[1].size(), 2u);
  EXPECT_EQ(epochs[2].size(), 1u);
}

}  // namespace
}  // namespace baton::simulator
