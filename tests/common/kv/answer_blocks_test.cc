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

TEST(AnswerBlocksTest, WindowsBoundThePagesOfALongAnswer) {
  const BlockShape shape = {.full_pages = 2, .window_pages = 5, .window_blocks = 4};
  EXPECT_EQ(PagesOfAnswer(16, 17, 0, 16, shape), 2 * 7) << "two blocks, within the window";
  EXPECT_EQ(PagesOfAnswer(16, 1 + 16 * 99, 0, 16, shape), 100 * 2 + 6 * 5);
  for (const int beams : {0, 1, 3}) {
    for (int prompt = 1; prompt < 150; prompt += 7) {
      for (int64_t pages = 0; pages < 300; ++pages) {
        const int64_t longest = LongestAnswer(prompt, beams, 16, pages, shape);
        if (longest > 0) {
          ASSERT_LE(PagesOfAnswer(prompt, longest, beams, 16, shape), pages);
        }
        ASSERT_GT(PagesOfAnswer(prompt, longest + 1, beams, 16, shape), pages)
            << prompt << " tokens, " << beams << " beams, " << pages << " pages";
      }
    }
  }
}

}  // namespace
}  // namespace baton::kv
