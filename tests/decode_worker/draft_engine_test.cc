#include "decode_worker/draft_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "decode_worker/draft_model.h"
#include "decode_worker/request.h"
#include "tests/testing/devices.h"

namespace baton::decode_worker {
namespace {

using ::testing::HasSubstr;

std::string Checkpoint(const std::string& name) {
  return std::string(BATON_CHECKPOINT_DIR) + "/" + name;
}

DecodeOptions Drafting(const std::string& name) {
  DecodeOptions options;
  options.speculation.mode = SpeculationOptions::Mode::kDraft;
  options.speculation.draft_model = Checkpoint(name);
  options.draft_kv_bytes = 1 << 20;
  return options;
}

class DraftEngineTest : public ::testing::TestWithParam<baton::testing::Device> {
 protected:
  engine::EngineOptions Answers() {
    engine::EngineOptions options;
    options.model_dir = Checkpoint("tiny-llama");
    options.make_backend = [](const backend::BackendOptions&) { return GetParam().make(); };
    options.max_num_seqs = 4;
    options.num_blocks = 8;
    options.kv_cache_bytes = 0;
    return options;
  }
};

// The same model drafts for itself, so its drafts are what it draws: on GPUs, too.
TEST_P(DraftEngineTest, DraftsOnTheWorkersDevice) {
  engine::EngineOptions answers = Answers();
  auto loaded = LoadDraftEngine(Drafting("tiny-llama"), answers);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  engine::Engine& draft = **loaded;
  const backend::KvPool& pool = draft.kv_pool();
  const bool on_gpu = pool.copier != nullptr;
  EXPECT_DOUBLE_EQ(answers.backend.gpu_memory_utilization, on_gpu ? 0.9 - 0.1 : 0.9);
  EXPECT_LE(pool.block_count * pool.block_stride_bytes, 1 << 20);
  EXPECT_GT(pool.block_count, 8) << "the pool's size is not the answers'";
  const auto model = engine::Engine::Load(answers);
  ASSERT_TRUE(model.ok()) << model.status();

  internal::v1::DecodeRequest request;
  for (int i = 0; i < 20; ++i) request.add_tokens(3 + 7 * i % 50);
  request.mutable_sampling()->set_top_p(1);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(5);
  request.set_max_tokens(20);
  const auto sequence = MakeSequence(request, absl::InfiniteFuture(), **model);
  DraftModel drafts(draft, {.on_gpu = on_gpu}, Clock::Real());
  const Sequence* const one[] = {sequence.get()};
  EXPECT_EQ(drafts.CatchUp(one, 100), 19);
  DraftModel::Drafting line = {.sequence = sequence.get()};
  DraftModel::Drafting* const lines[] = {&line};
  for (int i = 0; i < 4; ++i) drafts.Extend(lines);
  ASSERT_EQ(line.drafts.size(), 4u);
  EXPECT_EQ(line.confidences.size(), on_gpu ? 0u : 4u);
  drafts.Ended(*sequence);

  std::vector<int32_t> blocks = {0, 1};
  engine::BatchEntry entry;
  entry.tokens = sequence->tokens;
  entry.drafts = line.drafts;
  entry.blocks = blocks;
  entry.sample = true;
  entry.sampling = &sequence->sampling;
  entry.history.tokens = sequence->tokens;
  const auto drawn = (*model)->Step({.entries = {entry}})[0].tokens;
  ASSERT_TRUE(drawn.ok());
  EXPECT_EQ(drawn->size(), 5u) << "all drafts are drawn, and one token behind them";
}

TEST_P(DraftEngineTest, ContextsAreTheShorterOne) {
  engine::EngineOptions answers = Answers();
  answers.max_model_len = 100;
  EXPECT_EQ((*LoadDraftEngine(Drafting("tiny-llama"), answers))->max_model_len(), 100);
  answers.max_model_len = 1 << 20;  // of a model with a longer context
  const auto draft = LoadDraftEngine(Drafting("tiny-llama"), answers);
  ASSERT_TRUE(draft.ok()) << draft.status();
  EXPECT_EQ((*draft)->max_model_len(), (*draft)->config().max_positions);
}

// What is left of its share of a GPU is KV.
TEST_P(DraftEngineTest, TakesItsShareOfAGpu) {
  engine::EngineOptions answers = Answers();
  DecodeOptions options = Drafting("tiny-llama");
  options.draft_kv_bytes = 0;
  const auto draft = LoadDraftEngine(options, answers);
  ASSERT_TRUE(draft.ok()) << draft.status();
  const backend::KvPool& pool = (*draft)->kv_pool();
  const int64_t bytes = pool.block_count * pool.block_stride_bytes;
  if (pool.copier == nullptr) {
    EXPECT_LE(bytes, engine::EngineOptions::kCpuMtpKvBytes);
    EXPECT_GT(bytes, engine::EngineOptions::kCpuMtpKvBytes / 2);
    return;
  }
  EXPECT_GT(bytes, 64 << 20) << "of an emulated device's 192 MiB, whatever the share";
}

TEST_P(DraftEngineTest, AnotherTokenizerIsRefusedBeforeAnythingIsLoaded) {
  engine::EngineOptions answers = Answers();
  answers.make_backend =
      [](const backend::BackendOptions&) -> absl::StatusOr<std::unique_ptr<backend::Backend>> {
    return absl::InternalError("loaded");
  };
  EXPECT_EQ(ErrorReason(LoadDraftEngine(Drafting("tiny-qwen2"), answers).status()), "DRAFT_MODEL");
}

TEST_P(DraftEngineTest, OtherWaysToDraftHaveNone) {
  engine::EngineOptions answers = Answers();
  DecodeOptions options;
  options.speculation.mode = SpeculationOptions::Mode::kSuffix;
  const auto none = LoadDraftEngine(options, answers);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, nullptr);
  EXPECT_EQ(answers.backend.gpu_memory_utilization, 0.9);
}

TEST_P(DraftEngineTest, ErrorsNameTheFlag) {
  engine::EngineOptions answers = Answers();
  absl::Status status = LoadDraftEngine(Drafting("no-such-model"), answers).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("--speculative draft:"));
  DecodeOptions options = Drafting("tiny-llama");
  options.draft_gpu_memory_utilization = 0.9;
  const auto whole = LoadDraftEngine(options, answers);
  if (whole.ok()) {
    EXPECT_EQ((*whole)->kv_pool().copier, nullptr);
  } else {
    EXPECT_EQ(ErrorField(whole.status()), "--draft-gpu-memory-utilization");
  }
  options = Drafting("tiny-llama");
  options.draft_kv_bytes = 1;
  status = LoadDraftEngine(options, answers).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("--draft-kv-memory"));
}

INSTANTIATE_TEST_SUITE_P(Devices, DraftEngineTest, ::testing::ValuesIn(baton::testing::Devices()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::decode_worker
