#include "router/routing/fleet_demand.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace baton::router {
namespace {

constexpr double kTick_s = 0.1;

LoadOfWorker Prefill(double busy, double backlog_s) {
  LoadOfWorker load;
  load.role = v1::WORKER_ROLE_PREFILL;
  load.ready = true;
  load.busy = busy;
  load.backlog_s = backlog_s;
  return load;
}

// A step of n sequences takes 10 + n ms.
LoadOfWorker Decode(int running, int queued) {
  LoadOfWorker load;
  load.role = v1::WORKER_ROLE_DECODE;
  load.ready = true;
  load.running = running;
  load.queued = queued;
  load.context_tokens = int64_t{160} * running;
  load.queued_tokens = int64_t{160} * queued;
  load.used_blocks = 10 * running;
  load.total_blocks = 1000;
  load.max_sequences = 64;
  load.step = {10e-3, 1e-3, 0};
  return load;
}

class FleetDemandTest : public ::testing::Test {
 protected:
  // For so long; `loads` of each tick.
  template <class Loads>
  void Pass(double seconds, Loads loads) {
    for (double end_s = now_s_ + seconds; now_s_ < end_s;) {
      now_s_ += kTick_s;
      demand_.Update(loads(), refused_, now_s_);
    }
  }
  void Stay(double seconds, const std::vector<LoadOfWorker>& loads) {
    Pass(seconds, [&] { return loads; });
  }
  const Demand& demand() const { return demand_.demand(); }

  FleetDemand demand_{DemandTargets()};
  double now_s_ = 1000;
  int64_t refused_ = 0;
};

TEST_F(FleetDemandTest, NothingIsWantedBeforeAWorkerHasBeenReady) {
  LoadOfWorker drains = Prefill(1, 10);
  drains.ready = false;
  Stay(5, {drains});
  EXPECT_EQ(demand().prefill_workers, 0);
  EXPECT_EQ(demand().decode_workers, 0);
  Stay(1, {Prefill(0, 0), Decode(0, 0)});
  EXPECT_EQ(demand().prefill_workers, 1) << "an idle cluster keeps a worker of each role";
  EXPECT_EQ(demand().decode_workers, 1);
  Stay(5, {});
  EXPECT_EQ(demand().prefill_workers, 1) << "the last number, while none is ready";
}

TEST_F(FleetDemandTest, WorkersForASteadyStreamOfPromptsAreBusyAsTheTargetSays) {
  // Four workers, each busy half of its time, have work for 2 / 0.7.
  Stay(60, std::vector<LoadOfWorker>(4, Prefill(0.5, 0.4)));
  EXPECT_EQ(demand().prefill_workers, 3);
  EXPECT_NEAR(demand().prefill_backlog_s, 1.6, 1e-9);
}

TEST_F(FleetDemandTest, AFullFleetWantsTheWholeNumberAndNotSomeMore) {
  // Work for 14 workers arrives at two: 12 s of it are left over each second.
  double backlog_s = 0;
  Pass(10, [&] {
    backlog_s += 12 * kTick_s;
    return std::vector<LoadOfWorker>(2, Prefill(1, backlog_s / 2));
  });
  // 14 / 0.7 for what arrives, and some for the 120 s that wait.
  EXPECT_GE(demand().prefill_workers, 20);
  EXPECT_LE(demand().prefill_workers, 24);
}

TEST_F(FleetDemandTest, AQueueThatIsWorkedOffWantsNoMoreThanItsRestTakes) {
  double backlog_s = 300;
  Pass(6, [&] {
    backlog_s -= 10 * kTick_s;
    return std::vector<LoadOfWorker>(10, Prefill(1, backlog_s / 10));
  });
  ASSERT_NEAR(demand().prefill_backlog_s, 240, 1.1);
  // Nothing arrives. Of what is left, 25 s are within the target.
  EXPECT_EQ(demand().prefill_workers, std::ceil((240.0 - 25) / FleetDemand::kDrain_s));
}

TEST_F(FleetDemandTest, ThatAWorkerDrainsIsNoWorkLess) {
  std::vector<LoadOfWorker> loads(3, Prefill(0.6, 1));
  Stay(60, loads);
  EXPECT_EQ(demand().prefill_workers, 3);
  loads[0].ready = false;
  Stay(5, loads);
  EXPECT_EQ(demand().prefill_workers, 3);
}

TEST_F(FleetDemandTest, AnswersThatWaitCountAtOnce) {
  // 64 places, three quarters of them taken: 48 a worker.
  Stay(30, {Decode(48, 0), Decode(48, 0)});
  EXPECT_EQ(demand().decode_workers, 2);
  Stay(30, {Decode(64, 200), Decode(64, 200)});
  EXPECT_EQ(demand().decode_workers, 11) << "528 / 48";
  EXPECT_DOUBLE_EQ(demand().sequence_headroom, 1 - 528.0 / 128);
}

TEST_F(FleetDemandTest, KvBindsWhereSequencesAreLong) {
  LoadOfWorker full = Decode(8, 4);
  full.context_tokens = 8 * 2000;
  full.queued_tokens = 4 * 2000;
  full.used_blocks = 1000;
  full.token_pages = 1;
  Stay(30, {full});
  // 1,500 pages of 750 a worker.
  EXPECT_EQ(demand().decode_workers, 2);
  EXPECT_DOUBLE_EQ(demand().kv_headroom, -0.5);
}

TEST_F(FleetDemandTest, PagesOfOtherPromptsDoNotMakeWaitingTokensLarge) {
  LoadOfWorker lends = Decode(1, 1);
  lends.context_tokens = 20;
  lends.queued_tokens = 2000;
  lends.used_blocks = 400;  // nearly all of prompts that others answer
  Stay(30, {lends});
  // A token takes a sixteenth of a page at the most.
  EXPECT_DOUBLE_EQ(demand().kv_headroom, 1 - (400 + 125) / 1000.0);
}

TEST_F(FleetDemandTest, StepsStayWithinTheTarget) {
  LoadOfWorker slow = Decode(30, 0);
  slow.step = {10e-3, 3e-3, 0};  // 30 sequences take 100 ms
  Stay(30, {slow});
  EXPECT_DOUBLE_EQ(demand().sequence_headroom, 0);
  EXPECT_EQ(demand().decode_workers, 2);
  EXPECT_NEAR(demand().predicted_inter_token_s, 0.1, 1e-9);
  slow.step = {0.2, 3e-3, 0};  // one alone is too slow: more workers would not help
  Stay(30, {slow});
  EXPECT_EQ(demand().decode_workers, 1);
}

TEST_F(FleetDemandTest, WorkersThatAnswerAloneComputeTheirPrompts) {
  LoadOfWorker both = Decode(36, 0);
  both.busy = 0.35;
  Stay(60, {both, both});
  // 72 / 48 for the answers, 0.7 / 0.7 for the prompts.
  EXPECT_EQ(demand().decode_workers, 3);
  EXPECT_EQ(demand().prefill_workers, 0);
}

TEST_F(FleetDemandTest, RefusedRequestsCountAsThoseThatAreSentAndNoMoreThanThose) {
  for (int i = 0; i < 200; ++i) {
    demand_.OnSent(1, /*computing_s=*/0.5, now_s_);
    demand_.OnAnswered(100);
  }
  const std::vector<LoadOfWorker> loads = {Prefill(0.7, 0), Prefill(0.7, 0), Decode(40, 0)};
  Stay(60, loads);
  EXPECT_EQ(demand().prefill_workers, 2);
  Pass(60, [&] {
    ++refused_;
    ++refused_;  // 20 a second, 10 workers' worth
    return loads;
  });
  EXPECT_EQ(demand().prefill_workers, 4);
  // 20 a second · 100 tokens · 50 ms: 100 more, of which 40 count.
  EXPECT_EQ(demand().decode_workers, 2);
  Stay(120, loads);
  EXPECT_EQ(demand().prefill_workers, 2);
}

TEST_F(FleetDemandTest, PredictionsFade) {
  demand_.OnSent(1, 0.5, now_s_);
  demand_.OnSent(2, 0.5, now_s_);
  Stay(1, {Prefill(0, 0)});
  EXPECT_NEAR(demand().predicted_ttft_s, 1.5, 1e-9);
  now_s_ += 30;
  demand_.OnSent(5, 0.5, now_s_);
  Stay(1, {Prefill(0, 0)});
  EXPECT_GT(demand().predicted_ttft_s, 4);
  Stay(120, {Prefill(0, 0)});
  EXPECT_EQ(demand().predicted_ttft_s, 0);
}

}  // namespace
}  // namespace baton::router
