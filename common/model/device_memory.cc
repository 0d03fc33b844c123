#include "common/model/device_memory.h"

#include <algorithm>

namespace baton::model {
namespace {

using backend::DType;

constexpr int64_t kFloat = sizeof(float);

int64_t QWidth(const LayerSpec& layer) { return int64_t{layer.query_heads} * layer.head_dim; }
int64_t QkvWidth(const LayerSpec& layer) {
  return (int64_t{layer.query_heads} + 2 * int64_t{layer.kv_heads}) * layer.head_dim;
}

}  // namespace

int64_t MatrixBytes(int64_t rows, int64_t cols, const WeightFormat& format, DType activation) {
  if (!format.quantized()) return rows * cols * static_cast<int64_t>(SizeOf(activation));
  const int64_t groups = (cols + format.group_size - 1) / format.group_size;
  constexpr int64_t kScaleBits = 16;
  return (rows * (cols * format.bits + groups * (kScaleBits + format.bits)) + 7) / 8;
}

MemorySize WeightSizes::total() const {
  MemorySize sum;
  for (const MemorySize* size : {&embedding, &attention, &feed_forward, &vectors, &lm_head}) {
    sum.Add(*size);
  }
  return sum;
}

WeightSizes WeightMemory(const ModelConfig& config, DType activation, DType stored_embedding,
                         const WeightFormat& format) {
  const int64_t d = config.hidden_dim;
  const auto matrix = [&](int64_t rows, int64_t cols) {
    return MatrixBytes(rows, cols, format, activation);
  };
  WeightSizes sizes;
  sizes.embedding.Add(MatrixBytes(config.vocab_size, d, {},
                                  stored_embedding == activation ? activation : DType::kF32));
  for (const LayerSpec& layer : config.layers) {
    sizes.vectors.Add(d * kFloat);  // attention_norm
    sizes.attention.Add(matrix(QkvWidth(layer), d));
    if (layer.qkv_bias) sizes.vectors.Add(QkvWidth(layer) * kFloat);
    if (layer.qk_norm) {
      sizes.vectors.Add(layer.head_dim * kFloat);
      sizes.vectors.Add(layer.head_dim * kFloat);
    }
    sizes.attention.Add(matrix(d, QWidth(layer)));
    sizes.vectors.Add(d * kFloat);                                  // ffn_norm
    sizes.feed_forward.Add(matrix(2 * int64_t{layer.ffn_dim}, d));  // gate_up
    sizes.feed_forward.Add(matrix(d, layer.ffn_dim));               // down
  }
  sizes.vectors.Add(d * kFloat);  // final_norm
  sizes.lm_head.Add(MatrixBytes(config.vocab_size, d, {}, activation));
  return sizes;
}

MemorySize RopeMemory(const ModelConfig& config, int max_positions) {
  const int64_t half = static_cast<int64_t>(config.rope_inverse_frequencies.size());
  MemorySize size;
  for (int i = 0; i < 2; ++i) size.Add(max_positions * half * kFloat);
  return size;
}

Workspaces WorkspacesOf(const ModelConfig& config, int max_rows, int max_logit_rows,
                        DType activation) {
  int64_t q = 0, qkv = 0, ffn = 0;
  for (const LayerSpec& layer : config.layers) {
    q = std::max(q, QWidth(layer));
    qkv = std::max(qkv, QkvWidth(layer));
    ffn = std::max<int64_t>(ffn, layer.ffn_dim);
  }
  const int64_t rows = max_rows;
  const int64_t logit_rows = std::min(max_rows, max_logit_rows);
  const int64_t d = config.hidden_dim;
  return {.residual = {rows, d, DType::kF32},
          .normed = {rows, d, activation},
          .qkv = {rows, qkv, DType::kF32},
          .q = {rows, q, DType::kF32},
          .attended = {rows, q, activation},
          .delta = {rows, d, DType::kF32},
          .gate_up = {rows, 2 * ffn, DType::kF32},
          .gated = {rows, ffn, activation},
          .logit_residual = {logit_rows, d, DType::kF32},
          .logit_q = {logit_rows, q, DType::kF32},
          .logits = {logit_rows, LogitStride(config.vocab_size), DType::kF32}};
}

MemorySize WorkspaceMemory(const Workspaces& w) {
  MemorySize size;
  for (const Workspaces::Shape& shape :
       {w.residual, w.normed, w.qkv, w.q, w.attended, w.delta, w.gate_up, w.gated, w.logit_residual,
        w.logit_q, w.logits}) {
    size.Add(shape.size_bytes());
  }
  return size;
}

}  // namespace baton::model
