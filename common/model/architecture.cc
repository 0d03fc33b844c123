#include "common/model/architecture.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/config_keys.h"
#include "common/model/quantization.h"

namespace baton::model {
namespace {

constexpr const Architecture* kArchitectures[] = {
    &kLlama,    &kQwen2,     &kQwen3,     &kMistral, &kMinistral3,    &kGemma2,      &kGemma3,
    &kSmolLm3,  &kPhi3,      &kOlmo2,     &kOlmo3,   &kGranite,       &kSeedOss,     &kExaone4,
    &kQwen3Moe, &kMixtral,   &kOlmoe,     &kGptOss,  &kDeepseekV2,    &kGlm4MoeLite, &kLfm2,
    &kQwen35,   &kQwen35Moe, &kQwen3Next, &kLfm2Moe, &kGraniteHybrid, &kNemotronH,   &kGemma4,
};

// Models for texts and images, or sound, whose text part computes a text alone as it would without
// them.
constexpr absl::string_view kTextAndImages[] = {
    "Gemma3ForConditionalGeneration",     "Mistral3ForConditionalGeneration",
    "LlavaForConditionalGeneration",      "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration", "Gemma4ForConditionalGeneration",
};

// These keys of their configs describe the parts for images and sound, which Baton does not load.
constexpr absl::string_view kImageKeys[] = {
    "vision_config",
    "audio_config",
    "vision_soft_tokens_per_image",
    "image_token_index",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "boi_token_index",
    "eoi_token_index",
    "mm_tokens_per_image",
    "projector_hidden_act",
    "multimodal_projector_bias",
    "spatial_merge_size",
    "vision_feature_layer",
    "vision_feature_select_strategy",
    "image_seq_length",
};

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

// What counts for the files as a whole. Of nested configs, each object may have it.
absl::Status ParseFiles(const JsonFields& config, ModelConfig* model) {
  BATON_RETURN_IF_ERROR(ParseDType(config, model));
  BATON_ASSIGN_OR_RETURN(const auto quantization, ParseQuantization(config));
  if (quantization) model->quantization = quantization;
  BATON_ASSIGN_OR_RETURN(const std::vector<int> ends,
                         config.Ints("eos_token_id", 0, model->vocab_size - 1));
  if (!ends.empty()) model->eos_token_ids.assign(ends.begin(), ends.end());
  return absl::OkStatus();
}

// Transformers chooses the class by this key, not by the architecture.
absl::Status CheckModelType(const JsonFields& config, const Architecture& architecture) {
  BATON_ASSIGN_OR_RETURN(const auto type, config.OptionalString("model_type"));
  if (!type || *type == architecture.model_type) return absl::OkStatus();
  return config.Unsupported("model_type", absl::StrCat("found ", json::Quoted(*type), ", expected ",
                                                       json::Quoted(architecture.model_type),
                                                       " with ", architecture.name));
}

std::string NamesOf(const char* const Architecture::*member) {
  return absl::StrJoin(kArchitectures, ", ", [&](std::string* out, const Architecture* each) {
    out->append(each->*member);
  });
}

absl::StatusOr<ModelConfig> Describe(const JsonFields& config, const Architecture& architecture) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, architecture.describe(config));
  model.architecture = architecture.name;
  BATON_RETURN_IF_ERROR(CheckModelType(config, architecture));
  BATON_RETURN_IF_ERROR(ParseFiles(config, &model));
  return model;
}

// The text part of a model for texts and images.
absl::StatusOr<ModelConfig> DescribeNested(const JsonFields& config, const JsonFields& text) {
  BATON_ASSIGN_OR_RETURN(const auto type, text.OptionalString("model_type"));
  for (const Architecture* architecture : kArchitectures) {
    if (type != architecture->model_type) continue;
    text.Ignore("architectures");
    BATON_ASSIGN_OR_RETURN(ModelConfig model, Describe(text, *architecture));
    model.nested = true;
    BATON_RETURN_IF_ERROR(ParseFiles(config, &model));
    for (const absl::string_view key : kImageKeys) config.Ignore(key);
    config.Ignore("tie_word_embeddings");  // the text part's counts
    BATON_RETURN_IF_ERROR(CheckConfigKeys(text));
    BATON_RETURN_IF_ERROR(CheckConfigKeys(config));
    return model;
  }
  return text.Unsupported("model_type",
                          absl::StrCat("found ", type ? json::Quoted(*type) : "nothing",
                                       ", expected one of ", NamesOf(&Architecture::model_type)));
}

}  // namespace

absl::Span<const Architecture* const> Architectures() { return kArchitectures; }

const Architecture* FindGgufArchitecture(absl::string_view name) {
  for (const Architecture* architecture : kArchitectures) {
    for (const char* gguf : {architecture->gguf, architecture->gguf_with_experts}) {
      if (gguf != nullptr && gguf == name) return architecture;
    }
  }
  return nullptr;
}

absl::StatusOr<ModelConfig> ParseConfig(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(const auto architectures, config.Strings("architectures"));
  if (architectures.size() != 1) {
    return config.Invalid("architectures",
                          absl::StrCat("found ", architectures.size(), " names, expected one"));
  }
  // Models for embeddings may be saved without the module that has the LM head.
  absl::string_view base = architectures[0];
  const std::string name =
      absl::ConsumeSuffix(&base, "Model") ? absl::StrCat(base, "ForCausalLM") : architectures[0];
  const auto describe = [&]() -> absl::StatusOr<ModelConfig> {
    for (const Architecture* architecture : kArchitectures) {
      if (name != architecture->name) continue;
      BATON_ASSIGN_OR_RETURN(ModelConfig model, Describe(config, *architecture));
      BATON_RETURN_IF_ERROR(CheckConfigKeys(config));
      return model;
    }
    if (absl::c_linear_search(kTextAndImages, architectures[0])) {
      BATON_ASSIGN_OR_RETURN(const auto text, config.OptionalObject("text_config"));
      if (text) return DescribeNested(config, *text);
      return config.Invalid("text_config", "found nothing, expected an object");
    }
    return config.Unsupported("architectures",
                              absl::StrCat("found ", json::Quoted(architectures[0]),
                                           ", expected one of ", NamesOf(&Architecture::name)));
  };
  BATON_ASSIGN_OR_RETURN(ModelConfig model, describe());
  if (model.quantization) {  // assumed of all that may be; the checkpoint shows which are not
    for (LayerSpec& layer : model.layers) {
      for (SublayerSpec& sublayer : layer.sublayers) {
        ForEachProduct(sublayer, [&](ProductSpec& product, int) {
          product.quantized = !model.quantization->fp4 || IsOfExperts(sublayer, product);
        });
      }
    }
  }
  return model;
}

}  // namespace baton::model
