#include "cli/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "absl/strings/str_format.h"
#include "tests/cli/qwen05.h"
#include "tests/testing/model_dir.h"

namespace baton::cli {
namespace {

using ::baton::testing::ModelDir;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanCommandTest : public ::testing::Test {
 protected:
  PlanCommandTest() {
    dir_.Write("config.json", kQwen05);
    options_.question.engine.model_dir = dir_.path();
    options_.question.gpu = *engine::FindGpu("t4");
  }
  int Run() {
    out_.str("");
    err_.str("");
    return RunPlan(options_, out_, err_);
  }

  const ModelDir dir_;
  PlanOptions options_;
  std::ostringstream out_, err_;
};

TEST_F(PlanCommandTest, ATableForPeople) {
  ASSERT_EQ(Run(), 0) << err_.str();
  EXPECT_EQ(err_.str(), "");
  for (const char* part :
       {"Qwen2ForCausalLM, 0.49 G parameters, weights float16",
        "t4: 249 GB/s, 24 TFLOPS (sustained)", "14930.0 MiB of t4",
        "12288 bytes of KV per token (GQA)",
        "sequences of 2048 tokens fit; --max-num-seqs lets 64 run at a time", "computed, not"}) {
    EXPECT_THAT(out_.str(), HasSubstr(part));
  }
  // 0.99 GB and 2,048 · 12,288 bytes at 249 GB/s; a prompt of 2,048 in 69 ms, its 25 MB in 20.
  EXPECT_THAT(out_.str(), HasSubstr("       1      1.013       4.07      245.7     memory\n"));
  EXPECT_THAT(out_.str(),
              HasSubstr("    2048       68.6      25.2    201.3 (135.6)       20.1 (0.8)"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("NVLink"))) << "a T4 has none";
  EXPECT_THAT(out_.str(), Not(HasSubstr("does not fit")));
}

TEST_F(PlanCommandTest, JsonForPrograms) {
  options_.json = true;
  options_.question.gpu = *engine::FindGpu("h100");
  options_.question.batches = {1, 1 << 16};
  options_.question.prompts = {2048};
  options_.question.weights = model::WeightFormat{.bits = 4, .group_size = 64};
  ASSERT_EQ(Run(), 0) << err_.str();
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["served"], true);
  EXPECT_TRUE(json["refusal"].is_null());
  EXPECT_TRUE(json["fitting_settings"].empty());
  EXPECT_EQ(json["weights"]["bits"], 4);
  EXPECT_EQ(json["weights"]["group_size"], 64);
  EXPECT_EQ(json["weights"]["dtype"], "bfloat16");
  EXPECT_EQ(json["gpu"]["rates"], "nominal");
  const auto& memory = json["memory"];
  int64_t fixed = 0;
  for (const char* part : {"embedding", "attention", "feed_forward", "norms_and_biases", "lm_head",
                           "rope_tables", "activations", "kernel_workspaces"}) {
    fixed += memory.at(std::string(part) + "_bytes").get<int64_t>();
  }
  EXPECT_EQ(memory["fixed_bytes"], fixed) << "the parts are the whole";
  EXPECT_EQ(memory["kv_bytes"],
            memory["block_bytes"].get<int64_t>() * memory["block_count"].get<int64_t>());
  EXPECT_LE(fixed + memory["kv_bytes"].get<int64_t>(), memory["available_bytes"].get<int64_t>());
  EXPECT_EQ(memory["kv_bytes_per_token"], 12288);
  ASSERT_EQ(json["decode"].size(), 2u);
  EXPECT_EQ(json["decode"][0]["fits"], true);
  EXPECT_EQ(json["decode"][1]["fits"], false);
  ASSERT_EQ(json["prefill"].size(), 1u);
  EXPECT_EQ(json["prefill"][0]["kv_bytes"], 2048 * 12288);
  EXPECT_EQ(json["prefill"][0]["transfers"].back()["link"], "NVLink");
}

TEST_F(PlanCommandTest, QuantizedKvAndTiers) {
  options_.question.engine.kv_dtype = kv::KvDtype::kInt8;
  options_.tiers = *kv_store::ParseTiers("host:1GB,redis:h:1");
  ASSERT_EQ(Run(), 0) << err_.str();
  // 24 layers, K and V of 2 heads: 64 codes, a scale and a zero.
  EXPECT_THAT(out_.str(), HasSubstr("6528 bytes of KV per token (GQA)"));
  EXPECT_THAT(out_.str(), HasSubstr("  int4      KV:     3456 bytes per token"));
  EXPECT_THAT(out_.str(), HasSubstr("  host   164482 tokens\n  redis  as much as"));
  options_.json = true;
  ASSERT_EQ(Run(), 0) << err_.str();
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["memory"]["kv_cache_dtype"], "int8");
  EXPECT_EQ(json["memory"]["kv_cache_dtypes"].size(), 4u);
  EXPECT_EQ(json["kv_tiers"][0]["tokens"], (int64_t{1} << 30) / 6528);
  // 2,048 tokens' 13 MB in 68.6 ms.
  EXPECT_NEAR(json["kv_tiers"][1]["crossover_bytes_per_second"].get<double>(), 0.2e9, 0.02e9);
  // What a step reads is what the pool holds.
  EXPECT_EQ(json["decode"][0]["kv_bytes"], 2048 * 6528);
}

TEST_F(PlanCommandTest, ExpertsInTheHostsMemoryAndTheirLink) {
  dir_.Write("config.json", R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
    "hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "hidden_act": "silu",
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "eos_token_id": 2})");
  options_.question.weights = model::WeightFormat{.bits = 4, .group_size = 32, .symmetric = true};
  options_.question.engine.max_model_len = 4096;
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(err_.str(), HasSubstr("--experts-on-host auto"));
  options_.question.engine.experts_on_host = 32;
  ASSERT_EQ(Run(), 0) << err_.str();
  // 8 experts of 3 matrices, at 4.5 bits a weight.
  const double layer_mib = 8 * 3.0 * 4096 * 14336 * 4.5 / 8 / (1 << 20);
  EXPECT_THAT(out_.str(),
              HasSubstr(absl::StrFormat("  fetched_experts      %10.1f MiB", layer_mib)));
  EXPECT_THAT(out_.str(), HasSubstr(absl::StrFormat("the experts of 32 of 32 layers, %.1f MiB",
                                                    32 * layer_mib)));
  EXPECT_THAT(out_.str(), HasSubstr("cross a link of 12.0 GB/s"));
  EXPECT_THAT(out_.str(), HasSubstr(" host link\n"));
  EXPECT_THAT(out_.str(), HasSubstr("when tokens have chosen them.\n"));
  options_.json = true;
  ASSERT_EQ(Run(), 0) << err_.str();
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["memory"]["experts_on_host"], 32);
  EXPECT_EQ(json["gpu"]["host_link_bytes_per_second"], 12e9);
  const auto& step = json["decode"][0];
  EXPECT_NEAR(step["host_bytes"].get<double>(), 2 * 32 * layer_mib / 8 * (1 << 20), 1e3);
  EXPECT_NEAR(step["floor_ms"].get<double>(),
              step["memory_ms"].get<double>() + step["host_bytes"].get<double>() / 12e6, 1e-6);
  int64_t fixed = 0;
  for (const auto& [name, bytes] : json["memory"].items()) {
    for (const char* part :
         {"embedding", "attention", "feed_forward", "norms_and_biases", "lm_head", "rope_tables",
          "activations", "kernel_workspaces", "fetched_experts"}) {
      if (name == std::string(part) + "_bytes") fixed += bytes.get<int64_t>();
    }
  }
  EXPECT_EQ(json["memory"]["fixed_bytes"], fixed) << "the parts are the whole";
}

// The worker's own error, beside the figures of the plan.
TEST_F(PlanCommandTest, WhatDoesNotFitIsRefused) {
  options_.question.gpu.memory_bytes = int64_t{1} << 30;
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(err_.str(), HasSubstr("baton plan: RESOURCE_EXHAUSTED: the model does not fit"));
  EXPECT_THAT(err_.str(), HasSubstr("[MODEL_TOO_LARGE]"));
  EXPECT_THAT(out_.str(), HasSubstr("0 sequences of 2048 tokens fit"));
  EXPECT_THAT(out_.str(), HasSubstr("does not fit"));
  EXPECT_THAT(out_.str(), EndsWith("\nno smaller weights, KV, steps or context make it fit\n"));
  options_.question.gpu.memory_bytes = int64_t{1300} << 20;
  EXPECT_EQ(Run(), 1);
  // What makes it fit is at the end, above the refusal.
  EXPECT_THAT(out_.str(), HasSubstr("\none of these settings makes it fit\n"));
  EXPECT_THAT(out_.str(), ContainsRegex("\n  --weights int4 [^\n]* [1-9][0-9]* sequences of 2048"));
  options_.json = true;
  EXPECT_EQ(Run(), 1);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["refusal"]["reason"], "MODEL_TOO_LARGE");
  EXPECT_EQ(json["memory"]["block_count"], 0);
  ASSERT_FALSE(json["fitting_settings"].empty());
  for (const auto& setting : json["fitting_settings"]) {
    EXPECT_THAT(setting["flags"].get<std::string>(), HasSubstr("--weights int4"));
    EXPECT_EQ(setting["context"], 2048);
    EXPECT_GT(setting["sequences"], 0);
  }
  EXPECT_GT(json["memory"]["fixed_bytes"].get<int64_t>(), int64_t{1} << 30);
}

TEST_F(PlanCommandTest, WrongQuestionsAreAnsweredWithOneLine) {
  options_.question.context = 40000;
  EXPECT_EQ(Run(), 2);
  EXPECT_EQ(out_.str(), "");
  EXPECT_THAT(err_.str(), HasSubstr("[MAX_MODEL_LEN_TOO_LONG]"));
  options_.question.context = 2048;
  dir_.Write("config.json", "{");
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(err_.str(), HasSubstr("config.json"));
}

}  // namespace
}  // namespace baton::cli
