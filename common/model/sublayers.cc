// The sublayers of a forward pass: what DecoderTransformer::Enqueue is made of.
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/model/decoder_transformer.h"

namespace baton::model {

using backend::Tensor;

Tensor DecoderTransformer::AddAndNorm(const Rows& rows, const Pending& pending,
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

void DecoderTransformer::WriteKv(int layer, const AttentionSpec& spec,
                                 const AttentionWeights& weights, const Tensor& normed,
                                 const Rows& rows, const backend::KvPool& pool) {
  BATON_CHECK_EQ(pool.kv_heads, spec.kv_heads);
  BATON_CHECK_EQ(pool.head_dim, spec.head_dim);
  BATON_CHECK_EQ(pool.latent_dim, spec.latent.rank);
  if (spec.latent) return WriteLatentKv(layer, spec, weights, normed, rows, pool);
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

void DecoderTransformer::WriteLatentKv(int layer, const AttentionSpec& spec,
                                       const AttentionWeights& weights, const Tensor& normed,
                                       const Rows& rows, const backend::KvPool& pool) {
  const LatentSpec& latent = spec.latent;
  const Tensor qkv = qkv_.View(rows.count, spec.qkv.rows());
  Project(normed, weights.qkv, qkv);
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
                                const backend::KvPool& pool) {
  Tensor attended = attended_.View(rows.count, spec.result_width());
  backend_.Attention(*rows.batch, pool,
                     {.layer = layer,
                      .query_heads = spec.query_heads,
                      .scale = spec.scale,
                      .score_cap = spec.score_cap,
                      .window = spec.window,
                      .sinks = weights.sinks.get(),
                      .q = rows.q,
                      .out = attended});
  if (spec.latent) attended = ExpandValues(spec, weights.latent, attended);
  Project(attended, weights.output, delta_.View(rows.count, config_.hidden_dim));
}

void DecoderTransformer::FeedForward(const MlpSpec& spec, const MlpWeights& weights, float scale,
                                     const Tensor& normed, const Rows& rows) {
  const Tensor gate_up = gate_up_.View(rows.count, 2 * int64_t{spec.ffn_dim});
  const Tensor gated = gated_.View(rows.count, spec.ffn_dim);
  backend_.MatMulGated(normed, *weights.gate_up.matrix,
                       {.activation = spec.activation, .scale = scale}, gate_up, gated);
  Project(gated, weights.down, delta_.View(rows.count, config_.hidden_dim));
}

void DecoderTransformer::MixExperts(const ExpertsSpec& spec, const ExpertsWeights& weights,
                                    const Tensor& normed, const Rows& rows) {
  const int64_t d = config_.hidden_dim, ffn = spec.expert.ffn_dim;
  const bool shares = spec.shared.ffn_dim > 0;
  if (shares) FeedForward(spec.shared, weights.shared, weights.scale, normed, rows);
  const auto scratch =
      backend::ExpertScratch::For(rows.count, spec.routing.per_token, backend_.experts_at_once());
  backend_.Experts({.x = normed,
                    .router = weights.router.get(),
                    .router_bias = weights.router_bias.get(),
                    .choice_bias = weights.choice_bias.get(),
                    .routing = spec.routing,
                    .group = weights.group.get(),
                    .gating = {.activation = spec.expert.activation, .scale = weights.scale},
                    .logits = expert_logits_.View(rows.count, spec.count),
                    .inputs = expert_inputs_.View(scratch.inputs, d),
                    .gate_up_rows = gate_up_.View(scratch.inputs, 2 * ffn),
                    .gated = gated_.View(scratch.results, ffn),
                    .results = expert_results_.View(scratch.results, d),
                    .out = delta_.View(rows.count, d),
                    .accumulates = shares,
                    .batch = rows.batch});
}

}  // namespace baton::model
