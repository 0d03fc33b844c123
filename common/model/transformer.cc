#include "common/model/transformer.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/model/checkpoint.h"
#include "common/model/device_memory.h"
#include "common/model/weights.h"
#include "common/model/workspace.h"

namespace baton::model {
namespace {

using backend::DType;
using backend::Tensor;

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
  // What the last sublayer has left in delta_, to be added to the residual; null: nothing.
  struct Pending {
    const SublayerSpec* sublayer = nullptr;
    const SublayerWeights* weights = nullptr;
  };
  // Adds what is pending, and norms the residual (unless `weight` is null) into the rows of
  // normed_, which it returns.
  Tensor AddAndNorm(const Rows& rows, const Pending& pending, const backend::Buffer* weight);
  // q, k and v of all rows; k and v go to the pool.
  void WriteKv(int layer, const AttentionSpec& spec, const AttentionWeights& weights,
               const Tensor& normed, const Rows& rows, const backend::KvPool& pool);
  // These leave their result in delta_.
  void Attend(int layer, const AttentionSpec& spec, const AttentionWeights& weights,
              const Rows& rows, const backend::KvPool& pool);
  void FeedForward(const MlpSpec& spec, const MlpWeights& weights, const Tensor& normed,
                   const Rows& rows);
  void MixExperts(const ExpertsSpec& spec, const ExpertsWeights& weights, const Tensor& normed,
                  const Rows& rows);
  // out = x times a product's matrix, and its bias.
  void Project(const Tensor& x, const ProductWeights& product, const Tensor& out) {
    backend_.MatMul(x, *product.matrix, product.bias.get(), out);
  }
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
  std::vector<std::unique_ptr<backend::RopeTable>> ropes_;

  // Their shapes are those of Workspaces.
  Workspace residual_, normed_, qkv_, q_, attended_, delta_, gate_up_, gated_;
  Workspace expert_logits_, expert_inputs_, expert_results_;
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
  for (const backend::RopeSpec& rope : config_.ropes) {
    BATON_ASSIGN_OR_RETURN(ropes_.emplace_back(),
                           backend_.MakeRopeTable(rope, options_.max_positions));
  }
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
  const auto add = [&](const Tensor& x, const ProductWeights& product, const Tensor& out) {
    products.push_back({x, product.matrix.get(), product.bias.get(), out});
  };
  const Tensor normed = normed_.View(rows, d), delta = delta_.View(rows, d);
  for (size_t layer = 0; layer < config_.layers.size(); ++layer) {
    for (size_t i = 0; i < config_.layers[layer].sublayers.size(); ++i) {
      const SublayerSpec& spec = config_.layers[layer].sublayers[i];
      const SublayerWeights& weights = weights_.layers[layer].sublayers[i];
      if (const auto* attention = std::get_if<AttentionSpec>(&spec.body)) {
        const auto& of = std::get<AttentionWeights>(weights.body);
        add(normed, of.qkv, qkv_.View(rows, attention->qkv.rows()));
        add(attended_.View(rows, attention->q_width()), of.output, delta);
      } else if (const auto* mlp = std::get_if<MlpSpec>(&spec.body)) {
        const auto& of = std::get<MlpWeights>(weights.body);
        add(normed, of.gate_up, gate_up_.View(rows, 2 * int64_t{mlp->ffn_dim}));
        add(gated_.View(rows, mlp->ffn_dim), of.down, delta);
      }
    }
  }
  const int64_t logit_rows = std::min(options_.max_logit_rows, options_.max_batch_tokens);
  Tensor logits = logits_.View(logit_rows, LogitStride(config_.vocab_size));
  logits.cols = config_.vocab_size;
  products.push_back({normed_.View(logit_rows, d), weights_.lm_head.get(), nullptr, logits});
  backend_.Tune(products);
}

absl::Status DenseTransformer::AllocateWorkspaces() {
  const Workspaces shapes = WorkspacesOf(
      config_, options_.max_batch_tokens, options_.max_logit_rows, backend_.activation_dtype(),
      {.gate_up = backend_.needs_gate_up(), .experts_at_once = backend_.experts_at_once()});
  const std::pair<Workspace*, const Workspaces::Shape*> all[] = {
      {&residual_, &shapes.residual},
      {&normed_, &shapes.normed},
      {&qkv_, &shapes.qkv},
      {&q_, &shapes.q},
      {&attended_, &shapes.attended},
      {&delta_, &shapes.delta},
      {&gate_up_, &shapes.gate_up},
      {&gated_, &shapes.gated},
      {&expert_logits_, &shapes.expert_logits},
      {&expert_inputs_, &shapes.expert_inputs},
      {&expert_results_, &shapes.expert_results},
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
}

void DenseTransformer::AwaitLastStep() {
  if (step_end_ != nullptr) step_end_->Wait();
}

Tensor DenseTransformer::AddAndNorm(const Rows& rows, const Pending& pending,
                                    const backend::Buffer* weight) {
  const Tensor normed = normed_.View(rows.count, config_.hidden_dim);
  backend::NormArgs args = {.residual = rows.residual,
                            .delta = {},
                            .weight = weight,
                            .eps = config_.norm_eps,
                            .out = normed};
  if (pending.sublayer != nullptr) {
    args.delta = delta_.View(rows.count, config_.hidden_dim);
    args.delta_scale = pending.sublayer->residual_scale;
    if (const auto* mlp = std::get_if<MlpWeights>(&pending.weights->body)) {
      args.delta_scale /= mlp->scale;
    } else if (const auto* experts = std::get_if<ExpertsWeights>(&pending.weights->body)) {
      args.delta_scale /= experts->scale;
    }
    args.delta_weight = pending.weights->norm_after.get();
  }
  backend_.Norm(args);
  return normed;
}

void DenseTransformer::WriteKv(int layer, const AttentionSpec& spec,
                               const AttentionWeights& weights, const Tensor& normed,
                               const Rows& rows, const backend::KvPool& pool) {
  BATON_CHECK_EQ(pool.kv_heads, spec.kv_heads);
  BATON_CHECK_EQ(pool.head_dim, spec.head_dim);
  const Tensor qkv = qkv_.View(rows.count, spec.qkv.rows());
  Project(normed, weights.qkv, qkv);
  const bool by_head = !spec.norms_all_heads();
  if (!by_head) {
    // In place: q's columns, then k's behind them.
    Tensor part = qkv;
    for (const auto& [width, weight] : {std::pair(spec.q_width(), weights.q_norm.get()),
                                        std::pair(spec.kv_width(), weights.k_norm.get())}) {
      part.cols = width;
      backend_.Norm(
          {.residual = part, .delta = {}, .weight = weight, .eps = config_.norm_eps, .out = part});
      part.data = static_cast<float*>(part.data) + width;
    }
  }
  backend_.RopeWriteKv(
      *rows.batch, pool,
      {.layer = layer,
       .query_heads = spec.query_heads,
       .qkv = qkv,
       .q_norm = by_head ? weights.q_norm.get() : nullptr,
       .k_norm = by_head ? weights.k_norm.get() : nullptr,
       .norm_eps = config_.norm_eps,
       .rope = spec.rope == kNoRope ? nullptr : ropes_[static_cast<size_t>(spec.rope)].get(),
       .q_out = rows.q});
}

void DenseTransformer::Attend(int layer, const AttentionSpec& spec, const AttentionWeights& weights,
                              const Rows& rows, const backend::KvPool& pool) {
  const Tensor attended = attended_.View(rows.count, rows.q.cols);
  backend_.Attention(*rows.batch, pool,
                     {.layer = layer,
                      .query_heads = spec.query_heads,
                      .scale = spec.scale,
                      .score_cap = spec.score_cap,
                      .window = spec.window,
                      .sinks = weights.sinks.get(),
                      .q = rows.q,
                      .out = attended});
  Project(attended, weights.output, delta_.View(rows.count, config_.hidden_dim));
}

void DenseTransformer::FeedForward(const MlpSpec& spec, const MlpWeights& weights,
                                   const Tensor& normed, const Rows& rows) {
  const Tensor gate_up = gate_up_.View(rows.count, 2 * int64_t{spec.ffn_dim});
  const Tensor gated = gated_.View(rows.count, spec.ffn_dim);
  backend_.MatMulGated(normed, *weights.gate_up.matrix,
                       {.activation = spec.activation, .scale = weights.scale}, gate_up, gated);
  Project(gated, weights.down, delta_.View(rows.count, config_.hidden_dim));
}

void DenseTransformer::MixExperts(const ExpertsSpec& spec, const ExpertsWeights& weights,
                                  const Tensor& normed, const Rows& rows) {
  const int64_t d = config_.hidden_dim, ffn = spec.expert.ffn_dim;
  const auto scratch =
      backend::ExpertScratch::For(rows.count, spec.routing.per_token, backend_.experts_at_once());
  backend_.Experts({.x = normed,
                    .router = weights.router.get(),
                    .router_bias = weights.router_bias.get(),
                    .routing = spec.routing,
                    .group = weights.group.get(),
                    .gating = {.activation = spec.expert.activation, .scale = weights.scale},
                    .logits = expert_logits_.View(rows.count, spec.count),
                    .inputs = expert_inputs_.View(scratch.inputs, d),
                    .gate_up_rows = gate_up_.View(scratch.inputs, 2 * ffn),
                    .gated = gated_.View(scratch.results, ffn),
                    .results = expert_results_.View(scratch.results, d),
                    .out = delta_.View(rows.count, d)});
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
    backend_.Embed(*rows.batch, weights_.embedding, config_.embedding_scale, rows.residual);
  } else {
    backend_.EmbedPacked(*rows.batch, *weights_.lm_head, config_.embedding_scale, rows.residual);
  }
  const int layer_count = static_cast<int>(config_.layers.size());
  Pending pending;
  for (int layer = 0; layer < layer_count; ++layer) {
    const LayerSpec& spec = config_.layers[static_cast<size_t>(layer)];
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    for (size_t i = 0; i < spec.sublayers.size(); ++i) {
      const SublayerSpec& sublayer = spec.sublayers[i];
      const SublayerWeights& of = weights.sublayers[i];
      const Tensor normed = AddAndNorm(rows, pending, of.norm_before.get());
      pending = {&sublayer, &of};
      if (const auto* mlp = std::get_if<MlpSpec>(&sublayer.body)) {
        FeedForward(*mlp, std::get<MlpWeights>(of.body), normed, rows);
        continue;
      }
      if (const auto* experts = std::get_if<ExpertsSpec>(&sublayer.body)) {
        MixExperts(*experts, std::get<ExpertsWeights>(of.body), normed, rows);
        continue;
      }
      const auto& attention = std::get<AttentionSpec>(sublayer.body);
      const auto& attention_weights = std::get<AttentionWeights>(of.body);
      rows.q = q_.View(rows.count, attention.q_width());
      WriteKv(layer, attention, attention_weights, normed, rows, pool);
      if (observer != nullptr) observer->OnLayerWritten(layer, backend_.RecordEvent());
      // Behind the last layer's KV, only the logit rows are used.
      if (layer + 1 == layer_count) {
        if (batch.logit_rows.empty()) return;
        if (!many) rows = KeepLogitRows(batch, rows);
      }
      Attend(layer, attention, attention_weights, rows, pool);
    }
  }
  AddAndNorm(rows, pending, weights_.final_norm.get());
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
      const auto count = static_cast<size_t>(kind.context / pool.block_tokens + 1);
      blocks[index].resize(count * static_cast<size_t>(pool.tables));
      for (size_t end = count - 1; end < blocks[index].size(); end += count) {
        blocks[index][end] = row + 1;
      }
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
  if (config_.logit_scale != 1 || config_.logit_cap != 0) {
    backend_.ScaleLogits(logits, config_.logit_scale, config_.logit_cap);
  }
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
