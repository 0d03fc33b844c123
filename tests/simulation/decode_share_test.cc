// Whether decode workers share the load, with the real loops, reports, estimates and policy under a
// simulated clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/router.h"
#include "tests/simulation/worker.h"
#include "tests/testing/seed.h"

namespace baton::simulation {
namespace {

class DecodeShareTest : public ::testing::Test {
 protected:
  DecodeShareTest() { SetLogLevel(LogLevel::kError); }
  ~DecodeShareTest() override { SetLogLevel(LogLevel::kInfo); }

  static HashEngineOptions Engine() {
    HashEngineOptions engine;
    engine.num_blocks = 2000;
    engine.max_num_seqs = 32;
    engine.max_num_batched_tokens = 128;
    engine.step_time = 2 * kMillisecond;
    engine.token_time = 100;
    return engine;
  }
  void AddPrefill() {
    prefill::LoopOptions loop;
    loop.own_thread = false;
    loop.scheduler.block_tokens = kBlockTokens;
    loop.scheduler.max_num_batched_tokens = Engine().max_num_batched_tokens;
    loop.scheduler.max_num_seqs = Engine().max_num_seqs;
    prefill_.push_back(std::make_unique<PrefillWorker>(world_, absl::StrCat("p", prefill_.size()),
                                                       Engine(), loop, faults_));
  }
  Worker* WorkerAt(const std::string& address) {
    for (const auto& worker : prefill_) {
      if (worker->address() == address) return worker.get();
    }
    return nullptr;
  }
  void AddDecode(const HashEngineOptions& engine) {
    decode_worker::LoopOptions loop;
    loop.own_thread = false;
    loop.worker_id = absl::StrCat("d", decode_.size());
    loop.scheduler.block_tokens = kBlockTokens;
    loop.scheduler.max_num_seqs = engine.max_num_seqs;
    loop.scheduler.max_num_batched_tokens = engine.max_num_batched_tokens;
    decode_.push_back(std::make_unique<DecodeWorker>(
        world_, loop.worker_id, engine, loop, faults_,
        [this](const std::string& address) { return WorkerAt(address); }));
  }
  void Start() {
    std::vector<PrefillWorker*> prefill;
    std::vector<DecodeWorker*> decode;
    for (const auto& worker : prefill_) prefill.push_back(worker.get());
    for (const auto& worker : decode_) decode.push_back(worker.get());
    for (PrefillWorker* worker : prefill) worker->Start();
    for (DecodeWorker* worker : decode) worker->Start();
    routers_.push_back(std::make_unique<Router>(world_, "r0", prefill, decode, options_));
    routers_[0]->Start();
    clients_ = std::make_unique<Clients>(world_, routers_, may_fail_);
    RunUntil(kSecond);  // the workers have introduced themselves
  }
  void RunUntil(Micros time) {
    bool reached = false;
    world_.At(time, [&reached] { reached = true; });
    while (!reached && !world_.failed() && world_.RunNext()) {
    }
    ASSERT_FALSE(world_.failed()) << world_.failure();
  }
  // A prompt that no other begins like.
  void Ask(Micros start, int answer_tokens) {
    RequestSpec spec;
    spec.start = start;
    spec.deadline = start + kAmpleTime;
    spec.prompt = {++asked_ % kVocab, asked_ / kVocab};
    for (int i = 0; i < 30; ++i) spec.prompt.push_back(world_.random.Below(kVocab));
    spec.max_tokens = answer_tokens;
    clients_->Submit(std::move(spec));
  }
  void RunUntilAnswered() {
    while (!clients_->AllEnded() && !world_.failed() && world_.RunNext()) {
    }
    ASSERT_FALSE(world_.failed()) << world_.failure();
    ASSERT_EQ(clients_->counts().finished, asked_);
  }
  // Calls to each decode worker since `before`.
  std::vector<int> CallsSince(const std::vector<int>& before) const {
    std::vector<int> calls = calls_opened();
    for (size_t i = 0; i < calls.size(); ++i) calls[i] -= before[i];
    return calls;
  }

  const std::vector<int>& calls_opened() const { return routers_[0]->counts().calls; }

  FrameFaults faults_;
  World world_{testing::TestSeed()};
  const router::Options options_;
  const MayFail may_fail_;
  std::vector<std::unique_ptr<PrefillWorker>> prefill_;
  std::vector<std::unique_ptr<DecodeWorker>> decode_;
  std::vector<std::unique_ptr<Router>> routers_;
  std::unique_ptr<Clients> clients_;
  int asked_ = 0;
};

// What was found in a real cluster: the worker whose only samples were its slow first steps got
// none of 24 requests, five times out of five.
TEST_F(DecodeShareTest, AWorkerWithSlowFirstStepsGetsItsShareOfABurst) {
  AddPrefill();
  AddDecode(Engine());
  HashEngineOptions cold = Engine();
  cold.slow_first_steps = 6;
  cold.slow_step_time = 770 * kMillisecond;
  AddDecode(cold);
  Start();
  // Until each has answered something: one request at a time.
  for (int i = 0; i < 20; ++i) {
    Ask(world_.now() + 1, 12);
    RunUntilAnswered();
  }
  ASSERT_GT(*std::min_element(calls_opened().begin(), calls_opened().end()), 0);
  // What its first steps said of its pace fades while it is idle.
  RunUntil(world_.now() + 10 * kSecond);
  for (int burst = 0; burst < 5; ++burst) {
    // Reports, which are rarer here than a real worker's, no longer tell of the last burst.
    RunUntil(world_.now() + kSecond);
    const std::vector<int> before = calls_opened();
    for (int i = 0; i < 24; ++i) Ask(world_.now() + 1, 60);
    RunUntilAnswered();
    const std::vector<int> calls = CallsSince(before);
    EXPECT_GE(calls[0], 9) << "burst " << burst;
    EXPECT_GE(calls[1], 9) << "burst " << burst;
  }
}

// A worker three times as slow gets less, and its full share again within ten seconds after.
TEST_F(DecodeShareTest, ASlowWorkerGetsLessAndRecovers) {
  for (int i = 0; i < 2; ++i) AddPrefill();
  for (int i = 0; i < 3; ++i) AddDecode(Engine());
  Start();
  const Micros slow_from = world_.now() + 2 * kSecond, slow_until = slow_from + 10 * kSecond;
  const Micros end = slow_until + 16 * kSecond;
  // 100 ms stopped after each 50 ms.
  for (Micros t = slow_from; t < slow_until; t += 150 * kMillisecond) {
    world_.At(t, [this, t] { world_.Freeze(decode_[2]->node(), t + 100 * kMillisecond); });
  }
  for (Micros t = world_.now(); t < end; t += 40 * kMillisecond) Ask(t, 100);
  RunUntil(slow_from + 4 * kSecond);
  std::vector<int> before = calls_opened();
  RunUntil(slow_until);
  std::vector<int> calls = CallsSince(before);
  int all = std::accumulate(calls.begin(), calls.end(), 0);
  EXPECT_LT(calls[2], all / 4) << "of " << all << " while it was slow";
  RunUntil(slow_until + 10 * kSecond);
  before = calls_opened();
  RunUntil(end);
  calls = CallsSince(before);
  all = std::accumulate(calls.begin(), calls.end(), 0);
  EXPECT_NEAR(calls[2], all / 3.0, all / 15.0) << "of " << all << " after it";
  RunUntilAnswered();
}

}  // namespace
}  // namespace baton::simulation
