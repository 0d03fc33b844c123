#include "common/model/gguf_blocks.h"

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/model_dir.h"

namespace baton::model {
namespace {

class GgufBlocksTest : public ::testing::TestWithParam<const char*> {};

// Bit for bit, as make_gguf_blocks.py had the package gguf dequantise them.
TEST_P(GgufBlocksTest, DequantisesLikeTheReference) {
  const std::string path = std::string(BATON_CHECKPOINT_DIR) + "/gguf_blocks/" + GetParam();
  const std::string expected = testing::ReadAll(path + ".f32");
  const BlockFormat* format = FindBlockFormat(GetParam());
  ASSERT_NE(format, nullptr);
  const size_t count = expected.size() / sizeof(float);
  ASSERT_EQ(count, 500u * static_cast<size_t>(format->elements)) << "no blocks at " << path;
  const std::string blocks = "x" + testing::ReadAll(path + ".blocks");  // at an odd address
  ASSERT_EQ(blocks.size(), 1 + 500u * static_cast<size_t>(format->bytes));
  std::vector<float> values(count);
  EXPECT_TRUE(Dequantize(*format, blocks.data() + 1, static_cast<int64_t>(count), values.data()));
  std::vector<float> floats(count);
  std::memcpy(floats.data(), expected.data(), expected.size());
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::memcmp(&values[i], &floats[i], sizeof(float)), 0)
        << "element " << i << ": found " << values[i] << ", expected " << floats[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GgufBlocksTest,
                         ::testing::Values("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K",
                                           "Q6_K"),
                         [](const auto& info) { return std::string(info.param); });

TEST(GgufBlocksTest, KnowsNoOtherType) {
  for (const char* name : {"Q2_K", "Q3_K", "IQ4_XS", "F32", "", "q8_0"}) {
    EXPECT_EQ(FindBlockFormat(name), nullptr) << name;
  }
}

TEST(GgufBlocksTest, ReportsAScaleThatIsNoNumber) {
  const BlockFormat* format = FindBlockFormat("Q8_0");
  float out[64];
  std::string blocks(68, '\x01');
  EXPECT_TRUE(Dequantize(*format, blocks.data(), 64, out));
  for (const char* half : {"\x01\x7c", "\x01\xfe"}) {  // beyond infinity: NaN
    blocks.replace(34, 2, half, 2);
    EXPECT_FALSE(Dequantize(*format, blocks.data(), 64, out));
  }
}

TEST(GgufBlocksTest, Mxfp4HasItsNumbersAndNoLargerScaleThanDevicesHold) {
  const BlockFormat* format = FindBlockFormat(kMxfp4Name);
  float out[32];
  std::string block(17, '\x7a');  // 6 is in every high half, -1 in every low one
  block[0] = static_cast<char>(kMxfp4MaxExponent);
  ASSERT_TRUE(Dequantize(*format, block.data(), 32, out));
  EXPECT_EQ(out[0], -0x1p121f);
  EXPECT_EQ(out[16], 6 * 0x1p121f);
  block[0] = static_cast<char>(kMxfp4MaxExponent + 1);
  EXPECT_FALSE(Dequantize(*format, block.data(), 32, out));
}

}  // namespace
}  // namespace baton::model
