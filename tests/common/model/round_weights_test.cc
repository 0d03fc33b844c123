// Weights that are rounded to few bits when they are loaded.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/backend/cpu/convert.h"
#include "common/backend/quantized.h"
#include "common/model/quantization.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/model/model_runner.h"
#include "tests/testing/devices.h"
#include "tests/testing/seed.h"

namespace baton::model {
namespace {

using backend::DType;

std::vector<float> Dequantized(const QuantizedWeights& weights) {
  const backend::QuantizedHostMatrix view = weights.view();
  std::vector<float> values(static_cast<size_t>(view.rows * view.cols));
  for (int64_t row = 0; row < view.rows; ++row) {
    backend::DequantizeRow(view, row, values.data() + row * view.cols);
  }
  return values;
}

absl::StatusOr<QuantizedWeights> RoundRow(const std::vector<float>& row, int bits) {
  backend::ThreadPool pool(1);
  return QuantizedWeights::Round({row.data(), DType::kF32, 1, static_cast<int64_t>(row.size())},
                                 bits, pool);
}

float NearestF16(double value) {
  const auto single = static_cast<float>(value);
  uint16_t half;
  backend::ConvertElements(&single, DType::kF32, 1, DType::kF16, &half);
  float nearest;
  backend::ConvertElements(&half, DType::kF16, 1, DType::kF32, &nearest);
  return nearest;
}

// How far a group is from its rounded values, of which it has at least one.
struct Distance {
  double largest = 0, root = 0;  // the largest of one value; the root of the sum of squares
};

Distance Between(absl::Span<const float> values, absl::Span<const float> rounded) {
  Distance distance;
  for (size_t i = 0; i < values.size(); ++i) {
    const double off = std::fabs(double{rounded[i]} - double{values[i]});
    distance.largest = std::max(distance.largest, off);
    distance.root = std::hypot(distance.root, off);
  }
  return distance;
}

// With 8 bits, the scale is the least float16 that reaches every value, so it is within a unit of
// its last place of the exact one.
void ExpectNearIn8Bits(absl::Span<const float> values, absl::Span<const float> rounded,
                       double largest) {
  const double exact = largest / 127, scale = exact + std::max(exact * 0x1p-10, 0x1p-24);
  EXPECT_LE(Between(values, rounded).largest, scale / 2 * 1.0001) << "largest " << largest;
}

// With 4 bits, the error is no worse than that of the grid that reaches every value without a
// search. Its scale is a float16, too: for few values that happen to lie on the exact grid, this
// matters more than what is rounded.
void ExpectNearIn4Bits(absl::Span<const float> values, absl::Span<const float> rounded,
                       double largest) {
  const float scale = NearestF16(largest / 7);
  std::vector<float> grid;
  for (const float value : values) {
    const double code = scale == 0 ? 0 : std::nearbyint(double{value} / double{scale});
    grid.push_back(static_cast<float>(std::clamp(code, -7.0, 7.0)) * scale);
  }
  // The candidates are compared in float32.
  const double unsure = 1e-6 * largest * std::sqrt(static_cast<double>(values.size()));
  EXPECT_LE(Between(values, rounded).root, Between(values, grid).root * 1.00001 + unsure)
      << values.size() << " values, largest " << largest;
}

TEST(RoundWeightsTest, EveryValueIsNear) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  backend::ThreadPool pool(1);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t rows = 1 + random() % 5, cols = 2 * (1 + random() % 60);
    // Magnitudes down to where a scale has but a bit or two.
    const float size = std::pow(10.0f, static_cast<float>(random() % 8) - 6);
    std::normal_distribution<float> normal(0, size);
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& value : values) value = normal(random);
    for (const int bits : {8, 4}) {
      const auto rounded =
          QuantizedWeights::Round({values.data(), DType::kF32, rows, cols}, bits, pool);
      ASSERT_TRUE(rounded.ok()) << rounded.status();
      const std::vector<float> near = Dequantized(*rounded);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t begin = 0; begin < cols; begin += 32) {
          const auto at = static_cast<size_t>(row * cols + begin);
          const auto count = static_cast<size_t>(std::min<int64_t>(32, cols - begin));
          const auto group = absl::MakeConstSpan(values).subspan(at, count);
          const auto near_group = absl::MakeConstSpan(near).subspan(at, count);
          double largest = 0;
          for (const float value : group) largest = std::max(largest, std::fabs(double{value}));
          (bits == 8 ? ExpectNearIn8Bits : ExpectNearIn4Bits)(group, near_group, largest);
        }
      }
    }
  }
}

TEST(RoundWeightsTest, EdgesOfTheRange) {
  for (const int bits : {4, 8}) {
    SCOPED_TRACE(bits);
    const std::vector<float> zeros(64, 0.0f);
    EXPECT_EQ(Dequantized(*RoundRow(zeros, bits)), zeros);
    for (const float bad : {NAN, INFINITY, -INFINITY, 3e38f}) {
      std::vector<float> row(64, 0.5f);
      row[40] = bad;
      const auto rounded = RoundRow(row, bits);
      ASSERT_EQ(rounded.status().code(), absl::StatusCode::kInvalidArgument) << bad;
      EXPECT_THAT(std::string(rounded.status().message()),
                  ::testing::HasSubstr("row 0, columns 32 to 63"));
    }
    const std::vector<float> large(32, 390000.0f);
    for (float value : Dequantized(*RoundRow(large, bits))) EXPECT_NEAR(value, 390000, 2000);
    // Too small for any float16 scale: 0, never infinite.
    for (float value : Dequantized(*RoundRow(std::vector<float>(32, 1e-12f), bits))) {
      EXPECT_LE(std::fabs(value), 1e-5f);
    }
  }
  // -8 is a code, 8 is none.
  std::vector<float> row(32, 0.0f);
  row[3] = 8;
  EXPECT_EQ(Dequantized(*RoundRow(row, 4)), row);
  row[3] = -8;
  EXPECT_EQ(Dequantized(*RoundRow(row, 4)), row);
}

// Rows of many tasks: the same codes from any number of threads, and the first bad row is named.
TEST(RoundWeightsTest, ThreadsDoNotShow) {
  constexpr int64_t kRows = 1000, kCols = 1000;
  std::mt19937 random(testing::TestSeed(1));
  std::normal_distribution<float> normal;
  std::vector<float> values(kRows * kCols);
  for (float& value : values) value = normal(random);
  const backend::HostMatrix matrix = {values.data(), DType::kF32, kRows, kCols};
  backend::ThreadPool one(1), four(4);
  for (const int bits : {4, 8}) {
    const auto alone = QuantizedWeights::Round(matrix, bits, one);
    const auto together = QuantizedWeights::Round(matrix, bits, four);
    ASSERT_TRUE(alone.ok() && together.ok());
    EXPECT_TRUE(Dequantized(*alone) == Dequantized(*together)) << bits << " bits";
  }
  for (const int64_t row : {999, 700, 300}) {
    values[static_cast<size_t>(row * kCols)] = NAN;
    EXPECT_THAT(std::string(QuantizedWeights::Round(matrix, 4, four).status().message()),
                ::testing::HasSubstr(absl::StrCat("row ", row, ", columns 0 to 31")));
  }
}

class RoundedModelTest : public ::testing::TestWithParam<baton::testing::Device> {};

// A float checkpoint rounded to 8 bits: near itself, and the same in every chunking.
TEST_P(RoundedModelTest, IsNearTheFloatModel) {
  for (const char* name : {"tiny-llama", "tiny-qwen3"}) {
    const std::string dir = std::string(BATON_CHECKPOINT_DIR) + "/" + name;
    ModelRunner exact(dir);
    for (const int bits : {8, 4}) {
      SCOPED_TRACE(::testing::Message() << name << ", " << bits << " bits");
      ModelRunner rounded(dir, GetParam().make(), bits);
      ASSERT_TRUE(exact.ok() && rounded.ok());
      const std::vector<int32_t> prompt = Prompt(70, exact.config().vocab_size);
      const Logits whole = rounded.Run(prompt, prompt.size());
      const double error = LargestDifference(whole, exact.Run(prompt, prompt.size()));
      EXPECT_GT(error, 0);
      EXPECT_LE(error, bits == 8 ? 1.0 : 6.0);  // of logits whose largest is about 6
      std::cout << name << " in " << bits << " bits on " << GetParam().name
                << ": largest difference " << error << "\n";
      for (const size_t chunk : {1, 13, 50}) {
        EXPECT_TRUE(rounded.Run(prompt, chunk) == whole) << "in chunks of " << chunk;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RoundedModelTest, ::testing::ValuesIn(baton::testing::Devices()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::model
