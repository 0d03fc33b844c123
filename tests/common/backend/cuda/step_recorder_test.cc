#include "common/backend/cuda/step_recorder.h"

#include <gtest/gtest.h>

namespace baton::backend::cuda {
namespace {

TEST(PaddedRowsTest, AreFewAndNeverFewerThanAskedFor) {
  for (int rows = 1; rows <= 300; ++rows) {
    const int padded = PaddedRows(rows, 300);
    ASSERT_GE(padded, rows);
    ASSERT_LE(padded, 300);
    ASSERT_EQ(PaddedRows(padded, 300), padded) << "a number of rows is its own";
    ASSERT_LE(padded - rows, rows <= 8 ? rows - 1 : rows <= 32 ? 7 : rows <= 64 ? 15 : rows <= 256 ? 31 : 63);
  }
  std::vector<int> all;
  for (int rows = 1; rows <= 128; rows = all.back() + 1) all.push_back(PaddedRows(rows, 1024));
  EXPECT_EQ(all, (std::vector<int>{1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128}));
  EXPECT_EQ(PaddedRows(257, 1024), 320);
  EXPECT_EQ(PaddedRows(17, 20), 20) << "no more than the workspaces hold";
  EXPECT_DEATH(PaddedRows(21, 20), "21 rows of 20");
  EXPECT_DEATH(PaddedRows(0, 20), "0 rows");
}

TEST(SplitBlocksTest, AreAPowerOfTwoThatKeepsTheDeviceBusy) {
  EXPECT_EQ(SplitBlocks(1, 2, 40), 1);
  EXPECT_EQ(SplitBlocks(33, 2, 40), 64);
  EXPECT_EQ(SplitBlocks(100'000, 2, 40), 256) << "160 for each head are enough";
  EXPECT_EQ(SplitBlocks(100'000, 1024, 2), 1);
  EXPECT_EQ(SplitBlocks(0, 2, 40), 1) << "a launch needs a block";
}

}  // namespace
}  // namespace baton::backend::cuda
