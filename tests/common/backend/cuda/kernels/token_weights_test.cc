// The weights and the bins of the sampling kernels.
#include "common/backend/cuda/kernels/token_weights.cuh"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "common/backend/cuda/kernels/logit_bins.cuh"
#include "common/backend/exp_log.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

class CudaTokenWeightsTest : public KernelTest {
 protected:
  float Real(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random_);
  }
  bool OneIn(int n) { return Int(1, n) == 1; }
};

// Weights as the kernels compute them are FixedExp2's, bit by bit: at the table's borders, around
// the least weight and beyond it, and anywhere between.
TEST_F(CudaTokenWeightsTest, AreThoseOfTheCpu) {
  SCOPED_TRACE(seed_);
  const auto expect_equal = [](double x) {
    ASSERT_EQ(WeightAt(x), FixedExp2(x / -static_cast<double>(kExp2TableSize))) << x;
  };
  for (int index = 0; index <= (kWeightBits + 2) * kExp2TableSize; ++index) {
    const auto border = static_cast<double>(index);
    expect_equal(border);
    expect_equal(std::nextafter(border, 1e9));
    if (index > 0) expect_equal(std::nextafter(border, 0));
  }
  for (int i = 0; i < 200'000; ++i) {
    const double far = (kWeightBits + 2) * kExp2TableSize;
    expect_equal(std::uniform_real_distribution<double>(0, Coin() ? far : 1)(random_));
  }
  expect_equal(1e-300);
  expect_equal(2.0 * kWeightBits * kExp2TableSize);
  EXPECT_EQ(WeightAt(0, false), 0u);
}

// Bins keep the order of all floats that are not above the highest, and have no others.
TEST_F(CudaTokenWeightsTest, BinsKeepTheOrder) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> logits(60);
    const float spread = OneIn(3) ? std::exp(Real(-100, 88)) : Real(0.01f, 20);
    const float center = Coin() ? Normal(std::exp(Real(-20, 80))) : 0;
    for (float& logit : logits) logit = std::clamp(center + Normal(spread), -3.4e38f, 3.4e38f);
    if (OneIn(4)) logits[0] = 3.4e38f;
    if (OneIn(4)) logits[1] = -3.4e38f;
    if (OneIn(4)) logits[2] = logits[3];
    if (OneIn(4)) logits[4] = 0.0f, logits[5] = -0.0f;
    std::sort(logits.begin(), logits.end(), std::greater<>());
    const double span = Coin() ? static_cast<double>(logits.front()) - logits.back()
                               : std::exp(static_cast<double>(Real(-100, 20)));
    const LogitBins bins = {logits.front(), ScaleOfBins(OneIn(10) ? 0 : span)};
    ASSERT_EQ(bins.Of(logits.front()), kBins - 1);
    for (size_t i = 1; i < logits.size(); ++i) {
      ASSERT_LE(bins.Of(logits[i]), bins.Of(logits[i - 1])) << "round " << round;
      if (logits[i] == logits[i - 1]) {
        ASSERT_EQ(bins.Of(logits[i]), bins.Of(logits[i - 1]));
      }
      ASSERT_GE(bins.Of(logits[i]), 0);
    }
    ASSERT_EQ(bins.Of(-kInfinity), 0);
  }
}

}  // namespace
}  // namespace baton::backend::cuda
