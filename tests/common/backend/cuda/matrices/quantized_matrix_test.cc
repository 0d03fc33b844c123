// Products with weights of 4 and 8 bits through the backend, on emulated devices.
#include "common/backend/cuda/matrices/quantized_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/backend/cpu/convert.h"
#include "common/backend/cuda/cuda_backend.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/backend/quantized.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

class CudaQuantizedMatrixTest : public ::testing::Test {
 protected:
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // Owns a random stack of parts.
  struct Stack {
    std::vector<std::vector<uint8_t>> values;
    std::vector<std::vector<uint16_t>> scales, zeros;
    std::vector<int32_t> order;
    std::vector<QuantizedHostMatrix> parts;
  };
  // rows: of each of two parts; 0: some parts of some.
  Stack RandomStack(int bits, int cols, int group_size, DType scale_dtype, bool sym, bool ordered,
                    int rows = 0) {
    Stack stack;
    if (ordered) {
      stack.order.resize(static_cast<size_t>(cols));
      std::iota(stack.order.begin(), stack.order.end(), 0);
      std::shuffle(stack.order.begin(), stack.order.end(), random_);
    }
    const int part_count = rows == 0 ? Int(1, 3) : 2;
    for (int i = 0; i < part_count; ++i) {
      QuantizedHostMatrix part = {.bits = bits,
                                  .rows = rows == 0 ? Int(1, 60) : rows,
                                  .cols = cols,
                                  .group_size = group_size,
                                  .scale_dtype = scale_dtype,
                                  .symmetric = sym};
      auto& values = stack.values.emplace_back(static_cast<size_t>(part.rows * part.row_bytes()));
      for (uint8_t& value : values) value = static_cast<uint8_t>(Int(0, 255));
      const auto groups = static_cast<size_t>(part.rows * part.groups());
      auto& scales = stack.scales.emplace_back(groups);
      auto& zeros = stack.zeros.emplace_back(groups);
      for (size_t g = 0; g < groups; ++g) {
        // Of every size that checkpoints have; some make subnormal float16 weights.
        const float scale = std::ldexp(1.0f + static_cast<float>(Int(0, 127)) / 128,
                                       Int(0, 9) == 0 ? -16 : Int(-9, -5));
        ConvertElements(&scale, DType::kF32, 1, scale_dtype, &scales[g]);
        zeros[g] = static_cast<uint16_t>(sym ? 1 << (bits - 1) : Int(0, 1 << bits));
      }
      stack.parts.push_back(part);
    }
    for (size_t i = 0; i < stack.parts.size(); ++i) {
      stack.parts[i].values = stack.values[i].data();
      stack.parts[i].scales = stack.scales[i].data();
      stack.parts[i].zeros = stack.zeros[i].data();
      stack.parts[i].order = ordered ? stack.order.data() : nullptr;
    }
    return stack;
  }

  // Its rows as the 16-bit values that they are.
  static std::vector<uint16_t> Weights16(const Stack& stack, DType dtype) {
    std::vector<uint16_t> weights;
    for (const QuantizedHostMatrix& part : stack.parts) {
      std::vector<float> row(static_cast<size_t>(part.cols));
      for (int64_t r = 0; r < part.rows; ++r) {
        DequantizeRow(part, r, row.data());
        weights.resize(weights.size() + row.size());
        ConvertElements(row.data(), DType::kF32, part.cols, dtype,
                        &weights[weights.size() - row.size()]);
      }
    }
    return weights;
  }
  static float Value(uint16_t bits, DType dtype) {
    return dtype == DType::kF16 ? Half::ToF32(bits) : BFloat16::ToF32(bits);
  }

  // One of each kind: an emulated device's memory takes longer to make than to use.
  Backend& On(int capability, DType dtype) {
    std::unique_ptr<Backend>& backend = backends_[{capability, dtype}];
    if (backend != nullptr) return *backend;
    auto made = MakeBackendOn(MakeEmulatedRuntime(capability, size_t{64} << 20, random_()), nullptr,
                              {.compute = dtype == DType::kF16 ? BackendOptions::Compute::kF16
                                                               : BackendOptions::Compute::kBF16,
                               .deterministic = true});
    EXPECT_TRUE(made.ok()) << made.status();
    const absl::Status prepared = (*made)->Prepare({.max_rows = kMostRows,
                                                    .max_sequences = 1,
                                                    .max_logit_rows = 1,
                                                    .max_positions = 16,
                                                    .query_heads = 1,
                                                    .kv_heads = 1,
                                                    .head_dim = 64,
                                                    .block_tokens = 16,
                                                    .layers = 1,
                                                    .hidden_dim = 64,
                                                    .vocab_size = 64,
                                                    .quantized_columns = 400,
                                                    .reordered_columns = true});
    EXPECT_TRUE(prepared.ok()) << prepared;
    backend = *std::move(made);
    return *backend;
  }
  static constexpr int kMostRows = 150;

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
  std::map<std::pair<int, DType>, std::unique_ptr<Backend>> backends_;
};

// Random matrices through the backend: against float64, and bit by bit against the same matrix in
// 16 bits, for numbers of rows on both sides of every kernel's border.
TEST_F(CudaQuantizedMatrixTest, ProductsEqualTheReferenceAndThoseOf16Bits) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 60; ++round) {
    const int bits = Int(0, 1) ? 4 : 8;
    const DType dtype = Int(0, 1) ? DType::kF16 : DType::kBF16;
    const DType scale_dtype = Int(0, 2) == 0 ? DType::kBF16 : DType::kF16;
    const int capability = dtype == DType::kF16 && Int(0, 1) ? 75 : 80;
    const int cols = 8 * Int(1, 50);
    const int group_sizes[] = {32, 32, 64, 128, 256, cols};
    const int group_size = group_sizes[Int(0, 5)];
    const bool ordered = Int(0, 4) == 0, sym = Int(0, 1);
    const int row_counts[] = {Int(1, 16), Int(17, 32), Int(33, 64), Int(65, 90)};
    const int rows = row_counts[Int(0, 3)];
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << bits << " bits, " << rows << " rows, " << cols
                 << " columns in groups of " << group_size << ", " << Name(dtype) << " on "
                 << capability << ", scales " << Name(scale_dtype) << (ordered ? ", ordered" : ""));
    const Stack stack = RandomStack(bits, cols, group_size, scale_dtype, sym, ordered);
    Backend& backend = On(capability, dtype);
    const auto packed = backend.PackQuantized(stack.parts);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const int64_t n = (*packed)->out_features();
    EXPECT_EQ(
        (*packed)->size_bytes(),
        QuantizedExtentOf(n, cols, bits, group_size, sym).size_bytes() + (ordered ? cols * 4 : 0));

    const std::vector<uint16_t> w = Weights16(stack, dtype);
    std::vector<uint16_t> x(static_cast<size_t>(rows * cols));
    std::normal_distribution<float> normal(0, 1);
    for (uint16_t& value : x) {
      value = dtype == DType::kF16 ? Half::FromF32(normal(random_))
                                   : BFloat16::FromF32(normal(random_));
    }
    std::vector<float> bias(static_cast<size_t>(n));
    for (float& value : bias) value = normal(random_);
    const auto upload = [&](const void* data, size_t size_bytes) {
      auto buffer = backend.Allocate(size_bytes).value();
      backend.CopyToDevice(buffer->data(), data, size_bytes);
      return buffer;
    };
    const auto d_x = upload(x.data(), x.size() * 2);
    const auto d_bias = upload(bias.data(), bias.size() * 4);
    const auto d_out = backend.Allocate(static_cast<size_t>(rows * n) * 4).value();
    const Tensor d_rows = {d_x->data(), dtype, rows, cols, cols};
    const Tensor out = {d_out->data(), DType::kF32, rows, n, n};
    std::vector<float> got(static_cast<size_t>(rows * n)), whole(got.size());
    backend.MatMul(d_rows, **packed, d_bias.get(), out);
    backend.CopyToHost(got.data(), d_out->data(), got.size() * 4);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        double sum = bias[static_cast<size_t>(c)], size = 1;
        for (int64_t k = 0; k < cols; ++k) {
          const double product = double{Value(x[static_cast<size_t>(r * cols + k)], dtype)} *
                                 double{Value(w[static_cast<size_t>(c * cols + k)], dtype)};
          sum += product;
          size += std::fabs(product);
        }
        ASSERT_NEAR(got[static_cast<size_t>(r * n + c)], sum, 2e-6 * size)
            << "row " << r << ", column " << c;
      }
    }
    if (ordered) continue;  // another order of additions
    const HostMatrix plain = {w.data(), dtype, n, cols};
    const auto matrix = backend.Pack({&plain, 1});
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    backend.MatMul(d_rows, **matrix, d_bias.get(), out);
    backend.CopyToHost(whole.data(), d_out->data(), whole.size() * 4);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(FloatBits(got[i]), FloatBits(whole[i])) << "element " << i;
    }
  }
}

// Gate and up, where they are multiplied as one and where they are not.
TEST_F(CudaQuantizedMatrixTest, GateOfTheProductHasTheBitsOfTheTwo) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 30; ++round) {
    const DType dtype = round % 2 == 0 ? DType::kF16 : DType::kBF16;
    const int bits = Int(0, 1) ? 4 : 8, cols = 8 * Int(1, 50), inner = 8 * Int(1, 6);
    const int row_counts[] = {Int(1, 16), Int(17, 32), Int(33, 64), Int(65, 90)};
    const int rows = row_counts[Int(0, 3)];
    const bool ordered = Int(0, 3) == 0;
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << bits << " bits, " << rows
                                      << " x " << cols << " by 2 x " << inner);
    const Stack stack = RandomStack(bits, cols, 64, DType::kF16, false, ordered, inner);
    Backend& backend = On(80, dtype);
    const auto packed = backend.PackQuantized(stack.parts).value();
    std::vector<uint16_t> x(static_cast<size_t>(rows * cols));
    std::normal_distribution<float> normal(0, 1);
    for (uint16_t& value : x) {
      value = dtype == DType::kF16 ? Half::FromF32(normal(random_))
                                   : BFloat16::FromF32(normal(random_));
    }
    const auto d_x = backend.Allocate(x.size() * 2).value();
    backend.CopyToDevice(d_x->data(), x.data(), x.size() * 2);
    const auto d_gate_up = backend.Allocate(static_cast<size_t>(rows * 2 * inner) * 4).value();
    const Tensor d_rows = {d_x->data(), dtype, rows, cols, cols};
    const Tensor gate_up = {d_gate_up->data(), DType::kF32, rows, 2 * inner, 2 * inner};
    const GatedArgs args = {Int(0, 1) ? GatedActivation::kGeluTanh : GatedActivation::kSilu,
                            Int(0, 1) ? 1.0f : 0.125f};
    std::vector<uint16_t> results[2];
    for (int fused = 0; fused < 2; ++fused) {
      results[fused].resize(static_cast<size_t>(rows * inner));
      const auto d_out = backend.Allocate(results[fused].size() * 2).value();
      const Tensor out = {d_out->data(), dtype, rows, inner, inner};
      if (fused == 1) {
        backend.MatMulGated(d_rows, *packed, args, gate_up, out);
      } else {
        backend.MatMul(d_rows, *packed, nullptr, gate_up);
        backend.Gate(gate_up, args, out);
      }
      backend.CopyToHost(results[fused].data(), d_out->data(), results[fused].size() * 2);
    }
    ASSERT_EQ(results[0], results[1]);
  }
}

// One row, then as many as take every kernel: the same bits.
TEST_F(CudaQuantizedMatrixTest, ARowIsTheSameInEveryBatch) {
  SCOPED_TRACE(seed_);
  const int most = kMostRows, cols = 328;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const bool ordered = dtype == DType::kF16;
    const Stack stack = RandomStack(4, cols, 128, DType::kF16, false, ordered);
    Backend& backend = On(80, dtype);
    const auto packed = backend.PackQuantized(stack.parts);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const int64_t n = (*packed)->out_features();
    std::vector<uint16_t> x(static_cast<size_t>(most * cols));
    std::normal_distribution<float> normal(0, 1);
    for (uint16_t& value : x) {
      value = ordered ? Half::FromF32(normal(random_)) : BFloat16::FromF32(normal(random_));
    }
    const auto d_x = backend.Allocate(x.size() * 2).value();
    backend.CopyToDevice(d_x->data(), x.data(), x.size() * 2);
    const auto d_out = backend.Allocate(static_cast<size_t>(most * n) * 4).value();
    const auto multiply = [&](int first, int count) {
      backend.MatMul({static_cast<uint16_t*>(d_x->data()) + first * cols, dtype, count, cols, cols},
                     **packed, nullptr, {d_out->data(), DType::kF32, count, n, n});
      std::vector<float> out(static_cast<size_t>(count * n));
      backend.CopyToHost(out.data(), d_out->data(), out.size() * 4);
      return out;
    };
    const std::vector<float> all = multiply(0, most);
    for (const int count : {1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 100}) {
      const int first = Int(0, most - count);
      const std::vector<float> some = multiply(first, count);
      for (size_t i = 0; i < some.size(); ++i) {
        ASSERT_EQ(FloatBits(some[i]), FloatBits(all[static_cast<size_t>(first * n) + i]))
            << count << " rows from " << first << ", element " << i;
      }
    }
  }
}

// Every slice of a matrix, at a workspace that takes a row tile of it and a half.
TEST_F(CudaQuantizedMatrixTest, SlicesAreTheWhole) {
  SCOPED_TRACE(seed_);
  const int cols = 64, rows = kQuantizedRows + 6;
  const Stack stack = RandomStack(4, cols, 32, DType::kF16, false, false);
  Backend& backend = On(80, DType::kF16);
  const auto packed = backend.PackQuantized(stack.parts);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const auto& matrix = static_cast<const CudaQuantizedMatrix&>(**packed);
  const auto n = static_cast<int>(matrix.out_features());
  std::vector<Vec16> x(static_cast<size_t>(rows * cols) / 8);
  std::normal_distribution<float> normal(0, 1);
  for (int i = 0; i < rows * cols; ++i) {
    reinterpret_cast<uint16_t*>(x.data())[i] = Half::FromF32(normal(random_));
  }
  std::vector<float> bias(static_cast<size_t>(n));
  for (float& value : bias) value = normal(random_);
  std::vector<float> outs[2];
  for (const int slice_rows : {12, 4096}) {
    std::vector<Vec16> memory(static_cast<size_t>(slice_rows * cols) / 8);
    QuantizedWorkspaces workspaces;
    workspaces.sizes.dequantized = memory.size() * sizeof(Vec16);
    workspaces.dequantized = memory.data();
    std::vector<float>& out = outs[slice_rows == 12];
    out.assign(static_cast<size_t>(rows * n), NAN);
    MultiplyQuantized({.x = x.data(),
                       .x_stride = cols,
                       .w = nullptr,
                       .bias = bias.data(),
                       .out = out.data(),
                       .out_stride = n,
                       .rows = rows,
                       .n = n,
                       .k = cols},
                      matrix, DType::kF16, workspaces, nullptr, nullptr);
  }
  for (size_t i = 0; i < outs[0].size(); ++i)
    ASSERT_EQ(FloatBits(outs[0][i]), FloatBits(outs[1][i]));
}

TEST_F(CudaQuantizedMatrixTest, SlicesOfGateAndUpAreTheWhole) {
  const int rows = kQuantizedRows + 3, cols = 192, inner = 40;
  const Stack stack = RandomStack(4, cols, 64, DType::kF16, false, false, inner);
  Backend& backend = On(80, DType::kF16);
  const auto packed = backend.PackQuantized(stack.parts).value();
  std::vector<Vec16> x(static_cast<size_t>(rows * cols) / 8);
  std::normal_distribution<float> normal(0, 1);
  for (int i = 0; i < rows * cols; ++i) {
    reinterpret_cast<uint16_t*>(x.data())[i] = Half::FromF32(normal(random_));
  }
  std::vector<Vec16> outs[2];
  for (const int slice_rows : {36, 4096}) {  // of 16 rows of each, and a rest; all at once
    std::vector<Vec16> memory(static_cast<size_t>(slice_rows * cols) / 8);
    QuantizedWorkspaces workspaces;
    workspaces.sizes.dequantized = memory.size() * sizeof(Vec16);
    workspaces.dequantized = memory.data();
    std::vector<Vec16>& out = outs[slice_rows == 36];
    out.assign(static_cast<size_t>(rows * inner) / 8, Vec16{~0u, ~0u, ~0u, ~0u});
    MultiplyQuantizedGated({.x = x.data(),
                            .x_stride = cols,
                            .w = nullptr,
                            .out = out.data(),
                            .out_stride = inner,
                            .rows = rows,
                            .cols = inner,
                            .k = cols},
                           static_cast<const CudaQuantizedMatrix&>(*packed), DType::kF16,
                           workspaces, nullptr);
  }
  EXPECT_EQ(std::memcmp(outs[0].data(), outs[1].data(), outs[0].size() * sizeof(Vec16)), 0);
  EXPECT_TRUE(std::isfinite(Half::ToF32(static_cast<uint16_t>(outs[0].back().x[3] >> 16))));
}

TEST_F(CudaQuantizedMatrixTest, RefusesWhatItHasNoKernelFor) {
  Backend& backend = On(80, DType::kF16);
  const auto expect = [&](const Stack& stack, const std::string& message) {
    const absl::Status status = backend.PackQuantized(stack.parts).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
  };
  expect(RandomStack(4, 160, 16, DType::kF16, true, false), "groups of 16 columns");
  expect(RandomStack(4, 160, 96, DType::kF16, true, false), "groups of 96 columns");
  expect(RandomStack(8, 100, 32, DType::kF16, true, false), "100 columns");
  Stack stack = RandomStack(4, 160, 32, DType::kF16, true, true);
  stack.parts.push_back(stack.parts[0]);
  stack.parts.back().order = nullptr;
  expect(stack, "columns in different orders");
}

}  // namespace
}  // namespace baton::backend::cuda
