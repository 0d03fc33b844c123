// Random weights of 4 and 8 bits, packed as quantized.h says, not by the backend.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_WEIGHTS_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_WEIGHTS_H_

#include <cmath>
#include <cstring>
#include <vector>

#include "common/backend/cuda/kernels/quantized.h"
#include "common/backend/quantized.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {

class QuantizedKernelTest : public KernelTest {
 protected:
  // A random W [n, k] of few bits: packed, and as the 16-bit values that it is.
  struct Weights {
    DeviceArray<Vec16> values{0};
    DeviceArray<uint32_t> groups{0};
    std::vector<float> exact;  // value - zero times scale
    QuantizedView view = {};
  };
  // symmetric: no zero points are stored, if groups have 32 columns.
  Weights RandomWeights(int bits, int n, int k, int group_size, bool bf16_scales,
                        bool symmetric = false) {
    const int tile_columns = 512 / bits, row_tiles = (n + 7) / 8;
    const int column_tiles = (k + tile_columns - 1) / tile_columns;
    const int group_count = (k + group_size - 1) / group_size;
    std::vector<uint32_t> words(static_cast<size_t>(row_tiles * column_tiles * 128));
    std::vector<uint32_t> groups(static_cast<size_t>(row_tiles * group_count * 8));
    Weights w;
    w.exact.resize(static_cast<size_t>(n * k));
    std::vector<int> zeros(groups.size());
    std::vector<float> scales(groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      // Every tenth makes subnormal float16 weights.
      const float scale =
          std::ldexp(1 + static_cast<float>(Int(0, 1023)) / 1024, Int(0, 9) == 0 ? -16 : -7);
      zeros[i] = symmetric ? 1 << (bits - 1) : Int(0, 1 << bits);
      const uint16_t stored = bf16_scales ? BFloat16::FromF32(scale) : Half::FromF32(scale);
      scales[i] = bf16_scales ? BFloat16::ToF32(stored) : Half::ToF32(stored);
      groups[i] = stored | static_cast<uint32_t>(zeros[i]) << 16;
    }
    for (int row = 0; row < n; ++row) {
      for (int column = 0; column < k; ++column) {
        const int value = Int(0, (1 << bits) - 1);
        const auto group =
            static_cast<size_t>((row / 8 * group_count + column / group_size) * 8 + row % 8);
        w.exact[static_cast<size_t>(row * k + column)] =
            static_cast<float>(value - zeros[group]) * scales[group];
        const int in_tile = column % tile_columns;
        const int step = in_tile / 32, member = in_tile % 32 / 8, element = in_tile % 8;
        const int word = (row / 8 * column_tiles + column / tile_columns) * 128 + row % 8 * 16 +
                         member * 4 + step * bits / 4 + (bits == 8 ? element / 4 : 0);
        words[static_cast<size_t>(word)] |= static_cast<uint32_t>(value)
                                            << PlaceOfElement(element, bits) * bits;
      }
    }
    w.values = DeviceArray<Vec16>(words.size() / 4);
    std::memcpy(w.values.data(), words.data(), words.size() * 4);
    const bool paired = symmetric && group_size == 32 && group_count > 1;
    const int word_count = paired ? (group_count + 1) / 2 : group_count;
    if (paired) {
      std::vector<uint32_t> pairs(static_cast<size_t>(row_tiles * word_count * 8));
      for (int row = 0; row < row_tiles * 8; ++row) {
        for (int group = 0; group < group_count; ++group) {
          const auto from = static_cast<size_t>((row / 8 * group_count + group) * 8 + row % 8);
          const auto to = static_cast<size_t>((row / 8 * word_count + group / 2) * 8 + row % 8);
          pairs[to] |= (groups[from] & 0xffff) << group % 2 * 16;
        }
      }
      groups = pairs;
    }
    w.groups = DeviceArray<uint32_t>(groups);
    w.view = {.values = w.values.data(),
              .groups = w.groups.data(),
              .n = n,
              .k = k,
              .column_tiles = column_tiles,
              .group_count = word_count,
              .steps_a_group_log2 = 0,
              .bf16_scales = bf16_scales,
              .paired_scales = paired};
    const int word_columns = paired ? 64 : group_count == 1 ? 1 << 30 : group_size;
    for (int size = word_columns; size > 32; size /= 2) {
      ++w.view.steps_a_group_log2;
    }
    return w;
  }

  // MXFP4, of exponents whose numbers the type holds: of float16 many of its subnormals, and scales
  // that are subnormal.
  Weights RandomFp4(int n, int k, DType dtype) {
    Weights w = RandomWeights(4, n, k, 128, false);
    std::vector<float> scales(w.groups.size() * 4);
    const bool f16 = dtype == DType::kF16;
    for (size_t i = 0; i < w.groups.size(); ++i) {
      w.groups[i] = 0;
      for (size_t step = 0; step < 4; ++step) {
        if (Int(0, 9) == 0) continue;  // the scale 0
        const int exponent = f16 ? Int(-23, 13) : Int(-100, 100);
        scales[i * 4 + step] = std::ldexp(1.0f, exponent);
        w.groups[i] |= static_cast<uint32_t>(127 + exponent + (f16 ? 0 : 6)) << step * 8;
      }
    }
    const auto* words = reinterpret_cast<const uint32_t*>(w.values.data());
    for (int row = 0; row < n; ++row) {
      for (int column = 0; column < k; ++column) {
        const int in_tile = column % 128;
        const uint32_t word = words[(row / 8 * w.view.column_tiles + column / 128) * 128 +
                                    row % 8 * 16 + in_tile % 32 / 8 * 4 + in_tile / 32];
        const uint32_t code = word >> PlaceOfElement(in_tile % 8, 4) * 4 & 0xf;
        const auto group =
            static_cast<size_t>((row / 8 * w.view.group_count + column / 128) * 8 + row % 8);
        w.exact[static_cast<size_t>(row * k + column)] =
            static_cast<float>(kFp4Values[code] - kFp4Zero) / 2 *
            scales[group * 4 + static_cast<size_t>(column % 128 / 32)];
      }
    }
    return w;
  }
};

}  // namespace baton::backend::cuda

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_WEIGHTS_H_
