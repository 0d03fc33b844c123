// The sublayers of a forward pass: what DecoderTransformer::Enqueue is made of.
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/model/decoder_transformer.h"

namespace baton::model {

using backend::Tensor;

namespace {

// Columns [first, first + count) of a tensor.
Tensor Columns(Tensor tensor, int64_t first, int64_t count) {
  tensor.data =
      static_cast<std::byte*>(tensor.data) + static_cast<size_t>(first) * SizeOf(tensor.dtype);
  tensor.cols = count;
  return tensor;
}

void CheckPool(const AttentionSpec& spec, const backend::KvPool& pool) {
  BATON_CHECK_EQ(pool.kv_heads, spec.kv_heads);
  BATON_CHECK_EQ(pool.head_dim, spec.head_dim);
  BATON_CHECK_EQ(pool.latent_dim, spec.latent.rank);
}

}  // namespace

backend::NormArgs DecoderTransformer::NormOf(const Rows& rows, const Pending& pending,
                                             const backend::Buffer* weight) {
  backend::NormArgs args = ArgsOf(rows, pending);
  args.weight = weight;
  args.out = normed_.View(rows.count, config_.hidden_dim);
  return args;
}

Tensor DecoderTransformer::AddAndNorm(const Rows& rows, const Pending& pending,
                                      const backend::Buffer* weight) {
  const backend::NormArgs args = NormOf(rows, pending, weight);
  backend_.Norm(args);
  return args.out;
}

void DecoderTransformer::FinishSublayer(const Tensor& x, const ProductWeights& product,
                                        const Rows& rows, Pending& pending) {
  const backend::NormArgs args = ArgsOf(rows, pending);
  if (args.delta_weight != nullptr || !backend_.adds_products(*product.matrix, rows.count)) {
    return Project(x, product, args.delta);
  }
  backend_.MatMulAdd(x, *product.matrix, product.bias.get(), args.delta_scale, rows.residual);
  pending = {};
}

backend::NormArgs DecoderTransformer::ArgsOf(const Rows& rows, const Pending& pending) {
  backend::NormArgs args = {
      .residual = rows.residual, .delta = {}, .eps = config_.norm_eps, .out = {}};
  if (pending.sublayer != nullptr) {
    args.delta = delta_.View(rows.count, config_.hidden_dim);
    args.delta_scale = pending.sublayer->residual_scale;
    if (const auto* mlp = std::get_if<MlpWeights>(&pending.weights->body)) {
      args.delta_scale /= mlp->scale;
    } else if (const auto* experts = std::get_if<ExpertsWeights>(&pending.weights->body)) {
      args.delta_scale /= experts->result_scale();
    }
    args.delta_weight = pending.weights->norm_after.get();
  }
  return args;
}

void DecoderTransformer::Add(const Rows& rows, const Pending& pending) {
  if (pending.sublayer == nullptr) return;
  backend::NormArgs args = ArgsOf(rows, pending);
  args.out = rows.residual;
  backend_.Norm(args);
}

void DecoderTransformer::WriteKv(int layer, const AttentionSpec& spec,
                                 const AttentionWeights& weights, const backend::NormArgs& norm,
                                 const Rows& rows, const backend::KvPool& pool) {
  if (spec.latent) return WriteLatentKv(layer, spec, weights, norm, rows, pool);
  backend_.RopeWriteKv(*rows.batch, pool, MakeHeads(layer, spec, weights, norm, rows, pool));
}

backend::RopeWriteArgs DecoderTransformer::MakeHeads(int layer, const AttentionSpec& spec,
                                                     const AttentionWeights& weights,
                                                     const backend::NormArgs& norm,
                                                     const Rows& rows,
                                                     const backend::KvPool& pool) {
  CheckPool(spec, pool);
  BATON_CHECK(!spec.latent);
  const Tensor qkv = qkv_.View(rows.count, spec.qkv.rows());
  backend_.NormMatMul(norm, *weights.qkv.matrix, weights.qkv.bias.get(), qkv);
  const bool by_head = !spec.norms_all_heads();
  BATON_CHECK(by_head || (spec.owns_kv() && !spec.v_is_k));
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
  return {.layer = layer,
          .query_heads = spec.query_heads,
          .q_stride = spec.q_stride(),
          .qkv = qkv,
          .q_norm = by_head ? weights.q_norm.get() : nullptr,
          .k_norm = by_head ? weights.k_norm.get() : nullptr,
          .norm_eps = config_.norm_eps,
          .rope = spec.rope == kNoRope ? nullptr : ropes_[static_cast<size_t>(spec.rope)].get(),
          .q_out = rows.q,
          .v_is_k = spec.v_is_k,
          .norm_v = spec.norm_v,
          .q_only = !spec.owns_kv()};
}

void DecoderTransformer::WriteLatentKv(int layer, const AttentionSpec& spec,
                                       const AttentionWeights& weights,
                                       const backend::NormArgs& norm, const Rows& rows,
                                       const backend::KvPool& pool) {
  CheckPool(spec, pool);
  const LatentSpec& latent = spec.latent;
  const Tensor qkv = qkv_.View(rows.count, spec.qkv.rows());
  backend_.NormMatMul(norm, *weights.qkv.matrix, weights.qkv.bias.get(), qkv);
  Tensor q = qkv, kv = qkv;
  q.cols = spec.qkv.parts[0].rows;
  kv.cols = spec.head_dim;
  kv.data = static_cast<float*>(kv.data) + q.cols;
  if (latent.q_norm) {
    const Tensor q_normed = attended_.View(rows.count, latent.q_norm.size);
    backend_.Norm({.residual = q,
                   .delta = {},
                   .weight = weights.latent.q_norm.get(),
                   .eps = latent.norm_eps,
                   .out = q_normed});
    q = q_up_.View(rows.count, latent.q_up.rows());
    Project(q_normed, weights.latent.q_up, q);
  }
  const Tensor plain = attended_.View(rows.count, int64_t{spec.query_heads} * latent.plain);
  backend_.WriteLatentKv(*rows.batch, pool,
                         {.layer = layer,
                          .query_heads = spec.query_heads,
                          .q = q,
                          .kv = kv,
                          .norm = weights.latent.norm.get(),
                          .norm_eps = latent.norm_eps,
                          .rope = ropes_[static_cast<size_t>(spec.rope)].get(),
                          .q_plain = plain,
                          .q_out = rows.q});
  backend_.MatMulHeads(
      {.x = plain, .heads = weights.latent.keys.get(), .out = rows.q, .out_stride = spec.head_dim});
}

Tensor DecoderTransformer::ExpandValues(const AttentionSpec& spec, const LatentWeights& weights,
                                        const Tensor& attended) {
  const Tensor values = qkv_.View(attended.rows, spec.output.cols);
  backend_.MatMulHeads({.x = attended,
                        .heads = weights.values.get(),
                        .out = values,
                        .out_stride = spec.latent.value_dim});
  // Nothing reads `attended` any more.
  const Tensor rounded = attended_.View(attended.rows, spec.output.cols);
  backend_.Norm({.residual = values, .delta = {}, .out = rounded});
  return rounded;
}

void DecoderTransformer::Attend(int layer, const AttentionSpec& spec,
                                const AttentionWeights& weights, const Rows& rows,
                                const backend::KvPool& pool, const backend::RopeWriteArgs* write,
                                Pending& pending) {
  Tensor attended = attended_.View(rows.count, spec.result_width());
  const backend::AttentionArgs args = {.layer = layer,
                                       .query_heads = spec.query_heads,
                                       .scale = spec.scale,
                                       .score_cap = spec.score_cap,
                                       .window = spec.window,
                                       .sinks = weights.sinks.get(),
                                       .q = rows.q,
                                       .out = attended};
  if (write != nullptr) {
    backend_.RopeWriteAttend(*rows.batch, pool, *write, args);
  } else {
    backend_.Attention(*rows.batch, pool, args);
  }
  if (spec.gated) {
    Tensor gate = qkv_.View(rows.count, spec.qkv.rows());
    gate.data = static_cast<float*>(gate.data) + spec.head_dim;
    gate.cols -= spec.head_dim;
    backend_.GateOutput(
        {.x = attended, .gate = gate, .group = spec.head_dim, .gate_stride = spec.q_stride()});
  }
  if (spec.latent) attended = ExpandValues(spec, weights.latent, attended);
  FinishSublayer(attended, weights.output, rows, pending);
}

void DecoderTransformer::Recur(int layer, const RecurrentSpec& spec,
                               const RecurrentWeights& weights, const Tensor& normed,
                               const Rows& rows, const backend::KvPool& pool) {
  const Tensor in = qkv_.View(rows.count, spec.in.rows());
  Project(normed, weights.in, in);
  const Tensor out = attended_.View(rows.count, spec.width());
  if (spec.kind == RecurrentSpec::Kind::kShortConv) {
    backend_.ShortConv(*rows.batch, pool,
                       {.layer = layer,
                        .taps = spec.taps,
                        .x = Columns(in, 2 * spec.width(), spec.width()),
                        .before = Columns(in, 0, spec.width()),
                        .after = Columns(in, spec.width(), spec.width()),
                        .weight = weights.conv.get(),
                        .bias = weights.conv_bias.get(),
                        .out = out});
  } else {
    Combine(layer, spec, weights, normed, in, rows, pool, out);
  }
  Project(out, weights.output, delta_.View(rows.count, config_.hidden_dim));
}

void DecoderTransformer::Combine(int layer, const RecurrentSpec& spec,
                                 const RecurrentWeights& weights, const Tensor& normed,
                                 const Tensor& in, const Rows& rows, const backend::KvPool& pool,
                                 const Tensor& out) {
  const Tensor convolved = convolved_.View(rows.count, spec.conv_width());
  const Tensor recurred = recurred_.View(rows.count, spec.width());
  backend_.ShortConv(*rows.batch, pool,
                     {.layer = layer,
                      .taps = spec.taps,
                      .x = Columns(in, spec.conv_column(), spec.conv_width()),
                      .before = {},
                      .after = {},
                      .weight = weights.conv.get(),
                      .bias = weights.conv_bias.get(),
                      .silu = true,
                      .out = convolved});
  const bool delta = spec.kind == RecurrentSpec::Kind::kGatedDelta;
  if (delta) {
    const Tensor steps = steps_.View(rows.count, spec.steps.rows());
    Project(normed, weights.steps, steps);
    backend_.GatedDelta(*rows.batch, pool,
                        {.layer = layer,
                         .key_heads = spec.key_heads,
                         .keys_in_turn = spec.keys_in_turn,
                         .value_heads = spec.heads,
                         .key_dim = spec.key_dim,
                         .value_dim = spec.head_dim,
                         .qkv = convolved,
                         .gates = steps,
                         .decay = weights.decay.get(),
                         .step_bias = weights.step_bias.get(),
                         .out = recurred});
  } else {
    backend_.StateSpace(*rows.batch, pool,
                        {.layer = layer,
                         .heads = spec.heads,
                         .head_dim = spec.head_dim,
                         .groups = spec.key_heads,
                         .state_dim = spec.key_dim,
                         .xbc = convolved,
                         .dt = Columns(in, spec.width() + spec.conv_width(), spec.heads),
                         .decay = weights.decay.get(),
                         .step_bias = weights.step_bias.get(),
                         .skip = weights.skip.get(),
                         .least_step = spec.least_step,
                         .most_step = spec.most_step,
                         .out = recurred});
  }
  backend_.GatedNorm({.x = recurred,
                      .gate = Columns(in, spec.gate_column(), spec.width()),
                      .weight = weights.norm.get(),
                      .weight_size = spec.norm.size,
                      .group = spec.norm_group,
                      .gate_first = !delta,
                      .eps = spec.norm_eps,
                      .out = out});
}

void DecoderTransformer::FeedForward(const MlpSpec& spec, const MlpWeights& weights,
                                     const backend::NormArgs& norm, const Rows& rows,
                                     Pending& pending) {
  const Tensor gated = gated_.View(rows.count, spec.ffn_dim);
  backend_.NormMatMulGated(norm, *weights.gate_up.matrix,
                           {.activation = spec.activation, .scale = weights.scale},
                           gate_up_.View(rows.count, spec.gate_up.rows()), gated);
  FinishSublayer(gated, weights.down, rows, pending);
}

void DecoderTransformer::ShareExperts(const MlpSpec& spec, const MlpWeights& weights, float scale,
                                      const Tensor& normed, const Rows& rows,
                                      const ProductWeights* result_gate) {
  const Tensor gate_up = gate_up_.View(rows.count, spec.gate_up.rows());
  const Tensor gated = gated_.View(rows.count, spec.ffn_dim);
  backend_.MatMulGated(normed, *weights.gate_up.matrix,
                       {.activation = spec.activation, .scale = scale}, gate_up, gated);
  if (result_gate != nullptr) {
    // The router's logits come later.
    const Tensor gate = expert_logits_.View(rows.count, 1);
    Project(normed, *result_gate, gate);
    backend_.GateOutput({.x = gated, .gate = gate});
  }
  Project(gated, weights.down, delta_.View(rows.count, config_.hidden_dim));
}

void DecoderTransformer::EmbedInputs(const Rows& rows) {
  const LayerInputsSpec& spec = config_.inputs;
  const LayerInputsWeights& weights = weights_.inputs;
  backend_.Embed(*rows.batch, weights.embedding.table, spec.embedding_scale, rows.inputs);
  // The residual in the activations' type.
  const Tensor x = AddAndNorm(rows, {}, nullptr);
  const Tensor projected = qkv_.View(rows.count, spec.columns());
  Project(x, weights.projection, projected);
  const auto by_layer = [&](Tensor tensor) {
    tensor.rows *= spec.layers;
    tensor.cols = tensor.row_stride = spec.width;
    return tensor;
  };
  const Tensor inputs = by_layer(rows.inputs);
  backend_.Norm({.residual = inputs,
                 .delta = by_layer(projected),
                 .delta_scale = spec.projection_scale,
                 .delta_weight = weights.norm.get(),
                 .eps = config_.norm_eps,
                 .out = inputs});
  backend_.ScaleLogits(rows.inputs, spec.scale, 0);
}

void DecoderTransformer::MixHidden(const Rows& rows) {
  const int64_t d = config_.hidden_dim;
  const Tensor both = attended_.View(rows.count, 2 * d);
  backend_.Norm({.residual = rows.residual,
                 .delta = {},
                 .weight = weights_.mtp.embedding_norm.get(),
                 .eps = config_.norm_eps,
                 .out = Columns(both, 0, d)});
  backend_.Norm({.residual = delta_.View(rows.count, d),
                 .delta = {},
                 .weight = weights_.mtp.hidden_norm.get(),
                 .eps = config_.norm_eps,
                 .out = Columns(both, d, d)});
  Project(both, weights_.mtp.input, rows.residual);
}

void DecoderTransformer::UseInput(const LayerInputSpec& spec, const LayerInputWeights& weights,
                                  const Tensor& normed, const Rows& rows) {
  const Tensor gate = qkv_.View(rows.count, spec.width);
  Project(normed, weights.gate, gate);
  const Tensor gated = attended_.View(rows.count, spec.width);
  backend_.GateBy(gate, Columns(rows.inputs, spec.first_column, spec.width), spec.activation,
                  gated);
  Project(gated, weights.projection, delta_.View(rows.count, config_.hidden_dim));
}

void DecoderTransformer::MixExperts(const ExpertsSpec& spec, const ExpertsWeights& weights,
                                    const Tensor& normed, const Rows& rows) {
  const int64_t d = config_.hidden_dim, ffn = spec.expert.ffn_dim;
  const bool shares = spec.shared.ffn_dim > 0, beside = static_cast<bool>(spec.beside);
  if (shares) {
    ShareExperts(spec.shared, weights.shared, beside ? weights.shared.scale : weights.scale, normed,
                 rows, weights.shared_gate.matrix != nullptr ? &weights.shared_gate : nullptr);
  }
  const Tensor delta = delta_.View(rows.count, d);
  Tensor sum = delta, router_x;
  if (beside) {
    BATON_CHECK(shares);
    // Nothing else is in these between attention and the next layer.
    sum = q_.View(rows.count, d);
    router_x = qkv_.View(rows.count, d);
    NormBeside(weights, rows, delta, normed, router_x);
  }
  const auto scratch = backend::ExpertScratch::For(
      rows.count, spec.routing.per_token, backend_.experts_at_once(), spec.expert.has_gate());
  backend_.Experts({.x = normed,
                    .router = weights.router.get(),
                    .router_bias = weights.router_bias.get(),
                    .choice_bias = weights.choice_bias.get(),
                    .routing = spec.routing,
                    .group = weights.group.get(),
                    .gating = {.activation = spec.expert.activation, .scale = weights.scale},
                    .logits = expert_logits_.View(rows.count, spec.count),
                    .inputs = expert_inputs_.View(scratch.inputs, d),
                    .gate_up_rows = gate_up_.View(scratch.gate_up, spec.expert.gate_up.rows()),
                    .gated = gated_.View(scratch.results, ffn),
                    .results = expert_results_.View(scratch.results, d),
                    .out = sum,
                    .accumulates = shares && !beside,
                    .batch = rows.batch,
                    .router_x = router_x,
                    .expert_scales = weights.beside.expert_scales.get()});
  if (!beside) return;
  backend_.Norm({.residual = delta,
                 .delta = sum,
                 .delta_scale = 1 / weights.scale,
                 .delta_weight = weights.beside.after.get(),
                 .eps = config_.norm_eps,
                 .out = delta});
}

void DecoderTransformer::NormBeside(const ExpertsWeights& weights, const Rows& rows,
                                    const Tensor& of_mlp, const Tensor& normed,
                                    const Tensor& router_x) {
  const auto norm = [&](const Tensor& x, const backend::Buffer& weight, float eps,
                        const Tensor& out) {
    backend_.Norm({.residual = x, .delta = {}, .weight = &weight, .eps = eps, .out = out});
  };
  const float eps = config_.norm_eps, scale = weights.shared.scale;
  // In place. The root of the mean square is scaled, too, and its constant with it.
  norm(of_mlp, *weights.beside.mlp_after, eps * scale * scale, of_mlp);
  norm(rows.residual, *weights.beside.before, eps, normed);
  norm(rows.residual, *weights.beside.router_scale, eps, router_x);
}

}  // namespace baton::model
