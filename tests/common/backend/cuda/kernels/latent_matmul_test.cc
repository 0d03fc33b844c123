// The products for each head on the emulated device, bit by bit against the product of a matrix.
#include <cmath>
#include <cstring>

#include "common/backend/cuda/kernels/latent.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

class CudaHeadMatMulTest : public KernelTest {};

// What LaunchMatMul leaves for each head, whose bits its own tests fix, and nothing between heads.
TEST_F(CudaHeadMatMulTest, IsTheProductOfEachHead) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(24, 8); ++round) {
    ChangeMachine();
    // Few rows, some more, and tiles, each in both types.
    const int rows = round % 3 == 0 ? Int(1, 8) : round % 3 == 1 ? Int(9, 32) : Int(33, 90);
    const int heads = Int(1, 5), n = Int(1, 70), k = 8 * Int(1, round % 3 == 2 ? 24 : 60);
    const DType dtype = round / 3 % 2 == 0 || !MultipliesBFloat16() ? DType::kF16 : DType::kBF16;
    if (dtype == DType::kBF16) emulated::SetOptions({.compute_capability = 80, .seed = random_()});
    const int64_t x_stride = heads * k + 8 * Int(0, 1), head_stride = n + Int(0, 9);
    const int64_t out_stride = heads * head_stride + 4 * Int(0, 2);
    SCOPED_TRACE(::testing::Message() << rows << " rows, " << heads << " heads of " << n << " by "
                                      << k << ", " << Name(dtype));
    DeviceArray<uint16_t> x(static_cast<size_t>(rows * x_stride)),
        w(static_cast<size_t>(heads * n * k));
    for (size_t i = 0; i < x.size(); ++i) x[i] = Round16(Normal(), dtype);
    for (size_t i = 0; i < w.size(); ++i) w[i] = Round16(Normal(), dtype);
    DeviceArray<float> out(static_cast<size_t>(rows * out_stride));
    LaunchHeadMatMul({.x = x.data(),
                      .x_stride = x_stride,
                      .w = w.data(),
                      .out = out.data(),
                      .out_stride = out_stride,
                      .head_stride = head_stride,
                      .rows = rows,
                      .heads = heads,
                      .n = n,
                      .k = k},
                     dtype, nullptr);
    ASSERT_TRUE(out.MarginsIntact());
    for (int head = 0; head < heads; ++head) {
      DeviceArray<float> own(static_cast<size_t>(rows * n));
      LaunchMatMul({.x = x.data() + head * k,
                    .x_stride = x_stride,
                    .w = w.data() + head * n * k,
                    .bias = nullptr,
                    .out = own.data(),
                    .out_stride = n,
                    .rows = rows,
                    .n = n,
                    .k = k},
                   dtype, nullptr, MatMulShape::kRows);
      for (int row = 0; row < rows; ++row) {
        float* found = out.data() + row * out_stride + head * head_stride;
        ASSERT_EQ(std::memcmp(found, own.data() + row * n, sizeof(float) * static_cast<size_t>(n)),
                  0)
            << "head " << head << ", row " << row;
        std::memset(found, 0xff, sizeof(float) * static_cast<size_t>(n));
      }
    }
    for (size_t i = 0; i < out.size(); ++i) ASSERT_TRUE(std::isnan(out[i])) << "wrote beside";
  }
}

}  // namespace
}  // namespace baton::backend::cuda
