#include "common/engine/serving_plan.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/backend/cuda/cuda_backend.h"
#include "common/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/model_dir.h"

namespace baton::engine {
namespace {

using ::baton::testing::ModelDir;
using ::testing::HasSubstr;
using Compute = backend::BackendOptions::Compute;

constexpr char kQwen15[] = R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 1536,
  "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
  "intermediate_size": 8960, "vocab_size": 151936, "max_position_embeddings": 32768,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "hidden_act": "silu", "use_sliding_window": false,
  "max_window_layers": 28, "eos_token_id": 151643})";

constexpr char kLatent[] = R"({"architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048,
  "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
  "intermediate_size": 10944, "vocab_size": 102400, "max_position_embeddings": 163840,
  "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "torch_dtype": "bfloat16"})";

class ServingPlanTest : public ::testing::Test {
 protected:
  ServingPlanTest() {
    dir_.Write("config.json", kQwen15);
    question_.engine.model_dir = dir_.path();
    question_.gpu = *FindGpu("t4");
  }

  const ModelDir dir_;
  ServingQuestion question_;
};

// The promise: what is planned without a device is what a worker on one has, to the block and to
// the byte of every part.
TEST(ServingPlanWorkerTest, PlansWhatAWorkerAtStartHas) {
  struct Case {
    int compute_capability;
    size_t device_bytes;
    double utilization;
    int block_tokens, max_num_seqs, max_num_batched_tokens, max_model_len, num_blocks;
    int64_t kv_cache_bytes;
  };
  for (const Case& c :
       {Case{75, 64 << 20, 0.9, 16, 4, 64, 0, 0, 0},
        Case{80, (48 << 20) + 12345, 0.777, 32, 3, 48, 100, 0, 0},
        Case{75, 80 << 20, 1, 64, 9, 200, 333, 0, 0}, Case{80, 64 << 20, 0.9, 16, 4, 64, 0, 77, 0},
        Case{75, 64 << 20, 0.9, 16, 4, 64, 0, 0, 1'234'567}}) {
    for (const auto& [shape, experts_on_host] : {std::pair("tiny-qwen2", 0),
                                                 {"tiny-qwen2-bf16", 0},
                                                 {"tiny-qwen3-moe", 0},
                                                 {"tiny-gpt-oss-mxfp4", 0},
                                                 {"tiny-gemma4", 0},
                                                 {"tiny-qwen3-moe", 1},
                                                 {"tiny-gpt-oss-mxfp4", 9}}) {
      SCOPED_TRACE(absl::StrCat(shape, " in ", c.device_bytes, " bytes, experts of ",
                                experts_on_host, " layers on the host"));
      ServingQuestion question;
      EngineOptions& options = question.engine;
      options.model_dir = absl::StrCat(BATON_CHECKPOINT_DIR, "/", shape);
      options.experts_on_host = experts_on_host;
      options.backend.gpu_memory_utilization = c.utilization;
      options.block_tokens = c.block_tokens;
      options.max_num_seqs = c.max_num_seqs;
      options.max_num_batched_tokens = c.max_num_batched_tokens;
      options.max_model_len = c.max_model_len;
      options.num_blocks = c.num_blocks;
      options.kv_cache_bytes = c.kv_cache_bytes;
      options.make_backend = [&](const backend::BackendOptions& backend) {
        return backend::cuda::MakeBackendOn(
            backend::cuda::MakeEmulatedRuntime(c.compute_capability, c.device_bytes, 1), nullptr,
            backend);
      };
      question.context = 90;
      question.gpu = {.name = "emulated",
                      .compute_capability = c.compute_capability,
                      .memory_bytes = static_cast<int64_t>(c.device_bytes),
                      .bytes_per_second = 1e9,
                      .flops_per_second = 1e12,
                      .host_link_bytes_per_second = 1e8};
      const auto plan = PlanServing(question);
      ASSERT_TRUE(plan.ok()) << plan.status();
      ASSERT_TRUE(plan->refusal.ok()) << plan->refusal;
      const auto engine = Engine::Load(options);
      ASSERT_TRUE(engine.ok()) << engine.status();
      EXPECT_EQ(plan->memory.page_count, (*engine)->kv_pool().block_count);
      EXPECT_EQ(plan->memory.page_bytes, (*engine)->kv_pool().block_stride_bytes);
      EXPECT_THAT((*engine)->Description(), HasSubstr(plan->memory.ToString()));
      // And refuses in the same words what the worker refuses.
      options.num_blocks = 1 << 20;
      const auto refused = PlanServing(question);
      ASSERT_TRUE(refused.ok()) << refused.status();
      EXPECT_EQ(ErrorReason(refused->refusal), "MODEL_TOO_LARGE");
      EXPECT_THAT(std::string(Engine::Load(options).status().message()),
                  HasSubstr(std::string(refused->refusal.message())));
    }
  }
}

// A pool that leaves no room for all experts: plan and worker keep those of as many layers on the
// host.
TEST(ServingPlanWorkerTest, PlansHowManyLayersAWorkerKeepsOnTheHost) {
  ServingQuestion question;
  EngineOptions& options = question.engine;
  options.model_dir = BATON_CHECKPOINT_DIR "/tiny-qwen3-moe";
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 64;
  options.make_backend = [](const backend::BackendOptions& backend) {
    return backend::cuda::MakeBackendOn(backend::cuda::MakeEmulatedRuntime(75, size_t{64} << 20, 1),
                                        nullptr, backend);
  };
  question.context = 90;
  question.gpu = {.name = "emulated",
                  .compute_capability = 75,
                  .memory_bytes = int64_t{64} << 20,
                  .bytes_per_second = 1e9,
                  .flops_per_second = 1e12,
                  .host_link_bytes_per_second = 1e8};
  options.experts_on_host = 1;
  const int64_t of_layer = PlanServing(question)->memory.host_expert_bytes;
  options.experts_on_host = 0;
  const auto resident = PlanServing(question);
  ASSERT_TRUE(resident.ok() && resident->refusal.ok()) << resident.status();
  options.experts_on_host = std::nullopt;
  EXPECT_EQ(PlanServing(question)->memory.experts_on_host, 0) << "all have room";
  options.kv_cache_bytes = resident->memory.kv_bytes() + of_layer / 2;
  const auto plan = PlanServing(question);
  ASSERT_TRUE(plan.ok() && plan->refusal.ok()) << plan.status();
  EXPECT_EQ(plan->memory.experts_on_host, 2) << "one layer's place is taken by what is fetched";
  const auto engine = Engine::Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_THAT((*engine)->Description(), HasSubstr(plan->memory.ToString()));
  EXPECT_EQ(plan->memory.page_count, (*engine)->kv_pool().block_count);
}

// 1.5B by hand, with config.json alone.
TEST_F(ServingPlanTest, MemoryOnAT4) {
  question_.context = 8192;
  const auto plan = PlanServing(question_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->refusal.ok()) << plan->refusal;
  EXPECT_TRUE(plan->served());
  EXPECT_EQ(plan->activation, backend::DType::kF16) << "a T4 multiplies no bfloat16";
  EXPECT_EQ(plan->arena_bytes, static_cast<int64_t>(0.9 * (int64_t{14'930} << 20)) / 256 * 256);
  // In the file's bfloat16.
  EXPECT_EQ(plan->memory.weights.embedding.bytes, int64_t{151936} * 1536 * 2);
  EXPECT_EQ(plan->memory.weights.lm_head.bytes, int64_t{151936} * 1536 * 2);
  EXPECT_EQ(plan->memory.weights.attention.bytes, int64_t{28} * 2 * (2048 + 1536) * 1536);
  EXPECT_EQ(plan->memory.weights.feed_forward.bytes, int64_t{28} * 2 * 3 * 8960 * 1536);
  EXPECT_EQ(plan->memory.token_bytes, 28672);
  EXPECT_EQ(plan->memory.page_count,
            (plan->arena_bytes - plan->memory.fixed_bytes()) / (16 * 28672));
  EXPECT_EQ(plan->sequences, plan->memory.page_count / 512);
  // cuBLASLt's workspace, and gate and up in float32, come out of the blocks.
  question_.engine.backend.deterministic = false;
  const auto with_cublas = PlanServing(question_);
  ASSERT_TRUE(with_cublas.ok()) << with_cublas.status();
  EXPECT_EQ(with_cublas->memory.kernel_bytes - plan->memory.kernel_bytes, 32 << 20);
  const int64_t gate_up = int64_t{2048} * 2 * 8960 * 4;
  EXPECT_EQ(with_cublas->memory.activation_bytes - plan->memory.activation_bytes, gate_up);
  EXPECT_NEAR(static_cast<double>(plan->memory.page_count - with_cublas->memory.page_count),
              static_cast<double>((32 << 20) + gate_up) / (16 * 28672), 1);
}

TEST_F(ServingPlanTest, Floors) {
  question_.gpu = {.name = "g",
                   .compute_capability = 75,
                   .memory_bytes = int64_t{16} << 30,
                   .bytes_per_second = 320e9,
                   .flops_per_second = 24e12,
                   .nvlink_bytes_per_second = 100e9};
  question_.batches = {1, 8, 32, 4096};
  question_.prompts = {2048};
  const auto plan = PlanServing(question_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->decode.size(), 4u);
  EXPECT_NEAR(plan->decode[0].floor_ms(), 9.83, 0.01);
  EXPECT_NEAR(plan->decode[1].floor_ms(), 11.1, 0.05);
  EXPECT_NEAR(plan->decode[2].floor_ms(), 15.5, 0.05);
  EXPECT_NEAR(plan->decode[1].max_tokens_per_second(), 8e3 / 11.1, 4);
  EXPECT_TRUE(plan->decode[2].fits);
  EXPECT_FALSE(plan->decode[3].fits);
  // Where products take longer than bytes, they are the floor.
  question_.context = 16;
  const DecodeFloor wide = PlanServing(question_)->decode[3];
  EXPECT_EQ(wide.floor_ms(), wide.matrix_ms);
  EXPECT_NEAR(wide.matrix_ms, 4096 * 2 * 1.5437e9 / 24e12 * 1e3, 3);

  ASSERT_EQ(plan->prefill.size(), 1u);
  const PrefillFloor& prefill = plan->prefill[0];
  EXPECT_NEAR(prefill.floor_ms(), 239, 0.6);
  EXPECT_NEAR(prefill.memory_ms, 9.65, 0.01);
  EXPECT_EQ(prefill.kv_bytes, 2048 * 28672);
  ASSERT_EQ(prefill.transfers.size(), 6u);
  const TransferTime& slow = prefill.transfers[0];
  EXPECT_EQ(slow.link, "1 GbE");
  EXPECT_NEAR(slow.ms, 469.8, 0.1);
  EXPECT_NEAR(slow.exposed_ms, 469.8 - prefill.floor_ms() * 27 / 28, 0.1);
  EXPECT_NEAR(prefill.transfers[1].ms, 47, 0.05);
  EXPECT_NEAR(prefill.transfers[1].exposed_ms, 47.0 / 28, 0.01) << "the last layer alone";
  EXPECT_EQ(prefill.transfers[5].link, "NVLink");
  EXPECT_NEAR(prefill.transfers[5].ms, 0.587, 0.001);
}

TEST_F(ServingPlanTest, AModelThatDoesNotFitIsRefusedAndStillCosted) {
  question_.gpu.memory_bytes = int64_t{3} << 30;
  const auto plan = PlanServing(question_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(ErrorReason(plan->refusal), "MODEL_TOO_LARGE");
  EXPECT_EQ(plan->sequences, 0);
  EXPECT_GT(plan->memory.weight_bytes, int64_t{3} << 30);
  EXPECT_GT(plan->decode[0].floor_ms(), 12);
  // Four bits make it fit.
  question_.weights = model::WeightFormat{.bits = 4};
  const auto small = PlanServing(question_);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_TRUE(small->refusal.ok()) << small->refusal;
  EXPECT_LT(small->decode[0].bytes.weights, 0.5 * plan->decode[0].bytes.weights);
}

TEST_F(ServingPlanTest, QuantizationIsReadFromTheConfig) {
  std::string text = kQwen15;
  text.insert(1, R"("quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64},)");
  dir_.Write("config.json", text);
  const auto plan = PlanServing(question_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->weights.bits, 4);
  EXPECT_EQ(plan->weights.group_size, 64);
  question_.weights = model::WeightFormat{};
  EXPECT_EQ(PlanServing(question_)->weights.bits, 0);
}

TEST_F(ServingPlanTest, LatentAttentionIsCostedThoughNotServed) {
  std::string text = kLatent;
  text.replace(text.find("DeepseekV2"), 10, "DeepseekV3");
  dir_.Write("config.json", text);
  question_.gpu = *FindGpu("h200");
  const auto plan = PlanServing(question_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->served());
  EXPECT_THAT(std::string(plan->refusal.message()), HasSubstr("DeepseekV3ForCausalLM"));
  EXPECT_EQ(plan->memory.token_bytes, 31'104);
  EXPECT_EQ(plan->memory.page_count,
            (plan->arena_bytes - plan->memory.weight_bytes) / (16 * 31'104));
  EXPECT_EQ(plan->sequences, plan->memory.page_count / 128);
  EXPECT_EQ(plan->prefill[0].kv_bytes, 512 * 31'104);
  question_.engine.experts_on_host = 3;
  EXPECT_EQ(ErrorField(PlanServing(question_).status()), "--experts-on-host");
}

// Qwen3-30B-A3B as published.
constexpr char kExperts[] = R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
  "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
  "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
  "rope_theta": 1000000.0, "tie_word_embeddings": false, "attention_bias": false,
  "use_sliding_window": false, "torch_dtype": "bfloat16", "eos_token_id": 151645})";

TEST_F(ServingPlanTest, ExpertsAreWeightsOfWhichAStepReadsSome) {
  dir_.Write("config.json", kExperts);
  question_.gpu = *FindGpu("h100");
  const auto plan = PlanServing(question_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->refusal.ok()) << plan->refusal;
  EXPECT_TRUE(plan->served());
  EXPECT_NEAR(static_cast<double>(plan->costs.parameters()), 30.53e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(plan->memory.weight_bytes), 2 * 30.53e9, 0.06e9);
  // 8 of 128 experts, and all else but the embedding.
  const double active =
      48 * (8 * 3.0 * 768 * 2048 + 2048 * (2 * 4096.0 + 2 * 512) + 128 * 2048) + 151936.0 * 2048;
  EXPECT_NEAR(model::DecodeStepBytes(plan->costs, {}, plan->activation, 2, 1, 0).weights,
              2 * active, 0.002 * 2 * active);
  // Results of 2048 rows with 8 experts each, in float32, however many rows a step has.
  question_.engine.max_num_batched_tokens = 2048;
  const int64_t some = PlanServing(question_)->memory.activation_bytes;
  question_.engine.max_num_batched_tokens = 4096;
  const int64_t more = PlanServing(question_)->memory.activation_bytes - some;
  EXPECT_GT(some, more + int64_t{2048} * 8 * 2048 * 4 * 3 / 4);
}

// Qwen3-30B-A3B in 4 bits on a T4, by hand: 18.1 GB of experts in all, of which a layer's, 378 MB,
// are on the device while they are computed.
TEST_F(ServingPlanTest, ExpertsOfAsFewLayersAsMustAreKeptInTheHostsMemory) {
  dir_.Write("config.json", kExperts);
  question_.weights = model::WeightFormat{.bits = 4, .group_size = 32};
  question_.engine.max_model_len = 8192;
  question_.batches = {1, 8};
  const auto refused = PlanServing(question_);
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_THAT(std::string(refused->refusal.message()), HasSubstr("--experts-on-host auto"));
  question_.engine.experts_on_host = std::nullopt;
  const auto plan = PlanServing(question_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->refusal.ok()) << plan->refusal;
  const int layers = plan->memory.experts_on_host;
  const int64_t of_layer = int64_t{128} * 3 * 768 * 2048 * 5 / 8;
  EXPECT_GE(plan->memory.full_sequences(), 1);
  EXPECT_EQ(plan->memory.host_expert_bytes, layers * of_layer);
  EXPECT_EQ(plan->memory.fetched_expert_bytes, of_layer);
  EXPECT_LE(plan->memory.fixed_bytes() + plan->memory.kv_bytes(), plan->arena_bytes);
  // One layer fewer leaves no room for a sequence.
  question_.engine.experts_on_host = layers - 1;
  const auto fewer = PlanServing(question_);
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  EXPECT_TRUE(!fewer->refusal.ok() || fewer->memory.full_sequences() == 0);
  // 8 of 128 experts, and 51.6 that 8 tokens are expected to choose, over 12 GB/s.
  const double of_expert = static_cast<double>(of_layer) / 128;
  EXPECT_NEAR(plan->decode[0].host_ms, layers * 8 * of_expert / 12e9 * 1e3, 1e-6);
  EXPECT_NEAR(plan->decode[1].host_ms / plan->decode[0].host_ms, 51.6 / 8, 0.01);
  EXPECT_EQ(plan->decode[0].floor_ms(), plan->decode[0].memory_ms + plan->decode[0].host_ms);
  // Once a step of 2,048 tokens.
  const double all_ms = layers * 128 * of_expert / 12e9 * 1e3;
  EXPECT_NEAR(plan->prefill[1].host_ms, all_ms, 1e-3);
  EXPECT_NEAR(plan->prefill[2].host_ms, 4 * all_ms, 1e-3);
  // What has crossed the link is read from the device's memory like other weights.
  question_.gpu = *FindGpu("h100");
  question_.engine.experts_on_host = 0;
  const auto resident = PlanServing(question_);
  ASSERT_TRUE(resident.ok()) << resident.status();
  EXPECT_EQ(resident->decode[0].bytes.weights, plan->decode[0].bytes.weights);
  EXPECT_EQ(resident->decode[0].bytes.host, 0);
}

// No number of layers leaves room for 25.8 GB of KV: then as few as leave any.
TEST_F(ServingPlanTest, ASequenceThatNeverFitsMovesNoMoreExpertsThanMust) {
  dir_.Write("config.json", absl::StrReplaceAll(kExperts, {{"40960", "262144"}}));
  question_.weights = model::WeightFormat{.bits = 4, .group_size = 32};
  question_.engine.experts_on_host = std::nullopt;
  const auto plan = PlanServing(question_);
  ASSERT_TRUE(plan.ok() && plan->refusal.ok()) << plan.status();
  EXPECT_EQ(plan->memory.full_sequences(), 0);
  question_.engine.experts_on_host = plan->memory.experts_on_host - 1;
  EXPECT_TRUE(absl::IsResourceExhausted(PlanServing(question_)->refusal));
  question_.gpu = *FindGpu("l4");
  question_.engine.experts_on_host = std::nullopt;
  EXPECT_EQ(PlanServing(question_)->memory.experts_on_host, 0);
}

TEST_F(ServingPlanTest, ARequestedPoolDecidesHowManyExpertsAreKeptInTheHostsMemory) {
  dir_.Write("config.json", kExperts);
  question_.weights = model::WeightFormat{.bits = 4, .group_size = 32};
  question_.engine.experts_on_host = std::nullopt;
  const auto layers = [&](int64_t kv_bytes) {
    question_.engine.kv_cache_bytes = kv_bytes;
    const auto plan = PlanServing(question_);
    EXPECT_TRUE(plan.ok() && plan->refusal.ok()) << plan.status();
    return plan->memory.experts_on_host;
  };
  const int few = layers(int64_t{1} << 28);
  EXPECT_EQ(layers((int64_t{1} << 28) + int64_t{128} * 3 * 768 * 2048 * 5 / 8 * 4), few + 4);
  question_.gpu = *FindGpu("h100");
  EXPECT_EQ(layers(int64_t{1} << 28), 0);
  // None is enough: the plan is that with all of them in the host's memory.
  question_.gpu.memory_bytes = int64_t{1} << 30;
  const auto none = PlanServing(question_);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(absl::IsResourceExhausted(none->refusal));
  EXPECT_EQ(none->memory.experts_on_host, 48);
  EXPECT_THAT(std::string(none->refusal.message()),
              ::testing::Not(HasSubstr("--experts-on-host auto")));
  // A GPU of which the link is not known.
  question_.gpu.host_link_bytes_per_second = 0;
  EXPECT_EQ(ErrorField(PlanServing(question_).status()), "--gpu");
}

TEST_F(ServingPlanTest, MoreExpertsThanTheKernelsTakeAreRefusedByName) {
  dir_.Write("config.json",
             absl::StrReplaceAll(kExperts, {{"_experts\": 128", "_experts\": 513"}}));
  question_.gpu = *FindGpu("h200");
  EXPECT_THAT(std::string(PlanServing(question_).status().message()),
              HasSubstr("the number of experts is 513, expected at most 512"));
  dir_.Write("config.json", absl::StrReplaceAll(kExperts, {{"per_tok\": 8", "per_tok\": 33"}}));
  EXPECT_THAT(std::string(PlanServing(question_).status().message()),
              HasSubstr("num_experts_per_tok is 33, expected at most 32"));
}

TEST_F(ServingPlanTest, Bfloat16KvIsThatOfAuto) {
  question_.gpu = *FindGpu("l4");
  const auto computed = PlanServing(question_);
  question_.engine.kv_dtype = kv::KvDtype::kBF16;
  const auto plan = PlanServing(question_);
  ASSERT_TRUE(plan.ok() && computed.ok()) << plan.status() << computed.status();
  EXPECT_EQ(plan->kv_dtype, kv::KvDtype::kBF16);
  EXPECT_EQ(plan->memory.page_count, computed->memory.page_count);
  EXPECT_EQ(plan->kv_dtypes.size(), computed->kv_dtypes.size());
  question_.gpu = *FindGpu("t4");  // computes in float16
  const absl::Status refused = PlanServing(question_).status();
  EXPECT_EQ(ErrorField(refused), "--kv-cache-dtype");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("bfloat16 given, expected auto, int8"));
}

TEST_F(ServingPlanTest, WithoutAContextItIsWhatTheModelAllows) {
  EXPECT_EQ(PlanServing(question_)->context, 2048);
  question_.engine.max_model_len = 1024;
  const auto plan = PlanServing(question_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->context, 1024);
  EXPECT_EQ(plan->sequences, plan->memory.sequences_of(1024));
  question_.context = 2048;
  EXPECT_EQ(ErrorField(PlanServing(question_).status()), "--context");
}

TEST_F(ServingPlanTest, WrongQuestions) {
  const auto reason = [&] { return ErrorReason(PlanServing(question_).status()); };
  question_.context = 32769;
  EXPECT_EQ(reason(), "MAX_MODEL_LEN_TOO_LONG");
  question_.context.reset();
  question_.engine.max_model_len = 32769;
  EXPECT_EQ(reason(), "MAX_MODEL_LEN_TOO_LONG");
  question_.engine.max_model_len = 0;
  question_.engine.backend.compute = Compute::kBF16;
  EXPECT_EQ(reason(), "BAD_OPTION") << "no bfloat16 on a T4";
  question_.engine.backend.compute = Compute::kAuto;
  question_.engine.backend.gpu_memory_utilization = 1.5;
  EXPECT_EQ(reason(), "BAD_OPTION");
  question_.engine.backend.gpu_memory_utilization = 0.9;
  question_.engine.kv_cache_bytes = 1;
  EXPECT_EQ(reason(), "KV_POOL_SIZE");
  question_.engine.kv_cache_bytes = 0;
  question_.gpu = {.name = "unheard-of"};
  EXPECT_EQ(reason(), "BAD_OPTION");
  question_.gpu = *FindGpu("t4");
  question_.engine.model_dir += "/nothing";
  EXPECT_TRUE(absl::IsNotFound(PlanServing(question_).status()));
}

TEST(GpuFactsTest, TheTableIsWhole) {
  EXPECT_EQ(FindGpu("T4")->name, "t4");
  EXPECT_EQ(FindGpu("A100-40GB")->name, "a100-40gb");
  EXPECT_FALSE(FindGpu("t44").has_value());
  EXPECT_FALSE(FindGpu("").has_value());
  for (const std::string& name : GpuNames()) {
    const auto gpu = FindGpu(name);
    ASSERT_TRUE(gpu.has_value());
    EXPECT_EQ(gpu->name, name);
    EXPECT_EQ(gpu->rate_source, name == "t4" ? "sustained" : "nominal");
    // Every GPU takes between 50 and 500 operations for a byte.
    const double intensity = gpu->flops_per_second / gpu->bytes_per_second;
    EXPECT_TRUE(intensity > 50 && intensity < 500) << name;
    EXPECT_GT(gpu->memory_bytes, int64_t{14} << 30);
    EXPECT_GT(gpu->host_link_bytes_per_second, 10e9);
  }
  EXPECT_EQ(FindGpu("t4")->memory_bytes, int64_t{14'930} << 20);
}

}  // namespace
}  // namespace baton::engine
