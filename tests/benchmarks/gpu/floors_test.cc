#include "benchmarks/gpu/floors.h"

#include <gtest/gtest.h>

namespace baton::gpu_bench {
namespace {

// Figures reckoned by hand from the table in docs/cuda.md.
TEST(FloorsTest, AttentionReadsEachTokenOnceForAllHeadsOfAGroup) {
  // Qwen2.5-7B, a sequence of 2048 tokens: 2 · 2 bytes · 4 heads · 128 a token.
  const AttentionShape shape = {.sequences = 8,
                                .rows = 1,
                                .context = 2047,
                                .query_heads = 28,
                                .kv_heads = 4,
                                .head_dim = 128};
  EXPECT_EQ(KvBytes(shape, 2), 8.0 * 2048 * 2048);
  const Work work = SplitAttention(shape, 2);
  // 8 splits of 256, 28 heads, 130 floats, written and read.
  EXPECT_EQ(work.bytes, 8.0 * 2048 * 2048 + 8.0 * 28 * 8 * 130 * 4 * 2);
  EXPECT_EQ(work.flops, 8.0 * 2048 * 28 * 128 * 4);
}

TEST(FloorsTest, OneSplitHasNoPartialResults) {
  AttentionShape shape = {
      .sequences = 1, .rows = 1, .context = 255, .query_heads = 2, .kv_heads = 1, .head_dim = 64};
  EXPECT_EQ(SplitAttention(shape, 2).bytes, KvBytes(shape, 2));
  shape.context = 256;
  EXPECT_EQ(SplitAttention(shape, 2).bytes, KvBytes(shape, 2) + 2 * 2 * 66 * 4 * 2);
}

TEST(FloorsTest, CausalRowsSeeThoseBeforeThem) {
  const AttentionShape shape = {
      .sequences = 1, .rows = 3, .context = 10, .query_heads = 1, .kv_heads = 1, .head_dim = 8};
  EXPECT_EQ(TileAttention(shape, 2).flops, 4.0 * 8 * (11 + 12 + 13));
  EXPECT_EQ(TileAttention(shape, 2).bytes, 2.0 * 2 * 8 * 13 + (4 + 2) * 3 * 8);
}

TEST(FloorsTest, Products) {
  const Work work = Product(2, 100, 10, 2);
  EXPECT_EQ(work.bytes, 2 * 100 * 10 + 2 * 2 * 10 + 4 * 2 * 100);
  EXPECT_EQ(work.flops, 2 * 2 * 100 * 10);
}

TEST(FloorsTest, QuantizedWeightsAreTheirBitsAndFourBytesAGroup) {
  // docs/cuda.md: gate and up of Qwen2.5-7B are 72.1 MB.
  const Work one = QuantizedProduct(1, 37888, 3584, 4, 128, 2);
  const double x_and_out = 2.0 * 3584 + 4.0 * 37888;
  EXPECT_EQ(one.bytes - x_and_out, 37888.0 * 3584 / 2 + 37888.0 * 28 * 4);
  EXPECT_NEAR((one.bytes - x_and_out) / 1e6, 72.1, 0.1);
  // The last group may be short.
  EXPECT_EQ(QuantizedProduct(1, 8, 40, 8, 32, 2).bytes, 8 * 40 + 8 * 2 * 4 + 2 * 40 + 4 * 8);
  EXPECT_EQ(one.flops, 2.0 * 37888 * 3584);
}

TEST(FloorsTest, Passes) {
  EXPECT_EQ(Norm(3, 8, 2, false).bytes, 3 * (4 * 8 + 2 * 8));
  EXPECT_EQ(Norm(3, 8, 2, true).bytes, 3 * (12 * 8 + 2 * 8));
  EXPECT_EQ(RopeWrite(5, 14, 2, 64, 2).bytes, 5 * (8 * 14 + 12 * 2) * 64);
  EXPECT_EQ(Gather(3, 8, 2).bytes, 3 * (2 + 4) * 8);
  EXPECT_EQ(SiluMul(3, 8, 2).bytes, 3 * (8 * 8 + 2 * 8));
  EXPECT_EQ(Sampling(32, 151936).bytes, 32.0 * 4 * 151936);
  EXPECT_EQ(BlockCopy(10).bytes, 20);
}

}  // namespace
}  // namespace baton::gpu_bench
