#include "common/backend/cuda/matrices/product_uses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "common/backend/cpu/convert.h"
#include "common/backend/cuda/cuda_backend.h"

namespace baton::backend::cuda {
namespace {

// Records the tuned products.
class Listening final : public Products {
 public:
  explicit Listening(std::vector<ProductUse>& uses) : uses_(uses) {}
  size_t WorkspaceBytes() const override { return 0; }
  void SetWorkspace(void*) override {}
  void Tune(absl::Span<const ProductUse> uses, DType, Stream) override {
    uses_.assign(uses.begin(), uses.end());
  }
  bool MatMul(const MatMulLaunch&, DType, Stream) override { return false; }

 private:
  std::vector<ProductUse>& uses_;
};

TEST(UsesOfTest, OperandsAreThoseOfSteps) {
  for (const int capability : {75, 80}) {
    std::vector<ProductUse> uses;
    const auto backend = MakeBackendOn(MakeEmulatedRuntime(capability, size_t{48} << 20),
                                       std::make_unique<Listening>(uses), {})
                             .value();
    StepLimits limits;
    limits.max_rows = limits.max_logit_rows = 6;
    limits.max_sequences = 2;
    limits.max_positions = 64;
    limits.query_heads = limits.kv_heads = limits.layers = 1;
    limits.head_dim = limits.block_tokens = 16;
    limits.hidden_dim = limits.vocab_size = 32;
    ASSERT_TRUE(backend->Prepare(limits).ok());
    const std::vector<float> values(24 * 32, 1.0f);
    const auto weight = backend->Pack({{values.data(), DType::kF32, 24, 32}}).value();
    const DType dtype = backend->activation_dtype();
    const auto x = backend->Allocate(6 * 40 * SizeOf(dtype)).value();
    const auto bias = backend->Allocate(24 * sizeof(float)).value();
    const auto out = backend->Allocate(6 * 24 * sizeof(float)).value();
    // A smaller view of one input, then all of it.
    const Tensor few = {x->data(), dtype, 2, 32, 32}, all = {x->data(), dtype, 6, 32, 40};
    backend->Tune({{few, weight.get(), nullptr, {out->data(), DType::kF32, 2, 24, 24}},
                   {all, weight.get(), bias.get(), {out->data(), DType::kF32, 6, 24, 24}}});
    ASSERT_EQ(uses.size(), 2u);
    EXPECT_EQ(uses[0].launch.rows, 2);
    EXPECT_EQ(uses[0].launch.bias, nullptr);
    const MatMulLaunch& launch = uses[1].launch;
    EXPECT_EQ(uses[1].least_rows, 1);
    EXPECT_EQ(launch.x, x->data());
    EXPECT_EQ(launch.x_stride, 40);
    EXPECT_EQ(launch.bias, bias->data());
    EXPECT_EQ(launch.out, out->data());
    EXPECT_EQ(launch.out_stride, 24);
    EXPECT_EQ(launch.rows, 6);
    EXPECT_EQ(launch.n, 24);
    EXPECT_EQ(launch.k, 32);
    // W as it was packed, x of numbers that cost as much to multiply as any.
    std::vector<float> w(24 * 32), filled(6 * 40);
    ConvertElements(launch.w, dtype, 24 * 32, DType::kF32, w.data());
    EXPECT_EQ(w, values);
    ConvertElements(x->data(), dtype, 6 * 40, DType::kF32, filled.data());
    int negative = 0;
    for (const float value : filled) {
      EXPECT_TRUE(std::abs(value) >= 0.5f && std::abs(value) < 1) << value;
      negative += value < 0;
    }
    EXPECT_TRUE(negative > 60 && negative < 180) << negative << " of 240";
  }
}

}  // namespace
}  // namespace baton::backend::cuda
