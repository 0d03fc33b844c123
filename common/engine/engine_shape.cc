#include "common/engine/engine_shape.h"

#include <algorithm>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/model/device_memory.h"

namespace baton::engine {
namespace {

kv::KvDtype ToKvDtype(backend::DType dtype) {
  switch (dtype) {
    case backend::DType::kF32:
      return kv::KvDtype::kF32;
    case backend::DType::kBF16:
      return kv::KvDtype::kBF16;
    case backend::DType::kF16:
      return kv::KvDtype::kF16;
  }
  BATON_CHECK(false) << "unknown dtype";
  return kv::KvDtype::kF32;
}

// INVALID_ARGUMENT for an unquantised type that is neither the activations' nor bfloat16 of
// float32.
absl::StatusOr<backend::KvFormat> FormatOf(kv::KvDtype dtype, backend::DType activation) {
  switch (dtype) {
    case kv::KvDtype::kInt8:
      return backend::KvFormat::kInt8;
    case kv::KvDtype::kInt4:
      return backend::KvFormat::kInt4;
    case kv::KvDtype::kFp8:
      return backend::KvFormat::kFp8;
    default:
      break;
  }
  // Every backend that computes in float32 reads both.
  const bool rounded = dtype == kv::KvDtype::kBF16 && activation == backend::DType::kF32;
  if (rounded || dtype == ToKvDtype(activation)) return backend::KvFormat::kPlain;
  return InvalidField(
      "BAD_OPTION", "--kv-cache-dtype",
      absl::StrCat(kv::KvDtypeName(dtype), " given, expected auto, ",
                   activation == backend::DType::kF16 ? "" : "bfloat16, ",
                   "int8, fp8 or int4 with activations of ", backend::Name(activation)));
}

// The KV heads of each layer with KV; empty where all are alike.
std::vector<kv::KvHeads> HeadsOf(const model::ModelConfig& config) {
  std::vector<kv::KvHeads> heads;
  for (const model::AttentionSpec* layer : model::KvLayers(config.layers)) {
    heads.push_back({layer->kv_heads, layer->head_dim});
  }
  const auto differs = [&](const kv::KvHeads& other) { return other != heads.front(); };
  if (std::none_of(heads.begin(), heads.end(), differs)) heads.clear();
  return heads;
}

absl::Status CheckLayers(const model::ModelConfig& config) {
  const std::vector<const model::AttentionSpec*> layers = model::KvLayers(config.layers);
  if (layers.empty()) {
    return MakeError(absl::StatusCode::kUnimplemented, "UNSUPPORTED_MODEL",
                     "no layer has attention: expected one, whose KV fills the pool's pages");
  }
  const bool differ = !HeadsOf(config).empty();
  for (const model::AttentionSpec* layer : layers) {
    BATON_CHECK_EQ(layer->latent.rank, layers.front()->latent.rank);
    BATON_CHECK(!differ || !layer->latent) << "latents beside other KV";
  }
  return absl::OkStatus();
}

// Empty without recurrent layers.
std::vector<std::vector<kv::StateShape>> StatesOf(const model::ModelConfig& config) {
  std::vector<std::vector<kv::StateShape>> states;
  for (const model::LayerSpec& layer : config.layers) {
    if (const model::RecurrentSpec* recurrent = layer.recurrence()) {
      states.push_back(recurrent->StateShapes<kv::StateShape>());
    }
  }
  return states;
}

// Empty unless some layers have windows, narrower than the model's context, and others see all. A
// model whose layers all have windows keeps the KV of all tokens.
std::vector<int> WindowsOf(const model::ModelConfig& config) {
  std::vector<int> windows;
  for (const model::AttentionSpec* layer : model::KvLayers(config.layers)) {
    const int window = layer->window;
    windows.push_back(window < config.max_positions ? window : 0);
  }
  const auto full = static_cast<size_t>(std::count(windows.begin(), windows.end(), 0));
  if (full == 0 || full == windows.size()) windows.clear();
  return windows;
}

void SetHeadLimits(const model::ModelConfig& config, backend::StepLimits* limits) {
  std::vector<backend::AttentionHeads> kinds;
  for (const model::LayerSpec& layer : config.layers) {
    const model::AttentionSpec* of = layer.attention_or_null();
    if (of == nullptr) continue;
    const backend::AttentionHeads heads = {of->query_heads, of->kv_heads, of->head_dim};
    if (!absl::c_linear_search(kinds, heads)) kinds.push_back(heads);
  }
  limits->query_heads = kinds.front().query_heads;
  limits->kv_heads = kinds.front().kv_heads;
  limits->head_dim = kinds.front().head_dim;
  limits->other_heads.assign(kinds.begin() + 1, kinds.end());
}

}  // namespace

absl::Status CheckModel(const model::ModelConfig& config, const EngineOptions& options) {
  BATON_RETURN_IF_ERROR(CheckLayers(config));
  if (!StatesOf(config).empty() && !(WindowsOf(config).empty() && HeadsOf(config).empty())) {
    return MakeError(absl::StatusCode::kUnimplemented, "UNSUPPORTED_MODEL",
                     "found recurrent layers beside layers with a window or with other heads than "
                     "the first one, expected one of them");
  }
  if (options.max_model_len > config.max_positions) {
    return InvalidField("MAX_MODEL_LEN_TOO_LONG", "--max-model-len",
                        absl::StrCat(options.max_model_len, " given, but ", options.model_dir,
                                     " was made for at most ", config.max_positions, " tokens"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int>> ParseExpertsOnHost(absl::string_view text) {
  if (text == "auto") return std::optional<int>();
  if (text == "all") return std::optional<int>(std::numeric_limits<int>::max());
  int layers = 0;
  if (!absl::SimpleAtoi(text, &layers) || layers < 0) {
    return InvalidField(
        "BAD_OPTION", "--experts-on-host",
        absl::StrCat("\"", text, "\" given, expected a number of layers, auto or all"));
  }
  return std::optional<int>(layers);
}

absl::StatusOr<EngineShape> ShapeOf(const model::ModelConfig& config, const EngineOptions& options,
                                    backend::DType activation) {
  const std::vector<const model::AttentionSpec*> attention = model::KvLayers(config.layers);
  const model::AttentionSpec& layer = *attention.front();
  EngineShape shape;
  kv::KvLayout& layout = shape.layout;
  layout.layers = static_cast<int>(attention.size());
  layout.kv_heads = layer.kv_heads;
  layout.head_dim = layer.head_dim;
  layout.latent_dim = layer.latent.rank;
  layout.block_tokens = options.block_tokens;
  layout.dtype = options.kv_dtype.value_or(ToKvDtype(activation));
  layout.computed = ToKvDtype(activation);
  layout.weight_bits = config.load_bits;
  layout.dequantized = options.backend.dequantize_weights &&
                       (config.quantization || config.has_blocks || config.load_bits > 0);
  layout.format_version = 1;
  layout.windows = WindowsOf(config);
  BATON_RETURN_IF_ERROR(layout.Validate());
  if (auto heads = HeadsOf(config); !heads.empty()) {
    layout.SetHeads(std::move(heads));
    BATON_RETURN_IF_ERROR(layout.Validate());
  }
  if (auto states = StatesOf(config); !states.empty()) {
    layout.AddStates(std::move(states));
    BATON_RETURN_IF_ERROR(layout.Validate());
  }
  backend::StepLimits& limits = shape.limits;
  limits.max_rows = std::max(options.max_num_batched_tokens, options.max_num_seqs);
  limits.max_sequences = options.max_num_seqs;
  limits.max_logit_rows = options.max_num_seqs;
  limits.max_positions = options.max_model_len > 0 ? options.max_model_len : config.max_positions;
  SetHeadLimits(config, &limits);
  if (!layout.layer_heads.empty()) limits.chunk_bytes = layout.ChunkBytes();
  limits.latent_dim = layer.latent.rank;
  limits.block_tokens = layout.block_tokens;
  BATON_ASSIGN_OR_RETURN(limits.kv_format, FormatOf(layout.dtype, activation));
  limits.layers = layout.layers;
  const kv::KvPages pages = layout.Pages();
  limits.kv_tables = pages.tables();
  limits.state_tables = layout.recurrent() ? pages.window_tables : 0;
  for (const std::vector<kv::KvPages::Plane>& layer_planes : pages.states) {
    for (const kv::KvPages::Plane& plane : layer_planes) {
      limits.state_spots += static_cast<int64_t>(plane.spots.size());
    }
  }
  limits.hidden_dim = config.hidden_dim;
  limits.vocab_size = config.vocab_size;
  model::SetMatrixLimits(config, &limits);
  return shape;
}

void SetHeads(const kv::KvLayout& layout, backend::KvPool* pool) {
  if (layout.layer_heads.empty()) return;
  pool->heads.assign(static_cast<size_t>(layout.layers), {});
  for (size_t i = 0; i < layout.layer_heads.size(); ++i) {
    const auto& [kv_heads, head_dim] = layout.layer_heads[i];
    pool->heads[static_cast<size_t>(layout.ChunksOf(static_cast<int>(i)).first)] = {kv_heads,
                                                                                    head_dim};
  }
}

void SetPlaces(const kv::KvLayout& layout, backend::KvPool* pool) {
  const kv::KvPages pages = layout.Pages();
  pool->tables = pages.tables();
  for (const auto [table, slot] : pages.places) pool->places.push_back({table, slot});
  if (!layout.recurrent()) return;
  pool->state_tables = pages.window_tables;
  for (size_t layer = 0; layer < pages.states.size(); ++layer) {
    backend::LayerState& state = pool->states.emplace_back();
    for (size_t plane = 0; plane < pages.states[layer].size(); ++plane) {
      const auto& [spot_units, spots] = pages.states[layer][plane];
      backend::StatePlane& to = state.emplace_back();
      to.lanes = layout.states[layer][plane].lanes;
      to.depth = layout.states[layer][plane].depth;
      to.spot_units = spot_units;
      for (const auto& [table, offset] : spots) to.spots.push_back({table, offset});
    }
  }
}

MemoryDemand DemandOf(const model::ModelConfig& config, const EngineShape& shape,
                      const EngineOptions& options, backend::DType activation) {
  MemoryDemand demand;
  demand.config = &config;
  demand.activation = activation;
  demand.limits = shape.limits;
  demand.layout = shape.layout;
  demand.experts_on_host = options.experts_on_host;
  demand.num_blocks = options.num_blocks;
  demand.kv_cache_bytes = options.kv_cache_bytes;
  demand.default_kv_bytes = options.cpu_kv_cache_bytes;
  return demand;
}

}  // namespace baton::engine
