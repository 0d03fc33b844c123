// Hidden states for embeddings: those of Transformers, and the same bits in every batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "tests/testing/devices.h"

namespace baton::engine {
namespace {

constexpr char kExpected[] = "tests/common/model/expected/tiny-qwen3-embedding.json";
constexpr int kMaxTokens = 160;

std::unique_ptr<Engine> Load(const std::string& name, const baton::testing::Device& device) {
  EngineOptions options;
  options.model_dir = std::string(BATON_CHECKPOINT_DIR) + "/" + name;
  options.make_backend = [&device](const backend::BackendOptions&) { return device.make(); };
  options.max_num_batched_tokens = kMaxTokens;
  options.max_num_seqs = 4;
  options.num_blocks = 64;
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

class EmbeddingTest : public ::testing::TestWithParam<baton::testing::Device> {
 protected:
  static std::vector<std::vector<int32_t>> Prompts(const nlohmann::json& expected) {
    std::vector<std::vector<int32_t>> prompts;
    for (const auto& one : expected["cases"]) {
      prompts.push_back(one["prompt"].get<std::vector<int32_t>>());
    }
    return prompts;
  }
  static nlohmann::json Expected() {
    std::ifstream file(kExpected);
    EXPECT_TRUE(file.good()) << "run make_expected.py";
    return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  }
  // A sequence in blocks from `first_block` on.
  static BatchEntry Entry(const std::vector<int32_t>& tokens, size_t begin, size_t end,
                          std::vector<int32_t>& blocks, int first_block) {
    blocks.resize((tokens.size() + 15) / 16);
    std::iota(blocks.begin(), blocks.end(), first_block);
    BatchEntry entry;
    entry.tokens = absl::MakeConstSpan(tokens).subspan(begin, end - begin);
    entry.context = static_cast<int>(begin);
    entry.blocks = blocks;
    entry.embed = end == tokens.size();
    return entry;
  }
  // Computed in chunks of so many tokens.
  static std::vector<float> Embed(Engine& engine, const std::vector<int32_t>& tokens,
                                  size_t chunk) {
    std::vector<int32_t> blocks;
    std::vector<float> state;
    for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
      const size_t end = std::min(begin + chunk, tokens.size());
      state = engine.Step({.entries = {Entry(tokens, begin, end, blocks, 0)}})[0].hidden_state;
      EXPECT_EQ(state.empty(), end < tokens.size());
    }
    return state;
  }
};

TEST_P(EmbeddingTest, HiddenStatesAreThoseOfTransformersInEveryBatch) {
  const nlohmann::json expected = Expected();
  const std::unique_ptr<Engine> engine = Load("tiny-qwen3-embedding", GetParam());
  const std::unique_ptr<Engine> sharded = Load("tiny-qwen3-embedding-sharded", GetParam());
  ASSERT_TRUE(engine != nullptr && sharded != nullptr);
  ASSERT_TRUE(engine->config().embeddings.has_value());
  EXPECT_TRUE(engine->config().embeddings->normalize);
  const std::vector<std::vector<int32_t>> prompts = Prompts(expected);
  std::vector<std::vector<float>> alone;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<float> state = Embed(*engine, prompts[i], kMaxTokens);
    const auto wanted = expected["cases"][i]["hidden_state"].get<std::vector<float>>();
    ASSERT_EQ(state.size(), wanted.size());
    for (size_t d = 0; d < state.size(); ++d) {
      // The state's elements are of size 1, a third of the largest logits' size.
      EXPECT_NEAR(state[d], wanted[d], GetParam().logit_tolerance) << i << " at " << d;
    }
    EXPECT_EQ(Embed(*engine, prompts[i], 13), state) << "in chunks";
    EXPECT_EQ(Embed(*sharded, prompts[i], kMaxTokens), state) << "of shards";
    alone.push_back(state);
  }
  // Beside another prompt, and beside an answer and labels.
  std::vector<int32_t> first_blocks, second_blocks, third_blocks;
  const model::SamplingParams greedy{.temperature = 0};
  const std::vector<int32_t> labels = {3, 4};
  Batch batch;
  batch.entries.push_back(Entry(prompts[1], 0, prompts[1].size(), first_blocks, 0));
  batch.entries.push_back(Entry(prompts[2], 0, prompts[2].size(), second_blocks, 8));
  batch.entries.push_back(Entry(prompts[0], 0, prompts[0].size(), third_blocks, 16));
  batch.entries[2].sample = true;
  batch.entries[2].sampling = &greedy;
  batch.entries[2].history.tokens = prompts[0];
  batch.entries[2].labels = labels;
  const std::vector<StepResult> results = engine->Step(batch);
  EXPECT_EQ(results[0].hidden_state, alone[1]);
  EXPECT_EQ(results[1].hidden_state, alone[2]);
  EXPECT_EQ(results[2].hidden_state, alone[0]);
  EXPECT_TRUE(results[2].tokens.ok());
  ASSERT_TRUE(results[2].label_logprobs.ok());
  EXPECT_EQ(results[2].label_logprobs->size(), 2);
}

// More logit rows than logits are held at once for: an embedding is of its own row then.
TEST_P(EmbeddingTest, ComesBesideTheLogProbabilitiesOfAWholePrompt) {
  const nlohmann::json expected = Expected();
  const std::unique_ptr<Engine> engine = Load("tiny-qwen3-embedding", GetParam());
  ASSERT_NE(engine, nullptr);
  const std::vector<std::vector<int32_t>> prompts = Prompts(expected);
  const std::vector<float> alone = Embed(*engine, prompts[2], kMaxTokens);
  const std::vector<float> short_alone = Embed(*engine, prompts[1], kMaxTokens);
  std::vector<int32_t> first_blocks, second_blocks;
  Batch batch;
  batch.entries.push_back(Entry(prompts[2], 0, prompts[2].size(), first_blocks, 0));
  batch.entries[0].prompt_logprobs = 0;
  batch.entries[0].targets = absl::MakeConstSpan(prompts[2]).subspan(1);
  batch.entries.push_back(Entry(prompts[1], 0, prompts[1].size(), second_blocks, 8));
  const std::vector<StepResult> results = engine->Step(batch);
  EXPECT_EQ(results[0].hidden_state, alone);
  EXPECT_EQ(results[1].hidden_state, short_alone);
  ASSERT_TRUE(results[0].prompt_logprobs.ok());
  EXPECT_EQ(results[0].prompt_logprobs->size(), prompts[2].size() - 1);
}

INSTANTIATE_TEST_SUITE_P(Devices, EmbeddingTest, ::testing::ValuesIn(baton::testing::Devices()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::engine
