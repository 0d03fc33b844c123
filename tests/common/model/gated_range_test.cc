#include "common/model/gated_range.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace baton::model {
namespace {

float ScaleOf(const std::vector<std::vector<float>>& rows, double length, bool has_gate,
              const std::vector<float>& weight = {}) {
  backend::ThreadPool pool(1);
  GatedRange range(length, weight);
  for (const std::vector<float>& row : rows) {
    range.Add(
        backend::HostMatrix{row.data(), backend::DType::kF32, 1, static_cast<int64_t>(row.size())},
        pool);
  }
  return range.Scale(has_gate);
}

// The bound on the product of gate and up, or on the square of up, comes below 32768.
TEST(GatedRangeScaleTest, ThePowerBringsTheBoundWithinTheRange) {
  EXPECT_EQ(ScaleOf({{3, 4}, {1, 0}}, 10, true), 1);
  // 100 * 100 * 5 * 2 = 100,000.
  EXPECT_EQ(ScaleOf({{3, 4}, {2, 0}}, 100, true), 0.25f);
  // Without a gate, of the row of up that is longest: 100 * 100 * 5 * 5 = 250,000.
  EXPECT_EQ(ScaleOf({{3, 4}, {2, 0}}, 100, false), 0.125f);
  EXPECT_EQ(ScaleOf({{2, 0}}, 100, false), 0.5f);
  EXPECT_EQ(ScaleOf({{2, 0}}, 90, false), 1);
  // A norm's weight counts.
  EXPECT_EQ(ScaleOf({{2, 0}}, 100, false, {0.5f, 9}), 1);
  EXPECT_EQ(ScaleOf({{2, 0}}, HUGE_VAL, false), std::ldexp(1.0f, -12));
}

}  // namespace
}  // namespace baton::model
