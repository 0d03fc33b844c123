#include "common/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"

namespace baton::tokenizer {
namespace {

std::string Lossy(absl::string_view bytes) {
  LossyUtf8Decoder decoder;
  std::string text;
  decoder.Append(bytes, &text);
  decoder.Finish(&text);
  return text;
}

TEST(UnicodeTest, FindsWhereUtf8Ends) {
  EXPECT_EQ(FindInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("plain ascii, long enough é 日 😀"), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("ab\x80"), 2u);
  EXPECT_EQ(FindInvalidUtf8("ab\xC0\x80"), 2u);          // overlong
  EXPECT_EQ(FindInvalidUtf8("ab\xE0\x80\x80"), 2u);      // overlong
  EXPECT_EQ(FindInvalidUtf8("ab\xED\xA0\x80"), 2u);      // surrogate
  EXPECT_EQ(FindInvalidUtf8("ab\xF4\x90\x80\x80"), 2u);  // above U+10FFFF
  EXPECT_EQ(FindInvalidUtf8("ab\xE2\x82"), 2u);          // cut
}

TEST(UnicodeTest, EveryCharacterRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    ASSERT_EQ(FindInvalidUtf8(text), std::nullopt) << static_cast<uint32_t>(c);
    ASSERT_EQ(LastCharBytes("a" + text), text);
    ASSERT_EQ(Lossy(text), text);
  }
}

TEST(UnicodeTest, OneReplacementForEachMaximalSubpart) {
  EXPECT_EQ(Lossy("\x80\xBF"), "\uFFFD\uFFFD");
  EXPECT_EQ(Lossy("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(Lossy("\xF0\x9F\x98x"), "\uFFFDx");
  EXPECT_EQ(Lossy("\xE2\x82\xE2\x82\xAC"), "\uFFFD€");
  EXPECT_EQ(Lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate starts with no subpart
  EXPECT_EQ(Lossy("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(Lossy("\xFF"), "\uFFFD");
}

TEST(ByteLevelTest, EveryByteHasItsName) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    std::string back;
    ASSERT_TRUE(AppendNamedBytes(BytesToNames(bytes), &back));
    ASSERT_EQ(back, bytes);
  }
  EXPECT_EQ(BytesToNames(" a\n\x80"), "ĠaĊĢ");
  std::string untouched = "x";
  EXPECT_FALSE(AppendNamedBytes("a b", &untouched));
  EXPECT_FALSE(AppendNamedBytes("日", &untouched));
  EXPECT_EQ(untouched, "x");
}

}  // namespace
}  // namespace baton::tokenizer
