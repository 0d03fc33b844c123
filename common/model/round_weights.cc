#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cpu/convert.h"
#include "common/base/check.h"
#include "common/model/convert.h"
#include "common/model/quantization.h"

namespace baton::model {
namespace {

using backend::DType;

constexpr int64_t kGroup = QuantizedWeights::kRoundedGroup;
constexpr float kLargestWeight = 65504.0f * 6;  // so that its scale fits into float16

float FromF16(uint16_t half) {
  float value;
  ToF32(&half, DType::kF16, 1, &value);
  return value;
}

uint16_t ToF16(float value) {
  uint16_t half;
  backend::ConvertElements(&value, DType::kF32, 1, DType::kF16, &half);
  return half;
}

// To the nearest whole number, for magnitudes below 2^22: adding 1.5 * 2^23 leaves no bits behind
// the point. Unlike the library's function, compilers vectorise it.
float Whole(float value) {
  constexpr float kMagic = 12582912.0f;
  return (value + kMagic) - kMagic;
}

float LargestMagnitude(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

// Rounded up, so that no value is beyond 127 scales.
uint16_t ScaleOf8Bits(const float* values, int64_t count) {
  const float exact = LargestMagnitude(values, count) / 127;
  uint16_t scale = ToF16(exact);
  if (FromF16(scale) < exact) ++scale;
  return scale;
}

// The scale's sign makes -8 reach the value of the largest magnitude: 8 has no code.
uint16_t ScaleOf4Bits(const float* values, int64_t count) {
  const float* largest = std::max_element(
      values, values + count, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  uint16_t best = 0;
  float least_error = INFINITY;
  for (const float reach : {6.7f, 7.0f, 7.3f, 7.6f, 8.0f, 8.4f, 8.8f, 9.2f}) {
    const uint16_t scale = ToF16(-*largest / reach);
    const float value_of_one = FromF16(scale);
    const float inverse = value_of_one == 0 ? 0 : 1 / value_of_one;
    if (!std::isfinite(inverse)) continue;
    float error = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float rounded = std::min(7.0f, std::max(-8.0f, Whole(values[i] * inverse)));
      const float difference = values[i] - rounded * value_of_one;
      error += difference * difference;
    }
    if (error < least_error) {
      least_error = error;
      best = scale;
    }
  }
  return best;
}

}  // namespace

absl::StatusOr<QuantizedWeights> QuantizedWeights::Round(const backend::HostMatrix& matrix,
                                                         int bits) {
  BATON_CHECK(bits == 4 || bits == 8) << bits << " bits";
  BATON_CHECK_EQ(matrix.cols * bits % 8, 0);
  QuantizedWeights weights;
  weights.matrix_ = {.bits = bits,
                     .rows = matrix.rows,
                     .cols = matrix.cols,
                     .group_size = std::min(kGroup, matrix.cols),
                     .scale_dtype = DType::kF16};
  const int64_t groups = weights.matrix_.groups();
  const int64_t row_bytes = weights.matrix_.row_bytes();
  weights.values_.resize(static_cast<size_t>((matrix.rows * row_bytes + 3) / 4));
  weights.scales_.resize(static_cast<size_t>(matrix.rows * groups));
  const int zero = 1 << (bits - 1);
  weights.zeros_.assign(weights.scales_.size(), static_cast<uint16_t>(zero));
  auto* out = reinterpret_cast<uint8_t*>(weights.values_.data());
  std::vector<float> row(static_cast<size_t>(matrix.cols));
  for (int64_t r = 0; r < matrix.rows; ++r, out += row_bytes) {
    const auto* source = static_cast<const std::byte*>(matrix.data) +
                         r * matrix.cols * static_cast<int64_t>(backend::SizeOf(matrix.dtype));
    ToF32(source, matrix.dtype, row.size(), row.data());
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t begin = group * kGroup, count = std::min(kGroup, matrix.cols - begin);
      const float* values = row.data() + begin;
      // Not the reverse, which a NaN would pass.
      const bool all_fit = std::all_of(
          values, values + count, [](float value) { return std::fabs(value) <= kLargestWeight; });
      if (!all_fit) {
        return absl::InvalidArgumentError(absl::StrCat(
            "row ", r, ", columns ", begin, " to ", begin + count - 1,
            ": found a weight that is no number or above ", kLargestWeight, " in magnitude"));
      }
      const uint16_t scale = bits == 8 ? ScaleOf8Bits(values, count) : ScaleOf4Bits(values, count);
      weights.scales_[static_cast<size_t>(r * groups + group)] = scale;
      const float value_of_one = FromF16(scale);
      const float inverse = value_of_one == 0 ? 0 : 1 / value_of_one;
      for (int64_t i = 0; i < count; ++i) {
        const float most = static_cast<float>(zero - 1), least = static_cast<float>(-zero);
        const float rounded = std::min(most, std::max(least, Whole(values[i] * inverse)));
        const auto code = static_cast<uint8_t>(static_cast<int>(rounded) + zero);
        const int64_t column = begin + i;
        if (bits == 8) {
          out[column] = code;
        } else {
          out[column / 2] = static_cast<uint8_t>(out[column / 2] | code << column % 2 * 4);
        }
      }
    }
  }
  return weights;
}

}  // namespace baton::model
