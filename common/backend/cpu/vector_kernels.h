// Norm, RoPE, activation and conversions. For kernels_*.cc only; see simd16.h.
#ifndef BATON_COMMON_BACKEND_CPU_VECTOR_KERNELS_H_
#define BATON_COMMON_BACKEND_CPU_VECTOR_KERNELS_H_

#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/simd16.h"

namespace baton::backend {
namespace {

BATON_INLINE F32x16 LoadElements(const void* p, Element element, int64_t at) {
  if (element == Element::kF32) return Load(static_cast<const float*>(p) + at);
  const uint16_t* half = static_cast<const uint16_t*>(p) + at;
  return element == Element::kBF16 ? LoadBF16(half) : LoadF16(half);
}

BATON_INLINE void StoreElements(F32x16 a, Element element, void* p, int64_t at) {
  if (element == Element::kF32) return Store(a, static_cast<float*>(p) + at);
  uint16_t* half = static_cast<uint16_t*>(p) + at;
  return element == Element::kBF16 ? StoreBF16(a, half) : StoreF16(a, half);
}

BATON_INLINE F32x16 LoadElementsPart(const void* p, Element element, int64_t at, int count) {
  if (element == Element::kF32) return LoadPart(static_cast<const float*>(p) + at, count);
  uint16_t lanes[16] = {};
  for (int i = 0; i < count; ++i) lanes[i] = static_cast<const uint16_t*>(p)[at + i];
  return LoadElements(lanes, element, 0);
}

BATON_INLINE void StoreElementsPart(F32x16 a, Element element, void* p, int64_t at, int count) {
  if (element == Element::kF32) return StorePart(a, static_cast<float*>(p) + at, count);
  uint16_t lanes[16];
  StoreElements(a, element, lanes, 0);
  for (int i = 0; i < count; ++i) static_cast<uint16_t*>(p)[at + i] = lanes[i];
}

// 1 / rms of n elements, of which take(i, count) gives those from i on; it has 16 lanes, of which
// `count` count and the others are zeros.
template <class Take>
BATON_INLINE F32x16 InverseRms(int64_t n, float eps, const Take& take) {
  F32x16 squares = Zero();
  for (int64_t i = 0; i < n; i += 16) {
    const F32x16 a = take(i, n - i < 16 ? static_cast<int>(n - i) : 16);
    squares = Fma(a, a, squares);
  }
  return Set1(1.0f / __builtin_sqrtf(SumLanes(squares) / static_cast<float>(n) + eps));
}

BATON_INLINE F32x16 LoadUpTo16(const float* p, int count) {
  return count == 16 ? Load(p) : LoadPart(p, count);
}

void Norm(const NormRow& row) {
  const auto delta_at = [&row](int64_t i, int count) {
    const F32x16 delta = LoadUpTo16(row.delta + i, count);
    return row.delta_scale == 1 ? delta : Mul(delta, Set1(row.delta_scale));
  };
  F32x16 delta_inverse = Zero();
  if (row.delta_weight != nullptr) delta_inverse = InverseRms(row.n, row.eps, delta_at);
  // Adds the delta on the way.
  const auto sum_at = [&](int64_t i, int count) {
    F32x16 a = LoadUpTo16(row.x + i, count);
    if (row.delta == nullptr) return a;
    F32x16 delta = delta_at(i, count);
    if (row.delta_weight != nullptr) {
      delta = Mul(Mul(delta, delta_inverse), LoadUpTo16(row.delta_weight + i, count));
    }
    a = Add(a, delta);
    if (count == 16) {
      Store(a, row.x + i);
    } else {
      StorePart(a, row.x + i, count);
    }
    return a;
  };
  const bool norms = row.weight != nullptr;
  const F32x16 inverse = norms ? InverseRms(row.n, row.eps, sum_at) : Zero();
  for (int64_t i = 0; i < row.n; i += 16) {
    const int count = row.n - i < 16 ? static_cast<int>(row.n - i) : 16;
    F32x16 a = norms ? LoadUpTo16(row.x + i, count) : sum_at(i, count);
    if (norms) a = Mul(Mul(a, inverse), LoadUpTo16(row.weight + i, count));
    if (count == 16) {
      StoreElements(a, row.element, row.y, i);
    } else {
      StoreElementsPart(a, row.element, row.y, i, count);
    }
  }
}

void RopeHead(float* head, const float* cosine, const float* sine, int half) {
  for (int i = 0; i < half; i += 16) {
    const int count = half - i < 16 ? half - i : 16;
    const F32x16 a = LoadPart(head + i, count);
    const F32x16 b = LoadPart(head + half + i, count);
    const F32x16 c = LoadPart(cosine + i, count);
    const F32x16 s = LoadPart(sine + i, count);
    StorePart(Sub(Mul(a, c), Mul(b, s)), head + i, count);
    StorePart(Fma(b, c, Mul(a, s)), head + half + i, count);
  }
}

// x / (1 + e^-x)
BATON_INLINE F32x16 Silu(F32x16 x) { return Div(x, Add(Set1(1.0f), Exp(Sub(Zero(), x)))); }

// x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
BATON_INLINE F32x16 GeluTanh(F32x16 x) {
  const F32x16 inner = Mul(x, Fma(Mul(x, x), Set1(0.044715f), Set1(1.0f)));
  return Div(x, Add(Set1(1.0f), Exp(Mul(inner, Set1(-1.59576912f)))));
}

BATON_INLINE F32x16 Tanh(F32x16 x) {
  const F32x16 minus = Sub(Zero(), x), one = Set1(1.0f);
  const F32x16 e = Exp(Mul(Max(minus, x), Set1(-2.0f)));  // a NaN stays one
  const F32x16 y = Div(Sub(one, e), Add(one, e));
  return IfLess(x, Zero(), Sub(Zero(), y), y);
}

// gpt-oss's SwiGLU: backend.h. A NaN stays one.
BATON_INLINE F32x16 ClampedSwiglu(F32x16 gate, F32x16 up) {
  const F32x16 most = Set1(7.0f), least = Set1(-7.0f), one = Set1(1.0f);
  const F32x16 g = IfLess(most, gate, most, gate);
  const F32x16 u = IfLess(most, up, most, IfLess(up, least, least, up));
  return Mul(Div(g, Add(one, Exp(Mul(g, Set1(-1.702f))))), Add(u, one));
}

// A NaN stays one.
BATON_INLINE F32x16 SquaredRelu(F32x16 x) {
  const F32x16 positive = IfLess(x, Zero(), Zero(), x);
  return Mul(positive, positive);
}

// gated(gate, up) of all.
template <class Gated>
BATON_INLINE void GateRow(const float* gate, const float* up, float scale, int64_t n,
                          Element element, void* y, const Gated& gated) {
  const auto times = [&](F32x16 g, F32x16 u) {
    const F32x16 product = gated(g, u);
    return scale == 1 ? product : Mul(product, Set1(scale));
  };
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) StoreElements(times(Load(gate + i), Load(up + i)), element, y, i);
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    StoreElementsPart(times(LoadPart(gate + i, rest), LoadPart(up + i, rest)), element, y, i, rest);
  }
}

void Gate(const float* gate, const float* up, Activation activation, float scale, int64_t n,
          Element element, void* y) {
  switch (activation) {
    case Activation::kSilu:
      return GateRow(gate, up, scale, n, element, y,
                     [](F32x16 g, F32x16 u) { return Mul(Silu(g), u); });
    case Activation::kGeluTanh:
      return GateRow(gate, up, scale, n, element, y,
                     [](F32x16 g, F32x16 u) { return Mul(GeluTanh(g), u); });
    case Activation::kClampedSwiglu:
      return GateRow(gate, up, scale, n, element, y,
                     [](F32x16 g, F32x16 u) { return ClampedSwiglu(g, u); });
    case Activation::kSquaredRelu:
      return GateRow(up, up, scale, n, element, y, [](F32x16, F32x16 u) { return SquaredRelu(u); });
  }
}

void ScaleRow(float* x, float scale, float cap, int64_t n) {
  const F32x16 by = Set1(cap == 0 ? scale : scale / cap), most = Set1(cap);
  for (int64_t i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? static_cast<int>(n - i) : 16;
    F32x16 a = Mul(LoadUpTo16(x + i, count), by);
    if (cap != 0) a = Mul(Tanh(a), most);
    if (count == 16) {
      Store(a, x + i);
    } else {
      StorePart(a, x + i, count);
    }
  }
}

void ToF32(const void* x, Element element, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store(LoadElements(x, element, i), y + i);
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    StorePart(LoadElementsPart(x, element, i, rest), y + i, rest);
  }
}

void FromF32(const float* x, Element element, int64_t n, void* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) StoreElements(Load(x + i), element, y, i);
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    StoreElementsPart(LoadPart(x + i, rest), element, y, i, rest);
  }
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_VECTOR_KERNELS_H_
