// The architectures: each is one file in architectures/, which describes its layers (layer_spec.h)
// from config.json, and a row of the table in architecture.cc. docs/design/adding-a-model.md.
#ifndef BATON_COMMON_MODEL_ARCHITECTURE_H_
#define BATON_COMMON_MODEL_ARCHITECTURE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/gguf_config.h"
#include "common/model/json_fields.h"
#include "common/model/model_config.h"

namespace baton::model {

struct Architecture {
  const char* name;        // of the class in Transformers, e.g. "Gemma3ForCausalLM"
  const char* model_type;  // by which Transformers chooses the class
  // Reads everything from hidden_dim to layers. UNIMPLEMENTED for anything that the forward pass
  // would compute wrongly.
  absl::StatusOr<ModelConfig> (*describe)(const JsonFields& config);
  // general.architecture in GGUF files; null: there are none, or another architecture's are meant.
  const char* gguf = nullptr;
  const char* gguf_with_experts = nullptr;  // that of files with experts, if it is another one
  // Whether GGUF files have the rows of q and k so that pairs that RoPE rotates are neighbours.
  bool gguf_pairs_rows = false;
  // Whether they may rotate a part of each head only.
  bool gguf_partial_rotary = false;
  // Whether block_count may include layers for speculation, which are left out.
  bool gguf_drafts = false;
  // Whether they may have experts, which add_gguf then reads.
  bool gguf_experts = false;
  // Whether their attention is latent (LatentSpec).
  bool gguf_latent = false;
  // How layer_types call the layers to which they give no KV heads; null: all have some.
  const char* gguf_recurrent = nullptr;
  // Whether a layer is one sublayer: its attention or its MLP may have the size 0, and add_gguf
  // says what it is.
  bool gguf_sublayers = false;
  // Whether layers may differ in their heads and in their feed-forward, and rope_freqs.weight is of
  // some of them: add_gguf reads these.
  bool gguf_mixed_layers = false;
  // Adds to config.json what GGUF files of this architecture say, and what they leave to the
  // reader, beyond that which all have; null: nothing.
  absl::Status (*add_gguf)(GgufConfig& config) = nullptr;
};

absl::Span<const Architecture* const> Architectures();
// Null if there is none. By general.architecture of a GGUF file.
const Architecture* FindGgufArchitecture(absl::string_view name);

// Fills all fields from architecture to layers, and eos_token_ids. The text part of a model for
// texts and images (…ForConditionalGeneration) is read from its text_config. weight_dtype stays
// kF32 if the config names none. UNIMPLEMENTED for anything that the forward pass would compute
// wrongly, also for keys that change it and that nothing reads (config_keys.h).
absl::StatusOr<ModelConfig> ParseConfig(const JsonFields& config);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_ARCHITECTURE_H_
