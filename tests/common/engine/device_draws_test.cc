#include "common/engine/device_draws.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/seed.h"

namespace baton::engine {
namespace {

using ::testing::ElementsAre;

constexpr int kDrawingSeqs = 6;

// One engine whose device draws, and one, otherwise equal, whose logits come to the host.
class DeviceDrawsTest : public ::testing::Test {
 protected:
  DeviceDrawsTest() {
    host_device_.samples = false;
    drawing_ = Load(drawing_device_);
    host_ = Load(host_device_);
  }
  static std::unique_ptr<Engine> Load(baton::testing::FakeDevice& device) {
    EngineOptions options;
    options.model_dir = BATON_CHECKPOINT_DIR "/tiny-qwen2";
    options.max_num_batched_tokens = 256;
    options.max_num_seqs = kDrawingSeqs;
    options.num_blocks = 64;
    options.make_backend = baton::testing::MakerOf(device);
    auto engine = Engine::Load(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  // Adds a prompt with blocks of its own.
  BatchEntry& Add(int tokens) {
    prompts_.push_back(std::make_unique<std::vector<int32_t>>(tokens));
    for (int32_t& token : *prompts_.back()) {
      token = static_cast<int32_t>(random_() % host_->config().token_count);
    }
    blocks_.push_back(std::make_unique<std::vector<kv::BlockId>>((tokens + 15) / 16));
    std::iota(blocks_.back()->begin(), blocks_.back()->end(), next_block_);
    next_block_ += static_cast<int>(blocks_.back()->size());
    BatchEntry entry;
    entry.tokens = *prompts_.back();
    entry.blocks = *blocks_.back();
    entry.history.tokens = *prompts_.back();
    entry.history.prompt_tokens = tokens / 2;
    batch_.entries.push_back(entry);
    return batch_.entries.back();
  }
  // Steps both; the results are the same, errors to the letter. Returns the device's.
  std::vector<StepResult> StepBoth() {
    const std::vector<StepResult> expected = host_->Step(batch_);
    std::vector<StepResult> results = drawing_->Step(batch_);
    EXPECT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(results[i].tokens.status(), expected[i].tokens.status()) << i;
      EXPECT_EQ(results[i].prompt_logprobs.status(), expected[i].prompt_logprobs.status()) << i;
      if (expected[i].tokens.ok() && results[i].tokens.ok()) {
        EXPECT_EQ(*results[i].tokens, *expected[i].tokens) << i;
      }
      if (expected[i].prompt_logprobs.ok() && results[i].prompt_logprobs.ok()) {
        EXPECT_EQ(*results[i].prompt_logprobs, *expected[i].prompt_logprobs) << i;
      }
    }
    EXPECT_TRUE(host_device_.sampled_rows.empty());
    batch_.entries.clear();
    next_block_ = 0;
    return results;
  }

  std::mt19937 random_{testing::TestSeed(/*stream=*/1)};
  baton::testing::FakeDevice drawing_device_, host_device_;
  std::unique_ptr<Engine> drawing_, host_;
  std::vector<std::unique_ptr<std::vector<int32_t>>> prompts_;
  std::vector<std::unique_ptr<std::vector<kv::BlockId>>> blocks_;
  int next_block_ = 0;
  Batch batch_;
};

TEST_F(DeviceDrawsTest, AnyRequestGetsTheTokensOfTheHostInOneCall) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto uniform = [&](double low, double high) {
    return static_cast<float>(std::uniform_real_distribution<>(low, high)(random));
  };
  for (int round = 0; round < 40; ++round) {
    std::vector<model::SamplingParams> params(1 + random() % kDrawingSeqs);
    std::vector<std::vector<int32_t>> suppressed(params.size());
    for (size_t i = 0; i < params.size(); ++i) {
      model::SamplingParams& p = params[i];
      p.temperature = random() % 4 == 0 ? 0 : uniform(0.1, 2);
      if (random() % 2) p.top_p = uniform(0.1, 1);
      if (random() % 2) p.top_k = static_cast<int>(random() % 50);
      if (random() % 3 == 0) p.min_p = uniform(0, 0.2);
      if (random() % 2) p.repetition_penalty = uniform(0.5, 2);
      if (random() % 2) p.frequency_penalty = uniform(-2, 2);
      if (random() % 2) p.presence_penalty = uniform(-2, 2);
      p.seed = random();
      p.choice = random() % 3;
      if (random() % 2) p.logit_bias = {{3, uniform(-100, 100)}, {90, uniform(-5, 5)}};
      BatchEntry& entry = Add(1 + static_cast<int>(random() % 30));
      entry.sample = true;
      entry.sampling = &p;
      if (random() % 2) suppressed[i] = {1, static_cast<int32_t>(random() % 100), 1};
      entry.history.suppressed = suppressed[i];
    }
    const size_t rows = params.size();
    StepBoth();
    EXPECT_THAT(drawing_device_.sampled_rows, ElementsAre(rows));
    drawing_device_.sampled_rows.clear();
  }
}

TEST_F(DeviceDrawsTest, WhoeverWantsMoreThanTokensGetsItFromTheHost) {
  const model::SamplingParams seeded = {.temperature = 1.5f, .seed = 5};
  const model::SamplingParams with_logprobs = {.temperature = 1.5f, .seed = 5, .logprobs = 2};
  for (int i = 0; i < kDrawingSeqs; ++i) {
    BatchEntry& entry = Add(20);
    entry.sample = true;
    entry.sampling = &seeded;
  }
  batch_.entries[1].sampling = &with_logprobs;
  batch_.entries[2].beam_candidates = 4;
  batch_.entries[3].prompt_logprobs = 2;  // of all but the last row, which the device draws from
  batch_.entries[3].targets = absl::MakeConstSpan(*prompts_[3]).subspan(1);
  batch_.entries[4].prompt_logprobs = 2;  // of the last row too
  batch_.entries[4].targets = *prompts_[4];
  batch_.entries[5].sample = false;
  const std::vector<StepResult> results = StepBoth();
  EXPECT_EQ(results[1].tokens->front().top.size(), 2u);
  EXPECT_EQ(results[2].tokens->size(), 4u);
  EXPECT_EQ(results[3].prompt_logprobs->size(), 19u);
  EXPECT_EQ(results[4].prompt_logprobs->size(), 20u);
  size_t rows = 0;
  for (const size_t count : drawing_device_.sampled_rows) rows += count;
  EXPECT_EQ(rows, 2u) << "entries 0 and 3";
}

TEST_F(DeviceDrawsTest, ManyChoicesAreDrawnFromOneRowInCallsOfBoundedSize) {
  const model::SamplingParams seeded = {.temperature = 2, .seed = 9, .choice = 3};
  for (const int draws : {2 * kDrawingSeqs + 1, 1, 3}) {
    BatchEntry& entry = Add(20);
    entry.sample = true;
    entry.sampling = &seeded;
    entry.draws = draws;
  }
  const std::vector<StepResult> results = StepBoth();
  EXPECT_EQ(results[0].tokens->size(), 2u * kDrawingSeqs + 1);
  EXPECT_EQ(results[2].tokens->size(), 3u);
  EXPECT_THAT(drawing_device_.sampled_rows, ElementsAre(kDrawingSeqs, kDrawingSeqs, 5));
}

TEST_F(DeviceDrawsTest, ErrorsAreThoseOfTheHostAndOneRequestsAlone) {
  const int vocabulary = host_->config().token_count;
  std::vector<int32_t> all(static_cast<size_t>(vocabulary));
  std::iota(all.begin(), all.end(), 0);
  const model::SamplingParams seeded = {.seed = 9};
  const model::SamplingParams invalid = {.temperature = -1};
  // Rows: fine, NaN, +inf behind it, -inf everywhere, all suppressed, not to be sampled with.
  const auto spoil = [&](const backend::Tensor& logits) {
    const auto row = [&](int64_t i) {
      return static_cast<float*>(logits.data) + i * logits.row_stride;
    };
    row(1)[7] = std::nanf("");
    row(1)[9] = HUGE_VALF;
    row(2)[vocabulary - 1] = HUGE_VALF;
    std::fill(row(3), row(3) + vocabulary, -HUGE_VALF);
  };
  drawing_device_.spoil_logits = host_device_.spoil_logits = spoil;
  for (int i = 0; i < kDrawingSeqs; ++i) {
    BatchEntry& entry = Add(20);
    entry.sample = true;
    entry.sampling = i == 5 ? &invalid : &seeded;
    entry.draws = 2;
    if (i == 4) entry.history.suppressed = all;
  }
  const std::vector<StepResult> results = StepBoth();
  EXPECT_EQ(results[0].tokens->size(), 2u);
  for (const int i : {1, 2, 3}) {
    EXPECT_EQ(ErrorReason(results[i].tokens.status()), "NON_FINITE_LOGITS") << i;
  }
  EXPECT_NE(std::string(results[1].tokens.status().message()).find("token 7 is nan"),
            std::string::npos);
  EXPECT_EQ(ErrorReason(results[4].tokens.status()), "NO_TOKEN_LEFT");
  EXPECT_EQ(ErrorReason(results[5].tokens.status()), "OUT_OF_RANGE");
}

// Others may read the blocks as soon as Step is back, so it waits, logits or not.
TEST_F(DeviceDrawsTest, AStepIsDoneWhenItReturns) {
  const model::SamplingParams invalid = {.temperature = -1};
  for (const bool sample : {false, true}) {
    BatchEntry& entry = Add(20);
    entry.sample = sample;
    entry.sampling = &invalid;
    const int before = drawing_device_.awaited_events;
    drawing_->Step(batch_);
    EXPECT_EQ(drawing_device_.awaited_events, before + 1) << sample;
    batch_.entries.clear();
  }
  EXPECT_TRUE(drawing_device_.sampled_rows.empty());
}

// Structured output: the device knows no masks.
TEST(DeviceDrawsSufficeTest, AMaskedEntryIsDrawnOnTheHost) {
  const int32_t token = 1;
  const uint32_t mask = 2;
  const model::SamplingParams sampling;
  BatchEntry entry;
  entry.tokens = absl::MakeConstSpan(&token, 1);
  entry.sample = true;
  entry.sampling = &sampling;
  EXPECT_TRUE(DeviceDraws::Suffice(entry, 0));
  entry.history.allowed = absl::MakeConstSpan(&mask, 1);
  EXPECT_FALSE(DeviceDraws::Suffice(entry, 0));
}

}  // namespace
}  // namespace baton::engine
