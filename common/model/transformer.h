// A decoder-only transformer, loaded from a Hugging Face directory or a GGUF file: one forward pass
// over the description of its layers (layer_spec.h).
#ifndef BATON_COMMON_MODEL_TRANSFORMER_H_
#define BATON_COMMON_MODEL_TRANSFORMER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/model/model_config.h"

namespace baton::model {

// Called, in layer order, when the writes of a layer's KV or state in this step have been enqueued;
// that layer's KV or state may be read once `event` is done. Runs on the loop thread, within the
// step: return quickly.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  // `layer`: among the layers with KV.
  virtual void OnLayerWritten(int layer, std::shared_ptr<const backend::Event> event) = 0;
  // `layer`: among the recurrent layers.
  virtual void OnStateWritten(int layer, std::shared_ptr<const backend::Event> event) {}
};

struct TransformerOptions {
  int max_batch_tokens = 0;  // rows of the largest step; workspaces are made for it at load
  int max_logit_rows = 0;    // most logit rows held at once; MoreLogits() computes the rest
  int max_positions = 0;     // positions in the RoPE tables; at most config.max_positions
  int experts_on_host = 0;   // of LoadWeights
  // Called with the share of the weights that is loaded, 0 to 1; may be empty.
  std::function<void(double)> progress = nullptr;
};

// Same threading rules as Backend. The backend must outlive the transformer.
class Transformer {
 public:
  // Returns NOT_FOUND, INVALID_ARGUMENT or UNIMPLEMENTED, with a message that names the file and
  // the field or tensor: files are untrusted.
  static absl::StatusOr<std::unique_ptr<Transformer>> Load(const std::string& model_dir,
                                                           const ModelConfig& config,
                                                           const TransformerOptions& options,
                                                           backend::Backend& backend);
  // The MTP head of the model's checkpoint, with the model's embedding and LM head. `config`:
  // MtpHeadConfig's; `backend`: the model's, or another one on its device. The model, all of whose
  // weights are loaded, must outlive it. Errors as above.
  static absl::StatusOr<std::unique_ptr<Transformer>> LoadMtpHead(const std::string& model_dir,
                                                                  const ModelConfig& config,
                                                                  const TransformerOptions& options,
                                                                  const Transformer& model,
                                                                  backend::Backend& backend);
  virtual ~Transformer() = default;

  // Computes the batch's rows, writing their K and V to `pool`. Returns the logits of the batch's
  // logit rows, of the first max_logit_rows if there are more: f32 [rows, vocab_size] in device
  // memory, valid until the next call.
  // hidden_before: of an MTP head, the hidden state of the token before each row's, [rows,
  // hidden_dim]; else empty.
  virtual backend::Tensor Forward(const backend::RaggedBatch& batch, const backend::KvPool& pool,
                                  LayerObserver* observer,
                                  absl::Span<const float> hidden_before = {}) = 0;
  // Returns the logits of 1 to max_logit_rows logit rows of the last step, from row `first` on.
  // REQUIRES: the step had n > max_logit_rows logit rows; 0 <= first < n.
  virtual backend::Tensor MoreLogits(int first) = 0;
  // Returns the hidden states of logit rows of the last step, from row `first` on, as many as lie
  // one behind the other: the final norm, from which the rows' logits were made, or what
  // MtpSpec::states_before_norm says. [1 or more, hidden_dim] in device memory, valid until the
  // next Forward. REQUIRES: the step had more than `first` logit rows.
  virtual backend::Tensor HiddenStates(int first) = 0;
  // Runs a step of every kind that the backend records (captures as a CUDA graph), so that no
  // request waits for a recording.
  // Overwrites the pool's blocks. REQUIRES: the pool holds no KV that is still needed.
  virtual void WarmUp(const backend::KvPool& pool) = 0;
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_TRANSFORMER_H_
