#include "common/model/device_memory.h"

#include <algorithm>

#include "common/backend/quantized.h"
#include "common/model/quantization.h"
#include "common/model/weights.h"

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
  // As the checkpoint has it, else in the format that is asked about.
  const auto add_rounded = [&](MemorySize& sum, int64_t rows, int64_t cols, int bits) {
    const int64_t group = std::min<int64_t>(cols, QuantizedWeights::kRoundedGroup);
    sum.Add(backend::QuantizedExtentOf(rows, cols, bits, group).size_bytes());
  };
  const auto add_matrix = [&](MemorySize& sum, int64_t rows, int64_t cols, bool quantized) {
    if (!quantized && config.load_bits > 0) return add_rounded(sum, rows, cols, config.load_bits);
    if (!quantized) return sum.Add(MatrixBytes(rows, cols, format, activation));
    const WeightQuantization& quantization = *config.quantization;
    const int64_t group =
        quantization.group_size == WeightQuantization::kAllColumns ? cols : quantization.group_size;
    sum.Add(backend::QuantizedExtentOf(rows, cols, quantization.bits, group).size_bytes());
    if (quantization.reordered) sum.Add(cols * int64_t{sizeof(int32_t)});
  };
  WeightSizes sizes;
  sizes.embedding.Add(MatrixBytes(config.vocab_size, d, {}, stored_embedding));
  for (const LayerSpec& layer : config.layers) {
    sizes.vectors.Add(d * kFloat);  // attention_norm
    add_matrix(sizes.attention, QkvWidth(layer), d, layer.quantized.qkv);
    if (layer.qkv_bias) sizes.vectors.Add(QkvWidth(layer) * kFloat);
    if (layer.qk_norm) {
      sizes.vectors.Add(layer.head_dim * kFloat);
      sizes.vectors.Add(layer.head_dim * kFloat);
    }
    add_matrix(sizes.attention, d, QWidth(layer), layer.quantized.attention_output);
    sizes.vectors.Add(d * kFloat);  // ffn_norm
    add_matrix(sizes.feed_forward, 2 * int64_t{layer.ffn_dim}, d, layer.quantized.gate_up);
    add_matrix(sizes.feed_forward, d, layer.ffn_dim, layer.quantized.down);
  }
  sizes.vectors.Add(d * kFloat);   // final_norm
  if (config.lm_head_quantized) {  // tied or not
    add_matrix(sizes.lm_head, config.vocab_size, d, true);
  } else if (config.load_bits > 0) {
    add_rounded(sizes.lm_head, config.vocab_size, d, kLmHeadLoadBits);
  } else {
    sizes.lm_head.Add(MatrixBytes(config.vocab_size, d, {}, activation));
  }
  return sizes;
}

void SetQuantizedLimits(const ModelConfig& config, backend::StepLimits* limits) {
  limits->quantized_columns = 0;
  const auto add = [&](bool quantized, int64_t cols) {
    if (!quantized && config.load_bits == 0) return;
    limits->quantized_columns = std::max(limits->quantized_columns, static_cast<int>(cols));
  };
  for (const LayerSpec& layer : config.layers) {
    add(layer.quantized.qkv || layer.quantized.gate_up, config.hidden_dim);
    add(layer.quantized.attention_output, QWidth(layer));
    add(layer.quantized.down, layer.ffn_dim);
  }
  add(config.lm_head_quantized, config.hidden_dim);
  limits->reordered_columns = config.quantization && config.quantization->reordered;
}

MemorySize RopeMemory(const ModelConfig& config, int max_positions) {
  const int64_t half = static_cast<int64_t>(config.rope_inverse_frequencies.size());
  MemorySize size;
  for (int i = 0; i < 2; ++i) size.Add(max_positions * half * kFloat);
  return size;
}

Workspaces WorkspacesOf(const ModelConfig& config, int max_rows, int max_logit_rows,
                        DType activation, bool needs_gate_up) {
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
          .gate_up = {needs_gate_up ? rows : 0, 2 * ffn, DType::kF32},
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
    if (shape.rows > 0) size.Add(shape.size_bytes());
  }
  return size;
}

}  // namespace baton::model
