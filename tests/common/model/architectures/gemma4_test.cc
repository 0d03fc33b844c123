// The configuration of Gemma 4 from GGUF files, whose layers differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/json/json.h"
#include "common/model/architecture.h"
#include "common/model/gguf_config.h"
#include "common/model/json_fields.h"
#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"

namespace baton::model {
namespace {

using ::baton::testing::GgufBytes;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string FloatBytes(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), 0);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Of four layers, of which the second and the last see everything. Heads of 8 elements there, of 4
// elsewhere.
struct Gemma4Keys {
  std::vector<bool> slides = {true, false, true, false};
  std::vector<int32_t> kv_heads = {2, 1, 2, 1};
  std::vector<int32_t> ffn = {12, 12, 12, 12};
  std::vector<float> factors = {1, 1e30f, 1e30f, 1e30f};
  uint32_t sharing = 0;
  uint32_t value_length = 8, rotated = 8, key_length_swa = 4;
  std::vector<std::string> with_v = {"blk.0", "blk.2"};

  GgufBytes File() const {
    GgufBytes bytes;
    bytes.Add("general.architecture", "gemma4")
        .Add("gemma4.context_length", 64u)
        .Add("gemma4.embedding_length", 8u)
        .Add("gemma4.block_count", 4u)
        .Add("gemma4.feed_forward_length", ffn)
        .Add("gemma4.attention.head_count", 2u)
        .Add("gemma4.attention.head_count_kv", kv_heads)
        .Add("gemma4.attention.key_length", 8u)
        .Add("gemma4.attention.value_length", value_length)
        .Add("gemma4.attention.key_length_swa", key_length_swa)
        .Add("gemma4.attention.value_length_swa", 4u)
        .Add("gemma4.attention.sliding_window", 40u)
        .Add("gemma4.attention.sliding_window_pattern", slides)
        .Add("gemma4.attention.shared_kv_layers", sharing)
        .Add("gemma4.attention.layer_norm_rms_epsilon", 0.5f)
        .Add("gemma4.rope.freq_base", 1e6f)
        .Add("gemma4.rope.freq_base_swa", 500.0f)
        .Add("gemma4.rope.dimension_count", rotated)
        .Add("gemma4.rope.dimension_count_swa", 4u)
        .Add("gemma4.embedding_length_per_layer_input", 24u)
        .Add("gemma4.final_logit_softcapping", 30.0f)
        .AddTensor("token_embd.weight", {8, 1}, 0, std::string(32, 0));
    if (!factors.empty()) {
      bytes.AddTensor("rope_freqs.weight", {factors.size()}, 0, FloatBytes(factors));
    }
    for (const std::string& layer : with_v) {
      bytes.AddTensor(layer + ".attn_v.weight", {8, 1}, 0, std::string(32, 0));
    }
    return bytes;
  }
};

// The document, or the error.
std::string Gemma4Document(const GgufBytes& bytes) {
  const baton::testing::ModelDir dir;
  dir.Write("x.gguf", bytes.Bytes());
  const auto text = GgufConfigJson(**gguf::File::Open(dir.PathOf("x.gguf")));
  return text.ok() ? *text : text.status().ToString();
}

absl::StatusOr<ModelConfig> Gemma4Model(const GgufBytes& bytes) {
  const auto document = json::Parse(Gemma4Document(bytes), "config");
  if (!document.ok()) return document.status();
  const auto fields = JsonFields::Make(*document, "config");
  if (!fields.ok()) return fields.status();
  return ParseConfig(*fields);
}

TEST(GgufGemma4Test, LayersHaveTheHeadsOfTheirKind) {
  const auto model = Gemma4Model(Gemma4Keys{}.File());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->architecture, "Gemma4ForCausalLM");
  EXPECT_EQ(model->logit_cap, 30);
  EXPECT_EQ(model->inputs.width, 24);
  EXPECT_EQ(model->inputs.vocab_size, 1);
  ASSERT_EQ(model->layers.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const AttentionSpec& attention = model->layers[i].attention();
    EXPECT_EQ(attention.window, i % 2 == 0 ? 40 : 0);
    EXPECT_EQ(attention.head_dim, i % 2 == 0 ? 4 : 8);
    EXPECT_EQ(attention.kv_heads, i % 2 == 0 ? 2 : 1);
    EXPECT_EQ(attention.v_is_k, i % 2 == 1) << "there is no attn_v";
    EXPECT_TRUE(attention.owns_kv());
    EXPECT_EQ(model->layers[i].mlp().ffn_dim, 12);
  }
  // Of four pairs one turns.
  const std::vector<double>& full = model->ropes[0].inverse_frequencies;
  EXPECT_THAT(full, ::testing::ElementsAre(1, 0, 0, 0));
  EXPECT_DOUBLE_EQ(model->ropes[1].inverse_frequencies[1], std::pow(500, -0.5));
  EXPECT_TRUE(model->ropes_have_factors);
}

TEST(GgufGemma4Test, AllOfTheHeadMayTurn) {
  Gemma4Keys keys;
  keys.factors = {1, 1, 1, 1};
  const auto model = Gemma4Model(keys.File());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_DOUBLE_EQ(model->ropes[0].inverse_frequencies[3], std::pow(1e6, -6.0 / 8));
}

TEST(GgufGemma4Test, TheLastLayersMayShareKv) {
  Gemma4Keys keys;
  keys.sharing = 2;
  keys.ffn = {12, 12, 24, 24};
  keys.with_v = {"blk.0", "blk.1"};
  keys.kv_heads = {1, 1, 1, 1};
  auto model = Gemma4Model(keys.File());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->layers[2].attention().kv_from, 0);
  EXPECT_EQ(model->layers[3].attention().kv_from, 1);
  EXPECT_EQ(model->layers[3].mlp().ffn_dim, 24);
  EXPECT_FALSE(model->layers[1].attention().v_is_k);
  keys.ffn = {12, 12, 12, 12};
  model = Gemma4Model(keys.File());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->layers[3].mlp().ffn_dim, 12);
}

TEST(GgufGemma4Test, HasExpertsBesideMlps) {
  const auto model = Gemma4Model(Gemma4Keys{}
                                     .File()
                                     .Add("gemma4.expert_count", 6u)
                                     .Add("gemma4.expert_used_count", 2u)
                                     .Add("gemma4.expert_feed_forward_length", 20u));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto& experts = std::get<ExpertsSpec>(model->layers[0].sublayers[1].body);
  EXPECT_EQ(experts.count, 6);
  EXPECT_EQ(experts.routing.per_token, 2);
  EXPECT_EQ(experts.expert.ffn_dim, 20);
  EXPECT_EQ(experts.shared.ffn_dim, 12);
  EXPECT_THAT(Gemma4Document(Gemma4Keys{}.File().Add("gemma4.expert_count", 6u)),
              HasSubstr("gemma4.expert_used_count: found nothing"));
}

TEST(GgufGemma4Test, RefusesByName) {
  const auto refused = [](const std::string& message, auto change) {
    Gemma4Keys keys;
    change(keys);
    EXPECT_THAT(Gemma4Document(keys.File()),
                AllOf(Not(HasSubstr("architectures")), HasSubstr(message)));
  };
  refused("rope_freqs.weight: found nothing, expected an F32 tensor of 4 factors",
          [](Gemma4Keys& keys) { keys.factors = {}; });
  refused("rope_freqs.weight: found another, expected an F32 tensor of 4 factors",
          [](Gemma4Keys& keys) {
            keys.factors = {1, 1e30f};
          });
  refused("rope_freqs.weight: found 8 for pair 1, expected ones and behind them 1e+30",
          [](Gemma4Keys& keys) { keys.factors[1] = 8; });
  refused("rope_freqs.weight: found 1 for pair 3, expected ones and behind them 1e+30",
          [](Gemma4Keys& keys) { keys.factors[3] = 1; });
  refused("gemma4.attention.value_length: found 4, expected 8, as keys have",
          [](Gemma4Keys& keys) { keys.value_length = 4; });
  refused("gemma4.rope.dimension_count: found 2, expected 8, as keys have",
          [](Gemma4Keys& keys) { keys.rotated = 2; });
  refused("gemma4.attention.value_length_swa: found 4, expected 6",
          [](Gemma4Keys& keys) { keys.key_length_swa = 6; });
  refused("gemma4.attention.key_length_swa: found 514, expected 2 to 512",
          [](Gemma4Keys& keys) { keys.key_length_swa = 514; });
  refused("gemma4.attention.sliding_window_pattern: found 3 entries, expected 4",
          [](Gemma4Keys& keys) { keys.slides.pop_back(); });
  refused("gemma4.attention.head_count_kv: found 3 entries, expected 4",
          [](Gemma4Keys& keys) { keys.kv_heads.pop_back(); });
  refused("gemma4.attention.shared_kv_layers: found 4, expected 0 to 3",
          [](Gemma4Keys& keys) { keys.sharing = 4; });
  const char* const ffn = "gemma4.feed_forward_length: found 24 of layer 3, expected 12, or";
  refused(ffn, [](Gemma4Keys& keys) { keys.ffn = {12, 12, 12, 24}; });
  refused("gemma4.feed_forward_length: found 12 of layer 2", [](Gemma4Keys& keys) {
    keys.ffn = {12, 12, 12, 24};
    keys.sharing = 2;
  });
  EXPECT_THAT(Gemma4Document(Gemma4Keys{}.File().Add("gemma4.rope.scaling.factor", 8.0f)),
              HasSubstr("gemma4.rope.scaling.factor: found a scaling, expected none"));
  EXPECT_THAT(Gemma4Document(Gemma4Keys{}.File().Add("gemma4.attn_logit_softcapping", 8.0f)),
              HasSubstr("gemma4.attn_logit_softcapping: found one, expected none"));
  Gemma4Keys heads;
  heads.kv_heads = {2, 1, 1, 1};
  EXPECT_THAT(Gemma4Model(heads.File()).status().ToString(),
              HasSubstr("found other heads in layer 2 than in an earlier one of its kind"));
}

}  // namespace
}  // namespace baton::model
