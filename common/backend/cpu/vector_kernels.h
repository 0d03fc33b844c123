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

void RmsNormRow(float* x, const float* delta, const float* weight, float eps, int64_t n,
                Element element, void* y) {
  const int64_t whole = n & ~int64_t{15};
  const int rest = static_cast<int>(n - whole);
  F32x16 squares = Zero();
  for (int64_t i = 0; i < whole; i += 16) {
    F32x16 a = Load(x + i);
    if (delta != nullptr) Store(a = Add(a, Load(delta + i)), x + i);
    squares = Fma(a, a, squares);
  }
  if (rest > 0) {
    F32x16 a = LoadPart(x + whole, rest);
    if (delta != nullptr) StorePart(a = Add(a, LoadPart(delta + whole, rest)), x + whole, rest);
    squares = Fma(a, a, squares);
  }
  const float mean = SumLanes(squares) / static_cast<float>(n);
  const F32x16 scale = Set1(1.0f / __builtin_sqrtf(mean + eps));
  for (int64_t i = 0; i < whole; i += 16) {
    StoreElements(Mul(Mul(Load(x + i), scale), Load(weight + i)), element, y, i);
  }
  if (rest > 0) {
    const F32x16 w = LoadPart(weight + whole, rest);
    StoreElementsPart(Mul(Mul(LoadPart(x + whole, rest), scale), w), element, y, whole, rest);
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

BATON_INLINE F32x16 SiluTimes(F32x16 gate, F32x16 up) {
  const F32x16 one = Set1(1.0f);
  return Mul(Div(gate, Add(one, Exp(Sub(Zero(), gate)))), up);
}

void SiluMulRow(const float* gate, const float* up, int64_t n, Element element, void* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    StoreElements(SiluTimes(Load(gate + i), Load(up + i)), element, y, i);
  }
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    const F32x16 a = SiluTimes(LoadPart(gate + i, rest), LoadPart(up + i, rest));
    StoreElementsPart(a, element, y, i, rest);
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
