// Random weights of few bits that own their memory.
#ifndef BATON_TESTS_COMMON_BACKEND_CPU_RANDOM_WEIGHTS_H_
#define BATON_TESTS_COMMON_BACKEND_CPU_RANDOM_WEIGHTS_H_

#include <algorithm>
#include <optional>
#include <vector>

#include "common/backend/quantized.h"
#include "tests/common/backend/cpu/test_backend.h"

namespace baton::backend {

// A QuantizedHostMatrix that owns its memory, with random values.
struct Weights {
  Weights(Random& random, int bits, int rows, int cols, int group_size, DType scale_dtype,
          bool zeros_differ, const std::vector<int32_t>& column_order = {})
      : order(column_order) {
    matrix = {.bits = bits,
              .rows = rows,
              .cols = cols,
              .group_size = group_size,
              .scale_dtype = scale_dtype};
    const auto groups = static_cast<size_t>(rows * matrix.groups());
    values.resize(static_cast<size_t>(rows * matrix.row_bytes()));
    for (uint8_t& value : values) value = static_cast<uint8_t>(random.Int(0, 255));
    scales.resize(groups);
    std::vector<float> floats(groups);
    for (float& scale : floats) scale = static_cast<float>(random.Int(-1000, 1000)) * 1e-5f;
    ConvertElements(floats.data(), DType::kF32, static_cast<int64_t>(groups), scale_dtype,
                    scales.data());
    for (size_t i = 0; i < groups; ++i) {
      const int middle = 1 << (bits - 1);
      zeros.push_back(static_cast<uint16_t>(zeros_differ ? random.Int(0, 1 << bits) : middle));
    }
    matrix.values = values.data();
    matrix.scales = scales.data();
    matrix.zeros = zeros.data();
    matrix.order = order.empty() ? nullptr : order.data();
  }

  // MXFP4, with some blocks of scale 0.
  static Weights Fp4(Random& random, int rows, int cols) {
    Weights weights(random, 4, rows, cols, kFp4Group, DType::kBF16, false);
    for (uint16_t& scale : weights.scales) {
      scale = static_cast<uint16_t>(random.Int(0, 9) == 0 ? 0 : random.Int(110, 121) << 7);
    }
    std::fill(weights.zeros.begin(), weights.zeros.end(), kFp4Zero);
    weights.matrix.fp4 = true;
    return weights;
  }

  std::vector<float> Dequantized() const {
    std::vector<float> floats(static_cast<size_t>(matrix.rows * matrix.cols));
    for (int64_t row = 0; row < matrix.rows; ++row) {
      DequantizeRow(matrix, row, floats.data() + row * matrix.cols);
    }
    return floats;
  }

  std::vector<uint8_t> values;
  std::vector<uint16_t> scales, zeros;
  std::vector<int32_t> order;
  QuantizedHostMatrix matrix;
};

// A SuperBlockHostMatrix and its values.
struct SuperBlocks {
  SuperBlocks(Random& random, int bits, int rows, int cols, int super_columns) : cols(cols) {
    matrix.bits = bits;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.super_columns = super_columns;
    const auto bytes = [&](size_t count, int low, int high) {
      std::vector<int8_t> values(count);
      for (int8_t& value : values) value = static_cast<int8_t>(random.Int(low, high));
      return values;
    };
    const auto halves = [&](size_t count) {
      std::vector<uint16_t> values(count);
      const std::vector<float> floats = random.Floats(count, 1e-3f);
      ConvertElements(floats.data(), DType::kF32, static_cast<int64_t>(count), DType::kF16,
                      values.data());
      return values;
    };
    const auto all = static_cast<size_t>(rows) * static_cast<size_t>(cols);
    const size_t supers = all / static_cast<size_t>(super_columns);
    values = bytes(all, 0, (1 << bits) - 1);
    factors = bits == 6 ? bytes(all / 16, -128, 127) : bytes(all / 16, 0, 63);
    // The largest sums of a block are there, too.
    for (size_t i = 0; i < values.size() && random.Int(0, 3) == 0; ++i) values[i] = 0;
    scales = halves(supers);
    leasts = halves(supers);
    matrix.read = [this](int64_t row, const SuperBlockRow& out) {
      const int64_t in_row = this->cols, supers = in_row / matrix.super_columns;
      std::copy_n(values.begin() + row * in_row, in_row, out.values);
      std::copy_n(factors.begin() + row * in_row / 16, in_row / 16, out.factors);
      std::copy_n(scales.begin() + row * supers, supers, out.scales);
      std::copy_n(leasts.begin() + row * supers, supers, out.leasts);
    };
  }
  SuperBlocks(const SuperBlocks&) = delete;

  // As SuperBlockHostMatrix says; float32 holds all of it.
  std::vector<float> Dequantized() const {
    std::vector<float> floats(values.size()), scale(scales.size()), least(leasts.size());
    const auto supers = static_cast<int64_t>(scales.size());
    ConvertElements(scales.data(), DType::kF16, supers, DType::kF32, scale.data());
    ConvertElements(leasts.data(), DType::kF16, supers, DType::kF32, least.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t super = i / static_cast<size_t>(matrix.super_columns);
      const auto factor = [&](size_t half) {
        return static_cast<float>(factors[i / 32 * 2 + half]);
      };
      floats[i] =
          matrix.bits == 6
              ? scale[super] * factor(i / 16 % 2) * static_cast<float>(values[i] - 32)
              : scale[super] * factor(0) * static_cast<float>(values[i]) - least[super] * factor(1);
    }
    return floats;
  }

  int64_t cols;
  SuperBlockHostMatrix matrix;
  std::vector<int8_t> values, factors;
  std::vector<uint16_t> scales, leasts;
};

// Weights of a random form. `cols` is rounded up to what it needs.
struct AnyWeights {
  AnyWeights(Random& random, int rows, int* cols) {
    const int bits = random.Of({4, 5, 6, 8});
    const bool in_super_blocks = bits < 8 && random.Int(0, bits == 4 ? 1 : 3) > 0;
    if (bits == 4 && !in_super_blocks && random.Int(0, 1) == 0) {
      *cols = (*cols + 1) / 2 * 2;
      few.emplace(Weights::Fp4(random, rows, *cols));
      host = few->matrix;
      return;
    }
    if (!in_super_blocks) {
      const DType scales = random.Of({DType::kF16, DType::kBF16});
      few.emplace(random, bits == 8 ? 8 : 4, rows, *cols, 32 * random.Int(1, 4), scales,
                  bits < 8 && random.Int(0, 1) == 0);
      host = few->matrix;
      return;
    }
    const int super_columns = random.Of({32, 64, 256});
    *cols = (*cols + super_columns - 1) / super_columns * super_columns;
    super.emplace(random, bits, rows, *cols, super_columns);
    host = super->matrix;
  }
  std::vector<float> Dequantized() const { return few ? few->Dequantized() : super->Dequantized(); }

  std::optional<Weights> few;
  std::optional<SuperBlocks> super;
  AnyHostMatrix host;
};

}  // namespace baton::backend

#endif  // BATON_TESTS_COMMON_BACKEND_CPU_RANDOM_WEIGHTS_H_
