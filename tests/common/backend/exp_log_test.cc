#include "common/backend/exp_log.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/seed.h"

namespace baton::backend {
namespace {

TEST(ExpLogTest, FixedExp2IsExp2RoundedDown) {
  EXPECT_EQ(FixedExp2(0), kOne);
  EXPECT_EQ(FixedExp2(-1), kOne / 2);
  EXPECT_EQ(FixedExp2(-40), 1u);
  EXPECT_EQ(FixedExp2(-41), 0u);
  EXPECT_EQ(FixedExp2(-std::numeric_limits<double>::infinity()), 0u);
  for (double x = 0; x > -45; x -= 0.0137) {
    const double exact = std::ldexp(std::exp2(x), kWeightBits);
    // One unit, and what the polynomial leaves out.
    EXPECT_NEAR(static_cast<double>(FixedExp2(x)), exact, 1 + exact * 1e-12) << x;
  }
}

TEST(ExpLogTest, FixedLogIsTheLogarithm) {
  EXPECT_EQ(FixedLog(kOne), 0);
  for (const uint64_t n : {uint64_t{1}, uint64_t{2}, uint64_t{3}, kOne - 1, kOne + 1, 2 * kOne,
                           uint64_t{1} << 62, (uint64_t{1} << 62) + 12345}) {
    const double exact = std::log(std::ldexp(static_cast<double>(n), -kWeightBits));
    EXPECT_NEAR(FixedLog(n), exact, 4e-15 * (1 + std::fabs(exact))) << n;
  }
  for (uint64_t n = kOne; n < kOne << 20; n += n / 97) {
    const double exact = std::log(std::ldexp(static_cast<double>(n), -kWeightBits));
    EXPECT_NEAR(FixedLog(n), exact, 4e-15 * (1 + exact)) << n;
  }
}

TEST(ExpLogTest, LogSumExpOfAWholeVocabulary) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const size_t size : {size_t{1}, size_t{2}, size_t{1000}, size_t{151936}}) {
    std::normal_distribution<float> normal(-2, 4);
    std::vector<float> logits(size);
    for (float& logit : logits) logit = normal(random);
    if (size > 2) logits[2] = -std::numeric_limits<float>::infinity();
    const float highest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit} - double{highest});
    EXPECT_NEAR(LogSumExp(logits, highest), std::log(sum), 2e-7) << size;
  }
}

}  // namespace
}  // namespace baton::backend
