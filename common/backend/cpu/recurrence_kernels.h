// Recurrent layers: recurrence.h has what they compute. For kernels_*.cc only; see simd16.h.
//
// A sum over the depth of a state has two accumulators, of the even and of the odd depths, each of
// them in ascending order, on every instruction set; a sum over the taps has one. A lane never sees
// another one.
#ifndef BATON_COMMON_BACKEND_CPU_RECURRENCE_KERNELS_H_
#define BATON_COMMON_BACKEND_CPU_RECURRENCE_KERNELS_H_

#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/simd16.h"
#include "common/backend/cpu/vector_kernels.h"

namespace baton::backend {
namespace {

// Units that share what a token has for all of them. Their states fit into a first-level cache of
// 32 KiB.
#if defined(__AVX512F__)
constexpr int kUnitsAtOnce = 2;
#else  // 16 registers of half a vector
constexpr int kUnitsAtOnce = 1;
#endif

// log(1 + e^x) within 1e-6 of it. A NaN stays one.
BATON_INLINE F32x16 Softplus(F32x16 x) {
  const F32x16 minus = Sub(Zero(), x);
  const F32x16 e = Exp(Sub(Zero(), Max(minus, x)));
  // log(1 + e) = 2 atanh(s) for s = e / (2 + e), at most 1/3: the first term left out is below
  // 1e-9 of the first.
  const F32x16 s = Div(e, Add(Set1(2.0f), e)), square = Mul(s, s);
  F32x16 p = Set1(1.0f / 17);
  p = Fma(p, square, Set1(1.0f / 15));
  p = Fma(p, square, Set1(1.0f / 13));
  p = Fma(p, square, Set1(1.0f / 11));
  p = Fma(p, square, Set1(1.0f / 9));
  p = Fma(p, square, Set1(1.0f / 7));
  p = Fma(p, square, Set1(1.0f / 5));
  p = Fma(p, square, Set1(1.0f / 3));
  p = Fma(p, square, Set1(1.0f));
  return Fma(Add(s, s), p, Max(Zero(), x));
}

// 1 / (1 + e^-x)
BATON_INLINE F32x16 Sigmoid(F32x16 x) {
  return Div(Set1(1.0f), Add(Set1(1.0f), Exp(Sub(Zero(), x))));
}

void ConvolveRun(const ShortConvRun& r) {
  const int kept = r.taps - 1, tokens = r.run.tokens;
  alignas(64) float inputs[(kMostTaps - 1 + kRunTokens) * 16];
  for (int unit = 0; unit < r.run.units; ++unit) {
    const int64_t at = int64_t{unit} * 16;
    for (int i = 0; i < kept; ++i) Store(Load(r.run.from[unit] + i * 16), inputs + i * 16);
    for (int t = 0; t < tokens; ++t) {
      F32x16 u = Load(r.x.first + t * r.x.stride + at);
      if (r.before.first != nullptr) u = Mul(u, Load(r.before.first + t * r.before.stride + at));
      Store(u, inputs + (kept + t) * 16);
    }
    const F32x16 bias = r.bias == nullptr ? Zero() : Load(r.bias + at);
    for (int t = 0; t < tokens; ++t) {
      F32x16 y = bias;
      for (int j = 0; j < r.taps; ++j) {
        y = Fma(Load(r.weight.first + j * r.weight.stride + at), Load(inputs + (t + j) * 16), y);
      }
      if (r.silu) y = Silu(y);
      if (r.after.first != nullptr) y = Mul(y, Load(r.after.first + t * r.after.stride + at));
      StoreElements(y, r.element, r.out, t * r.out_stride + at);
    }
    for (int i = 0; i < kept; ++i) Store(Load(inputs + (tokens + i) * 16), r.run.to[unit] + i * 16);
  }
}

// A head's tokens: S = decay S + key inputᵀ; out = queryᵀ S. The input is rate * value or, of the
// delta rule, rate * (value - decay keyᵀ S).
struct HeadRun {
  StateRun run;
  int depth = 0;
  FloatRows keys, queries, values;
  float decay[kRunTokens] = {};
  float rate[kRunTokens] = {};  // beta, or the step
  float skip = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// keyᵀ S, as AdvanceUnits computes it of what it stores.
template <int kUnits>
BATON_NO_INLINE void SumUnits(const float* const* states, const float* key, int depth,
                              F32x16* sums) {
  F32x16 sum[kUnits][2];
  for (int u = 0; u < kUnits; ++u) sum[u][0] = sum[u][1] = Zero();
  for (int d = 0; d < depth; d += 2) {
    for (int odd = 0; odd < 2; ++odd) {
      const F32x16 k = Set1(key[d + odd]);
      for (int u = 0; u < kUnits; ++u) {
        sum[u][odd] = Fma(k, Load(states[u] + (d + odd) * 16), sum[u][odd]);
      }
    }
  }
  for (int u = 0; u < kUnits; ++u) sums[u] = Add(sum[u][0], sum[u][1]);
}

// One token: `to` becomes decay * from + key * input, and out queryᵀ of that. On the way, while the
// state is in registers, the delta rule's sum of the next token is computed. The last token of a
// run has none. It fetches the units behind these in memory, which mostly are the next ones to
// compute.
template <int kUnits, bool kDelta, bool kLast>
BATON_NO_INLINE void AdvanceUnits(const float* const* from, float* const* to, int depth,
                                  float decay, const float* key, const float* query,
                                  const float* next_key, const F32x16* inputs, F32x16* outs,
                                  F32x16* next_sums) {
  constexpr bool kSums = kDelta && !kLast;
  const float* source[kUnits];
  float* target[kUnits];
  F32x16 input[kUnits], out[kUnits][2], next[kUnits][2];
  for (int u = 0; u < kUnits; ++u) {
    source[u] = from[u];
    target[u] = to[u];
    input[u] = inputs[u];
    out[u][0] = out[u][1] = next[u][0] = next[u][1] = Zero();
  }
  const F32x16 by = Set1(decay);
  for (int d = 0; d < depth; d += 2) {
    for (int odd = 0; odd < 2; ++odd) {
      const int64_t at = int64_t{d + odd} * 16;
      const F32x16 k = Set1(key[d + odd]), q = Set1(query[d + odd]);
      F32x16 state[kUnits];
      for (int u = 0; u < kUnits; ++u) state[u] = Load(source[u] + at);
      for (int u = 0; u < kUnits; ++u) state[u] = Fma(k, input[u], Mul(by, state[u]));
      for (int u = 0; u < kUnits; ++u) out[u][odd] = Fma(q, state[u], out[u][odd]);
      if constexpr (kSums) {
        const F32x16 n = Set1(next_key[d + odd]);
        for (int u = 0; u < kUnits; ++u) next[u][odd] = Fma(n, state[u], next[u][odd]);
      }
      for (int u = 0; u < kUnits; ++u) {
        Store(state[u], target[u] + at);
        if (kLast) __builtin_prefetch(source[u] + kUnits * depth * 16 + at, 1);
      }
    }
  }
  for (int u = 0; u < kUnits; ++u) {
    outs[u] = Add(out[u][0], out[u][1]);
    if constexpr (kSums) next_sums[u] = Add(next[u][0], next[u][1]);
  }
}

template <bool kDelta, int kUnits>
BATON_INLINE void RunUnits(const HeadRun& r, int unit) {
  const float* from[kUnits];
  float* to[kUnits];
  for (int u = 0; u < kUnits; ++u) {
    from[u] = r.run.from[unit + u];
    to[u] = r.run.to[unit + u];
  }
  F32x16 sums[kUnits], inputs[kUnits], outs[kUnits];
  if constexpr (kDelta) SumUnits<kUnits>(from, r.keys.first, r.depth, sums);
  for (int t = 0; t < r.run.tokens; ++t) {
    const float* key = r.keys.first + t * r.keys.stride;
    const float* query = r.queries.first + t * r.queries.stride;
    const float* value = r.values.first + t * r.values.stride + unit * 16;
    for (int u = 0; u < kUnits; ++u) {
      F32x16 v = Load(value + u * 16);
      if constexpr (kDelta) v = Fma(Set1(-r.decay[t]), sums[u], v);
      inputs[u] = Mul(Set1(r.rate[t]), v);
    }
    const auto advance = t + 1 < r.run.tokens ? AdvanceUnits<kUnits, kDelta, false>
                                              : AdvanceUnits<kUnits, kDelta, true>;
    advance(from, to, r.depth, r.decay[t], key, query, key + r.keys.stride, inputs, outs, sums);
    for (int u = 0; u < kUnits; ++u) {
      F32x16 y = outs[u];
      if constexpr (!kDelta) y = Fma(Set1(r.skip), Load(value + u * 16), y);
      Store(y, r.out + t * r.out_stride + (unit + u) * 16);
      from[u] = to[u];
    }
  }
}

template <bool kDelta>
BATON_INLINE void RunHead(const HeadRun& r) {
  int unit = 0;
  for (; unit + kUnitsAtOnce <= r.run.units; unit += kUnitsAtOnce) {
    RunUnits<kDelta, kUnitsAtOnce>(r, unit);
  }
  for (; unit < r.run.units; ++unit) RunUnits<kDelta, 1>(r, unit);
}

// A column of some rows, with zeros behind them.
BATON_INLINE F32x16 LoadColumn(const FloatRows& rows, int count) {
  float values[kRunTokens] = {};
  for (int t = 0; t < count; ++t) values[t] = rows.first[t * rows.stride];
  return Load(values);
}

// y = x * factor / sqrt(the sum of its squares + eps)
BATON_INLINE void NormHead(const float* x, int n, float eps, float factor, float* y) {
  F32x16 squares = Zero();
  for (int i = 0; i < n; i += 16) squares = Fma(Load(x + i), Load(x + i), squares);
  const F32x16 by = Set1(factor / __builtin_sqrtf(SumLanes(squares) + eps));
  for (int i = 0; i < n; i += 16) Store(Mul(Load(x + i), by), y + i);
}

// To the second-level cache, n columns of what is row t of the next run: the CPU does not foresee
// steps of whole rows. There may be no such row.
BATON_INLINE void PrefetchNext(const FloatRows& rows, int t, int n) {
  const float* row = rows.first + (kRunTokens + t) * rows.stride;
  for (int i = 0; i < n; i += 16) __builtin_prefetch(row + i, 0, 2);
}

void GatedDeltaHead(const GatedDeltaRun& r) {
  alignas(64) float keys[kRunTokens * kMostDepth], queries[kRunTokens * kMostDepth];
  const float query_factor = 1.0f / __builtin_sqrtf(static_cast<float>(r.key_dim));
  for (int t = 0; t < r.run.tokens; ++t) {
    if (r.run.tokens == kRunTokens) {
      PrefetchNext(r.keys, t, r.key_dim);
      PrefetchNext(r.queries, t, r.key_dim);
      PrefetchNext(r.values, t, r.run.units * 16);
    }
    NormHead(r.keys.first + t * r.keys.stride, r.key_dim, r.norm_eps, 1, keys + t * r.key_dim);
    NormHead(r.queries.first + t * r.queries.stride, r.key_dim, r.norm_eps, query_factor,
             queries + t * r.key_dim);
  }
  HeadRun head = {.run = r.run,
                  .depth = r.key_dim,
                  .keys = {keys, r.key_dim},
                  .queries = {queries, r.key_dim},
                  .values = r.values,
                  .out = r.out,
                  .out_stride = r.out_stride};
  const F32x16 step = Softplus(Add(LoadColumn(r.a, r.run.tokens), Set1(r.step_bias)));
  Store(Exp(Mul(Set1(r.decay), step)), head.decay);
  Store(Sigmoid(LoadColumn(r.b, r.run.tokens)), head.rate);
  RunHead<true>(head);
}

void StateSpaceHead(const StateSpaceRun& r) {
  HeadRun head = {.run = r.run,
                  .depth = r.state_dim,
                  .keys = r.b,
                  .queries = r.c,
                  .values = r.x,
                  .skip = r.skip,
                  .out = r.out,
                  .out_stride = r.out_stride};
  // In this order of operands a NaN stays one.
  F32x16 step = Softplus(Add(LoadColumn(r.dt, r.run.tokens), Set1(r.step_bias)));
  step = Max(Set1(r.least_step), step);
  step = IfLess(Set1(r.most_step), step, Set1(r.most_step), step);
  Store(Exp(Mul(Set1(r.decay), step)), head.decay);
  Store(step, head.rate);
  RunHead<false>(head);
}

void GatedNorm(const GatedNormGroup& g) {
  const auto silu = [&g](int64_t i, int count) { return Silu(LoadUpTo16(g.gate + i, count)); };
  const auto input = [&](int64_t i, int count) {
    const F32x16 x = LoadUpTo16(g.x + i, count);
    return g.gate_first ? Mul(silu(i, count), x) : x;
  };
  const F32x16 inverse = InverseRms(g.n, g.eps, input);
  for (int64_t i = 0; i < g.n; i += 16) {
    const int count = g.n - i < 16 ? static_cast<int>(g.n - i) : 16;
    F32x16 y = Mul(Mul(input(i, count), inverse), LoadUpTo16(g.weight + i, count));
    if (!g.gate_first) y = Mul(silu(i, count), y);
    if (count == 16) {
      StoreElements(y, g.element, g.y, i);
    } else {
      StoreElementsPart(y, g.element, g.y, i, count);
    }
  }
}

void GateOutput(void* x, Element element, const float* gate, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? static_cast<int>(n - i) : 16;
    const F32x16 by = Sigmoid(LoadUpTo16(gate + i, count));
    if (count == 16) {
      StoreElements(Mul(LoadElements(x, element, i), by), element, x, i);
    } else {
      StoreElementsPart(Mul(LoadElementsPart(x, element, i, count), by), element, x, i, count);
    }
  }
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_RECURRENCE_KERNELS_H_
