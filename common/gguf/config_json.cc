#include "common/gguf/config_json.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/gguf/json_object.h"
#include "common/gguf/tokenizer_json.h"
#include "common/json/json.h"

namespace baton::gguf {
namespace {

struct Architecture {
  absl::string_view name;  // general.architecture
  absl::string_view config;
};
constexpr Architecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM"},  // Mistral's models, too
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
};

// Keys of an architecture that nothing reads and that change nothing: what the tensors say, records
// of the conversion, and what only YaRN scaling reads, which is refused by its type.
constexpr absl::string_view kHarmlessKeys[] = {
    "vocab_size",
    "tensor_data_layout",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
};

// Writes the fields of one file's config.json.
class ConfigWriter {
 public:
  ConfigWriter(const File& file, const Architecture& architecture)
      : file_(file), architecture_(architecture) {}

  absl::StatusOr<std::string> Write() {
    BATON_RETURN_IF_ERROR(CheckDense());
    BATON_RETURN_IF_ERROR(Copy("embedding_length", "hidden_size"));
    BATON_RETURN_IF_ERROR(Copy("block_count", "num_hidden_layers"));
    BATON_RETURN_IF_ERROR(Copy("feed_forward_length", "intermediate_size"));
    BATON_RETURN_IF_ERROR(Copy("context_length", "max_position_embeddings"));
    BATON_RETURN_IF_ERROR(AddHeads());
    BATON_RETURN_IF_ERROR(AddReals());
    BATON_RETURN_IF_ERROR(AddRopeScaling());
    BATON_RETURN_IF_ERROR(AddWindow());
    BATON_RETURN_IF_ERROR(AddTensors());
    BATON_RETURN_IF_ERROR(CheckNothingForeign());
    BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> ends, EndTokenIds(file_));
    config_.AddJson("eos_token_id", absl::StrCat("[", absl::StrJoin(ends, ", "), "]"));
    return config_.Text();
  }

 private:
  // Notes that the key is read.
  std::string Key(absl::string_view name) const {
    return *read_.insert(absl::StrCat(architecture_.name, ".", name)).first;
  }

  absl::StatusOr<int64_t> Required(absl::string_view name) const {
    BATON_ASSIGN_OR_RETURN(const auto value, file_.Integer(Key(name)));
    if (!value) return file_.Missing(Key(name), "an integer");
    return *value;
  }

  absl::Status Copy(absl::string_view name, absl::string_view field) {
    BATON_ASSIGN_OR_RETURN(const int64_t value, Required(name));
    config_.AddInteger(field, value);
    return absl::OkStatus();
  }

  absl::Status CheckDense() const {
    BATON_ASSIGN_OR_RETURN(const auto experts, file_.Integer(Key("expert_count")));
    if (experts.value_or(0) != 0) {
      return file_.Unsupported(Key("expert_count"), absl::StrCat("found ", *experts,
                                                                 ", expected a dense "
                                                                 "feed-forward"));
    }
    BATON_ASSIGN_OR_RETURN(const auto causal, file_.Bool(Key("attention.causal")));
    if (causal.value_or(true)) return absl::OkStatus();
    return file_.Unsupported(Key("attention.causal"), "found false, expected true");
  }

  // An architecture's keys are its hyperparameters, so one that nothing has read would change what
  // is computed. 0 is off, as in llama.cpp.
  absl::Status CheckNothingForeign() const {
    const std::string prefix = Key("");
    for (const std::string& key : file_.Keys(prefix)) {
      if (read_.contains(key) || file_.IsOff(key)) continue;
      const absl::string_view name = absl::string_view(key).substr(prefix.size());
      if (absl::c_linear_search(kHarmlessKeys, name)) continue;
      return file_.Unsupported(json::Printable(key), "found one, expected none");
    }
    return absl::OkStatus();
  }

  absl::Status AddHeads() {
    BATON_ASSIGN_OR_RETURN(const int64_t heads, Required("attention.head_count"));
    BATON_ASSIGN_OR_RETURN(const int64_t width, Required("embedding_length"));
    BATON_ASSIGN_OR_RETURN(const auto kv_heads, file_.Integer(Key("attention.head_count_kv")));
    BATON_ASSIGN_OR_RETURN(const auto key_length, file_.Integer(Key("attention.key_length")));
    const int64_t head_dim = key_length.value_or(heads > 0 ? width / heads : 0);
    // Values of the same length as keys, and rotary embedding of all of them.
    for (const absl::string_view name : {"attention.value_length", "rope.dimension_count"}) {
      BATON_ASSIGN_OR_RETURN(const auto length, file_.Integer(Key(name)));
      if (length.value_or(head_dim) == head_dim) continue;
      return file_.Unsupported(
          Key(name), absl::StrCat("found ", *length, ", expected ", head_dim, ", as keys have"));
    }
    config_.AddInteger("num_attention_heads", heads);
    config_.AddInteger("num_key_value_heads", kv_heads.value_or(heads));
    config_.AddInteger("head_dim", head_dim);
    return absl::OkStatus();
  }

  absl::Status AddReals() {
    const std::string eps_key = Key("attention.layer_norm_rms_epsilon");
    BATON_ASSIGN_OR_RETURN(const auto eps, file_.Real(eps_key));
    if (!eps) return file_.Missing(eps_key, "a number");
    config_.AddReal("rms_norm_eps", *eps);
    BATON_ASSIGN_OR_RETURN(const auto theta, file_.Real(Key("rope.freq_base")));
    if (theta) config_.AddReal("rope_theta", *theta);
    return absl::OkStatus();
  }

  // A factor without a type is linear, as in llama.cpp. Llama 3's scaling is a tensor
  // (kRopeFactorsName).
  absl::Status AddRopeScaling() {
    BATON_ASSIGN_OR_RETURN(const auto type, file_.Text(Key("rope.scaling.type")));
    if (type && *type != "linear" && *type != "none") {
      return file_.Unsupported(Key("rope.scaling.type"), absl::StrCat("found ", json::Quoted(*type),
                                                                      ", expected linear or none"));
    }
    BATON_ASSIGN_OR_RETURN(auto factor, file_.Real(Key("rope.scaling.factor")));
    BATON_ASSIGN_OR_RETURN(const auto old_factor, file_.Real(Key("rope.scale_linear")));
    if (factor && old_factor && *factor != *old_factor) {
      return file_.Invalid(Key("rope.scaling.factor"),
                           absl::StrCat("found ", *factor, " beside ", Key("rope.scale_linear"),
                                        " ", *old_factor, ", expected one of both"));
    }
    if (!factor) factor = old_factor;
    BATON_ASSIGN_OR_RETURN(const auto magnitude, file_.Real(Key("rope.scaling.attn_factor")));
    if (magnitude.value_or(1) != 1) {
      return file_.Unsupported(Key("rope.scaling.attn_factor"),
                               absl::StrCat("found ", *magnitude, ", expected 1 or none"));
    }
    if (factor.value_or(0) == 0 || (type && *type == "none")) return absl::OkStatus();
    JsonObject scaling;
    scaling.AddText("rope_type", "linear");
    scaling.AddReal("factor", *factor);
    config_.AddJson("rope_scaling", scaling.Text());
    return absl::OkStatus();
  }

  // Only Mistral's models, of the three, have one window for all layers.
  absl::Status AddWindow() {
    const std::string key = Key("attention.sliding_window");
    BATON_ASSIGN_OR_RETURN(const auto window, file_.Integer(key));
    absl::string_view name = architecture_.config;
    if (window.value_or(0) != 0) {
      if (architecture_.name != "llama") {
        return file_.Unsupported(key, absl::StrCat("found ", *window, ", expected none"));
      }
      name = "MistralForCausalLM";
      config_.AddInteger("sliding_window", *window);
    }
    config_.AddJson("architectures", absl::StrCat("[\"", name, "\"]"));
    return absl::OkStatus();
  }

  absl::Status AddTensors() {
    const Tensor* embedding = file_.FindTensor("token_embd.weight");
    if (embedding == nullptr || embedding->extents.size() != 2) {
      return file_.Missing("token_embd.weight", "a tensor of two dimensions");
    }
    if (embedding->extents[1] > INT32_MAX) {
      return file_.Invalid("token_embd.weight",
                           absl::StrCat("found ", embedding->extents[1], " rows, expected fewer"));
    }
    config_.AddInteger("vocab_size", static_cast<int64_t>(embedding->extents[1]));
    config_.AddBool("tie_word_embeddings", file_.FindTensor("output.weight") == nullptr);
    if (file_.FindTensor("blk.0.attn_q.bias") != nullptr) config_.AddBool("attention_bias", true);
    AddQuantization();
    return absl::OkStatus();
  }

  // Q4_0 and Q8_0 are what devices can keep in few bits: the one that more of the layers' tensors
  // have. Which ones do, the reader of the tensors finds out.
  void AddQuantization() {
    int q4 = 0, q8 = 0;
    for (const Tensor& tensor : file_.tensors()) {
      if (!absl::StartsWith(tensor.name, "blk.")) continue;
      q4 += tensor.type->name == "Q4_0";
      q8 += tensor.type->name == "Q8_0";
    }
    if (q4 + q8 == 0) return;
    JsonObject quantization;
    quantization.AddText("quant_method", "gguf");
    quantization.AddInteger("bits", q4 > q8 ? 4 : 8);
    quantization.AddInteger("group_size", 32);
    config_.AddJson("quantization_config", quantization.Text());
  }

  const File& file_;
  const Architecture& architecture_;
  JsonObject config_;
  mutable absl::flat_hash_set<std::string> read_;
};

constexpr absl::string_view kSampling = "general.sampling.";

// Refuses samplers that Baton does not have. Parameters that only they read are ignored, and so is
// the file's order of samplers, because Baton has its own (docs/sampling.md).
absl::Status CheckSampling(const File& file) {
  for (const absl::string_view name : {"mirostat", "xtc_probability"}) {
    const std::string key = absl::StrCat(kSampling, name);
    if (!file.IsOff(key)) return file.Unsupported(key, "found one, expected 0 or none");
  }
  const std::string last_key = absl::StrCat(kSampling, "penalty_last_n");
  BATON_ASSIGN_OR_RETURN(const auto last, file.Integer(last_key));
  BATON_ASSIGN_OR_RETURN(const auto penalty, file.Real(absl::StrCat(kSampling, "penalty_repeat")));
  if (last.value_or(-1) == -1 || penalty.value_or(1) == 1) return absl::OkStatus();
  return file.Unsupported(
      last_key, absl::StrCat("found ", *last, ", expected -1: Baton's penalty is for all tokens"));
}

}  // namespace

absl::StatusOr<std::string> ConfigJson(const File& file) {
  constexpr absl::string_view kKey = "general.architecture";
  BATON_ASSIGN_OR_RETURN(const auto name, file.Text(kKey));
  if (!name) return file.Missing(kKey, "an architecture");
  for (const Architecture& architecture : kArchitectures) {
    if (*name == architecture.name) return ConfigWriter(file, architecture).Write();
  }
  return file.Unsupported(
      kKey, absl::StrCat("found ", json::Quoted(*name), ", expected one of ",
                         absl::StrJoin(kArchitectures, ", ",
                                       [](std::string* out, const Architecture& architecture) {
                                         absl::StrAppend(out, architecture.name);
                                       })));
}

absl::StatusOr<std::optional<std::string>> GenerationConfigJson(const File& file) {
  constexpr std::pair<absl::string_view, absl::string_view> kFields[] = {
      {"temp", "temperature"},
      {"top_p", "top_p"},
      {"min_p", "min_p"},
      {"penalty_repeat", "repetition_penalty"},
  };
  BATON_RETURN_IF_ERROR(CheckSampling(file));
  JsonObject config;
  bool found = false;
  for (const auto& [name, field] : kFields) {
    BATON_ASSIGN_OR_RETURN(const auto value, file.Real(absl::StrCat(kSampling, name)));
    if (value) config.AddReal(field, *value);
    found |= value.has_value();
  }
  BATON_ASSIGN_OR_RETURN(const auto top_k, file.Integer(absl::StrCat(kSampling, "top_k")));
  if (top_k) config.AddInteger("top_k", *top_k);
  if (!found && !top_k) return std::nullopt;
  config.AddBool("do_sample", true);
  return config.Text();
}

}  // namespace baton::gguf
