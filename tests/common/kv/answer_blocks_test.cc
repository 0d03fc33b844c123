#include "common/kv/answer_blocks.h"

#include <gtest/gtest.h>

namespace baton::kv {
namespace {

TEST(AnswerBlocksTest, TheKvOfTheLastTokenIsNotRead) {
  EXPECT_EQ(BlocksOfAnswer(16, 1, 0, 16), 1);
  EXPECT_EQ(BlocksOfAnswer(16, 2, 0, 16), 2);
  EXPECT_EQ(BlocksOfAnswer(16, 17, 0, 16), 2);
  EXPECT_EQ(LongestAnswer(16, 0, 16, 2), 17);
  EXPECT_EQ(LongestAnswer(37, 0, 16, 273), 273 * 16 - 37 + 1);
}

TEST(AnswerBlocksTest, BeamsShareTheWholeBlocksOfThePrompt) {
  EXPECT_EQ(BlocksOfAnswer(37, 12, 4, 16), 2 + (3 - 2 + 1) * 4);
  EXPECT_EQ(LongestAnswer(37, 4, 16, 10), 12);
  EXPECT_EQ(LongestAnswer(37, 4, 16, 9), 0);
}

// This holds for all small numbers: the longest answer fits, and one more token does not.
TEST(AnswerBlocksTest, TheLongestAnswerFitsAndNoLongerOneDoes) {
  for (const int block_tokens : {1, 3, 16}) {
    for (const int beams : {0, 2, 5}) {
      for (int64_t blocks = 0; blocks < 24; ++blocks) {
        for (int64_t prompt = 1; prompt < 80; ++prompt) {
          const int64_t longest = LongestAnswer(prompt, beams, block_tokens, blocks);
          ASSERT_GE(longest, 0);
          ASSERT_TRUE(longest == 0 ||
                      BlocksOfAnswer(prompt, longest, beams, block_tokens) <= blocks)
              << prompt << " " << beams << " " << block_tokens << " " << blocks;
          ASSERT_GT(BlocksOfAnswer(prompt, longest + 1, beams, block_tokens), blocks)
              << prompt << " " << beams << " " << block_tokens << " " << blocks;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::kv
