// Steps with drafts draw what steps of one token draw: whatever is drafted, however many of the
// drafts are right, and whichever other sequences are in the step.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/engine.h"
#include "common/kv/block_pool.h"
#include "tests/testing/devices.h"
#include "tests/testing/oracle.h"
#include "tests/testing/seed.h"

namespace baton::engine {
namespace {

constexpr int kTokensOfBlock = 16, kMostDrafts = 7;
constexpr const char* kDraftedModels[] = {"tiny-qwen2", "tiny-gemma3", "tiny-qwen3.5",
                                          "tiny-granite-hybrid-dense"};

struct DraftedSequence {
  std::vector<int32_t> tokens;  // the prompt, then the answer so far
  int prompt_tokens = 0;
  int computed = 0;
  int min_tokens = 0;
  kv::BlockLease blocks;
  model::SamplingParams sampling;
  std::vector<model::SampledToken> expected;
  std::vector<int32_t> drafts;  // of the step

  int answered() const { return static_cast<int>(tokens.size()) - prompt_tokens; }
  bool done() const { return answered() == static_cast<int>(expected.size()); }
};

class DraftsTest : public ::testing::TestWithParam<baton::testing::Device> {
 protected:
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  void ExpectTheSame(const std::string& model);

  // Some of the tokens that come, perhaps with wrong ones among them.
  std::vector<int32_t> Drafts(const DraftedSequence& sequence, int vocab) {
    const int left = static_cast<int>(sequence.expected.size()) - sequence.answered() - 1;
    std::vector<int32_t> drafts(static_cast<size_t>(std::min(left, Int(0, kMostDrafts))));
    for (size_t i = 0; i < drafts.size(); ++i) {
      const size_t next = static_cast<size_t>(sequence.answered()) + i;
      drafts[i] = Int(0, 4) == 0 ? Int(0, vocab - 1) : sequence.expected[next].token_id;
    }
    return drafts;
  }

  int accepted_ = 0, refused_ = 0;
  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
};

INSTANTIATE_TEST_SUITE_P(Devices, DraftsTest, ::testing::ValuesIn(baton::testing::Devices()),
                         [](const auto& info) { return info.param.name; });

void DraftsTest::ExpectTheSame(const std::string& model) {
  SCOPED_TRACE(::testing::Message() << model << ", seed " << seed_);
  const bool slow = GetParam().slow;
  EngineOptions options;
  options.model_dir = BATON_CHECKPOINT_DIR "/" + model;
  options.max_model_len = 160;
  options.make_backend = [this](const backend::BackendOptions&) { return GetParam().make(); };
  baton::testing::Oracle oracle(options);
  options.max_num_batched_tokens = 1024;
  options.max_num_seqs = 8;  // fewer than the rows that are drawn from
  options.num_blocks = 192;
  const auto loaded = Engine::Load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  Engine& engine = **loaded;
  const kv::BlockShape shape = engine.kv_layout().Shape();
  kv::BlockPool pool(engine.kv_pool().block_count, shape);
  const int vocab = static_cast<int>(engine.config().token_count);
  const std::vector<int32_t> stops = {3, 5, 7};

  std::vector<DraftedSequence> sequences(slow ? 3 : 8);
  for (DraftedSequence& sequence : sequences) {
    sequence.prompt_tokens = Int(1, slow ? 20 : 60);
    for (int i = 0; i < sequence.prompt_tokens; ++i) sequence.tokens.push_back(Int(0, vocab - 1));
    const int answer = Int(1, slow ? 14 : 60);
    sequence.min_tokens = Int(0, answer);
    model::SamplingParams& sampling = sequence.sampling;
    sampling.temperature = Int(0, 2) == 0 ? 0 : 1.2f;
    sampling.seed = random_();
    if (Int(0, 1)) sampling.top_p = 0.9f;
    if (Int(0, 2) == 0) sampling.repetition_penalty = 1.4f;
    if (Int(0, 2) == 0) sampling.frequency_penalty = 0.7f;
    if (Int(0, 2) == 0) sampling.logprobs = 2;  // drawn on the host, and shows every bit
    sequence.expected =
        oracle.GenerateTokens(sequence.tokens, sampling, answer, {3, 5, 7}, sequence.min_tokens);
    absl::StatusOr<kv::BlockLease> blocks =
        pool.Acquire((sequence.prompt_tokens + answer + kTokensOfBlock - 1) / kTokensOfBlock,
                     kv::BlockUse::kActive);
    ASSERT_TRUE(blocks.ok()) << blocks.status();
    sequence.blocks = *std::move(blocks);
  }
  int accepted = 0, refused = 0;
  while (!std::all_of(sequences.begin(), sequences.end(), [](auto& s) { return s.done(); })) {
    Batch batch;
    std::vector<DraftedSequence*> stepped;
    for (DraftedSequence& sequence : sequences) {
      if (sequence.done() || Int(0, 4) == 0) continue;
      sequence.drafts = Drafts(sequence, vocab);
      BatchEntry entry;
      entry.tokens =
          absl::MakeConstSpan(sequence.tokens).subspan(static_cast<size_t>(sequence.computed));
      entry.drafts = sequence.drafts;
      entry.context = sequence.computed;
      SetBlocks(sequence.blocks, &entry, kTokensOfBlock);
      entry.sample = true;
      entry.sampling = &sequence.sampling;
      entry.history.tokens = sequence.tokens;
      entry.history.prompt_tokens = sequence.prompt_tokens;
      entry.suppressed_draws = sequence.min_tokens - sequence.answered();
      if (entry.suppressed_draws > 0) entry.history.suppressed = stops;
      batch.entries.push_back(entry);
      stepped.push_back(&sequence);
    }
    if (stepped.empty()) continue;
    const std::vector<StepResult> results = engine.Step(batch);
    for (size_t i = 0; i < stepped.size(); ++i) {
      DraftedSequence& sequence = *stepped[i];
      ASSERT_TRUE(results[i].tokens.ok()) << results[i].tokens.status();
      const std::vector<model::SampledToken>& drawn = *results[i].tokens;
      const auto next = sequence.expected.begin() + sequence.answered();
      size_t right = 0;
      while (right < sequence.drafts.size() && sequence.drafts[right] == next[right].token_id) {
        ++right;
      }
      ASSERT_EQ(drawn, std::vector<model::SampledToken>(next, next + right + 1))
          << "sequence " << stepped[i] - sequences.data() << ", token " << sequence.answered();
      accepted += static_cast<int>(right);
      refused += right < sequence.drafts.size() ? 1 : 0;
      // A state has not gone on over drafts: those that were drawn are computed again.
      sequence.computed = static_cast<int>(sequence.tokens.size());
      if (!shape.recurrent) sequence.computed += static_cast<int>(right);
      for (const model::SampledToken& token : drawn) sequence.tokens.push_back(token.token_id);
    }
  }
  accepted_ += accepted;
  refused_ += refused;
}

TEST_P(DraftsTest, TokensAreThoseOfSingleSteps) {
  const int rounds = GetParam().slow ? 1 : 3;
  for (int round = 0; round < rounds; ++round) {
    for (const char* model : kDraftedModels) ExpectTheSame(model);
  }
  EXPECT_GT(accepted_, 0);
  EXPECT_GT(refused_, 0);
}

// What stops a draw stops nothing before it.
TEST_P(DraftsTest, ADrawThatFailsBehindADraftIsLeftToItsOwnStep) {
  EngineOptions options;
  options.model_dir = BATON_CHECKPOINT_DIR "/tiny-qwen2";
  options.max_model_len = 64;
  options.num_blocks = 4;
  options.max_num_seqs = 4;
  options.make_backend = [this](const backend::BackendOptions&) { return GetParam().make(); };
  const auto engine = Engine::Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const int vocab = static_cast<int>((*engine)->config().token_count);
  std::vector<int32_t> all(static_cast<size_t>(vocab));
  for (int i = 0; i < vocab; ++i) all[static_cast<size_t>(i)] = i;
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<uint32_t> any((static_cast<size_t>(vocab) + 31) / 32, ~uint32_t{0});
  const std::vector<uint32_t> none(any.size(), 0);
  const std::vector<int32_t> blocks = {0, 1, 2, 3};
  const model::SamplingParams sampling = {.temperature = 0};
  BatchEntry entry;
  entry.tokens = tokens;
  entry.blocks = blocks;
  entry.sample = true;
  entry.sampling = &sampling;
  entry.history.tokens = tokens;
  entry.history.prompt_tokens = 3;
  const int32_t first = (*engine)->Step({{entry}})[0].tokens.value()[0].token_id;
  const std::vector<int32_t> drafts = {first};
  entry.drafts = drafts;
  const absl::Span<const uint32_t> behind[] = {none};
  entry.history.allowed = any;
  entry.allowed_after = behind;
  const auto drawn = (*engine)->Step({{entry}})[0].tokens;
  ASSERT_TRUE(drawn.ok()) << drawn.status();
  ASSERT_EQ(drawn->size(), 1u);
  EXPECT_EQ(drawn->front().token_id, first);
  // And one that fails first is the entry's error.
  entry.history.allowed = none;
  EXPECT_FALSE((*engine)->Step({{entry}})[0].tokens.ok());
}

}  // namespace
}  // namespace baton::engine
