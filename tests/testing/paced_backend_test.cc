#include "tests/testing/paced_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "tests/testing/seed.h"
#include "tests/testing/waited_timer.h"

namespace baton::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr PacedCosts kCosts = {{1000, 10, 0.5}, {400, 20, 0.25}};

backend::SequenceRows Rows(int count, int context) {
  backend::SequenceRows rows;
  rows.row_count = count;
  rows.context = context;
  return rows;
}

TEST(PacedStepTimeTest, APromptCostsItsTokensAndPairs) {
  // 8 tokens behind 100: 8 * (100 + 4) pairs.
  EXPECT_EQ(PacedStepTime(kCosts, {Rows(8, 100)}), absl::Microseconds(1000 + 80 + 416));
  EXPECT_EQ(PacedStepTime(kCosts, {Rows(8, 100), Rows(2, 0)}),
            absl::Microseconds(1000 + 100 + 416 + 1));
}

TEST(PacedStepTimeTest, DecodingCostsSequencesAndTheirContext) {
  EXPECT_EQ(PacedStepTime(kCosts, {Rows(1, 100), Rows(1, 40)}), absl::Microseconds(400 + 40 + 35));
}

TEST(PacedStepTimeTest, AStepOfBothHasTheLargerFixedPartOnce) {
  EXPECT_EQ(PacedStepTime(kCosts, {Rows(1, 100), Rows(8, 100)}),
            absl::Microseconds(1000 + 20 + 25 + 80 + 416));
}

TEST(PacedFlagsTest, AreReadAndChecked) {
  PacedCosts costs;
  const auto parse = [&](const std::string& line) {
    CLI::App app;
    AddPacedFlags(app, costs);
    try {
      app.parse(line);
    } catch (const CLI::ParseError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string decode = " --device-decode-cost 400,20,.25";
  EXPECT_EQ(parse("--device-prefill-cost 1000,10,0.5" + decode), "");
  EXPECT_THAT(costs.prefill_us, ElementsAre(1000, 10, 0.5));
  EXPECT_THAT(costs.decode_us, ElementsAre(400, 20, 0.25));
  EXPECT_THAT(parse(decode), HasSubstr("--device-prefill-cost"));
  for (const char* wrong :
       {"1000,10", "1000,10,1,1", "1000,-1,1", "1000,x,1", "nan,1,1", "2e9,1,1"}) {
    EXPECT_THAT(parse(std::string("--device-prefill-cost ") + wrong + decode), ::testing::Not(""))
        << wrong;
  }
}

class Layers final : public model::LayerObserver {
 public:
  void OnLayerWritten(int layer, std::shared_ptr<const backend::Event> event) override {
    EXPECT_EQ(layer, static_cast<int>(events.size()));
    events.push_back(std::move(event));
    done_at_once.push_back(events.back()->Done());
  }
  std::vector<std::shared_ptr<const backend::Event>> events;
  std::vector<bool> done_at_once;
};

// An engine of the demo model, which has four layers, and one sequence in it.
class PacedEngine {
 public:
  explicit PacedEngine(decltype(engine::EngineOptions::make_backend) make_backend) {
    engine::EngineOptions options;
    options.model_dir = "models/demo";
    options.backend.thread_count = 1;
    options.num_blocks = 64;
    options.max_num_batched_tokens = 512;
    options.make_backend = std::move(make_backend);
    auto engine = engine::Engine::Load(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    for (int block = 0; block < 64; ++block) blocks_.push_back(block);
  }

  // The token that is drawn behind these; -1 without `sample`.
  int32_t Step(const std::vector<int32_t>& tokens, bool sample, model::LayerObserver* observer) {
    engine::Batch batch;
    engine::BatchEntry& entry = batch.entries.emplace_back();
    entry.tokens = tokens;
    entry.context = context_;
    entry.blocks = blocks_;
    entry.sample = sample;
    entry.sampling = &greedy_;
    const std::vector<engine::StepResult> results = engine_->Step(batch, observer);
    context_ += static_cast<int>(tokens.size());
    return sample ? results[0].tokens->front().token_id : -1;
  }
  engine::Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<engine::Engine> engine_;
  std::vector<int32_t> blocks_;
  int context_ = 0;
  const model::SamplingParams greedy_ = [] {
    model::SamplingParams params;
    params.temperature = 0;
    return params;
  }();
};

std::vector<int32_t> RandomTokens(std::mt19937& random, int count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(5 + random() % 1000);
  return tokens;
}

TEST(PacedBackendTest, StepsTakeTheModelledTimeLayerByLayerAndComputeTheSame) {
  std::mt19937 random(TestSeed());
  WaitedTimer timer;
  PacedEngine paced(PacedMaker(kCosts, timer));
  PacedEngine plain(nullptr);
  EXPECT_THAT(paced.engine().Description(),
              HasSubstr("paced (prompts 1000,10,0.5 us, decoding 400,20,0.25 us)"));
  int context = 0;
  for (int step = 0; step < 20; ++step) {
    const bool prompt = step == 0 || random() % 2 == 0;
    const bool sample = !prompt || random() % 2 == 0;
    const std::vector<int32_t> tokens =
        RandomTokens(random, prompt ? 2 + static_cast<int>(random() % 30) : 1);
    const absl::Duration begin = timer.Now();
    const absl::Duration takes =
        PacedStepTime(kCosts, {Rows(static_cast<int>(tokens.size()), context)});
    Layers layers;
    EXPECT_EQ(paced.Step(tokens, sample, &layers), plain.Step(tokens, sample, nullptr));
    EXPECT_EQ(timer.Now(), begin + takes);
    EXPECT_THAT(layers.done_at_once, ElementsAre(false, false, false, false));
    context += static_cast<int>(tokens.size());
  }
}

// Waits for each layer as it is written, as the sender of its KV does.
class AwaitedLayers final : public model::LayerObserver {
 public:
  explicit AwaitedLayers(const PaceTimer& timer) : timer_(timer) {}
  void OnLayerWritten(int layer, std::shared_ptr<const backend::Event> event) override {
    event->Wait();
    EXPECT_TRUE(event->Done());
    at.push_back(timer_.Now());
  }
  std::vector<absl::Duration> at;

 private:
  const PaceTimer& timer_;
};

TEST(PacedBackendTest, ALayerIsWrittenWhenItsShareOfTheStepIsOver) {
  WaitedTimer timer;
  PacedEngine paced(PacedMaker(kCosts, timer));
  AwaitedLayers layers(timer);
  const absl::Duration begin = timer.Now();
  paced.Step(std::vector<int32_t>(8, 7), true, &layers);
  const absl::Duration takes = absl::Microseconds(1000 + 80 + 16);
  EXPECT_THAT(layers.at, ElementsAre(begin + takes / 4, begin + takes / 2, begin + takes / 4 * 3,
                                     begin + takes));
  EXPECT_EQ(timer.Now(), begin + takes) << "results are there with the last layer";
}

absl::Duration ThreadTime() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

TEST(PacedBackendTest, InRealTimeAStepWaitsWithoutACore) {
  constexpr PacedCosts kSlow = {{300'000, 0, 0}, {200'000, 0, 0}};
  PacedEngine paced(PacedMaker(kSlow));
  const absl::Duration begin = PaceTimer::Real().Now(), used = ThreadTime();
  const int32_t token = paced.Step({7, 8, 9}, true, nullptr);
  EXPECT_GE(PaceTimer::Real().Now() - begin, absl::Milliseconds(300));
  paced.Step({token}, true, nullptr);
  EXPECT_GE(PaceTimer::Real().Now() - begin, absl::Milliseconds(500));
  EXPECT_LT(ThreadTime() - used, absl::Milliseconds(250)) << "it waits by computing";
}

// Computes for ten seconds beside each layer.
class SlowLayers final : public model::LayerObserver {
 public:
  explicit SlowLayers(const PaceTimer& timer) : timer_(timer) {}
  void OnLayerWritten(int layer, std::shared_ptr<const backend::Event> event) override {
    timer_.WaitUntil(timer_.Now() + absl::Seconds(10));
    EXPECT_TRUE(event->Done());
  }

 private:
  const PaceTimer& timer_;
};

TEST(PacedBackendTest, AStepThatComputesForLongerWaitsNoMore) {
  WaitedTimer timer;
  PacedEngine paced(PacedMaker(kCosts, timer));
  const absl::Duration begin = timer.Now();
  SlowLayers layers(timer);
  paced.Step({7, 8, 9}, true, &layers);
  EXPECT_EQ(timer.Now(), begin + absl::Seconds(40));
  paced.Step({7}, true, nullptr);
  EXPECT_EQ(timer.Now(), begin + absl::Seconds(40) + PacedStepTime(kCosts, {Rows(1, 3)}));
}

}  // namespace
}  // namespace baton::testing
