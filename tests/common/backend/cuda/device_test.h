// What the tests of backend.h on every device share: tensors in memory that the host cannot
// address, with NaNs between their rows, and numbers as the device's types hold them.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_DEVICE_TEST_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_DEVICE_TEST_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/backend/backend.h"
#include "common/backend/cpu/convert.h"
#include "tests/testing/devices.h"
#include "tests/testing/seed.h"

namespace baton::backend {

inline std::vector<std::byte> Converted(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
  ConvertElements(values.data(), DType::kF32, static_cast<int64_t>(values.size()), dtype,
                  bytes.data());
  return bytes;
}
inline std::vector<float> Widened(const std::byte* bytes, int64_t count, DType dtype) {
  std::vector<float> values(static_cast<size_t>(count));
  ConvertElements(bytes, dtype, count, DType::kF32, values.data());
  return values;
}
// As the dtype holds them.
inline std::vector<float> Rounded(const std::vector<float>& values, DType dtype) {
  return Widened(Converted(values, dtype).data(), static_cast<int64_t>(values.size()), dtype);
}
// What rounding to the dtype may cost, relative; of normal numbers.
inline double Precision(DType dtype) {
  return dtype == DType::kF32 ? 1e-6 : dtype == DType::kF16 ? 4.9e-4 : 3.95e-3;
}

// A tensor that owns device memory. The gaps between its rows are all ones: NaN.
class DeviceTensor {
 public:
  DeviceTensor(Backend& backend, DType dtype, int64_t rows, int64_t cols, int64_t row_stride)
      : backend_(backend) {
    const size_t size = std::max<size_t>(
        16, static_cast<size_t>(rows) * static_cast<size_t>(row_stride) * SizeOf(dtype));
    memory_ = backend.Allocate(size).value();
    tensor_ = {memory_->data(), dtype, rows, cols, row_stride};
    const std::vector<std::byte> ones(size, std::byte{0xff});
    backend.CopyToDevice(memory_->data(), ones.data(), size);
  }
  // values: [rows, cols], which are rounded.
  void Set(const std::vector<float>& values) {
    const std::vector<std::byte> dense = Converted(values, tensor_.dtype);
    std::vector<std::byte> bytes(memory_->size_bytes(), std::byte{0xff});
    for (int64_t row = 0; row < tensor_.rows; ++row) {
      std::copy_n(dense.begin() + row * row_bytes(), row_bytes(),
                  bytes.begin() + row * stride_bytes());
    }
    backend_.CopyToDevice(memory_->data(), bytes.data(), bytes.size());
  }
  // Waits. The values, and that nothing was written between the rows.
  std::vector<float> Get() const {
    std::vector<std::byte> bytes(memory_->size_bytes());
    backend_.CopyToHost(bytes.data(), memory_->data(), bytes.size());
    std::vector<float> values;
    for (int64_t row = 0; row < tensor_.rows; ++row) {
      const std::byte* from = bytes.data() + row * stride_bytes();
      const std::vector<float> part = Widened(from, tensor_.cols, tensor_.dtype);
      values.insert(values.end(), part.begin(), part.end());
      EXPECT_TRUE(std::all_of(from + row_bytes(), from + stride_bytes(),
                              [](std::byte byte) { return byte == std::byte{0xff}; }))
          << "written behind row " << row;
    }
    return values;
  }
  operator const Tensor&() const { return tensor_; }  // NOLINT
  const Tensor& tensor() const { return tensor_; }
  // Rows [first, first + count) of it.
  Tensor Rows(int64_t first, int64_t count) const {
    Tensor part = tensor_;
    part.data = static_cast<std::byte*>(tensor_.data) + first * stride_bytes();
    part.rows = count;
    return part;
  }

 private:
  int64_t row_bytes() const { return tensor_.cols * static_cast<int64_t>(SizeOf(tensor_.dtype)); }
  int64_t stride_bytes() const {
    return tensor_.row_stride * static_cast<int64_t>(SizeOf(tensor_.dtype));
  }
  Backend& backend_;
  std::unique_ptr<Buffer> memory_;
  Tensor tensor_;
};

class DeviceTest : public ::testing::TestWithParam<baton::testing::Device> {
 protected:
  void SetUp() override { MakeBackend(); }
  void MakeBackend() {
    backend_.reset();
    backend_ = GetParam().make().value();
  }

  bool on_cpu() const { return GetParam().name.rfind("cpu_", 0) == 0; }
  bool on_gpu() const { return GetParam().name.rfind("gpu_", 0) == 0; }
  DType activation() const { return backend_->activation_dtype(); }
  // So many rounds, or fewer where each takes long.
  int Rounds(int rounds) const { return GetParam().slow ? (rounds + 2) / 3 : rounds; }

  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Coin() { return Int(0, 1) == 1; }
  template <class T>
  T Of(std::initializer_list<T> values) {
    return *(values.begin() + Int(0, static_cast<int>(values.size()) - 1));
  }
  DType AnyOutDType() { return Coin() ? DType::kF32 : activation(); }
  std::vector<float> Floats(int64_t count, float deviation = 1) {
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random_);
    return values;
  }

  // Rows a little apart, or one behind the other.
  DeviceTensor Empty(DType dtype, int64_t rows, int64_t cols) {
    return DeviceTensor(*backend_, dtype, rows, cols, (cols + 7) / 8 * 8 + 8 * Int(0, 2));
  }
  DeviceTensor With(DType dtype, int64_t rows, int64_t cols, const std::vector<float>& values) {
    DeviceTensor tensor = Empty(dtype, rows, cols);
    tensor.Set(values);
    return tensor;
  }
  std::unique_ptr<Buffer> BufferOf(const std::vector<float>& values) {
    auto buffer = backend_->Allocate(values.size() * sizeof(float)).value();
    backend_->CopyToDevice(buffer->data(), values.data(), values.size() * sizeof(float));
    return buffer;
  }
  std::unique_ptr<PackedMatrix> Packed(const std::vector<float>& values, int64_t rows,
                                       int64_t cols) {
    const HostMatrix matrix = {values.data(), DType::kF32, rows, cols};
    return backend_->Pack({matrix}).value();
  }

  // Limits of small steps; heads as given.
  static StepLimits Limits(int max_rows, int query_heads = 2, int kv_heads = 1, int head_dim = 16,
                           int block_tokens = 16) {
    StepLimits limits;
    limits.max_rows = limits.max_logit_rows = max_rows;
    limits.max_sequences = 8;
    limits.max_positions = 1024;
    limits.query_heads = query_heads;
    limits.kv_heads = kv_heads;
    limits.head_dim = head_dim;
    limits.block_tokens = block_tokens;
    limits.layers = 2;
    limits.hidden_dim = 64;
    limits.vocab_size = 64;
    return limits;
  }
  // A batch of one sequence from position 0 on, in blocks of the lowest numbers.
  std::unique_ptr<DeviceBatch> UploadTokens(const std::vector<int32_t>& tokens,
                                            const std::vector<int32_t>& logit_rows = {}) {
    std::vector<int32_t> blocks(tokens.size() / 16 + 1);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
    const SequenceRows sequence = {0, static_cast<int>(tokens.size()), 0, blocks};
    return backend_->Upload({tokens, {&sequence, 1}, logit_rows});
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
  std::unique_ptr<Backend> backend_;
};

inline std::string NameOfDevice(const ::testing::TestParamInfo<baton::testing::Device>& info) {
  return info.param.name;
}

}  // namespace baton::backend

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_DEVICE_TEST_H_
