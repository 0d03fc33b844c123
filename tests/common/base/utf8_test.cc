#include "common/base/utf8.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

namespace baton {
namespace {

TEST(Utf8Test, KnowsWhatIsUtf8) {
  for (const char* text : {"", "abc", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  for (const char* text : {"\x80", "\xC3", "a\xE2\x82", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80",
                           "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
}

// ASCII is skipped eight bytes at a time.
TEST(Utf8Test, KnowsWhatIsUtf8BehindAscii) {
  for (size_t before = 0; before < 20; ++before) {
    for (size_t after = 0; after < 20; ++after) {
      const std::string first(before, 'a'), last(after, 'b');
      EXPECT_TRUE(IsUtf8(first + "\xE2\x82\xAC" + last)) << before << " " << after;
      EXPECT_FALSE(IsUtf8(first + "\xE2\x82" + last)) << before << " " << after;
      EXPECT_FALSE(IsUtf8(first + "\x80" + last)) << before << " " << after;
    }
  }
}

// As EveryCharacterRoundTrips says that none is missing, the number says that there is nothing
// else.
TEST(Utf8Test, NoByteSequenceIsUtf8ButTheCharacters) {
  std::array<int64_t, kUtf8States> ways = {};
  ways[static_cast<size_t>(Utf8State::kCharacter)] = 1;
  for (const int64_t characters : {128, 1920, 0x10000 - 2048 - 2048, 0x100000}) {
    std::array<int64_t, kUtf8States> next = {};
    for (size_t state = 0; state < kUtf8States; ++state) {
      for (int byte = 0; byte < 256; ++byte) {
        const Utf8State after =
            NextUtf8State(static_cast<Utf8State>(state), static_cast<unsigned char>(byte));
        if (after != Utf8State::kInvalid) next[static_cast<size_t>(after)] += ways[state];
      }
    }
    int64_t& whole = next[static_cast<size_t>(Utf8State::kCharacter)];
    EXPECT_EQ(whole, characters);
    whole = 0;  // the next round's sequences are one byte longer
    ways = next;
  }
  for (const int64_t left : ways) EXPECT_EQ(left, 0) << "a sequence of five bytes";
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(NextUtf8State(Utf8State::kInvalid, static_cast<unsigned char>(byte)),
              Utf8State::kInvalid);
  }
}

TEST(Utf8Test, CountsCodePoints) {
  EXPECT_EQ(CountCharacters(""), 0);
  EXPECT_EQ(CountCharacters("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z"), 5);
  EXPECT_EQ(CountCharacters("e\xCC\x81"), 2) << "a letter and its accent";
}

TEST(Utf8Test, ClipsAtACharacterWhereverTheCutFalls) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";
  EXPECT_EQ(ClipToUtf8(text, text.size()), text);
  for (size_t max = 0; max < text.size(); ++max) {
    const std::string clipped = ClipToUtf8(text, max);
    EXPECT_TRUE(IsUtf8(clipped)) << max;
    EXPECT_LE(clipped.size(), max);
    if (max < 3) continue;
    EXPECT_EQ(clipped.substr(clipped.size() - 3), "...");
  }
  EXPECT_EQ(ClipToUtf8(text, 6), "a\xC3\xA9...");
  EXPECT_EQ(ClipToUtf8(text, 5), "a...");
}

TEST(Utf8Test, EveryCharacterRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    ASSERT_TRUE(IsUtf8(text)) << static_cast<uint32_t>(c);
    ASSERT_TRUE(FirstChar(text) == c) << static_cast<uint32_t>(c);
    ASSERT_EQ(Utf8CharBytes(text[0]), text.size());
  }
}

TEST(Utf8Test, BytesThatAreNoTextAreShownAsSuch) {
  EXPECT_EQ(ClipToUtf8("a\xFF\xC3z\x80", 100), "a??z?");
  EXPECT_EQ(ClipToUtf8("\xE2\x82", 100), "??");
  EXPECT_EQ(ClipToUtf8(std::string(10, '\xFF'), 5), "??...");
}

TEST(WithoutByteOrderMark, LeavesAllElse) {
  EXPECT_EQ(WithoutByteOrderMark("\xEF\xBB\xBFtext"), "text");
  EXPECT_EQ(WithoutByteOrderMark("text\xEF\xBB\xBF"), "text\xEF\xBB\xBF");
  EXPECT_EQ(WithoutByteOrderMark("\xEF\xBB\xBF\xEF\xBB\xBF"), "\xEF\xBB\xBF");
  EXPECT_EQ(WithoutByteOrderMark("\xEF\xBB"), "\xEF\xBB");
  EXPECT_EQ(WithoutByteOrderMark(""), "");
}

}  // namespace
}  // namespace baton
