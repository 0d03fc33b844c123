// What the tests of the operations share: random operands, tensors over buffers, sequences in a
// pool.
#ifndef BATON_TESTS_COMMON_BACKEND_CPU_TEST_BACKEND_H_
#define BATON_TESTS_COMMON_BACKEND_CPU_TEST_BACKEND_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/backend/cpu/convert.h"
#include "common/backend/cpu/cpu_backend.h"
#include "common/backend/cpu/isa.h"
#include "gtest/gtest.h"
#include "tests/common/backend/cpu/emulated_kernels.h"
#include "tests/testing/seed.h"

namespace baton::backend {

using Compute = BackendOptions::Compute;

// Every way this machine can compute: each instruction set with each type it multiplies.
struct Variant {
  const Kernels* kernels;
  Compute compute;
  int threads;
};

inline std::string NameOf(const Variant& v) {
  return std::string(v.kernels->name) + (v.compute == Compute::kBF16 ? "_bf16_" : "_f32_") +
         std::to_string(v.threads);
}
inline void PrintTo(const Variant& v, std::ostream* out) { *out << NameOf(v); }

inline std::vector<Variant> AllVariants(int threads = 2) {
  std::vector<const Kernels*> usable = UsableKernels();
  if (BestIsa() >= Isa::kAvx512BF16) {
    usable.insert(usable.end(), {&kEmulatedAvxVnniKernels, &kEmulatedAmxKernels});
  }
  std::vector<Variant> variants;
  for (const Kernels* kernels : usable) {
    variants.push_back({kernels, Compute::kF32, threads});
    if (kernels->matmul_bf16 != nullptr) variants.push_back({kernels, Compute::kBF16, threads});
  }
  return variants;
}

// Seeds to try: the portable kernels have no vectors to be quick with.
inline uint32_t Seeds(const Variant& v, uint32_t count) {
  return v.kernels == &kPortableKernels ? (count + 3) / 4 : count;
}

inline std::unique_ptr<Backend> Make(const Variant& v) {
  BackendOptions options;
  options.compute = v.compute;
  options.thread_count = v.threads;
  return std::move(MakeCpuBackend(options, *v.kernels)).value();
}

// Draws from a stream of the test's seed, and names the stream when a test fails.
class Random {
 public:
  explicit Random(uint32_t stream)
      : trace_(__FILE__, __LINE__, "stream " + std::to_string(stream)),
        engine_(baton::testing::TestSeed(stream)) {}
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  template <class T>
  T Of(std::initializer_list<T> values) {
    return *(values.begin() + Int(0, static_cast<int>(values.size()) - 1));
  }
  std::vector<float> Floats(size_t count, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(count);
    for (float& value : values) value = normal(engine_);
    return values;
  }

 private:
  ::testing::ScopedTrace trace_;
  std::mt19937 engine_;
};

// A tensor that owns its memory, filled from floats.
class Owned {
 public:
  Owned(DType dtype, int64_t rows, int64_t cols, int64_t row_stride = 0)
      : bytes_(std::max<size_t>(64, rows * std::max(row_stride, cols) * SizeOf(dtype))) {
    tensor_ = {bytes_.data(), dtype, rows, cols, row_stride > 0 ? row_stride : cols};
  }
  Owned(DType dtype, int64_t rows, int64_t cols, const std::vector<float>& values)
      : Owned(dtype, rows, cols) {
    ConvertElements(values.data(), DType::kF32, rows * cols, dtype, tensor_.data);
  }
  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }  // NOLINT
  // The values as the tensor holds them, row by row.
  std::vector<float> Values() const {
    std::vector<float> values(tensor_.rows * tensor_.cols);
    for (int64_t r = 0; r < tensor_.rows; ++r) {
      ConvertElements(bytes_.data() + r * tensor_.row_stride * SizeOf(tensor_.dtype), tensor_.dtype,
                      tensor_.cols, DType::kF32, values.data() + r * tensor_.cols);
    }
    return values;
  }
  Tensor Rows(int64_t first, int64_t count) const {
    Tensor part = tensor_;
    part.data = static_cast<std::byte*>(tensor_.data) +
                first * tensor_.row_stride * static_cast<int64_t>(SizeOf(tensor_.dtype));
    part.rows = count;
    return part;
  }

 private:
  std::vector<std::byte> bytes_;
  Tensor tensor_;
};

inline std::unique_ptr<Buffer> BufferOf(Backend& backend, const std::vector<float>& values) {
  auto buffer = std::move(backend.Allocate(values.size() * sizeof(float))).value();
  backend.CopyToDevice(buffer->data(), values.data(), values.size() * sizeof(float));
  return buffer;
}

inline std::vector<float> Rounded(const std::vector<float>& values, DType dtype) {
  return Owned(dtype, 1, static_cast<int64_t>(values.size()), values).Values();
}

// Bit for bit.
inline void ExpectSame(const std::vector<float>& a, const std::vector<float>& b,
                       const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(float)), 0)
        << what << ": element " << i << ": " << a[i] << " against " << b[i];
  }
}

}  // namespace baton::backend

#endif  // BATON_TESTS_COMMON_BACKEND_CPU_TEST_BACKEND_H_
