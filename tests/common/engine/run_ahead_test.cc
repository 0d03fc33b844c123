// Steps that are launched before the tokens of the step before are known give the tokens of steps
// that wait for each other.
#include "tests/common/engine/run_ahead.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/engine/engine.h"
#include "tests/testing/devices.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/seed.h"

namespace baton::engine {
namespace {

class RunAheadTest : public ::testing::TestWithParam<testing::Device> {};

TEST_P(RunAheadTest, GivesTheSameTokens) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  RunAhead run(seed);
  const std::unique_ptr<Engine> engine =
      LoadForRunningAhead([](const backend::BackendOptions&) { return GetParam().make(); });
  const int rounds = GetParam().slow ? 2 : 30;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<Request> requests = run.AnyRequests(*engine, GetParam().slow ? 5 : 30);
    if (!engine->RunsAhead({.entries = {EntryOf(requests[0], 0, std::nullopt)}})) {
      GTEST_SKIP() << "the host draws the tokens";
    }
    ASSERT_EQ(RunAhead::Ahead(*engine, requests), RunAhead::OneByOne(*engine, requests))
        << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RunAheadTest, ::testing::ValuesIn(testing::Devices()),
                         [](const auto& info) { return info.param.name; });

TEST(RunAheadTest, OfADeviceThatDrawsTokens) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  RunAhead run(seed);
  testing::FakeDevice device;
  const std::unique_ptr<Engine> engine = LoadForRunningAhead(testing::MakerOf(device));
  for (int round = 0; round < 30; ++round) {
    const std::vector<Request> requests = run.AnyRequests(*engine, 30);
    ASSERT_EQ(RunAhead::Ahead(*engine, requests), RunAhead::OneByOne(*engine, requests))
        << "round " << round;
  }
}

TEST(RunAheadTest, NotWhereTheHostMustSeeTheLogits) {
  testing::FakeDevice device;
  const std::unique_ptr<Engine> engine = LoadForRunningAhead(testing::MakerOf(device));
  Request request = RunAhead(1).AnyRequests(*engine, 3)[0];
  const auto runs_ahead = [&](auto change) {
    BatchEntry entry = EntryOf(request, 0, std::nullopt);
    change(entry);
    return engine->RunsAhead({.entries = {entry}});
  };
  EXPECT_TRUE(runs_ahead([](BatchEntry&) {}));
  EXPECT_TRUE(runs_ahead([](BatchEntry& entry) { entry.sample = false; }));
  EXPECT_FALSE(runs_ahead([](BatchEntry& entry) { entry.draws = 2; }));
  EXPECT_FALSE(runs_ahead([](BatchEntry& entry) { entry.beam_candidates = 2; }));
  EXPECT_FALSE(runs_ahead([](BatchEntry& entry) { entry.prompt_logprobs = 0; }));
  model::SamplingParams odd = request.sampling;
  odd.logprobs = 1;
  EXPECT_FALSE(runs_ahead([&](BatchEntry& entry) { entry.sampling = &odd; }));
  odd = request.sampling;
  odd.top_p = -1;
  EXPECT_FALSE(runs_ahead([&](BatchEntry& entry) { entry.sampling = &odd; }));
}

// A token that is no token, of a draw that failed, harms nobody: the host learns of it when it
// collects, with the next step under way.
TEST(RunAheadTest, AFailedDrawFailsItsRequestAlone) {
  testing::FakeDevice device;
  const std::unique_ptr<Engine> engine = LoadForRunningAhead(testing::MakerOf(device));
  RunAhead run(7);
  std::vector<Request> requests;
  while (requests.size() < 2) requests = run.AnyRequests(*engine, 3);
  requests.resize(2);
  std::vector<std::vector<int32_t>> expected = RunAhead::OneByOne(*engine, requests);
  requests[0].suppressed.resize(engine->config().token_count);
  std::iota(requests[0].suppressed.begin(), requests[0].suppressed.end(), 0);
  Batch first = {
      .entries = {EntryOf(requests[0], 0, std::nullopt), EntryOf(requests[1], 0, std::nullopt)}};
  engine->Launch(first);
  Batch second = {.entries = {EntryOf(requests[0], requests[0].prompt_tokens, 0),
                              EntryOf(requests[1], requests[1].prompt_tokens, 1)}};
  engine->Launch(second);
  std::vector<StepResult> results = engine->Collect();
  EXPECT_EQ(ErrorReason(results[0].tokens.status()), "NO_TOKEN_LEFT");
  ASSERT_TRUE(results[1].tokens.ok());
  EXPECT_EQ(results[1].tokens->front().token_id, expected[1][0]);
  results = engine->Collect();
  EXPECT_FALSE(results[0].tokens.ok());
  ASSERT_TRUE(results[1].tokens.ok());
  if (expected[1].size() > 1) {
    EXPECT_EQ(results[1].tokens->front().token_id, expected[1][1]);
  }
}

}  // namespace
}  // namespace baton::engine
