#include "common/model/model_costs.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/backend/quantized.h"
#include "common/base/status_macros.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

using backend::DType;

constexpr int kMaxCostHeadDim = 4096;

std::string KindOf(int query_heads, int kv_heads) {
  return kv_heads == 1 ? "MQA" : kv_heads == query_heads ? "MHA" : "GQA";
}

// Operations of a query with a token that it sees, in all heads, of LatentSpec's attention.
int64_t LatentPairFlops(int heads, int64_t latent, int64_t rotated) {
  return 2 * heads * (latent + rotated + latent);
}

// Multi-head latent attention, as DeepSeek-V2 has it (arXiv 2405.04434): the cache holds one latent
// and one rotated key a token, whatever the heads.
absl::Status AddMla(const JsonFields& config, int64_t d, int heads, LayerCosts* layer) {
  BATON_ASSIGN_OR_RETURN(const int64_t latent, config.Int("kv_lora_rank", 1, kMaxHidden));
  BATON_ASSIGN_OR_RETURN(const int64_t rotated, config.Int("qk_rope_head_dim", 1, kMaxCostHeadDim));
  BATON_ASSIGN_OR_RETURN(const int64_t plain, config.Int("qk_nope_head_dim", 1, kMaxCostHeadDim));
  BATON_ASSIGN_OR_RETURN(const int64_t value, config.Int("v_head_dim", 1, kMaxCostHeadDim));
  BATON_ASSIGN_OR_RETURN(const int64_t q_latent, config.IntOr("q_lora_rank", 1, kMaxHidden, 0));
  const int64_t q_width = heads * (plain + rotated);
  layer->attention_elements = q_latent > 0 ? q_latent * (d + q_width) : d * q_width;
  layer->attention_elements +=
      d * (latent + rotated) + latent * heads * (plain + value) + heads * value * d;
  layer->vector_elements += latent + q_latent;
  layer->kv_elements = latent + rotated;
  layer->pair_flops = LatentPairFlops(heads, latent, rotated);
  return absl::OkStatus();
}

absl::StatusOr<std::string> AddAttention(const JsonFields& config, int64_t d, LayerCosts* layer) {
  BATON_ASSIGN_OR_RETURN(const int heads, config.Int("num_attention_heads", 1, kMaxHeads));
  if (config.Has("kv_lora_rank")) {
    BATON_RETURN_IF_ERROR(AddMla(config, d, heads, layer));
    return std::string("MLA");
  }
  BATON_ASSIGN_OR_RETURN(const int kv_heads,
                         config.IntOr("num_key_value_heads", 1, kMaxHeads, heads));
  BATON_ASSIGN_OR_RETURN(const int64_t head_dim,
                         config.IntOr("head_dim", 1, kMaxCostHeadDim,
                                      static_cast<int>(std::max<int64_t>(1, d / heads))));
  layer->attention_elements = (2 * int64_t{heads} + 2 * kv_heads) * head_dim * d;
  layer->kv_elements = 2 * kv_heads * head_dim;
  layer->pair_flops = 4 * heads * head_dim;
  return KindOf(heads, kv_heads);
}

// The feed-forward of each layer: dense, or experts under the names of three families.
absl::Status AddFeedForward(const JsonFields& config, int64_t d, std::vector<LayerCosts>* layers) {
  BATON_ASSIGN_OR_RETURN(const int64_t ffn, config.Int("intermediate_size", 1, kMaxFfn));
  int experts = 0;
  for (const char* key : {"n_routed_experts", "num_experts", "num_local_experts"}) {
    BATON_ASSIGN_OR_RETURN(const int found, config.IntOr(key, 1, kMaxExperts, 0));
    experts = std::max(experts, found);
  }
  for (LayerCosts& layer : *layers) layer.ffn_elements = 3 * ffn * d;
  if (experts == 0) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const int per_token, config.Int("num_experts_per_tok", 1, experts));
  BATON_ASSIGN_OR_RETURN(const int64_t expert_ffn,
                         config.IntOr("moe_intermediate_size", 1, kMaxFfn, static_cast<int>(ffn)));
  BATON_ASSIGN_OR_RETURN(const int64_t shared, config.IntOr("n_shared_experts", 0, kMaxExperts, 0));
  BATON_ASSIGN_OR_RETURN(const int dense_layers,
                         config.IntOr("first_k_dense_replace", 0, kMaxLayers, 0));
  for (size_t i = static_cast<size_t>(dense_layers); i < layers->size(); ++i) {
    LayerCosts& layer = (*layers)[i];
    layer.experts = experts;
    layer.experts_per_token = per_token;
    layer.expert_elements = 3 * expert_ffn * d;
    layer.ffn_elements = shared * layer.expert_elements + experts * d;  // and the router
  }
  return absl::OkStatus();
}

DType StoredType(const JsonFields& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto name = config.OptionalString(key);
    if (!name.ok() || !*name) continue;
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      if (**name == backend::Name(dtype)) return dtype;
    }
  }
  return DType::kF32;
}

constexpr WeightFormat kMxfp4Format = {.bits = 4, .group_size = backend::kFp4Group, .mxfp4 = true};

// Operations for one token, without attention.
double TokenFlops(const LayerCosts& layer) {
  return static_cast<double>(layer.state_flops) +
         2.0 * static_cast<double>(layer.attention_elements + layer.ffn_elements +
                                   layer.experts_per_token * layer.expert_elements);
}

void AddRecurrence(const RecurrentSpec& spec, LayerCosts* layer) {
  layer->vector_elements += (spec.taps + (spec.conv_bias ? 1 : 0)) * spec.conv_width();
  for (const TensorName& name : {spec.decay, spec.step_bias, spec.skip}) {
    if (name) layer->vector_elements += spec.heads;
  }
  layer->state_elements = (spec.taps - 1) * spec.conv_width();
  layer->state_flops = 2 * spec.taps * spec.conv_width();
  if (spec.kind == RecurrentSpec::Kind::kShortConv) return;
  const int64_t elements = spec.width() * spec.key_dim;
  layer->state_elements += elements;
  // Of each element: the decay, what is added, and its part in the result; the delta rule also
  // multiplies by the key first.
  layer->state_flops += (spec.kind == RecurrentSpec::Kind::kGatedDelta ? 7 : 5) * elements;
}

// Tokens that queries at positions [0, positions) see, all added up.
double VisiblePairs(double positions, double window) {
  if (window == 0 || positions <= window) return positions * (positions + 1) / 2;
  return window * (window + 1) / 2 + (positions - window) * window;
}

}  // namespace

int64_t ModelCosts::parameters() const {
  int64_t sum = hidden_dim * vocab_size * (tied_embeddings ? 1 : 2) + hidden_dim +
                input_table_elements + input_elements + input_norm_elements;
  for (const LayerCosts& layer : layers) sum += layer.matrix_elements() + layer.vector_elements;
  return sum;
}

int64_t ModelCosts::kv_elements() const {
  int64_t sum = 0;
  for (const LayerCosts& layer : layers) sum += layer.kv_of_another ? 0 : layer.kv_elements;
  return sum;
}

ModelCosts CostsOf(const ModelConfig& config, int experts_on_host) {
  ModelCosts costs;
  costs.architecture = config.architecture;
  costs.hidden_dim = config.hidden_dim;
  costs.vocab_size = config.vocab_size;
  costs.max_positions = config.max_positions;
  costs.tied_embeddings = config.tied_embeddings;
  costs.weight_dtype = config.weight_dtype;
  costs.input_table_elements = config.inputs.vocab_size * config.inputs.columns();
  costs.input_elements = config.inputs.columns() * config.hidden_dim;
  costs.input_norm_elements = config.inputs.width;
  const size_t last_writing = LastWritingLayer(config.layers);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerCosts layer;
    layer.last_token_only = i > last_writing;
    layer.experts_on_host = HasExpertsOnHost(config, i, experts_on_host);
    if (config.layers[i].scale) ++layer.vector_elements;
    for (const SublayerSpec& sublayer : config.layers[i].sublayers) {
      const auto* attention = std::get_if<AttentionSpec>(&sublayer.body);
      const auto* experts = std::get_if<ExpertsSpec>(&sublayer.body);
      const auto* recurrent = std::get_if<RecurrentSpec>(&sublayer.body);
      if (recurrent != nullptr) AddRecurrence(*recurrent, &layer);
      if (experts != nullptr) {
        layer.experts = experts->count;
        layer.experts_per_token = experts->routing.per_token;
        layer.ffn_elements += experts->router.rows() * experts->router.cols;
        if (experts->router.bias) layer.vector_elements += experts->count;
        if (experts->choice_bias) layer.vector_elements += experts->count;
        if (experts->beside) layer.vector_elements += config.hidden_dim + experts->count;
      }
      ForEachNorm(sublayer, [&](const NormSpec& norm) { layer.vector_elements += norm.size; });
      ForEachProduct(sublayer, [&](const ProductSpec& product, int count) {
        int64_t& elements = attention != nullptr || recurrent != nullptr ? layer.attention_elements
                            : IsOfExperts(sublayer, product)             ? layer.expert_elements
                                                                         : layer.ffn_elements;
        elements += product.rows() * product.cols;
        if (product.bias) layer.vector_elements += product.rows() * count;
      });
      if (attention == nullptr) continue;
      if (attention->sinks) layer.vector_elements += attention->query_heads;
      layer.kv_elements = 2 * attention->kv_width();
      layer.kv_of_another = !attention->owns_kv();
      layer.pair_flops = 4 * attention->q_width();
      layer.window = attention->window;
      if (const LatentSpec& latent = attention->latent) {
        layer.attention_elements +=
            int64_t{attention->query_heads} * (latent.plain + latent.value_dim) * latent.rank;
        layer.kv_elements = attention->head_dim;
        layer.pair_flops = LatentPairFlops(attention->query_heads, latent.rank, latent.rotated);
        costs.attention = "MLA";
      }
      if (costs.attention.empty()) {
        costs.attention = KindOf(attention->query_heads, attention->kv_heads);
      }
    }
    costs.layers.push_back(layer);
  }
  return costs;
}

absl::StatusOr<ModelCosts> ParseCosts(const JsonFields& config) {
  ModelCosts costs;
  BATON_ASSIGN_OR_RETURN(const auto architectures, config.Strings("architectures"));
  costs.architecture = architectures.empty() ? "unknown" : architectures.front();
  BATON_ASSIGN_OR_RETURN(costs.hidden_dim, config.Int("hidden_size", 1, kMaxHidden));
  BATON_ASSIGN_OR_RETURN(costs.vocab_size, config.Int("vocab_size", 1, kMaxVocab));
  BATON_ASSIGN_OR_RETURN(costs.max_positions,
                         config.Int("max_position_embeddings", 1, kMaxPositions));
  BATON_ASSIGN_OR_RETURN(costs.tied_embeddings, config.Bool("tie_word_embeddings", false));
  BATON_ASSIGN_OR_RETURN(const int layers, config.Int("num_hidden_layers", 1, kMaxLayers));
  costs.weight_dtype = StoredType(config);
  LayerCosts layer;
  layer.vector_elements = 2 * costs.hidden_dim;
  BATON_ASSIGN_OR_RETURN(costs.attention, AddAttention(config, costs.hidden_dim, &layer));
  costs.layers.assign(static_cast<size_t>(layers), layer);
  BATON_RETURN_IF_ERROR(AddFeedForward(config, costs.hidden_dim, &costs.layers));
  return costs;
}

absl::StatusOr<WeightFormat> ParseWeightFormat(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(const auto quantization, config.OptionalObject("quantization_config"));
  WeightFormat format;
  if (!quantization) return format;
  BATON_ASSIGN_OR_RETURN(const auto method, quantization->OptionalString("quant_method"));
  if (method == "mxfp4") return kMxfp4Format;
  if (method == "gguf") {
    BATON_ASSIGN_OR_RETURN(const bool fp4, quantization->Bool("fp4", false));
    if (fp4) return kMxfp4Format;
  }
  if (method && *method != "gptq" && *method != "awq" && *method != "gguf") {
    return quantization->Unsupported(
        "quant_method",
        absl::StrCat("found ", json::Quoted(*method), ", expected \"gptq\", \"awq\" or \"mxfp4\""));
  }
  format.symmetric = method == "gguf";
  BATON_ASSIGN_OR_RETURN(format.bits, quantization->Int("bits", 4, 8));
  if (format.bits != 4 && format.bits != 8) {
    return quantization->Unsupported("bits",
                                     absl::StrCat("found ", format.bits, ", expected 4 or 8"));
  }
  BATON_ASSIGN_OR_RETURN(const int group, quantization->IntOr("group_size", -1, kMaxHidden, 128));
  if (group == 0) return quantization->Invalid("group_size", "found 0, expected -1 or more than 0");
  format.group_size = group < 0 ? kMaxFfn : group;  // -1: the whole row
  return format;
}

double BytesPerElement(const WeightFormat& format, DType activation) {
  if (!format.quantized()) return static_cast<double>(SizeOf(activation));
  if (format.mxfp4) return (4 + 8.0 / format.group_size) / 8;
  const bool paired = format.symmetric && format.group_size == 32;
  return (format.bits + (paired ? 16.0 : 32.0) / format.group_size) / 8;
}

StepBytes DecodeStepBytes(const ModelCosts& costs, const WeightFormat& format, DType activation,
                          double kv_element_bytes, int batch, int64_t context) {
  const double element = BytesPerElement(format, activation);
  const auto plain = static_cast<double>(SizeOf(activation));
  StepBytes bytes;
  bytes.weights =
      static_cast<double>(costs.vocab_size * costs.hidden_dim + costs.input_elements) * plain;
  for (const LayerCosts& layer : costs.layers) {
    const auto always = static_cast<double>(layer.attention_elements + layer.ffn_elements);
    const double picked =
        layer.choice().Distinct(batch) * static_cast<double>(layer.expert_elements);
    bytes.weights += always * (format.mxfp4 ? plain : element) + picked * element +
                     4.0 * static_cast<double>(layer.vector_elements);
    if (layer.experts_on_host) bytes.host += picked * element;
    const int64_t seen = layer.window > 0 ? std::min<int64_t>(context, layer.window) : context;
    bytes.kv += kv_element_bytes * batch * static_cast<double>(seen * layer.kv_elements) +
                2.0 * sizeof(float) * batch * static_cast<double>(layer.state_elements);
  }
  return bytes;
}

double DecodeStepFlops(const ModelCosts& costs, int batch, int64_t context) {
  double token =
      2.0 * static_cast<double>(costs.vocab_size * costs.hidden_dim + costs.input_elements);
  for (const LayerCosts& layer : costs.layers) {
    const int64_t seen = layer.window > 0 ? std::min<int64_t>(context, layer.window) : context;
    token += TokenFlops(layer) + static_cast<double>(layer.pair_flops * seen);
  }
  return token * batch;
}

double PrefillFlops(const ModelCosts& costs, int64_t tokens, int64_t cached) {
  const auto all = static_cast<double>(tokens), computed = static_cast<double>(tokens - cached);
  double flops = 2.0 * static_cast<double>(costs.vocab_size * costs.hidden_dim) +
                 2.0 * static_cast<double>(costs.input_elements) * computed;
  for (const LayerCosts& layer : costs.layers) {
    const double rows = layer.last_token_only ? 1 : computed;
    const double pairs = VisiblePairs(all, layer.window) - VisiblePairs(all - rows, layer.window);
    flops += TokenFlops(layer) * rows + static_cast<double>(layer.pair_flops) * pairs;
  }
  return flops;
}

}  // namespace baton::model
