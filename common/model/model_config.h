// The configuration of a model, a Hugging Face directory or a GGUF file, checked, in one form for
// all architectures.
#ifndef BATON_COMMON_MODEL_MODEL_CONFIG_H_
#define BATON_COMMON_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/backend/backend.h"
#include "common/json/json.h"
#include "common/model/layer_spec.h"

namespace baton::model {

// How matrices of few bits are stored; see quantization.h.
struct WeightQuantization {
  enum class Format { kGptq, kAwq, kGguf, kMxfp4 };
  static constexpr int kAllColumns = -1;  // one group per row, as the files spell it
  Format format = Format::kGptq;
  int bits = 4;
  int group_size = 128;  // columns that share a scale and a zero point, or kAllColumns
  bool zeros_less_one = false;
  bool reordered = false;  // a group's columns need not be adjacent (desc_act)
  bool fp4 = false;        // values are those of MXFP4: backend::QuantizedHostMatrix
};

// Embeddings of tokens for single layers beside that of the model, `width` columns for each:
//   scale * (norm(projection_scale * projection(x)) + embedding_scale * embedding[token])
// x is the model's embedding, as it enters the first layer; each layer's columns are normed apart.
struct LayerInputsSpec {
  int width = 0;  // 0: layers have none
  int layers = 0;
  int64_t vocab_size = 0;
  TensorName embedding = {};  // [vocab_size, columns()]
  float embedding_scale = 1;
  ProductSpec projection = {};  // [columns(), d]
  float projection_scale = 1;
  NormSpec norm = {};  // [width]
  float scale = 1;

  int64_t columns() const { return int64_t{layers} * width; }
  explicit operator bool() const { return width > 0; }
};

// How a model that is made for embeddings makes one: from the last token of the text.
struct EmbeddingSpec {
  bool normalize = false;  // to length 1
};

// A head for multi-token prediction (MTP, DeepSeek-V3, arXiv 2412.19437), of one layer. Its row for
// a token, with h the model's hidden state behind its final norm (or the head's own) of the token
// before:
//   x = input(embedding_norm(embedding[token]), hidden_norm(h)), through `layer`, then final_norm
// which the model's LM head makes the logits of, for the token behind that one.
struct MtpSpec {
  // What names in safetensors files begin with: of the layer's tensors, and of the others.
  std::string layer_prefix;
  std::string prefix;
  // Copies of the model's embedding and LM head that the checkpoint may have; or none.
  const char* embedding_copy = nullptr;
  const char* lm_head_copy = nullptr;
  // The head's own hidden state, for the next draft, is that before final_norm.
  bool states_before_norm = false;
  NormSpec embedding_norm = {};
  NormSpec hidden_norm = {};
  ProductSpec input = {};  // [d, 2 d]
  LayerSpec layer = {};
  NormSpec final_norm = {};
};

struct ModelConfig {
  std::string architecture;  // e.g. "Qwen2ForCausalLM"
  int hidden_dim = 0;
  int vocab_size = 0;  // rows of the embedding
  // Ids of the tokenizer; further rows of the embedding are padding, never sampled.
  int token_count = 0;
  int max_positions = 0;  // max_position_embeddings
  bool tied_embeddings = false;
  float norm_eps = 0;  // of all norms
  float embedding_scale = 1;
  NormSpec final_norm = {};
  float logit_scale = 1;
  float logit_cap = 0;                   // 0: none; see backend::Backend::ScaleLogits
  std::vector<backend::RopeSpec> ropes;  // rope scaling applied
  bool ropes_have_factors = false;       // also those of a GGUF file, which are a tensor
  // Models whose rotation depends on the context length that they are served with (longrope): with
  // more than `original_positions` positions, `ropes` gets these frequencies. PinPositions does it.
  std::vector<double> long_inverse_frequencies;
  int original_positions = 0;
  std::vector<LayerSpec> layers;
  LayerInputsSpec inputs = {};
  // Names in safetensors files: the embedding's module, and a prefix that all tensors but the LM
  // head's may have in place of "model.", or none.
  const char* embedding_module = "embed_tokens";
  const char* other_prefix = nullptr;
  // The model is the text part of one for texts and images: tensors have other names, see
  // model_tensors.h.
  bool nested = false;
  backend::DType weight_dtype = backend::DType::kF32;  // as config.json states it
  std::optional<WeightQuantization> quantization;
  bool lm_head_quantized = false;
  bool has_blocks = false;  // some tensor is in GGUF's blocks
  // The bits of matrices that the file does not have in few bits, when they are loaded: 4 or 8 (the
  // LM head 8 in any case); 0: they are of the activations' type.
  int load_bits = 0;
  std::vector<int32_t> eos_token_ids;  // generation_config.json, else config.json
  // Defaults of generation_config.json, where present and do_sample is true, or what replaces them
  // (generation_config.h).
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;  // whether do_sample is true or not
  std::optional<int> max_new_tokens;        // the same
  std::optional<EmbeddingSpec> embeddings;  // nullopt: the model is not made for them
  // The checkpoint's MTP head, the first if it has several. Null: it has none, or one that is not
  // read, with another embedding than the model's or in few bits. ReadModelConfig sets it by
  // config.json alone.
  std::shared_ptr<const MtpSpec> mtp;
  bool loads_mtp = false;    // its tensors are read, too, though not as the model's
  bool is_mtp_head = false;  // of MtpHeadConfig
  // Hash of config.json, tokenizer.json, the headers of all weight files and a few bytes of each
  // tensor (fine-tunes of one base have equal headers): equal in all workers and routers that serve
  // one model.
  uint64_t fingerprint = 0;
  uint64_t tokenizer_fingerprint = 0;  // Tokenizer::fingerprint() of tokenizer.json
};

// Sets the rotation of a longrope model that is served with contexts of up to `max_positions`
// tokens: one for all requests, so that they can share a cached prefix. True if it is the one for
// contexts beyond the original length.
bool PinPositions(int max_positions, ModelConfig* model);

// Whether the tensor is of the model's MTP head, if that has one.
bool IsOfMtpHead(const ModelConfig& model, absl::string_view tensor);
// The config of the model's MTP head as a model of one layer, whose embedding and LM head are the
// model's. REQUIRES: model.mtp.
ModelConfig MtpHeadConfig(const ModelConfig& model);

// `model_dir` is everywhere a directory, or a GGUF file that has all of these files' content.

// How messages name the model's config.json.
std::string ConfigName(const std::string& model_dir);

// Reads config.json, without checking its fields. NOT_FOUND or INVALID_ARGUMENT; UNIMPLEMENTED for
// a GGUF file of another architecture.
absl::StatusOr<::baton::json::Value> ReadConfigJson(const std::string& model_dir);

// Reads config.json and, if present, generation_config.json and tokenizer.json (ids only), but no
// weights: no fingerprint, and weight_dtype is kF32 if config.json names none. Errors as below.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model_dir);

// Reads config.json, generation_config.json, tokenizer.json (ids only) and the weight headers of
// `model_dir`. Errors name the file and the field: NOT_FOUND, INVALID_ARGUMENT, UNIMPLEMENTED.
// `generation_overrides`: see ReadGenerationConfig.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir,
                                            absl::string_view generation_overrides = "");

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_MODEL_CONFIG_H_
