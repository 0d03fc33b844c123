// One answer on every device: however requests are batched, cut into chunks and served from cached
// blocks, they draw what each draws alone; and a device that computes in 16 bits draws what the CPU
// draws in float32 wherever the model is sure.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "nlohmann/json.hpp"
#include "tests/testing/devices.h"
#include "tests/testing/oracle.h"
#include "tests/testing/seed.h"

namespace baton::engine {
namespace {

constexpr char kDemoModel[] = "models/demo";
constexpr kv::KvDtype kQuantized[] = {kv::KvDtype::kInt8, kv::KvDtype::kInt4, kv::KvDtype::kFp8};
constexpr int kSequences = 64, kMaxRows = 256, kBlocks = 512, kBlockTokens = 16;

// Prompts of the demo model's tasks, as its tokenizer cuts them, and the right answers.
nlohmann::json Prompts() {
  std::ifstream file("tests/common/engine/demo_prompts.json");
  return nlohmann::json::parse(file);
}

EngineOptions OptionsOn(const baton::testing::Device& device) {
  EngineOptions options;
  options.model_dir = kDemoModel;
  options.make_backend = [device](const backend::BackendOptions&) { return device.make(); };
  return options;
}

class OneAnswerTest : public ::testing::TestWithParam<baton::testing::Device> {
 protected:
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // Types of KV with fewer bits than are computed. Of an emulated device one, at random:
  // backend_kv_test has them all.
  std::vector<kv::KvDtype> RoundedTypes() {
    if (GetParam().slow) return {kQuantized[Int(0, 2)]};
    std::vector<kv::KvDtype> types(std::begin(kQuantized), std::end(kQuantized));
    if (GetParam().name == "cpu_float32") types.push_back(kv::KvDtype::kBF16);
    return types;
  }
  // Requests of the demo model's tasks, batched at random, answer as they do alone.
  void ExpectTheSameBits(EngineOptions options, const std::vector<int>& sizes);

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
};

INSTANTIATE_TEST_SUITE_P(Devices, OneAnswerTest, ::testing::ValuesIn(baton::testing::Devices()),
                         [](const auto& info) { return info.param.name; });

TEST_P(OneAnswerTest, GreedyTokensAreThoseOfTheCpu) {
  baton::testing::Oracle cpu(kDemoModel, {.compute = backend::BackendOptions::Compute::kF32});
  baton::testing::Oracle device(OptionsOn(GetParam()));
  const model::SamplingParams greedy = {.temperature = 0};
  const nlohmann::json prompts = Prompts();
  ASSERT_EQ(prompts.size(), 16u);
  int right = 0, tried = 0;
  for (size_t i = 0; i < prompts.size(); i += GetParam().slow ? 3 : 1) {
    const auto prompt = prompts[i]["tokens"].get<std::vector<int32_t>>();
    const auto answer = prompts[i]["answer"].get<std::vector<int32_t>>();
    const std::vector<int32_t> found =
        device.Generate(prompt, greedy, static_cast<int>(answer.size()));
    EXPECT_EQ(found, cpu.Generate(prompt, greedy, static_cast<int>(answer.size())))
        << "prompt " << i;
    right += found == answer;
    ++tried;
  }
  // The model is there, and knows what it is asked.
  EXPECT_GE(right, tried * 3 / 4) << "of " << tried;
}

struct Sequence {
  std::vector<int32_t> tokens;  // the prompt, then the answer
  int prompt_tokens = 0;
  int computed = 0;
  int answer_tokens = 0;
  std::vector<kv::BlockId> blocks;
  model::SamplingParams sampling;
  std::vector<model::SampledToken> answer;

  bool done() const { return static_cast<int>(answer.size()) == answer_tokens; }
};

void OneAnswerTest::ExpectTheSameBits(EngineOptions options, const std::vector<int>& sizes) {
  SCOPED_TRACE(seed_);
  baton::testing::Oracle oracle(options);
  options.max_num_batched_tokens = kMaxRows;
  options.max_num_seqs = kSequences;
  options.num_blocks = kBlocks;
  const auto loaded = Engine::Load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  Engine& engine = **loaded;
  const nlohmann::json prompts = Prompts();
  for (const int size : sizes) {
    SCOPED_TRACE(::testing::Message() << size << " at once");
    std::vector<kv::BlockId> free(kBlocks);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random_);
    const auto take = [&](int count) {
      std::vector<kv::BlockId> blocks(free.end() - count, free.end());
      free.resize(free.size() - static_cast<size_t>(count));
      return blocks;
    };
    // A prefix whose blocks those that begin with it share once the first has computed them.
    const auto shared = prompts[0]["tokens"].get<std::vector<int32_t>>();
    const int shared_blocks = 3;
    std::vector<Sequence> sequences(static_cast<size_t>(size));
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& sequence = sequences[i];
      const bool shares = i > 0 && Int(0, 1);
      if (shares) {
        sequence.tokens.assign(shared.begin(), shared.begin() + shared_blocks * kBlockTokens);
        sequence.computed = shared_blocks * kBlockTokens;
        sequence.blocks.assign(sequences[0].blocks.begin(),
                               sequences[0].blocks.begin() + shared_blocks);
      }
      const auto own =
          i == 0 ? shared
                 : prompts[static_cast<size_t>(Int(1, 15))]["tokens"].get<std::vector<int32_t>>();
      const int count = i == 0 ? static_cast<int>(shared.size()) : Int(1, 70);
      sequence.tokens.insert(sequence.tokens.end(), own.begin(),
                             own.begin() + std::min<int>(count, static_cast<int>(own.size())));
      sequence.prompt_tokens = static_cast<int>(sequence.tokens.size());
      sequence.answer_tokens = Int(1, 6);
      sequence.sampling.temperature = Int(0, 2) == 0 ? 0 : 1.5f;
      sequence.sampling.top_p = 0.95f;
      sequence.sampling.seed = random_();
      // Log probabilities come from the host and show every bit; without them the device draws.
      if (Int(0, 1)) sequence.sampling.logprobs = 3;
      const int blocks =
          (sequence.prompt_tokens + sequence.answer_tokens + kBlockTokens - 1) / kBlockTokens -
          static_cast<int>(sequence.blocks.size());
      const std::vector<kv::BlockId> more = take(blocks);
      sequence.blocks.insert(sequence.blocks.end(), more.begin(), more.end());
    }
    while (!std::all_of(sequences.begin(), sequences.end(),
                        [](const Sequence& sequence) { return sequence.done(); })) {
      Batch batch;
      std::vector<Sequence*> stepped;
      int rows = 0;
      // Nobody may read the shared blocks before they are written.
      const bool shared_is_there = sequences[0].computed >= shared_blocks * kBlockTokens;
      for (Sequence& sequence : sequences) {
        if (sequence.done() || rows == kMaxRows || Int(0, 3) == 0) continue;
        if (!shared_is_there && &sequence != &sequences[0]) continue;
        const int left = static_cast<int>(sequence.tokens.size()) - sequence.computed;
        const int count = std::min(Int(0, 1) ? left : Int(1, left), kMaxRows - rows);
        BatchEntry entry;
        entry.tokens =
            absl::MakeConstSpan(sequence.tokens)
                .subspan(static_cast<size_t>(sequence.computed), static_cast<size_t>(count));
        entry.context = sequence.computed;
        entry.blocks = sequence.blocks;
        entry.sample = count == left;
        entry.sampling = &sequence.sampling;
        entry.history.tokens = sequence.tokens;
        entry.history.prompt_tokens = sequence.prompt_tokens;
        batch.entries.push_back(entry);
        stepped.push_back(&sequence);
        rows += count;
      }
      if (stepped.empty()) continue;
      const std::vector<StepResult> results = engine.Step(batch);
      for (size_t i = 0; i < stepped.size(); ++i) {
        stepped[i]->computed += static_cast<int>(batch.entries[i].tokens.size());
        if (!batch.entries[i].sample) continue;
        ASSERT_TRUE(results[i].tokens.ok()) << results[i].tokens.status();
        stepped[i]->answer.push_back(results[i].tokens->front());
        stepped[i]->tokens.push_back(results[i].tokens->front().token_id);
      }
    }
    for (const Sequence& sequence : sequences) {
      const std::vector<int32_t> prompt(sequence.tokens.begin(),
                                        sequence.tokens.begin() + sequence.prompt_tokens);
      ASSERT_EQ(sequence.answer,
                oracle.GenerateTokens(prompt, sequence.sampling, sequence.answer_tokens))
          << "sequence " << &sequence - sequences.data();
    }
  }
}

TEST_P(OneAnswerTest, BatchedChunkedAndCachedAreTheSameBits) {
  ExpectTheSameBits(OptionsOn(GetParam()), GetParam().slow
                                               ? std::vector<int>{1, 6}
                                               : std::vector<int>{1, 2, 7, 16, 33, kSequences});
}

// Steps that are warmed up, which leave states in pages that are taken later, and then repeated
// where the device records them.
TEST_P(OneAnswerTest, ARecurrentModelAnswersTheSameWarmedUp) {
  SCOPED_TRACE(seed_);
  for (const char* model : {"tiny-qwen3.5", "tiny-granite-hybrid-dense"}) {
    EngineOptions options = OptionsOn(GetParam());
    options.model_dir = std::string(BATON_CHECKPOINT_DIR "/") + model;
    options.max_model_len = 300;
    baton::testing::Oracle cold(options);
    options.warm_up = EngineOptions::WarmUp::kPromptAndDecode;
    baton::testing::Oracle warm(options);
    for (int i = 0; i < 3; ++i) {
      std::vector<int32_t> prompt(static_cast<size_t>(Int(1, 60)));
      for (int32_t& token : prompt) token = Int(0, 299);
      model::SamplingParams sampling = {.temperature = i == 0 ? 0.0f : 1.5f};
      sampling.seed = random_();
      EXPECT_EQ(warm.Generate(prompt, sampling, 12), cold.Generate(prompt, sampling, 12))
          << model << ", " << prompt.size() << " tokens";
    }
  }
}

TEST_P(OneAnswerTest, RoundedKvGivesTheSameBitsInEveryBatch) {
  for (const kv::KvDtype dtype : RoundedTypes()) {
    SCOPED_TRACE(kv::KvDtypeName(dtype));
    EngineOptions options = OptionsOn(GetParam());
    options.kv_dtype = dtype;
    ExpectTheSameBits(options, GetParam().slow ? std::vector<int>{4} : std::vector<int>{1, 7, 33});
  }
}

// Every length modulo the block, in a pool without a free block.
TEST_P(OneAnswerTest, RoundedKvInAFullPool) {
  const auto tokens = Prompts()[0]["tokens"].get<std::vector<int32_t>>();
  constexpr int kEach = 4;  // blocks of a sequence
  for (const kv::KvDtype dtype : RoundedTypes()) {
    SCOPED_TRACE(kv::KvDtypeName(dtype));
    EngineOptions options = OptionsOn(GetParam());
    options.kv_dtype = dtype;
    baton::testing::Oracle oracle(options);
    options.num_blocks = 2 * kEach;
    const auto engine = Engine::Load(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    model::SamplingParams sampling = {.temperature = 0};
    sampling.logprobs = 3;
    for (int length = 2 * kBlockTokens; length < 3 * kBlockTokens;
         length += GetParam().slow ? kBlockTokens : 1) {
      // The second has one token more, so that both fill their last block at other steps.
      std::vector<int32_t> rows[2] = {{tokens.begin(), tokens.begin() + length},
                                      {tokens.begin(), tokens.begin() + length + 1}};
      std::vector<kv::BlockId> blocks[2] = {{0, 2, 4, 6}, {1, 3, 5, 7}};
      std::vector<model::SampledToken> answers[2];
      int computed[2] = {0, 0};
      for (int step = 0; step < kBlockTokens - 1; ++step) {
        Batch batch;
        for (int i = 0; i < 2; ++i) {
          BatchEntry entry;
          entry.tokens = absl::MakeConstSpan(rows[i]).subspan(static_cast<size_t>(computed[i]));
          entry.context = computed[i];
          entry.blocks = blocks[i];
          entry.sample = true;
          entry.sampling = &sampling;
          entry.history.tokens = rows[i];
          entry.history.prompt_tokens = length + i;
          batch.entries.push_back(entry);
        }
        const std::vector<StepResult> results = (*engine)->Step(batch);
        for (int i = 0; i < 2; ++i) {
          ASSERT_TRUE(results[static_cast<size_t>(i)].tokens.ok());
          computed[i] = static_cast<int>(rows[i].size());
          answers[i].push_back(results[static_cast<size_t>(i)].tokens->front());
          rows[i].push_back(answers[i].back().token_id);
        }
      }
      for (int i = 0; i < 2; ++i) {
        const std::vector<int32_t> prompt(rows[i].begin(), rows[i].begin() + length + i);
        ASSERT_EQ(answers[i], oracle.GenerateTokens(prompt, sampling, kBlockTokens - 1))
            << "length " << length + i;
      }
    }
  }
}

TEST_P(OneAnswerTest, RoundedKvKnowsTheAnswers) {
  const nlohmann::json prompts = Prompts();
  const size_t step = GetParam().slow ? 5 : 1;
  for (const kv::KvDtype dtype : RoundedTypes()) {
    EngineOptions options = OptionsOn(GetParam());
    options.kv_dtype = dtype;
    baton::testing::Oracle device(options);
    int right = 0, tried = 0;
    for (size_t i = 0; i < prompts.size(); i += step, ++tried) {
      const nlohmann::json& prompt = prompts[i];
      const auto answer = prompt["answer"].get<std::vector<int32_t>>();
      right += device.Generate(prompt["tokens"].get<std::vector<int32_t>>(), {.temperature = 0},
                               static_cast<int>(answer.size())) == answer;
    }
    EXPECT_GE(right, tried * 3 / 4) << kv::KvDtypeName(dtype);
  }
}

}  // namespace
}  // namespace baton::engine
