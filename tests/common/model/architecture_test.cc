#include "common/model/architecture.h"

#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/json/json.h"
#include "common/model/json_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A config of `architecture` with common sizes, and the members in `more`, which begin with a
// comma.
absl::StatusOr<ModelConfig> ParseText(const std::string& text) {
  const auto document = ::baton::json::Parse(text, "config.json");
  EXPECT_TRUE(document.ok()) << document.status();
  const auto fields = JsonFields::Make(*document, "config.json");
  return ParseConfig(*fields);
}
std::string Sizes(const std::string& more) {
  return absl::StrCat(R"("hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8,)",
                      R"("num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,)",
                      R"("max_position_embeddings": 512, "rms_norm_eps": 1e-6)", more);
}
absl::StatusOr<ModelConfig> Parse(const std::string& architecture, const std::string& more) {
  return ParseText(
      absl::StrCat(R"({"architectures": [")", architecture, R"("], )", Sizes(more), "}"));
}
std::string Refusal(const std::string& architecture, const std::string& more) {
  const auto model = Parse(architecture, more);
  return model.ok() ? "served" : model.status().ToString();
}

std::vector<int> Windows(const ModelConfig& model) {
  std::vector<int> windows;
  for (const LayerSpec& layer : model.layers) windows.push_back(layer.attention().window);
  return windows;
}
std::vector<int> Ropes(const ModelConfig& model) {
  std::vector<int> ropes;
  for (const LayerSpec& layer : model.layers) ropes.push_back(layer.attention().rope);
  return ropes;
}

TEST(ArchitectureTest, GemmaThreeRotatesLayersWithAWindowByAnotherBaseWithoutScaling) {
  const auto model = Parse("Gemma3ForCausalLM", R"(, "head_dim": 32, "sliding_window": 24,
      "rope_theta": 1000000, "rope_local_base_freq": 10000,
      "rope_scaling": {"rope_type": "linear", "factor": 8}, "query_pre_attn_scalar": 16)");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Windows(*model), ElementsAre(24, 24, 24, 24, 24, 0, 24, 24));
  EXPECT_THAT(Ropes(*model), ElementsAre(1, 1, 1, 1, 1, 0, 1, 1));
  ASSERT_THAT(model->ropes, SizeIs(2));
  EXPECT_DOUBLE_EQ(model->ropes[0].inverse_frequencies[1], std::pow(1e6, -2.0 / 32) / 8);
  EXPECT_DOUBLE_EQ(model->ropes[1].inverse_frequencies[1], std::pow(1e4, -2.0 / 32));
  EXPECT_FLOAT_EQ(model->layers[0].attention().scale, 0.25f);
  EXPECT_FLOAT_EQ(model->embedding_scale, 8);
  EXPECT_TRUE(model->tied_embeddings) << "as its class assumes";
  EXPECT_TRUE(model->final_norm.less_one);
}

TEST(ArchitectureTest, BothSpellingsOfGemmaThreesRotationsAreOne) {
  const auto old_form = Parse("Gemma3ForCausalLM", R"(, "head_dim": 32, "rope_theta": 500000,
      "rope_local_base_freq": 20000, "rope_scaling": {"rope_type": "linear", "factor": 2})");
  const auto new_form = Parse("Gemma3ForCausalLM", R"(, "head_dim": 32, "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 2, "rope_theta": 500000},
      "sliding_attention": {"rope_type": "default", "rope_theta": 20000}})");
  ASSERT_TRUE(old_form.ok() && new_form.ok()) << old_form.status() << new_form.status();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(old_form->ropes[i].inverse_frequencies, new_form->ropes[i].inverse_frequencies);
  }
}

// Transformers scales the layers with a window, too, where their own object says so.
TEST(ArchitectureTest, AnObjectForEachKindOfLayerHasItsOwnScaling) {
  const auto model = Parse("Olmo3ForCausalLM", R"(, "rope_parameters": {
      "full_attention": {"rope_type": "default", "rope_theta": 500000},
      "sliding_attention": {"rope_type": "linear", "factor": 2, "rope_theta": 500000}})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->ropes[0].inverse_frequencies[1], 2 * model->ropes[1].inverse_frequencies[1]);
  EXPECT_THAT(Refusal("Gemma3ForCausalLM", R"(, "rope_parameters": {"rope_theta": 1000000})"),
              HasSubstr("rope_parameters: found no object for full_attention"));
  EXPECT_THAT(Refusal("Gemma3ForCausalLM", R"(, "rope_parameters": {"factor": 8,
                      "full_attention": {"rope_theta": 1000000}, "sliding_attention": {}})"),
              HasSubstr("rope_parameters.factor: found beside objects"));
}

TEST(ArchitectureTest, GemmaTwoCapsUnlessTheConfigSaysNull) {
  const auto by_default = Parse("Gemma2ForCausalLM", R"(, "head_dim": 32)");
  ASSERT_TRUE(by_default.ok()) << by_default.status();
  EXPECT_EQ(by_default->logit_cap, 30);
  EXPECT_EQ(by_default->layers[0].attention().score_cap, 50);
  EXPECT_THAT(Windows(*by_default), ElementsAre(4096, 0, 4096, 0, 4096, 0, 4096, 0));
  const auto without = Parse("Gemma2ForCausalLM",
                             R"(, "head_dim": 32, "attn_logit_softcapping": null,
                                 "final_logit_softcapping": null)");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->logit_cap, 0);
  EXPECT_EQ(without->layers[0].attention().score_cap, 0);
}

TEST(ArchitectureTest, ExpertsInPlaceOfMlps) {
  const auto qwen = Parse("Qwen3MoeForCausalLM", R"(, "head_dim": 32, "num_local_experts": 12,
      "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": true,
      "decoder_sparse_step": 2, "mlp_only_layers": [3])");
  ASSERT_TRUE(qwen.ok()) << qwen.status();
  std::vector<bool> has;
  for (const LayerSpec& layer : qwen->layers) {
    has.push_back(std::holds_alternative<ExpertsSpec>(layer.sublayers[1].body));
  }
  EXPECT_THAT(has, ElementsAre(false, true, false, false, false, true, false, true));
  const auto& experts = std::get<ExpertsSpec>(qwen->layers[1].sublayers[1].body);
  EXPECT_EQ(experts.count, 12);
  EXPECT_EQ(experts.routing.per_token, 3);
  EXPECT_TRUE(experts.routing.normalized);
  EXPECT_EQ(experts.expert.ffn_dim, 40);
  EXPECT_EQ(experts.expert.down.cols, 40);

  const auto mixtral =
      Parse("MixtralForCausalLM", R"(, "num_local_experts": 8, "num_experts_per_tok": 2)");
  ASSERT_TRUE(mixtral.ok()) << mixtral.status();
  const int half = mixtral->layers[0].attention().head_dim / 2;
  EXPECT_DOUBLE_EQ(mixtral->ropes[0].inverse_frequencies[1], std::pow(1e6, -1.0 / half))
      << "as its class assumes";
  EXPECT_EQ(mixtral->layers[0].attention().window, 0);

  const auto refusal = [](const char* experts_keys) {
    return Refusal("OlmoeForCausalLM", experts_keys);
  };
  EXPECT_THAT(refusal(R"(, "num_experts_per_tok": 2)"),
              HasSubstr("num_experts: found nothing beside num_local_experts nothing"));
  EXPECT_THAT(refusal(R"(, "num_experts": 4, "num_local_experts": 5, "num_experts_per_tok": 2)"),
              HasSubstr("num_experts: found 4 beside num_local_experts 5"));
  EXPECT_THAT(refusal(R"(, "num_experts": 4, "num_experts_per_tok": 5)"),
              HasSubstr("num_experts_per_tok: found 5, expected"));
  EXPECT_THAT(refusal(R"(, "num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 8)"),
              HasSubstr("clip_qkv: found one, expected null"));
  EXPECT_THAT(Refusal("Qwen3MoeForCausalLM",
                      R"(, "head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2,
                      "moe_intermediate_size": 40, "use_sliding_window": true)"),
              HasSubstr("use_sliding_window: found true, expected false"));
}

TEST(ArchitectureTest, LayersWithoutRotation) {
  const auto smol = Parse("SmolLM3ForCausalLM", "");
  ASSERT_TRUE(smol.ok()) << smol.status();
  EXPECT_THAT(Ropes(*smol), ElementsAre(0, 0, 0, kNoRope, 0, 0, 0, kNoRope));
  const auto listed =
      Parse("SmolLM3ForCausalLM", R"(, "no_rope_layers": [1, 0, 1, 1, 1, 1, 1, 1])");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(Ropes(*listed)[1], kNoRope);
  EXPECT_EQ(Ropes(*listed)[3], 0);
  const auto exaone = Parse("Exaone4ForCausalLM", R"(, "sliding_window": 32)");
  ASSERT_TRUE(exaone.ok()) << exaone.status();
  EXPECT_THAT(Windows(*exaone), ElementsAre(32, 32, 32, 0, 32, 32, 32, 0));
  EXPECT_THAT(Ropes(*exaone), ElementsAre(0, 0, 0, kNoRope, 0, 0, 0, kNoRope));
  const auto full =
      Parse("Exaone4ForCausalLM", R"(, "sliding_window": null, "sliding_window_pattern": 0)");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_THAT(Ropes(*full), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(ArchitectureTest, YarnExtendsTheContext) {
  const auto model = Parse("Qwen2ForCausalLM", R"(, "rope_scaling": {"type": "yarn", "factor": 4,
      "original_max_position_embeddings": 512})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->max_positions, 2048);
  EXPECT_FLOAT_EQ(model->ropes[0].factor, static_cast<float>(0.1 * std::log(4.0) + 1));
  EXPECT_THAT(Refusal("Qwen2ForCausalLM", R"(, "rope_theta": 1,
                      "rope_scaling": {"type": "yarn", "factor": 4})"),
              HasSubstr("rope_theta: found 1, expected more than 1"));
  const auto both = Parse("Qwen2ForCausalLM", R"(, "rope_scaling": {"type": "yarn", "factor": 4,
      "mscale": 1, "mscale_all_dim": 1})");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->ropes[0].factor, 1) << "they cancel";
}

// Half of a head turns, by factors that depend on the context that the model is served with.
constexpr char kLong[] = R"(, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 64,
    "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 2], "long_factor": [1, 2, 3, 4]})";

TEST(ArchitectureTest, LongropeIsPinnedByTheContext) {
  auto model = Parse("Phi3ForCausalLM", kLong);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<double> plain = {1, std::pow(1e4, -2.0 / 8), std::pow(1e4, -4.0 / 8),
                                     std::pow(1e4, -6.0 / 8)};
  EXPECT_THAT(model->ropes[0].inverse_frequencies,
              ElementsAre(plain[0], plain[1], plain[2], plain[3] / 2));
  EXPECT_FALSE(PinPositions(64, &*model));
  EXPECT_EQ(model->ropes[0].inverse_frequencies[3], plain[3] / 2);
  EXPECT_TRUE(PinPositions(65, &*model));
  EXPECT_THAT(model->ropes[0].inverse_frequencies,
              ElementsAre(plain[0], plain[1] / 2, plain[2] / 3, plain[3] / 4));
  EXPECT_FLOAT_EQ(model->ropes[0].factor,
                  static_cast<float>(std::sqrt(1 + std::log(8.0) / std::log(64.0))));
  EXPECT_THAT(Refusal("Phi3ForCausalLM", R"(, "original_max_position_embeddings": 64,
      "rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]})"),
              HasSubstr("rope_scaling.short_factor: found 1 numbers, expected one for each of 8"));
}

TEST(ArchitectureTest, TheTextPartOfAModelForImagesIsAModel) {
  const auto nested = [](const std::string& text, const std::string& outer) {
    return ParseText(absl::StrCat(
        R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",)",
        R"("vision_config": {"hidden_size": 8}, "mm_tokens_per_image": 4, "eos_token_id": [1, 7],)",
        R"("torch_dtype": "bfloat16", "text_config": {)", Sizes(text), "}", outer, "}"));
  };
  const auto model = nested(R"(, "model_type": "gemma3_text", "head_dim": 32)", "");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->architecture, "Gemma3ForCausalLM");
  EXPECT_TRUE(model->nested);
  EXPECT_THAT(model->eos_token_ids, ElementsAre(1, 7));
  EXPECT_EQ(model->weight_dtype, backend::DType::kBF16);
  EXPECT_THAT(ParseText(absl::StrCat(R"({"architectures": ["PaliGemmaForConditionalGeneration"],)",
                                     R"("text_config": {"model_type": "gemma2",)", Sizes(""), "}}"))
                  .status()
                  .ToString(),
              HasSubstr("architectures: found \"PaliGemmaForConditionalGeneration\""));
  EXPECT_THAT(nested(R"(, "model_type": "other_text")", "").status().ToString(),
              HasSubstr("text_config.model_type: found \"other_text\", expected one of llama"));
  EXPECT_THAT(
      nested(R"(, "model_type": "gemma3_text", "num_kv_shared_layers": 2)", "").status().ToString(),
      HasSubstr("text_config.num_kv_shared_layers: found 2, expected none"));
  EXPECT_THAT(
      nested(R"(, "model_type": "gemma3_text")", R"(, "attn_thing": 3)").status().ToString(),
      HasSubstr("attn_thing: found 3, expected none"));
}

// Of 8 layers, "LLGLGLLG" by default.
std::string Gemma4(const std::string& more, const std::string& pattern = "LLGLGLLG") {
  std::string types;
  for (const char letter : pattern) {
    absl::StrAppend(&types, types.empty() ? "" : ", ",
                    letter == 'L' ? R"("sliding_attention")" : R"("full_attention")");
  }
  return absl::StrCat(R"(, "head_dim": 16, "global_head_dim": 32, "sliding_window": 24,)",
                      R"("vocab_size_per_layer_input": 320, "hidden_size_per_layer_input": 8,)",
                      R"("layer_types": [)", types, "]", more);
}

TEST(ArchitectureTest, GemmaFourSharesKvOfTheLastLayerOfAKind) {
  const auto model = Parse("Gemma4ForCausalLM", Gemma4(R"(, "num_kv_shared_layers": 3,
      "use_double_wide_mlp": true, "final_logit_softcapping": 30.0)"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Windows(*model), ElementsAre(24, 24, 0, 24, 0, 24, 24, 0));
  std::vector<int> sources, dims, ffns;
  for (const LayerSpec& layer : model->layers) {
    const AttentionSpec& attention = layer.attention();
    sources.push_back(attention.kv_from);
    dims.push_back(attention.head_dim);
    ffns.push_back(layer.mlp().ffn_dim);
    EXPECT_EQ(attention.scale, 1);
    EXPECT_EQ(attention.norm_v, attention.owns_kv());
    EXPECT_EQ(attention.qkv.parts.size(), attention.owns_kv() ? 3 : 1);
    EXPECT_EQ(static_cast<bool>(attention.k_norm), attention.owns_kv());
    EXPECT_EQ(attention.output.cols, 4 * attention.head_dim);
    EXPECT_TRUE(layer.scale);
    ASSERT_THAT(layer.sublayers, SizeIs(3));
  }
  EXPECT_THAT(sources, ElementsAre(-1, -1, -1, -1, -1, 3, 3, 4));
  EXPECT_THAT(dims, ElementsAre(16, 16, 32, 16, 32, 16, 16, 32));
  EXPECT_THAT(ffns, ElementsAre(96, 96, 96, 96, 96, 192, 192, 192));
  EXPECT_THAT(KvLayers(model->layers), SizeIs(5));
  EXPECT_EQ(model->inputs.columns(), 64);
  const auto& input = std::get<LayerInputSpec>(model->layers[5].sublayers[2].body);
  EXPECT_EQ(input.first_column, 40);
  EXPECT_FALSE(model->layers[0].sublayers[0].norm_after.less_one);
}

TEST(ArchitectureTest, GemmaFourTurnsAPartOfTheHeadInProportion) {
  const auto model = Parse("Gemma4ForCausalLM", Gemma4(""));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Ropes(*model), ElementsAre(1, 1, 0, 1, 0, 1, 1, 0));
  const std::vector<double>& full = model->ropes[0].inverse_frequencies;
  ASSERT_THAT(full, SizeIs(16)) << "all pairs, of which a quarter turns";
  EXPECT_DOUBLE_EQ(full[3], std::pow(1e6, -6.0 / 32));
  for (size_t i = 4; i < 16; ++i) EXPECT_EQ(full[i], 0);
  EXPECT_DOUBLE_EQ(model->ropes[1].inverse_frequencies[1], std::pow(1e4, -2.0 / 16));
  const auto ropes = [](const std::string& full) {
    return Parse(
        "Gemma4ForCausalLM",
        Gemma4(absl::StrCat(R"(, "rope_parameters": {"sliding_attention": {"rope_type":)",
                            R"("default", "rope_theta": 100}, "full_attention": {)", full, "}}")));
  };
  const auto half = ropes(R"("rope_type": "proportional", "partial_rotary_factor": 0.5,
      "rope_theta": 1000, "factor": 8)");
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_DOUBLE_EQ(half->ropes[0].inverse_frequencies[7], std::pow(1000, -14.0 / 32) / 8);
  EXPECT_EQ(half->ropes[0].inverse_frequencies[8], 0);
  EXPECT_DOUBLE_EQ(half->ropes[1].inverse_frequencies[1], std::pow(100, -2.0 / 16));
  // Without a share all of the head turns.
  const auto whole = ropes(R"("rope_type": "proportional", "rope_theta": 1000)");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_GT(whole->ropes[0].inverse_frequencies[15], 0);
  for (const auto& [full, message] : {
           std::pair(R"("rope_type": "default", "partial_rotary_factor": 0.5)",
                     "partial_rotary_factor: found 0.5 with rope_type default, expected 1"),
           {R"("rope_type": "yarn", "factor": 2)",
            "found \"yarn\", expected default or proportional"},
           {R"("rope_type": "proportional", "beta_fast": 2)", "beta_fast: found 2, expected none"},
           {R"("rope_type": "proportional", "partial_rotary_factor": 0.01)",
            "partial_rotary_factor"},
           {R"("rope_type": "proportional", "factor": 0)", "factor"},
       }) {
    EXPECT_THAT(ropes(full).status().ToString(), HasSubstr(message));
  }
  // Other models have no such type.
  EXPECT_THAT(Refusal("LlamaForCausalLM", R"(, "rope_scaling": {"rope_type": "proportional"})"),
              HasSubstr("found \"proportional\", expected default, linear, llama3 or yarn"));
}

TEST(ArchitectureTest, GemmaFourHasHeadsByKindOfLayer) {
  const std::string keys_are_values =
      R"(, "attention_k_eq_v": true, "num_global_key_value_heads": 1)";
  auto model = Parse("Gemma4ForCausalLM", Gemma4(keys_are_values));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->layers[0].attention().kv_heads, 2);
  EXPECT_FALSE(model->layers[0].attention().v_is_k);
  EXPECT_EQ(model->layers[2].attention().kv_heads, 1);
  EXPECT_TRUE(model->layers[2].attention().v_is_k);
  EXPECT_EQ(model->layers[2].attention().qkv.rows(), (4 + 1) * 32);
  // Without that, their number is the one of all layers.
  model = Parse("Gemma4ForCausalLM", Gemma4(R"(, "num_global_key_value_heads": 1)"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->layers[2].attention().kv_heads, 2);
  // As Transformers 5.24 saves it.
  const auto saved = [](const std::string& layers) {
    return Parse("Gemma4ForCausalLM",
                 Gemma4(absl::StrCat(R"(, "per_layer_config": {)", layers, "}")));
  };
  model = saved(R"("2": {"head_dim": 48, "num_key_value_heads": 4}, "4": {"head_dim": 48,
      "num_key_value_heads": 4}, "7": {"head_dim": 48, "num_key_value_heads": 4})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->layers[4].attention().head_dim, 48);
  EXPECT_EQ(model->layers[4].attention().kv_heads, 4);
  EXPECT_EQ(model->layers[3].attention().head_dim, 16);
  EXPECT_THAT(saved(R"("2": {"head_dim": 48})").status().ToString(),
              HasSubstr("per_layer_config: found other heads in layer 4 than"));
  EXPECT_THAT(saved(R"("2": {"sliding_window": 48})").status().ToString(),
              HasSubstr("sliding_window: found 48, expected head_dim"));
  EXPECT_THAT(saved(R"("8": {"head_dim": 48})").status().ToString(),
              HasSubstr("per_layer_config.8: found an object, expected the indices of layers"));
}

TEST(ArchitectureTest, GemmaFourHasExpertsBesideItsMlps) {
  const auto model = Parse("Gemma4ForCausalLM", Gemma4(R"(, "enable_moe_block": true,
      "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 40, "num_kv_shared_layers": 3,
      "use_double_wide_mlp": true)"));
  ASSERT_TRUE(model.ok()) << model.status();
  for (size_t i = 0; i < model->layers.size(); ++i) {
    const SublayerSpec& sublayer = model->layers[i].sublayers[1];
    const auto& experts = std::get<ExpertsSpec>(sublayer.body);
    EXPECT_EQ(experts.count, 6);
    EXPECT_EQ(experts.routing.per_token, 2);
    EXPECT_TRUE(experts.routing.normalized);
    EXPECT_FALSE(experts.routing.sigmoid);
    EXPECT_EQ(experts.expert.ffn_dim, 40);
    EXPECT_EQ(experts.expert.activation, backend::GatedActivation::kGeluTanh);
    EXPECT_EQ(experts.shared.ffn_dim, i < 5 ? 96 : 192) << i;
    ASSERT_TRUE(experts.beside);
    EXPECT_FLOAT_EQ(experts.beside.router_factor, 1.0f / 8);
    EXPECT_STREQ(sublayer.norm_before.name.hugging_face, "pre_feedforward_layernorm");
    EXPECT_STREQ(sublayer.norm_after.name.hugging_face, "post_feedforward_layernorm");
    EXPECT_EQ(model->layers[i].sublayers.size(), 3) << "its own embedding is last";
  }
}

TEST(ArchitectureTest, GemmaFourRefusesWhatItWouldComputeWrongly) {
  for (const auto& [more, message] : {
           std::pair(R"(, "enable_moe_block": true)", "num_experts: found nothing"),
           {R"(, "enable_moe_block": 1)", "enable_moe_block"},
           {R"(, "enable_moe_block": true, "num_experts": 0)", "num_experts: found 0"},
           {R"(, "enable_moe_block": true, "num_experts": 4)", "top_k_experts: found nothing"},
           {R"(, "enable_moe_block": true, "num_experts": 4, "top_k_experts": 5)",
            "top_k_experts: found 5"},
           {R"(, "enable_moe_block": true, "num_experts": 4, "top_k_experts": 2)",
            "moe_intermediate_size: found nothing"},
           {R"(, "use_bidirectional_attention": "all")", "found \"all\", expected \"vision\""},
           {R"(, "num_kv_shared_layers": 8)", "num_kv_shared_layers"},
           {R"(, "num_kv_shared_layers": -1)", "num_kv_shared_layers"},
           {R"(, "num_kv_shared_layers": 7)",
            "num_kv_shared_layers: found 7, expected a layer before them with full attention"},
           {R"(, "num_global_key_value_heads": 0)", "num_global_key_value_heads"},
           {R"(, "attention_k_eq_v": true, "num_global_key_value_heads": 3)",
            "num_global_key_value_heads: found 3, expected a divisor of num_attention_heads (4)"},
           {R"(, "global_head_dim": 33)", "global_head_dim: found 33, expected an even number"},
           {R"(, "global_head_dim": 514)", "global_head_dim"},
           {R"(, "vocab_size_per_layer_input": 300)",
            "vocab_size_per_layer_input: found 300, expected at least vocab_size (320)"},
           {R"(, "hidden_size_per_layer_input": -8)", "hidden_size_per_layer_input"},
           {R"(, "rope_theta": 1000)", "rope_theta: found 1000, expected rope_parameters"},
           {R"(, "sliding_window": 0)", "sliding_window"},
           {R"(, "attn_thing": 1)", "attn_thing: found 1, expected none"},
       }) {
    // Of two members with one name the last one counts.
    std::string base = Gemma4("");
    const std::string key(absl::string_view(more).substr(2, std::string(more).find(':') - 2));
    if (const size_t at = base.find(key); at != std::string::npos) {
      base.erase(base.rfind(',', at), base.find(',', at) - base.rfind(',', at));
    }
    EXPECT_THAT(Refusal("Gemma4ForCausalLM", absl::StrCat(base, more)), HasSubstr(message)) << more;
  }
  EXPECT_THAT(Refusal("Gemma4ForCausalLM", Gemma4("", "LLGLGLLL")),
              HasSubstr("layer_types[7]: found sliding_attention, expected full_attention"));
  // The pattern without layer_types ends with a layer that sees all.
  const auto model = Parse("Gemma4ForCausalLM", R"(, "vocab_size_per_layer_input": 320)");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Windows(*model), ElementsAre(512, 512, 512, 512, 512, 0, 512, 0));
  EXPECT_EQ(model->layers[5].attention().head_dim, 512);
  EXPECT_EQ(model->inputs.width, 256);
}

// What both have but sizes of experts, of whose names each has its own defaults.
std::string Latents(const std::string& more) {
  return absl::StrCat(
      R"(, "kv_lora_rank": 32, "q_lora_rank": null,)",
      R"("qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40, "n_routed_experts": 8,)",
      R"("n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 48)", more);
}

absl::StatusOr<ModelConfig> ParseLatents(const std::string& architecture, const std::string& more) {
  std::string sizes = Sizes(more);
  const std::string two = R"("num_key_value_heads": 2)";
  sizes.replace(sizes.find(two), two.size(), R"("num_key_value_heads": 4)");
  return ParseText(absl::StrCat(R"({"architectures": [")", architecture, R"("], )", sizes, "}"));
}

TEST(ArchitectureTest, LatentsAreOneHeadOfKv) {
  const auto model = ParseLatents("DeepseekV2ForCausalLM", Latents(R"(, "first_k_dense_replace": 2,
      "routed_scaling_factor": 16, "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 0.707,
      "mscale_all_dim": 0.707, "original_max_position_embeddings": 64})"));
  ASSERT_TRUE(model.ok()) << model.status();
  const AttentionSpec& attention = model->layers[5].attention();
  EXPECT_EQ(attention.kv_heads, 1);
  EXPECT_EQ(attention.head_dim, 48);
  EXPECT_EQ(attention.latent.rank, 32);
  EXPECT_EQ(attention.output.cols, 4 * 40);
  EXPECT_EQ(attention.qkv.rows(), 4 * 40 + 48);
  const double magnitude = 0.0707 * std::log(40.0) + 1;
  EXPECT_FLOAT_EQ(attention.scale,
                  static_cast<float>(magnitude * magnitude / std::sqrt(24.0 + 16.0)));
  EXPECT_EQ(model->ropes[0].factor, 1);  // mscale and mscale_all_dim cancel there
  EXPECT_TRUE(std::holds_alternative<MlpSpec>(model->layers[1].sublayers[1].body));
  const auto& experts = std::get<ExpertsSpec>(model->layers[2].sublayers[1].body);
  EXPECT_EQ(experts.shared.ffn_dim, 96);
  EXPECT_EQ(experts.routing.scale, 16);
  EXPECT_FALSE(experts.routing.sigmoid);
  EXPECT_FALSE(experts.choice_bias);
}

TEST(ArchitectureTest, GlmChoosesBySigmoidsWithABias) {
  const auto parse = [](const std::string& more) {
    return ParseLatents("Glm4MoeLiteForCausalLM",
                        Latents(absl::StrCat(R"(, "routed_scaling_factor": 1.8)", more)));
  };
  const auto model = parse(R"(, "first_k_dense_replace": 1)");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(std::holds_alternative<MlpSpec>(model->layers[0].sublayers[1].body));
  const auto& experts = std::get<ExpertsSpec>(model->layers[1].sublayers[1].body);
  EXPECT_TRUE(experts.routing.sigmoid && experts.routing.normalized && experts.choice_bias);
  EXPECT_FLOAT_EQ(experts.routing.scale, 1.8F);
  // As the class in Transformers, which has a list, or one dense layer.
  EXPECT_THAT(parse(R"(, "first_k_dense_replace": 2)").status().ToString(),
              HasSubstr("first_k_dense_replace: found 2, expected 1"));
  const auto listed = parse(R"(, "first_k_dense_replace": 2, "mlp_layer_types": ["dense", "dense",
      "sparse", "sparse", "sparse", "sparse", "sparse", "sparse"])");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_TRUE(std::holds_alternative<MlpSpec>(listed->layers[1].sublayers[1].body));
}

TEST(ArchitectureTest, OfLatentsRefusesByName) {
  for (const auto& [more, refusal] :
       {std::pair(R"(, "n_group": 8)", "n_group: found 8, expected 1"),
        {R"(, "topk_group": 3)", "topk_group: found 3, expected 1"},
        {R"(, "topk_method": "group_limited_greedy")",
         "topk_method: found \"group_limited_greedy\""},
        {R"(, "scoring_func": "sigmoid")", "scoring_func: found \"sigmoid\", expected softmax"},
        {R"(, "norm_topk_prob": true)", "norm_topk_prob: found true, expected false"},
        {R"(, "moe_layer_freq": 2)", "moe_layer_freq: found 2, expected 1"},
        {R"(, "attention_bias": true)", "attention_bias: found true, expected false"},
        {R"(, "head_dim": 40)", "head_dim: found 40, expected 16, as qk_rope_head_dim"},
        {R"(, "qk_head_dim": 41)", "qk_head_dim: found 41, expected 40"}}) {
    EXPECT_THAT(ParseLatents("DeepseekV2ForCausalLM", Latents(more)).status().ToString(),
                HasSubstr(refusal));
  }
  std::string latents = Latents("");
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = latents;
    text.replace(text.find(from), from.size(), to);
    return ParseLatents("DeepseekV2ForCausalLM", text).status().ToString();
  };
  EXPECT_THAT(Refusal("DeepseekV2ForCausalLM", latents),
              HasSubstr("num_key_value_heads: found 2, expected 4"));
  EXPECT_THAT(replaced(R"("kv_lora_rank": 32)", R"("kv_lora_rank": 40)"),
              HasSubstr("kv_lora_rank: found 40, expected a multiple of 16"));
  EXPECT_THAT(replaced(R"("qk_rope_head_dim": 16)", R"("qk_rope_head_dim": 15)"),
              HasSubstr("qk_rope_head_dim: found 15, expected an even number"));
  EXPECT_THAT(replaced(R"("q_lora_rank": null,)", ""),
              HasSubstr("q_lora_rank: found nothing, expected an integer or null"));
  EXPECT_THAT(ParseLatents("Glm4MoeLiteForCausalLM",
                           Latents(R"(, "routed_scaling_factor": 1, "rope_interleave": false)"))
                  .status()
                  .ToString(),
              HasSubstr("rope_interleave: found false, expected true"));
}

std::vector<bool> RecurrentLayersOf(const ModelConfig& model) {
  std::vector<bool> recurrent;
  for (const LayerSpec& layer : model.layers) recurrent.push_back(layer.recurrence() != nullptr);
  return recurrent;
}

TEST(ArchitectureTest, LfmTwoHasAttentionWhereItsConfigSays) {
  // As its class has them: without a list, all layers have attention.
  const auto bare = Parse("Lfm2ForCausalLM", R"(, "block_auto_adjust_ff_dim": false)");
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_THAT(RecurrentLayersOf(*bare), ::testing::Each(false));
  EXPECT_EQ(bare->layers[0].mlp().ffn_dim, 96);
  EXPECT_TRUE(bare->tied_embeddings);
  EXPECT_EQ(bare->norm_eps, 1e-5F) << "rms_norm_eps is none of its keys";

  const auto listed = Parse("Lfm2ForCausalLM", R"(, "full_attn_idxs": [1, 6], "norm_eps": 1e-4,
      "block_ffn_dim_multiplier": 1.5, "block_multiple_of": 32, "tie_embedding": false,
      "block_ff_dim": 120, "conv_L_cache": 4, "block_use_swiglu": true, "conv_dim": 64)");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(RecurrentLayersOf(*listed),
              ElementsAre(true, false, true, true, true, true, false, true));
  EXPECT_EQ(listed->layers[1].mlp().ffn_dim, 128) << "2/3 of 120, times 1.5, up to 32";
  EXPECT_FALSE(listed->tied_embeddings);
  EXPECT_EQ(listed->norm_eps, 1e-4F);
  const RecurrentSpec& conv = *listed->layers[0].recurrence();
  EXPECT_EQ(conv.taps, 4);
  EXPECT_EQ(conv.conv_column(), 128);
  EXPECT_FALSE(conv.conv_bias);

  EXPECT_THAT(Refusal("Lfm2ForCausalLM", R"(, "layer_types": ["conv"])"),
              HasSubstr("layer_types: found 1 entries, expected 8"));
  EXPECT_THAT(Refusal("Lfm2ForCausalLM", R"(, "layer_types": ["conv", "conv", "conv", "conv",
                      "conv", "mamba", "conv", "full_attention"])"),
              HasSubstr("layer_types[5]: found \"mamba\", expected \"conv\""));
  EXPECT_THAT(Refusal("Lfm2ForCausalLM", R"(, "conv_L_cache": 9)"),
              HasSubstr("conv_L_cache: found 9"));
  EXPECT_THAT(Refusal("Lfm2ForCausalLM", R"(, "block_multiple_of": 0)"),
              HasSubstr("block_multiple_of: found 0"));
}

// What its class assumes where the config is silent.
TEST(ArchitectureTest, QwenThreeFiveHasTheDeltaRuleInThreeLayersOfFour) {
  const auto model = Parse("Qwen3_5ForCausalLM", "");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(RecurrentLayersOf(*model),
              ElementsAre(true, true, true, false, true, true, true, false));
  const RecurrentSpec& delta = *model->layers[0].recurrence();
  EXPECT_EQ(delta.heads, 32);
  EXPECT_EQ(delta.key_heads, 16);
  EXPECT_EQ(delta.conv_width(), 2 * 16 * 128 + 32 * 128);
  EXPECT_FALSE(delta.norm.less_one);
  EXPECT_FALSE(delta.steps.rounds);
  const AttentionSpec& attention = model->layers[3].attention();
  EXPECT_TRUE(attention.gated && attention.q_norm.less_one);
  EXPECT_EQ(attention.head_dim, 256);
  EXPECT_EQ(attention.qkv.parts[0].rows, 2 * 4 * 256);
  EXPECT_EQ(model->ropes[0].inverse_frequencies.size(), 32U) << "a quarter of a head";
  EXPECT_TRUE(model->final_norm.less_one);

  const auto other = Parse("Qwen3_5ForCausalLM", R"(, "full_attention_interval": 2, "head_dim": 32,
      "rope_parameters": {"rope_type": "default", "rope_theta": 10000000,
      "partial_rotary_factor": 0.5, "mrope_section": [2, 3, 3], "mrope_interleaved": true},
      "mtp_num_hidden_layers": 1, "mamba_ssm_dtype": "float32", "attn_output_gate": true)");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(RecurrentLayersOf(*other),
              ElementsAre(true, false, true, false, true, false, true, false));
  EXPECT_EQ(other->ropes[0].inverse_frequencies.size(), 8U);

  for (const auto& [more, refusal] :
       {std::pair(R"(, "linear_num_key_heads": 5)", "linear_num_key_heads: found 5"),
        {R"(, "linear_value_head_dim": 24)",
         "linear_value_head_dim: found 24, expected a multiple of 16"},
        {R"(, "linear_key_head_dim": 100)", "linear_key_head_dim: found 100"},
        {R"(, "linear_conv_kernel_dim": 1)", "linear_conv_kernel_dim: found 1"},
        {R"(, "attention_bias": true)", "attention_bias: found true, expected false"},
        {R"(, "attn_output_gate": false)", "attn_output_gate: found false, expected true"},
        {R"(, "layer_types": ["full_attention"])", "layer_types: found 1 entries, expected 8"}}) {
    EXPECT_THAT(Refusal("Qwen3_5ForCausalLM", more), HasSubstr(refusal));
  }
}

// The text part of a model for texts and images, as it is published.
TEST(ArchitectureTest, QwenThreeFiveIsAlsoAPartOfAModelForImages) {
  const auto model = ParseText(absl::StrCat(
      R"({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
          "image_token_id": 3, "video_token_id": 4, "vision_start_token_id": 5,
          "vision_end_token_id": 6, "tie_word_embeddings": true, "vision_config": {"depth": 12},
          "text_config": {"model_type": "qwen3_5_text", )",
      Sizes(R"(, "tie_word_embeddings": true)"), "}}"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->architecture, "Qwen3_5ForCausalLM");
  EXPECT_TRUE(model->nested);
}

TEST(ArchitectureTest, QwenThreeFiveWithExpertsHasOneMoreWithAGate) {
  const std::string experts = R"(, "num_experts": 16, "num_experts_per_tok": 4,
      "moe_intermediate_size": 32, "mlp_only_layers": [], "decoder_sparse_step": 1,
      "norm_topk_prob": true, "router_aux_loss_coef": 0.001)";
  const auto model = ParseText(absl::StrCat(
      R"({"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
          "vision_config": {"depth": 12}, "text_config": {"model_type": "qwen3_5_moe_text", )",
      Sizes(experts), "}}"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->architecture, "Qwen3_5MoeForCausalLM");
  EXPECT_TRUE(model->nested);
  EXPECT_THAT(RecurrentLayersOf(*model),
              ElementsAre(true, true, true, false, true, true, true, false));
  const auto& spec = std::get<ExpertsSpec>(model->layers[3].sublayers[1].body);
  EXPECT_TRUE(spec.routing.normalized && !spec.routing.sigmoid);
  EXPECT_EQ(spec.expert.ffn_dim, 32) << "intermediate_size is none of its keys";
  EXPECT_EQ(spec.shared.ffn_dim, 512) << "as its class assumes";
  EXPECT_FALSE(spec.shared.gate_up.fused);
  EXPECT_EQ(spec.shared_gate.rows(), 1);
  EXPECT_FALSE(spec.shared_gate.rounds);
  EXPECT_TRUE(spec.expert.gate_up.fused_by_rows && spec.expert.down.fused_by_rows);

  for (const auto& [more, refusal] :
       {std::pair(R"(, "num_experts_per_tok": 17)", "num_experts_per_tok: found 17"),
        {R"(, "mlp_only_layers": [1])", "mlp_only_layers: found a list, expected none"},
        {R"(, "decoder_sparse_step": 2)", "decoder_sparse_step: found 2"},
        {R"(, "norm_topk_prob": false)", "norm_topk_prob: found false, expected true"}}) {
    EXPECT_THAT(
        Refusal(
            "Qwen3_5MoeForCausalLM",
            absl::StrCat(R"(, "num_experts": 16, "moe_intermediate_size": 32)",
                         absl::StrContains(more, "per_tok") ? "" : R"(, "num_experts_per_tok": 4)",
                         more)),
        HasSubstr(refusal));
  }
}

TEST(ArchitectureTest, QwenThreeNextHasTheDeltaRulesMatricesInTurn) {
  const auto model = Parse("Qwen3NextForCausalLM", R"(, "num_experts": 16, "head_dim": 32,
      "num_experts_per_tok": 4, "moe_intermediate_size": 32, "mlp_only_layers": [3],
      "decoder_sparse_step": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
      "linear_key_head_dim": 32, "linear_value_head_dim": 16, "use_sliding_window": false)");
  ASSERT_TRUE(model.ok()) << model.status();
  const RecurrentSpec& delta = *model->layers[0].recurrence();
  EXPECT_THAT(delta.in.turns, ElementsAre(32, 32, 48, 48));
  EXPECT_EQ(delta.in.rows(), 2 * (32 + 32 + 48 + 48));
  EXPECT_THAT(delta.steps.turns, ElementsAre(3, 3));
  std::vector<bool> experts;
  for (const LayerSpec& layer : model->layers) experts.push_back(layer.has_experts());
  EXPECT_THAT(experts, ElementsAre(false, true, false, false, false, true, false, true));
  const auto& spec = std::get<ExpertsSpec>(model->layers[1].sublayers[1].body);
  EXPECT_TRUE(spec.routing.normalized);
  EXPECT_EQ(spec.shared.ffn_dim, 512);
  EXPECT_EQ(model->layers[0].mlp().ffn_dim, 96);
}

TEST(ArchitectureTest, LfmTwoWithExpertsChoosesBySigmoidsWithABias) {
  const std::string types = R"(, "layer_types": ["conv", "conv", "full_attention", "conv", "conv",
      "conv", "full_attention", "conv"], "num_experts": 16, "num_experts_per_tok": 4,
      "moe_intermediate_size": 32)";
  const auto model = Parse("Lfm2MoeForCausalLM", types);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(RecurrentLayersOf(*model),
              ElementsAre(true, true, false, true, true, true, false, true));
  EXPECT_EQ(model->layers[1].mlp().ffn_dim, 96) << "which is not adjusted";
  const auto& spec = std::get<ExpertsSpec>(model->layers[2].sublayers[1].body);
  EXPECT_TRUE(spec.routing.normalized && spec.routing.sigmoid && spec.choice_bias);
  EXPECT_EQ(spec.routing.scale, 1);
  EXPECT_EQ(spec.expert.ffn_dim, 32);

  const auto other = Parse("Lfm2MoeForCausalLM", absl::StrCat(types, R"(, "num_dense_layers": 3,
      "norm_topk_prob": false, "use_expert_bias": false, "routed_scaling_factor": 2.5)"));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(other->layers[2].has_experts());
  const auto& plain = std::get<ExpertsSpec>(other->layers[3].sublayers[1].body);
  EXPECT_FALSE(plain.routing.normalized || plain.choice_bias);
  EXPECT_EQ(plain.routing.scale, 2.5F);

  EXPECT_THAT(Refusal("Lfm2MoeForCausalLM", ""),
              HasSubstr("layer_types: found nothing, expected a list"));
  EXPECT_THAT(Refusal("Lfm2MoeForCausalLM", absl::StrCat(types, R"(, "block_ff_dim": 64)")),
              HasSubstr("block_ff_dim: found 64, expected none"));
}

TEST(ArchitectureTest, GraniteHybridsHaveMambaWhereTheirConfigSays) {
  const std::string mamba = R"(, "shared_intermediate_size": 80, "num_experts_per_tok": 2,
      "mamba_n_heads": 8)";
  const auto bare = Parse("GraniteMoeHybridForCausalLM", mamba + R"(, "num_local_experts": 4)");
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_THAT(RecurrentLayersOf(*bare), ::testing::Each(true)) << "as its class assumes";
  const RecurrentSpec& spec = *bare->layers[0].recurrence();
  EXPECT_EQ(spec.head_dim, 16) << "2 times 64, of 8 heads";
  EXPECT_EQ(spec.key_dim, 256);
  EXPECT_EQ(spec.in.rows(), 2 * 128 + 2 * 256 + 8);
  EXPECT_TRUE(spec.conv_bias && !spec.in.bias);
  EXPECT_EQ(spec.least_step, 0);
  EXPECT_EQ(spec.most_step, INFINITY);
  const auto& experts = std::get<ExpertsSpec>(bare->layers[0].sublayers[1].body);
  EXPECT_EQ(experts.expert.ffn_dim, 96);
  EXPECT_EQ(experts.shared.ffn_dim, 80);
  EXPECT_FALSE(experts.shared.gate_up.fused);

  // Old names and new ones of the layers; a limit as Transformers 5 writes it.
  const std::string types = R"(, "num_local_experts": 0, "layer_types": ["mamba", "attention",
      "linear_attention", "full_attention", "mamba", "mamba", "mamba", "mamba"])";
  const auto dense = Parse("GraniteMoeHybridForCausalLM", absl::StrCat(mamba, types, R"(,
      "position_embedding_type": "nope", "rope_theta": 5, "mamba_d_head": "auto",
      "mamba_n_groups": 2, "mamba_d_state": 32, "attention_multiplier": 0.5, "logits_scaling": 4,
      "attention_bias": true, "mamba_chunk_size": 256,
      "time_step_limit": [0.5, {"__float__": "Infinity"}])"));
  ASSERT_TRUE(dense.ok()) << dense.status();
  EXPECT_THAT(RecurrentLayersOf(*dense),
              ElementsAre(true, false, true, false, true, true, true, true));
  EXPECT_EQ(dense->layers[1].attention().rope, kNoRope);
  EXPECT_EQ(dense->layers[1].attention().scale, 0.5F);
  EXPECT_TRUE(dense->layers[1].attention().output.bias);
  EXPECT_TRUE(dense->ropes.empty());
  EXPECT_EQ(dense->logit_scale, 0.25F);
  EXPECT_EQ(dense->layers[0].recurrence()->norm_group, 64);
  EXPECT_EQ(dense->layers[0].recurrence()->least_step, 0.5F);
  EXPECT_EQ(dense->layers[0].mlp().ffn_dim, 80);

  // One without such layers, as it is published.
  const auto plain = Parse("GraniteMoeHybridForCausalLM", absl::StrCat(mamba, R"(,
      "num_local_experts": 0, "position_embedding_type": "rope", "rope_theta": 10000000,
      "mamba_expand": 2, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_conv_bias": true,
      "layer_types": ["attention", "attention", "attention", "attention", "attention",
                      "attention", "attention", "attention"])"));
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_THAT(RecurrentLayersOf(*plain), ::testing::Each(false));
  EXPECT_EQ(plain->ropes.size(), 1U);

  for (const auto& [more, refusal] :
       {std::pair(R"(, "position_embedding_type": "alibi")",
                  "position_embedding_type: found \"alibi\", expected nope"),
        {R"(, "mamba_d_head": 32)", "mamba_d_head: found 32, expected 16"},
        {R"(, "mamba_n_groups": 3)", "mamba_n_heads: found 8, expected a divisor of 128"},
        {R"(, "mamba_expand": 1)", "mamba_n_heads: found 8 of 8, expected a multiple of 16"},
        {R"(, "mamba_d_state": 40)", "mamba_d_state: found 40, expected a multiple of 16"},
        {R"(, "mamba_d_conv": 9)", "mamba_d_conv: found 9"},
        {R"(, "time_step_limit": [0.5])", "time_step_limit: found other than two"},
        {R"(, "time_step_limit": [-1, 2])", "time_step_limit[0]: found -1"},
        {R"(, "hidden_act": "gelu_pytorch_tanh")", "hidden_act: found \"gelu_pytorch_tanh\""},
        {R"(, "normalization_function": "layernorm")", "normalization_function: found"}}) {
    EXPECT_THAT(
        Refusal("GraniteMoeHybridForCausalLM", mamba + R"(, "num_local_experts": 0)" + more),
        HasSubstr(refusal));
  }
}

TEST(ArchitectureTest, RefusesByName) {
  EXPECT_THAT(Refusal("Gemma3ForCausalLM", R"(, "use_bidirectional_attention": true)"),
              HasSubstr("use_bidirectional_attention: found true, expected false"));
  EXPECT_THAT(Refusal("Gemma3ForCausalLM", R"(, "hidden_activation": "gelu")"),
              HasSubstr("hidden_activation: found \"gelu\", expected \"silu\" or"));
  EXPECT_THAT(Refusal("SmolLM3ForCausalLM", R"(, "no_rope_layers": [1, 0])"),
              HasSubstr("no_rope_layers: found 2 entries, expected 8"));
  EXPECT_THAT(Refusal("Olmo3ForCausalLM", R"(, "layer_types": ["full_attention"])"),
              HasSubstr("layer_types: found 1 entries, expected 8"));
  EXPECT_THAT(Refusal("GraniteForCausalLM", R"(, "logits_scaling": 0)"),
              HasSubstr("logits_scaling: found 0, expected a number in"));
  EXPECT_THAT(Refusal("Phi3ForCausalLM", R"(, "rope_scaling": {"type": "linear", "factor": 2})"),
              HasSubstr("rope_scaling.type: found \"linear\", expected default or longrope"));
  EXPECT_THAT(Refusal("Phi3ForCausalLM", R"(, "full_attn_mod": 2)"), HasSubstr("full_attn_mod"));
  EXPECT_THAT(Refusal("GptOssForCausalLM", ""),
              HasSubstr("rope_scaling: found nothing, expected an object"));
  EXPECT_THAT(Refusal("Ministral3ForCausalLM", ""),
              HasSubstr("rope_parameters: found nothing, expected an object"));
}

// Gemma 3's scalar, Granite's scales and Seed-OSS's bias mean nothing to Llama.
TEST(ArchitectureTest, AKeyOfAnotherArchitectureIsRefused) {
  for (const char* key :
       {"query_pre_attn_scalar", "embedding_multiplier", "attention_out_bias", "no_rope_layers",
        "attn_logit_softcapping", "rope_local_base_freq", "sliding_window_pattern"}) {
    EXPECT_THAT(Refusal("LlamaForCausalLM", absl::StrCat(", \"", key, "\": 2")),
                HasSubstr(absl::StrCat(key, ": found 2, expected none")));
  }
}

TEST(ArchitectureTest, NemotronHasOneSublayerInALayer) {
  // As it is published.
  const std::string published = R"(, "head_dim": 16, "attention_head_dim": 16, "chunk_size": 128,
      "conv_kernel": 4, "expand": 2, "hybrid_override_pattern": "M-M*-MM-", "mamba_head_dim": 32,
      "mamba_hidden_act": "silu", "mamba_num_heads": 8, "mamba_proj_bias": false,
      "layer_norm_epsilon": 1e-5, "mlp_bias": false, "mlp_hidden_act": "relu2", "n_groups": 4,
      "num_logits_to_keep": 1, "rescale_prenorm_residual": true, "residual_in_fp32": false,
      "sliding_window": null, "ssm_state_size": 64, "time_step_floor": 0.0001,
      "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_max": 0.1,
      "time_step_min": 0.001, "time_step_rank": 256, "use_bias": false, "use_conv_bias": true,
      "use_mamba_kernels": true, "tie_word_embeddings": false, "attention_bias": false)";
  const auto model = Parse("NemotronHForCausalLM", published);
  ASSERT_TRUE(model.ok()) << model.status();
  std::string pattern;
  for (const LayerSpec& layer : model->layers) {
    ASSERT_THAT(layer.sublayers, SizeIs(1));
    EXPECT_STREQ(layer.sublayers[0].norm_before.name.hugging_face, "norm");
    EXPECT_FALSE(layer.sublayers[0].norm_after);
    pattern += layer.recurrence() != nullptr            ? "M"
               : layer.attention_or_null() != nullptr   ? "*"
               : layer.BodyOrNull<MlpSpec>() != nullptr ? "-"
                                                        : "?";
  }
  EXPECT_EQ(pattern, "M-M*-MM-");
  EXPECT_FLOAT_EQ(model->norm_eps, 1e-5F) << "and not rms_norm_eps";
  EXPECT_TRUE(model->ropes.empty());
  const AttentionSpec& attention = model->layers[3].attention();
  EXPECT_EQ(attention.rope, kNoRope);
  EXPECT_STREQ(attention.qkv.parts[2].name.hugging_face, "mixer.v_proj");
  const MlpSpec& mlp = model->layers[1].mlp();
  EXPECT_EQ(mlp.activation, backend::GatedActivation::kSquaredRelu);
  ASSERT_THAT(mlp.gate_up.parts, SizeIs(1));
  EXPECT_EQ(mlp.gate_up.rows(), 96);
  EXPECT_EQ(mlp.down.cols, 96);
  const RecurrentSpec& mamba = *model->layers[0].recurrence();
  EXPECT_EQ(mamba.width(), 256) << "whatever expand says";
  EXPECT_EQ(mamba.in.rows(), 2 * 256 + 2 * 4 * 64 + 8);
  EXPECT_EQ(mamba.norm_group, 64);
  EXPECT_FLOAT_EQ(mamba.least_step, 0.001F);
  EXPECT_EQ(mamba.most_step, INFINITY);
  EXPECT_TRUE(mamba.conv_bias && !mamba.in.bias && !mamba.output.bias);

  // As Transformers 5 writes it, which leaves the number of layers to the list; older names mean
  // the same.
  const auto listed = ParseText(R"({"architectures": ["NemotronHForCausalLM"], "hidden_size": 64,
      "layers_block_type": ["mamba", "linear_attention", "full_attention", "attention", "mlp"],
      "use_bias": true, "use_conv_bias": false, "moe_intermediate_size": 7688,
      "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "mtp_layers_block_type":
      ["full_attention", "moe"], "num_nextn_predict_layers": 0, "mamba_ssm_cache_dtype": "float32",
      "moe_shared_expert_overlap": true})");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(RecurrentLayersOf(*listed), ElementsAre(true, true, false, false, false));
  EXPECT_EQ(listed->layers[4].mlp().ffn_dim, 21504) << "as its class assumes";
  EXPECT_EQ(listed->layers[3].attention().query_heads, 32);
  EXPECT_EQ(listed->layers[3].attention().kv_heads, 8);
  EXPECT_TRUE(listed->layers[0].recurrence()->in.bias);
  EXPECT_FALSE(listed->layers[0].recurrence()->conv_bias);

  for (const auto& [more, refusal] :
       {std::pair(R"(, "hybrid_override_pattern": "M-M*-MMX")",
                  "hybrid_override_pattern[7]: found \"X\", expected M, *, - or E"),
        {"", "hybrid_override_pattern: found 0 layers, expected 1 to"},
        {R"(, "hybrid_override_pattern": "M-M*")", "num_hidden_layers: found 8, expected 4"},
        {R"(, "layers_block_type": ["mlp", "conv"])",
         "layers_block_type[1]: found \"conv\", expected linear_attention"},
        {R"(, "hybrid_override_pattern": "M-", "layers_block_type": ["mlp", "mlp"])",
         "hybrid_override_pattern: found \"M-\", expected --, as layers_block_type says"},
        {R"(, "layer_types": ["mlp"], "hybrid_override_pattern": "M-M*-MM-")",
         "layer_types: found a list, expected none"}}) {
    EXPECT_THAT(Refusal("NemotronHForCausalLM", more), HasSubstr(refusal));
  }
  for (const auto& [more, refusal] :
       {std::pair(R"(, "mlp_hidden_act": "silu")",
                  "mlp_hidden_act: found \"silu\", expected \"relu2\""),
        {R"(, "mamba_hidden_act": "gelu")", "mamba_hidden_act: found \"gelu\", expected silu"},
        {R"(, "mamba_num_heads": 12)",
         "mamba_num_heads: found 12, expected a multiple of 8, n_groups"},
        {R"(, "mamba_head_dim": 24)", "mamba_head_dim: found 24, expected a multiple of 16"},
        {R"(, "ssm_state_size": 100)", "ssm_state_size: found 100, expected a multiple of 16"},
        {R"(, "ssm_state_size": 1024)", "ssm_state_size: found 1024"},
        {R"(, "conv_kernel": 1)", "conv_kernel: found 1"},
        {R"(, "n_groups": 0)", "n_groups: found 0"},
        {R"(, "time_step_min": -1)", "time_step_min: found -1"},
        {R"(, "time_step_limit": [0.0, 0.1])",
         "time_step_limit: found 0 to 0.1, expected 0 to Infinity"},
        {R"(, "attention_bias": true)", "attention_bias: found true, expected false"},
        {R"(, "attention_head_dim": 64)",
         "attention_head_dim: found 64, expected 128, as head_dim"},
        {R"(, "mlp_bias": true)", "mlp_bias: found true, expected none"},
        {R"(, "residual_in_fp32": true)", "residual_in_fp32: found true, expected none"},
        {R"(, "sliding_window": 64)", "sliding_window: found 64, expected none"}}) {
    EXPECT_THAT(Refusal("NemotronHForCausalLM",
                        absl::StrCat(R"(, "hybrid_override_pattern": "M-M*-MM-")", more)),
                HasSubstr(refusal));
  }
}

TEST(ArchitectureTest, NemotronsExpertsHaveNoGate) {
  const std::string experts = R"(, "hybrid_override_pattern": "MEME*EM-", "n_routed_experts": 16,
      "num_experts_per_tok": 6, "moe_intermediate_size": 32, "n_shared_experts": 1,
      "moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 2.5, "n_group": 1,
      "topk_group": 1, "norm_topk_prob": true, "moe_latent_size": null, "norm_eps": 1e-5,
      "rope_theta": 10000, "partial_rotary_factor": 1.0)";
  const auto model = Parse("NemotronHForCausalLM", experts);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto& spec = std::get<ExpertsSpec>(model->layers[3].sublayers[0].body);
  EXPECT_EQ(spec.count, 16);
  EXPECT_TRUE(spec.routing.sigmoid && spec.routing.normalized);
  EXPECT_EQ(spec.routing.per_token, 6);
  EXPECT_EQ(spec.routing.scale, 2.5F);
  EXPECT_STREQ(spec.choice_bias.hugging_face, "mixer.gate.e_score_correction_bias");
  EXPECT_FALSE(spec.expert.has_gate() || spec.shared.has_gate());
  EXPECT_EQ(spec.expert.gate_up.rows(), 32);
  EXPECT_EQ(spec.shared.gate_up.rows(), 48);
  EXPECT_STREQ(spec.expert.gate_up.fused.hugging_face, "mixer.experts.up_proj");
  EXPECT_FALSE(spec.shared.gate_up.fused);
  EXPECT_EQ(model->layers[7].mlp().ffn_dim, 96);

  for (const auto& [more, refusal] :
       {std::pair(R"(, "moe_latent_size": 16)", "moe_latent_size: found 16, expected null"),
        {R"(, "n_group": 2)", "n_group: found 2, expected 1"},
        {R"(, "topk_group": 2)", "topk_group: found 2, expected 1"},
        {R"(, "n_shared_experts": 2)", "n_shared_experts: found 2, expected 1"},
        {R"(, "moe_shared_expert_intermediate_size": 0)",
         "moe_shared_expert_intermediate_size: found 0"},
        {"", "num_experts_per_tok: found 17"}}) {
    const std::string per_token = more[0] == 0 ? "17" : "6";
    EXPECT_THAT(
        Refusal("NemotronHForCausalLM", absl::StrCat(R"(, "hybrid_override_pattern": "MEME*EM-",
                            "n_routed_experts": 16, "moe_intermediate_size": 32,
                            "num_experts_per_tok": )",
                                                     per_token, more)),
        HasSubstr(refusal));
  }
}

}  // namespace
}  // namespace baton::model
