#include "common/model/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/json/json.h"
#include "common/model/json_fields.h"
#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"

namespace baton::model {
namespace {

using ::baton::testing::GgufBytes;
using ::baton::testing::TinyGguf;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<gguf::File> OpenFile(const GgufBytes& bytes) {
  const baton::testing::ModelDir dir;
  dir.Write("x.gguf", bytes.Bytes());
  return *gguf::File::Open(dir.PathOf("x.gguf"));
}

// The document, or the error.
std::string Config(const GgufBytes& bytes) {
  const auto text = GgufConfigJson(*OpenFile(bytes));
  if (!text.ok()) return text.status().ToString();
  EXPECT_TRUE(json::Parse(*text, "config").ok()) << *text;
  return *text;
}

// So that neither order nor white space counts.
std::string Canonical(const std::string& text) {
  return json::CanonicalText(*json::Parse(text, "document"));
}

// An architecture's keys, without tensors. A list of KV heads is by layer.
template <class KvHeads = uint32_t>
GgufBytes Keys(const std::string& architecture, const KvHeads& kv_heads = 1, uint32_t layers = 1) {
  const auto key = [&](const char* name) { return architecture + "." + name; };
  GgufBytes bytes;
  bytes.Add("general.architecture", architecture)
      .Add(key("context_length"), 64u)
      .Add(key("embedding_length"), 8u)
      .Add(key("block_count"), layers)
      .Add(key("feed_forward_length"), 12u)
      .Add(key("attention.head_count"), 2u)
      .Add(key("attention.head_count_kv"), kv_heads)
      .Add(key("attention.layer_norm_rms_epsilon"), 0.5f)
      .AddTensor("token_embd.weight", {8, 1}, 0, std::string(32, 0));
  return bytes;
}

TEST(GgufConfigTest, SpeaksTheWordsOfHuggingFace) {
  EXPECT_EQ(Canonical(Config(TinyGguf().Add("llama.rope.freq_base", 500000.0f))),
            Canonical(R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,)"
                      R"("eos_token_id":[2],"head_dim":4,)"
                      R"("hidden_size":8,"intermediate_size":256,"max_position_embeddings":64,)"
                      R"("num_attention_heads":2,"num_hidden_layers":1,"num_key_value_heads":1,)"
                      R"("rms_norm_eps":9.9999997473787516e-06,"rope_theta":500000,)"
                      R"("tie_word_embeddings":true,"vocab_size":10})"));
  EXPECT_THAT(Config(Keys("qwen3").Add("qwen3.attention.key_length", 32u)),
              AllOf(HasSubstr("Qwen3ForCausalLM"), HasSubstr(R"("head_dim": 32)")));
  EXPECT_THAT(
      Config(Keys("llama")
                 .AddTensor("output.weight", {8, 1}, 0, std::string(32, 0))
                 .AddTensor("blk.0.attn_q.bias", {8}, 0, std::string(32, 0))),
      AllOf(HasSubstr(R"("attention_bias": true)"), HasSubstr(R"("tie_word_embeddings": false)")));
}

TEST(GgufConfigTest, ReadsRopeScalingAndWindows) {
  const std::string linear = R"("rope_scaling": {"rope_type": "linear", "factor": 2})";
  EXPECT_THAT(Config(Keys("llama").Add("llama.rope.scaling.factor", 2.0f)), HasSubstr(linear));
  EXPECT_THAT(Config(Keys("llama").Add("llama.rope.scale_linear", 2.0f)), HasSubstr(linear));
  EXPECT_THAT(Config(Keys("llama")
                         .Add("llama.rope.scaling.type", "none")
                         .Add("llama.rope.scaling.factor", 2.0f)),
              Not(HasSubstr("rope_scaling")));
  EXPECT_THAT(Config(Keys("llama").Add("llama.attention.sliding_window", 40u)),
              AllOf(HasSubstr("MistralForCausalLM"), HasSubstr(R"("sliding_window": 40)")));
}

TEST(GgufConfigTest, NamesTheFewBitsOfMostMatrices) {
  constexpr uint32_t kQ4 = 2, kQ8 = 8;
  const auto add = [](GgufBytes bytes, const std::string& name, uint32_t type) {
    return bytes.AddTensor(name, {32}, type, std::string(type == kQ4 ? 18 : 34, 0));
  };
  EXPECT_THAT(Config(add(Keys("llama"), "output.weight", kQ4)), Not(HasSubstr("quantization")));
  GgufBytes mixed = add(Keys("llama"), "blk.0.a", kQ8);
  EXPECT_THAT(Config(mixed), HasSubstr(R"({"quant_method": "gguf", "bits": 8, "group_size": 32})"));
  mixed = add(add(mixed, "blk.0.b", kQ4), "blk.0.c", kQ4);
  EXPECT_THAT(Config(mixed), HasSubstr(R"("bits": 4)"));
}

TEST(GgufConfigTest, HasExperts) {
  const std::string mixtral =
      Config(Keys("llama").Add("llama.expert_count", 8u).Add("llama.expert_used_count", 2u));
  EXPECT_THAT(mixtral, AllOf(HasSubstr("MixtralForCausalLM"), HasSubstr("\"num_local_experts\": 8"),
                             HasSubstr("\"num_experts_per_tok\": 2")));
  const std::string qwen = Config(Keys("qwen3moe")
                                      .Add("qwen3moe.expert_count", 128u)
                                      .Add("qwen3moe.expert_used_count", 8u)
                                      .Add("qwen3moe.expert_feed_forward_length", 768u));
  EXPECT_THAT(qwen, AllOf(HasSubstr("\"num_experts\": 128"), HasSubstr("\"norm_topk_prob\": true"),
                          HasSubstr("\"moe_intermediate_size\": 768")));
  EXPECT_THAT(Config(Keys("llama").Add("llama.expert_count", 8u)),
              HasSubstr("llama.expert_used_count: found nothing"));
}

// The layers without KV heads are the recurrent ones.
TEST(GgufConfigTest, HasAttentionWhereItHasKvHeads) {
  const auto lfm2 = [](const std::vector<int32_t>& kv_heads) {
    return Config(Keys("lfm2", kv_heads, 3).Add("lfm2.shortconv.l_cache", 3u));
  };
  EXPECT_THAT(
      lfm2({0, 1, 0}),
      AllOf(HasSubstr("Lfm2ForCausalLM"),
            HasSubstr(R"("layer_types": ["conv", "full_attention", "conv"])"),
            HasSubstr(R"("num_key_value_heads": 1)"), HasSubstr(R"("conv_L_cache": 3)"),
            HasSubstr(R"("block_auto_adjust_ff_dim": false)"), HasSubstr(R"("norm_eps": 0.5)")));
  EXPECT_THAT(lfm2({0, 1, 2}),
              HasSubstr("lfm2.attention.head_count_kv: found 2 of layer 2, expected 1"));
  EXPECT_THAT(lfm2({0, 1}), HasSubstr("lfm2.attention.head_count_kv: found 2 entries, expected 3"));
  EXPECT_THAT(Config(Keys("llama", std::vector<int32_t>{1, 1}, 2)),
              AllOf(HasSubstr(R"("num_key_value_heads": 1)"), Not(HasSubstr("layer_types"))));
  EXPECT_THAT(Config(Keys("llama", std::vector<int32_t>{1, 0}, 2)),
              HasSubstr("llama.attention.head_count_kv: found 0 of layer 1, expected 1"));
  // A Granite hybrid without a recurrent layer.
  const auto dense = [](uint32_t shared) {
    return Config(Keys("granite", std::vector<int32_t>{1, 1}, 2)
                      .Add("granite.ssm.conv_kernel", 4u)
                      .Add("granite.rope.scaling.finetuned", true)
                      .Add("granite.expert_shared_feed_forward_length", shared));
  };
  EXPECT_THAT(dense(12), HasSubstr("GraniteForCausalLM"));
  EXPECT_THAT(dense(16), HasSubstr("granite.expert_shared_feed_forward_length: found 16"));
  EXPECT_THAT(Config(Keys("lfm2moe")
                         .Add("lfm2moe.expert_count", 8u)
                         .Add("lfm2moe.expert_used_count", 2u)
                         .Add("lfm2moe.expert_feed_forward_length", 4u)
                         .Add("lfm2moe.expert_gating_func", 1u)),
              HasSubstr("lfm2moe.expert_gating_func: found a softmax, expected a sigmoid"));
  const auto granite = [](uint32_t width, bool rotates) {
    return Config(Keys("granitehybrid", std::vector<int32_t>{0, 1}, 2)
                      .Add("granitehybrid.ssm.conv_kernel", 4u)
                      .Add("granitehybrid.ssm.state_size", 16u)
                      .Add("granitehybrid.ssm.group_count", 1u)
                      .Add("granitehybrid.ssm.time_step_rank", 2u)
                      .Add("granitehybrid.ssm.inner_size", width)
                      .Add("granitehybrid.rope.scaling.finetuned", rotates));
  };
  EXPECT_THAT(
      granite(24, false),
      AllOf(HasSubstr("GraniteMoeHybridForCausalLM"),
            HasSubstr(R"("layer_types": ["linear_attention", "full_attention"])"),
            HasSubstr(R"("position_embedding_type": "nope")"), HasSubstr(R"("mamba_expand": 3)"),
            HasSubstr(R"("mamba_n_heads": 2)"), HasSubstr(R"("shared_intermediate_size": 12)"),
            HasSubstr(R"("num_local_experts": 0)")));
  EXPECT_THAT(granite(24, true), HasSubstr(R"("position_embedding_type": "rope")"));
  EXPECT_THAT(granite(20, true),
              HasSubstr("granitehybrid.ssm.inner_size: found 20, expected a multiple of 8"));
}

// Qwen3.5's keys, with other sizes; of heads of 8 elements, two rotate.
GgufBytes DeltaKeys(const std::string& architecture, uint32_t layers) {
  const auto key = [&](const char* name) { return architecture + "." + name; };
  return Keys(architecture, 1u, layers)
      .Add(key("attention.key_length"), 8u)
      .Add(key("rope.dimension_count"), 2u)
      .Add(key("ssm.conv_kernel"), 4u)
      .Add(key("ssm.state_size"), 16u)
      .Add(key("ssm.group_count"), 2u)
      .Add(key("ssm.time_step_rank"), 4u);
}

TEST(GgufConfigTest, HasTheDeltaRuleInMostLayers) {
  const auto qwen = [] { return DeltaKeys("qwen35", 4).Add("qwen35.ssm.inner_size", 64u); };
  EXPECT_THAT(
      Config(qwen()
                 .Add("qwen35.full_attention_interval", 2u)
                 .Add("qwen35.rope.dimension_sections", std::vector<int32_t>{11, 11, 10, 0})),
      AllOf(HasSubstr("Qwen3_5ForCausalLM"), HasSubstr(R"("full_attention_interval": 2)"),
            HasSubstr(R"("linear_num_key_heads": 2)"), HasSubstr(R"("linear_num_value_heads": 4)"),
            HasSubstr(R"("linear_key_head_dim": 16)"), HasSubstr(R"("linear_value_head_dim": 16)"),
            HasSubstr(R"("linear_key_heads_in_turn": true)"), Not(HasSubstr("layer_types"))));
  // The last layers are for speculation.
  const auto drafts = [&](uint32_t count, const std::vector<bool>& recurrent) {
    return Config(qwen()
                      .Add("qwen35.nextn_predict_layers", count)
                      .Add("qwen35.full_attention_interval", 4u)
                      .Add("qwen35.attention.recurrent_layers", recurrent));
  };
  EXPECT_THAT(drafts(1, {true, false, true, false}),
              AllOf(HasSubstr(R"("num_hidden_layers": 3)"), Not(HasSubstr("interval")),
                    HasSubstr(R"("layer_types": ["linear_attention", "full_attention", )"
                              R"("linear_attention"])")));
  EXPECT_THAT(drafts(1, {true, false, true}),
              HasSubstr("qwen35.attention.recurrent_layers: found 3 entries, expected 4"));
  EXPECT_THAT(drafts(4, {true, false, true, false}),
              HasSubstr("qwen35.nextn_predict_layers: found 4, expected fewer than 4"));
  EXPECT_THAT(
      Config(qwen().Add("qwen35.rope.dimension_sections", std::vector<int32_t>{0, 11, 10, 8})),
      HasSubstr("qwen35.rope.dimension_sections: found none of the first three sections for pair "
                "0 of 1, expected one"));
  EXPECT_THAT(Config(DeltaKeys("qwen35", 4)), HasSubstr("qwen35.ssm.inner_size: found nothing"));
  EXPECT_THAT(Config(DeltaKeys("qwen35", 4).Add("qwen35.ssm.inner_size", 66u)),
              HasSubstr("qwen35.ssm.inner_size: found 66, expected a multiple of 4"));
  // With experts; the matrices of Qwen3-Next are apart, or as in safetensors files.
  const auto next = [](const char* matrix) {
    return Config(DeltaKeys("qwen3next", 4)
                      .Add("qwen3next.ssm.inner_size", 64u)
                      .Add("qwen3next.expert_count", 8u)
                      .Add("qwen3next.expert_used_count", 2u)
                      .Add("qwen3next.expert_feed_forward_length", 4u)
                      .Add("qwen3next.expert_shared_feed_forward_length", 20u)
                      .AddTensor(matrix, {8, 1}, 0, std::string(32, 0)));
  };
  EXPECT_THAT(next("blk.0.attn_qkv.weight"),
              AllOf(HasSubstr("Qwen3NextForCausalLM"), HasSubstr(R"("num_experts": 8)"),
                    HasSubstr(R"("shared_expert_intermediate_size": 20)"),
                    HasSubstr(R"("linear_matrices_apart": true)")));
  EXPECT_THAT(next("blk.0.ssm_in.weight"), HasSubstr(R"("linear_matrices_apart": false)"));
}

// Which sublayer a layer of Nemotron-H is, its sizes say.
TEST(GgufConfigTest, SaysWhatLayersOfOneSublayerAre) {
  const auto keys = [](const std::string& architecture, const std::vector<int32_t>& kv_heads,
                       const std::vector<int32_t>& ffn, uint32_t width = 32) {
    const auto key = [&](const char* name) { return architecture + "." + name; };
    GgufBytes bytes;
    bytes.Add("general.architecture", architecture)
        .Add(key("context_length"), 64u)
        .Add(key("embedding_length"), 8u)
        .Add(key("block_count"), 3u)
        .Add(key("feed_forward_length"), ffn)
        .Add(key("attention.head_count"), 2u)
        .Add(key("attention.head_count_kv"), kv_heads)
        .Add(key("attention.key_length"), 16u)
        .Add(key("attention.layer_norm_rms_epsilon"), 0.5f)
        .Add(key("attention.layer_norm_epsilon"), 0.5f)
        .Add(key("rope.dimension_count"), 4u)
        .Add(key("rope.scaling.finetuned"), false)
        .Add(key("ssm.conv_kernel"), 4u)
        .Add(key("ssm.state_size"), 16u)
        .Add(key("ssm.group_count"), 1u)
        .Add(key("ssm.time_step_rank"), 2u)
        .Add(key("ssm.inner_size"), width)
        .AddTensor("token_embd.weight", {8, 1}, 0, std::string(32, 0));
    return bytes;
  };
  EXPECT_THAT(
      Config(keys("nemotron_h", {0, 1, 0}, {0, 0, 12})),
      AllOf(HasSubstr("NemotronHForCausalLM"), HasSubstr(R"("hybrid_override_pattern": "M*-")"),
            HasSubstr(R"("intermediate_size": 12)"), HasSubstr(R"("head_dim": 16)"),
            HasSubstr(R"("num_key_value_heads": 1)"), HasSubstr(R"("n_groups": 1)"),
            HasSubstr(R"("mamba_num_heads": 2)"), HasSubstr(R"("mamba_head_dim": 16)"),
            HasSubstr(R"("layer_norm_epsilon": 0.5)"), Not(HasSubstr("layer_types"))));
  const auto moe = [&](uint32_t groups, uint32_t latent, uint32_t gating) {
    return Config(keys("nemotron_h_moe", {0, 1, 0}, {0, 0, 12})
                      .Add("nemotron_h_moe.expert_count", 128u)
                      .Add("nemotron_h_moe.expert_used_count", 6u)
                      .Add("nemotron_h_moe.expert_feed_forward_length", 12u)
                      .Add("nemotron_h_moe.expert_shared_feed_forward_length", 24u)
                      .Add("nemotron_h_moe.expert_shared_count", 1u)
                      .Add("nemotron_h_moe.expert_weights_norm", true)
                      .Add("nemotron_h_moe.expert_weights_scale", 2.5f)
                      .Add("nemotron_h_moe.expert_group_count", groups)
                      .Add("nemotron_h_moe.moe_latent_size", latent)
                      .Add("nemotron_h_moe.expert_gating_func", gating));
  };
  EXPECT_THAT(moe(1, 0, 2),
              AllOf(HasSubstr(R"("hybrid_override_pattern": "M*E")"),
                    HasSubstr(R"("n_routed_experts": 128)"), HasSubstr(R"("n_group": 1)"),
                    HasSubstr(R"("num_experts_per_tok": 6)"),
                    HasSubstr(R"("moe_shared_expert_intermediate_size": 24)"),
                    HasSubstr(R"("routed_scaling_factor": 2.5)"),
                    HasSubstr(R"("norm_topk_prob": true)"), Not(HasSubstr("moe_latent_size"))));
  EXPECT_THAT(moe(1, 8, 2), HasSubstr(R"("moe_latent_size": 8)")) << "which its reader refuses";
  EXPECT_THAT(moe(1, 0, 1),
              HasSubstr("nemotron_h_moe.expert_gating_func: found a softmax, expected a sigmoid"));

  EXPECT_THAT(Config(keys("nemotron_h", {0, 1, 0}, {0, 12, 12})),
              HasSubstr("nemotron_h.attention.head_count_kv: found 1 of layer 1 beside a "
                        "feed-forward of 12, expected one of both"));
  EXPECT_THAT(Config(keys("nemotron_h", {0, 1, 0}, {16, 0, 12})),
              HasSubstr("nemotron_h.feed_forward_length: found 12 of layer 2, expected 16"));
  EXPECT_THAT(Config(keys("nemotron_h", {0, 1, 0}, {0, 12})),
              HasSubstr("nemotron_h.feed_forward_length: found 2 entries, expected 3"));
  EXPECT_THAT(Config(keys("nemotron_h", {0, 1, 2}, {0, 0, 0})),
              HasSubstr("nemotron_h.attention.head_count_kv: found 2 of layer 2, expected 1"));
  EXPECT_THAT(Config(keys("nemotron_h", {0, 1, 0}, {0, 0, 12}, 33)),
              HasSubstr("nemotron_h.ssm.inner_size: found 33, expected a multiple of 2"));
}

// DeepSeek-V2-Lite's keys, with other sizes.
GgufBytes LatentKeys(uint32_t experts) {
  return Keys("deepseek2")
      .Add("deepseek2.attention.kv_lora_rank", 32u)
      .Add("deepseek2.rope.dimension_count", 16u)
      .Add("deepseek2.attention.key_length_mla", 40u)
      .Add("deepseek2.attention.value_length_mla", 24u)
      .Add("deepseek2.attention.key_length", 48u)
      .Add("deepseek2.attention.value_length", 32u)
      .Add("deepseek2.expert_count", experts)
      .Add("deepseek2.expert_used_count", 2u)
      .Add("deepseek2.expert_shared_count", 2u)
      .Add("deepseek2.expert_feed_forward_length", 16u);
}

TEST(GgufConfigTest, HasLatentsAndGroupsOfExperts) {
  EXPECT_THAT(Config(LatentKeys(64)),
              AllOf(HasSubstr("DeepseekV2ForCausalLM"), HasSubstr("\"kv_lora_rank\": 32"),
                    HasSubstr("\"qk_nope_head_dim\": 24"), HasSubstr("\"v_head_dim\": 24"),
                    HasSubstr("\"norm_topk_prob\": false"), Not(HasSubstr("n_group"))));
  EXPECT_THAT(Config(LatentKeys(160)
                         .Add("deepseek2.expert_gating_func", 2u)
                         .Add("deepseek2.expert_group_count", 8u)
                         .Add("deepseek2.expert_group_used_count", 3u)),
              AllOf(HasSubstr("Glm4MoeLiteForCausalLM"), HasSubstr("\"norm_topk_prob\": false"),
                    HasSubstr("\"n_group\": 8"), HasSubstr("\"topk_group\": 3")));
  // DeepSeek-V2 before the keys of its groups.
  EXPECT_THAT(Config(LatentKeys(160)),
              HasSubstr("deepseek2.expert_count: found 160 without deepseek2.expert_group_count, "
                        "expected at most 64, or that key"));
}

TEST(GgufConfigTest, LatentsOfAbsurdSizesAreRefused) {
  for (const char* name : {"attention.kv_lora_rank", "rope.dimension_count", "attention.key_length",
                           "attention.value_length"}) {
    const std::string key = absl::StrCat("deepseek2.", name);
    for (const int64_t size : {INT64_MIN, int64_t{-1}, INT64_MAX}) {
      GgufBytes bytes = Keys("deepseek2");
      for (const char* other : {"attention.kv_lora_rank", "rope.dimension_count",
                                "attention.key_length", "attention.value_length"}) {
        if (other != absl::string_view(name)) bytes.Add(absl::StrCat("deepseek2.", other), 16u);
      }
      EXPECT_THAT(Config(bytes.Add(key, size)),
                  HasSubstr(absl::StrCat(key, ": found ", size, ", expected 0 to 131072")));
    }
  }
}

TEST(GgufConfigTest, RefusesByName) {
  const auto refused = [](const GgufBytes& bytes, const std::string& message) {
    EXPECT_THAT(Config(bytes), AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("x.gguf: " + message)));
  };
  refused(Keys("mamba"),
          "general.architecture: found \"mamba\", expected one of llama, qwen2, qwen3");
  refused(Keys("qwen2").Add("qwen2.expert_count", 8u), "qwen2.expert_count: found 8");
  refused(Keys("llama").AddRaw("llama.expert_count", 5, std::string(4, static_cast<char>(0xff))),
          "llama.expert_count: found -1");
  refused(Keys("llama")
              .Add("llama.expert_count", 8u)
              .Add("llama.expert_used_count", 2u)
              .Add("llama.expert_feed_forward_length", 1u),
          "llama.expert_feed_forward_length: found 1, expected ");
  refused(Keys("llama").Add("llama.rope.scaling.type", "su"),
          "llama.rope.scaling.type: found \"su\", expected linear, yarn, longrope or none");
  refused(Keys("llama").Add("llama.rope.dimension_count", 2u),
          "llama.rope.dimension_count: found 2, expected 4");
  refused(Keys("llama").Add("llama.attention.value_length", 8u),
          "llama.attention.value_length: found 8, expected 4");
  refused(Keys("llama").Add("llama.attention.causal", false), "llama.attention.causal");
  refused(Keys("llama").Add("llama.logit_scale", 2.0f), "llama.logit_scale: found one");
  refused(Keys("qwen2").Add("qwen2.attention.sliding_window", 40u),
          "qwen2.attention.sliding_window: found one, expected none");
  refused(Keys("llama").Add("llama.rope.scaling.type", "longrope"),
          "llama.rope.scaling.type: found longrope, expected none in llama");
  refused(Keys("qwen2").AddTensor("rope_factors_long.weight", {2}, 0, std::string(8, 0)),
          "rope_factors_long.weight: found longrope, expected none in qwen2");
  refused(Keys("gemma3").Add("gemma3.attention.key_length_swa", 8u),
          "gemma3.attention.key_length_swa: found 8, expected 4");
  refused(Keys("llama").Add("llama.rope.scaling.attn_factor", 2.0f),
          "llama.rope.scaling.attn_factor: found 2, expected 1 or none");
}

TEST(GgufConfigTest, RefusesEveryHyperparameterThatNothingReads) {
  for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping", "embedding_scale",
                           "attention.clamp_kqv", "attention.key_length_mla", "expert_used_count",
                           "nextn_predict_layers", "attention.temperature_length",
                           "rope.freq_base_swa", "a.key.of.tomorrow"}) {
    const std::string key = absl::StrCat("qwen3.", name);
    EXPECT_THAT(Config(Keys("qwen3").Add(key, 2u)),
                AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr(key + ": found one, expected none")));
    EXPECT_THAT(Config(Keys("qwen3").Add(key, 0u)), HasSubstr("Qwen3ForCausalLM"));
  }
  EXPECT_THAT(Config(Keys("llama")
                         .Add("llama.vocab_size", 10u)
                         .Add("llama.tensor_data_layout", "Meta AI original pth")
                         .Add("llama.rope.scaling.original_context_length", 64u)
                         .Add("llama.rope.scaling.attn_factor", 1.0f)
                         .Add("qwen2.logit_scale", 2.0f)
                         .Add("general.name", "a name")),
              HasSubstr("LlamaForCausalLM"));
}

// Any part of a head, exactly.
TEST(GgufConfigTest, TheRotatedPartOfAHead) {
  for (uint32_t head = 2; head <= 512; head += 2) {
    for (uint32_t rotated = 2; rotated < head; rotated += 2) {
      const double share = (rotated + 0.25) / head;
      ASSERT_EQ(static_cast<uint32_t>(head * share), rotated) << head;
    }
  }
  const std::string text = Config(
      Keys("phi3").Add("phi3.attention.key_length", 30u).Add("phi3.rope.dimension_count", 22u));
  const auto document = json::Parse(text, "config");
  ASSERT_TRUE(document.ok()) << text;
  const auto fields = JsonFields::Make(*document, "config");
  EXPECT_EQ(static_cast<int>(30 * *fields->Real("partial_rotary_factor", 0, 1)), 22);
}

TEST(GgufConfigTest, TwoSpellingsOfAFactorAgree) {
  const auto both = [](float old_factor) {
    return Config(Keys("llama")
                      .Add("llama.rope.scaling.factor", 2.0f)
                      .Add("llama.rope.scale_linear", old_factor));
  };
  EXPECT_THAT(both(2), HasSubstr(R"("factor": 2)"));
  EXPECT_THAT(both(4), AllOf(HasSubstr("INVALID_ARGUMENT"),
                             HasSubstr("llama.rope.scaling.factor: found 2 beside "
                                       "llama.rope.scale_linear 4")));
}

TEST(GgufConfigTest, NamesWhatIsMissingOrMalformed) {
  const auto invalid = [](const GgufBytes& bytes, const std::string& message) {
    EXPECT_THAT(Config(bytes),
                AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("x.gguf: " + message)));
  };
  invalid(GgufBytes(), "general.architecture: found nothing");
  invalid(Keys("phi3").Add("phi3.rope.scaling.type", "longrope"),
          "rope_factors_short.weight: found nothing, expected an F32 tensor");
  invalid(Keys("phi3")
              .AddTensor("rope_factors_short.weight", {2}, 0, std::string(8, 0))
              .AddTensor("rope_factors_long.weight", {2}, 0, std::string(8, 0)),
          "rope_factors_short.weight: found a factor that is no positive number");
  invalid(GgufBytes().Add("general.architecture", "llama"),
          "llama.embedding_length: found nothing, expected an integer");
  GgufBytes lists;
  lists.Add("general.architecture", "llama")
      .Add("llama.embedding_length", 8u)
      .Add("llama.block_count", 1u)
      .Add("llama.feed_forward_length", std::vector<int32_t>{12, 12});
  invalid(lists, "llama.feed_forward_length: found a list of 2, expected an integer");
}

}  // namespace
}  // namespace baton::model
