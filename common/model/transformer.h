// A decoder-only transformer of a Hugging Face directory: one forward pass over a list of layer
// specs.
#ifndef BATON_COMMON_MODEL_TRANSFORMER_H_
#define BATON_COMMON_MODEL_TRANSFORMER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/model/model_config.h"

namespace baton::model {

// Called, in layer order, when a layer's KV of this step has been enqueued; the chunk may be read
// once `event` is done. Runs on the loop thread, within the step: return quickly.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  virtual void OnLayerWritten(int layer, std::shared_ptr<const backend::Event> event) = 0;
};

struct TransformerOptions {
  int max_batch_tokens = 0;  // rows of the largest step; workspaces are made for it at load
  int max_logit_rows = 0;    // logits in memory at once; a step may want those of more rows
  int max_positions = 0;     // RoPE tables; at most the config's max_position_embeddings
  // Called with the share of the weights that is loaded, 0 to 1; may be empty.
  std::function<void(double)> progress = nullptr;
};

// Thread: as Backend. The backend must outlive it.
class Transformer {
 public:
  // NOT_FOUND, INVALID_ARGUMENT or UNIMPLEMENTED with a message that names the file and the field
  // or tensor: files are untrusted.
  static absl::StatusOr<std::unique_ptr<Transformer>> Load(const std::string& model_dir,
                                                           const ModelConfig& config,
                                                           const TransformerOptions& options,
                                                           backend::Backend& backend);
  virtual ~Transformer() = default;

  // Computes the batch's rows, writing their K and V to `pool`. Returns logits f32
  // [logit_rows, vocab_size] in device memory, valid until the next call; of the first
  // max_logit_rows if there are more.
  virtual backend::Tensor Forward(const backend::RaggedBatch& batch, const backend::KvPool& pool,
                                  LayerObserver* observer) = 0;
  // The logits of the last step's logit rows from `first` on: 1 to max_logit_rows of them.
  // REQUIRES: the step had more than max_logit_rows; 0 <= first < their number.
  virtual backend::Tensor MoreLogits(int first) = 0;
  // Runs steps of every kind that the backend records, so that no request waits for a recording.
  // Overwrites the pool's blocks. REQUIRES: the pool holds no KV that is still needed.
  virtual void WarmUp(const backend::KvPool& pool) = 0;
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_TRANSFORMER_H_
