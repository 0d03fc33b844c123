#include "common/model/device_memory.h"

#include <algorithm>
#include <variant>

#include "common/backend/quantized.h"
#include "common/model/quantization.h"
#include "common/model/weights.h"

namespace baton::model {
namespace {

using backend::DType;

constexpr int64_t kFloat = sizeof(float);

}  // namespace

int64_t MatrixBytes(int64_t rows, int64_t cols, const WeightFormat& format, DType activation) {
  if (!format.quantized()) return rows * cols * static_cast<int64_t>(SizeOf(activation));
  const int64_t group = std::min(cols, backend::PackedGroup(format.mxfp4, format.group_size));
  return backend::QuantizedExtentOf(rows, cols, format.bits, group, format.symmetric).size_bytes();
}

MemorySize WeightSizes::total() const {
  MemorySize sum;
  for (const MemorySize* size : {&embedding, &attention, &feed_forward, &vectors, &lm_head}) {
    sum.Add(*size);
  }
  return sum;
}

WeightSizes WeightMemory(const ModelConfig& config, DType activation, DType stored_embedding,
                         const WeightFormat& format, int experts_on_host) {
  const int64_t d = config.hidden_dim;
  // As the checkpoint has it, else in the format that is asked about.
  const auto add_rounded = [&](MemorySize& sum, int64_t rows, int64_t cols, int bits) {
    const int64_t group = std::min<int64_t>(cols, QuantizedWeights::kRoundedGroup);
    sum.Add(backend::QuantizedExtentOf(rows, cols, bits, group, /*symmetric=*/true).size_bytes());
  };
  const WeightFormat unquantized = format.mxfp4 ? WeightFormat{} : format;
  const auto add_matrix = [&](MemorySize& sum, int64_t rows, int64_t cols, bool quantized,
                              bool rounds = true) {
    if (!quantized && rounds && config.load_bits > 0)
      return add_rounded(sum, rows, cols, config.load_bits);
    if (!quantized) return sum.Add(MatrixBytes(rows, cols, unquantized, activation));
    const WeightQuantization& quantization = *config.quantization;
    const int64_t group = quantization.group_size == WeightQuantization::kAllColumns
                              ? cols
                              : backend::PackedGroup(quantization.fp4, quantization.group_size);
    const bool symmetric =
        quantization.format == WeightQuantization::Format::kGguf && !quantization.fp4;
    sum.Add(
        backend::QuantizedExtentOf(rows, cols, quantization.bits, group, symmetric).size_bytes());
    if (quantization.reordered) sum.Add(cols * int64_t{sizeof(int32_t)});
  };
  WeightSizes sizes;
  if (config.is_mtp_head) {
    const ProductSpec& input = config.mtp->input;
    add_matrix(sizes.feed_forward, input.rows(), input.cols, input.quantized, input.rounds);
    for (int i = 0; i < 2; ++i) sizes.vectors.Add(d * kFloat);
  } else {
    sizes.embedding.Add(MatrixBytes(config.vocab_size, d, {}, stored_embedding));
  }
  if (const LayerInputsSpec& inputs = config.inputs) {
    sizes.embedding.Add(MatrixBytes(inputs.vocab_size, inputs.columns(), {}, stored_embedding));
    sizes.feed_forward.Add(MatrixBytes(inputs.columns(), d, {}, activation));
    sizes.vectors.Add(inputs.width * kFloat);
  }
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const bool on_host = HasExpertsOnHost(config, i, experts_on_host);
    for (const SublayerSpec& sublayer : config.layers[i].sublayers) {
      const auto* recurrent = std::get_if<RecurrentSpec>(&sublayer.body);
      const bool attends =
          recurrent != nullptr || std::holds_alternative<AttentionSpec>(sublayer.body);
      MemorySize& matrices = attends ? sizes.attention : sizes.feed_forward;
      int64_t fetched_bytes = 0;
      ForEachNorm(sublayer, [&](const NormSpec& norm) { sizes.vectors.Add(norm.size * kFloat); });
      ForEachProduct(sublayer, [&](const ProductSpec& product, int count) {
        const bool kept = on_host && IsOfExperts(sublayer, product);
        MemorySize each;
        add_matrix(each, product.rows(), product.cols, product.quantized, product.rounds);
        if (kept) fetched_bytes += count * backend::FetchedMatrixBytes(each.bytes);
        for (int i = 0; i < count; ++i) (kept ? sizes.host_experts : matrices).Add(each);
        if (product.bias) sizes.vectors.Add(count * product.rows() * kFloat);
      });
      if (const auto* attention = std::get_if<AttentionSpec>(&sublayer.body)) {
        if (attention->sinks) sizes.vectors.Add(attention->query_heads * kFloat);
        const LatentSpec& latent = attention->latent;
        for (const int width : {latent.plain, latent.value_dim}) {
          if (latent) {
            matrices.Add(
                MatrixBytes(attention->query_heads * int64_t{latent.rank}, width, {}, activation));
          }
        }
      }
      if (recurrent != nullptr) {
        sizes.vectors.Add(recurrent->taps * recurrent->conv_width() * kFloat);
        if (recurrent->conv_bias) sizes.vectors.Add(recurrent->conv_width() * kFloat);
        for (const TensorName& name : {recurrent->decay, recurrent->step_bias, recurrent->skip}) {
          if (name) sizes.vectors.Add(recurrent->heads * kFloat);
        }
      }
      if (const auto* experts = std::get_if<ExpertsSpec>(&sublayer.body)) {
        matrices.Add(experts->router.rows() * experts->router.cols * kFloat);
        if (experts->router.bias) sizes.vectors.Add(experts->router.rows() * kFloat);
        if (experts->choice_bias) sizes.vectors.Add(experts->router.rows() * kFloat);
        if (experts->beside) {
          sizes.vectors.Add(d * kFloat);  // router_scale
          sizes.vectors.Add(experts->count * kFloat);
        }
        for (int i = 0; i < 2; ++i) {
          matrices.Add(experts->count * backend::kExpertTableEntryBytes);
        }
        if (on_host) matrices.Add(experts->count * backend::kExpertSourceBytes);
      }
      sizes.fetched_expert_bytes = std::max(sizes.fetched_expert_bytes, fetched_bytes);
    }
  }
  sizes.vectors.Add(d * kFloat);         // final_norm
  if (config.is_mtp_head) return sizes;  // it has the model's embedding and LM head
  if (config.lm_head_quantized) {        // tied or not
    add_matrix(sizes.lm_head, config.vocab_size, d, true);
  } else if (config.load_bits > 0) {
    add_rounded(sizes.lm_head, config.vocab_size, d, kLmHeadLoadBits);
  } else {
    sizes.lm_head.Add(MatrixBytes(config.vocab_size, d, {}, activation));
  }
  return sizes;
}

int ExpertLayers(const ModelConfig& config) {
  return static_cast<int>(
      std::count_if(config.layers.begin(), config.layers.end(),
                    [](const LayerSpec& layer) { return layer.has_experts(); }));
}

bool HasExpertsOnHost(const ModelConfig& config, size_t layer, int experts_on_host) {
  if (!config.layers[layer].has_experts()) return false;
  const auto before = config.layers.begin() + static_cast<ptrdiff_t>(layer);
  return std::count_if(config.layers.begin(), before, [](const LayerSpec& other) {
           return other.has_experts();
         }) < experts_on_host;
}

void SetMatrixLimits(const ModelConfig& config, backend::StepLimits* limits) {
  limits->quantized_columns = limits->experts = limits->experts_per_token = 0;
  const auto add = [&](bool quantized, int64_t cols) {
    if (!quantized && config.load_bits == 0) return;
    limits->quantized_columns = std::max(limits->quantized_columns, static_cast<int>(cols));
  };
  for (const LayerSpec& layer : config.layers) {
    for (const SublayerSpec& sublayer : layer.sublayers) {
      if (const auto* experts = std::get_if<ExpertsSpec>(&sublayer.body)) {
        limits->experts = std::max(limits->experts, experts->count);
        limits->experts_per_token = std::max(limits->experts_per_token, experts->routing.per_token);
      }
      ForEachProduct(sublayer, [&](const ProductSpec& product, int) {
        // Products of experts never dequantise a matrix.
        if (!IsOfExperts(sublayer, product)) add(product.quantized, product.cols);
      });
    }
  }
  add(config.lm_head_quantized, config.hidden_dim);
  limits->reordered_columns = config.quantization && config.quantization->reordered;
}

MemorySize RopeMemory(const ModelConfig& config, int max_positions) {
  MemorySize size;
  for (const backend::RopeSpec& rope : config.ropes) {
    const int64_t half = static_cast<int64_t>(rope.inverse_frequencies.size());
    for (int i = 0; i < 2; ++i) size.Add(max_positions * half * kFloat);
    if (rope.query_beta != 0) size.Add(max_positions * kFloat);
  }
  return size;
}

Workspaces WorkspacesOf(const ModelConfig& config, int max_rows, int max_logit_rows,
                        DType activation, const ScratchNeeds& needs) {
  const int64_t d = config.hidden_dim;
  int64_t q = 0, qkv = 0, attended = 0, q_up = 0, experts_count = 0;
  int64_t convolved = 0, steps = 0, recurred = 0;
  const int64_t inputs = config.inputs.columns();
  // What the layers' own embeddings are made of lies there, too.
  qkv = inputs;
  if (config.is_mtp_head) attended = 2 * d;
  backend::ExpertScratch experts_rows;
  Workspaces::Shape gate_up = {0, 0, DType::kF32}, gated = {0, 0, activation};
  const auto widen = [](Workspaces::Shape& shape, int64_t rows, int64_t cols) {
    if (rows * cols > shape.rows * shape.cols) shape = {rows, cols, shape.dtype};
  };
  const auto add_mlp = [&](const MlpSpec& mlp) {
    widen(gate_up, needs.gate_up || !mlp.has_gate() ? max_rows : 0, mlp.gate_up.rows());
    widen(gated, max_rows, mlp.ffn_dim);
  };
  for (const LayerSpec& layer : config.layers) {
    for (const SublayerSpec& sublayer : layer.sublayers) {
      if (const auto* attention = std::get_if<AttentionSpec>(&sublayer.body)) {
        const LatentSpec& latent = attention->latent;
        q = std::max(q, attention->q_width());
        // Latent attention has the values that the heads' results are expanded to there, too, and
        // in `attended` all inputs of its products one after the other.
        qkv = std::max({qkv, attention->qkv.rows(), attention->output.cols});
        attended = std::max({attended, attention->result_width(), attention->output.cols,
                             latent.q_norm.size, int64_t{attention->query_heads} * latent.plain});
        if (latent.q_norm) q_up = std::max(q_up, latent.q_up.rows());
      } else if (const auto* recurrent = std::get_if<RecurrentSpec>(&sublayer.body)) {
        qkv = std::max(qkv, recurrent->in.rows());
        attended = std::max(attended, recurrent->width());
        if (recurrent->kind == RecurrentSpec::Kind::kShortConv) continue;
        convolved = std::max(convolved, recurrent->conv_width());
        steps = std::max(steps, recurrent->steps.rows());
        recurred = std::max(recurred, recurrent->width());
      } else if (const auto* input = std::get_if<LayerInputSpec>(&sublayer.body)) {
        attended = std::max<int64_t>(attended, input->width);
      } else if (const auto* experts = std::get_if<ExpertsSpec>(&sublayer.body)) {
        add_mlp(experts->shared);
        if (experts->beside) {  // what the router reads, and the experts' sum
          qkv = std::max(qkv, d);
          q = std::max(q, d);
        }
        experts_count = std::max<int64_t>(experts_count, experts->count);
        const auto scratch =
            backend::ExpertScratch::For(max_rows, experts->routing.per_token, needs.experts_at_once,
                                        experts->expert.has_gate());
        experts_rows.inputs = std::max(experts_rows.inputs, scratch.inputs);
        experts_rows.results = std::max(experts_rows.results, scratch.results);
        widen(gate_up, scratch.gate_up, experts->expert.gate_up.rows());
        widen(gated, scratch.results, experts->expert.ffn_dim);
      } else {
        add_mlp(std::get<MlpSpec>(sublayer.body));
      }
    }
  }
  const int64_t rows = max_rows;
  const int64_t logit_rows = std::min(max_rows, max_logit_rows);
  return {.residual = {rows, d, DType::kF32},
          .normed = {rows, d, activation},
          .qkv = {rows, qkv, DType::kF32},
          .q = {rows, q, DType::kF32},
          .attended = {rows, attended, activation},
          .convolved = {convolved > 0 ? rows : 0, convolved, DType::kF32},
          .steps = {steps > 0 ? rows : 0, steps, DType::kF32},
          .recurred = {recurred > 0 ? rows : 0, recurred, DType::kF32},
          .inputs = {inputs > 0 ? rows : 0, inputs, DType::kF32},
          .q_up = {q_up > 0 ? rows : 0, q_up, DType::kF32},
          .delta = {rows, d, DType::kF32},
          .gate_up = gate_up,
          .gated = gated,
          .expert_logits = {experts_count > 0 ? rows : 0, experts_count, DType::kF32},
          .expert_inputs = {experts_rows.inputs, d, activation},
          .expert_results = {experts_rows.results, d, DType::kF32},
          .logit_residual = {logit_rows, d, DType::kF32},
          .logit_q = {logit_rows, q, DType::kF32},
          .logit_inputs = {inputs > 0 ? logit_rows : 0, inputs, DType::kF32},
          .logits = {logit_rows, LogitStride(config.vocab_size), DType::kF32}};
}

MemorySize WorkspaceMemory(const Workspaces& w) {
  MemorySize size;
  for (const Workspaces::Shape& shape :
       {w.residual,       w.normed,        w.qkv,           w.q,
        w.attended,       w.convolved,     w.steps,         w.recurred,
        w.inputs,         w.q_up,          w.delta,         w.gate_up,
        w.gated,          w.expert_logits, w.expert_inputs, w.expert_results,
        w.logit_residual, w.logit_q,       w.logit_inputs,  w.logits}) {
    if (shape.rows > 0) size.Add(shape.size_bytes());
  }
  return size;
}

}  // namespace baton::model
