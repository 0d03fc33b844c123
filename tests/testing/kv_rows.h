// Reads rows of a KV pool in host memory by the definition of KvFormat, one element at a time: what
// kernels are compared with.
#ifndef BATON_TESTS_TESTING_KV_ROWS_H_
#define BATON_TESTS_TESTING_KV_ROWS_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "common/backend/cpu/convert.h"
#include "common/backend/tensor.h"

namespace baton::backend {

inline float DecodedCode(KvFormat format, const uint8_t* row, int64_t i) {
  if (format == KvFormat::kInt8) return row[i];
  if (format == KvFormat::kInt4) return static_cast<float>(row[i / 2] >> (i % 2 * 4) & 15);
  const int exponent = row[i] >> 3 & 15, mantissa = row[i] & 7;  // E4M3
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>(row[i] >= 128 ? -magnitude : magnitude);
}

struct KvRow {
  std::vector<float> values;
  float scale = 0, zero = 0;  // of codes
};

// Of the token with that place in the block. `chunk`: of one block and layer.
inline KvRow ReadKvRow(const KvPool& pool, const std::byte* chunk, int k_or_v, int head,
                       int token) {
  const std::byte* base = chunk + (k_or_v * pool.kv_heads + head) * pool.head_bytes();
  const std::byte* row = base + token * pool.row_bytes();
  KvRow result;
  result.values.resize(static_cast<size_t>(pool.head_dim));
  if (pool.format == KvFormat::kPlain) {
    ConvertElements(row, pool.dtype, pool.head_dim, DType::kF32, result.values.data());
    return result;
  }
  float by[2];
  ConvertElements(base + pool.block_tokens * pool.row_bytes() + token * int64_t{4}, DType::kF16, 2,
                  DType::kF32, by);
  result.scale = by[0];
  result.zero = by[1];
  for (int i = 0; i < pool.head_dim; ++i) {
    const float code = DecodedCode(pool.format, reinterpret_cast<const uint8_t*>(row), i);
    result.values[static_cast<size_t>(i)] = std::fma(code, result.scale, result.zero);
  }
  return result;
}

// How far from an element its place in a quantised row may be.
inline double KvErrorBound(KvFormat format, const KvRow& row, double element) {
  const double rounding = std::abs(element) * 1e-6 + row.scale * 1e-3;
  if (format != KvFormat::kFp8) return row.scale / 2.0 + rounding;
  return std::max(std::abs(element) / 16, row.scale * std::ldexp(1.0, -10)) + rounding;
}

}  // namespace baton::backend

#endif  // BATON_TESTS_TESTING_KV_ROWS_H_
