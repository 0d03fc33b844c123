// Heads for multi-token prediction: the logits of Transformers' modules, and the same bits in every
// batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/engine/engine.h"
#include "tests/testing/devices.h"

namespace baton::engine {
namespace {

constexpr int kMostTokens = 160;

EngineOptions HeadOptions(const std::string& name, const baton::testing::Device& device) {
  EngineOptions options;
  options.model_dir = std::string(BATON_CHECKPOINT_DIR) + "/" + name;
  options.make_backend = [&device](const backend::BackendOptions&) { return device.make(); };
  options.max_num_batched_tokens = kMostTokens;
  options.max_num_seqs = 20;
  options.num_blocks = 64;
  options.load_mtp_head = true;
  options.mtp_kv_bytes = 1 << 20;
  return options;
}

class MtpHeadTest : public ::testing::TestWithParam<baton::testing::Device> {
 protected:
  void Load(const std::string& name) {
    auto engine = Engine::Load(HeadOptions(name, GetParam()));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    ASSERT_NE(engine_->mtp_head(), nullptr);
    dim_ = static_cast<size_t>(engine_->config().hidden_dim);
    const std::string path = "tests/common/model/expected/" + name + ".json";
    std::ifstream file(path);
    ASSERT_TRUE(file.good()) << "run make_expected.py";
    expected_ = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false)["cases"];
  }
  // Blocks of 16 tokens and, for the model, its states: one place, which each step reads and
  // leaves.
  struct Memory {
    explicit Memory(const Engine& engine, int tokens, int first_block = 0) {
      const backend::KvPool& pool = engine.kv_pool();
      const int blocks = (tokens + 15) / 16;
      ids.resize(static_cast<size_t>(blocks * pool.block_tables() + pool.state_tables));
      std::iota(ids.begin(), ids.end(), first_block);
      of_blocks = static_cast<size_t>(blocks * pool.block_tables());
      recurrent = pool.state_tables > 0;
    }
    void SetIn(BatchEntry& entry) {
      const auto pages = absl::MakeConstSpan(ids);
      entry.blocks = pages.first(of_blocks);
      if (!recurrent) return;
      if (entry.context > 0) entry.state = pages.subspan(of_blocks);
      store = {entry.context + static_cast<int>(entry.tokens.size()), pages.subspan(of_blocks)};
      entry.state_stores = absl::MakeConstSpan(&store, 1);
    }
    std::vector<int32_t> ids;
    size_t of_blocks = 0;
    bool recurrent = false;
    backend::StateStore store;
  };
  // The model's hidden states of all tokens, each from its own step.
  std::vector<float> StatesOf(const std::vector<int32_t>& tokens) {
    std::vector<float> states;
    Memory memory(*engine_, static_cast<int>(tokens.size()));
    for (size_t i = 0; i < tokens.size(); ++i) {
      BatchEntry entry;
      entry.tokens = absl::MakeConstSpan(tokens).subspan(i, 1);
      entry.context = static_cast<int>(i);
      entry.hidden_states = true;
      memory.SetIn(entry);
      const StepResult result = engine_->Step({.entries = {entry}})[0];
      EXPECT_EQ(result.hidden_states.size(), dim_);
      states.insert(states.end(), result.hidden_states.begin(), result.hidden_states.end());
    }
    return states;
  }
  // The head's rows of tokens[begin + 1 .. end], whose hidden states are `states`.
  BatchEntry HeadEntry(const std::vector<int32_t>& tokens, const std::vector<float>& states,
                       size_t begin, size_t end, Memory& memory) const {
    BatchEntry entry;
    entry.tokens = absl::MakeConstSpan(tokens).subspan(begin + 1, end - begin);
    entry.hidden_before = absl::MakeConstSpan(states).subspan(begin * dim_, (end - begin) * dim_);
    entry.context = static_cast<int>(begin);
    entry.labels = labels_;
    entry.hidden_states = true;
    memory.SetIn(entry);
    return entry;
  }
  // Compares differences, as a log probability differs from its logit by the same for all tokens.
  void ExpectTop(const nlohmann::json& top, const std::vector<float>& logprobs) const {
    ASSERT_EQ(logprobs.size(), top.size());
    for (size_t i = 1; i < top.size(); ++i) {
      EXPECT_NEAR(logprobs[i] - logprobs[0], top[i][1].get<float>() - top[0][1].get<float>(),
                  2 * GetParam().logit_tolerance)
          << i;
    }
  }

  // The same bits, whatever else a step has.
  void ExpectRowsApart();

  std::unique_ptr<Engine> engine_;
  size_t dim_ = 0;
  nlohmann::json expected_;
  std::vector<int32_t> labels_;
};

TEST_P(MtpHeadTest, LogitsAreThoseOfTransformersModules) {
  for (const char* name : {"tiny-qwen3.5-mtp", "tiny-qwen3.5-moe-mtp", "tiny-glm4-moe-lite-mtp"}) {
    SCOPED_TRACE(name);
    ASSERT_NO_FATAL_FAILURE(Load(name));
    Engine& head = *engine_->mtp_head();
    for (const auto& one : expected_) {
      std::vector<int32_t> tokens = one["prompt"].get<std::vector<int32_t>>();
      if (GetParam().slow && tokens.size() > 20) continue;
      std::vector<float> states = StatesOf(tokens);
      const auto of_top = [](const nlohmann::json& top) {
        std::vector<int32_t> tokens;
        for (const auto& entry : top) tokens.push_back(entry[0].get<int32_t>());
        return tokens;
      };
      labels_ = of_top(one["top"][0]);
      const size_t rows = tokens.size() - 1;
      Memory memory(head, static_cast<int>(tokens.size()));
      const StepResult first =
          head.Step({.entries = {HeadEntry(tokens, states, 0, rows, memory)}})[0];
      ASSERT_TRUE(first.label_logprobs.ok()) << first.label_logprobs.status();
      ExpectTop(one["top"][0], *first.label_logprobs);
      ASSERT_EQ(first.hidden_states.size(), dim_);
      // In steps of one row, with the same bits.
      Memory apart(head, static_cast<int>(tokens.size()), 20);
      StepResult last;
      for (size_t row = 0; row < rows; ++row) {
        last = head.Step({.entries = {HeadEntry(tokens, states, row, row + 1, apart)}})[0];
      }
      EXPECT_EQ(*last.label_logprobs, *first.label_logprobs);
      EXPECT_EQ(last.hidden_states, first.hidden_states);
      // A second draft, from the head's own state.
      tokens.push_back(one["draft"].get<int32_t>());
      states.resize(rows * dim_);
      states.insert(states.end(), first.hidden_states.begin(), first.hidden_states.end());
      labels_ = of_top(one["top"][1]);
      const StepResult second =
          head.Step({.entries = {HeadEntry(tokens, states, rows, rows + 1, memory)}})[0];
      ExpectTop(one["top"][1], *second.label_logprobs);
    }
  }
}

TEST_P(MtpHeadTest, RowsDoNotDependOnTheirBatch) {
  for (const char* name : {"tiny-qwen3.5-moe-mtp", "tiny-glm4-moe-lite-mtp"}) {
    SCOPED_TRACE(name);
    ASSERT_NO_FATAL_FAILURE(Load(name));
    ExpectRowsApart();
  }
}

void MtpHeadTest::ExpectRowsApart() {
  Engine& head = *engine_->mtp_head();
  labels_ = {1, 2, 3};
  std::vector<StepResult> alone;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<float>> states;
  for (size_t i = 0; i < 3; ++i) {
    prompts.push_back(expected_[i]["prompt"].get<std::vector<int32_t>>());
    states.push_back(StatesOf(prompts[i]));
    Memory memory(head, 80);
    alone.push_back(head.Step(
        {.entries = {HeadEntry(prompts[i], states[i], 0, prompts[i].size() - 1, memory)}})[0]);
  }
  Memory memories[] = {Memory(head, 80, 0), Memory(head, 80, 10), Memory(head, 80, 20)};
  Batch batch;
  for (const size_t i : {2, 0, 1}) {
    batch.entries.push_back(
        HeadEntry(prompts[i], states[i], 0, prompts[i].size() - 1, memories[i]));
  }
  const std::vector<StepResult> together = head.Step(batch);
  for (const auto& [at, i] : {std::pair(0, 2), {1, 0}, {2, 1}}) {
    EXPECT_EQ(*together[at].label_logprobs, *alone[i].label_logprobs);
    EXPECT_EQ(together[at].hidden_states, alone[i].hidden_states);
  }
}

// The position of a draw counts tokens whose KV the head does not have.
TEST_P(MtpHeadTest, DrawsAreByTheSequencesPositions) {
  ASSERT_NO_FATAL_FAILURE(Load("tiny-qwen3.5-mtp"));
  Engine& head = *engine_->mtp_head();
  const auto tokens = expected_[1]["prompt"].get<std::vector<int32_t>>();
  const std::vector<float> states = StatesOf(tokens);
  labels_.resize(static_cast<size_t>(engine_->config().token_count));
  std::iota(labels_.begin(), labels_.end(), 0);
  Memory memory(head, 32);
  const StepResult scored =
      head.Step({.entries = {HeadEntry(tokens, states, 0, tokens.size() - 1, memory)}})[0];
  labels_.clear();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const model::SamplingParams sampling{.temperature = 1, .seed = seed};
    for (const int before : {0, 1, 1000}) {
      BatchEntry entry = HeadEntry(tokens, states, 0, tokens.size() - 1, memory);
      entry.sample = true;
      entry.sampling = &sampling;
      entry.history.tokens = tokens;
      entry.tokens_before = before;
      const StepResult drawn = head.Step({.entries = {entry}})[0];
      const auto wanted = model::Sample(*scored.label_logprobs, sampling, {.tokens = tokens},
                                        tokens.size() - 1 + static_cast<uint64_t>(before));
      ASSERT_TRUE(drawn.tokens.ok() && wanted.ok());
      EXPECT_EQ(drawn.tokens->front().token_id, wanted->token_id) << seed << " " << before;
    }
  }
}

// Those of drafts are those of the tokens that they are.
TEST_P(MtpHeadTest, HiddenStatesOfDraftsAreThoseOfSteps) {
  ASSERT_NO_FATAL_FAILURE(Load("tiny-qwen3.5-mtp"));
  const auto tokens = expected_[1]["prompt"].get<std::vector<int32_t>>();
  const std::vector<float> states = StatesOf(tokens);
  const size_t known = tokens.size() - 4;
  Memory memory(*engine_, static_cast<int>(tokens.size()));
  const model::SamplingParams greedy{.temperature = 0};
  BatchEntry entry;
  entry.tokens = absl::MakeConstSpan(tokens).first(known);
  entry.drafts = absl::MakeConstSpan(tokens).subspan(known);
  entry.hidden_states = true;
  entry.sample = true;
  entry.sampling = &greedy;
  entry.history.tokens = entry.tokens;
  memory.SetIn(entry);
  const StepResult result = engine_->Step({.entries = {entry}})[0];
  EXPECT_EQ(result.hidden_states,
            std::vector<float>(states.begin() + static_cast<std::ptrdiff_t>((known - 1) * dim_),
                               states.end()));
}

TEST_P(MtpHeadTest, TakesItsKvFromTheMemoryItMay) {
  EngineOptions options = HeadOptions("tiny-qwen3.5-mtp", GetParam());
  options.num_blocks = 0;
  auto with_head = Engine::Load(options);
  ASSERT_TRUE(with_head.ok()) << with_head.status();
  const backend::KvPool& of_head = (*with_head)->mtp_head()->kv_pool();
  EXPECT_EQ(of_head.block_count * of_head.block_stride_bytes / 1024, 1024)
      << "blocks fill the bytes that were given";
  EXPECT_EQ((*with_head)->mtp_head()->kv_layout().layers, 1);
  options.load_mtp_head = false;
  auto without = Engine::Load(options);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ((*without)->mtp_head(), nullptr);
  EXPECT_LE((*with_head)->kv_pool().block_count, (*without)->kv_pool().block_count);
}

// Several tokens of each sequence, however small the model's own steps are.
TEST_P(MtpHeadTest, HasRoomForSomeRowsOfEachSequence) {
  EngineOptions options = HeadOptions("tiny-qwen3.5-mtp", GetParam());
  options.max_num_batched_tokens = 24;
  options.mtp_kv_bytes = 1;
  const absl::Status too_small = Engine::Load(options).status();
  EXPECT_EQ(ErrorReason(too_small), "KV_POOL_SIZE");
  EXPECT_THAT(std::string(too_small.message()), ::testing::HasSubstr("--draft-kv-memory"));
  options.mtp_kv_bytes = 1 << 20;
  auto engine = Engine::Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->mtp_head()->max_num_batched_tokens(),
            options.max_num_seqs * EngineOptions::kMtpRowsOfSequence);
}

// A GPU's share is the model's and its head's.
TEST_P(MtpHeadTest, TakesItsShareOfAGpu) {
  EngineOptions options = HeadOptions("tiny-glm4-moe-lite-mtp", GetParam());
  options.mtp_kv_bytes = 0;
  std::vector<double> shares;
  options.make_backend = [&](const backend::BackendOptions& of_backend) {
    shares.push_back(of_backend.gpu_memory_utilization);
    return GetParam().make();
  };
  auto engine = Engine::Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_DOUBLE_EQ(shares[0], 0.9 - 0.1);
  const backend::KvPool& of_head = (*engine)->mtp_head()->kv_pool();
  const int64_t bytes = of_head.block_count * of_head.block_stride_bytes;
  if (of_head.copier == nullptr) {
    ASSERT_EQ(shares.size(), 1u);
    EXPECT_LE(bytes, EngineOptions::kCpuMtpKvBytes);
    EXPECT_GT(bytes, EngineOptions::kCpuMtpKvBytes / 2);
  } else {
    ASSERT_EQ(shares.size(), 2u);
    EXPECT_EQ(shares[1], 0.1);
    EXPECT_GT(bytes, 64 << 20) << "of an emulated device's 192 MiB";
  }
  options.mtp_gpu_memory_utilization = 0.9;
  const absl::Status status = Engine::Load(options).status();
  EXPECT_EQ(ErrorField(status), of_head.copier == nullptr ? "" : "--draft-gpu-memory-utilization");
}

TEST_P(MtpHeadTest, AModelWithoutAHeadIsRefused) {
  // The config of the second has one, and its files have only two of its tensors.
  for (const char* name : {"tiny-qwen3.5", "tiny-qwen3-next"}) {
    const absl::Status status = Engine::Load(HeadOptions(name, GetParam())).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorReason(status), "MTP_HEAD_MISSING");
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("mtp_num_hidden_layers"));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, MtpHeadTest, ::testing::ValuesIn(baton::testing::Devices()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::engine
