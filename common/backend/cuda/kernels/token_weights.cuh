// What tokens add to sums: their weights, or one each. See sampling.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_TOKEN_WEIGHTS_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_TOKEN_WEIGHTS_CUH_

#include <bit>

#include "common/backend/cuda/kernels/token_order.cuh"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/exp_log.h"

namespace baton::backend::cuda {

BATON_DEVICE_TABLE Exp2Table kDeviceExp2Table = kExp2Table;

// 2^(-x / kExp2TableSize) in units of 2^-40, rounded down, for 0 <= x < 2^30: the bits of
// FixedExp2(-x / kExp2TableSize). The roundings are the same; sums and shifts take the place of two
// of four conversions to and from 64 bits, which are slow. 0 unless it `counts`, without a branch.
BATON_DEVICE uint64_t WeightAt(double x, bool counts = true) {
  constexpr double kWhole = 0x1p52;  // the last bit of a sum with it is 1
  const int index = static_cast<int>(x);
  const double whole =
      std::bit_cast<double>(std::bit_cast<uint64_t>(kWhole) | static_cast<uint32_t>(index)) -
      kWhole;
  const double y = (whole - x) * (M_LN2 / static_cast<double>(kExp2TableSize));
  const double rest = 1 + y * (1 + y * (1 / 2.0 + y * (1 / 6.0)));
  const double fraction = kDeviceExp2Table.values[index & (kExp2TableSize - 1)] * rest;
  const auto bits = std::bit_cast<uint64_t>(fraction);
  constexpr uint64_t kLeading = uint64_t{1} << 52;
  // The fraction is from 2^-1 to 1, the power of two of its exponent's bits 1023.
  const int shift =
      52 - kWeightBits + 1023 - static_cast<int>(bits >> 52) + (index >> kExp2TableBits);
  return ((bits & (kLeading - 1)) | kLeading) >> (counts ? Least(shift, 63) : 63);
}

// The amount that a token adds to the sums.
struct Tally {
  bool weighs = false;  // its weight, else 1
  float highest = 0;    // the highest logit
  double scale = 0;     // -log2 e over the temperature, in kExp2TableSize parts
  // Tokens behind this one in the order don't count.
  float last_logit = -kInfiniteLogit;
  int last_id = 0x7fffffff;
  uint64_t least = 0;  // lower weights don't count

  BATON_DEVICE bool Keeps(int id, float logit) const {
    // No branches, which the four tokens of a quad would take one by one.
    const bool is_above = logit > last_logit, is_equal = logit == last_logit;
    return is_above | (is_equal & (id <= last_id));
  }
  BATON_DEVICE void EndAt(uint64_t place) {
    last_logit = LogitOf(place);
    last_id = IdOf(place);
  }
  // To be called when `highest` and the place of the end are set: moves the end up to where weights
  // are certainly lower than `least_weight`, and lets those that are lower and still in front of it
  // not count.
  BATON_DEVICE void SkipBelow(uint64_t least_weight, float temperature) {
    least = least_weight;
    // The weight's power of two, and one more for safety; rounding to the nearest float keeps the
    // order of floats.
    const int power = 63 - LeadingZeros(least_weight) - kWeightBits - 1;
    const double logit =
        static_cast<double>(highest) + power * (M_LN2 * static_cast<double>(temperature));
    const float last =
        logit < -static_cast<double>(kHighestLogit) ? -kHighestLogit : static_cast<float>(logit);
    if (last <= last_logit) return;
    last_logit = last;
    last_id = 0x7fffffff;
  }
  // Of a token that it keeps, once it skips some: the distance is at most twice the one at which
  // weights are 0, by the float that is nearest to that.
  BATON_DEVICE uint64_t WeightOf(float logit, bool counts = true) const {
    return WeightAt((static_cast<double>(logit) - static_cast<double>(highest)) * scale, counts);
  }
  BATON_DEVICE uint64_t Of(float logit) const {
    if (!weighs) return 1;
    const uint64_t weight = WeightOf(logit);
    return weight >= least ? weight : 0;
  }
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_TOKEN_WEIGHTS_CUH_
