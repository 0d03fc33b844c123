// Rows of K and V on their way to the pool, a unit of eight elements a thread: rotated, and rounded
// or coded. What the kernels that write KV share.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_KV_ROW_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_KV_ROW_CUH_

#include <type_traits>

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/kv_codes.cuh"
#include "common/backend/cuda/kernels/rope_head.h"

namespace baton::backend::cuda {

BATON_DEVICE void LoadQuads(const float* from, QuadPair dims, float (&to)[kUnitElements]) {
  Unpack4(Load16(from + dims.low), to);
  Unpack4(Load16(from + dims.high), to + 4);
}

// A unit's four pairs, by their angles' cosines and sines.
BATON_DEVICE void Rotate(const Vec16& cosine, const Vec16& sine, float (&x)[kUnitElements]) {
  float c[4], s[4];
  Unpack4(cosine, c);
  Unpack4(sine, s);
  BATON_UNROLL for (int i = 0; i < 4; ++i) {
    const float low = x[i], high = x[4 + i];
    x[i] = Add(Mul(low, c[i]), -Mul(high, s[i]));
    x[4 + i] = Fma(high, c[i], Mul(low, s[i]));
  }
}
BATON_DEVICE void Rotate(const float* cosine, const float* sine, int first_pair,
                         float (&x)[kUnitElements]) {
  Rotate(Load16(cosine + first_pair), Load16(sine + first_pair), x);
}

template <class Element>
constexpr float kLargest = 65504.0f;
template <>
constexpr float kLargest<BFloat16> = 3.38953139e38f;

// Infinities and NaNs stay, for the check of logits to find.
template <class Element>
BATON_DEVICE void ClampFinite(float (&x)[kUnitElements]) {
  constexpr float kMax = 3.40282346638528859812e38f, kMost = kLargest<Element>;
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) {
    if (x[i] > kMost && x[i] <= kMax) x[i] = kMost;
    if (x[i] < -kMost && x[i] >= -kMax) x[i] = -kMost;
  }
}

template <class Element>
BATON_DEVICE void WriteKv(std::byte* slot, QuadPair dims, const float (&x)[kUnitElements]) {
  auto* row = reinterpret_cast<uint16_t*>(slot);
  if (dims.high == dims.low + 4) return Row16<Element>::Store(x, row + dims.low);
  BATON_UNROLL for (int quad = 0; quad < 2; ++quad) {
    const uint64_t pairs[2] = {Element::Pack(x[quad * 4], x[quad * 4 + 1]),
                               Element::Pack(x[quad * 4 + 2], x[quad * 4 + 3])};
    // Eight bytes: one access.
    StoreGlobal(reinterpret_cast<uint64_t*>(row + (quad == 0 ? dims.low : dims.high)),
                pairs[0] | pairs[1] << 32);
  }
}

struct RowRange {
  float least, largest;
  float nothing;  // 0; NaN if an element is a NaN or an infinity
};
BATON_DEVICE RowRange UnitRange(bool valid, const float (&x)[kUnitElements]) {
  constexpr float kInfinity = __builtin_huge_valf();
  RowRange range = {kInfinity, -kInfinity, 0};
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) {
    if (!valid) continue;
    range.least = Least(range.least, x[i]);
    range.largest = Greatest(range.largest, x[i]);
    range.nothing = Fma(x[i], 0, range.nothing);
  }
  return range;
}

// A unit's codes to the row, and by the first unit the head's scale and zero.
template <class Codes>
BATON_DEVICE void WriteCodes(std::byte* row, std::byte* scale_and_zero, int unit, QuadPair dims,
                             const RowRange& range, const float (&x)[kUnitElements]) {
  const bool finite = range.nothing == 0;
  const ScaleAndZero by = ScaleAndZeroOf<Codes>(range.least, range.largest, finite);
  if (unit == 0) StoreGlobal(reinterpret_cast<uint32_t*>(scale_and_zero), by.bits);
  // With scale 0 all elements are equal to the zero.
  const float divisor = finite && by.scale() > 0 ? by.scale() : 1.0f;
  const float zero = finite ? by.zero() : 0.0f;
  constexpr int kBits = Codes::Chunk::kBytes;  // of a code: there are eight
  uint32_t quads[2] = {0, 0};
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) {
    quads[i / 4] |= CodeOf<Codes>(x[i], divisor, zero) << (i % 4 * kBits);
  }
  std::byte* low = row + dims.low * kBits / 8;
  if (dims.high == dims.low + 4) {
    if constexpr (kBits == 8) {
      StoreGlobal(reinterpret_cast<uint64_t*>(low), quads[0] | uint64_t{quads[1]} << 32);
    } else {
      StoreGlobal(reinterpret_cast<uint32_t*>(low), quads[0] | quads[1] << 16);
    }
    return;
  }
  using Quad = std::conditional_t<kBits == 8, uint32_t, uint16_t>;
  std::byte* high = row + dims.high * kBits / 8;
  StoreGlobal(reinterpret_cast<Quad*>(low), static_cast<Quad>(quads[0]));
  StoreGlobal(reinterpret_cast<Quad*>(high), static_cast<Quad>(quads[1]));
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_KV_ROW_CUH_
