// The description of a dense model by its sizes, without files, read as a config.json is.
#ifndef BATON_TESTS_TESTING_DENSE_CONFIG_H_
#define BATON_TESTS_TESTING_DENSE_CONFIG_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/json/json.h"
#include "common/model/architecture.h"
#include "common/model/json_fields.h"
#include "common/model/model_config.h"

namespace baton::testing {

struct DenseSizes {
  std::string architecture = "LlamaForCausalLM";
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn_dim = 0;
  int hidden_dim = 0;
  int vocab_size = 0;
  bool tied = false;
  int max_positions = 32768;
};

inline model::ModelConfig DenseConfig(const DenseSizes& sizes) {
  const std::string text = absl::StrCat(
      R"({"architectures": [")", sizes.architecture, R"("], "num_hidden_layers": )", sizes.layers,
      R"(, "num_attention_heads": )", sizes.query_heads, R"(, "num_key_value_heads": )",
      sizes.kv_heads, R"(, "head_dim": )", sizes.head_dim, R"(, "intermediate_size": )",
      sizes.ffn_dim, R"(, "hidden_size": )", sizes.hidden_dim, R"(, "vocab_size": )",
      sizes.vocab_size, R"(, "tie_word_embeddings": )", sizes.tied ? "true" : "false",
      R"(, "max_position_embeddings": )", sizes.max_positions, R"(, "rms_norm_eps": 1e-6})");
  const auto document = json::Parse(text, "sizes");
  BATON_CHECK(document.ok()) << document.status();
  const auto fields = model::JsonFields::Make(*document, "sizes");
  BATON_CHECK(fields.ok()) << fields.status();
  auto config = model::ParseConfig(*fields);
  BATON_CHECK(config.ok()) << config.status();
  config->token_count = config->vocab_size;
  return *std::move(config);
}

// Marks all products of the layers.
inline void SetQuantized(bool quantized, model::ModelConfig* config) {
  for (model::LayerSpec& layer : config->layers) {
    for (model::SublayerSpec& sublayer : layer.sublayers) {
      ForEachProduct(sublayer, [&](model::ProductSpec& product, int) { product.quantized = quantized; });
    }
  }
}

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_DENSE_CONFIG_H_
