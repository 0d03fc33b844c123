#include "common/tokenizer/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::tokenizer {
namespace {

// The matches, in brackets.
std::string Matches(absl::string_view pattern, absl::string_view text) {
  const auto matcher = Matcher::Regex(pattern);
  if (!matcher.ok()) return matcher.status().ToString();
  std::string result;
  const absl::Status status = matcher->ForEachMatch(text, [&](size_t begin, size_t end) {
    absl::StrAppend(&result, "[", text.substr(begin, end - begin), "]");
  });
  return status.ok() ? result : status.ToString();
}

TEST(MatcherTest, FindsLeftmostWithoutOverlap) {
  EXPECT_EQ(Matches("a+|b", "aabxa"), "[aa][b][a]");
  EXPECT_EQ(Matches("x", ""), "");
  EXPECT_EQ(Matches("(?i:'s|'t)", "it'S 't"), "['S]['t]");
  EXPECT_EQ(Matches("\\s+(?!\\S)|\\s+", "a   b "), "[  ][ ][ ]");
}

TEST(MatcherTest, EmptyMatchesDoNotTouchTheMatchBefore) {
  EXPECT_EQ(Matches("x*", "axxb"), "[][xx][]");
  EXPECT_EQ(Matches("(?=b)", "ab"), "[]");
  EXPECT_EQ(Matches("", "é"), "[][]");
}

TEST(MatcherTest, OnigurumaMeansOtherThingsThanPcre2) {
  EXPECT_EQ(Matches("\\s", "\u180E\u0085\u3000"), "[\u0085][\u3000]");
  EXPECT_EQ(Matches("[^\\S\\n]", "\u180E \n"), "[ ]");
  EXPECT_EQ(Matches("\\w+", "a\u0301\u203F\u24B6²-"), "[a\u0301\u203F\u24B6²]");
  EXPECT_EQ(Matches("\\b", "a\u0301 b"), "[][][][]");
  EXPECT_EQ(Matches("^b$", "a\nb\nc"), "[b]");
  EXPECT_EQ(Matches("a#b", "a#b"), "[a#b]");
  EXPECT_EQ(Matches("\\v", "\n\x0B"), "[\x0B]");
  EXPECT_EQ(Matches("\\u00e9\\x{41}\\x42", "éAB"), "[éAB]");
  EXPECT_EQ(Matches("\\-\\.", "-."), "[-.]");
}

TEST(MatcherTest, KnowsUnicode16) {
  EXPECT_EQ(Matches("\\p{L}", "\U00031350"), "[\U00031350]");  // Unicode 15
  EXPECT_EQ(Matches("[^\\p{L}]", "\U00031350a1"), "[1]");
  EXPECT_EQ(Matches("\\P{L}", "\U0002EBF0a1"), "[1]");  // Unicode 15.1
  EXPECT_EQ(Matches("\\p{Lu}\\d", "\U00010D50\U00010D40"), "[\U00010D50\U00010D40]");
}

TEST(MatcherTest, RefusesWhatItWouldMisread) {
  for (const char* pattern : {"\\h", "a{1,3}+", "a{,3}", "[a[b]]", "[a&&b]", "[[:alpha:]]",
                              "(?m:.)", "(?<n>a)", "(*FAIL)", "\\1", "\\G", "\\K", "a\\", "[a",
                              "\\p{^L}", "\\x{zz}", "\\p{Nope}", "(a", "*"}) {
    const auto matcher = Matcher::Regex(pattern);
    EXPECT_EQ(matcher.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_EQ(ErrorReason(matcher.status()), "BAD_TOKENIZER") << pattern;
  }
  EXPECT_FALSE(Matcher::Literal("").ok());
}

TEST(MatcherTest, HopelessPatternsGiveUp) {
  const auto matcher = Matcher::Regex("(?:a+)+[xy]");
  ASSERT_TRUE(matcher.ok());
  const absl::Status status = matcher->ForEachMatch(std::string(5000, 'a'), [](size_t, size_t) {});
  EXPECT_EQ(ErrorReason(status), "TEXT_TOO_COMPLEX") << status;
}

TEST(MatcherTest, LiteralsAreLiteral) {
  const auto matcher = Matcher::Literal("a.");
  std::vector<size_t> places;
  ASSERT_TRUE(
      matcher->ForEachMatch("aba.a.a", [&](size_t begin, size_t) { places.push_back(begin); })
          .ok());
  EXPECT_EQ(places, (std::vector<size_t>{2, 4}));
}

TEST(MatcherTest, ThreadsShareAMatcher) {
  const auto matcher = Matcher::Regex("\\p{L}+");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&matcher, t] {
      const std::string text(t + 1, 'x');
      for (int i = 0; i < 1000; ++i) {
        size_t found = 0;
        ASSERT_TRUE(matcher->ForEachMatch(text, [&](size_t, size_t end) { found = end; }).ok());
        ASSERT_EQ(found, text.size());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace baton::tokenizer
