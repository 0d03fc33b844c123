#include "simulator/decode_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "simulator/log_histogram.h"

namespace baton::simulator {
namespace {

constexpr int kByTurns = -1;

// Sends everything to one decode worker, or requests to all by turns; to the next worker if that is
// gone; none to a prefill worker. Notes what it hears.
class OneOf final : public SimRouter {
 public:
  struct Log {
    std::map<int, int64_t> first_token_us, end_us;
    std::map<int, SimAnswer> answers;
    int losses = 0;
  };
  OneOf(int worker, const RouterSetup& setup, Log* log)
      : worker_(worker), before_(setup.workers), workers_(setup.decode_workers), log_(*log) {}
  void OnStreamStarted(int worker, int64_t) override { gone_.erase(worker); }
  void OnStreamLost(int worker, int64_t) override { gone_.insert(worker); }
  void OnEvent(int, const internal::v1::WatchResponse&, int64_t) override {}
  SimRoute Choose(int request, int avoid, int64_t) override {
    const int first = worker_ == kByTurns ? request : worker_;
    for (int i = 0; i < workers_; ++i) {
      const int worker = before_ + (first + i) % workers_;
      if (worker != avoid && gone_.count(worker) == 0) return {-1, worker};
    }
    return {};
  }
  void OnAnswer(int request, const SimRoute&, int64_t now_us) override {
    log_.first_token_us[request] = now_us;
  }
  void OnEnd(int request, const SimRoute&, const SimAnswer& answer, int64_t now_us) override {
    EXPECT_TRUE(log_.end_us.try_emplace(request, now_us).second) << "ended twice";
    log_.answers[request] = answer;
  }
  void OnLoss(int, const SimRoute&, int64_t) override { ++log_.losses; }
  int64_t IndexBytes() const override { return 0; }

 private:
  const int worker_;
  const int before_;  // prefill workers, which are numbered first
  const int workers_;
  Log& log_;
  std::set<int> gone_;
};

MakeRouter Always(int worker, OneOf::Log* log) {
  return [worker, log](const RouterSetup& setup) {
    return std::make_unique<OneOf>(worker, setup, log);
  };
}

Scenario SmallTier(int workers) {
  Scenario scenario;
  scenario.workers = 0;
  scenario.decode.workers = workers;
  scenario.decode.shape.cost = {10'000, 100, 2};
  scenario.decode.shape.noise = 0;
  return scenario;
}

Trace Requests(std::vector<SimRequest> requests) {
  Trace trace;
  trace.name = "few";
  trace.requests = std::move(requests);
  return trace;
}

TEST(LogHistogramTest, QuantilesAreWithinABucket) {
  LogHistogram histogram;
  EXPECT_EQ(histogram.Quantile_s(0.5), 0);
  for (int64_t us = 1; us <= 1000; ++us) histogram.Add(us * 1000);
  histogram.Add(5'000'000, 0);
  EXPECT_EQ(histogram.count(), 1000);
  EXPECT_NEAR(histogram.mean_s(), 0.5005, 1e-9);
  EXPECT_NEAR(histogram.Quantile_s(0.5), 0.5, 0.5 * 0.002);
  EXPECT_NEAR(histogram.Quantile_s(0.99), 0.99, 0.99 * 0.002);
  EXPECT_NEAR(histogram.Quantile_s(0), 0.001, 0.001 * 0.002);
  histogram.Add(7'000'000, 100'000);
  EXPECT_NEAR(histogram.Quantile_s(0.5), 7, 7 * 0.002);
}

TEST(LogHistogramTest, AtMostOneInAHundredIsBeyondTheLastPercentile) {
  LogHistogram histogram;
  for (int n = 1; n <= 500; ++n) {
    histogram.Add(int64_t{n} * 1'000'000);
    const double p99_s = histogram.Quantile_s(0.99), p50_s = histogram.Quantile_s(0.5);
    // Values are a second apart, and a bucket is up to half a second wide here.
    const auto within = static_cast<int>(std::lround(p99_s));
    EXPECT_LE((n - within) * 100, n) << n;
    EXPECT_GT((n - within + 1) * 100, n) << n << ": the smallest such value";
    EXPECT_EQ(std::lround(p50_s), (n + 1) / 2) << n;
  }
}

TEST(DecodeSimulationTest, TimesAreThoseOfPromptWayAndSteps) {
  const Trace trace = Requests({{0, 1000, {}, 5, {}}});
  const Scenario scenario = SmallTier(1);
  OneOf::Log log;
  const CellResult result = Simulate(trace, scenario, Always(0, &log));
  EXPECT_EQ(result.unanswered, 0);
  const double prefill_us = scenario.decode.ample_prefill.Us(0, 1000);
  EXPECT_NEAR(result.mean_ttft_s, prefill_us * 1e-6, 2e-6);
  const double way_us = 2000 + 1000 * kKvBytesPerToken / 2.5e3;
  EXPECT_NEAR(result.decode.mean_first_gap_s, (way_us + 10'100 + 2000) * 1e-6, 2e-6);
  EXPECT_NEAR(result.decode.mean_itl_s, (10'100 + 2 * 1002) * 1e-6, 1e-9);
  EXPECT_EQ(result.decode.mean_wait_s, 0);
  EXPECT_NEAR(result.decode.p99_request_itl_s, result.decode.mean_itl_s, 1e-4);
  const double all_us = static_cast<double>(log.end_us[0] - log.first_token_us[0]) + prefill_us;
  EXPECT_NEAR(result.decode.tokens_per_s, 5e6 / all_us, 0.01);
  EXPECT_EQ(log.answers[0].generated_tokens, 5);
  EXPECT_EQ(log.answers[0].moved_tokens, 1000);
  EXPECT_NEAR(static_cast<double>(log.answers[0].moved_us), way_us, 1);
}

TEST(DecodeSimulationTest, WhoseTurnHasNotComeWaits) {
  const Trace trace = Requests({{0, 1000, {}, 100, {}}, {0, 1000, {}, 100, {}}});
  Scenario scenario = SmallTier(1);
  scenario.decode.shape.max_num_seqs = 1;
  OneOf::Log log;
  const CellResult result = Simulate(trace, scenario, Always(0, &log));
  EXPECT_GT(log.first_token_us[1], log.end_us[0]);
  const double prefill_us = scenario.decode.ample_prefill.Us(0, 1000);
  EXPECT_NEAR(result.decode.mean_wait_s * 2,
              static_cast<double>(log.end_us[0] - log.first_token_us[0]) * 1e-6 + prefill_us * 1e-6,
              1e-5);
}

TEST(DecodeSimulationTest, ImbalanceIsOfSequencesByWorker) {
  std::vector<SimRequest> requests;
  for (int i = 0; i < 200; ++i) requests.push_back({i * 20'000, 500, {}, 200, {}});
  const Trace trace = Requests(requests);
  Scenario scenario = SmallTier(4);
  scenario.decode.snapshot_s = 3;
  OneOf::Log log;
  const CellResult one = Simulate(trace, scenario, Always(1, &log));
  EXPECT_DOUBLE_EQ(one.decode.imbalance, 4);
  EXPECT_GT(one.decode.idle_beside_loaded_share, 0.9);
  ASSERT_EQ(one.decode.snapshot.size(), 4u);
  EXPECT_GT(one.decode.snapshot[1], 50);
  EXPECT_EQ(one.decode.snapshot[0] + one.decode.snapshot[2] + one.decode.snapshot[3], 0);
  OneOf::Log by_turns;
  const CellResult turns = Simulate(trace, scenario, Always(kByTurns, &by_turns));
  EXPECT_LT(turns.decode.imbalance, 1.1);
  EXPECT_EQ(turns.decode.idle_beside_loaded_share, 0);
  EXPECT_LT(turns.decode.mean_itl_s, one.decode.mean_itl_s);
}

TEST(DecodeSimulationTest, WhatAKilledWorkerHadGoesOnElsewhere) {
  std::vector<SimRequest> requests;
  for (int i = 0; i < 20; ++i) requests.push_back({i * 1000, 500, {}, 50, {}});
  const Trace trace = Requests(requests);
  Scenario scenario = SmallTier(2);
  OneOf::Log calm, log;
  const CellResult whole = Simulate(trace, scenario, Always(0, &calm));
  scenario.decode.outages = {{0, 0.5, 2}};
  const CellResult result = Simulate(trace, scenario, Always(0, &log));
  EXPECT_EQ(result.unanswered, 0);
  EXPECT_EQ(log.end_us.size(), requests.size());
  EXPECT_EQ(log.losses, 20);
  EXPECT_EQ(result.retries, log.losses);
  EXPECT_EQ(calm.losses, 0);
  // One gap each, while it was found out and their context was computed again.
  EXPECT_GT(result.decode.p99_itl_s, 0.08);
  EXPECT_LT(whole.decode.p99_itl_s, 0.04);
  for (const auto& [request, answer] : log.answers) EXPECT_EQ(answer.generated_tokens, 50);
}

TEST(DecodeSimulationTest, PreemptionShowsAsAGap) {
  std::vector<SimRequest> requests;
  for (int i = 0; i < 8; ++i) requests.push_back({i * 1000, 160, {}, 300, {}});
  const Trace trace = Requests(requests);
  Scenario scenario = SmallTier(1);
  OneOf::Log log;
  const CellResult roomy = Simulate(trace, scenario, Always(0, &log));
  EXPECT_EQ(roomy.decode.preemptions, 0);
  scenario.decode.shape.kv_blocks = 120;
  OneOf::Log tight_log;
  const CellResult tight = Simulate(trace, scenario, Always(0, &tight_log));
  EXPECT_GT(tight.decode.preemptions, 0);
  EXPECT_EQ(tight.unanswered, 0);
  EXPECT_GT(tight.decode.p99_request_itl_s, 1.2 * roomy.decode.p99_request_itl_s);
}

TEST(DecodeSimulationTest, APreemptedPromptOfADecodeWorkerMovesOverNoLink) {
  std::vector<SimRequest> requests;
  for (int i = 0; i < 8; ++i) requests.push_back({i * 1000, 160, {}, 300, {}});
  const Trace trace = Requests(requests);
  for (const int prefill : {0, 2}) {
    Scenario scenario = SmallTier(1);
    scenario.workers = prefill;
    scenario.decode.shape.computes_prompts = true;
    scenario.decode.shape.kv_blocks = 120;
    // A single move would take hours.
    scenario.decode.bytes_per_second = 1000;
    scenario.decode.links.assign(prefill, {1000});
    OneOf::Log log;
    const CellResult result = Simulate(trace, scenario, Always(0, &log));
    EXPECT_GT(result.decode.preemptions, 0);
    EXPECT_EQ(result.unanswered, 0);
    EXPECT_LT(result.mean_answer_s, 60);
    EXPECT_EQ(log.answers.size(), requests.size());
    for (const auto& [request, answer] : log.answers) {
      EXPECT_EQ(answer.moved_tokens, 0) << request;
      EXPECT_EQ(answer.moved_us, 0) << request;
    }
  }
}

TEST(DecodeSimulationTest, SlownessIsForAWhile) {
  const Trace trace = Requests({{0, 500, {}, 1000, {}}});
  Scenario scenario = SmallTier(1);
  OneOf::Log calm, slow;
  Simulate(trace, scenario, Always(0, &calm));
  scenario.decode.slow = {{0, 1, 4, 3}};
  Simulate(trace, scenario, Always(0, &slow));
  // In 3 s two thirds of the steps are lost.
  EXPECT_NEAR(static_cast<double>(slow.end_us[0] - calm.end_us[0]), 2e6, 5e4);
}

}  // namespace
}  // namespace baton::simulator
