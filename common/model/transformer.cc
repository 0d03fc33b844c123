#include "common/model/transformer.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/model/checkpoint.h"
#include "common/model/decoder_transformer.h"
#include "common/model/device_memory.h"
#include "common/model/weights.h"

namespace baton::model {

using backend::Tensor;

absl::Status DecoderTransformer::Load(const Checkpoint& checkpoint,
                                      const DecoderTransformer* model) {
  BATON_CHECK_EQ(model != nullptr, config_.is_mtp_head);
  if (model != nullptr) {
    BATON_ASSIGN_OR_RETURN(weights_, LoadMtpWeights(checkpoint, config_, backend_));
    vocabulary_ = model->vocabulary_;
  } else {
    BATON_ASSIGN_OR_RETURN(weights_, LoadWeights(checkpoint, config_, options_.progress, backend_,
                                                 options_.experts_on_host));
  }
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
  // A head's steps begin with a copy from the host.
  if (!config_.is_mtp_head) recorder_ = backend_.MakeStepRecorder();
  return absl::OkStatus();
}

void DecoderTransformer::TuneProducts() {
  const int64_t rows = options_.max_batch_tokens, d = config_.hidden_dim;
  std::vector<backend::MatMulUse> products;
  const auto add = [&](const Tensor& x, const ProductWeights& product, const Tensor& out) {
    products.push_back({x, product.matrix.get(), product.bias.get(), out});
  };
  const Tensor normed = normed_.View(rows, d), delta = delta_.View(rows, d);
  const auto add_mlp = [&](const MlpSpec& mlp, const MlpWeights& of) {
    add(normed, of.gate_up, gate_up_.View(rows, mlp.gate_up.rows()));
    add(gated_.View(rows, mlp.ffn_dim), of.down, delta);
  };
  for (size_t layer = 0; layer < config_.layers.size(); ++layer) {
    for (size_t i = 0; i < config_.layers[layer].sublayers.size(); ++i) {
      const SublayerSpec& spec = config_.layers[layer].sublayers[i];
      const SublayerWeights& weights = weights_.layers[layer].sublayers[i];
      if (const auto* attention = std::get_if<AttentionSpec>(&spec.body)) {
        const auto& of = std::get<AttentionWeights>(weights.body);
        const LatentSpec& latent = attention->latent;
        add(normed, of.qkv, qkv_.View(rows, attention->qkv.rows()));
        if (latent.q_norm) {
          add(attended_.View(rows, latent.q_norm.size), of.latent.q_up,
              q_up_.View(rows, latent.q_up.rows()));
        }
        add(attended_.View(rows, attention->output.cols), of.output, delta);
      } else if (const auto* recurrent = std::get_if<RecurrentSpec>(&spec.body)) {
        const auto& of = std::get<RecurrentWeights>(weights.body);
        add(normed, of.in, qkv_.View(rows, recurrent->in.rows()));
        if (of.steps.matrix != nullptr) {
          add(normed, of.steps, steps_.View(rows, recurrent->steps.rows()));
        }
        add(attended_.View(rows, recurrent->width()), of.output, delta);
      } else if (const auto* input = std::get_if<LayerInputSpec>(&spec.body)) {
        const auto& of = std::get<LayerInputWeights>(weights.body);
        add(normed, of.gate, qkv_.View(rows, input->width));
        add(attended_.View(rows, input->width), of.projection, delta);
      } else if (const auto* mlp = std::get_if<MlpSpec>(&spec.body)) {
        add_mlp(*mlp, std::get<MlpWeights>(weights.body));
      } else if (const auto& experts = std::get<ExpertsSpec>(spec.body);
                 experts.shared.ffn_dim > 0) {
        const auto& of = std::get<ExpertsWeights>(weights.body);
        if (of.shared_gate.matrix != nullptr) {
          add(normed, of.shared_gate, expert_logits_.View(rows, 1));
        }
        add_mlp(experts.shared, of.shared);
      }
    }
  }
  if (config_.is_mtp_head) add(attended_.View(rows, 2 * d), weights_.mtp.input, delta);
  if (config_.inputs) {
    add(normed, weights_.inputs.projection, qkv_.View(rows, config_.inputs.columns()));
  }
  const int64_t logit_rows = std::min(options_.max_logit_rows, options_.max_batch_tokens);
  Tensor logits = logits_.View(logit_rows, LogitStride(config_.vocab_size));
  logits.cols = config_.vocab_size;
  products.push_back({normed_.View(logit_rows, d), vocabulary_->lm_head.get(), nullptr, logits});
  backend_.Tune(products);
}

absl::Status DecoderTransformer::AllocateWorkspaces() {
  const Workspaces shapes = WorkspacesOf(
      config_, options_.max_batch_tokens, options_.max_logit_rows, backend_.activation_dtype(),
      {.gate_up = backend_.needs_gate_up(), .experts_at_once = backend_.experts_at_once()});
  const std::pair<Workspace*, const Workspaces::Shape*> all[] = {
      {&residual_, &shapes.residual},
      {&normed_, &shapes.normed},
      {&qkv_, &shapes.qkv},
      {&q_, &shapes.q},
      {&q_up_, &shapes.q_up},
      {&attended_, &shapes.attended},
      {&convolved_, &shapes.convolved},
      {&steps_, &shapes.steps},
      {&recurred_, &shapes.recurred},
      {&inputs_, &shapes.inputs},
      {&delta_, &shapes.delta},
      {&gate_up_, &shapes.gate_up},
      {&gated_, &shapes.gated},
      {&expert_logits_, &shapes.expert_logits},
      {&expert_inputs_, &shapes.expert_inputs},
      {&expert_results_, &shapes.expert_results},
      {&logit_residual_, &shapes.logit_residual},
      {&logit_q_, &shapes.logit_q},
      {&logit_inputs_, &shapes.logit_inputs},
      {&logits_, &shapes.logits},
  };
  for (const auto& [workspace, shape] : all) {
    BATON_RETURN_IF_ERROR(workspace->Allocate(*shape, backend_));
  }
  return absl::OkStatus();
}

void DecoderTransformer::CheckBatch(const backend::RaggedBatch& batch,
                                    const backend::KvPool& pool) const {
  BATON_CHECK(!batch.tokens.empty());
  BATON_CHECK_LE(batch.tokens.size(), static_cast<size_t>(options_.max_batch_tokens));
  BATON_CHECK_LE(batch.logit_rows.size(), batch.tokens.size());
  for (const backend::SequenceRows& sequence : batch.sequences) {
    BATON_CHECK_LE(sequence.context + sequence.row_count, options_.max_positions);
  }
}

void DecoderTransformer::AwaitLastStep() {
  if (step_end_ != nullptr) step_end_->Wait();
}

DecoderTransformer::Rows DecoderTransformer::KeepLogitRows(const backend::RaggedBatch& batch,
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
               .q = {},
               .inputs = {}};
  const auto gather = [&](const Tensor& from, const Workspace& to) {
    Tensor gathered;
    if (from.data == nullptr) return gathered;
    gathered = to.View(count, from.cols);
    backend_.GatherLogitRows(*all.batch, from, gathered);
    return gathered;
  };
  gather(all.residual, logit_residual_);
  kept.q = gather(all.q, logit_q_);
  kept.inputs = gather(all.inputs, logit_inputs_);
  return kept;
}

int64_t DecoderTransformer::Upload(const backend::RaggedBatch& batch, bool may_record,
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

namespace {

// The pool as each layer sees it, where layers differ in their heads.
class KvPools {
 public:
  explicit KvPools(const backend::KvPool& pool) : pool_(pool) {
    for (size_t chunk = 0; chunk < pool.heads.size(); ++chunk) {
      const backend::KvHeads& heads = pool.heads[chunk];
      if (heads.kv_heads == 0) continue;
      chunks_.push_back(static_cast<int>(chunk));
      const auto found = std::find(kinds_.begin(), kinds_.end(), heads);
      kind_of_.push_back(static_cast<size_t>(found - kinds_.begin()));
      if (found != kinds_.end()) continue;
      kinds_.push_back(heads);
      pools_.push_back(pool.WithHeads(heads));
    }
  }
  const backend::KvPool& Of(int layer) const {
    return kind_of_.empty() ? pool_ : pools_[kind_of_[static_cast<size_t>(layer)]];
  }
  // By which operations know the layer.
  int ChunkOf(int layer) const {
    return chunks_.empty() ? layer : chunks_[static_cast<size_t>(layer)];
  }

 private:
  const backend::KvPool& pool_;
  std::vector<int> chunks_;  // the first of each layer
  std::vector<backend::KvHeads> kinds_;
  std::vector<backend::KvPool> pools_;  // by kind
  std::vector<size_t> kind_of_;         // by layer
};

}  // namespace

void DecoderTransformer::Enqueue(const backend::RaggedBatch& batch, const backend::KvPool& pool,
                                 int64_t count, bool many, LayerObserver* observer) {
  const int64_t d = config_.hidden_dim;
  Rows rows = {.batch = all_rows_.get(),
               .count = count,
               .residual = residual_.View(count, d),
               .q = {},
               .inputs = inputs_.View(count, config_.inputs.columns())};
  if (vocabulary_->embedding.memory != nullptr) {
    backend_.Embed(*rows.batch, vocabulary_->embedding.table, config_.embedding_scale,
                   rows.residual);
  } else {
    backend_.EmbedPacked(*rows.batch, *vocabulary_->lm_head, config_.embedding_scale,
                         rows.residual);
  }
  if (config_.is_mtp_head) MixHidden(rows);
  if (config_.inputs) EmbedInputs(rows);
  const size_t last_writing = LastWritingLayer(config_.layers);
  const KvPools pools(pool);
  std::vector<int> kv_layers(config_.layers.size());  // where each layer's KV is
  int kv_layer = 0, state_layer = 0;
  Pending pending;
  for (size_t layer = 0; layer < config_.layers.size(); ++layer) {
    const LayerSpec& spec = config_.layers[layer];
    const LayerWeights& weights = weights_.layers[layer];
    for (size_t i = 0; i < spec.sublayers.size(); ++i) {
      const SublayerSpec& sublayer = spec.sublayers[i];
      const SublayerWeights& of = weights.sublayers[i];
      const backend::NormArgs norm = NormOf(rows, pending, of.norm_before.get());
      pending = {&sublayer, &of};
      if (const auto* mlp = std::get_if<MlpSpec>(&sublayer.body)) {
        FeedForward(*mlp, std::get<MlpWeights>(of.body), norm, rows, pending);
        continue;
      }
      if (!std::holds_alternative<AttentionSpec>(sublayer.body)) backend_.Norm(norm);
      if (const auto* experts = std::get_if<ExpertsSpec>(&sublayer.body)) {
        MixExperts(*experts, std::get<ExpertsWeights>(of.body), norm.out, rows);
        continue;
      }
      if (const auto* input = std::get_if<LayerInputSpec>(&sublayer.body)) {
        UseInput(*input, std::get<LayerInputWeights>(of.body), norm.out, rows);
        continue;
      }
      // Behind the last layer that writes, only the logit rows are used.
      const bool last = layer == last_writing;
      if (const auto* recurrent = std::get_if<RecurrentSpec>(&sublayer.body)) {
        Recur(state_layer, *recurrent, std::get<RecurrentWeights>(of.body), norm.out, rows, pool);
        if (observer != nullptr) observer->OnStateWritten(state_layer, backend_.RecordEvent());
        ++state_layer;
        if (last && batch.logit_rows.empty()) return;
        if (last && !many) {
          Add(rows, std::exchange(pending, {}));
          rows = KeepLogitRows(batch, rows);
        }
        continue;
      }
      const auto& attention = std::get<AttentionSpec>(sublayer.body);
      const auto& attention_weights = std::get<AttentionWeights>(of.body);
      const int source =
          attention.owns_kv() ? kv_layer++ : kv_layers[static_cast<size_t>(attention.kv_from)];
      kv_layers[layer] = source;
      const backend::KvPool& of_layer = pools.Of(source);
      rows.q = q_.View(rows.count, attention.q_width());
      const int chunk = pools.ChunkOf(source);
      // Where nothing stands between the write of KV and attention, the device may do both at once.
      const bool keeps_rows = !last || batch.logit_rows.size() == batch.tokens.size();
      if (keeps_rows && observer == nullptr && !attention.latent) {
        const backend::RopeWriteArgs write =
            MakeHeads(chunk, attention, attention_weights, norm, rows, of_layer);
        Attend(chunk, attention, attention_weights, rows, of_layer, &write, pending);
      } else {
        WriteKv(chunk, attention, attention_weights, norm, rows, of_layer);
        if (observer != nullptr && attention.owns_kv()) {
          observer->OnLayerWritten(source, backend_.RecordEvent());
        }
        if (last && batch.logit_rows.empty()) return;
        // A gate is a column of the products of all rows.
        if (last && !many && !attention.gated) rows = KeepLogitRows(batch, rows);
        Attend(chunk, attention, attention_weights, rows, of_layer, nullptr, pending);
      }
      rows.q = {};
      if (last && !many && attention.gated) {
        Add(rows, std::exchange(pending, {}));
        rows = KeepLogitRows(batch, rows);
      }
    }
    if (!spec.scale) continue;
    Add(rows, std::exchange(pending, {}));
    backend_.ScaleLogits(rows.residual, weights.scale, 0);
  }
  AddAndNorm(rows, pending, weights_.final_norm.get());
  last_residual_ = rows.residual;
  if (!many) LogitsOfNormed(0, rows.count);
}

Tensor DecoderTransformer::Forward(const backend::RaggedBatch& batch, const backend::KvPool& pool,
                                   LayerObserver* observer, absl::Span<const float> hidden_before) {
  CheckBatch(batch, pool);
  const int64_t hidden = config_.is_mtp_head ? config_.hidden_dim : 0;
  BATON_CHECK_EQ(hidden_before.size(), batch.tokens.size() * static_cast<size_t>(hidden));
  if (hidden > 0) {
    AwaitLastStep();  // The last step reads delta_.
    backend_.CopyToDevice(delta_.View(static_cast<int64_t>(batch.tokens.size()), hidden).data,
                          hidden_before.data(), hidden_before.size() * sizeof(float));
  }
  // With few rows the host's launches take longer than the device's work: such steps are repeated.
  const bool decodes = batch.logit_rows.size() == batch.tokens.size() &&
                       batch.sequences.size() == batch.tokens.size();
  if (recorder_ != nullptr && recorded_pool_ != nullptr && recorded_pool_ != pool.base) {
    AwaitLastStep();
    recorder_ = backend_.MakeStepRecorder();
  }
  recorded_pool_ = pool.base;
  bool records = false;
  const bool many = batch.logit_rows.size() > static_cast<size_t>(options_.max_logit_rows);
  const int64_t count =
      Upload(batch, decodes && !many && observer == nullptr && recorder_ != nullptr, &records);
  many_logit_rows_.clear();
  logit_row_count_ = static_cast<int>(batch.logit_rows.size());
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

void DecoderTransformer::WarmUp(const backend::KvPool& pool) {
  if (recorder_ == nullptr) return;
  for (const backend::StepRecorder::Kind& kind : recorder_->Kinds()) {
    const auto rows = static_cast<size_t>(kind.rows);
    // All rows read one block, repeated to the context's length; each writes to a separate one.
    // They leave their states at one place, too, which all of them read.
    if (kind.rows + pool.state_tables >= pool.block_count) continue;
    std::vector<int32_t> state(static_cast<size_t>(pool.state_tables));
    std::iota(state.begin(), state.end(), kind.rows + 1);
    const backend::StateStore store = {kind.context + 1, state};
    const std::vector<int32_t> tokens(rows);
    std::vector<int32_t> logit_rows(rows);
    std::vector<backend::SequenceRows> sequences(rows);
    std::vector<std::vector<int32_t>> blocks(rows);
    for (int row = 0; row < kind.rows; ++row) {
      const auto index = static_cast<size_t>(row);
      logit_rows[index] = row;
      const auto count = static_cast<size_t>(kind.context / pool.block_tokens + 1);
      blocks[index].resize(count * static_cast<size_t>(pool.block_tables()));
      for (size_t end = count - 1; end < blocks[index].size(); end += count) {
        blocks[index][end] = row + 1;
      }
      sequences[index] = {row, 1, kind.context, blocks[index]};
      if (state.empty()) continue;
      if (kind.context > 0) sequences[index].state = state;
      sequences[index].state_stores = absl::MakeConstSpan(&store, 1);
    }
    backend::RaggedBatch batch;
    batch.tokens = tokens;
    batch.sequences = sequences;
    batch.logit_rows = logit_rows;
    for (int time = 0; time < 2; ++time) Forward(batch, pool, nullptr, {});
  }
  AwaitLastStep();
}

Tensor DecoderTransformer::LogitsView(int64_t count) {
  Tensor logits = logits_.View(count, LogitStride(config_.vocab_size));
  logits.cols = config_.vocab_size;
  return logits;
}

namespace {

Tensor RowsOf(Tensor tensor, int64_t first, int64_t count) {
  tensor.data = static_cast<std::byte*>(tensor.data) +
                static_cast<size_t>(first * tensor.row_stride) * SizeOf(tensor.dtype);
  tensor.rows = count;
  return tensor;
}

}  // namespace

Tensor DecoderTransformer::NormedView(int64_t first, int64_t count) {
  return RowsOf(normed_.View(first + count, config_.hidden_dim), first, count);
}

Tensor DecoderTransformer::HiddenStates(int first) {
  BATON_CHECK_GE(first, 0);
  BATON_CHECK_LT(first, logit_row_count_);
  // With more logit rows than logits_ holds, normed_ has all rows of the step.
  const bool many = !many_logit_rows_.empty();
  const int64_t row = many ? many_logit_rows_[static_cast<size_t>(first)] : first;
  const int64_t count = many ? Neighbours(first) : logit_row_count_ - first;
  const bool before_norm = config_.is_mtp_head && config_.mtp->states_before_norm;
  return before_norm ? RowsOf(last_residual_, row, count) : NormedView(row, count);
}

int64_t DecoderTransformer::Neighbours(int first) const {
  const auto rows = absl::MakeConstSpan(many_logit_rows_).subspan(static_cast<size_t>(first));
  size_t count = 1;
  while (count < rows.size() && rows[count] == rows[count - 1] + 1) ++count;
  return static_cast<int64_t>(count);
}

Tensor DecoderTransformer::LogitsOfNormed(int64_t first, int64_t count) {
  const Tensor logits = LogitsView(count);
  const Tensor normed = NormedView(first, count);
  backend_.MatMul(normed, *vocabulary_->lm_head, nullptr, logits);
  if (config_.logit_scale != 1 || config_.logit_cap != 0) {
    backend_.ScaleLogits(logits, config_.logit_scale, config_.logit_cap);
  }
  return logits;
}

Tensor DecoderTransformer::MoreLogits(int first) {
  BATON_CHECK_GE(first, 0);
  BATON_CHECK_LT(static_cast<size_t>(first), many_logit_rows_.size());
  const int64_t count = std::min<int64_t>(Neighbours(first), options_.max_logit_rows);
  const Tensor logits = LogitsOfNormed(many_logit_rows_[static_cast<size_t>(first)], count);
  step_end_ = backend_.RecordEvent();
  return logits;
}

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
  auto transformer = std::make_unique<DecoderTransformer>(config, options, backend);
  BATON_RETURN_IF_ERROR(transformer->Load(checkpoint));
  return transformer;
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::LoadMtpHead(
    const std::string& model_dir, const ModelConfig& config, const TransformerOptions& options,
    const Transformer& model, backend::Backend& backend) {
  const auto& of_model = static_cast<const DecoderTransformer&>(model);  // there is no other kind
  BATON_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model_dir));
  auto head = std::make_unique<DecoderTransformer>(config, options, backend);
  BATON_RETURN_IF_ERROR(head->Load(checkpoint, &of_model));
  return head;
}

}  // namespace baton::model
