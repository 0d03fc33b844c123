#include "common/model/model_costs.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/model/architecture.h"
#include "common/model/checkpoint.h"
#include "common/model/model_tensors.h"
#include "gtest/gtest.h"
#include "tests/testing/dense_config.h"

namespace baton::model {
namespace {

using backend::DType;

constexpr char kQwen05[] = R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 896,
  "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
  "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 32768,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16"})";

// DeepSeek-V2-Lite, as published.
constexpr char kV2Lite[] = R"({"architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048,
  "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
  "intermediate_size": 10944, "vocab_size": 102400, "max_position_embeddings": 163840,
  "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
  "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "torch_dtype": "bfloat16"})";

template <class F>
auto WithConfig(const std::string& text, F f) {
  const auto document = json::Parse(text, "config.json");
  EXPECT_TRUE(document.ok()) << document.status();
  const auto fields = JsonFields::Make(*document, "config.json");
  EXPECT_TRUE(fields.ok()) << fields.status();
  return f(*fields);
}

ModelCosts Parsed(const std::string& text) {
  return WithConfig(text, [](const JsonFields& fields) {
    const auto costs = ParseCosts(fields);
    EXPECT_TRUE(costs.ok()) << costs.status();
    return costs.value_or(ModelCosts());
  });
}

// A shape that the engine serves, from its spec.
ModelConfig Spec(int layers, int query_heads, int kv_heads, int head_dim, int ffn, int hidden,
                 int vocab, bool tied) {
  return baton::testing::DenseConfig({.layers = layers,
                                      .query_heads = query_heads,
                                      .kv_heads = kv_heads,
                                      .head_dim = head_dim,
                                      .ffn_dim = ffn,
                                      .hidden_dim = hidden,
                                      .vocab_size = vocab,
                                      .tied = tied});
}

double Milliseconds(double amount, double per_second) { return amount / per_second * 1e3; }

// By hand: a layer of Qwen2.5-0.5B has 896·(896 + 2·128) + 896·896 elements of attention and
// 3·896·4864 of feed-forward, 14,909,440 ·24 = 357,826,560; the embedding 896·151,936 =
// 136,134,656.
TEST(ModelCostsTest, Qwen05ByHand) {
  const ModelCosts costs = Parsed(kQwen05);
  EXPECT_EQ(costs.attention, "GQA");
  ASSERT_EQ(costs.layers.size(), 24u);
  EXPECT_EQ(costs.layers[0].attention_elements, 1'835'008);
  EXPECT_EQ(costs.layers[0].ffn_elements, 13'074'432);
  EXPECT_EQ(costs.kv_elements() * 2, 12'288);
  const StepBytes step = DecodeStepBytes(costs, {}, DType::kF16, 2, 8, 2048);
  EXPECT_EQ(step.weights, 2.0 * (357'826'560 + 136'134'656) + 4.0 * 24 * 2 * 896);
  EXPECT_EQ(step.kv, 8.0 * 2048 * 12'288);
  // One token: two operations an element, and for each token seen 4·896 a layer.
  EXPECT_EQ(DecodeStepFlops(costs, 1, 2048),
            2.0 * (357'826'560 + 136'134'656) + 24.0 * 2048 * 4 * 896);
  EXPECT_EQ(DecodeStepFlops(costs, 8, 2048), 8 * DecodeStepFlops(costs, 1, 2048));
  EXPECT_EQ(PrefillFlops(costs, 1), 2.0 * (357'826'560 + 136'134'656) + 24.0 * 4 * 896);
  EXPECT_EQ(PrefillFlops(costs, 2048),
            2.0 * 357'826'560 * 2048 + 2.0 * 136'134'656 + 24.0 * 4 * 896 * (2048.0 * 2049 / 2));
  // What is cached costs nothing but that later tokens look at it.
  EXPECT_EQ(PrefillFlops(costs, 2048, 2047), DecodeStepFlops(costs, 1, 2048));
}

TEST(ModelCostsTest, SpecsAndFilesAgreeAndAreWhatTheDeviceHolds) {
  ModelConfig config = Spec(24, 14, 2, 64, 4864, 896, 151936, true);
  const ModelCosts spec = CostsOf(config), file = Parsed(kQwen05);
  EXPECT_EQ(spec.layers[0].attention_elements, file.layers[0].attention_elements);
  EXPECT_EQ(spec.layers[0].ffn_elements, file.layers[0].ffn_elements);
  EXPECT_EQ(spec.layers[0].pair_flops, file.layers[0].pair_flops);
  EXPECT_EQ(spec.kv_elements(), file.kv_elements());
  EXPECT_EQ(spec.parameters(), file.parameters());
  for (const WeightFormat& format : {WeightFormat{}, WeightFormat{.bits = 4, .group_size = 64}}) {
    for (LayerSpec& layer : config.layers) {
      AttentionSpec& attention = layer.attention();
      attention.qkv.bias = true;
      attention.q_norm = attention.k_norm = {{"q_norm", "q_norm"}, attention.head_dim};
    }
    const ModelCosts costs = CostsOf(config);
    const WeightSizes sizes = WeightMemory(config, DType::kF16, DType::kF16, format);
    const double element = BytesPerElement(format, DType::kF16);
    EXPECT_DOUBLE_EQ(static_cast<double>(sizes.attention.bytes + sizes.feed_forward.bytes),
                     24 * element * static_cast<double>(costs.layers[0].matrix_elements()));
    EXPECT_EQ(sizes.vectors.bytes, 4 * (24 * costs.layers[0].vector_elements + 896));
  }
}

// The floors table of the reference: context 2,048, 16-bit KV; a T4 at 320 GB/s and 24 TFLOPS, an
// H200 at 4.3 TB/s and 790 TFLOPS. Its figures are rounded to what is given as the tolerance; 4
// bits are with 32 bits a group of 128.
TEST(ModelCostsTest, FloorsTable) {
  struct Row {
    const char* name;
    ModelConfig config;
    WeightFormat format;
    double step_gb;
    int64_t token_bytes;
    double t4_ms[3];
    double t4_prefill_ms;
    double h200_ms[3];
    double h200_prefill_ms;
    double kv_mb, ten_gbe_ms;
  };
  const Row rows[] = {
      {"Qwen2.5-0.5B",
       Spec(24, 14, 2, 64, 4864, 896, 151936, true),
       {},
       0.99,
       12'288,
       {3.17, 3.72, 5.60},
       69,
       {.24, .28, .42},
       2.1,
       25,
       20},
      {"Qwen2.5-1.5B",
       Spec(28, 12, 2, 128, 8960, 1536, 151936, true),
       {},
       3.09,
       28'672,
       {9.83, 11.1, 15.5},
       239,
       {.73, .83, 1.16},
       7.3,
       59,
       47},
      {"Llama-3.2-1B",
       Spec(16, 32, 8, 64, 8192, 2048, 128256, true),
       {},
       2.47,
       32'768,
       {7.93, 9.40, 14.4},
       178,
       {.59, .70, 1.07},
       5.4,
       67,
       54},
      {"Llama-3.2-3B",
       Spec(28, 24, 8, 128, 8192, 3072, 128256, true),
       {},
       6.43,
       114'688,
       {20.8, 26.0, 43.6},
       511,
       {1.55, 1.93, 3.24},
       15.5,
       235,
       188},
      {"Qwen2.5-7B int4",
       Spec(28, 28, 4, 128, 18944, 3584, 152064, false),
       {.bits = 4},
       4.56,
       57'344,
       {14.61, 17.18, 25.99},
       1149,
       {1.087, 1.278, 1.934},
       34.9,
       117,
       94},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const ModelCosts costs = CostsOf(row.config);
    EXPECT_EQ(costs.kv_elements() * 2, row.token_bytes);
    const int batches[] = {1, 8, 32};
    for (int i = 0; i < 3; ++i) {
      const StepBytes step = DecodeStepBytes(costs, row.format, DType::kF16, 2, batches[i], 2048);
      EXPECT_NEAR(step.weights / 1e9, row.step_gb, 0.005);
      EXPECT_NEAR(Milliseconds(step.total(), 320e9) / row.t4_ms[i], 1, 0.005) << batches[i];
      EXPECT_NEAR(Milliseconds(step.total(), 4.3e12), row.h200_ms[i], 0.0051) << batches[i];
    }
    const double flops = PrefillFlops(costs, 2048);
    EXPECT_NEAR(Milliseconds(flops, 24e12) / row.t4_prefill_ms, 1, 0.008);
    EXPECT_NEAR(Milliseconds(flops, 790e12) / row.h200_prefill_ms, 1, 0.012);
    const double kv = 2048.0 * static_cast<double>(row.token_bytes);
    EXPECT_NEAR(kv / 1e6, row.kv_mb, 0.51);
    EXPECT_NEAR(Milliseconds(kv, 1.25e9), row.ten_gbe_ms, 0.51);
  }
}

// The latent (512) and the rotated key (64) of 27 layers, 16 bits: 31,104 bytes a token, where
// expanded heads would take 276,480.
TEST(ModelCostsTest, LatentAttentionByHand) {
  const ModelCosts costs = Parsed(kV2Lite);
  EXPECT_EQ(costs.attention, "MLA");
  EXPECT_EQ(costs.kv_elements() * 2, 31'104);
  const LayerCosts& layer = costs.layers[5];
  // q [16·192, 2048], kv_a [576, 2048], kv_b [16·256, 512], o [2048, 16·128].
  EXPECT_EQ(layer.attention_elements, 3072 * 2048 + 576 * 2048 + 4096 * 512 + int64_t{2048} * 2048);
  // Scores and sums over latents, not over expanded heads.
  EXPECT_EQ(layer.pair_flops, 2 * 16 * (576 + 512));
  // Layer 0 is dense; the others have a router, two shared experts and 64 of which six are picked.
  EXPECT_EQ(costs.layers[0].experts, 0);
  EXPECT_EQ(costs.layers[0].ffn_elements, int64_t{3} * 10944 * 2048);
  EXPECT_EQ(layer.expert_elements, int64_t{3} * 1408 * 2048);
  EXPECT_EQ(layer.ffn_elements, 2 * layer.expert_elements + 64 * 2048);
  EXPECT_NEAR(static_cast<double>(costs.parameters()), 15.7e9, 0.05e9);
  // Of one token six experts are read, of very many all; never more.
  const auto experts = [&](int batch) {
    const double all = DecodeStepBytes(costs, {}, DType::kF16, 2, batch, 0).weights;
    ModelCosts none = costs;
    for (LayerCosts& each : none.layers) each.experts = 0;
    const double rest = DecodeStepBytes(none, {}, DType::kF16, 2, batch, 0).weights;
    return (all - rest) / (26 * 2.0 * static_cast<double>(layer.expert_elements));
  };
  EXPECT_NEAR(experts(1), 6, 1e-6);
  EXPECT_NEAR(experts(2), 12 - 36.0 / 64, 1e-6);
  EXPECT_NEAR(experts(100'000), 64, 1e-6);
}

// The description of the model that is served counts as the one of its config alone.
TEST(ModelCostsTest, LatentAttentionAsServed) {
  std::string served = kV2Lite;
  served.back() = ',';
  served += R"("rms_norm_eps": 1e-6})";
  const ModelCosts by_config = Parsed(served);
  const auto model =
      WithConfig(served, [](const JsonFields& fields) { return ParseConfig(fields); });
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelCosts costs = CostsOf(*model);
  EXPECT_EQ(costs.attention, "MLA");
  ASSERT_EQ(costs.layers.size(), by_config.layers.size());
  for (size_t i = 0; i < costs.layers.size(); ++i) {
    const LayerCosts &a = costs.layers[i], &b = by_config.layers[i];
    EXPECT_EQ(a.attention_elements, b.attention_elements);
    EXPECT_EQ(a.ffn_elements, b.ffn_elements);
    EXPECT_EQ(a.expert_elements, b.expert_elements);
    EXPECT_EQ(a.experts, b.experts);
    EXPECT_EQ(a.vector_elements, b.vector_elements);
    EXPECT_EQ(a.kv_elements, b.kv_elements);
    EXPECT_EQ(a.pair_flops, b.pair_flops);
  }
}

TEST(ModelCostsTest, ParametersAreTheElementsOfTheFile) {
  for (const char* shape : {"tiny-llama",       "tiny-qwen2",          "tiny-gemma2",
                            "tiny-phi3",        "tiny-qwen3-moe",      "tiny-gpt-oss",
                            "tiny-deepseek-v2", "tiny-glm4-moe-lite",  "tiny-lfm2",
                            "tiny-lfm2-moe",    "tiny-qwen3.5",        "tiny-qwen3.5-moe",
                            "tiny-qwen3-next",  "tiny-granite-hybrid", "tiny-granite-hybrid-dense",
                            "tiny-nemotron-h",  "tiny-nemotron-h-moe", "tiny-qwen3.5-moe-mm",
                            "tiny-gemma4",      "tiny-gemma4-mm",      "tiny-gemma4-moe"}) {
    const std::string dir = absl::StrCat(BATON_CHECKPOINT_DIR "/", shape);
    const auto config = LoadModelConfig(dir);
    const auto checkpoint = Checkpoint::Open(dir);
    ASSERT_TRUE(config.ok() && checkpoint.ok()) << config.status() << checkpoint.status();
    const TensorNames names(*config, *checkpoint);
    int64_t elements = 0;
    for (const auto& [name, stored] : checkpoint->tensors()) {
      if (absl::StartsWith(name, "mtp.")) continue;  // layers for speculation
      if (absl::StrContains(name, "visual.") || absl::StrContains(name, "vision")) continue;
      const int layer = names.LayerOf(name);
      if (layer >= static_cast<int>(config->layers.size())) continue;
      if (names.IsOfSharedKv(*config, layer, name)) continue;
      int64_t count = 1;
      for (const uint64_t extent : stored.entry->shape) count *= static_cast<int64_t>(extent);
      elements += count;
    }
    EXPECT_EQ(CostsOf(*config).parameters(), elements) << shape;
  }
}

// What a step reads of Nemotron's layers: matrices of one sublayer each, and no gate.
TEST(ModelCostsTest, LayersOfOneSublayer) {
  const auto model = WithConfig(
      R"({"architectures": ["NemotronHForCausalLM"], "hidden_size": 64, "vocab_size": 320,
          "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 32, "hybrid_override_pattern": "M-*E", "mamba_num_heads": 4,
          "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 32, "n_routed_experts": 8,
          "num_experts_per_tok": 2, "moe_intermediate_size": 24,
          "moe_shared_expert_intermediate_size": 40})",
      [](const JsonFields& fields) { return ParseConfig(fields); });
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelCosts costs = CostsOf(*model);
  ASSERT_EQ(costs.layers.size(), 4u);
  const LayerCosts &mamba = costs.layers[0], &mlp = costs.layers[1], &attention = costs.layers[2],
                   &experts = costs.layers[3];
  EXPECT_EQ(mamba.attention_elements, 64 * (2 * 64 + 2 * 2 * 32 + 4) + 64 * 64);
  EXPECT_EQ(mamba.ffn_elements + mamba.expert_elements + mamba.kv_elements, 0);
  EXPECT_EQ(mamba.state_elements, 3 * (64 + 2 * 2 * 32) + 64 * 32);
  EXPECT_EQ(mlp.ffn_elements, 2 * 64 * 96);
  EXPECT_EQ(mlp.attention_elements + mlp.kv_elements + mlp.pair_flops, 0);
  EXPECT_EQ(mlp.vector_elements, 64);
  EXPECT_EQ(attention.attention_elements, 64 * 32 * (4 + 2 + 2) + 64 * 4 * 32);
  EXPECT_EQ(attention.ffn_elements, 0);
  EXPECT_EQ(experts.expert_elements, 2 * 64 * 24);
  EXPECT_EQ(experts.ffn_elements, 2 * 64 * 40 + 8 * 64);
  EXPECT_EQ(experts.experts_per_token, 2);
  EXPECT_EQ(costs.attention, "GQA");
}

// Gemma 4 E2B: 15 of 35 layers store KV, which the others read again; each layer has an embedding.
TEST(ModelCostsTest, SharedKvByHand) {
  std::string types;
  for (int i = 0; i < 35; ++i) {
    absl::StrAppend(&types, i == 0 ? "" : ",",
                    i % 5 == 4 ? R"("full_attention")" : R"("sliding_attention")");
  }
  const auto model = WithConfig(
      absl::StrCat(
          R"({"architectures": ["Gemma4ForCausalLM"], "hidden_size": 1536,)",
          R"("intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8,)",
          R"("num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,)",
          R"("num_kv_shared_layers": 20, "use_double_wide_mlp": true,)",
          R"("hidden_size_per_layer_input": 256, "sliding_window": 512,)",
          R"("final_logit_softcapping": 30.0, "layer_types": [)", types, "]}"),
      [](const JsonFields& fields) { return ParseConfig(fields); });
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelCosts costs = CostsOf(*model);
  EXPECT_EQ(costs.attention, "MQA");
  EXPECT_EQ(costs.kv_elements(), 12 * 2 * 256 + 3 * 2 * 512);
  EXPECT_EQ(costs.layers[20].kv_elements, 2 * 256);
  EXPECT_TRUE(costs.layers[20].kv_of_another);
  EXPECT_EQ(costs.layers[34].attention_elements, 2 * 8 * 512 * 1536) << "q and o alone";
  EXPECT_EQ(costs.layers[34].ffn_elements, 3 * 12288 * 1536 + 2 * 256 * 1536);
  EXPECT_EQ(costs.input_table_elements, int64_t{262144} * 35 * 256);
  // Of which a step reads all but the table of the layers' embeddings.
  EXPECT_NEAR(static_cast<double>(costs.parameters()), 4.63e9, 0.02e9);
  const StepBytes step = DecodeStepBytes(costs, {}, DType::kBF16, 2, 1, 1000);
  EXPECT_NEAR(step.weights / 2, 2.28e9, 0.02e9);
  EXPECT_EQ(step.kv, 2.0 * (28 * 2 * 256 * 512 + 7 * 2 * 512 * 1000));
  // A prompt computes 15 layers, and the last token alone in the others.
  EXPECT_EQ(PrefillFlops(costs, 1000, 999), DecodeStepFlops(costs, 1, 1000));
  double token = 2.0 * static_cast<double>(costs.input_elements);
  for (int layer = 0; layer < 15; ++layer) {
    const LayerCosts& of = costs.layers[static_cast<size_t>(layer)];
    const double seen = layer % 5 == 4 ? 1000 : 512;
    token +=
        2.0 * static_cast<double>(of.matrix_elements()) + seen * static_cast<double>(of.pair_flops);
  }
  // What token 1,000 takes more if it is not cached.
  EXPECT_EQ(PrefillFlops(costs, 1001, 999) - PrefillFlops(costs, 1001, 1000), token);
}

// Gemma 4 26B: of 128 experts a token takes 8, and an MLP beside them.
TEST(ModelCostsTest, ExpertsBesideMlpsByHand) {
  std::string types;
  for (int i = 0; i < 30; ++i) {
    absl::StrAppend(&types, i == 0 ? "" : ",",
                    i % 6 == 5 ? R"("full_attention")" : R"("sliding_attention")");
  }
  const auto model = WithConfig(
      absl::StrCat(
          R"({"architectures": ["Gemma4ForCausalLM"], "hidden_size": 2816,)",
          R"("intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16,)",
          R"("num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256,)",
          R"("global_head_dim": 512, "attention_k_eq_v": true, "hidden_size_per_layer_input": 0,)",
          R"("enable_moe_block": true, "num_experts": 128, "top_k_experts": 8,)",
          R"("moe_intermediate_size": 704, "sliding_window": 1024, "layer_types": [)", types, "]}"),
      [](const JsonFields& fields) { return ParseConfig(fields); });
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelCosts costs = CostsOf(*model);
  const LayerCosts &sliding = costs.layers[0], &full = costs.layers[5];
  EXPECT_EQ(sliding.experts, 128);
  EXPECT_EQ(sliding.experts_per_token, 8);
  EXPECT_EQ(sliding.expert_elements, 3 * 704 * 2816);
  EXPECT_EQ(sliding.ffn_elements, (3 * 2112 + 128) * 2816);
  // Seven norms of a layer, two of heads, the router's scale, those of experts and the layer's.
  EXPECT_EQ(sliding.vector_elements, 7 * 2816 + 2 * 256 + 2816 + 128 + 1);
  EXPECT_EQ(full.attention_elements, (2 * 16 + 2) * 512 * 2816) << "keys are values";
  EXPECT_EQ(costs.kv_elements(), 25 * 2 * 8 * 256 + 5 * 2 * 2 * 512);
  EXPECT_NEAR(static_cast<double>(costs.parameters()), 25.2e9, 0.1e9);
  // Of which a token reads this much.
  const StepBytes step = DecodeStepBytes(costs, {}, DType::kBF16, 2, 1, 1000);
  EXPECT_NEAR(step.weights / 2, 3.8e9, 0.1e9);
}

TEST(ModelCostsTest, WindowsBoundWhatIsSeen) {
  ModelConfig config = Spec(2, 4, 1, 8, 32, 32, 100, true);
  config.layers[1].attention().window = 10;
  const ModelCosts costs = CostsOf(config);
  EXPECT_EQ(costs.attention, "MQA");
  EXPECT_EQ(DecodeStepBytes(costs, {}, DType::kF16, 2, 3, 100).kv, 3 * 2.0 * 16 * (100 + 10));
  // Tokens seen by a prompt of 12: 78 in full, in the window of 10 1 + … + 10 + 10 + 10.
  ModelConfig full = config;
  full.layers[1].attention().window = 0;
  EXPECT_EQ(PrefillFlops(CostsOf(full), 12) - PrefillFlops(costs, 12), (78 - 75) * 4.0 * 32);
}

TEST(ModelCostsTest, WeightFormats) {
  const auto parse = [](const std::string& quantization) {
    return WithConfig("{" + quantization + "}",
                      [](const JsonFields& fields) { return ParseWeightFormat(fields); });
  };
  EXPECT_FALSE(parse("")->quantized());
  const auto gptq = parse(R"("quantization_config": {"quant_method": "gptq", "bits": 4,
                             "group_size": 128})");
  ASSERT_TRUE(gptq.ok()) << gptq.status();
  EXPECT_EQ(gptq->bits, 4);
  EXPECT_DOUBLE_EQ(BytesPerElement(*gptq, DType::kF16), (4 + 32.0 / 128) / 8);
  EXPECT_EQ(BytesPerElement({}, DType::kBF16), 2);
  // gpt-oss names what it does not convert, and no bits.
  const auto mxfp4 = parse(R"("quantization_config": {"quant_method": "mxfp4",
                              "modules_to_not_convert": ["model.layers.*.self_attn"]})");
  ASSERT_TRUE(mxfp4.ok()) << mxfp4.status();
  EXPECT_TRUE(mxfp4->mxfp4);
  EXPECT_DOUBLE_EQ(BytesPerElement(*mxfp4, DType::kF16), 17.0 / 32);
  const auto row = parse(R"("quantization_config": {"bits": 8, "group_size": -1})");
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_EQ(MatrixBytes(48, 4096, *row, DType::kF16), 48 * (4096 + 4));
  for (const char* bad : {R"("quantization_config": {"quant_method": "fp8", "bits": 8})",
                          R"("quantization_config": {"bits": 5})",
                          R"("quantization_config": {"bits": 4, "group_size": 0})",
                          R"("quantization_config": {"quant_method": "gptq"})"}) {
    EXPECT_FALSE(parse(bad).ok()) << bad;
  }
}

TEST(ModelCostsTest, WhatAFileLacksIsNamed) {
  for (const char* field : {"hidden_size", "num_hidden_layers", "kv_lora_rank", "v_head_dim",
                            "intermediate_size", "num_experts_per_tok"}) {
    std::string text = kV2Lite;
    const std::string quoted = absl::StrCat("\"", field, "\"");
    text.replace(text.find(quoted), quoted.size(), "\"other\"");
    if (std::string(field) == "kv_lora_rank") {  // then it is not MLA: the sizes of heads count
      EXPECT_EQ(Parsed(text).attention, "MHA");
      continue;
    }
    const absl::Status status =
        WithConfig(text, [](const JsonFields& fields) { return ParseCosts(fields).status(); });
    EXPECT_NE(std::string(status.message()).find(field), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace baton::model
