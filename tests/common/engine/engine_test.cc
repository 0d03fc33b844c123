#include "common/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/model/numerics.h"
#include "tests/testing/devices.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/oracle.h"
#include "tests/testing/seed.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

constexpr char kModelDir[] = BATON_CHECKPOINT_DIR "/tiny-qwen2";
constexpr int kMaxSeqs = 4;  // logits of so many rows are in memory at once

// An engine and the oracle on one device, kept for the tests that follow.
class EngineTest : public ::testing::TestWithParam<baton::testing::Device> {
 protected:
  void SetUp() override {
    static auto* const loaded = new std::map<std::string, Loaded>();
    Loaded& mine = (*loaded)[GetParam().name];
    if (mine.engine == nullptr) {
      EngineOptions options;
      options.model_dir = kModelDir;
      options.make_backend = [](const backend::BackendOptions&) { return GetParam().make(); };
      mine.oracle = std::make_unique<baton::testing::Oracle>(options);
      options.max_num_batched_tokens = 128;
      options.max_num_seqs = kMaxSeqs;
      options.num_blocks = 64;
      auto engine = Engine::Load(options);
      ASSERT_TRUE(engine.ok()) << engine.status();
      mine.engine = *std::move(engine);
    }
    engine_ = mine.engine.get();
    oracle_ = mine.oracle.get();
  }

  std::vector<int32_t> RandomTokens(int count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random_() % engine_->config().token_count);
    }
    return tokens;
  }
  std::vector<kv::BlockId> Blocks(int tokens) {
    std::vector<kv::BlockId> blocks((tokens + 15) / 16);
    std::iota(blocks.begin(), blocks.end(), next_block_);
    next_block_ += static_cast<int>(blocks.size());
    return blocks;
  }
  StepResult StepOne(const BatchEntry& entry) {
    Batch batch;
    batch.entries.push_back(entry);
    return engine_->Step(batch)[0];
  }

  struct Loaded {
    std::unique_ptr<Engine> engine;
    std::unique_ptr<baton::testing::Oracle> oracle;
  };
  Engine* engine_ = nullptr;
  baton::testing::Oracle* oracle_ = nullptr;
  std::mt19937 random_{testing::TestSeed(17)};
  int next_block_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Devices, EngineTest, ::testing::ValuesIn(baton::testing::Devices()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EngineTest, PromptLogprobsEqualThoseOfSingleSteps) {
  // Far more rows than logits in memory, in chunks of every kind.
  const std::vector<int32_t> prompt = RandomTokens(77);
  const std::vector<model::SampledToken> expected = oracle_->PromptLogprobs(prompt, 5);
  ASSERT_EQ(expected.size(), 76u);
  for (const int chunk : {16, 48, 77}) {
    const std::vector<kv::BlockId> blocks = Blocks(77);
    const model::SamplingParams sampling = {.temperature = 0};
    std::vector<model::SampledToken> logprobs;
    for (int begin = 0; begin < 77; begin += chunk) {
      const int count = std::min(chunk, 77 - begin);
      BatchEntry entry;
      entry.tokens = absl::MakeConstSpan(prompt).subspan(begin, count);
      entry.context = begin;
      entry.blocks = blocks;
      entry.sample = begin + count == 77;
      entry.sampling = &sampling;
      entry.prompt_logprobs = 5;
      entry.targets = absl::MakeConstSpan(prompt).subspan(begin + 1, count);
      const StepResult result = StepOne(entry);
      ASSERT_TRUE(result.prompt_logprobs.ok()) << result.prompt_logprobs.status();
      ASSERT_EQ(result.prompt_logprobs->size(), entry.targets.size());
      logprobs.insert(logprobs.end(), result.prompt_logprobs->begin(),
                      result.prompt_logprobs->end());
      EXPECT_EQ(result.tokens.ok(), entry.sample);
      if (entry.sample) {
        EXPECT_EQ(result.tokens->front().token_id, oracle_->Generate(prompt, sampling, 1)[0]);
      }
    }
    EXPECT_EQ(logprobs, expected) << "chunks of " << chunk;
  }
}

// Quantised, with columns in another order: the plan knows what loading takes, and the engine asks
// for the workspaces that steps need. On a GPU all memory that is left becomes blocks.
TEST_P(EngineTest, ServesQuantizedWeights) {
  EngineOptions options;
  options.model_dir = BATON_CHECKPOINT_DIR "/tiny-llama-gptq4-order";
  options.make_backend = [](const backend::BackendOptions&) { return GetParam().make(); };
  baton::testing::Oracle oracle(options);
  options.max_num_batched_tokens = 128;
  options.max_num_seqs = kMaxSeqs;
  const auto engine = Engine::Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->config().quantization);
  const std::vector<int32_t> prompt = RandomTokens(100);
  const model::SamplingParams greedy = {.temperature = 0};
  const std::vector<int32_t> expected = oracle.Generate(prompt, greedy, 6);
  ASSERT_EQ(expected.size(), 6u);
  // More rows than the product from packed weights takes, then single ones.
  std::vector<int32_t> tokens = prompt;
  const std::vector<kv::BlockId> blocks = Blocks(106);
  for (size_t i = 0; i < expected.size(); ++i) {
    BatchEntry entry;
    entry.context = i == 0 ? 0 : static_cast<int>(tokens.size()) - 1;
    entry.tokens = absl::MakeConstSpan(tokens).subspan(static_cast<size_t>(entry.context));
    entry.blocks = blocks;
    entry.sample = true;
    entry.sampling = &greedy;
    Batch batch;
    batch.entries.push_back(entry);
    const StepResult result = (*engine)->Step(batch)[0];
    ASSERT_TRUE(result.tokens.ok()) << result.tokens.status();
    EXPECT_EQ(result.tokens->front().token_id, expected[i]) << "token " << i;
    tokens.push_back(result.tokens->front().token_id);
  }
}

TEST_P(EngineTest, ItsKvMixesWithThatOfTheSameNumerics) {
  auto backend = GetParam().make();
  ASSERT_TRUE(backend.ok()) << backend.status();
  const std::string numerics = (*backend)->Numerics();
  ASSERT_NE(numerics, "");
  EXPECT_EQ(engine_->kv_layout().numerics, absl::StrCat(numerics, " ", model::kNumericsVersion));
  EngineOptions options;
  options.model_dir = kModelDir;
  options.make_backend = [](const backend::BackendOptions&) { return GetParam().make(); };
  options.num_blocks = 8;
  options.mix_numerics = true;
  auto mixing = Engine::Load(options);
  ASSERT_TRUE(mixing.ok()) << mixing.status();
  EXPECT_EQ((*mixing)->kv_layout().numerics, "");
  EXPECT_NE((*mixing)->kv_layout().Fingerprint(), engine_->kv_layout().Fingerprint());
}

TEST_P(EngineTest, AStepMixesAllKindsOfEntries) {
  // One entry wants logits of all its rows, one of none, one of its last, one of its first few.
  const std::vector<int32_t> prompts[] = {RandomTokens(33), RandomTokens(20), RandomTokens(25),
                                          RandomTokens(30)};
  const model::SamplingParams greedy = {.temperature = 0};
  const model::SamplingParams seeded = {.temperature = 1.5f, .seed = 5, .logprobs = 2};
  Batch batch;
  for (const std::vector<int32_t>& prompt : prompts) {
    BatchEntry entry;
    entry.tokens = prompt;
    batch.entries.push_back(entry);
  }
  std::vector<std::vector<kv::BlockId>> blocks;
  for (const std::vector<int32_t>& prompt : prompts) {
    blocks.push_back(Blocks(static_cast<int>(prompt.size())));
  }
  for (int i = 0; i < 4; ++i) batch.entries[i].blocks = blocks[i];
  batch.entries[0].prompt_logprobs = 0;
  batch.entries[0].targets = absl::MakeConstSpan(prompts[0]).subspan(1);
  batch.entries[0].sample = true;
  batch.entries[0].sampling = &greedy;
  batch.entries[2].sample = true;
  batch.entries[2].sampling = &seeded;
  batch.entries[2].draws = 3;
  batch.entries[3].prompt_logprobs = 3;
  batch.entries[3].targets = absl::MakeConstSpan(prompts[3]).subspan(1, 10);
  const std::vector<StepResult> results = engine_->Step(batch);

  EXPECT_EQ(results[0].prompt_logprobs.value(), oracle_->PromptLogprobs(prompts[0], 0));
  EXPECT_EQ(results[0].tokens.value(), oracle_->GenerateTokens(prompts[0], greedy, 1));
  EXPECT_FALSE(results[1].tokens.ok());
  EXPECT_TRUE(results[1].prompt_logprobs.value().empty());
  ASSERT_EQ(results[2].tokens.value().size(), 3u);
  for (uint32_t choice = 0; choice < 3; ++choice) {
    model::SamplingParams params = seeded;
    params.choice = choice;
    EXPECT_EQ(results[2].tokens->at(choice),
              oracle_->GenerateTokens(prompts[2], params, 1).front());
  }
  EXPECT_FALSE(results[3].tokens.ok());
  std::vector<model::SampledToken> expected = oracle_->PromptLogprobs(prompts[3], 3);
  expected.resize(10);
  EXPECT_EQ(results[3].prompt_logprobs.value(), expected);
}

TEST_P(EngineTest, PenaltiesSuppressionAndBeamCandidates) {
  const std::vector<int32_t> prompt = RandomTokens(20);
  const std::vector<kv::BlockId> blocks = Blocks(20);
  const model::SamplingParams greedy = {.temperature = 0};
  BatchEntry entry;
  entry.tokens = prompt;
  entry.blocks = blocks;
  entry.sample = true;
  entry.sampling = &greedy;
  entry.beam_candidates = 6;
  const std::vector<model::SampledToken> best = StepOne(entry).tokens.value();
  ASSERT_EQ(best.size(), 6u);
  for (size_t i = 1; i < best.size(); ++i) EXPECT_GE(best[i - 1].score, best[i].score);

  entry.beam_candidates = 0;
  EXPECT_EQ(StepOne(entry).tokens->front().token_id, best[0].token_id);
  const std::vector<int32_t> suppressed = {best[0].token_id, best[1].token_id};
  entry.history.suppressed = suppressed;
  EXPECT_EQ(StepOne(entry).tokens->front().token_id, best[2].token_id);
  // More ids than the vocabulary has: they may be repeated.
  const std::vector<int32_t> repeated(4000, best[0].token_id);
  entry.history.suppressed = repeated;
  EXPECT_EQ(StepOne(entry).tokens->front().token_id, best[1].token_id);
  const model::SamplingParams biased = {.temperature = 0, .logit_bias = {{best[5].token_id, 100}}};
  entry.sampling = &biased;
  EXPECT_EQ(StepOne(entry).tokens->front().token_id, best[5].token_id);

  // An error is one request's, not the step's.
  std::vector<int32_t> all(engine_->config().token_count);
  std::iota(all.begin(), all.end(), 0);
  Batch batch;
  batch.entries = {entry, entry};
  batch.entries[0].history.suppressed = all;
  batch.entries[1].history.suppressed = {};
  const std::vector<kv::BlockId> others = Blocks(20);
  batch.entries[1].blocks = others;
  const std::vector<StepResult> results = engine_->Step(batch);
  EXPECT_EQ(ErrorReason(results[0].tokens.status()), "NO_TOKEN_LEFT");
  EXPECT_EQ(results[1].tokens->front().token_id, best[5].token_id);
}

TEST_P(EngineTest, BlocksThatWereReadOutAndCopiedHoldTheSame) {
  const std::vector<int32_t> prompt = RandomTokens(32);
  const std::vector<kv::BlockId> blocks = Blocks(48);
  const model::SamplingParams greedy = {.temperature = 0};
  BatchEntry entry;
  entry.tokens = prompt;
  entry.blocks = blocks;
  entry.sample = true;
  entry.sampling = &greedy;
  const int32_t first = StepOne(entry).tokens->front().token_id;

  const std::vector<kv::BlockId> prompt_blocks(blocks.begin(), blocks.begin() + 2);
  const std::vector<kv::BlockId> copies = Blocks(32);
  engine_->CopyPages(prompt_blocks, copies);
  std::vector<std::byte> host(2 * engine_->kv_layout().BlockBytes());
  std::vector<std::byte> copied(host.size());
  engine_->ReadPages(prompt_blocks, host.data());
  engine_->ReadPages(copies, copied.data());
  EXPECT_EQ(std::memcmp(host.data(), copied.data(), host.size()), 0);

  // Back into other blocks, in another order, and on from there.
  std::vector<kv::BlockId> restored = Blocks(48);
  std::swap(restored[0], restored[1]);
  engine_->WritePages({restored.data(), 2}, host.data());
  const auto next = [&](const std::vector<kv::BlockId>& with) {
    BatchEntry decode;
    decode.tokens = {&first, 1};
    decode.context = 32;
    decode.blocks = with;
    decode.sample = true;
    decode.sampling = &greedy;
    return StepOne(decode).tokens->front().token_id;
  };
  EXPECT_EQ(next(blocks), next(restored));
  EXPECT_EQ(next(blocks), oracle_->Generate(prompt, greedy, 2)[1]);
}

TEST_P(EngineTest, Bfloat16KvIsOfFloat32OrWhatIsComputed) {
  EngineOptions options;
  options.model_dir = kModelDir;
  options.make_backend = [](const backend::BackendOptions&) { return GetParam().make(); };
  options.max_num_seqs = kMaxSeqs;
  options.max_num_batched_tokens = 64;
  options.num_blocks = 4;
  options.kv_dtype = kv::KvDtype::kBF16;
  const auto engine = Engine::Load(options);
  const kv::KvLayout& computed = engine_->kv_layout();
  if (computed.dtype == kv::KvDtype::kF16) {
    EXPECT_EQ(ErrorReason(engine.status()), "BAD_OPTION");
    EXPECT_EQ(ErrorField(engine.status()), "--kv-cache-dtype");
    EXPECT_THAT(std::string(engine.status().message()),
                HasSubstr("bfloat16 given, expected auto, int8, fp8 or int4 with activations of "
                          "float16"));
    return;
  }
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->kv_pool().dtype, backend::DType::kBF16);
  const kv::KvLayout& layout = (*engine)->kv_layout();
  if (computed.dtype == kv::KvDtype::kBF16) {
    EXPECT_EQ(layout.Fingerprint(), computed.Fingerprint());
  } else {
    EXPECT_EQ(2 * layout.BlockBytes(), computed.BlockBytes());
    EXPECT_EQ(layout.DtypeText(), "bfloat16 of float32");
  }
}

// On a device with memory of its own.
class EngineDeviceTest : public ::testing::Test {
 protected:
  EngineDeviceTest() {
    options_.model_dir = kModelDir;
    options_.max_num_batched_tokens = 32;
    options_.max_num_seqs = kMaxSeqs;
    options_.max_model_len = 100;
    options_.backend.compute = backend::BackendOptions::Compute::kF32;
    options_.make_backend = baton::testing::MakerOf(device_);
  }

  EngineOptions options_;
  baton::testing::FakeDevice device_;
};

TEST_F(EngineDeviceTest, KvBlocksFillWhatIsLeft) {
  device_.arena_bytes = 8 << 20;
  const auto engine = Engine::Load(options_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const backend::KvPool& pool = (*engine)->kv_pool();
  EXPECT_LT(device_.arena_bytes - device_.used_bytes,
            static_cast<size_t>(pool.block_stride_bytes) + 255);
  EXPECT_GT(pool.block_count * pool.block_stride_bytes, 4 << 20);
  EXPECT_NE(pool.copier, nullptr);
  const std::string description = (*engine)->Description();
  for (const std::string& part :
       {std::string("fake device; weights "), absl::StrCat(pool.block_count, " blocks, "),
        absl::StrCat(pool.block_count / 7, " sequences of 100")}) {
    EXPECT_NE(description.find(part), std::string::npos) << description;
  }
  // And it runs.
  const std::vector<int32_t> prompt = {1, 2, 3};
  const std::vector<kv::BlockId> blocks = {pool.block_count - 1};
  const model::SamplingParams greedy = {.temperature = 0};
  Batch batch;
  batch.entries.resize(1);
  batch.entries[0].tokens = prompt;
  batch.entries[0].blocks = blocks;
  batch.entries[0].sample = true;
  batch.entries[0].sampling = &greedy;
  EXPECT_TRUE((*engine)->Step(batch)[0].tokens.ok());
}

TEST_F(EngineDeviceTest, BlocksAskedForAreHonouredIfTheyFit) {
  options_.num_blocks = 17;
  EXPECT_EQ((*Engine::Load(options_))->kv_pool().block_count, 17);
  options_.num_blocks = 0;
  options_.kv_cache_bytes = 1 << 20;
  device_.used_bytes = 0;
  device_.prepared.clear();
  device_.uploads = 0;
  const auto engine = Engine::Load(options_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const backend::KvPool& pool = (*engine)->kv_pool();
  EXPECT_EQ(pool.block_count, (1 << 20) / pool.block_stride_bytes);
}

TEST_F(EngineDeviceTest, WhatDoesNotFitIsRefusedBeforeItIsLoaded) {
  for (const size_t arena : {size_t{0}, size_t{100} << 10, size_t{512} << 10}) {
    device_.arena_bytes = arena;
    const absl::Status status = Engine::Load(options_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ErrorReason(status), "MODEL_TOO_LARGE") << status;
    EXPECT_EQ(device_.packed, 0);
    EXPECT_EQ(device_.used_bytes, 0u);
  }
  device_.arena_bytes = 8 << 20;
  options_.num_blocks = 1 << 20;
  EXPECT_EQ(ErrorReason(Engine::Load(options_).status()), "MODEL_TOO_LARGE");
  EXPECT_EQ(device_.packed, 0);
}

TEST_F(EngineDeviceTest, TheLargestStepIsToldOnce) {
  ASSERT_TRUE(Engine::Load(options_).ok());
  ASSERT_EQ(device_.prepared.size(), 1u);
  const backend::StepLimits& limits = device_.prepared[0];
  EXPECT_EQ(limits.max_rows, 32);
  EXPECT_EQ(limits.max_sequences, kMaxSeqs);
  EXPECT_EQ(limits.max_logit_rows, kMaxSeqs);
  EXPECT_EQ(limits.max_positions, 100);
  EXPECT_EQ(limits.block_tokens, 16);
  const auto config = model::LoadModelConfig(kModelDir);
  EXPECT_EQ(limits.query_heads, config->layers[0].attention().query_heads);
  EXPECT_EQ(limits.kv_heads, config->layers[0].attention().kv_heads);
  EXPECT_EQ(limits.head_dim, config->layers[0].attention().head_dim);
  EXPECT_TRUE(limits.other_heads.empty()) << "all layers are alike";
  EXPECT_EQ(limits.layers, static_cast<int>(config->layers.size()));
  EXPECT_EQ(limits.hidden_dim, config->hidden_dim);
  EXPECT_EQ(limits.vocab_size, config->vocab_size);
}

TEST_F(EngineDeviceTest, AWarmDeviceHasComputedAndDrawn) {
  options_.num_blocks = 1;  // less than the prompt would take
  auto engine = Engine::Load(options_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_TRUE(device_.sampled_rows.empty());
  engine->reset();
  options_.warm_up = EngineOptions::WarmUp::kPrompt;
  engine = Engine::Load(options_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ(device_.sampled_rows, std::vector<size_t>{1});
}

TEST_F(EngineDeviceTest, ADeviceThatIsNotThereIsNamed) {
  options_.make_backend = nullptr;
  options_.backend.device = "cuda:1023";
  const std::string reason = ErrorReason(Engine::Load(options_).status());
  EXPECT_TRUE(reason == "NO_CUDA" || reason == "NO_DEVICE") << reason;  // by the build
}

}  // namespace
}  // namespace baton::engine
