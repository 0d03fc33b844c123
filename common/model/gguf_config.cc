#include "common/model/gguf_config.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/gguf/tokenizer_json.h"
#include "common/json/json.h"
#include "common/model/architecture.h"
#include "common/model/config_limits.h"
#include "common/model/rope.h"

namespace baton::model {
namespace {

constexpr absl::string_view kArchitectureKey = "general.architecture";

// Keys of an architecture that nothing reads and that change nothing: what the tensors say, records
// of the conversion, and what only some types of scaling read.
constexpr absl::string_view kHarmlessKeys[] = {
    "vocab_size",
    "tensor_data_layout",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "pooling_type",  // embedding_config.h reads it
};

}  // namespace

absl::StatusOr<std::string> GgufConfigJson(const gguf::File& file) {
  BATON_ASSIGN_OR_RETURN(const auto name, file.Text(kArchitectureKey));
  if (!name) return file.Missing(kArchitectureKey, "an architecture");
  const Architecture* architecture = FindGgufArchitecture(*name);
  if (architecture != nullptr) return GgufConfig(file, *architecture, *name).Write();
  std::vector<absl::string_view> known;
  for (const Architecture* each : Architectures()) {
    for (const char* gguf : {each->gguf, each->gguf_with_experts}) {
      if (gguf != nullptr) known.push_back(gguf);
    }
  }
  return file.Unsupported(kArchitectureKey,
                          absl::StrCat("found ", json::Quoted(*name), ", expected one of ",
                                       absl::StrJoin(known, ", ")));
}

absl::StatusOr<std::string> GgufConfig::Write() {
  name_ = architecture_.name;
  BATON_RETURN_IF_ERROR(CheckSupported());
  BATON_ASSIGN_OR_RETURN(hidden_dim_, Required("embedding_length"));
  config_.AddInteger("hidden_size", hidden_dim_);
  BATON_RETURN_IF_ERROR(AddLayers());
  BATON_RETURN_IF_ERROR(AddFeedForward());
  BATON_RETURN_IF_ERROR(Copy("context_length", "max_position_embeddings"));
  BATON_RETURN_IF_ERROR(architecture_.gguf_latent ? AddLatentHeads() : AddHeads());
  BATON_RETURN_IF_ERROR(AddReals());
  BATON_RETURN_IF_ERROR(AddRopeScaling());
  BATON_RETURN_IF_ERROR(AddTensors());
  if (architecture_.add_gguf != nullptr) BATON_RETURN_IF_ERROR(architecture_.add_gguf(*this));
  BATON_RETURN_IF_ERROR(FinishRope());
  BATON_RETURN_IF_ERROR(CheckNothingForeign());
  config_.AddJson("architectures", absl::StrCat("[\"", name_, "\"]"));
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> ends, gguf::EndTokenIds(file_));
  config_.AddJson("eos_token_id", absl::StrCat("[", absl::StrJoin(ends, ", "), "]"));
  return config_.Text();
}

std::string GgufConfig::Key(absl::string_view name) const {
  return *read_.insert(absl::StrCat(gguf_, ".", name)).first;
}

absl::StatusOr<int64_t> GgufConfig::Required(absl::string_view name) const {
  BATON_ASSIGN_OR_RETURN(const auto value, file_.Integer(Key(name)));
  if (!value) return file_.Missing(Key(name), "an integer");
  return *value;
}

absl::Status GgufConfig::Copy(absl::string_view name, absl::string_view field) {
  BATON_ASSIGN_OR_RETURN(const int64_t value, Required(name));
  config_.AddInteger(field, value);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<double>> GgufConfig::Real(absl::string_view key) const {
  return file_.Real(Key(key));
}

absl::StatusOr<std::optional<int64_t>> GgufConfig::Integer(absl::string_view key) const {
  return file_.Integer(Key(key));
}

absl::StatusOr<std::vector<int64_t>> GgufConfig::ByLayer(absl::string_view key) const {
  if (layers_ < 1 || layers_ > kMaxLayers) {
    return file_.Invalid(Key("block_count"),
                         absl::StrCat("found ", layers_, ", expected 1 to ", kMaxLayers));
  }
  const auto layers = static_cast<uint64_t>(layers_);
  std::vector<int64_t> values;
  if (!file_.IsList(Key(key))) {
    BATON_ASSIGN_OR_RETURN(const int64_t value, Required(key));
    values.assign(layers, value);
    return values;
  }
  BATON_ASSIGN_OR_RETURN(const auto list, file_.IntegerList(Key(key)));
  if (list->size() != layers) {
    return file_.Invalid(Key(key),
                         absl::StrCat("found ", list->size(), " entries, expected ", layers_));
  }
  for (uint64_t i = 0; i < layers; ++i) values.push_back(list->At(i));
  return values;
}

absl::Status GgufConfig::AddFeedForward() {
  constexpr absl::string_view kKey = "feed_forward_length";
  if (architecture_.gguf_mixed_layers) {
    BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ByLayer(kKey));
    ffn_ = sizes.front();
    config_.AddInteger("intermediate_size", ffn_);
    return absl::OkStatus();
  }
  if (!architecture_.gguf_sublayers) {
    // A file whose layers all have experts may not say how large a dense feed-forward would be.
    BATON_ASSIGN_OR_RETURN(const auto of_experts, Integer("expert_feed_forward_length"));
    BATON_ASSIGN_OR_RETURN(const auto size, Integer(kKey));
    if (!size && !(has_experts() && of_experts)) return Missing(kKey, "an integer");
    ffn_ = size ? *size : *of_experts;
    config_.AddInteger("intermediate_size", ffn_);
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ByLayer(kKey));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (ffn_ == 0) ffn_ = sizes[i];
    if (sizes[i] == 0 || sizes[i] == ffn_) continue;
    return Unsupported(kKey, absl::StrCat("found ", sizes[i], " of layer ", i, ", expected ", ffn_,
                                          ", as of others"));
  }
  if (ffn_ != 0) config_.AddInteger("intermediate_size", ffn_);
  return absl::OkStatus();
}

absl::StatusOr<bool> GgufConfig::BoolOr(absl::string_view key, bool if_absent) const {
  BATON_ASSIGN_OR_RETURN(const auto value, file_.Bool(Key(key)));
  return value.value_or(if_absent);
}

absl::Status GgufConfig::CopyInteger(absl::string_view key, absl::string_view field) {
  BATON_ASSIGN_OR_RETURN(const auto value, Integer(key));
  if (value) config_.AddInteger(field, *value);
  return absl::OkStatus();
}

absl::Status GgufConfig::CopyBool(absl::string_view key, absl::string_view field, bool if_absent) {
  BATON_ASSIGN_OR_RETURN(const bool value, BoolOr(key, if_absent));
  config_.AddBool(field, value);
  return absl::OkStatus();
}

absl::Status GgufConfig::CopyExpertGroups() {
  // Without the keys, files of DeepSeek-V2 and V3 are too old to say that their experts are in
  // groups; their smaller siblings, which have none, have at most so many experts.
  constexpr int kMostWithoutGroups = 64;
  BATON_ASSIGN_OR_RETURN(const auto groups, Integer("expert_group_count"));
  BATON_ASSIGN_OR_RETURN(const auto used, Integer("expert_group_used_count"));
  if (groups.value_or(0) != 0) config_.AddInteger("n_group", *groups);
  if (used.value_or(0) != 0) config_.AddInteger("topk_group", *used);
  if (groups.value_or(0) != 0 || experts_ <= kMostWithoutGroups) return absl::OkStatus();
  return Unsupported("expert_count",
                     absl::StrCat("found ", experts_, " without ", Key("expert_group_count"),
                                  ", expected at most ", kMostWithoutGroups, ", or that key"));
}

absl::StatusOr<bool> GgufConfig::RoutesBySigmoid() const {
  constexpr absl::string_view kKey = "expert_gating_func";
  constexpr int kSoftmax = 1, kSigmoid = 2;
  BATON_ASSIGN_OR_RETURN(const auto function, Integer(kKey));
  if (function == kSoftmax || function == kSigmoid) return function == kSigmoid;
  if (function.value_or(0) != 0) {
    return Unsupported(
        kKey, absl::StrCat("found ", *function, ", expected ", kSoftmax, " or ", kSigmoid));
  }
  return HasTensor(".exp_probs_b.bias");
}

absl::Status GgufConfig::Missing(absl::string_view key, absl::string_view expected) const {
  return file_.Missing(Key(key), expected);
}

absl::Status GgufConfig::Unsupported(absl::string_view key, absl::string_view message) const {
  return file_.Unsupported(Key(key), message);
}

absl::Status GgufConfig::CopyReal(absl::string_view key, absl::string_view field) {
  BATON_ASSIGN_OR_RETURN(const auto value, Real(key));
  if (value.value_or(0) != 0) config_.AddReal(field, *value);  // 0 is off, as in llama.cpp
  return absl::OkStatus();
}

absl::StatusOr<bool> GgufConfig::CopyWindow() {
  BATON_ASSIGN_OR_RETURN(const auto window, file_.Integer(Key("attention.sliding_window")));
  if (window.value_or(0) == 0) return false;
  config_.AddInteger("sliding_window", *window);
  return true;
}

absl::Status GgufConfig::CopyWindowPattern() {
  const std::string key = Key("attention.sliding_window_pattern");
  if (!file_.Has(key)) return absl::OkStatus();
  if (!file_.IsList(key)) {
    BATON_ASSIGN_OR_RETURN(const auto pattern, file_.Integer(key));
    config_.AddInteger("sliding_window_pattern", pattern.value_or(0));
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const auto slides, file_.BoolList(key));
  std::vector<std::string> types;
  for (uint64_t i = 0; i < slides->size(); ++i) {
    types.push_back(slides->At(i) != 0 ? "\"sliding_attention\"" : "\"full_attention\"");
  }
  config_.AddJson("layer_types", absl::StrCat("[", absl::StrJoin(types, ", "), "]"));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<bool>> GgufConfig::SlidingLayers() {
  const std::string key = Key("attention.sliding_window_pattern");
  if (!file_.IsList(key)) return file_.Missing(key, "a list of layers");
  BATON_ASSIGN_OR_RETURN(const auto list, file_.BoolList(key));
  if (list->size() != static_cast<uint64_t>(layers_)) {
    return file_.Invalid(key, absl::StrCat("found ", list->size(), " entries, expected ", layers_));
  }
  BATON_RETURN_IF_ERROR(CopyWindowPattern());
  std::vector<bool> slides;
  for (uint64_t i = 0; i < list->size(); ++i) slides.push_back(list->At(i) != 0);
  return slides;
}

absl::Status GgufConfig::AddLayers() {
  BATON_ASSIGN_OR_RETURN(blocks_, Required("block_count"));
  layers_ = blocks_;
  std::optional<int64_t> drafts;
  if (architecture_.gguf_drafts) {
    BATON_ASSIGN_OR_RETURN(drafts, Integer("nextn_predict_layers"));
  }
  if (drafts && (*drafts < 0 || (*drafts > 0 && *drafts >= blocks_))) {
    return file_.Invalid(Key("nextn_predict_layers"),
                         absl::StrCat("found ", *drafts, ", expected fewer than ", blocks_,
                                      ", the layers of block_count"));
  }
  layers_ -= drafts.value_or(0);
  config_.AddInteger("num_hidden_layers", layers_);
  return absl::OkStatus();
}

absl::Status GgufConfig::CopyRecurrentLayers(absl::string_view recurrent) {
  const std::string key = Key("attention.recurrent_layers");
  if (!file_.Has(key)) return CopyInteger("full_attention_interval", "full_attention_interval");
  BATON_RETURN_IF_ERROR(Integer("full_attention_interval").status());  // the list says more
  BATON_ASSIGN_OR_RETURN(const auto list, file_.BoolList(key));
  if (list->size() != static_cast<uint64_t>(blocks_)) {
    return file_.Invalid(key, absl::StrCat("found ", list->size(), " entries, expected ", blocks_));
  }
  std::vector<std::string> types;
  for (uint64_t i = 0; i < static_cast<uint64_t>(layers_); ++i) {
    types.push_back(json::Quoted(list->At(i) != 0 ? recurrent : kFullAttention));
  }
  config_.AddJson("layer_types", absl::StrCat("[", absl::StrJoin(types, ", "), "]"));
  return absl::OkStatus();
}

bool GgufConfig::HasTensor(absl::string_view end) const {
  return absl::c_any_of(file_.tensors(), [end](const gguf::Tensor& tensor) {
    return absl::EndsWith(tensor.name, end);
  });
}

absl::Status GgufConfig::CopyExperts(absl::string_view count_field, absl::string_view ffn_field,
                                     absl::string_view used_field) {
  config_.AddInteger(count_field, experts_);
  BATON_RETURN_IF_ERROR(Copy("expert_used_count", used_field));
  BATON_ASSIGN_OR_RETURN(const auto ffn, file_.Integer(Key("expert_feed_forward_length")));
  if (ffn && !ffn_field.empty()) config_.AddInteger(ffn_field, *ffn);
  if (!ffn || !ffn_field.empty() || *ffn == ffn_) return absl::OkStatus();
  return file_.Unsupported(
      Key("expert_feed_forward_length"),
      absl::StrCat("found ", *ffn, ", expected ", ffn_, ", as feed_forward_length says"));
}

absl::Status GgufConfig::CheckSupported() {
  BATON_ASSIGN_OR_RETURN(const auto experts, file_.Integer(Key("expert_count")));
  experts_ = experts.value_or(0);
  if (experts_ < 0 || (experts_ > 0 && !architecture_.gguf_experts)) {
    return Unsupported("expert_count",
                       absl::StrCat("found ", *experts, ", expected a dense feed-forward"));
  }
  BATON_ASSIGN_OR_RETURN(const auto causal, file_.Bool(Key("attention.causal")));
  if (causal.value_or(true)) return absl::OkStatus();
  return file_.Unsupported(Key("attention.causal"), "found false, expected true");
}

// An architecture's keys are its hyperparameters, so one that nothing has read would change what is
// computed. 0 is off, as in llama.cpp.
absl::Status GgufConfig::CheckNothingForeign() const {
  const std::string prefix = Key("");
  for (const std::string& key : file_.Keys(prefix)) {
    if (read_.contains(key) || file_.IsOff(key)) continue;
    const absl::string_view name = absl::string_view(key).substr(prefix.size());
    if (absl::c_linear_search(kHarmlessKeys, name)) continue;
    return file_.Unsupported(json::Printable(key), "found one, expected none");
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> GgufConfig::AddKvHeads() {
  constexpr absl::string_view kKey = "attention.head_count_kv";
  const std::string key = Key(kKey);
  if (!file_.IsList(key)) {
    BATON_ASSIGN_OR_RETURN(const auto heads, file_.Integer(key));
    return heads.value_or(heads_);
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> list, ByLayer(kKey));
  int64_t heads = 0;
  std::vector<std::string> types;
  const char* const recurrent = architecture_.gguf_recurrent;
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t found = list[i];
    if (heads == 0) heads = found;
    types.push_back(json::Quoted(found == 0 && recurrent ? recurrent : kFullAttention));
    const bool may_lack = recurrent != nullptr || architecture_.gguf_sublayers;
    if (found == 0 ? may_lack : found == heads) continue;
    return file_.Unsupported(key, absl::StrCat("found ", found, " of layer ", i, ", expected ",
                                               heads, ", as of others"));
  }
  if (recurrent != nullptr) {
    config_.AddJson("layer_types", absl::StrCat("[", absl::StrJoin(types, ", "), "]"));
  }
  return heads;
}

absl::Status GgufConfig::AddHeads() {
  BATON_ASSIGN_OR_RETURN(heads_, Required("attention.head_count"));
  BATON_RETURN_IF_ERROR(CheckHeads());
  if (architecture_.gguf_mixed_layers) {
    config_.AddInteger("num_attention_heads", heads_);
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const int64_t kv_heads, AddKvHeads());
  BATON_ASSIGN_OR_RETURN(const auto key_length, file_.Integer(Key("attention.key_length")));
  head_dim_ = key_length.value_or(hidden_dim_ / heads_);
  if (head_dim_ < 1) {
    return file_.Invalid(Key("attention.key_length"),
                         absl::StrCat("found ", head_dim_, ", expected more than 0"));
  }
  // Values, and layers with a window, have heads of the same size.
  for (const char* name :
       {"attention.value_length", "attention.key_length_swa", "attention.value_length_swa"}) {
    BATON_ASSIGN_OR_RETURN(const auto length, file_.Integer(Key(name)));
    if (length.value_or(head_dim_) == head_dim_) continue;
    return file_.Unsupported(
        Key(name), absl::StrCat("found ", *length, ", expected ", head_dim_, ", as keys have"));
  }
  BATON_ASSIGN_OR_RETURN(const auto rotated, file_.Integer(Key("rope.dimension_count")));
  if (rotated.value_or(head_dim_) != head_dim_) {
    if (!architecture_.gguf_partial_rotary || *rotated < 1 || *rotated > head_dim_) {
      return file_.Unsupported(
          Key("rope.dimension_count"),
          absl::StrCat("found ", *rotated, ", expected ", head_dim_, ", as keys have"));
    }
    // A little more, as the reader cuts off what is behind the point.
    config_.AddReal("partial_rotary_factor",
                    (static_cast<double>(*rotated) + 0.25) / static_cast<double>(head_dim_));
  }
  config_.AddInteger("num_attention_heads", heads_);
  config_.AddInteger("num_key_value_heads", kv_heads);
  config_.AddInteger("head_dim", head_dim_);
  return absl::OkStatus();
}

absl::Status GgufConfig::CheckHeads() const {
  if (heads_ >= 1 && heads_ <= kMaxHeads) return absl::OkStatus();
  return file_.Invalid(Key("attention.head_count"),
                       absl::StrCat("found ", heads_, ", expected 1 to ", kMaxHeads));
}

// Files say it in one of two ways: that of the one KV head of latents, which then have the sizes of
// heads under other keys, or that of the heads.
absl::Status GgufConfig::AddLatentHeads() {
  BATON_ASSIGN_OR_RETURN(heads_, Required("attention.head_count"));
  BATON_RETURN_IF_ERROR(CheckHeads());
  BATON_ASSIGN_OR_RETURN(const int64_t rank, Required("attention.kv_lora_rank"));
  BATON_ASSIGN_OR_RETURN(const int64_t rotated, Required("rope.dimension_count"));
  BATON_ASSIGN_OR_RETURN(int64_t key, Required("attention.key_length"));
  BATON_ASSIGN_OR_RETURN(int64_t value, Required("attention.value_length"));
  BATON_ASSIGN_OR_RETURN(const int64_t kv_heads, Required("attention.head_count_kv"));
  BATON_ASSIGN_OR_RETURN(const auto key_of_head, Integer("attention.key_length_mla"));
  BATON_ASSIGN_OR_RETURN(const auto value_of_head, Integer("attention.value_length_mla"));
  for (const auto& [name, size] : {std::pair<const char*, int64_t>("attention.kv_lora_rank", rank),
                                   {"rope.dimension_count", rotated},
                                   {"attention.key_length", key},
                                   {"attention.value_length", value},
                                   {"attention.key_length_mla", key_of_head.value_or(1)},
                                   {"attention.value_length_mla", value_of_head.value_or(1)}}) {
    if (size >= 0 && size <= kMaxHidden) continue;
    return file_.Invalid(Key(name), absl::StrCat("found ", size, ", expected 0 to ", kMaxHidden));
  }
  const auto expect = [&](absl::string_view name, int64_t found, int64_t expected) {
    if (found == expected) return absl::OkStatus();
    return file_.Unsupported(
        Key(name), absl::StrCat("found ", found, ", expected ", expected, " with latents of ", rank,
                                " and ", rotated, " rotated elements"));
  };
  if (key_of_head.value_or(0) != 0) {
    BATON_RETURN_IF_ERROR(expect("attention.key_length", key, rank + rotated));
    BATON_RETURN_IF_ERROR(expect("attention.value_length", value, rank));
    BATON_RETURN_IF_ERROR(expect("attention.head_count_kv", kv_heads, 1));
    if (!value_of_head) return Missing("attention.value_length_mla", "an integer");
    key = *key_of_head;
    value = *value_of_head;
  } else {
    BATON_RETURN_IF_ERROR(expect("attention.head_count_kv", kv_heads, heads_));
  }
  head_dim_ = rotated;
  config_.AddInteger("num_attention_heads", heads_);
  config_.AddInteger("num_key_value_heads", heads_);
  config_.AddInteger("kv_lora_rank", rank);
  config_.AddInteger("qk_rope_head_dim", rotated);
  config_.AddInteger("qk_nope_head_dim", key - rotated);
  config_.AddInteger("v_head_dim", value);
  BATON_ASSIGN_OR_RETURN(const auto q_rank, Integer("attention.q_lora_rank"));
  config_.AddJson("q_lora_rank", q_rank.value_or(0) == 0 ? "null" : absl::StrCat(*q_rank));
  return absl::OkStatus();
}

absl::Status GgufConfig::AddReals() {
  const std::string eps_key = Key("attention.layer_norm_rms_epsilon");
  BATON_ASSIGN_OR_RETURN(const auto eps, file_.Real(eps_key));
  if (!eps) return file_.Missing(eps_key, "a number");
  config_.AddReal("rms_norm_eps", *eps);
  // Where a file has none it is 10,000, whatever a class in Transformers assumes.
  BATON_ASSIGN_OR_RETURN(theta_, file_.Real(Key("rope.freq_base")));
  if (!theta_) theta_ = 10000;
  return absl::OkStatus();
}

absl::Status GgufConfig::AddTensors() {
  const gguf::Tensor* embedding = file_.FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->extents.size() != 2) {
    return file_.Missing("token_embd.weight", "a tensor of two dimensions");
  }
  if (embedding->extents[1] > INT32_MAX) {
    return file_.Invalid("token_embd.weight",
                         absl::StrCat("found ", embedding->extents[1], " rows, expected fewer"));
  }
  vocab_size_ = static_cast<int64_t>(embedding->extents[1]);
  config_.AddInteger("vocab_size", vocab_size_);
  config_.AddBool("tie_word_embeddings", file_.FindTensor("output.weight") == nullptr);
  config_.AddBool("attention_bias", file_.FindTensor("blk.0.attn_q.bias") != nullptr);
  AddQuantization();
  return absl::OkStatus();
}

// Q4_0, Q8_0 and MXFP4 are what a GPU can keep in few bits, one of them in a model: MXFP4 where
// more of the experts' tensors have it than any other (it multiplies nothing else by them), else
// the one that more of the layers' tensors have. Which ones do, the reader of the tensors finds
// out.
void GgufConfig::AddQuantization() {
  int q4 = 0, q8 = 0, fp4 = 0, other_experts = 0;
  for (const gguf::Tensor& tensor : file_.tensors()) {
    if (!absl::StartsWith(tensor.name, "blk.")) continue;
    q4 += tensor.type->name == "Q4_0";
    q8 += tensor.type->name == "Q8_0";
    if (!absl::StrContains(tensor.name, "_exps.weight")) continue;
    (tensor.type->name == "MXFP4" ? fp4 : other_experts) += 1;
  }
  const bool is_fp4 = fp4 > other_experts;
  if (q4 + q8 == 0 && !is_fp4) return;
  gguf::JsonObject quantization;
  quantization.AddText("quant_method", "gguf");
  quantization.AddInteger("bits", is_fp4 || q4 > q8 ? 4 : 8);
  quantization.AddInteger("group_size", 32);
  if (is_fp4) quantization.AddBool("fp4", true);
  config_.AddJson("quantization_config", quantization.Text());
}

}  // namespace baton::model
