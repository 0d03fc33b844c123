// What the architectures' files share: how a decoder-only model's config.json becomes its
// description. An architecture begins with ReadDense and changes what differs.
#ifndef BATON_COMMON_MODEL_ARCHITECTURES_READING_H_
#define BATON_COMMON_MODEL_ARCHITECTURES_READING_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/json_fields.h"
#include "common/model/model_config.h"
#include "common/model/rope.h"

namespace baton::model {

// What the class in Transformers assumes where config.json lacks a key.
struct ClassDefaults {
  bool tied_embeddings = false;
  std::optional<int> head_dim = {};  // else hidden_size / num_attention_heads
  std::optional<int> kv_heads = {};  // else num_attention_heads
  bool attention_bias = false;
  std::optional<int> max_positions = {};  // else the key is required
  std::optional<int> vocab_size = {};     // likewise
  std::optional<int> query_heads = {};    // likewise
  std::optional<double> norm_eps = {};    // likewise
  std::optional<int> layers = {};         // likewise
  std::optional<int> ffn_dim = {};        // likewise
  // The key of the activation, and what it is where the config has none. Values: those that mean
  // SiLU, GELU's approximation by tanh, or the squared ReLU, with which an MLP has no gate.
  absl::string_view activation_key = "hidden_act";
  absl::string_view activation = "silu";
  absl::string_view ffn_key = "intermediate_size";
};

inline constexpr absl::string_view kSquaredRelu = "relu2";

// The fields that all architectures have, with layers like Llama's, all alike: a norm before each
// sublayer, full attention, and an MLP. `ropes` stays empty: see SetRope.
absl::StatusOr<ModelConfig> ReadDense(const JsonFields& config, const ClassDefaults& defaults);

// One rotation for all layers.
absl::Status SetRope(const JsonFields& config, RopeRequest request, ModelConfig* model);
// The same, for RopeRequest of the model.
absl::Status SetRope(const JsonFields& config, ModelConfig* model);
RopeRequest RopeRequestOf(const ModelConfig& model);
// Adds a rotation and returns its index.
int AddRope(const Rope& rope, ModelConfig* model);

// One rotation for layers that see everything, another one for layers with a window.
absl::Status SetRopesByWindow(const JsonFields& config, RopeRequest full, RopeRequest sliding,
                              ModelConfig* model);

// Sets the windows of the layers from layer_types or, where a config has none, from
// `slides_by_default` of the layer's index. With window 0 all layers see everything.
absl::Status SetWindows(const JsonFields& config, int window,
                        absl::FunctionRef<bool(int layer)> slides_by_default, ModelConfig* model);
// UNIMPLEMENTED unless layer_types, where a config has them, say what the layers do.
absl::Status CheckLayerTypes(const JsonFields& config, const ModelConfig& model);

// Whether each layer is recurrent: from layer_types, where `recurrent` is the name of those that
// are, or where a config has none from `by_default` of the layer's index.
absl::StatusOr<std::vector<bool>> ReadRecurrentLayers(
    const JsonFields& config, size_t layers, absl::string_view recurrent,
    absl::FunctionRef<bool(int layer)> by_default);
inline constexpr absl::string_view kLinearAttention = "linear_attention";
// A multiple of `step`, which the operations of recurrent layers expect: UNIMPLEMENTED otherwise.
absl::StatusOr<int> ReadMultiple(const JsonFields& config, absl::string_view key, int step,
                                 int highest, int if_absent);
// Makes Mamba 2 of the sizes in `mamba`: its products, which have biases if `biased`, and tensors,
// under these names in safetensors files.
struct StateSpaceNames {
  const char *conv, *in, *decay, *step_bias, *skip, *norm, *output;
};
void SetStateSpace(const StateSpaceNames& names, bool biased, const ModelConfig& model,
                   RecurrentSpec* mamba);
// UNIMPLEMENTED unless the key is absent or 1.
absl::Status ExpectOne(const JsonFields& config, absl::string_view key);
// UNIMPLEMENTED unless the key is absent or has the expected text.
absl::Status ExpectText(const JsonFields& config, absl::string_view key,
                        absl::string_view expected);

// Gives the MLP another size, and its matrices these names. An MLP without a gate ignores the
// gate's.
struct MlpNames {
  TensorName gate, up, down;
};
void SetMlp(int ffn_dim, const MlpNames& names, MlpSpec* mlp);

// Experts in place of the MLPs of the layers for which `has_experts`, of which a token takes
// num_experts_per_tok, which replaces routing.per_token.
struct ExpertNames {
  absl::string_view ffn_key;          // of their intermediate size
  TensorName router, gate, up, down;  // those of MlpNames have a *
  absl::string_view count_key = "";   // else num_experts or num_local_experts
};
absl::Status AddExperts(const JsonFields& config, const ExpertNames& names,
                        backend::ExpertRouting routing,
                        absl::FunctionRef<bool(int layer)> has_experts, ModelConfig* model);

// Latent attention (LatentSpec) in place of what ReadDense has made of the config, with one
// rotation for all layers. REQUIRES: ReadDense was called with LatentDefaults.
absl::Status SetLatentAttention(const JsonFields& config, ModelConfig* model);
absl::StatusOr<ClassDefaults> LatentDefaults(const JsonFields& config, ClassDefaults defaults);

// Norms behind the attention and the MLP, under the names of Gemma, OLMo 2 and EXAONE 4 (which
// differ in the norms before them only).
void AddPostNorms(ModelConfig* model);
void RemoveNormsBefore(ModelConfig* model);
// Norms of q and k: of each head, or of all heads together.
void AddQkNorms(bool all_heads, ModelConfig* model);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_ARCHITECTURES_READING_H_
