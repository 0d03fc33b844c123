#include "common/model/architecture.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/config_keys.h"
#include "common/model/config_limits.h"
#include "common/model/quantization.h"
#include "common/model/rope.h"

namespace baton::model {
namespace {

constexpr int kMaxHeadDim = 512;
constexpr int kMistralDefaultWindow = 4096;  // of MistralConfig, where the key is missing

// What an adapter adds to the common reading: the spec's flags, and each layer's window.
struct Adapter {
  const char* architecture;
  const char* model_type;
  absl::Status (*adapt)(const JsonFields& config, ModelConfig* model);
};

absl::Status CheckActivation(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(const auto activation, config.OptionalString("hidden_act"));
  if (!activation || *activation == "silu" || *activation == "swish") return absl::OkStatus();
  return config.Unsupported(
      "hidden_act", absl::StrCat("found ", json::Quoted(*activation), ", expected \"silu\""));
}

absl::StatusOr<LayerSpec> ParseLayer(const JsonFields& config, int hidden_dim) {
  LayerSpec layer;
  BATON_ASSIGN_OR_RETURN(layer.query_heads, config.Int("num_attention_heads", 1, kMaxHeads));
  BATON_ASSIGN_OR_RETURN(const auto kv_heads,
                         config.OptionalInt("num_key_value_heads", 1, kMaxHeads));
  layer.kv_heads = kv_heads.value_or(layer.query_heads);
  if (layer.query_heads % layer.kv_heads != 0) {
    return config.Invalid("num_key_value_heads", absl::StrCat("found ", layer.kv_heads,
                                                              ", expected a divisor of "
                                                              "num_attention_heads (",
                                                              layer.query_heads, ")"));
  }
  BATON_ASSIGN_OR_RETURN(const auto head_dim, config.OptionalInt("head_dim", 2, kMaxHeadDim));
  if (!head_dim && hidden_dim % layer.query_heads != 0) {
    return config.Invalid("hidden_size", absl::StrCat("found ", hidden_dim,
                                                      " without a head_dim, expected a "
                                                      "multiple of num_attention_heads (",
                                                      layer.query_heads, ")"));
  }
  layer.head_dim = head_dim.value_or(hidden_dim / layer.query_heads);
  if (layer.head_dim < 2 || layer.head_dim > kMaxHeadDim || layer.head_dim % 2 != 0) {
    return config.Invalid(
        "head_dim", absl::StrCat("found ", layer.head_dim, ", expected an even number in [2, ",
                                 kMaxHeadDim, "]"));
  }
  BATON_ASSIGN_OR_RETURN(layer.ffn_dim, config.Int("intermediate_size", 1, kMaxFfn));
  BATON_ASSIGN_OR_RETURN(const double eps, config.Real("rms_norm_eps", 1e-20, 1));
  layer.norm_eps = static_cast<float>(eps);
  layer.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(layer.head_dim)));
  BATON_ASSIGN_OR_RETURN(layer.qkv_bias, config.Bool("attention_bias", false));
  return layer;
}

absl::Status ParseDType(const JsonFields& config, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const auto new_name, config.OptionalString("dtype"));
  BATON_ASSIGN_OR_RETURN(const auto old_name, config.OptionalString("torch_dtype"));
  if (new_name && old_name && *new_name != *old_name) {
    return config.Invalid("dtype",
                          absl::StrCat("found ", json::Quoted(*new_name), " beside torch_dtype ",
                                       json::Quoted(*old_name), ", expected one of both"));
  }
  const char* key = new_name ? "dtype" : "torch_dtype";
  const std::optional<std::string>& name = new_name ? new_name : old_name;
  if (!name) return absl::OkStatus();
  for (backend::DType dtype : {backend::DType::kF32, backend::DType::kBF16, backend::DType::kF16}) {
    if (*name != backend::Name(dtype)) continue;
    model->weight_dtype = dtype;
    return absl::OkStatus();
  }
  return config.Unsupported(
      key, absl::StrCat("found ", json::Quoted(*name), ", expected float32, bfloat16 or float16"));
}

absl::StatusOr<ModelConfig> ParseCommon(const JsonFields& config) {
  BATON_RETURN_IF_ERROR(CheckActivation(config));
  ModelConfig model;
  BATON_ASSIGN_OR_RETURN(model.hidden_dim, config.Int("hidden_size", 1, kMaxHidden));
  BATON_ASSIGN_OR_RETURN(model.vocab_size, config.Int("vocab_size", 1, kMaxVocab));
  BATON_ASSIGN_OR_RETURN(model.max_positions,
                         config.Int("max_position_embeddings", 1, kMaxPositions));
  BATON_ASSIGN_OR_RETURN(model.tied_embeddings, config.Bool("tie_word_embeddings", false));
  BATON_ASSIGN_OR_RETURN(const int layer_count, config.Int("num_hidden_layers", 1, kMaxLayers));
  BATON_ASSIGN_OR_RETURN(const LayerSpec layer, ParseLayer(config, model.hidden_dim));
  model.layers.assign(static_cast<size_t>(layer_count), layer);
  model.final_norm_eps = layer.norm_eps;
  BATON_RETURN_IF_ERROR(ParseDType(config, &model));
  BATON_ASSIGN_OR_RETURN(model.quantization, ParseQuantization(config));
  if (model.quantization) {  // assumed of all; the checkpoint shows which are not
    for (LayerSpec& each : model.layers) each.quantized = {true, true, true, true};
  }
  BATON_ASSIGN_OR_RETURN(model.rope_inverse_frequencies,
                         RopeInverseFrequencies(config, layer.head_dim, model.max_positions));
  BATON_ASSIGN_OR_RETURN(model.eos_token_ids, config.Ints("eos_token_id", 0, model.vocab_size - 1));
  return model;
}

// layer_types, where a config has them, must say what the layers do.
absl::Status CheckLayerTypes(const JsonFields& config, const ModelConfig& model) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("layer_types"));
  if (types.empty()) return absl::OkStatus();
  if (types.size() != model.layers.size()) {
    return config.Invalid("layer_types", absl::StrCat("found ", types.size(), " entries, expected ",
                                                      model.layers.size()));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    const char* expected = model.layers[i].window > 0 ? "sliding_attention" : "full_attention";
    if (types[i] != expected) {
      return config.Unsupported(
          absl::StrCat("layer_types[", i, "]"),
          absl::StrCat("found ", json::Quoted(types[i]), ", expected ", expected));
    }
  }
  return absl::OkStatus();
}

// Llama's class in Transformers has no window. Files that were converted from Qwen have the keys of
// one, switched off.
absl::Status AdaptLlama(const JsonFields& config, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const bool slides, config.Bool("use_sliding_window", true));
  if (!slides) config.Ignore("sliding_window");
  return CheckLayerTypes(config, *model);
}

absl::Status AdaptMistral(const JsonFields& config, ModelConfig* model) {
  if (!config.Has("num_key_value_heads")) {  // its class default is 8, which no file need mean
    return config.Invalid("num_key_value_heads", "found nothing, expected an integer");
  }
  BATON_ASSIGN_OR_RETURN(const auto window, config.OptionalInt("sliding_window", 1, kMaxPositions));
  const int if_absent = config.IsNull("sliding_window") ? 0 : kMistralDefaultWindow;
  for (LayerSpec& layer : model->layers) layer.window = window.value_or(if_absent);
  return CheckLayerTypes(config, *model);
}

// use_sliding_window false overrides all else; else layer_types or max_window_layers choose the
// layers that slide.
absl::Status SetQwenWindows(const JsonFields& config, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const bool slides, config.Bool("use_sliding_window", false));
  if (!slides) {
    config.Ignore("sliding_window");
    return CheckLayerTypes(config, *model);
  }
  BATON_ASSIGN_OR_RETURN(const int window, config.Int("sliding_window", 1, kMaxPositions));
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("layer_types"));
  if (types.empty()) {
    BATON_ASSIGN_OR_RETURN(const int full_layers,
                           config.Int("max_window_layers", 0, kMaxPositions));
    for (size_t i = static_cast<size_t>(full_layers); i < model->layers.size(); ++i) {
      model->layers[i].window = window;
    }
    return absl::OkStatus();
  }
  for (size_t i = 0; i < types.size() && i < model->layers.size(); ++i) {
    if (types[i] == "sliding_attention") model->layers[i].window = window;
  }
  return CheckLayerTypes(config, *model);
}

absl::Status AdaptQwen2(const JsonFields& config, ModelConfig* model) {
  for (LayerSpec& layer : model->layers) layer.qkv_bias = true;  // whatever the config says
  return SetQwenWindows(config, model);
}

absl::Status AdaptQwen3(const JsonFields& config, ModelConfig* model) {
  if (!config.Has("head_dim")) {  // its class default is 128, whatever hidden_size is
    return config.Invalid("head_dim", "found nothing, expected an integer");
  }
  for (LayerSpec& layer : model->layers) layer.qk_norm = true;
  return SetQwenWindows(config, model);
}

constexpr Adapter kAdapters[] = {
    {"LlamaForCausalLM", "llama", AdaptLlama},
    {"Qwen2ForCausalLM", "qwen2", AdaptQwen2},
    {"Qwen3ForCausalLM", "qwen3", AdaptQwen3},
    {"MistralForCausalLM", "mistral", AdaptMistral},
};

// Transformers chooses the class by this key, not by the architecture.
absl::Status CheckModelType(const JsonFields& config, const Adapter& adapter) {
  BATON_ASSIGN_OR_RETURN(const auto type, config.OptionalString("model_type"));
  if (!type || *type == adapter.model_type) return absl::OkStatus();
  return config.Unsupported(
      "model_type", absl::StrCat("found ", json::Quoted(*type), ", expected ",
                                 json::Quoted(adapter.model_type), " with ", adapter.architecture));
}

}  // namespace

absl::StatusOr<ModelConfig> ParseConfig(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(const auto architectures, config.Strings("architectures"));
  if (architectures.size() != 1) {
    return config.Invalid("architectures",
                          absl::StrCat("found ", architectures.size(), " names, expected one"));
  }
  for (const Adapter& adapter : kAdapters) {
    if (architectures[0] != adapter.architecture) continue;
    BATON_ASSIGN_OR_RETURN(ModelConfig model, ParseCommon(config));
    model.architecture = adapter.architecture;
    BATON_RETURN_IF_ERROR(adapter.adapt(config, &model));
    BATON_RETURN_IF_ERROR(CheckModelType(config, adapter));
    BATON_RETURN_IF_ERROR(CheckConfigKeys(config));
    return model;
  }
  return config.Unsupported(
      "architectures",
      absl::StrCat("found ", json::Quoted(architectures[0]), ", expected one of ",
                   absl::StrJoin(kAdapters, ", ", [](std::string* out, const Adapter& adapter) {
                     out->append(adapter.architecture);
                   })));
}

}  // namespace baton::model
