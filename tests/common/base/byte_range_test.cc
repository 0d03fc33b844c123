#include "common/base/byte_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/testing/seed.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

TEST(ByteRangeTest, JoinsRangesThatTouch) {
  ByteRanges ranges;
  AppendRange(2, 2, &ranges);
  AppendRange(2, 4, &ranges);
  AppendRange(4, 5, &ranges);
  AppendRange(7, 9, &ranges);
  EXPECT_THAT(ranges, ElementsAre(ByteRange{2, 5}, ByteRange{7, 9}));
}

ByteRanges RangesOf(const std::string& marks) {
  ByteRanges ranges;
  for (size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] == 'x') AppendRange(i, i + 1, &ranges);
  }
  return ranges;
}

// The model is a string with a mark for each byte.
TEST(ByteRangeTest, PartsAndOverlapsAreThoseOfSingleBytes) {
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < 2'000; ++round) {
    std::string marks;
    while (random() % 12 != 0) marks += random() % 2 == 0 ? 'x' : '.';
    const size_t begin = random() % (marks.size() + 1);
    const size_t end = begin + random() % (marks.size() - begin + 1);
    const std::string part = marks.substr(begin, end - begin);
    const std::string before = random() % 2 == 0 ? "x" : "";
    ByteRanges copied = RangesOf(before);
    AppendRangesOfPart(RangesOf(marks), begin, end, before.size(), &copied);
    EXPECT_EQ(copied, RangesOf(before + part)) << marks << " " << begin << " " << end;
    EXPECT_EQ(Overlaps(RangesOf(marks), begin, end), part.find('x') != std::string::npos)
        << marks << " " << begin << " " << end;
  }
}

}  // namespace
}  // namespace baton
