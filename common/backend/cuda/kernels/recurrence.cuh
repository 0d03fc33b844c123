// What the kernels of recurrent layers share: the functions of their gates, and where states are.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_RECURRENCE_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_RECURRENCE_CUH_

#include "common/backend/cuda/kernels/recurrence.h"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

inline constexpr float kLog2OfE = 1.44269504088896340736f;

BATON_DEVICE float LoadFloat(const float* global) { return BitsFloat(Load4(global)); }

// Where e^-x overflows, these are 0, as they should be. A NaN stays one.
BATON_DEVICE float Sigmoid(float x) { return Divide(1.0f, Add(1.0f, Exp2(Mul(x, -kLog2OfE)))); }
BATON_DEVICE float Silu(float x) { return Divide(x, Add(1.0f, Exp2(Mul(x, -kLog2OfE)))); }

// e^x for x up to 0, relative to which it is exact to a few units in the last place; 0 below -87.
// A NaN stays one. The reduction is the CPU backend's.
BATON_DEVICE float ExpOfNegative(float x) {
  constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23: sums with it are whole numbers
  const float shifted = Add(Mul(x, kLog2OfE), kRounds);
  const float n = Add(shifted, -kRounds);
  const float r = Fma(n, 2.12194440e-4f, Fma(n, -0.693359375f, x));
  const float power = BitsFloat((FloatBits(shifted) - FloatBits(kRounds) + 127) << 23);
  const float y = Mul(Exp2(Mul(r, kLog2OfE)), power);
  return x < -87.0f ? 0.0f : y;
}

// log(1 + e^x), with the CPU backend's series. A NaN stays one.
BATON_DEVICE float Softplus(float x) {
  const float e = ExpOfNegative(BitsFloat(FloatBits(x) | 0x80000000u));
  const float s = Divide(e, Add(2.0f, e)), square = Mul(s, s);
  float p = 1.0f / 17;
  p = Fma(p, square, 1.0f / 15);
  p = Fma(p, square, 1.0f / 13);
  p = Fma(p, square, 1.0f / 11);
  p = Fma(p, square, 1.0f / 9);
  p = Fma(p, square, 1.0f / 7);
  p = Fma(p, square, 1.0f / 5);
  p = Fma(p, square, 1.0f / 3);
  p = Fma(p, square, 1.0f);
  return Fma(Add(s, s), p, Greatest(x, 0.0f));
}

// The unit in the pages whose numbers begin at tables[pages].
BATON_DEVICE float* UnitIn(const StatePlaces& places, int32_t pages, int unit) {
  const Vec8 spot = Load8(places.spots + unit / places.spot_units);
  const int32_t page = LoadGlobal(places.tables + pages + spot.x[0]);
  return reinterpret_cast<float*>(places.base + page * places.page_stride_bytes + spot.x[1]) +
         unit % places.spot_units * places.depth * kUnitLanes;
}

// A store of a sequence: behind so many of its rows, in the pages at tables[pages].
struct StoreAt {
  int rows;
  int32_t pages;
};
BATON_DEVICE StoreAt StoreOf(const StatePlaces& places, const StateEntry& entry, int store) {
  const int32_t at = entry.stores + store * (1 + places.state_tables);
  return {LoadGlobal(places.tables + at), at + 1};
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_RECURRENCE_CUH_
