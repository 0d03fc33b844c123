// cap * tanh(x / cap), which leaves small scores as they are and none above the cap (Bello et al.,
// arXiv 1611.09940; Gemma 2, arXiv 2408.00118).
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_SOFT_CAP_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_SOFT_CAP_CUH_

#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// Of x * scale, for many x. tanh y = (1 - t) / (1 + t) with t = e^(-2 |y|), off by at most 3e-7; a
// NaN stays one.
class SoftCap {
 public:
  // scale is at least 0, cap above it.
  BATON_DEVICE SoftCap(float scale, float cap)
      : exponent_(Divide(Mul(scale, -2 * 1.44269504088896340736f), cap)), cap_(cap) {}

  BATON_DEVICE float Of(float x) const {
    constexpr uint32_t kSign = 0x80000000u;
    const uint32_t bits = FloatBits(x);
    const float t = Exp2(Mul(BitsFloat(bits & ~kSign), exponent_));
    const float most = Mul(cap_, Mul(Add(1.0f, -t), Inverse(Add(1.0f, t))));
    return BitsFloat(FloatBits(most) | (bits & kSign));
  }

 private:
  // 1 / d for d in [1, 2], to 2 units in the last place: Newton's method from the line that is
  // nearest there. Divide has a branch for what cannot occur here, which attention has no registers
  // for.
  static BATON_DEVICE float Inverse(float d) {
    float inverse = Fma(d, -8.0f / 17, 24.0f / 17);
    BATON_UNROLL for (int i = 0; i < 3; ++i) {
      inverse = Fma(inverse, Fma(-d, inverse, 1.0f), inverse);
    }
    return inverse;
  }

  const float exponent_, cap_;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_SOFT_CAP_CUH_
