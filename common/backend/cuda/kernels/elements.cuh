// Rows of elements, eight a thread: what the kernels that only pass over rows share.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_ELEMENTS_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_ELEMENTS_CUH_

#include "common/backend/cuda/kernels/gating.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// Rows are whole numbers of units; every row begins at a multiple of 16 bytes.
inline constexpr int kUnitElements = 8;

BATON_DEVICE void Unpack4(const Vec16& v, float* to) {
  BATON_UNROLL for (int i = 0; i < 4; ++i) to[i] = BitsFloat(v.x[i]);
}
BATON_DEVICE Vec16 Pack4(const float* from) {
  Vec16 v;
  BATON_UNROLL for (int i = 0; i < 4; ++i) v.x[i] = FloatBits(from[i]);
  return v;
}

// Loads a unit that no thread of the kernel writes, converted to f32.
BATON_DEVICE void LoadUnit(const float* from, float (&to)[kUnitElements]) {
  Unpack4(Load16(from), to);
  Unpack4(Load16(from + 4), to + 4);
}
// The same for memory that this thread writes before or after.
BATON_DEVICE void LoadOwnUnit(const float* from, float (&to)[kUnitElements]) {
  Unpack4(LoadFresh16(from), to);
  Unpack4(LoadFresh16(from + 4), to + 4);
}
BATON_DEVICE void StoreUnit(const float (&from)[kUnitElements], float* to) {
  Store16(to, Pack4(from));
  Store16(to + 4, Pack4(from + 4));
}

// One arithmetic for all kernels that have gate and up. Where the square of `gate` overflows, the
// exponential is 0 or infinite, which leaves `gate` or 0, as it should be.
BATON_DEVICE float Gated(float gate, float up, const Gating& gating) {
  constexpr float kMinusLog2E = -1.44269504088896340736f;
  constexpr float kMinusTwoU = -2.302208198144325f;  // of x: -2 sqrt(2 / pi) log2(e)
  constexpr float kCubic = 0.044715f;
  constexpr float kSwigluLimit = 7, kMinusSteepness = -2.4554669595930155f;  // -1.702 log2(e)
  float exponent = Mul(gate, kMinusLog2E);
  if (gating.kind == GateKind::kGeluTanh) {
    exponent = Mul(Mul(gate, kMinusTwoU), Fma(Mul(gate, gate), kCubic, 1.0f));
  } else if (gating.kind == GateKind::kClampedSwiglu) {
    // A NaN stays one.
    gate = Least(gate, kSwigluLimit);
    up = Add(Greatest(Least(up, kSwigluLimit), -kSwigluLimit), 1.0f);
    exponent = Mul(gate, kMinusSteepness);
  }
  return Mul(Mul(Divide(gate, Add(1.0f, Exp2(exponent))), up), gating.scale);
}

// How a row of one DType is read and written; Half and BFloat16 (simt.h) round to the nearest, ties
// to even.
template <class Element>
struct Row16 {
  using Stored = uint16_t;
  static BATON_DEVICE void Load(const Stored* from, float (&to)[kUnitElements]) {
    Unpack(Load16(from), to);
  }
  static BATON_DEVICE void Unpack(const Vec16& v, float (&to)[kUnitElements]) {
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      to[2 * i] = Element::ToF32(static_cast<uint16_t>(v.x[i]));
      to[2 * i + 1] = Element::ToF32(static_cast<uint16_t>(v.x[i] >> 16));
    }
  }
  static BATON_DEVICE void Store(const float (&from)[kUnitElements], Stored* to) {
    Vec16 v;
    BATON_UNROLL for (int i = 0; i < 4; ++i) v.x[i] = Element::Pack(from[2 * i], from[2 * i + 1]);
    Store16(to, v);
  }
};
struct Row32 {
  using Stored = float;
  static BATON_DEVICE void Load(const Stored* from, float (&to)[kUnitElements]) {
    LoadUnit(from, to);
  }
  static BATON_DEVICE void Store(const float (&from)[kUnitElements], Stored* to) {
    StoreUnit(from, to);
  }
};

// body(row type) for the type that `dtype` is stored as.
template <class Body>
void WithRowType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(Row32{});
    case DType::kF16:
      return body(Row16<Half>{});
    case DType::kBF16:
      return body(Row16<BFloat16>{});
  }
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_ELEMENTS_CUH_
