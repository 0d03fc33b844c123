#include "common/engine/engine.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/backend/cpu/cpu_backend.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::engine {
namespace {

kv::KvDtype ToKvDtype(backend::DType dtype) {
  switch (dtype) {
    case backend::DType::kF32:
      return kv::KvDtype::kF32;
    case backend::DType::kBF16:
      return kv::KvDtype::kBF16;
    case backend::DType::kF16:
      return kv::KvDtype::kF16;
  }
  BATON_CHECK(false) << "unknown dtype";
  return kv::KvDtype::kF32;
}

// Blocks of one size for all layers: the KV pool cannot hold layers of different shapes.
absl::Status CheckUniformLayers(const model::ModelConfig& config) {
  const model::LayerSpec& first = config.layers.front();
  for (size_t i = 1; i < config.layers.size(); ++i) {
    const model::LayerSpec& layer = config.layers[i];
    if (layer.kv_heads != first.kv_heads || layer.head_dim != first.head_dim) {
      return MakeError(absl::StatusCode::kUnimplemented, "UNSUPPORTED_MODEL",
                       absl::StrCat("layer ", i, " has ", layer.kv_heads, " KV heads of ",
                                    layer.head_dim, ", layer 0 has ", first.kv_heads, " of ",
                                    first.head_dim, ": expected the same in all layers"));
    }
  }
  return absl::OkStatus();
}

class ModelEngine final : public Engine {
 public:
  absl::Status Initialize(const EngineOptions& options);
  std::vector<StepResult> Step(const Batch& batch, model::LayerObserver* observer) override;
  void CopyBlocks(absl::Span<const kv::BlockId> sources,
                  absl::Span<const kv::BlockId> targets) override {
    backend_->CopyBlocks(pool_, sources, targets);
  }
  void ReadBlocks(absl::Span<const kv::BlockId> blocks, std::byte* host) override {
    for (size_t i = 0; i < blocks.size(); ++i) {
      backend_->CopyToHost(host + i * block_bytes(), Block(blocks[i]), block_bytes());
    }
  }
  void WriteBlocks(absl::Span<const kv::BlockId> blocks, const std::byte* host) override {
    for (size_t i = 0; i < blocks.size(); ++i) {
      backend_->CopyToDevice(Block(blocks[i]), host + i * block_bytes(), block_bytes());
    }
  }
  std::string Description() const override { return backend_->Description(); }

 private:
  // A row whose logits are wanted.
  struct WantedRow {
    size_t entry;
    int row;  // of the entry
  };

  absl::Status MakePool(const EngineOptions& options);
  void AddEntry(const BatchEntry& entry, size_t index);
  // logits_ are of the entry's row.
  void UseLogits(const BatchEntry& entry, int row, StepResult& result) const;
  size_t block_bytes() const { return static_cast<size_t>(pool_.block_stride_bytes); }
  std::byte* Block(kv::BlockId id) const { return pool_.base + id * pool_.block_stride_bytes; }

  // Destroyed in reverse order: the backend outlives what it made.
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Buffer> pool_memory_;
  std::unique_ptr<model::Transformer> transformer_;
  // Scratch of Step, kept to avoid allocation.
  std::vector<int32_t> tokens_;
  std::vector<backend::SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
  std::vector<WantedRow> wanted_;  // one a logit row
  std::vector<float> logits_;      // of one row
};

absl::Status ModelEngine::Initialize(const EngineOptions& options) {
  BATON_ASSIGN_OR_RETURN(config_, model::LoadModelConfig(options.model_dir));
  BATON_RETURN_IF_ERROR(CheckUniformLayers(config_));
  if (options.max_model_len > config_.max_positions) {
    return InvalidField("MAX_MODEL_LEN_TOO_LONG", "--max-model-len",
                        absl::StrCat(options.max_model_len, " given, but ", options.model_dir,
                                     " was made for at most ", config_.max_positions, " tokens"));
  }
  max_model_len_ = options.max_model_len > 0 ? options.max_model_len : config_.max_positions;
  max_num_batched_tokens_ = options.max_num_batched_tokens;
  max_num_seqs_ = options.max_num_seqs;
  BATON_ASSIGN_OR_RETURN(backend_, backend::MakeCpuBackend(options.backend));
  model::TransformerOptions transformer_options;
  transformer_options.max_batch_tokens = std::max(max_num_batched_tokens_, max_num_seqs_);
  transformer_options.max_logit_rows = max_num_seqs_;
  transformer_options.max_positions = max_model_len_;
  transformer_options.progress = options.progress;
  BATON_ASSIGN_OR_RETURN(transformer_, model::Transformer::Load(options.model_dir, config_,
                                                                transformer_options, *backend_));
  return MakePool(options);
}

absl::Status ModelEngine::MakePool(const EngineOptions& options) {
  const model::LayerSpec& layer = config_.layers.front();
  layout_.layers = static_cast<int>(config_.layers.size());
  layout_.kv_heads = layer.kv_heads;
  layout_.head_dim = layer.head_dim;
  layout_.block_tokens = options.block_tokens;
  layout_.dtype = ToKvDtype(backend_->activation_dtype());
  layout_.format_version = 1;
  BATON_RETURN_IF_ERROR(layout_.Validate());
  const int64_t block_bytes = static_cast<int64_t>(layout_.BlockBytes());
  int64_t block_count = options.num_blocks;
  if (block_count == 0) block_count = options.kv_cache_bytes / block_bytes;
  if (block_count < 1 || block_count > std::numeric_limits<kv::BlockId>::max() ||
      block_count > std::numeric_limits<int64_t>::max() / block_bytes) {
    return InvalidField("KV_POOL_SIZE", "--kv-cache-memory",
                        absl::StrCat(options.kv_cache_bytes, " bytes give ", block_count,
                                     " KV blocks of ", block_bytes, " bytes (", layout_.ToString(),
                                     "): expected at least 1 and fewer than 2^31"));
  }
  absl::StatusOr<std::unique_ptr<backend::Buffer>> memory =
      backend_->Allocate(static_cast<size_t>(block_count * block_bytes));
  if (!memory.ok()) {
    return Annotate(memory.status(),
                    absl::StrCat("KV pool of ", block_count, " blocks of ", block_bytes, " bytes"));
  }
  pool_memory_ = *std::move(memory);
  pool_.base = static_cast<std::byte*>(pool_memory_->data());
  pool_.block_stride_bytes = block_bytes;
  pool_.layer_stride_bytes = static_cast<int64_t>(layout_.ChunkBytes());
  pool_.block_count = static_cast<int>(block_count);
  pool_.kv_heads = layout_.kv_heads;
  pool_.head_dim = layout_.head_dim;
  pool_.block_tokens = layout_.block_tokens;
  pool_.dtype = backend_->activation_dtype();
  return absl::OkStatus();
}

std::vector<StepResult> ModelEngine::Step(const Batch& batch, model::LayerObserver* observer) {
  tokens_.clear();
  sequences_.clear();
  logit_rows_.clear();
  wanted_.clear();
  for (size_t i = 0; i < batch.entries.size(); ++i) AddEntry(batch.entries[i], i);
  BATON_CHECK(!tokens_.empty());
  backend::RaggedBatch ragged;
  ragged.tokens = tokens_;
  ragged.sequences = sequences_;
  ragged.logit_rows = logit_rows_;
  backend::Tensor logits = transformer_->Forward(ragged, pool_, observer);

  std::vector<StepResult> results(batch.entries.size());
  // Padding rows of the embedding (ids that the tokenizer lacks) are never drawn.
  logits_.resize(config_.token_count);
  int64_t first = 0;  // wanted row that logits row 0 is of
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (static_cast<int64_t>(i) == first + logits.rows) {
      first = static_cast<int64_t>(i);
      logits = transformer_->MoreLogits(static_cast<int>(first));
    }
    const float* source = static_cast<const float*>(logits.data) +
                          (static_cast<int64_t>(i) - first) * logits.row_stride;
    backend_->CopyToHost(logits_.data(), source, logits_.size() * sizeof(float));
    const WantedRow& wanted = wanted_[i];
    UseLogits(batch.entries[wanted.entry], wanted.row, results[wanted.entry]);
  }
  return results;
}

void ModelEngine::AddEntry(const BatchEntry& entry, size_t index) {
  const int count = static_cast<int>(entry.tokens.size());
  BATON_CHECK_GE(count, 1);
  BATON_CHECK_LE(entry.context + count, max_model_len_);
  BATON_CHECK_GE(static_cast<int64_t>(entry.blocks.size()) * layout_.block_tokens,
                 entry.context + count);
  BATON_CHECK(!entry.sample || entry.sampling != nullptr);
  BATON_CHECK_LE(entry.targets.size(), entry.tokens.size());
  backend::SequenceRows rows;
  rows.first_row = static_cast<int>(tokens_.size());
  rows.row_count = count;
  rows.context = entry.context;
  rows.blocks = entry.blocks;
  sequences_.push_back(rows);
  tokens_.insert(tokens_.end(), entry.tokens.begin(), entry.tokens.end());
  const int targets = entry.prompt_logprobs ? static_cast<int>(entry.targets.size()) : 0;
  for (int row = 0; row < count; ++row) {
    if (row >= targets && !(entry.sample && row == count - 1)) continue;
    logit_rows_.push_back(rows.first_row + row);
    wanted_.push_back({index, row});
  }
}

void ModelEngine::UseLogits(const BatchEntry& entry, int row, StepResult& result) const {
  if (entry.prompt_logprobs && static_cast<size_t>(row) < entry.targets.size() &&
      result.prompt_logprobs.ok()) {
    absl::StatusOr<model::SampledToken> token =
        model::LogprobsOf(logits_, entry.targets[static_cast<size_t>(row)], *entry.prompt_logprobs);
    if (token.ok()) {
      result.prompt_logprobs->push_back(*std::move(token));
    } else {
      result.prompt_logprobs = token.status();
    }
  }
  if (!entry.sample || static_cast<size_t>(row) + 1 != entry.tokens.size()) return;
  const uint64_t position = static_cast<uint64_t>(entry.context) + entry.tokens.size();
  result.tokens =
      entry.beam_candidates > 0
          ? model::BestTokens(logits_, *entry.sampling, entry.history, entry.beam_candidates)
          : model::SampleMany(logits_, *entry.sampling, entry.history, position, entry.draws);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  auto engine = std::make_unique<ModelEngine>();
  BATON_RETURN_IF_ERROR(engine->Initialize(options));
  return engine;
}

}  // namespace baton::engine
