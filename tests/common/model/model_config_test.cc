#include "common/model/model_config.h"

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/request_limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"

namespace baton::model {
namespace {

using baton::testing::ModelDir;
using baton::testing::SafetensorsBytes;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

json Llama() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 256,
      "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
      "torch_dtype": "bfloat16", "eos_token_id": [2, 7]})");
}

json Changed(json config, const std::string& patch) {
  config.merge_patch(json::parse(patch));  // null removes
  return config;
}

json Of(const std::string& architecture) {
  json config = Llama();
  config["architectures"] = {architecture};
  if (architecture == "Qwen3ForCausalLM") config["head_dim"] = 32;
  return config;
}

class ModelConfigTest : public ::testing::Test {
 protected:
  ModelConfigTest() { dir_.Write("model.safetensors", SafetensorsBytes("{}", "")); }
  absl::StatusOr<ModelConfig> Load(const json& config) {
    dir_.Write("config.json", config.dump());
    return LoadModelConfig(dir_.path());
  }
  ModelConfig MustLoad(const json& config) {
    auto model = Load(config);
    EXPECT_TRUE(model.ok()) << model.status();
    if (model.ok()) return *std::move(model);
    ModelConfig empty;
    empty.layers.resize(4);
    return empty;
  }
  void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& file,
                   const std::string& message) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(dir_.PathOf(file)));
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  std::vector<int> Windows(const json& config) {
    std::vector<int> windows;
    for (const LayerSpec& layer : MustLoad(config).layers)
      windows.push_back(layer.attention().window);
    return windows;
  }

  ModelDir dir_;
};

TEST_F(ModelConfigTest, Llama) {
  const ModelConfig model = MustLoad(Llama());
  EXPECT_EQ(model.architecture, "LlamaForCausalLM");
  EXPECT_EQ(model.hidden_dim, 64);
  EXPECT_EQ(model.vocab_size, 100);
  EXPECT_EQ(model.token_count, 100);
  EXPECT_EQ(model.max_positions, 256);
  EXPECT_FALSE(model.tied_embeddings);
  EXPECT_EQ(model.weight_dtype, backend::DType::kBF16);
  EXPECT_THAT(model.eos_token_ids, ElementsAre(2, 7));
  ASSERT_EQ(model.layers.size(), 4);
  EXPECT_FLOAT_EQ(model.norm_eps, 1e-5f);
  EXPECT_EQ(model.layers[3].mlp().ffn_dim, 96);
  const AttentionSpec& attention = model.layers[3].attention();
  EXPECT_EQ(attention.query_heads, 4);
  EXPECT_EQ(attention.kv_heads, 2);
  EXPECT_EQ(attention.head_dim, 16);
  EXPECT_FLOAT_EQ(attention.scale, 0.25f);
  EXPECT_FALSE(attention.qkv.bias || attention.q_norm || attention.k_norm);
  EXPECT_EQ(attention.window, 0);
  EXPECT_EQ(attention.rope, 0);
  ASSERT_EQ(model.ropes[0].inverse_frequencies.size(), 8);
  EXPECT_DOUBLE_EQ(model.ropes[0].inverse_frequencies[1], std::pow(500000.0, -1.0 / 8));
  EXPECT_EQ(model.ropes[0].factor, 1);
  EXPECT_EQ(model.tokenizer_fingerprint, 0);
}

TEST_F(ModelConfigTest, OtherArchitectures) {
  const ModelConfig qwen2 = MustLoad(Of("Qwen2ForCausalLM"));
  EXPECT_TRUE(qwen2.layers[0].attention().qkv.bias);
  EXPECT_FALSE(qwen2.layers[0].attention().q_norm);
  const ModelConfig qwen3 = MustLoad(Of("Qwen3ForCausalLM"));
  EXPECT_TRUE(qwen3.layers[0].attention().q_norm);
  EXPECT_FALSE(qwen3.layers[0].attention().qkv.bias);
  EXPECT_EQ(qwen3.layers[0].attention().head_dim, 32);
  for (const json& config : {Of("Qwen3ForCausalLM"), Llama()}) {
    const ModelConfig biased = MustLoad(Changed(config, R"({"attention_bias": true})"));
    EXPECT_TRUE(biased.layers[0].attention().qkv.bias);
  }
}

TEST_F(ModelConfigTest, Windows) {
  const json qwen = Of("Qwen2ForCausalLM");
  EXPECT_THAT(Windows(Changed(qwen, R"({"sliding_window": 32, "max_window_layers": 2})")),
              ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Windows(Changed(qwen, R"({"use_sliding_window": true, "sliding_window": 32,
                                        "max_window_layers": 2})")),
              ElementsAre(0, 0, 32, 32));
  EXPECT_THAT(Windows(Changed(qwen, R"({"use_sliding_window": true, "sliding_window": 32,
      "layer_types": ["sliding_attention", "full_attention", "full_attention",
                      "sliding_attention"]})")),
              ElementsAre(32, 0, 0, 32));
  json mistral = Of("MistralForCausalLM");
  EXPECT_THAT(Windows(Changed(mistral, R"({"sliding_window": 40})")), ElementsAre(40, 40, 40, 40));
  EXPECT_THAT(Windows(mistral), ElementsAre(4096, 4096, 4096, 4096));  // as MistralConfig has it
  mistral["sliding_window"] = nullptr;
  EXPECT_THAT(Windows(mistral), ElementsAre(0, 0, 0, 0));
}

TEST_F(ModelConfigTest, RopeInBothForms) {
  const char* old_forms[] = {
      R"({"rope_scaling": {"type": "linear", "factor": 4}})",
      R"({"rope_scaling": {"rope_type": "linear", "factor": 4.0}})",
      R"({"rope_theta": null, "rope_parameters": {"rope_type": "linear", "factor": 4.0,
                                                  "rope_theta": 500000}})",
      R"({"rope_parameters": {"rope_type": "linear", "factor": 4.0}})",
  };
  for (const char* form : old_forms) {
    EXPECT_DOUBLE_EQ(MustLoad(Changed(Llama(), form)).ropes[0].inverse_frequencies[1],
                     std::pow(500000.0, -1.0 / 8) / 4)
        << form;
  }
  for (const char* form : {R"({"rope_theta": null})", R"({"rope_theta": 10000})",
                           R"({"rope_theta": null, "rope_parameters": {"rope_type": "default"}})",
                           R"({"rope_theta": null, "rope_parameters": {"rope_theta": 10000}})"}) {
    EXPECT_DOUBLE_EQ(MustLoad(Changed(Llama(), form)).ropes[0].inverse_frequencies[1],
                     std::pow(10000.0, -1.0 / 8))
        << form;
  }
  EXPECT_EQ(MustLoad(Changed(Llama(), R"({"torch_dtype": null, "dtype": "float16"})")).weight_dtype,
            backend::DType::kF16);
}

// Transformers' own figures for Llama-3.2-1B: short wavelengths keep, long ones are divided by 32.
TEST_F(ModelConfigTest, Llama3Scaling) {
  const json config = Changed(Llama(), R"({"head_dim": 64, "max_position_embeddings": 131072,
      "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                       "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})");
  const std::vector<double> scaled = MustLoad(config).ropes[0].inverse_frequencies;
  ASSERT_EQ(scaled.size(), 32);
  const auto plain = [](int i) { return std::pow(500000.0, -i / 32.0); };
  EXPECT_DOUBLE_EQ(scaled[0], 1);
  EXPECT_DOUBLE_EQ(scaled[14], plain(14));
  EXPECT_DOUBLE_EQ(scaled[18], plain(18) / 32);
  EXPECT_DOUBLE_EQ(scaled[31], plain(31) / 32);
  const double turns = 8192 * plain(16) / (2 * M_PI);  // between 1 and 4
  const double blend = (turns - 1) / 3;
  EXPECT_DOUBLE_EQ(scaled[16], (1 - blend) * plain(16) / 32 + blend * plain(16));
}

TEST_F(ModelConfigTest, RefusesEveryBadConfig) {
  using absl::StatusCode;
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  constexpr StatusCode kUnsupported = StatusCode::kUnimplemented;
  const struct {
    const char* architecture;
    const char* patch;
    StatusCode code;
    const char* message;
  } cases[] = {
      {"GPT2LMHeadModel", "{}", kUnsupported, "architectures: found \"GPT2LMHeadModel\""},
      {"Llama", R"({"architectures": null})", kInvalid, "architectures: found 0 names"},
      {"Llama", R"({"architectures": ["A", "B"]})", kInvalid, "architectures: found 2 names"},
      {"Llama", R"({"architectures": "LlamaForCausalLM"})", kInvalid, "architectures: found"},
      {"Llama", R"({"hidden_size": null})", kInvalid, "hidden_size: found nothing"},
      {"Llama", R"({"hidden_size": 4294967360})", kInvalid, "hidden_size: found 4294967360"},
      {"Llama", R"({"hidden_size": 64.5})", kInvalid, "hidden_size: found 64.5"},
      {"Llama", R"({"hidden_size": "64"})", kInvalid, "hidden_size: found \"64\""},
      {"Llama", R"({"hidden_size": 66})", kInvalid, "hidden_size: found 66 without a head_dim"},
      {"Llama", R"({"head_dim": 15})", kInvalid, "head_dim: found 15"},
      {"Llama", R"({"head_dim": -16})", kInvalid, "head_dim: found -16"},
      {"Llama", R"({"num_hidden_layers": 0})", kInvalid, "num_hidden_layers: found 0"},
      {"Llama", R"({"num_hidden_layers": 100000})", kInvalid, "num_hidden_layers: found 100000"},
      {"Llama", R"({"num_attention_heads": 0})", kInvalid, "num_attention_heads: found 0"},
      {"Llama", R"({"num_key_value_heads": 3})", kInvalid, "num_key_value_heads: found 3"},
      {"Llama", R"({"intermediate_size": -1})", kInvalid, "intermediate_size: found -1"},
      {"Llama", R"({"vocab_size": 2147483647})", kInvalid, "vocab_size: found 2147483647"},
      {"Llama", R"({"max_position_embeddings": 0})", kInvalid, "max_position_embeddings: found 0"},
      {"Llama", R"({"rms_norm_eps": 0})", kInvalid, "rms_norm_eps: found 0"},
      {"Llama", R"({"rope_theta": -1})", kInvalid, "rope_theta: found -1"},
      {"Llama", R"({"eos_token_id": 100})", kInvalid, "eos_token_id: found 100"},
      {"Llama", R"({"eos_token_id": [1, "x"]})", kInvalid, "eos_token_id[1]: found \"x\""},
      {"Llama", R"({"tie_word_embeddings": 1})", kInvalid, "tie_word_embeddings: found 1"},
      {"Llama", R"({"hidden_act": "gelu"})", kUnsupported, "hidden_act: found \"gelu\""},
      {"Llama", R"({"torch_dtype": "int8"})", kUnsupported, "torch_dtype: found \"int8\""},
      {"Llama", R"({"torch_dtype": null, "dtype": "float64"})", kUnsupported,
       "dtype: found \"float64\""},
      {"Llama", R"({"mlp_bias": true})", kUnsupported, "mlp_bias: found true"},
      {"Llama", R"({"quantization_config": {"bits": 4}})", kUnsupported,
       "quantization_config.quant_method"},
      {"Llama", R"({"partial_rotary_factor": 0.5})", kUnsupported, "partial_rotary_factor"},
      {"Llama", R"({"rope_scaling": 4})", kInvalid, "rope_scaling: found 4"},
      {"Llama", R"({"rope_scaling": {"type": "longrope"}})", kUnsupported,
       "rope_scaling.type: found \"longrope\", expected default, linear, llama3 or yarn"},
      {"Llama", R"({"rope_scaling": {"type": "yarn", "llama_4_scaling_beta": 0.5}})", kUnsupported,
       "rope_scaling.llama_4_scaling_beta: found 0.5, expected none with rope_type yarn"},
      {"Llama", R"({"rope_parameters": {"rope_type": "dynamic"}})", kUnsupported,
       "rope_parameters.rope_type: found \"dynamic\""},
      {"Llama", R"({"rope_parameters": {"full_attention": {"rope_theta": 10000}}})", kUnsupported,
       "rope_parameters.full_attention: found an object"},
      {"Llama", R"({"rope_scaling": {"factor": 8.0}})", kUnsupported,
       "rope_scaling.rope_type: found nothing beside factor 8"},
      {"Llama", R"({"rope_parameters": {"rope_theta": 500000, "factor": 8.0}})", kUnsupported,
       "rope_parameters.rope_type: found nothing beside factor 8"},
      {"Llama", R"({"rope_scaling": {"low_freq_factor": 1, "high_freq_factor": 4}})", kUnsupported,
       "rope_scaling.high_freq_factor: found 4, expected none with rope_type default"},
      {"Llama", R"({"rope_scaling": {"rope_type": "default", "factor": 8.0}})", kUnsupported,
       "rope_scaling.factor: found 8, expected none with rope_type default"},
      {"Llama", R"({"rope_scaling": {"type": "linear", "factor": 8.0, "attention_factor": 2}})",
       kUnsupported, "rope_scaling.attention_factor: found 2, expected none with rope_type linear"},
      {"Llama", R"({"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}})",
       kUnsupported, "rope_parameters.mrope_section: found a list"},
      {"Llama", R"({"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 8.0}})",
       kInvalid, "rope_scaling.rope_type: found \"llama3\" beside type \"linear\""},
      {"Llama", R"({"rope_parameters": {"rope_theta": 10000}})", kInvalid,
       "rope_parameters.rope_theta: found 10000, expected 500000"},
      {"Llama", R"({"rope_scaling": {"type": "linear", "factor": 2},
                    "rope_parameters": {"rope_type": "linear", "factor": 2}})",
       kInvalid, "rope_scaling: found one beside rope_parameters"},
      {"Llama", R"({"original_max_position_embeddings": 64, "rope_scaling": {"rope_type": "llama3",
                    "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                    "original_max_position_embeddings": 32}})",
       kInvalid, "rope_scaling.original_max_position_embeddings: found 32, expected 64"},
      {"Llama", R"({"dtype": "float16"})", kInvalid,
       "dtype: found \"float16\" beside torch_dtype \"bfloat16\""},
      {"Llama", R"({"model_type": "gemma2"})", kUnsupported,
       "model_type: found \"gemma2\", expected \"llama\" with LlamaForCausalLM"},
      {"Llama", R"({"rope_scaling": {"type": "linear"}})", kInvalid,
       "rope_scaling.factor: found nothing"},
      {"Llama", R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
                    "high_freq_factor": 1}})",
       kInvalid, "rope_scaling.high_freq_factor: found 1"},
      {"Llama", R"({"layer_types": ["full_attention"]})", kInvalid, "layer_types: found 1 entries"},
      {"Llama", R"({"layer_types": ["full_attention", "full_attention", "linear_attention",
                                    "full_attention"]})",
       kUnsupported, "layer_types[2]: found \"linear_attention\""},
      {"Qwen2", R"({"use_sliding_window": true, "max_window_layers": 2})", kInvalid,
       "sliding_window: found nothing"},
      {"Qwen2", R"({"use_sliding_window": true, "sliding_window": 0})", kInvalid,
       "sliding_window: found 0"},
      {"Qwen3", R"({"head_dim": null})", kInvalid, "head_dim: found nothing"},
      {"Qwen3", R"({"num_experts": 8})", kUnsupported, "num_experts"},
      {"Mistral", R"({"num_key_value_heads": null})", kInvalid,
       "num_key_value_heads: found nothing"},
      {"Mistral", R"({"sliding_window": -5})", kInvalid, "sliding_window: found -5"},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.patch);
    std::string architecture = bad.architecture;
    if (architecture.find("Model") == std::string::npos) architecture += "ForCausalLM";
    ExpectError(Load(Changed(Of(architecture), bad.patch)).status(), bad.code, "config.json",
                bad.message);
  }
}

// Each key would change what is computed, and nothing reads it.
TEST_F(ModelConfigTest, RefusesKeysOfOtherComputations) {
  for (const char* key : {"num_experts",
                          "num_local_experts",
                          "n_routed_experts",
                          "num_experts_per_tok",
                          "attn_logit_softcapping",
                          "final_logit_softcapping",
                          "logits_soft_cap",
                          "query_pre_attn_scalar",
                          "logit_scale",
                          "logits_scaling",
                          "embedding_multiplier",
                          "residual_multiplier",
                          "attention_multiplier",
                          "scale_emb",
                          "scale_depth",
                          "clip_qkv",
                          "attention_chunk_size",
                          "sliding_window_pattern",
                          "rope_local_base_freq",
                          "rotary_pct",
                          "rotary_emb_base",
                          "alibi",
                          "position_embedding_type",
                          "original_max_position_embeddings",
                          "no_rope_layers",
                          "layer_norm_eps",
                          "norm_bias",
                          "use_qk_norm",
                          "qk_layernorm",
                          "lm_head_bias",
                          "hidden_activation",
                          "use_parallel_residual",
                          "parallel_attn",
                          "kv_lora_rank",
                          "num_kv_shared_layers",
                          "mlp_only_layers",
                          "first_k_dense_replace",
                          "mamba_d_state",
                          "compression_config",
                          "quantization",
                          "pruned_heads",
                          "is_encoder_decoder",
                          "use_bidirectional_attention",
                          "hidden_size_per_layer_input",
                          "use_mrope",
                          "mlp_bias"}) {
    SCOPED_TRACE(key);
    for (const char* value : {"2", "true", "\"x\"", "[1]", R"({"a": 1})"}) {
      ExpectError(Load(Changed(Llama(), absl::StrCat("{\"", key, "\": ", value, "}"))).status(),
                  absl::StatusCode::kUnimplemented, "config.json", absl::StrCat(key, ": found "));
    }
    // Files of larger families have the key, switched off.
    json off = Llama();
    for (const json& value : {json(nullptr), json(false), json(0), json(0.0), json(""),
                              json::array(), json::object()}) {
      off[key] = value;
      MustLoad(off);
    }
  }
  MustLoad(Changed(Llama(), R"({"logit_scale": 1.0, "embedding_multiplier": 1})"));
  // Llama has no window; a file that was converted from Qwen has the keys of one, switched off.
  ExpectError(Load(Changed(Llama(), R"({"sliding_window": 40})")).status(),
              absl::StatusCode::kUnimplemented, "config.json", "sliding_window: found 40");
  EXPECT_THAT(Windows(Changed(Llama(), R"({"sliding_window": 40, "use_sliding_window": false,
                                           "max_window_layers": 2})")),
              ElementsAre(0, 0, 0, 0));
}

// What published files of Llama, Qwen and Mistral have beside what is read.
TEST_F(ModelConfigTest, TakesKeysThatChangeNothing) {
  const char* patch =
      R"({"_name_or_path": "x", "model_type": "llama", "transformers_version": "5.24.0",
      "use_cache": true, "bos_token_id": 1, "pad_token_id": 0, "sep_token_id": 3,
      "initializer_range": 0.02, "attention_dropout": 0.1, "hidden_dropout_prob": 0.1,
      "resid_pdrop": 0.1, "classifier_dropout": 0.1, "pretraining_tp": 2, "output_attentions": true,
      "output_hidden_states": true, "return_dict": true, "chunk_size_feed_forward": 0,
      "is_encoder_decoder": false, "is_decoder": true, "add_cross_attention": false,
      "cross_attention_hidden_size": null, "pruned_heads": {}, "tie_encoder_decoder": false,
      "_attn_implementation_autoset": true, "attn_implementation": "sdpa", "use_flash_attn": true,
      "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "x",
      "auto_map": {"AutoConfig": "c.C"}, "gradient_checkpointing": true, "router_aux_loss_coef": 0.01,
      "max_window_layers": 28, "use_mrope": false, "unsloth_version": "2024.9", "max_length": 20,
      "temperature": 0.7, "tokenizer_class": "T", "task_specific_params": {"a": {}}})";
  const ModelConfig plain = MustLoad(Llama()), model = MustLoad(Changed(Llama(), patch));
  EXPECT_EQ(model.layers.size(), plain.layers.size());
  EXPECT_EQ(model.ropes[0].inverse_frequencies, plain.ropes[0].inverse_frequencies);
}

TEST_F(ModelConfigTest, LogsUnknownKeysByName) {
  ::testing::internal::CaptureStderr();
  MustLoad(Changed(Llama(), R"({"unsloth_version": "1", "weather": "sunny", "use_cache": true})"));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("config.json: unsloth_version, weather: not read"));
  EXPECT_THAT(log, Not(HasSubstr("use_cache")));
}

TEST_F(ModelConfigTest, RopeParametersBesideEmptyOnesAndEqualSpellings) {
  for (
      const char* patch :
      {R"({"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 4}})",
       R"({"rope_parameters": {}, "rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 4}})",
       R"({"rope_parameters": {"rope_theta": 500000, "rope_type": "linear", "factor": 4,
                                "partial_rotary_factor": 1.0}})"}) {
    EXPECT_DOUBLE_EQ(MustLoad(Changed(Llama(), patch)).ropes[0].inverse_frequencies[1],
                     std::pow(500000.0, -1.0 / 8) / 4)
        << patch;
  }
  const char* inside =
      R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 64}})";
  const char* outside = R"({"original_max_position_embeddings": 64, "rope_scaling": {
      "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}})";
  EXPECT_EQ(MustLoad(Changed(Llama(), inside)).ropes[0].inverse_frequencies,
            MustLoad(Changed(Llama(), outside)).ropes[0].inverse_frequencies);
}

TEST_F(ModelConfigTest, RefusesGenerationThatBatonDoesNotApply) {
  for (const char* text :
       {R"({"num_beams": 4})", R"({"no_repeat_ngram_size": 3})", R"({"min_new_tokens": 5})",
        R"({"min_length": 5})", R"({"bad_words_ids": [[5]]})", R"({"suppress_tokens": [5]})",
        R"({"begin_suppress_tokens": [5]})", R"({"forced_eos_token_id": 5})",
        R"({"sequence_bias": [[[5], 1.0]]})", R"({"guidance_scale": 2})",
        R"({"stop_strings": ["x"]})", R"({"penalty_alpha": 0.6})",
        R"({"encoder_repetition_penalty": 1.2})", R"({"watermarking_config": {"bias": 2}})",
        R"({"do_sample": true, "typical_p": 0.9})", R"({"do_sample": true, "top_h": 0.4})",
        R"({"do_sample": true, "epsilon_cutoff": 0.1})",
        R"({"do_sample": true, "eta_cutoff": 0.1})"}) {
    SCOPED_TRACE(text);
    dir_.Write("generation_config.json", text);
    const std::string key = json::parse(text).rbegin().key() == "do_sample"
                                ? json::parse(text).begin().key()
                                : json::parse(text).rbegin().key();
    ExpectError(Load(Llama()).status(), absl::StatusCode::kUnimplemented, "generation_config.json",
                absl::StrCat(key, ": found "));
  }
  for (const char* text :
       {R"({"num_beams": 1, "typical_p": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": null,
            "stop_strings": [], "guidance_scale": 1.0, "max_length": 4096, "transformers_version": "5",
            "_from_model_config": true, "temperature": 0.6, "output_scores": false})",
        R"({"do_sample": false, "typical_p": 0.9, "epsilon_cutoff": 0.1})"}) {
    dir_.Write("generation_config.json", text);
    MustLoad(Llama());
  }
}

TEST_F(ModelConfigTest, RefusesBrokenFiles) {
  ExpectError(LoadModelConfig(dir_.path()).status(), absl::StatusCode::kNotFound, "config.json",
              "");
  dir_.Write("config.json", "[]");
  ExpectError(LoadModelConfig(dir_.path()).status(), absl::StatusCode::kInvalidArgument,
              "config.json", "found a list, expected an object");
  dir_.Write("config.json", std::string((1 << 20) + 1, ' '));
  ExpectError(LoadModelConfig(dir_.path()).status(), absl::StatusCode::kInvalidArgument,
              "config.json", "expected at most 1048576");
}

TEST_F(ModelConfigTest, BiasesThatTheForwardPassLacks) {
  const auto with_tensor = [&](const std::string& name) {
    dir_.Write("model.safetensors", SafetensorsBytes("{\"" + name +
                                                         "\":{\"dtype\":\"F32\",\"shape\":[1],"
                                                         "\"data_offsets\":[0,4]}}",
                                                     "abcd"));
    return Load(Llama()).status();
  };
  ExpectError(with_tensor("model.layers.0.self_attn.o_proj.bias"), absl::StatusCode::kUnimplemented,
              "config.json", "attention_bias: found tensor");
  ExpectError(with_tensor("model.layers.0.mlp.up_proj.bias"), absl::StatusCode::kUnimplemented,
              "config.json", "mlp_bias: found tensor");
}

TEST_F(ModelConfigTest, GenerationDefaults) {
  dir_.Write("generation_config.json", R"({"eos_token_id": [3, 9], "do_sample": true,
      "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05})");
  ModelConfig model = MustLoad(Llama());
  EXPECT_THAT(model.eos_token_ids, ElementsAre(3, 9));
  EXPECT_EQ(model.temperature, 0.6f);
  EXPECT_EQ(model.top_p, 0.9f);
  EXPECT_EQ(model.top_k, 20);
  EXPECT_EQ(model.min_p, 0.05f);
  for (const char* text :
       {R"({"temperature": 0.6})", R"({"do_sample": false, "temperature": 0.6})"}) {
    dir_.Write("generation_config.json", text);
    model = MustLoad(Llama());
    EXPECT_EQ(model.temperature, std::nullopt);
    EXPECT_THAT(model.eos_token_ids, ElementsAre(2, 7));
    EXPECT_EQ(model.repetition_penalty, std::nullopt);
  }
  // Not a matter of sampling.
  dir_.Write("generation_config.json", R"({"repetition_penalty": 1.1})");
  EXPECT_EQ(MustLoad(Llama()).repetition_penalty, 1.1f);
  for (const auto& [text, message] :
       {std::pair(R"({"repetition_penalty": 0})", "repetition_penalty: found 0"),
        std::pair(R"({"do_sample": true, "temperature": -1})", "temperature: found -1"),
        std::pair(R"({"do_sample": true, "temperature": 2.5})", "temperature: found 2.5"),
        std::pair(R"({"do_sample": true, "top_p": 1.5})", "top_p: found 1.5"),
        std::pair(R"({"eos_token_id": -1})", "eos_token_id: found -1"),
        std::pair(R"({"do_sample": "yes"})", "do_sample: found \"yes\"")}) {
    dir_.Write("generation_config.json", text);
    ExpectError(Load(Llama()).status(), absl::StatusCode::kInvalidArgument,
                "generation_config.json", message);
  }
}

// A router adds them to each request's stop token ids, whose number workers bound.
TEST_F(ModelConfigTest, TooManyEosTokenIds) {
  std::string ids = "3";
  for (int i = 1; i < kMaxEosTokenIds; ++i) ids += ", 3";
  dir_.Write("generation_config.json", "{\"eos_token_id\": [" + ids + "]}");
  EXPECT_EQ(MustLoad(Llama()).eos_token_ids.size(), size_t{kMaxEosTokenIds});
  dir_.Write("generation_config.json", "{\"eos_token_id\": [" + ids + ", 3]}");
  ExpectError(Load(Llama()).status(), absl::StatusCode::kInvalidArgument, "generation_config.json",
              "eos_token_id: found 769 ids, expected at most 768");
}

TEST_F(ModelConfigTest, TokenizerIds) {
  dir_.Write("tokenizer.json", R"({"added_tokens": [{"id": 70, "content": "<x>"}],
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 41}, "merges": []}})");
  const ModelConfig model = MustLoad(Llama());
  EXPECT_EQ(model.token_count, 71);
  EXPECT_NE(model.tokenizer_fingerprint, 0);
  for (const auto& [text, message] :
       {std::pair(R"({"model": {"vocab": {"a": 100}}})", "found ids up to 100"),
        std::pair(R"({"model": {"vocab": {"a": "x"}}})", "model.vocab.a: found \"x\""),
        std::pair(R"({"model": {"vocab": {"a": -1}}})", "model.vocab.a: found -1"),
        std::pair(R"({"model": {"vocab": {"a": 1, "a": 2}}})", "\"a\" appears twice"),
        std::pair(R"({"added_tokens": [{"id": {}}]})", "added_tokens[0].id"),
        std::pair(R"({})", "model.vocab: found no token")}) {
    dir_.Write("tokenizer.json", text);
    ExpectError(Load(Llama()).status(), absl::StatusCode::kInvalidArgument, "tokenizer.json",
                message);
  }
  dir_.Write("tokenizer.json", R"({"model": {"type": "Unigram", "vocab": [["a", -1.5]]}})");
  ExpectError(Load(Llama()).status(), absl::StatusCode::kUnimplemented, "tokenizer.json",
              "model.vocab: found a list");
}

TEST_F(ModelConfigTest, FingerprintFollowsContentNotSpelling) {
  dir_.Write("config.json", Llama().dump());
  const uint64_t fingerprint = LoadModelConfig(dir_.path())->fingerprint;
  dir_.Write("config.json", Llama().dump(8));
  EXPECT_EQ(LoadModelConfig(dir_.path())->fingerprint, fingerprint);
  EXPECT_NE(MustLoad(Changed(Llama(), R"({"rope_theta": 10000})")).fingerprint, fingerprint);
  dir_.Write("tokenizer.json", R"({"model": {"vocab": {"a": 0}}})");
  EXPECT_NE(MustLoad(Llama()).fingerprint, fingerprint);
}

// What sentence-transformers keeps beside a model.
class EmbeddingConfigTest : public ModelConfigTest {
 protected:
  void WriteModules(const std::vector<std::string>& kinds, const std::string& path = "1_Pooling") {
    json modules = json::array();
    for (const std::string& kind : kinds) {
      modules.push_back({{"path", kind == "Pooling" ? path : ""},
                         {"type", "sentence_transformers.models." + kind}});
    }
    dir_.Write("modules.json", modules.dump());
  }
  void WritePooling(const std::string& text) {
    std::filesystem::create_directory(dir_.PathOf("1_Pooling"));
    dir_.Write("1_Pooling/config.json", text);
  }
  static constexpr char kLast[] =
      R"({"pooling_mode_cls_token": false, "pooling_mode_lasttoken": true, "include_prompt": true})";
};

TEST_F(EmbeddingConfigTest, TheLastTokensVectorMakesAModelForEmbeddings) {
  EXPECT_FALSE(MustLoad(Llama()).embeddings.has_value());
  const uint64_t plain = MustLoad(Llama()).fingerprint;
  for (const char* pooling : {kLast, R"({"pooling_mode": "lasttoken"})"}) {
    WritePooling(pooling);
    WriteModules({"Transformer", "Pooling", "Normalize"});
    ModelConfig model = MustLoad(Llama());
    ASSERT_TRUE(model.embeddings.has_value()) << pooling;
    EXPECT_TRUE(model.embeddings->normalize);
    EXPECT_NE(model.fingerprint, plain);
    const uint64_t normalized = model.fingerprint;
    WriteModules({"Transformer", "Pooling"});
    model = MustLoad(Llama());
    ASSERT_TRUE(model.embeddings.has_value()) << pooling;
    EXPECT_FALSE(model.embeddings->normalize);
    EXPECT_NE(model.fingerprint, normalized) << "workers of both must not serve one model";
  }
}

TEST_F(EmbeddingConfigTest, AModelForEmbeddingsMayLackItsHead) {
  json config = Llama();
  config["architectures"] = {"LlamaModel"};
  config["tie_word_embeddings"] = false;
  WritePooling(kLast);
  WriteModules({"Transformer", "Pooling", "Normalize"});
  const ModelConfig model = MustLoad(config);
  EXPECT_EQ(model.architecture, "LlamaForCausalLM");
  EXPECT_TRUE(model.tied_embeddings) << "nothing else would be read";
  std::filesystem::remove(dir_.PathOf("modules.json"));
  EXPECT_FALSE(MustLoad(config).tied_embeddings);
}

TEST_F(EmbeddingConfigTest, OtherPoolingsAreServedWithoutEmbeddings) {
  WritePooling(kLast);
  for (const std::vector<std::string>& kinds : {std::vector<std::string>{"Transformer"},
                                                {"Pooling", "Transformer"},
                                                {"Transformer", "Pooling", "Dense"},
                                                {"Transformer", "Pooling", "Normalize", "Dense"}}) {
    WriteModules(kinds);
    EXPECT_FALSE(MustLoad(Llama()).embeddings.has_value());
  }
  WriteModules({"Transformer", "Pooling", "Normalize"});
  for (const char* pooling :
       {R"({"pooling_mode": "mean"})", R"({"pooling_mode_mean_tokens": true})", "{}",
        R"({"pooling_mode_lasttoken": true, "pooling_mode_cls_token": true})"}) {
    WritePooling(pooling);
    EXPECT_FALSE(MustLoad(Llama()).embeddings.has_value()) << pooling;
  }
}

TEST_F(EmbeddingConfigTest, AGgufFileHasThePoolingAsAKey) {
  const auto embeddings = [this](std::optional<uint32_t> pooling) {
    baton::testing::GgufBytes bytes = baton::testing::TinyGguf();
    if (pooling) bytes.Add("llama.pooling_type", *pooling);
    dir_.Write("m.gguf", bytes.Bytes());
    const auto model = LoadModelConfig(dir_.PathOf("m.gguf"));
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() && model->embeddings.has_value() && model->embeddings->normalize;
  };
  EXPECT_TRUE(embeddings(3));
  for (const std::optional<uint32_t> pooling :
       std::vector<std::optional<uint32_t>>{std::nullopt, 0, 1, 2, 4}) {
    EXPECT_FALSE(embeddings(pooling)) << pooling.value_or(99);
  }
}

TEST_F(EmbeddingConfigTest, MalformedFilesAreErrors) {
  WritePooling(kLast);
  const auto expect = [this](const std::string& file, const std::string& message) {
    ExpectError(Load(Llama()).status(), absl::StatusCode::kInvalidArgument, file, message);
  };
  dir_.Write("modules.json", "{}");
  expect("modules.json", "expected a list");
  dir_.Write("modules.json", "[{}]");
  expect("modules.json", "type: found nothing");
  dir_.Write("modules.json", "[3]");
  expect("modules.json", "");
  for (const char* path : {"..", "", "a/b", "/etc"}) {
    WriteModules({"Transformer", "Pooling"}, path);
    expect("modules.json", "expected a folder beside this file");
  }
  WriteModules({"Transformer", "Pooling"});
  WritePooling(R"({"pooling_mode_lasttoken": "yes"})");
  expect("1_Pooling/config.json", "pooling_mode_lasttoken");
  WriteModules({"Transformer", "Pooling"}, "2_Pooling");
  EXPECT_TRUE(absl::IsNotFound(Load(Llama()).status()));
}

// For callers without weights, such as `baton plan`.
TEST_F(ModelConfigTest, ConfigJsonAloneIsEnoughToRead) {
  const ModelConfig loaded = MustLoad(Llama());
  const ModelDir dir;
  dir.Write("config.json", Llama().dump());
  const auto read = ReadModelConfig(dir.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->layers.size(), 4u);
  EXPECT_EQ(read->hidden_dim, loaded.hidden_dim);
  EXPECT_EQ(read->weight_dtype, loaded.weight_dtype);
  EXPECT_EQ(read->ropes[0].inverse_frequencies, loaded.ropes[0].inverse_frequencies);
  EXPECT_EQ(read->fingerprint, 0u);
  EXPECT_TRUE(absl::IsNotFound(LoadModelConfig(dir.path()).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadModelConfig(dir.PathOf("nothing")).status()));
}

}  // namespace
}  // namespace baton::model
