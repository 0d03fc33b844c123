#include "common/grammar/normal_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {
namespace {

using ::testing::HasSubstr;
using std::string_literals::operator""s;

std::string Normal(const std::string& regex, RegexUse use = RegexUse::kAnswer) {
  const absl::StatusOr<std::string> normal = NormalRegex(regex, use, "regex");
  return normal.ok() ? *normal
                     : absl::StrCat(ErrorReason(normal.status()), ": ", normal.status().message());
}

TEST(NormalRegexTest, HasNoEscapeThatCanBeReadInTwoWays) {
  const struct {
    std::string regex;
    std::string normal;
  } cases[] = {
      {R"(\x22a)", "\"a"},
      {R"(x\x2e5)", R"(x\.5)"},
      {R"(\u00e9a\x410)", "éaA0"},
      {R"(\ud83d\ude00)", "😀"},
      {R"(\n\r\t\x01\x00\u0000)", "\\n\\r\t\x01\\u0000\\u0000"},
      {"a\0b"s, R"(a\u0000b)"},
      {"a\nb", R"(a\nb)"},
      {R"(\^\$\.\*\+\?\\\(\)\[\]\{\}\|\/-)", R"(\^\$\.\*\+\?\\\(\)\[\]\{\}\|/-)"},
      {"]}", R"(\]\})"},
      {R"([\x22-\x23b])", "[\"#b]"},
      {R"([\u00108])",
       "[\x10"
       "8]"},
      {R"([\^a])", "[a^]"},
      {R"([\u005ea])", "[a^]"},
      {R"([\^-z])", "[_-z^]"},
      {R"([\^\x5e])", R"(\^)"},
      {"[é]", "é"},
      {R"([!^])", "[!^]"},
      {R"([b\-a\]\[\\])", R"([\-\[-\]ab])"},
      {R"([\-a])", R"([\-a])"},
      {"[a-]", R"([\-a])"},
      {R"(a\-b\_\"\'\#\ \~)", "a-b_\"'# ~"},
      {R"(\0\cA\cz[\b][\0-\cB])", "\\u0000\x01\x1a\b[\\u0000-\x02]"},
      {R"([\d-z])", R"([\-0-9z])"},
      {"[cab-da]", "[a-d]"},
      {R"([^\x00-\x60\u007b-\udbff\udfff])", "[a-z]"},
      {R"(\d\w)", "[0-9][0-9A-Z_a-z]"},
      {R"(\s)", "[\t-\\r ]"},
      {"(?:a|b)(c)*?d+?e??f{2}?g{1,}h{0,3}i{0,}", "(a|b)(c)*d+e{0,1}f{2}g+h{0,3}i*"},
      {"ab{2,}(c|d){3,}?", "a(b()){2,}((c|d)()){3,}"},
      {"^(|a)$", "(|a)"},
      {"xa{0}(b(c)){0,0}d{3,3}", "x()()d{3}"},
      {"^$", ""},
  };
  for (const auto& [regex, normal] : cases) {
    EXPECT_EQ(Normal(regex), normal) << regex;
    if (normal.empty() || absl::StrContains(normal, ",}")) continue;
    EXPECT_EQ(Normal(normal), normal) << regex;  // the same language again
  }
}

// What engines do not agree on is in neither a class nor its negation.
TEST(NormalRegexTest, NegationsLeaveOutWhatMayBeInTheClass) {
  EXPECT_EQ(Normal("."), "[^\\n\\r\u2028\u2029\\ud800-\\udfff]");
  const std::string no_space =
      "[^\t-\\r\x1c- "
      "\u0085\u00a0\u1680\u180e\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\\ud800-\\udfff"
      "\ufeff]";
  EXPECT_EQ(Normal(R"(\S)"), no_space);
  EXPECT_EQ(Normal(R"([^\s])"), no_space);
  EXPECT_EQ(Normal(R"([^\S])"), Normal(R"(\s)"));
  EXPECT_EQ(Normal(R"(\W)"), "[^0-9A-Z_a-z\\ud800-\\udfff]");
  EXPECT_EQ(Normal(R"(\D)"), "[^0-9\\ud800-\\udfff]");
  EXPECT_EQ(Normal(R"([^\D])"), "[0-9]");
}

// If the characters were listed, XGrammar's look-ahead would take A for U+0141.
TEST(NormalRegexTest, AClassBeyondAsciiIsTheNegationOfTheRest) {
  EXPECT_EQ(Normal("[a-zŁ-Ń]"), "[^\\u0000-`{-\x7f\u0080-ŀń-\U0010ffff]");
  EXPECT_EQ(Normal("[^a-zŁ-Ń]"), "[^a-zŁ-Ń\\ud800-\\udfff]");
  EXPECT_EQ(Normal(R"([^\x18-\u2028])"), "[^\x18-\x7f\u0080-\u2028\\ud800-\\udfff]");
  EXPECT_EQ(Normal(R"([^\^a])"), "[^a\\ud800-\\udfff^]");
  EXPECT_EQ(Normal(R"([\s\S\u001c-\uffff])"), "[^\\ud800-\\udfff]");
}

// JSON's writer would replace the bytes that UTF-8 might have had for them, so they have an escape.
TEST(NormalRegexTest, SurrogatesAreInNoClass) {
  EXPECT_EQ(Normal(R"([\x20-\ud7ff])"), "[^\\u0000-\x1f\\ud800-\U0010ffff]");
  EXPECT_EQ(Normal(R"([^\x20-\ud7ff])"), "[^ -\x7f\u0080-\\udfff]");
  EXPECT_EQ(Normal(R"([\x20-\ud7ff\ue000-\ufffd])"),
            "[^\\u0000-\x1f\\ud800-\\udfff\ufffe-\U0010ffff]");
  EXPECT_EQ(Normal(R"([\x00-\ud7ff\ue000-\udbff\udfff])"), "[^\\ud800-\\udfff]");
  EXPECT_EQ(Normal(R"([\ue000])"), "\ue000");
  EXPECT_EQ(Normal(R"([#\ue000])", RegexUse::kJsonString),
            "[^\\u0000-\"$-\x7f\u0080-\\udfff\ue001-\U0010ffff]");
}

TEST(NormalRegexTest, RefusesByNameWhatIsNotSupported) {
  for (const char* const regex : {"a^b",
                                  "a$b",
                                  "(?=a)",
                                  "(?!a)",
                                  "(?<n>a)",
                                  "(?i)a",
                                  R"(\b)",
                                  R"((a)\1)",
                                  R"(\p{L})",
                                  R"(\A)",
                                  "[[:alpha:]]",
                                  R"(\01)",
                                  R"(\1)",
                                  "[]",
                                  "[^]",
                                  "[]a]",
                                  R"(\ud800)",
                                  R"(\udc00\ud800)",
                                  R"(a\ud800b)",
                                  R"([^\s\S])",
                                  R"([^\u0000-\udbff\udfff])",
                                  R"([^\x00-\ud7ff\ue000-\udbff\udfff])"}) {
    EXPECT_THAT(Normal(regex), ::testing::StartsWith("SCHEMA_UNSUPPORTED")) << regex;
  }
}

TEST(NormalRegexTest, RefusesWhatIsMalformed) {
  for (const char* const regex :
       {"",       "(a",      "a)",        "[a",        R"(\c)",  R"(\c1)",    "a{",
        "a{x}",   "a{,3}",   "a{+3}",     "a{ 3}",     "a{2,1}", "\\",        "\xff",
        R"(\x4)", R"(\x4g)", R"(\u0x41)", R"(\u{41})", "[z-a]",  R"([a-\d])", "*a",
        "a|*",    "(*a)",    "^*",        "a**",       "a???",   "a{2}{3}",   "{2}"}) {
    EXPECT_THAT(Normal(regex), ::testing::StartsWith("SCHEMA_INVALID")) << regex;
  }
}

TEST(NormalRegexTest, Bounds) {
  EXPECT_THAT(Normal(std::string(kMaxRegexBytes + 1, 'a')),
              ::testing::StartsWith("SCHEMA_TOO_COMPLEX"));
  EXPECT_THAT(Normal("a{1001}"), ::testing::StartsWith("SCHEMA_TOO_COMPLEX"));
  EXPECT_THAT(Normal("a{0,99999999999999999999}"), ::testing::StartsWith("SCHEMA_TOO_COMPLEX"));
  EXPECT_THAT(Normal(std::string(65, '(') + "a" + std::string(65, ')')),
              ::testing::StartsWith("SCHEMA_TOO_COMPLEX"));
  EXPECT_EQ(Normal(std::string(64, '(') + "a" + std::string(64, ')')),
            std::string(64, '(') + "a" + std::string(64, ')'));
}

TEST(NormalRegexTest, InAJsonStringNothingIsEscaped) {
  for (const char* const regex : {"\"", R"(\\)", R"(\x22)", R"(\u005c)", "a\nb", R"(\x00)", ".",
                                  "[^a]", R"(\S)", "[ -~]", R"([\u0000-\u0001])"}) {
    EXPECT_THAT(Normal(regex, RegexUse::kJsonString), ::testing::StartsWith("SCHEMA_UNSUPPORTED"))
        << regex;
  }
  EXPECT_EQ(Normal(R"([#-\[\]-\u007e]{1,3}/\d)", RegexUse::kJsonString),
            R"([#-\[\]-~]{1,3}/[0-9])");
}

TEST(NormalRegexTest, MessagesSayWhatAndWhere) {
  const absl::Status zero =
      NormalRegex("ab\0c"s, RegexUse::kJsonString, "schema", "#/pattern").status();
  EXPECT_EQ(ErrorField(zero), "schema");
  EXPECT_THAT(zero.message(), HasSubstr("#/pattern: regular expression, byte 2: "));
  EXPECT_THAT(Normal("ab[c-a]"), HasSubstr("byte 3: a range that ends before it begins"));
  EXPECT_THAT(Normal("a\\\n"), HasSubstr("the escape \\\\n"));
}

TEST(NormalRegexTest, AClassOfManyRangesIsWrittenInOrder) {
  EXPECT_EQ(NormalClass({{'z', 'z'}, {'a', 'b'}, {'e', 'g'}}), "[abe-gz]");
  EXPECT_EQ(NormalClass({{'^', '^'}}), R"(\^)");
  EXPECT_EQ(NormalClass({{'^', '_'}}), "[_^]");
}

}  // namespace
}  // namespace baton::grammar
