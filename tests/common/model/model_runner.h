// A transformer with its KV pool, for tests.
#ifndef BATON_TESTS_COMMON_MODEL_MODEL_RUNNER_H_
#define BATON_TESTS_COMMON_MODEL_MODEL_RUNNER_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/backend/cpu/cpu_backend.h"
#include "common/engine/engine_shape.h"
#include "common/model/device_memory.h"
#include "common/model/model_config.h"
#include "common/model/transformer.h"
#include "gtest/gtest.h"

namespace baton::model {

using Logits = std::vector<std::vector<float>>;  // one row each

// Tokens spread over the vocabulary.
inline std::vector<int32_t> Prompt(size_t length, int vocab_size) {
  std::vector<int32_t> prompt(length);
  for (size_t i = 0; i < length; ++i) {
    prompt[i] = static_cast<int32_t>((i * 2654435761u >> 5) % static_cast<unsigned>(vocab_size));
  }
  return prompt;
}

// Infinite if an element is NaN.
inline double LargestDifference(const Logits& a, const Logits& b) {
  double worst = 0;
  for (size_t row = 0; row < a.size(); ++row) {
    for (size_t i = 0; i < a[row].size(); ++i) {
      const double error = std::fabs(double{a[row][i]} - double{b[row][i]});
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

class ModelRunner {
 public:
  static constexpr int kBlockTokens = 16;
  static constexpr int kBlockCount = 64;
  static constexpr int kMaxTokens = 256;
  static constexpr int kMaxPositions = 1024;

  explicit ModelRunner(const std::string& model_dir, backend::BackendOptions::Compute compute =
                                                         backend::BackendOptions::Compute::kF32)
      : ModelRunner(model_dir,
                    backend::MakeCpuBackend(
                        {.compute = compute, .dequantize_weights = true, .thread_count = 2})) {}

  ModelRunner(const std::string& model_dir,
              absl::StatusOr<std::unique_ptr<backend::Backend>> backend, int load_bits = 0,
              int max_positions = kMaxPositions, int experts_on_host = 0) {
    auto config = LoadModelConfig(model_dir);
    EXPECT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(backend.ok()) << backend.status();
    if (!config.ok() || !backend.ok()) return;
    config_ = *std::move(config);
    config_.load_bits = load_bits;
    max_positions = std::min(max_positions, config_.max_positions);
    PinPositions(max_positions, &config_);
    backend_ = *std::move(backend);
    engine::EngineOptions options;
    options.block_tokens = kBlockTokens;
    const auto shape = engine::ShapeOf(config_, options, backend_->activation_dtype());
    EXPECT_TRUE(shape.ok()) << shape.status();
    if (!shape.ok()) return;
    const backend::StepLimits& heads = shape->limits;
    backend::StepLimits limits{.max_rows = kMaxTokens,
                               .max_sequences = kMaxTokens,
                               .max_logit_rows = kMaxTokens,
                               .max_positions = max_positions,
                               .query_heads = heads.query_heads,
                               .kv_heads = heads.kv_heads,
                               .head_dim = heads.head_dim,
                               .other_heads = heads.other_heads,
                               .latent_dim = heads.latent_dim,
                               .block_tokens = kBlockTokens,
                               .layers = heads.layers,
                               .chunk_bytes = heads.chunk_bytes,
                               .hidden_dim = config_.hidden_dim,
                               .vocab_size = config_.vocab_size};
    SetMatrixLimits(config_, &limits);
    limits.fetched_expert_bytes = WeightMemory(config_, backend_->activation_dtype(),
                                               backend::DType::kF32, {}, experts_on_host)
                                      .fetched_expert_bytes;
    if (shape->layout.recurrent()) {
      limits.kv_tables = shape->limits.kv_tables;
      limits.state_tables = shape->limits.state_tables;
      limits.state_spots = shape->limits.state_spots;
      engine::SetPlaces(shape->layout, &pool_);
    }
    const absl::Status prepared = backend_->Prepare(limits);
    EXPECT_TRUE(prepared.ok()) << prepared;
    if (!prepared.ok()) return;
    auto transformer = Transformer::Load(model_dir, config_,
                                         {.max_batch_tokens = kMaxTokens,
                                          .max_logit_rows = kMaxTokens,
                                          .max_positions = max_positions,
                                          .experts_on_host = experts_on_host,
                                          .progress = [&](double s) { progress_.push_back(s); }},
                                         *backend_);
    EXPECT_TRUE(transformer.ok()) << transformer.status();
    if (!transformer.ok()) return;
    transformer_ = *std::move(transformer);
    MakePool(shape->layout);
  }

  bool ok() const { return transformer_ != nullptr; }
  const ModelConfig& config() const { return config_; }
  const std::vector<double>& progress() const { return progress_; }

  // Blocks in no order, so that a row that skips the block table reads another's.
  std::vector<int32_t> TakeBlocks(size_t tokens) {
    std::vector<int32_t> blocks;
    for (size_t i = 0; i * kBlockTokens < tokens; ++i) {
      blocks.push_back(static_cast<int32_t>(next_block_++ * 29 % kBlockCount));
    }
    return blocks;
  }

  // A sequence of a recurrent model has its state in pages of its own, by its first block.
  Logits Forward(const backend::RaggedBatch& batch, LayerObserver* observer = nullptr) {
    std::vector<backend::SequenceRows> sequences(batch.sequences.begin(), batch.sequences.end());
    std::vector<std::vector<int32_t>> states;
    std::vector<backend::StateStore> stores(sequences.size());
    for (size_t i = 0; i < sequences.size() && pool_.state_tables > 0; ++i) {
      backend::SequenceRows& rows = sequences[i];
      if (!rows.state_stores.empty()) continue;
      states.push_back(StatePages(rows.blocks[0]));
      stores[i] = {rows.context + rows.row_count, states.back()};
      if (rows.context > 0) rows.state = states.back();
      rows.state_stores = absl::MakeConstSpan(&stores[i], 1);
    }
    backend::RaggedBatch with_states = batch;
    with_states.sequences = sequences;
    const backend::Tensor logits = transformer_->Forward(with_states, pool_, observer);
    EXPECT_EQ(logits.rows, static_cast<int64_t>(batch.logit_rows.size()));
    EXPECT_EQ(logits.cols, config_.vocab_size);
    Logits rows;
    for (int64_t row = 0; row < logits.rows; ++row) {
      rows.emplace_back(static_cast<size_t>(logits.cols));
      backend_->CopyToHost(rows.back().data(),
                           static_cast<float*>(logits.data) + row * logits.row_stride,
                           rows.back().size() * sizeof(float));
    }
    return rows;
  }

  std::vector<int32_t> StatePages(int32_t slot) const {
    std::vector<int32_t> pages(static_cast<size_t>(pool_.state_tables));
    std::iota(pages.begin(), pages.end(), kBlockCount + slot * pool_.state_tables);
    return pages;
  }

  // Logits of every position, the prompt in chunks of `chunk` tokens.
  Logits Run(const std::vector<int32_t>& prompt, size_t chunk) {
    const std::vector<int32_t> blocks = TakeBlocks(prompt.size());
    Logits all;
    for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
      const size_t size = std::min(chunk, prompt.size() - begin);
      std::vector<int32_t> rows(size);
      for (size_t i = 0; i < size; ++i) rows[i] = static_cast<int32_t>(i);
      const backend::SequenceRows sequence{.first_row = 0,
                                           .row_count = static_cast<int>(size),
                                           .context = static_cast<int>(begin),
                                           .blocks = blocks};
      for (auto& row : Forward({.tokens = absl::MakeSpan(prompt).subspan(begin, size),
                       .sequences = {&sequence, 1},
                       .logit_rows = rows})) {
        all.push_back(std::move(row));
      }
    }
    return all;
  }

 private:
  void MakePool(const kv::KvLayout& layout) {
    const AttentionSpec& layer = *KvLayers(config_.layers).front();
    pool_.kv_heads = layer.kv_heads;
    pool_.head_dim = layer.head_dim;
    pool_.latent_dim = layer.latent.rank;
    pool_.block_tokens = kBlockTokens;
    pool_.block_count = kBlockCount * (1 + pool_.state_tables);
    pool_.dtype = backend_->activation_dtype();
    pool_.layer_stride_bytes = pool_.chunk_heads() * pool_.head_bytes();
    pool_.block_stride_bytes =
        pool_.layer_stride_bytes * static_cast<int64_t>(KvLayers(config_.layers).size());
    if (!layout.layer_heads.empty()) {
      engine::SetHeads(layout, &pool_);
      pool_.layer_stride_bytes = layout.ChunkBytes();
      pool_.block_stride_bytes = layout.BlockBytes();
    }
    auto memory =
        backend_->Allocate(static_cast<size_t>(pool_.block_stride_bytes * pool_.block_count));
    EXPECT_TRUE(memory.ok()) << memory.status();
    pool_memory_ = *std::move(memory);
    pool_.base = static_cast<std::byte*>(pool_memory_->data());
  }

  ModelConfig config_;
  std::vector<double> progress_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Buffer> pool_memory_;
  std::unique_ptr<Transformer> transformer_;
  backend::KvPool pool_;
  size_t next_block_ = 0;
};

}  // namespace baton::model

#endif  // BATON_TESTS_COMMON_MODEL_MODEL_RUNNER_H_
