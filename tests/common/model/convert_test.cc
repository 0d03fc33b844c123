#include "common/model/convert.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace baton::model {
namespace {

using backend::DType;

TEST(ConvertTest, EveryHalfIsExactInF32) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    float value;
    ToF32(&half, DType::kBF16, 1, &value);
    uint32_t widened;
    std::memcpy(&widened, &value, sizeof(widened));
    ASSERT_EQ(widened, bits << 16);

    ToF32(&half, DType::kF16, 1, &value);
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double fraction = bits & 1023;
    const double magnitude = exponent == 0   ? std::ldexp(fraction, -24)
                             : exponent < 31 ? std::ldexp(1024 + fraction, exponent - 25)
                             : fraction == 0 ? std::numeric_limits<double>::infinity()
                                             : std::nan("");
    if (std::isnan(magnitude)) {
      ASSERT_TRUE(std::isnan(value));
    } else {
      ASSERT_EQ(value, bits & 0x8000 ? -magnitude : magnitude) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0);
    }
  }
}

TEST(ConvertTest, CountsWhatRoundingChanges) {
  const auto loss_of = [](std::vector<float> values, DType to) {
    RoundingLoss loss;
    CountLoss(values.data(), DType::kF32, to, values.size(), &loss);
    return loss;
  };
  RoundingLoss loss =
      loss_of({1, 1.0078125f, 1.00390625f, -0.0f, 3e38f, 3.4028235e38f}, DType::kBF16);
  EXPECT_EQ(loss.values, 6);
  EXPECT_EQ(loss.inexact, 3);    // 1 + 2^-8 and the last two
  EXPECT_EQ(loss.overflows, 1);  // the largest float
  loss =
      loss_of({1, 1.0009765625f, 1.00048828125f, 65504, 65520, 0x1p-24f, 0x1p-25f, 0}, DType::kF16);
  EXPECT_EQ(loss.inexact, 3);  // 1 + 2^-11, 65520 and 2^-25
  EXPECT_EQ(loss.overflows, 1);
  EXPECT_EQ(loss_of({1.1f}, DType::kF32).values, 0);
  // float16 to bfloat16: three bits less.
  const uint16_t halves[] = {0x3c00, 0x3c01, 0x3c08, 0x0001, 0x03ff};
  loss = {};
  CountLoss(halves, DType::kF16, DType::kBF16, 5, &loss);
  EXPECT_EQ(loss.inexact, 2);  // 1 + 2^-10, and a subnormal of ten bits
  EXPECT_EQ(loss.overflows, 0);
}

}  // namespace
}  // namespace baton::model
