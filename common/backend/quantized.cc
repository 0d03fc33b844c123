#include "common/backend/quantized.h"

#include <algorithm>
#include <vector>

#include "common/backend/cpu/convert.h"
#include "common/base/check.h"

namespace baton::backend {

void DequantizeRow(const QuantizedHostMatrix& matrix, int64_t row, float* out) {
  BATON_CHECK(matrix.bits == 4 || matrix.bits == 8) << matrix.bits << " bits";
  const int64_t groups = matrix.groups();
  std::vector<float> scales(static_cast<size_t>(groups));
  ConvertElements(matrix.scales + row * groups, matrix.scale_dtype, groups, DType::kF32,
                  scales.data());
  const uint8_t* values = matrix.values + row * matrix.row_bytes();
  const uint16_t* zeros = matrix.zeros + row * groups;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t begin = group * matrix.group_size;
    const int64_t end = std::min(matrix.cols, begin + matrix.group_size);
    for (int64_t i = begin; i < end; ++i) {
      int value = matrix.bits == 8 ? values[i] : values[i / 2] >> (i % 2 * 4) & 0xf;
      if (matrix.fp4) value = kFp4Values[value];
      const float product = static_cast<float>(value - zeros[group]) * scales[group];
      out[matrix.order == nullptr ? i : matrix.order[i]] = product;
    }
  }
}

}  // namespace baton::backend
