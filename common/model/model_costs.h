// The bytes and operations of a model, which bound any engine's times from below. Needs config.json
// only, and covers architectures that the engine does not serve.
#ifndef BATON_COMMON_MODEL_MODEL_COSTS_H_
#define BATON_COMMON_MODEL_MODEL_COSTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/backend/tensor.h"
#include "common/base/expert_choice.h"
#include "common/model/device_memory.h"
#include "common/model/json_fields.h"
#include "common/model/model_config.h"

namespace baton::model {

// `*_elements` count matrix elements stored in the weight format, except where noted.
struct LayerCosts {
  int64_t attention_elements = 0;
  int64_t ffn_elements =
      0;  // used by every token: shared experts, too, and the gate that picks experts
  int64_t expert_elements = 0;  // of one routed expert
  int experts = 0;
  int experts_per_token = 0;
  bool experts_on_host = false;  // a GPU copies those that a step needs from the host's memory
  int64_t vector_elements = 0;   // norms and biases, float32
  int64_t kv_elements = 0;       // read per cached token; MLA: the latent and the rotated key
  bool kv_of_another = false;    // it stores none of them
  bool last_token_only = false;  // of a prompt: behind the last layer that writes KV or a state
  int64_t pair_flops = 0;        // per query token and token that it sees, all heads
  int window = 0;                // 0: full attention
  // Of recurrent layers: the state of a sequence, float32, and operations of a token with it.
  int64_t state_elements = 0;
  int64_t state_flops = 0;

  ExpertChoice choice() const { return {experts, experts_per_token}; }
  int64_t matrix_elements() const {
    return attention_elements + ffn_elements + experts * expert_elements;
  }
};

struct ModelCosts {
  std::string architecture;
  std::string attention;  // "MHA", "GQA", "MQA" or "MLA", for people
  int64_t hidden_dim = 0;
  int64_t vocab_size = 0;
  int max_positions = 0;
  bool tied_embeddings = false;
  backend::DType weight_dtype = backend::DType::kF32;  // kF32 where unknown
  std::vector<LayerCosts> layers;

  // The parts of LayerInputsSpec: its table, of which a token reads one row, its projection, and
  // its norm.
  int64_t input_table_elements = 0;
  int64_t input_elements = 0;
  int64_t input_norm_elements = 0;

  int64_t parameters() const;   // a tied embedding counted once
  int64_t kv_elements() const;  // stored
};

// experts_on_host: as LoadWeights'.
ModelCosts CostsOf(const ModelConfig& config, int experts_on_host = 0);

// Reads a config.json that ParseConfig refuses as UNIMPLEMENTED: GQA or MLA (kv_lora_rank), dense
// or with experts (DeepSeek's, Qwen's and Mixtral's names). Ignores sliding windows, so KV bytes
// and attention operations of such models may be overestimated: they are no floor there.
absl::StatusOr<ModelCosts> ParseCosts(const JsonFields& config);
// Reads bits and group_size of quantization_config; nothing is quantised without one.
absl::StatusOr<WeightFormat> ParseWeightFormat(const JsonFields& config);

struct StepBytes {
  double weights = 0;
  double kv = 0;  // and states, read and written
  // What crosses the link from the host's memory: experts, which `weights` has, too, because they
  // are read again from the device's.
  double host = 0;
  double total() const { return weights + kv; }
};
// Returns the least that one decode step reads: every matrix and vector once (of routed experts,
// those that `batch` tokens are expected to choose with equal probabilities), the LM head, and each
// sequence's KV of `context` tokens. activation: the type of KV and of matrices that are not
// quantised.
StepBytes DecodeStepBytes(const ModelCosts& costs, const WeightFormat& format,
                          backend::DType activation, double kv_element_bytes, int batch,
                          int64_t context);
// Counts multiplications and additions separately.
double DecodeStepFlops(const ModelCosts& costs, int batch, int64_t context);
// Operations for a prompt of `tokens` tokens, the first `cached` of which are in the cache: matrix
// multiplies, causal attention, and, for the last token, the LM head and the layers behind the last
// one that writes.
double PrefillFlops(const ModelCosts& costs, int64_t tokens, int64_t cached = 0);

// Bytes of a 16-bit or quantised matrix element, its share of scales and zero points included.
double BytesPerElement(const WeightFormat& format, backend::DType activation);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_MODEL_COSTS_H_
