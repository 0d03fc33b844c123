#include "common/backend/cuda/matrices/expert_group.h"

#include <gmock/gmock.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/common/backend/cuda/expert_layer_test.h"

namespace baton::backend::cuda {
namespace {

using ::testing::HasSubstr;

class CudaExpertGroupTest : public ExpertLayerTest {};

TEST_F(CudaExpertGroupTest, MatricesOfSeveralFormsAreRefused) {
  const auto up = Matrix(2 * kInner, kWidth), down = Matrix(kWidth, kInner);
  const auto four = Quantized(2 * kInner, kWidth, 4), eight = Quantized(2 * kInner, kWidth, 8);
  EXPECT_TRUE(
      backend_->GroupExperts({{four.get(), down.get()}, {four.get(), down.get()}}, {}).ok());
  for (const PackedMatrix* other : {up.get(), eight.get()}) {
    const absl::Status status =
        backend_->GroupExperts({{four.get(), down.get()}, {other, down.get()}}, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("matrices of several forms"));
  }
}

// What the model's configuration gives is what there is room for.
TEST_F(CudaExpertGroupTest, ExpertsInTheHostsMemoryThatAreLargerThanForetoldAreRefused) {
  MatrixPacker& host = *backend_->host_packer();
  const auto up = Pack(host, Random(2 * kInner * kWidth), 2 * kInner),
             down = Pack(host, Random(kWidth * kInner), kWidth),
             wide = Pack(host, Random(16 * kInner * kWidth), 16 * kInner);
  const std::vector<ExpertMatrices> experts(kExpertCount, {up.get(), down.get()});
  EXPECT_TRUE(backend_->GroupExperts(experts, {}).ok());
  const absl::Status status =
      backend_
          ->GroupExperts(std::vector<ExpertMatrices>(kExpertCount, {wide.get(), down.get()}), {})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected at most"));
}

TEST_F(CudaExpertGroupTest, ColumnsInAnotherOrderAreRefused) {
  std::vector<int32_t> order(kWidth);
  std::iota(order.rbegin(), order.rend(), 0);
  const auto up = Quantized(2 * kInner, kWidth, 4, order.data());
  const auto down = Matrix(kWidth, kInner);
  EXPECT_THAT(std::string(backend_->GroupExperts({{up.get(), down.get()}}, {}).status().message()),
              HasSubstr("desc_act"));
}

}  // namespace
}  // namespace baton::backend::cuda
