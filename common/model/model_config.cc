#include "common/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/gguf/documents.h"
#include "common/gguf/file.h"
#include "common/json/json.h"
#include "common/model/architecture.h"
#include "common/model/checkpoint.h"
#include "common/model/convert.h"
#include "common/model/embedding_config.h"
#include "common/model/fingerprint.h"
#include "common/model/generation_config.h"
#include "common/model/gguf_config.h"
#include "common/model/json_fields.h"
#include "common/model/model_tensors.h"
#include "common/model/quantization.h"
#include "common/model/tokenizer_ids.h"

namespace baton::model {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;

// A file of the directory, or what a GGUF file has for it; nullopt if there is none.
absl::StatusOr<std::optional<std::string>> ReadDocument(const std::string& model_dir,
                                                        absl::string_view document,
                                                        size_t max_bytes) {
  if (gguf::IsGguf(model_dir)) return gguf::ReadDocument(model_dir, document);
  const std::string path = gguf::DocumentName(model_dir, document);
  if (!FileExists(path)) return std::nullopt;
  return ReadFile(path, max_bytes);
}

absl::Status ReadGeneration(const std::string& model_dir, absl::string_view overrides,
                            ModelConfig* model) {
  constexpr absl::string_view kDocument = "generation_config.json";
  BATON_ASSIGN_OR_RETURN(const auto text, ReadDocument(model_dir, kDocument, kMaxConfigBytes));
  return ReadGenerationConfig(text, gguf::DocumentName(model_dir, kDocument), overrides, model);
}

absl::Status ReadTokenizer(const std::string& model_dir, ModelConfig* model) {
  constexpr absl::string_view kDocument = "tokenizer.json";
  model->token_count = model->vocab_size;
  BATON_ASSIGN_OR_RETURN(const auto text, ReadDocument(model_dir, kDocument, kMaxTokenizerBytes));
  if (!text) return absl::OkStatus();
  const std::string path = gguf::DocumentName(model_dir, kDocument);
  BATON_ASSIGN_OR_RETURN(model->token_count, CountTokens(*text, path));
  if (model->token_count > model->vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": model.vocab and added_tokens: found ids up to ", model->token_count - 1,
        ", expected ids below config.json's vocab_size (", model->vocab_size, ")"));
  }
  model->tokenizer_fingerprint = HashBytes(*text);
  return absl::OkStatus();
}

// attention_bias means a bias on q, k, v and o in Transformers; checkpoints that leave o's out are
// the ones that can be served, unless the architecture has one.
absl::Status CheckBiases(const JsonFields& config, const Checkpoint& checkpoint,
                         const ModelConfig& model) {
  const TensorNames names(model, checkpoint);
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const int layer = names.LayerOf(name);
    if (layer < 0 || static_cast<size_t>(layer) >= model.layers.size()) continue;
    const char* key = absl::EndsWith(name, ".self_attn.o_proj.bias") ? "attention_bias"
                      : absl::StrContains(name, ".mlp.") && absl::EndsWith(name, ".bias")
                          ? "mlp_bias"
                          : nullptr;
    if (key != nullptr && absl::EndsWith(name, ".mlp.router.bias")) {
      const auto* experts = model.layers[static_cast<size_t>(layer)].BodyOrNull<ExpertsSpec>();
      if (experts != nullptr && experts->router.bias) continue;
    }
    const AttentionSpec* attention = model.layers[static_cast<size_t>(layer)].attention_or_null();
    const bool of_output = key != nullptr && absl::StrContains(name, "o_proj");
    if (of_output && attention != nullptr && attention->output.bias) continue;
    if (key == nullptr || IsZeroBias(checkpoint, name)) continue;
    return config.Unsupported(key, absl::StrCat("found tensor ", json::Quoted(name), " in ",
                                                tensor.file->path(), ", expected none"));
  }
  return absl::OkStatus();
}

// All but what the weights say.
absl::StatusOr<ModelConfig> FromFiles(const std::string& model_dir, const JsonFields& config,
                                      absl::string_view generation_overrides = "") {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ParseConfig(config));
  BATON_RETURN_IF_ERROR(CheckEosTokenIds(config, model));
  BATON_RETURN_IF_ERROR(ReadGeneration(model_dir, generation_overrides, &model));
  BATON_RETURN_IF_ERROR(ReadTokenizer(model_dir, &model));
  BATON_ASSIGN_OR_RETURN(model.embeddings, ReadEmbeddingSpec(model_dir));
  return model;
}

constexpr absl::string_view kConfig = "config.json";

// As in Transformers, an LM head that is not the embedding counts, whatever the config says. Where
// there is none, the config of a model for texts and images decides, and not that of its text part.
absl::Status FindLmHead(const JsonFields& config, const Checkpoint& checkpoint,
                        ModelConfig* model) {
  const TensorNames names(*model, checkpoint);
  const StoredTensor* head = checkpoint.Find(absl::StrCat(names.own_lm_head(), ".weight"));
  const StoredTensor* embedding = checkpoint.Find(absl::StrCat(names.embedding(), ".weight"));
  const bool quantized = checkpoint.Find(absl::StrCat(names.own_lm_head(), ".qweight")) != nullptr;
  if (head == nullptr && !quantized && model->nested) {
    BATON_ASSIGN_OR_RETURN(model->tied_embeddings, config.Bool("tie_word_embeddings", true));
  }
  if (quantized) model->tied_embeddings = false;
  // It may be saved without a head, which no embedding needs.
  if (head == nullptr && !quantized && model->embeddings) model->tied_embeddings = true;
  if (head == nullptr || embedding == nullptr || !model->tied_embeddings) return absl::OkStatus();
  if (head->entry->shape != embedding->entry->shape) {
    return absl::InvalidArgumentError(absl::StrCat(head->file->path(), ": ", head->entry->name,
                                                   ": found shape ", ShapeText(head->entry->shape),
                                                   ", expected the embedding's ",
                                                   ShapeText(embedding->entry->shape)));
  }
  BATON_RETURN_IF_ERROR(head->file->CheckUnchanged());
  BATON_RETURN_IF_ERROR(embedding->file->CheckUnchanged());
  if (head->entry->dtype == embedding->entry->dtype &&
      head->file->Bytes(*head->entry) == embedding->file->Bytes(*embedding->entry)) {
    return absl::OkStatus();
  }
  BATON_LOG(Warning) << checkpoint.path() << ": found " << head->entry->name
                     << " with other values than the embedding, though " << kConfig
                     << " says that they are tied: the LM head is used";
  model->tied_embeddings = false;
  return absl::OkStatus();
}

// Divides the frequencies by the factors of a GGUF file, as llama.cpp does.
absl::Status ApplyRopeFactors(const Checkpoint& checkpoint, ModelConfig* model) {
  const StoredTensor* stored =
      checkpoint.is_gguf() ? checkpoint.Find(gguf::kRopeFactorsName) : nullptr;
  if (stored == nullptr || model->ropes_have_factors) return absl::OkStatus();
  if (model->ropes.size() != 1 || model->original_positions > 0) {
    return absl::UnimplementedError(absl::StrCat(checkpoint.path(), ": ", gguf::kRopeFactorsName,
                                                 ": found one, expected none in ",
                                                 model->architecture));
  }
  std::vector<double>& frequencies = model->ropes[0].inverse_frequencies;
  const TensorEntry& entry = *stored->entry;
  const std::string place = absl::StrCat(checkpoint.path(), ": ", gguf::kRopeFactorsName);
  if (entry.shape != std::vector<uint64_t>{frequencies.size()} ||
      entry.weight_dtype != backend::DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": found ", entry.dtype, " ",
                                                   ShapeText(entry.shape), ", expected F32 [",
                                                   frequencies.size(), "]"));
  }
  std::vector<float> factors(frequencies.size());
  ToF32(stored->file->Bytes(entry).data(), backend::DType::kF32, factors.size(), factors.data());
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!(factors[i] > 0 && std::isfinite(factors[i]))) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, "[", i, "]: found ", factors[i], ", expected a positive number"));
    }
    frequencies[i] /= factors[i];
  }
  return absl::OkStatus();
}

}  // namespace

bool PinPositions(int max_positions, ModelConfig* model) {
  if (model->original_positions == 0 || max_positions <= model->original_positions) return false;
  model->ropes[0].inverse_frequencies = model->long_inverse_frequencies;
  return true;
}

bool IsOfMtpHead(const ModelConfig& model, absl::string_view tensor) {
  return model.mtp != nullptr && absl::StartsWith(tensor, model.mtp->prefix);
}

ModelConfig MtpHeadConfig(const ModelConfig& model) {
  BATON_CHECK(model.mtp != nullptr);
  ModelConfig head = model;
  head.layers = {model.mtp->layer};
  head.final_norm = model.mtp->final_norm;
  head.is_mtp_head = true;
  return head;
}

std::string ConfigName(const std::string& model_dir) {
  return gguf::DocumentName(model_dir, kConfig);
}

absl::StatusOr<json::Value> ReadConfigJson(const std::string& model_dir) {
  const std::string path = ConfigName(model_dir);
  if (!gguf::IsGguf(model_dir)) {
    BATON_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigBytes));
    return json::Parse(SpellInfinities(text), path);
  }
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<gguf::File> file, gguf::File::Open(model_dir));
  BATON_ASSIGN_OR_RETURN(const std::string text, GgufConfigJson(*file));
  return json::Parse(text, path);
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model_dir) {
  BATON_ASSIGN_OR_RETURN(const json::Value document, ReadConfigJson(model_dir));
  BATON_ASSIGN_OR_RETURN(const JsonFields fields,
                         JsonFields::Make(document, ConfigName(model_dir)));
  return FromFiles(model_dir, fields);
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir,
                                            absl::string_view generation_overrides) {
  BATON_ASSIGN_OR_RETURN(const json::Value document, ReadConfigJson(model_dir));
  BATON_ASSIGN_OR_RETURN(const JsonFields fields,
                         JsonFields::Make(document, ConfigName(model_dir)));
  BATON_ASSIGN_OR_RETURN(ModelConfig model, FromFiles(model_dir, fields, generation_overrides));
  BATON_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model_dir));
  BATON_RETURN_IF_ERROR(FindLmHead(fields, checkpoint, &model));
  BATON_RETURN_IF_ERROR(CheckBiases(fields, checkpoint, model));
  BATON_RETURN_IF_ERROR(ApplyRopeFactors(checkpoint, &model));
  BATON_RETURN_IF_ERROR(FindQuantizedMatrices(checkpoint, &model));
  // A copy of a model may have lost its head, or have it in a form that is not read: then it has
  // none.
  if (const std::shared_ptr<const MtpSpec> mtp = model.mtp) {
    const auto has = [&](absl::string_view prefix, TensorName name) {
      const std::string weight = absl::StrCat(prefix, name.hugging_face, ".weight");
      return checkpoint.Find(weight) != nullptr;
    };
    if (!has(mtp->prefix, mtp->input.parts.front().name) ||
        !has(mtp->layer_prefix, mtp->layer.attention().output.parts.front().name)) {
      model.mtp = nullptr;
    }
  }
  const StoredTensor* embedding =
      checkpoint.Find(absl::StrCat(TensorNames(model, checkpoint).embedding(), ".weight"));
  if (!fields.Has("dtype") && !fields.Has("torch_dtype") && embedding != nullptr &&
      embedding->entry->weight_dtype) {
    model.weight_dtype = *embedding->entry->weight_dtype;
  }
  FingerprintBuilder fingerprint;
  fingerprint.AddText(json::CanonicalText(document));
  fingerprint.AddNumber(model.tokenizer_fingerprint);
  fingerprint.AddNumber(checkpoint.Fingerprint());
  if (model.embeddings) fingerprint.AddText(model.embeddings->normalize ? "normalized" : "embeds");
  model.fingerprint = fingerprint.Take();
  return model;
}

}  // namespace baton::model
