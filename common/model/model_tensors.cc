#include "common/model/model_tensors.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace baton::model {

TensorNames::TensorNames(const ModelConfig& config, const Checkpoint& checkpoint)
    : checkpoint_(checkpoint), gguf_(checkpoint.is_gguf()), tied_(config.tied_embeddings) {
  if (gguf_) {
    layers_ = "blk.";
    embedding_ = "token_embd";
    lm_head_ = "output";
    return;
  }
  prefix_ = "model.";
  lm_head_ = "lm_head";
  if (config.nested) {
    // The published checkpoints have the first prefix; newer versions of Transformers save the
    // second.
    prefix_ = "language_model.model.";
    if (checkpoint.Find(absl::StrCat(prefix_, config.embedding_module, ".weight")) == nullptr) {
      prefix_ = "model.language_model.";
    } else {
      lm_head_ = "language_model.lm_head";
    }
  }
  if (config.other_prefix != nullptr &&
      checkpoint.Find(absl::StrCat(config.other_prefix, config.embedding_module, ".weight"))) {
    prefix_ = config.other_prefix;
  }
  // Models for embeddings are saved without the module around them, which would have the LM head.
  const std::string embedding = absl::StrCat(config.embedding_module, ".weight");
  if (!config.nested && checkpoint.Find(absl::StrCat(prefix_, embedding)) == nullptr &&
      checkpoint.Find(embedding) != nullptr) {
    prefix_.clear();
  }
  layers_ = absl::StrCat(prefix_, "layers.");
  if (config.is_mtp_head) head_layer_ = config.mtp->layer_prefix;
  embedding_ = absl::StrCat(prefix_, config.embedding_module);
}

std::string TensorNames::InLayer(int layer, TensorName name, int expert) const {
  const absl::string_view text = gguf_ ? name.gguf : name.hugging_face;
  const std::string prefix = head_layer_.empty() ? absl::StrCat(layers_, layer, ".") : head_layer_;
  const size_t star = text.find('*');
  if (star == absl::string_view::npos) return absl::StrCat(prefix, text);
  return absl::StrCat(prefix, text.substr(0, star), expert, text.substr(star + 1));
}

std::string TensorNames::Outside(TensorName name) const {
  return gguf_ ? std::string(name.gguf) : absl::StrCat(prefix_, name.hugging_face);
}

bool TensorNames::IsFused(int layer, const ProductSpec& product) const {
  if (gguf_ || !product.fused) return false;
  return !product.fused_by_rows || checkpoint_.Find(InLayer(layer, product.fused)) != nullptr;
}

bool TensorNames::IsOfSharedKv(const ModelConfig& config, int layer,
                               absl::string_view tensor) const {
  if (layer < 0 || layer >= static_cast<int>(config.layers.size())) return false;
  const AttentionSpec* attention = config.layers[static_cast<size_t>(layer)].attention_or_null();
  if (attention == nullptr || attention->owns_kv()) return false;
  const AttentionSpec& source = config.layers[static_cast<size_t>(attention->kv_from)].attention();
  const auto is = [&](TensorName name) {
    return name && absl::StartsWith(tensor, absl::StrCat(InLayer(layer, name), "."));
  };
  return is(source.k_norm.name) ||
         std::any_of(source.qkv.parts.begin() + 1, source.qkv.parts.end(),
                     [&](const MatrixSpec& part) { return is(part.name); });
}

int TensorNames::LayerOf(absl::string_view tensor) const {
  if (!head_layer_.empty()) return absl::StartsWith(tensor, head_layer_) ? 0 : -1;
  int layer = 0;
  if (!absl::ConsumePrefix(&tensor, layers_) ||
      !absl::SimpleAtoi(tensor.substr(0, tensor.find('.')), &layer) || layer < 0) {
    return -1;
  }
  return layer;
}

}  // namespace baton::model
