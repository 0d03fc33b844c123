#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/backend/cpu/convert.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/convert.h"
#include "common/model/quantization.h"

namespace baton::model {
namespace {

using backend::DType;

constexpr int64_t kGroup = QuantizedWeights::kRoundedGroup;
constexpr float kLargestWeight = 65504.0f * 6;  // so that its scale fits into float16

float ValueOfF16(uint16_t half) {
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
  if (ValueOfF16(scale) < exact) ++scale;
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
    const float value_of_one = ValueOfF16(scale);
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

// Rounds row `number` to codes, in bytes that are zeros before, and a scale for each group.
absl::Status RoundRow(absl::Span<const float> row, int64_t number, int bits, uint8_t* out,
                      uint16_t* scales) {
  const int zero = 1 << (bits - 1);
  const auto cols = static_cast<int64_t>(row.size());
  for (int64_t begin = 0; begin < cols; begin += kGroup) {
    const int64_t count = std::min(kGroup, cols - begin);
    const float* values = row.data() + begin;
    // Not the reverse, which a NaN would pass.
    const bool all_fit = std::all_of(
        values, values + count, [](float value) { return std::fabs(value) <= kLargestWeight; });
    if (!all_fit) {
      return absl::InvalidArgumentError(absl::StrCat(
          "row ", number, ", columns ", begin, " to ", begin + count - 1,
          ": found a weight that is no number or above ", kLargestWeight, " in magnitude"));
    }
    const uint16_t scale = bits == 8 ? ScaleOf8Bits(values, count) : ScaleOf4Bits(values, count);
    *scales++ = scale;
    const float value_of_one = ValueOfF16(scale);
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
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuantizedWeights> QuantizedWeights::Round(const backend::HostMatrix& matrix,
                                                         int bits, backend::ThreadPool& pool) {
  BATON_CHECK(bits == 4 || bits == 8) << bits << " bits";
  BATON_CHECK_EQ(matrix.cols * bits % 8, 0);
  QuantizedWeights weights;
  weights.matrix_ = {.bits = bits,
                     .rows = matrix.rows,
                     .cols = matrix.cols,
                     .group_size = std::min(kGroup, matrix.cols),
                     .scale_dtype = DType::kF16,
                     .symmetric = true};
  const int64_t groups = weights.matrix_.groups();
  const int64_t row_bytes = weights.matrix_.row_bytes();
  weights.values_.resize(static_cast<size_t>((matrix.rows * row_bytes + 3) / 4));
  weights.scales_.resize(static_cast<size_t>(matrix.rows * groups));
  weights.zeros_.assign(weights.scales_.size(), static_cast<uint16_t>(1 << (bits - 1)));
  auto* out = reinterpret_cast<uint8_t*>(weights.values_.data());
  constexpr int64_t kTaskElements = 256 << 10;
  const int64_t rows_a_task =
      std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, matrix.cols));
  const int64_t tasks = (matrix.rows + rows_a_task - 1) / rows_a_task;
  std::vector<absl::Status> statuses(static_cast<size_t>(tasks));
  pool.Run(static_cast<int>(tasks), [&](int task, int thread) {
    std::vector<float> row(static_cast<size_t>(matrix.cols));
    const int64_t end = std::min(matrix.rows, (task + 1) * rows_a_task);
    for (int64_t r = task * rows_a_task; r < end; ++r) {
      const auto* source = static_cast<const std::byte*>(matrix.data) +
                           r * matrix.cols * static_cast<int64_t>(backend::SizeOf(matrix.dtype));
      ToF32(source, matrix.dtype, row.size(), row.data());
      absl::Status& status = statuses[static_cast<size_t>(task)];
      status = RoundRow(row, r, bits, out + r * row_bytes, weights.scales_.data() + r * groups);
      if (!status.ok()) return;
    }
  });
  for (const absl::Status& status : statuses) BATON_RETURN_IF_ERROR(status);
  return weights;
}

}  // namespace baton::model
