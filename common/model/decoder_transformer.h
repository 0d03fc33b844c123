// The one Transformer. Private to this library.
#ifndef BATON_COMMON_MODEL_DECODER_TRANSFORMER_H_
#define BATON_COMMON_MODEL_DECODER_TRANSFORMER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "common/model/transformer.h"
#include "common/model/weights.h"
#include "common/model/workspace.h"

namespace baton::model {

class DecoderTransformer final : public Transformer {
 public:
  DecoderTransformer(const ModelConfig& config, const TransformerOptions& options,
                     backend::Backend& backend)
      : config_(config), options_(options), backend_(backend) {}
  // Work that is still enqueued reads the weights and workspaces.
  ~DecoderTransformer() override { AwaitLastStep(); }

  // `model`: whose embedding and LM head an MTP head uses; else null.
  absl::Status Load(const Checkpoint& checkpoint, const DecoderTransformer* model = nullptr);
  backend::Tensor Forward(const backend::RaggedBatch& batch, const backend::KvPool& pool,
                          LayerObserver* observer, absl::Span<const float> hidden_before) override;
  backend::Tensor MoreLogits(int first) override;
  backend::Tensor HiddenStates(int first) override;
  void WarmUp(const backend::KvPool& pool) override;

 private:
  // Rows whose attention and feed-forward are computed, and where their state is.
  struct Rows {
    const backend::DeviceBatch* batch;
    int64_t count;
    backend::Tensor residual;  // f32 [count, d]
    backend::Tensor q;         // f32 [count, Hq h]
    backend::Tensor inputs;    // f32 [count, LayerInputsSpec::columns()]
  };

  absl::Status AllocateWorkspaces();
  // All products of the largest step.
  void TuneProducts();
  // The inputs of an MTP head's layer: residual, which has the embeddings, becomes MtpSpec's x.
  // delta_ has the hidden states.
  void MixHidden(const Rows& rows);
  void CheckBatch(const backend::RaggedBatch& batch, const backend::KvPool& pool) const;
  void AwaitLastStep();
  // The batch on the device, and the rows of the step's tensors. Recorded steps have padding.
  int64_t Upload(const backend::RaggedBatch& batch, bool may_record, bool* records);
  // What the last sublayer has left in delta_, to be added to the residual; null: nothing.
  struct Pending {
    const SublayerSpec* sublayer = nullptr;
    const SublayerWeights* weights = nullptr;
  };
  backend::NormArgs ArgsOf(const Rows& rows, const Pending& pending);
  // The arguments of the norm that adds what is pending, and norms the residual (unless `weight` is
  // null) into the rows of normed_. The caller runs it, or hands it to the product that reads them.
  backend::NormArgs NormOf(const Rows& rows, const Pending& pending, const backend::Buffer* weight);
  // Runs that norm, and returns those rows.
  backend::Tensor AddAndNorm(const Rows& rows, const Pending& pending,
                             const backend::Buffer* weight);
  // The last product of a sublayer, `pending`. The backend adds it to the residual, which leaves
  // nothing pending, or it is left in delta_.
  void FinishSublayer(const backend::Tensor& x, const ProductWeights& product, const Rows& rows,
                      Pending& pending);
  // What LatentSpec says of WriteKv and Attend.
  void WriteLatentKv(int layer, const AttentionSpec& spec, const AttentionWeights& weights,
                     const backend::NormArgs& norm, const Rows& rows, const backend::KvPool& pool);
  // The heads' values in the activations' type, from attended latents [rows, heads * rank].
  backend::Tensor ExpandValues(const AttentionSpec& spec, const LatentWeights& weights,
                               const backend::Tensor& attended);
  // The layers' own embeddings of all rows, whose residual is the model's embedding.
  void EmbedInputs(const Rows& rows);
  // `layer`: the first chunk of the KV. q, k and v of all rows, for Backend::RopeWriteKv. REQUIRES:
  // no latent attention.
  backend::RopeWriteArgs MakeHeads(int layer, const AttentionSpec& spec,
                                   const AttentionWeights& weights, const backend::NormArgs& norm,
                                   const Rows& rows, const backend::KvPool& pool);
  // The same, and k and v go to the pool, unless they are another layer's.
  void WriteKv(int layer, const AttentionSpec& spec, const AttentionWeights& weights,
               const backend::NormArgs& norm, const Rows& rows, const backend::KvPool& pool);
  // These end with FinishSublayer. write: what MakeHeads returned, if the KV is not written yet; or
  // null.
  void Attend(int layer, const AttentionSpec& spec, const AttentionWeights& weights,
              const Rows& rows, const backend::KvPool& pool, const backend::RopeWriteArgs* write,
              Pending& pending);
  void FeedForward(const MlpSpec& spec, const MlpWeights& weights, const backend::NormArgs& norm,
                   const Rows& rows, Pending& pending);
  // These leave their result in delta_.
  // `layer`: among the recurrent ones.
  void Recur(int layer, const RecurrentSpec& spec, const RecurrentWeights& weights,
             const backend::Tensor& normed, const Rows& rows, const backend::KvPool& pool);
  // out (activations' type) = the recurrence of RecurrentSpec behind its convolution.
  void Combine(int layer, const RecurrentSpec& spec, const RecurrentWeights& weights,
               const backend::Tensor& normed, const backend::Tensor& in, const Rows& rows,
               const backend::KvPool& pool, const backend::Tensor& out);
  // Experts that all rows share. scale: MlpWeights' or ExpertsWeights'. result_gate:
  // ExpertsSpec::shared_gate, or null.
  void ShareExperts(const MlpSpec& spec, const MlpWeights& weights, float scale,
                    const backend::Tensor& normed, const Rows& rows,
                    const ProductWeights* result_gate);
  void UseInput(const LayerInputSpec& spec, const LayerInputWeights& weights,
                const backend::Tensor& normed, const Rows& rows);
  void MixExperts(const ExpertsSpec& spec, const ExpertsWeights& weights,
                  const backend::Tensor& normed, const Rows& rows);
  // The norms of ExpertsBesideSpec but the last one: of what the MLP gave, in place, and of the
  // residual, into what the experts read and what their router reads.
  void NormBeside(const ExpertsWeights& weights, const Rows& rows, const backend::Tensor& of_mlp,
                  const backend::Tensor& normed, const backend::Tensor& router_x);
  // out = x times a product's matrix, and its bias.
  void Project(const backend::Tensor& x, const ProductWeights& product,
               const backend::Tensor& out) {
    backend_.MatMul(x, *product.matrix, product.bias.get(), out);
  }
  // All of the step but its uploads: of `count` rows, of which KeepLogitRows keeps some. `many`:
  // more logit rows than logits_ holds, for MoreLogits.
  void Enqueue(const backend::RaggedBatch& batch, const backend::KvPool& pool, int64_t count,
               bool many, LayerObserver* observer);
  // Adds what is pending to the residual, and nothing else.
  void Add(const Rows& rows, const Pending& pending);
  // The rows whose logits are wanted, as a batch of single tokens, with residual and, unless they
  // are empty, q and inputs gathered.
  Rows KeepLogitRows(const backend::RaggedBatch& batch, const Rows& all);
  // How many of the last step's logit rows from `first` on lie one behind the other in normed_, if
  // it has more than logits_ holds.
  int64_t Neighbours(int first) const;
  backend::Tensor LogitsView(int64_t count);
  backend::Tensor NormedView(int64_t first, int64_t count);
  // lm_head of `count` rows of normed_.
  backend::Tensor LogitsOfNormed(int64_t first, int64_t count);

  const ModelConfig config_;
  const TransformerOptions options_;
  backend::Backend& backend_;
  Weights weights_;
  const Weights* vocabulary_ = &weights_;  // those with the embedding and the LM head
  std::vector<std::unique_ptr<backend::RopeTable>> ropes_;

  // Their shapes are those of Workspaces.
  Workspace residual_, normed_, qkv_, q_, q_up_, attended_, delta_, gate_up_, gated_;
  Workspace convolved_, steps_, recurred_, inputs_;
  Workspace expert_logits_, expert_inputs_, expert_results_;
  Workspace logit_residual_, logit_q_, logit_inputs_, logits_;

  // The last step's logit rows, if it has more than logits_ holds: normed_ has them all.
  std::vector<int32_t> many_logit_rows_;

  int logit_row_count_ = 0;        // of the last step
  backend::Tensor last_residual_;  // of its rows, as they are in normed_

  // These belong to the last step, which the device may still be reading.
  std::unique_ptr<backend::DeviceBatch> all_rows_;
  std::unique_ptr<backend::DeviceBatch> logit_rows_;
  std::unique_ptr<backend::Event> step_end_;

  // It is null where the backend has none. Its steps are of one pool.
  std::unique_ptr<backend::StepRecorder> recorder_;
  const std::byte* recorded_pool_ = nullptr;
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_DECODER_TRANSFORMER_H_
