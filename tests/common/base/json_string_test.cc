#include "common/base/json_string.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

std::string Quoted(absl::string_view text, size_t max_bytes = 1000) {
  std::string out = "x";
  AppendJsonString(text, &out, max_bytes);
  return out.substr(1);
}

TEST(JsonString, EscapesWhatJsonForbids) {
  EXPECT_EQ(Quoted(""), "\"\"");
  EXPECT_EQ(Quoted("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(Quoted("a\nb\tc"), R"("a\nb\tc")");
  EXPECT_EQ(Quoted(absl::string_view("\0\x1b\x7f", 3)), R"("\u0000\u001b\u007f")");
  EXPECT_EQ(Quoted("\xc3\xa9 \xf0\x9f\x98\x80"), "\"\xc3\xa9 \xf0\x9f\x98\x80\"");
}

TEST(JsonString, EachInvalidByteIsAQuestionMark) {
  EXPECT_EQ(Quoted("a\xff\xfe\xc3"), "\"a???\"");
  EXPECT_EQ(Quoted("\xed\xa0\x80"), "\"???\"") << "a surrogate";
}

TEST(JsonString, IsCutBetweenCharactersAndEscapes) {
  EXPECT_EQ(Quoted("abc", 2), "\"\"");
  EXPECT_EQ(Quoted("\n\n\n", 7), R"("\n\n")");
  for (size_t most = 2; most < 40; ++most) {
    const std::string cut = Quoted("\x01\xc3\xa9\"\xf0\x9f\x98\x80 and more", most);
    EXPECT_LE(cut.size(), most);
    EXPECT_EQ(cut.back(), '"');
    EXPECT_THAT(cut.substr(1, cut.size() - 2), ::testing::Not(::testing::EndsWith("\\"))) << most;
  }
}

}  // namespace
}  // namespace baton
