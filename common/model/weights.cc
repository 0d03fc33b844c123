#include "common/model/weights.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/weight_loader.h"

namespace baton::model {
namespace {

using backend::DType;

absl::StatusOr<LayerWeights> LoadLayer(const LayerSpec& spec, int layer, int64_t d,
                                       WeightLoader& loader) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const std::string attention = absl::StrCat(prefix, "self_attn.");
  const std::string mlp = absl::StrCat(prefix, "mlp.");
  const int64_t q_rows = int64_t{spec.query_heads} * spec.head_dim;
  const int64_t kv_rows = int64_t{spec.kv_heads} * spec.head_dim;
  const auto qkv_parts = [&](const char* kind) {
    return std::vector<WeightLoader::Part>{{absl::StrCat(attention, "q_proj.", kind), q_rows},
                                           {absl::StrCat(attention, "k_proj.", kind), kv_rows},
                                           {absl::StrCat(attention, "v_proj.", kind), kv_rows}};
  };
  LayerWeights weights;
  BATON_ASSIGN_OR_RETURN(weights.attention_norm,
                         loader.Vector({{absl::StrCat(prefix, "input_layernorm.weight"), d}}));
  BATON_ASSIGN_OR_RETURN(weights.qkv, loader.Matrix(qkv_parts("weight"), d, spec.quantized.qkv));
  if (spec.qkv_bias) {
    BATON_ASSIGN_OR_RETURN(weights.qkv_bias, loader.Vector(qkv_parts("bias")));
  }
  if (spec.qk_norm) {
    BATON_ASSIGN_OR_RETURN(
        weights.q_norm, loader.Vector({{absl::StrCat(attention, "q_norm.weight"), spec.head_dim}}));
    BATON_ASSIGN_OR_RETURN(
        weights.k_norm, loader.Vector({{absl::StrCat(attention, "k_norm.weight"), spec.head_dim}}));
  }
  BATON_ASSIGN_OR_RETURN(weights.attention_output,
                         loader.Matrix({{absl::StrCat(attention, "o_proj.weight"), d}}, q_rows,
                                       spec.quantized.attention_output));
  BATON_ASSIGN_OR_RETURN(
      weights.ffn_norm,
      loader.Vector({{absl::StrCat(prefix, "post_attention_layernorm.weight"), d}}));
  BATON_ASSIGN_OR_RETURN(weights.gate_up,
                         loader.Matrix({{absl::StrCat(mlp, "gate_proj.weight"), spec.ffn_dim},
                                        {absl::StrCat(mlp, "up_proj.weight"), spec.ffn_dim}},
                                       d, spec.quantized.gate_up));
  BATON_ASSIGN_OR_RETURN(weights.down, loader.Matrix({{absl::StrCat(mlp, "down_proj.weight"), d}},
                                                     spec.ffn_dim, spec.quantized.down));
  return weights;
}

// Whether the LM head, as it is packed, serves as the embedding with the same bits.
bool SharesEmbedding(const Checkpoint& checkpoint, const ModelConfig& config,
                     const backend::Backend& backend) {
  if (!config.tied_embeddings || config.load_bits > 0) return false;
  // GPTQ and AWQ have a quantised LM head beside the embedding.
  const bool from_file =
      !config.lm_head_quantized ||
      (config.quantization && config.quantization->format == WeightQuantization::Format::kGguf);
  const std::optional<DType> dtype = EmbeddingDType(checkpoint, backend.activation_dtype());
  return from_file && dtype && backend.embeds_packed(*dtype);
}

}  // namespace

std::optional<DType> EmbeddingDType(const Checkpoint& checkpoint, DType activation) {
  const StoredTensor* embedding = checkpoint.Find(kEmbeddingName);
  if (embedding == nullptr) return std::nullopt;
  if (embedding->entry->blocks != nullptr) return activation;
  return embedding->entry->weight_dtype.value_or(DType::kF32);
}

absl::StatusOr<Weights> LoadWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                    const std::function<void(double)>& progress,
                                    backend::Backend& backend) {
  const StoredTensor* embedding = checkpoint.Find(kEmbeddingName);
  const bool shared = SharesEmbedding(checkpoint, config, backend);
  const bool twice = config.tied_embeddings && embedding != nullptr && !shared;
  WeightLoader loader(
      checkpoint, config, progress,
      checkpoint.size_bytes() + (twice ? embedding->entry->end - embedding->entry->begin : 0),
      backend);
  Weights weights;
  if (!shared) {
    BATON_RETURN_IF_ERROR(
        loader.Embedding(kEmbeddingName, config.vocab_size, config.hidden_dim, &weights));
  }
  for (size_t i = 0; i < config.layers.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(config.layers[i], static_cast<int>(i),
                                                         config.hidden_dim, loader));
    weights.layers.push_back(std::move(layer));
  }
  BATON_ASSIGN_OR_RETURN(weights.final_norm,
                         loader.Vector({{"model.norm.weight", config.hidden_dim}}));
  BATON_ASSIGN_OR_RETURN(
      weights.lm_head,
      loader.LmHead({config.tied_embeddings ? kEmbeddingName : "lm_head.weight", config.vocab_size},
                    config.hidden_dim, config.lm_head_quantized));
  BATON_RETURN_IF_ERROR(loader.CheckLeftOver(config));
  loader.LogLoss();
  if (progress) progress(1);
  return weights;
}

}  // namespace baton::model
