#include "common/model/transformer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/model/checkpoint.h"
#include "common/model/device_memory.h"
#include "common/model/weights.h"

namespace baton::model {
namespace {

using backend::DType;
using backend::Tensor;

// Device memory for a tensor of the largest step.
class Workspace {
 public:
  absl::Status Allocate(const Workspaces::Shape& shape, backend::Backend& backend) {
    if (shape.rows == 0) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(memory_, backend.Allocate(static_cast<size_t>(shape.size_bytes())));
    capacity_ = shape.rows * shape.cols;
    dtype_ = shape.dtype;
    return absl::OkStatus();
  }
  // Empty where the backend does without the workspace.
  Tensor View(int64_t rows, int64_t cols) const {
    if (memory_ == nullptr) return {};
    BATON_CHECK_LE(rows * cols, capacity_);
    return {memory_->data(), dtype_, rows, cols, cols};
  }

 private:
  std::unique_ptr<backend::Buffer> memory_;
  int64_t capacity_ = 0;
  DType dtype_ = DType::kF32;
};

class DenseTransformer final : public Transformer {
 public:
  DenseTransformer(const ModelConfig& config, const TransformerOptions& options,
                   backend::Backend& backend)
      : config_(config), options_(options), backend_(backend) {}
  // Work that is still enqueued reads the weights and workspaces.
  ~DenseTransformer() override { AwaitLastStep(); }

  absl::Status Load(const Checkpoint& checkpoint);
  Tensor Forward(const backend::RaggedBatch& batch, const backend::KvPool& pool,
                 LayerObserver* observer) override;
  Tensor MoreLogits(int first) override;
  void WarmUp(const backend::KvPool& pool) override;

 private:
  // Rows whose attention and feed-forward are computed, and where their state is.
  struct Rows {
    const backend::DeviceBatch* batch;
    int64_t count;
    Tensor residual;  // f32 [count, d]
    Tensor q;         // f32 [count, Hq h]
  };

  absl::Status AllocateWorkspaces();
  // All products of the largest step.
  void TuneProducts();
  void CheckBatch(const backend::RaggedBatch& batch, const backend::KvPool& pool) const;
  void AwaitLastStep();
  // The batch on the device, and the rows of the step's tensors. Recorded steps have padding.
  int64_t Upload(const backend::RaggedBatch& batch, bool may_record, bool* records);
  // Norm, q, k and v of all rows; k and v go to the pool.
  void WriteKv(int layer, const Rows& rows, const backend::KvPool& pool);
  // Attention, output, norm and feed-forward; leaves what is to be added to the residual in delta_.
  void AttendAndFeedForward(int layer, const Rows& rows, const backend::KvPool& pool);
  // All of the step but its uploads: of `count` rows, of which KeepLogitRows keeps some. `many`:
  // more logit rows than logits_ holds, for MoreLogits.
  void Enqueue(const backend::RaggedBatch& batch, const backend::KvPool& pool, int64_t count,
               bool many, LayerObserver* observer);
  // The rows whose logits are wanted, as a batch of single tokens, with residual and q gathered.
  Rows KeepLogitRows(const backend::RaggedBatch& batch, const Rows& all);
  Tensor LogitsView(int64_t count);
  // lm_head of `count` rows of normed_.
  Tensor LogitsOfNormed(int64_t first, int64_t count);

  const ModelConfig config_;
  const TransformerOptions options_;
  backend::Backend& backend_;
  Weights weights_;
  std::unique_ptr<backend::RopeTable> rope_;

  // Their shapes are those of Workspaces.
  Workspace residual_, normed_, qkv_, q_, attended_, delta_, gate_up_, gated_;
  Workspace logit_residual_, logit_q_, logits_;

  // The last step's logit rows, if it has more than logits_ holds: normed_ has them all.
  std::vector<int32_t> many_logit_rows_;

  // These belong to the last step, which the device may still be reading.
  std::unique_ptr<backend::DeviceBatch> all_rows_;
  std::unique_ptr<backend::DeviceBatch> logit_rows_;
  std::unique_ptr<backend::Event> step_end_;

  // It is null where the backend has none. Its steps are of one pool.
  std::unique_ptr<backend::StepRecorder> recorder_;
  const std::byte* recorded_pool_ = nullptr;
};

absl::Status DenseTransformer::Load(const Checkpoint& checkpoint) {
  BATON_ASSIGN_OR_RETURN(weights_, LoadWeights(checkpoint, config_, options_.progress, backend_));
  BATON_ASSIGN_OR_RETURN(
      rope_, backend_.MakeRopeTable(config_.rope_inverse_frequencies, options_.max_positions,
                                    config_.rope_factor));
  if (absl::Status status = AllocateWorkspaces(); !status.ok()) {
    return Annotate(status,
                    absl::StrCat("workspaces for ", options_.max_batch_tokens, " batch tokens and ",
                                 options_.max_logit_rows, " logit rows"));
  }
  TuneProducts();
  recorder_ = backend_.MakeStepRecorder();
  return absl::OkStatus();
}

void DenseTransformer::TuneProducts() {
  const int64_t rows = options_.max_batch_tokens, d = config_.hidden_dim;
  std::vector<backend::MatMulUse> products;
  for (size_t layer = 0; layer < config_.layers.size(); ++layer) {
    const LayerWeights& weights = weights_.layers[layer];
    const LayerSpec& spec = config_.layers[layer];
    const Tensor normed = normed_.View(rows, d), delta = delta_.View(rows, d);
    products.push_back({normed, weights.qkv.get(), weights.qkv_bias.get(),
                        qkv_.View(rows, weights.qkv->out_features())});
    products.push_back({attended_.View(rows, weights.attention_output->in_features()),
                        weights.attention_output.get(), nullptr, delta});
    products.push_back(
        {normed, weights.gate_up.get(), nullptr, gate_up_.View(rows, 2 * int64_t{spec.ffn_dim})});
    products.push_back({gated_.View(rows, spec.ffn_dim), weights.down.get(), nullptr, delta});
  }
  const int64_t logit_rows = std::min(options_.max_logit_rows, options_.max_batch_tokens);
  Tensor logits = logits_.View(logit_rows, LogitStride(config_.vocab_size));
  logits.cols = config_.vocab_size;
  products.push_back({normed_.View(logit_rows, d), weights_.lm_head.get(), nullptr, logits});
  backend_.Tune(products);
}

absl::Status DenseTransformer::AllocateWorkspaces() {
  const Workspaces shapes =
      WorkspacesOf(config_, options_.max_batch_tokens, options_.max_logit_rows,
                   backend_.activation_dtype(), backend_.needs_gate_up());
  const std::pair<Workspace*, const Workspaces::Shape*> all[] = {
      {&residual_, &shapes.residual},
      {&normed_, &shapes.normed},
      {&qkv_, &shapes.qkv},
      {&q_, &shapes.q},
      {&attended_, &shapes.attended},
      {&delta_, &shapes.delta},
      {&gate_up_, &shapes.gate_up},
      {&gated_, &shapes.gated},
      {&logit_residual_, &shapes.logit_residual},
      {&logit_q_, &shapes.logit_q},
      {&logits_, &shapes.logits},
  };
  for (const auto& [workspace, shape] : all) {
    BATON_RETURN_IF_ERROR(workspace->Allocate(*shape, backend_));
  }
  return absl::OkStatus();
}

void DenseTransformer::CheckBatch(const backend::RaggedBatch& batch,
                                  const backend::KvPool& pool) const {
  BATON_CHECK(!batch.tokens.empty());
  BATON_CHECK_LE(batch.tokens.size(), static_cast<size_t>(options_.max_batch_tokens));
  BATON_CHECK_LE(batch.logit_rows.size(), batch.tokens.size());
  for (const backend::SequenceRows& sequence : batch.sequences) {
    BATON_CHECK_LE(sequence.context + sequence.row_count, options_.max_positions);
  }
  BATON_CHECK_EQ(pool.kv_heads, config_.layers[0].kv_heads);
  BATON_CHECK_EQ(pool.head_dim, config_.layers[0].head_dim);
}

void DenseTransformer::AwaitLastStep() {
  if (step_end_ != nullptr) step_end_->Wait();
}

void DenseTransformer::WriteKv(int layer, const Rows& rows, const backend::KvPool& pool) {
  const LayerSpec& spec = config_.layers[static_cast<size_t>(layer)];
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const int64_t d = config_.hidden_dim;
  const Tensor normed = normed_.View(rows.count, d);
  if (layer == 0) {
    backend_.RmsNorm(rows.residual, *weights.attention_norm, spec.norm_eps, normed);
  } else {
    backend_.AddRmsNorm(rows.residual, delta_.View(rows.count, d), *weights.attention_norm,
                        spec.norm_eps, normed);
  }
  const Tensor qkv = qkv_.View(rows.count, weights.qkv->out_features());
  backend_.MatMul(normed, *weights.qkv, weights.qkv_bias.get(), qkv);
  backend_.RopeWriteKv(*rows.batch, pool,
                       {.layer = layer,
                        .query_heads = spec.query_heads,
                        .qkv = qkv,
                        .q_norm = weights.q_norm.get(),
                        .k_norm = weights.k_norm.get(),
                        .norm_eps = spec.norm_eps,
                        .rope = rope_.get(),
                        .q_out = rows.q});
}

void DenseTransformer::AttendAndFeedForward(int layer, const Rows& rows,
                                            const backend::KvPool& pool) {
  const LayerSpec& spec = config_.layers[static_cast<size_t>(layer)];
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const int64_t d = config_.hidden_dim;
  const Tensor attended = attended_.View(rows.count, rows.q.cols);
  const Tensor delta = delta_.View(rows.count, d);
  const Tensor normed = normed_.View(rows.count, d);
  backend_.Attention(*rows.batch, pool,
                     {.layer = layer,
                      .query_heads = spec.query_heads,
                      .scale = spec.scale,
                      .window = spec.window,
                      .q = rows.q,
                      .out = attended});
  backend_.MatMul(attended, *weights.attention_output, nullptr, delta);
  backend_.AddRmsNorm(rows.residual, delta, *weights.ffn_norm, spec.norm_eps, normed);
  const Tensor gate_up = gate_up_.View(rows.count, 2 * int64_t{spec.ffn_dim});
  const Tensor gated = gated_.View(rows.count, spec.ffn_dim);
  backend_.MatMulSiluMul(normed, *weights.gate_up, gate_up, gated);
  backend_.MatMul(gated, *weights.down, nullptr, delta);
}

DenseTransformer::Rows DenseTransformer::KeepLogitRows(const backend::RaggedBatch& batch,
                                                       const Rows& all) {
  if (batch.logit_rows.size() == batch.tokens.size()) return all;  // and the padding, if any
  std::vector<int32_t> tokens;
  std::vector<backend::SequenceRows> sequences;
  std::vector<int32_t> rows;
  auto sequence = batch.sequences.begin();
  for (int32_t row : batch.logit_rows) {
    while (row >= sequence->first_row + sequence->row_count) ++sequence;
    const int index = static_cast<int>(rows.size());
    tokens.push_back(batch.tokens[static_cast<size_t>(row)]);
    sequences.push_back({.first_row = index,
                         .row_count = 1,
                         .context = sequence->context + row - sequence->first_row,
                         .blocks = sequence->blocks});
    rows.push_back(index);
  }
  logit_rows_ = backend_.Upload({.tokens = tokens, .sequences = sequences, .logit_rows = rows});
  const int64_t count = static_cast<int64_t>(rows.size());
  Rows kept = {.batch = logit_rows_.get(),
               .count = count,
               .residual = logit_residual_.View(count, all.residual.cols),
               .q = logit_q_.View(count, all.q.cols)};
  backend_.GatherLogitRows(*all.batch, all.residual, kept.residual);
  backend_.GatherLogitRows(*all.batch, all.q, kept.q);
  return kept;
}

int64_t DenseTransformer::Upload(const backend::RaggedBatch& batch, bool may_record,
                                 bool* records) {
  *records = false;
  all_rows_.reset();  // no more than two batches live at a time
  logit_rows_.reset();
  if (may_record) {
    backend::PaddedBatch padded = recorder_->Upload(batch);
    if (padded.batch != nullptr) {
      *records = true;
      all_rows_ = std::move(padded.batch);
      return padded.rows;
    }
  }
  all_rows_ = backend_.Upload(batch);
  return static_cast<int64_t>(batch.tokens.size());
}

void DenseTransformer::Enqueue(const backend::RaggedBatch& batch, const backend::KvPool& pool,
                               int64_t count, bool many, LayerObserver* observer) {
  const int64_t d = config_.hidden_dim;
  Rows rows = {
      .batch = all_rows_.get(), .count = count, .residual = residual_.View(count, d), .q = {}};
  if (weights_.embedding_memory != nullptr) {
    backend_.Embed(*rows.batch, weights_.embedding, rows.residual);
  } else {
    backend_.EmbedPacked(*rows.batch, *weights_.lm_head, rows.residual);
  }
  const int layer_count = static_cast<int>(config_.layers.size());
  for (int layer = 0; layer < layer_count; ++layer) {
    const LayerSpec& spec = config_.layers[static_cast<size_t>(layer)];
    rows.q = q_.View(count, int64_t{spec.query_heads} * spec.head_dim);
    WriteKv(layer, rows, pool);
    if (observer != nullptr) observer->OnLayerWritten(layer, backend_.RecordEvent());
    // Behind the last layer's KV only the logit rows matter to anyone.
    const bool is_last = layer + 1 == layer_count;
    if (is_last && !batch.logit_rows.empty() && !many) rows = KeepLogitRows(batch, rows);
    if (!is_last || !batch.logit_rows.empty()) AttendAndFeedForward(layer, rows, pool);
  }
  if (batch.logit_rows.empty()) return;
  backend_.AddRmsNorm(rows.residual, delta_.View(rows.count, d), *weights_.final_norm,
                      config_.final_norm_eps, normed_.View(rows.count, d));
  if (!many) LogitsOfNormed(0, rows.count);
}

Tensor DenseTransformer::Forward(const backend::RaggedBatch& batch, const backend::KvPool& pool,
                                 LayerObserver* observer) {
  CheckBatch(batch, pool);
  // With few rows the host's launches take longer than the device's work: such steps are repeated.
  const bool decodes = batch.logit_rows.size() == batch.tokens.size() &&
                       batch.sequences.size() == batch.tokens.size();
  if (recorded_pool_ != nullptr && recorded_pool_ != pool.base) {
    AwaitLastStep();
    recorder_ = backend_.MakeStepRecorder();
  }
  recorded_pool_ = pool.base;
  bool records = false;
  const bool many = batch.logit_rows.size() > static_cast<size_t>(options_.max_logit_rows);
  const int64_t count =
      Upload(batch, decodes && !many && observer == nullptr && recorder_ != nullptr, &records);
  many_logit_rows_.clear();
  if (records) {
    recorder_->Run(*all_rows_, [&] { Enqueue(batch, pool, count, false, nullptr); });
  } else {
    Enqueue(batch, pool, count, many, observer);
  }
  step_end_ = backend_.RecordEvent();
  if (many) {
    many_logit_rows_.assign(batch.logit_rows.begin(), batch.logit_rows.end());
    return MoreLogits(0);
  }
  return LogitsView(static_cast<int64_t>(batch.logit_rows.size()));
}

void DenseTransformer::WarmUp(const backend::KvPool& pool) {
  if (recorder_ == nullptr) return;
  for (const backend::StepRecorder::Kind& kind : recorder_->Kinds()) {
    const auto rows = static_cast<size_t>(kind.rows);
    // All rows read one block, repeated to the context's length; each writes to a separate one.
    if (kind.rows >= pool.block_count) continue;
    const std::vector<int32_t> tokens(rows);
    std::vector<int32_t> logit_rows(rows);
    std::vector<backend::SequenceRows> sequences(rows);
    std::vector<std::vector<int32_t>> blocks(rows);
    for (int row = 0; row < kind.rows; ++row) {
      const auto index = static_cast<size_t>(row);
      logit_rows[index] = row;
      blocks[index].resize(static_cast<size_t>(kind.context / pool.block_tokens + 1));
      blocks[index].back() = row + 1;
      sequences[index] = {row, 1, kind.context, blocks[index]};
    }
    backend::RaggedBatch batch;
    batch.tokens = tokens;
    batch.sequences = sequences;
    batch.logit_rows = logit_rows;
    for (int time = 0; time < 2; ++time) Forward(batch, pool, nullptr);
  }
  AwaitLastStep();
}

Tensor DenseTransformer::LogitsView(int64_t count) {
  Tensor logits = logits_.View(count, LogitStride(config_.vocab_size));
  logits.cols = config_.vocab_size;
  return logits;
}

Tensor DenseTransformer::LogitsOfNormed(int64_t first, int64_t count) {
  const Tensor logits = LogitsView(count);
  Tensor normed = normed_.View(first + count, config_.hidden_dim);
  normed.data = static_cast<std::byte*>(normed.data) +
                static_cast<size_t>(first * normed.row_stride) * SizeOf(normed.dtype);
  normed.rows = count;
  backend_.MatMul(normed, *weights_.lm_head, nullptr, logits);
  return logits;
}

Tensor DenseTransformer::MoreLogits(int first) {
  BATON_CHECK_GE(first, 0);
  BATON_CHECK_LT(static_cast<size_t>(first), many_logit_rows_.size());
  const absl::Span<const int32_t> rows =
      absl::MakeConstSpan(many_logit_rows_).subspan(static_cast<size_t>(first));
  size_t count = 1;
  while (count < rows.size() && count < static_cast<size_t>(options_.max_logit_rows) &&
         rows[count] == rows[count - 1] + 1) {
    ++count;
  }
  const Tensor logits = LogitsOfNormed(rows[0], static_cast<int64_t>(count));
  step_end_ = backend_.RecordEvent();
  return logits;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Load(const std::string& model_dir,
                                                               const ModelConfig& config,
                                                               const TransformerOptions& options,
                                                               backend::Backend& backend) {
  BATON_CHECK_GT(options.max_batch_tokens, 0);
  BATON_CHECK_GT(options.max_logit_rows, 0);
  BATON_CHECK_GT(options.max_positions, 0);
  if (options.max_positions > config.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        model_dir, "/config.json: max_position_embeddings: found ", config.max_positions,
        ", expected at least the ", options.max_positions, " positions that are asked for"));
  }
  BATON_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model_dir));
  auto transformer = std::make_unique<DenseTransformer>(config, options, backend);
  BATON_RETURN_IF_ERROR(transformer->Load(checkpoint));
  return transformer;
}

}  // namespace baton::model
