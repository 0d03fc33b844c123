// Bins of logits by their distance from the highest, equally wide. See sampling.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_LOGIT_BINS_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_LOGIT_BINS_CUH_

#include "common/backend/cuda/kernels/radix_select.cuh"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// Of a logit that is not above the highest: the higher, the higher, from kBins - 1 down. Each
// operation keeps the order, so equal logits are in one bin, and a lower bin's are all lower: all
// that a draw needs. Where the rounding puts a border, no token depends on.
struct LogitBins {
  float highest;
  float scale;  // bins in a distance of 1; above 0, finite

  BATON_DEVICE int Of(float logit) const {
    constexpr float kWhole = 1 << 23;            // a sum with it is rounded to a whole number,
    constexpr uint32_t kWholeBits = 0x4b000000;  // which is added to its bits
    const uint32_t below = FloatBits(Fma(Add(highest, -logit), scale, kWhole));
    return static_cast<int>(kWholeBits + kBins - 1 - Least(below, kWholeBits + kBins - 1));
  }
};

// For logits of that span to fill the bins; what is lower is in the last one.
BATON_DEVICE float ScaleOfBins(double span) {
  return static_cast<float>(Least(kBins / span, 3e38));  // all are equal: any number does
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_LOGIT_BINS_CUH_
