// Gemma 4's text models: norms before and after each sublayer, as they are multiplied with; layers
// that see everything with larger heads than those with a window, values that are the keys'
// product, and a rotation of some pairs; layers at the end that attend to the KV of earlier ones;
// embeddings of single layers; experts beside the MLPs.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

constexpr ClassDefaults kDefaults = {
    .tied_embeddings = true,
    .head_dim = 256,
    .kv_heads = 4,
    .max_positions = 131072,
    .vocab_size = 262144,
    .query_heads = 8,
    .norm_eps = 1e-6,
    .activation_key = "hidden_activation",
    .activation = "gelu_pytorch_tanh",
};
constexpr int kDefaultWindow = 512;
constexpr int kDefaultPattern = 6;
constexpr int kDefaultGlobalHeadDim = 512;
constexpr int kDefaultInputWidth = 256;

using backend::KvHeads;

// A layer without a window. Layers are of two kinds: these, and those with one.
bool SeesAll(const LayerSpec& layer) { return layer.attention().window == 0; }

absl::Status RefuseOthers(const JsonFields& fields, absl::string_view expected) {
  const std::vector<std::string> unread = fields.Unread();
  if (unread.empty()) return absl::OkStatus();
  return fields.Unsupported(
      json::Printable(unread[0]),
      absl::StrCat("found ", fields.Found(unread[0]), ", expected ", expected));
}

// Newer versions of Transformers save an object for each layer that differs.
absl::Status ReadSavedHeads(const JsonFields& by_layer, std::vector<KvHeads>* heads) {
  for (size_t i = 0; i < heads->size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const auto layer, by_layer.OptionalObject(absl::StrCat(i)));
    if (!layer) continue;
    KvHeads& of = (*heads)[i];
    BATON_ASSIGN_OR_RETURN(of.head_dim, layer->IntOr("head_dim", 2, kLargestHeadDim, of.head_dim));
    BATON_ASSIGN_OR_RETURN(of.kv_heads,
                           layer->IntOr("num_key_value_heads", 1, kMaxHeads, of.kv_heads));
    BATON_RETURN_IF_ERROR(RefuseOthers(*layer, "head_dim and num_key_value_heads"));
  }
  return RefuseOthers(by_layer, "the indices of layers");
}

absl::StatusOr<std::vector<KvHeads>> ReadHeads(const JsonFields& config, bool v_is_k,
                                               const ModelConfig& model) {
  const AttentionSpec& first = model.layers[0].attention();
  std::vector<KvHeads> heads(model.layers.size(), {first.kv_heads, first.head_dim});
  BATON_ASSIGN_OR_RETURN(const auto saved, config.OptionalObject("per_layer_config"));
  // Neither of these has an effect beside per_layer_config.
  BATON_ASSIGN_OR_RETURN(const int head_dim, config.IntOr("global_head_dim", 2, kLargestHeadDim,
                                                          kDefaultGlobalHeadDim));
  BATON_ASSIGN_OR_RETURN(const auto kv_heads,
                         config.OptionalInt("num_global_key_value_heads", 1, kMaxHeads));
  if (saved) {
    BATON_RETURN_IF_ERROR(ReadSavedHeads(*saved, &heads));
    return heads;
  }
  for (size_t i = 0; i < heads.size(); ++i) {
    if (!SeesAll(model.layers[i])) continue;
    heads[i].head_dim = head_dim;
    if (v_is_k && kv_heads) heads[i].kv_heads = *kv_heads;
  }
  return heads;
}

// Sets the heads of all layers, and what follows from them.
absl::Status SetHeads(const JsonFields& config, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const bool v_is_k, config.Bool("attention_k_eq_v", false));
  BATON_ASSIGN_OR_RETURN(const std::vector<KvHeads> heads, ReadHeads(config, v_is_k, *model));
  std::optional<KvHeads> of_kind[2];
  for (size_t i = 0; i < heads.size(); ++i) {
    AttentionSpec& attention = model->layers[i].attention();
    std::optional<KvHeads>& same = of_kind[SeesAll(model->layers[i]) ? 1 : 0];
    if (same.value_or(heads[i]) != heads[i]) {
      return config.Unsupported(
          "per_layer_config",
          absl::StrCat("found other heads in layer ", i,
                       " than in an earlier one of its kind, expected the same"));
    }
    same = heads[i];
    if (heads[i].head_dim % 2 != 0) {
      return config.Invalid("global_head_dim",
                            absl::StrCat("found ", heads[i].head_dim, ", expected an even number"));
    }
    if (attention.query_heads % heads[i].kv_heads != 0) {
      return config.Invalid(
          "num_global_key_value_heads",
          absl::StrCat("found ", heads[i].kv_heads, ", expected a divisor of num_attention_heads (",
                       attention.query_heads, ")"));
    }
    attention.head_dim = heads[i].head_dim;
    attention.kv_heads = heads[i].kv_heads;
    attention.scale = 1;
    attention.norm_v = true;
    attention.qkv.parts[0].rows = attention.q_width();
    attention.qkv.parts[1].rows = attention.qkv.parts[2].rows = attention.kv_width();
    attention.output.cols = attention.q_width();
    if (!v_is_k || !SeesAll(model->layers[i])) continue;
    attention.v_is_k = true;
    attention.qkv.parts.pop_back();
  }
  AddQkNorms(/*all_heads=*/false, model);
  return absl::OkStatus();
}

// The last layers attend to the KV of the last one before them of their kind.
absl::Status ShareKv(const JsonFields& config, ModelConfig* model) {
  const int layers = static_cast<int>(model->layers.size());
  BATON_ASSIGN_OR_RETURN(const int sharing, config.IntOr("num_kv_shared_layers", 0, layers - 1, 0));
  BATON_ASSIGN_OR_RETURN(const bool wide, config.Bool("use_double_wide_mlp", false));
  const int first = layers - sharing;
  for (int i = first; i < layers; ++i) {
    LayerSpec& layer = model->layers[static_cast<size_t>(i)];
    int source = first - 1;
    while (source >= 0 && SeesAll(model->layers[static_cast<size_t>(source)]) != SeesAll(layer)) {
      --source;
    }
    if (source < 0) {
      return config.Invalid("num_kv_shared_layers",
                            absl::StrCat("found ", sharing, ", expected a layer before them with ",
                                         SeesAll(layer) ? "full" : "sliding",
                                         " attention, whose KV layer ", i, " shares"));
    }
    AttentionSpec& attention = layer.attention();
    attention.kv_from = source;
    attention.v_is_k = attention.norm_v = false;
    attention.qkv.parts.resize(1);
    attention.k_norm = {};
    if (!wide) continue;
    MlpSpec& mlp = layer.mlp();
    if (mlp.ffn_dim > kMaxFfn / 2) {
      return config.Invalid("intermediate_size",
                            absl::StrCat("found ", mlp.ffn_dim, ", expected at most ", kMaxFfn / 2,
                                         " with use_double_wide_mlp"));
    }
    SetMlp(2 * mlp.ffn_dim,
           {mlp.gate_up.parts[0].name, mlp.gate_up.parts[1].name, mlp.down.parts[0].name}, &mlp);
  }
  return absl::OkStatus();
}

// Embeddings of single layers, and the sublayers that use them.
absl::Status AddInputs(const JsonFields& config, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const int width, config.IntOr("hidden_size_per_layer_input", 0, kMaxHidden,
                                                       kDefaultInputWidth));
  BATON_ASSIGN_OR_RETURN(const int vocab, config.IntOr("vocab_size_per_layer_input", 1, kMaxVocab,
                                                       *kDefaults.vocab_size));
  if (width == 0) return absl::OkStatus();
  if (vocab < model->vocab_size) {
    return config.Unsupported(
        "vocab_size_per_layer_input",
        absl::StrCat("found ", vocab, ", expected at least vocab_size (", model->vocab_size, ")"));
  }
  const int d = model->hidden_dim;
  LayerInputsSpec& inputs = model->inputs;
  inputs.width = width;
  inputs.layers = static_cast<int>(model->layers.size());
  inputs.vocab_size = vocab;
  inputs.embedding = {"embed_tokens_per_layer", "per_layer_token_embd"};
  inputs.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(width)));
  inputs.projection.parts = {
      {{"per_layer_model_projection", "per_layer_model_proj"}, inputs.columns()}};
  inputs.projection.cols = d;
  inputs.projection_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d)));
  inputs.norm = {{"per_layer_projection_norm", "per_layer_proj_norm"}, width};
  inputs.scale = static_cast<float>(std::sqrt(0.5));
  for (size_t i = 0; i < model->layers.size(); ++i) {
    LayerInputSpec input;
    input.width = width;
    input.first_column = static_cast<int64_t>(i) * width;
    input.activation = model->layers[i].mlp().activation;
    input.gate.parts = {{{"per_layer_input_gate", "inp_gate"}, width}};
    input.gate.cols = d;
    input.projection.parts = {{{"per_layer_projection", "proj"}, d}};
    input.projection.cols = width;
    model->layers[i].sublayers.push_back(
        {.norm_after = {{"post_per_layer_input_norm", "post_norm"}, d}, .body = input});
  }
  return absl::OkStatus();
}

absl::Status SetRopes(const JsonFields& config, ModelConfig* model) {
  for (const char* key : {"rope_scaling", "rope_theta", "partial_rotary_factor"}) {
    if (config.Has(key)) {
      return config.Unsupported(
          key, absl::StrCat("found ", config.Found(key), ", expected rope_parameters"));
    }
  }
  RopeRequest full = RopeRequestOf(*model), sliding = full;
  for (const LayerSpec& layer : model->layers) {
    (SeesAll(layer) ? full : sliding).head_dim = layer.attention().head_dim;
  }
  full.default_theta = 1e6;
  full.default_share = 0.25;
  full.partial = full.proportional = true;
  sliding.default_theta = 1e4;
  return SetRopesByWindow(config, full, sliding, model);
}

// Experts beside the MLP of every layer.
absl::Status AddExpertsBeside(const JsonFields& config, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const bool has_experts, config.Bool("enable_moe_block", false));
  if (!has_experts) {
    for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) {
      config.Ignore(key);
    }
    return absl::OkStatus();
  }
  const int d = model->hidden_dim;
  ExpertsSpec experts;
  BATON_ASSIGN_OR_RETURN(experts.count, config.Int("num_experts", 1, kMaxExperts));
  BATON_ASSIGN_OR_RETURN(experts.routing.per_token, config.Int("top_k_experts", 1, experts.count));
  BATON_ASSIGN_OR_RETURN(const int ffn, config.Int("moe_intermediate_size", 1, kMaxFfn));
  experts.routing.normalized = true;
  experts.router.parts = {{{"router.proj", "ffn_gate_inp"}, experts.count}};
  experts.router.cols = d;
  ExpertsBesideSpec& beside = experts.beside;
  beside.mlp_after = {{"post_feedforward_layernorm_1", "post_ffw_norm_1"}, d};
  beside.before = {{"pre_feedforward_layernorm_2", "pre_ffw_norm_2"}, d};
  beside.after = {{"post_feedforward_layernorm_2", "post_ffw_norm_2"}, d};
  beside.router_scale = {"router.scale", "ffn_gate_inp.scale"};
  beside.router_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(d)));
  beside.expert_scales = {"router.per_expert_scale", "ffn_down_exps.scale"};
  for (LayerSpec& layer : model->layers) {
    SublayerSpec& sublayer = layer.mlp_sublayer();
    experts.shared = experts.expert = std::get<MlpSpec>(sublayer.body);
    MlpSpec& expert = experts.expert;
    SetMlp(ffn,
           {{"experts.*.gate_proj", "ffn_gate_exps.*"},
            {"experts.*.up_proj", "ffn_up_exps.*"},
            {"experts.*.down_proj", "ffn_down_exps.*"}},
           &expert);
    expert.gate_up.fused = {"experts.gate_up_proj", nullptr};
    expert.down.fused = {"experts.down_proj", nullptr};
    expert.gate_up.fused_by_rows = expert.down.fused_by_rows = true;
    sublayer.body = experts;
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> DescribeGemma4(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, kDefaults));
  // "vision": tokens of images see each other; texts are computed as without it.
  BATON_ASSIGN_OR_RETURN(const auto both_ways,
                         config.OptionalString("use_bidirectional_attention"));
  if (both_ways && *both_ways != "vision") {
    return config.Unsupported(
        "use_bidirectional_attention",
        absl::StrCat("found ", json::Quoted(*both_ways), ", expected \"vision\" or nothing"));
  }
  BATON_ASSIGN_OR_RETURN(const double cap, config.RealOr("final_logit_softcapping", 0, 1e6, 0));
  model.logit_cap = static_cast<float>(cap);
  model.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(model.hidden_dim)));
  AddPostNorms(&model);
  for (LayerSpec& layer : model.layers) {
    layer.mlp_sublayer().norm_before.name = {"pre_feedforward_layernorm", "ffn_norm"};
    layer.scale = {"layer_scalar", "layer_output_scale"};
  }
  BATON_ASSIGN_OR_RETURN(const int window,
                         config.IntOr("sliding_window", 1, kMaxPositions, kDefaultWindow));
  const int last = static_cast<int>(model.layers.size()) - 1;
  BATON_RETURN_IF_ERROR(SetWindows(
      config, window,
      [last](int layer) { return (layer + 1) % kDefaultPattern != 0 && layer != last; }, &model));
  if (!SeesAll(model.layers.back())) {
    return config.Unsupported(
        absl::StrCat("layer_types[", last, "]"),
        absl::StrCat("found ", kSlidingAttention, ", expected ", kFullAttention));
  }
  BATON_RETURN_IF_ERROR(SetHeads(config, &model));
  BATON_RETURN_IF_ERROR(SetRopes(config, &model));
  model.ropes_have_factors = true;
  BATON_RETURN_IF_ERROR(ShareKv(config, &model));
  BATON_RETURN_IF_ERROR(AddInputs(config, &model));
  BATON_RETURN_IF_ERROR(AddExpertsBeside(config, &model));
  return model;
}

// head_count_kv by layer, and heads of two sizes: layers with a window have those of the keys with
// _swa. Where layers without one have no v, it is k; the last `sharing` layers need none.
absl::Status AddGgufHeads(GgufConfig& config, const std::vector<bool>& slides, int64_t sharing) {
  int64_t head_dims[2] = {};  // of layers that see everything, then of those with a window
  const char* const keys[2][3] = {
      {"attention.key_length", "attention.value_length", "rope.dimension_count"},
      {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"}};
  for (int kind = 0; kind < 2; ++kind) {
    BATON_ASSIGN_OR_RETURN(const auto length, config.Integer(keys[kind][0]));
    if (!length) return config.Missing(keys[kind][0], "an integer");
    if (*length < 2 || *length > kLargestHeadDim) {
      return config.Unsupported(
          keys[kind][0], absl::StrCat("found ", *length, ", expected 2 to ", kLargestHeadDim));
    }
    head_dims[kind] = *length;
    for (const char* key : {keys[kind][1], keys[kind][2]}) {
      BATON_ASSIGN_OR_RETURN(const auto other, config.Integer(key));
      if (other.value_or(*length) == *length) continue;
      return config.Unsupported(
          key, absl::StrCat("found ", *other, ", expected ", *length, ", as keys have"));
    }
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> kv_heads,
                         config.ByLayer("attention.head_count_kv"));
  std::vector<std::string> layers;
  bool v_is_k = false;
  for (size_t i = 0; i < slides.size(); ++i) {
    layers.push_back(absl::StrCat("\"", i, "\": {\"head_dim\": ", head_dims[slides[i] ? 1 : 0],
                                  ", \"num_key_value_heads\": ", kv_heads[i], "}"));
    const bool has_kv = static_cast<int64_t>(i) < config.layers() - sharing;
    v_is_k |= has_kv && !slides[i] && !config.HasTensor(absl::StrCat("blk.", i, ".attn_v.weight"));
  }
  config.AddJson("head_dim", absl::StrCat(head_dims[1]));
  config.AddJson("num_key_value_heads", absl::StrCat(kv_heads[0]));
  config.AddJson("per_layer_config", absl::StrCat("{", absl::StrJoin(layers, ", "), "}"));
  config.AddJson("attention_k_eq_v", v_is_k ? "true" : "false");
  return config.AddProportionalRopes(head_dims[0]);
}

// Layers that share KV, whose MLPs may be twice as wide. Returns their number.
absl::StatusOr<int64_t> AddGgufSharing(GgufConfig& config) {
  BATON_ASSIGN_OR_RETURN(const auto found, config.Integer("attention.shared_kv_layers"));
  const int64_t sharing = found.value_or(0), layers = config.layers();
  if (sharing < 0 || sharing >= layers) {
    return config.Unsupported("attention.shared_kv_layers",
                              absl::StrCat("found ", sharing, ", expected 0 to ", layers - 1,
                                           ", as there are ", layers, " layers"));
  }
  config.AddJson("num_kv_shared_layers", absl::StrCat(sharing));
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, config.ByLayer("feed_forward_length"));
  const bool wide = sizes.back() != sizes.front();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool doubles = wide && static_cast<int64_t>(i) >= layers - sharing;
    if (doubles ? sizes[i] % 2 == 0 && sizes[i] / 2 == sizes.front() : sizes[i] == sizes.front()) {
      continue;
    }
    return config.Unsupported(
        "feed_forward_length",
        absl::StrCat("found ", sizes[i], " of layer ", i, ", expected ", sizes.front(),
                     ", or twice as many in all of the ", sharing, " last layers, which share KV"));
  }
  config.AddJson("use_double_wide_mlp", wide ? "true" : "false");
  return sharing;
}

absl::Status AddGemma4Gguf(GgufConfig& config) {
  BATON_ASSIGN_OR_RETURN(const std::vector<bool> slides, config.SlidingLayers());
  BATON_ASSIGN_OR_RETURN(const bool has_window, config.CopyWindow());
  if (!has_window) return config.Missing("attention.sliding_window", "an integer");
  BATON_ASSIGN_OR_RETURN(const int64_t sharing, AddGgufSharing(config));
  BATON_RETURN_IF_ERROR(AddGgufHeads(config, slides, sharing));
  BATON_ASSIGN_OR_RETURN(const auto width, config.Integer("embedding_length_per_layer_input"));
  config.AddJson("hidden_size_per_layer_input", absl::StrCat(width.value_or(0)));
  config.AddJson("vocab_size_per_layer_input", absl::StrCat(config.vocab_size()));
  BATON_RETURN_IF_ERROR(config.CopyReal("final_logit_softcapping", "final_logit_softcapping"));
  if (!config.has_experts()) return absl::OkStatus();
  config.AddJson("enable_moe_block", "true");
  return config.CopyExperts("num_experts", "moe_intermediate_size", "top_k_experts");
}

}  // namespace

const Architecture kGemma4 = {
    .name = "Gemma4ForCausalLM",
    .model_type = "gemma4_text",
    .describe = DescribeGemma4,
    .gguf = "gemma4",
    .gguf_experts = true,
    .gguf_mixed_layers = true,
    .add_gguf = AddGemma4Gguf,
};

}  // namespace baton::model
