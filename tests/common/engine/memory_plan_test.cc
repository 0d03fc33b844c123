#include "common/engine/memory_plan.h"

#include <string>

#include "common/base/error.h"
#include "common/model/device_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/dense_config.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = 1 << 20;

// Qwen2.5-1.5B as its config has it.
model::ModelConfig Qwen() {
  return testing::DenseConfig({.architecture = "Qwen2ForCausalLM",
                               .layers = 28,
                               .query_heads = 12,
                               .kv_heads = 2,
                               .head_dim = 128,
                               .ffn_dim = 8960,
                               .hidden_dim = 1536,
                               .vocab_size = 151936,
                               .tied = true});
}

class MemoryPlanTest : public ::testing::Test {
 protected:
  MemoryPlanTest() {
    demand_.config = &config_;
    demand_.activation = demand_.stored_embedding = backend::DType::kF16;
    demand_.limits.max_rows = 2048;
    demand_.limits.max_sequences = demand_.limits.max_logit_rows = 64;
    demand_.limits.max_positions = 32768;
    demand_.kernel_bytes = 10 * kMiB;
    demand_.layout.layers = 28;
    demand_.layout.kv_heads = 2;
    demand_.layout.head_dim = 128;
    demand_.layout.dtype = kv::KvDtype::kF16;
    demand_.free_bytes = 14'000 * kMiB;
  }

  const model::ModelConfig config_ = Qwen();
  MemoryDemand demand_;
};

// Gemma 3 4B's KV, which its layers need of a sequence within 5 %.
TEST_F(MemoryPlanTest, WindowsBoundALongSequence) {
  demand_.layout.layers = 34;
  demand_.layout.kv_heads = 4;
  demand_.layout.head_dim = 256;
  for (int layer = 0; layer < 34; ++layer) {
    demand_.layout.windows.push_back(layer % 6 == 5 ? 0 : 1024);
  }
  const auto plan = PlanMemory(demand_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->shape.pages(), 7);
  EXPECT_EQ(plan->page_bytes, 5 * demand_.layout.ChunkBytes());
  const int64_t chunk = demand_.layout.ChunkBytes();
  for (const int tokens : {4096, 32768}) {
    const double needed = static_cast<double>(chunk) * (5.0 * tokens + 29.0 * 1024) / 16;
    EXPECT_GE(static_cast<double>(plan->sequence_bytes(tokens)), needed);
    const double most = tokens == 32768 ? 1.05 : 1.07;  // two blocks more than its window
    EXPECT_LE(static_cast<double>(plan->sequence_bytes(tokens)), most * needed) << tokens;
  }
  EXPECT_EQ(plan->sequence_bytes(16), 7 * plan->page_bytes);
  EXPECT_EQ(plan->sent_bytes(32768), chunk * (5 * 2048 + 29 * 64));
  EXPECT_EQ(plan->sequences_of(plan->kv_tokens()), 1);
  EXPECT_EQ(plan->sequences_of(plan->kv_tokens() + 1), 0);
  demand_.num_blocks = 100;
  EXPECT_EQ(PlanMemory(demand_)->page_count, 700) << "blocks of all layers";
}

TEST_F(MemoryPlanTest, AddsUp) {
  const auto plan = PlanMemory(demand_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // 1.54 G parameters and, beside the tied embedding, the matrix of the logits.
  EXPECT_NEAR(static_cast<double>(plan->weight_bytes), 2 * (1.5437e9 + 151936 * 1536.0), 2e6);
  EXPECT_EQ(plan->token_bytes, 28672);
  EXPECT_EQ(plan->page_bytes, 16 * 28672);
  // cos and sin of 64 frequencies.
  EXPECT_EQ(plan->rope_bytes, 32768 * 64 * 2 * 4);
  EXPECT_EQ(
      plan->activation_bytes,
      model::WorkspaceMemory(model::WorkspacesOf(config_, 2048, 64, backend::DType::kF16, {}))
          .device_bytes);
  EXPECT_EQ(plan->fixed_bytes(),
            plan->weight_bytes + plan->rope_bytes + plan->activation_bytes + 10 * kMiB);
  // The pool is what is left, to the last block.
  EXPECT_LE(plan->fixed_bytes() + plan->kv_bytes(), *demand_.free_bytes);
  EXPECT_GT(plan->fixed_bytes() + plan->kv_bytes() + plan->page_bytes, *demand_.free_bytes);
  EXPECT_EQ(plan->full_sequences(), plan->page_count / 2048);
  EXPECT_EQ(plan->sequences_of(2049), plan->page_count / 129);
  EXPECT_THAT(plan->ToString(), HasSubstr(std::to_string(plan->page_count) + " blocks"));
}

TEST_F(MemoryPlanTest, AnEmbeddingStaysAsTheFileHasIt) {
  const int64_t same = PlanMemory(demand_)->weight_bytes;
  demand_.stored_embedding = backend::DType::kBF16;
  EXPECT_EQ(PlanMemory(demand_)->weight_bytes, same);
  demand_.stored_embedding = backend::DType::kF32;
  EXPECT_EQ(PlanMemory(demand_)->weight_bytes - same, int64_t{151936} * 1536 * 2);
}

TEST_F(MemoryPlanTest, APoolOfAGivenSizeIsHonouredIfItFits) {
  demand_.num_blocks = 100;
  demand_.kv_cache_bytes = 1;  // num_blocks goes first
  EXPECT_EQ(PlanMemory(demand_)->page_count, 100);
  demand_.num_blocks = 0;
  demand_.kv_cache_bytes = 100 * kMiB;
  EXPECT_EQ(PlanMemory(demand_)->page_count, 100 * kMiB / (16 * 28672));
  for (const bool by_bytes : {false, true}) {
    demand_.num_blocks = by_bytes ? 0 : 1 << 20;
    demand_.kv_cache_bytes = by_bytes ? (int64_t{1} << 40) : 0;
    const absl::Status status = PlanMemory(demand_).status();
    EXPECT_EQ(ErrorReason(status), "MODEL_TOO_LARGE") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Lower --num-blocks"));
  }
}

// To the byte: what is refused with one byte less than the message says is needed, fits with it.
TEST_F(MemoryPlanTest, RefusesWhatDoesNotFitWithEverySummand) {
  const auto roomy = PlanMemory(demand_);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  const int64_t least = roomy->fixed_bytes() + 128 * roomy->page_bytes;  // 2048 tokens
  demand_.free_bytes = least;
  const auto tight = PlanMemory(demand_);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_EQ(tight->page_count, 128);
  EXPECT_EQ(tight->full_sequences(), 0);
  for (const int64_t free : {least - 1, roomy->weight_bytes / 2, int64_t{0}}) {
    demand_.free_bytes = free;
    const absl::Status status = PlanMemory(demand_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ErrorReason(status), "MODEL_TOO_LARGE");
    const std::string message(status.message());
    for (const char* part :
         {"weights 3389.8 MiB", "(float16)", "32768 positions 16.0 MiB", "2048 batch tokens",
          "64 logit rows", "workspaces of the kernels 10.0 MiB", "128 KV blocks of 458752 bytes",
          "too much", "--max-num-batched-tokens", "--gpu-memory-utilization"}) {
      EXPECT_THAT(message, HasSubstr(part));
    }
    EXPECT_THAT(message, Not(HasSubstr("--num-blocks")));
  }
  // No more blocks are needed than one sequence has.
  demand_.limits.max_positions = 32;
  demand_.free_bytes = least - 100 * roomy->page_bytes;
  EXPECT_TRUE(PlanMemory(demand_).ok());
}

TEST_F(MemoryPlanTest, WithoutABoundAPoolIsAsLargeAsAsked) {
  demand_.free_bytes = std::nullopt;
  EXPECT_EQ(PlanMemory(demand_)->page_count, demand_.default_kv_bytes / (16 * 28672));
  demand_.kv_cache_bytes = int64_t{1} << 40;
  EXPECT_EQ(PlanMemory(demand_)->page_count, (int64_t{1} << 40) / (16 * 28672));
  for (const int64_t bytes : {int64_t{1}, int64_t{16 * 28672 - 1}, int64_t{1} << 62}) {
    demand_.kv_cache_bytes = bytes;
    EXPECT_EQ(ErrorReason(PlanMemory(demand_).status()), "KV_POOL_SIZE") << bytes;
  }
}

}  // namespace
}  // namespace baton::engine
