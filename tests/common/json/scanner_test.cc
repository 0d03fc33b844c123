#include "common/json/scanner.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/json/json.h"
#include "gtest/gtest.h"
#include "tests/testing/seed.h"

namespace baton::json {
namespace {

// True if the scanner accepts all of the text; `whole`: and its value has ended.
bool Accepts(absl::string_view text, bool* whole = nullptr) {
  Scanner scanner;
  for (const char c : text) {
    if (scanner.Push(c) == Scanner::Event::kBroken) return false;
  }
  if (whole != nullptr) *whole = scanner.ended();
  return true;
}

bool IsWhole(absl::string_view text) {
  bool whole = false;
  return Accepts(text, &whole) && whole;
}

TEST(ScannerTest, AcceptsObjectsAndArrays) {
  for (const char* text :
       {"{}", "[]", " { } ", R"({"a": 1, "b": [true, false, null, -0.5e+10, "x\"\\\/\b\f\n\r\t"]})",
        R"([[[]], {"": {"a": {}}}, "é日本😀", "\u00e9\ud83d\ude00", 0, -0, 1E5, 12.25, 1e-999])"}) {
    EXPECT_TRUE(IsWhole(text)) << text;
    EXPECT_TRUE(Parse(text, "f").ok()) << text;
  }
}

TEST(ScannerTest, BreaksAtTheByteThatIsNoJson) {
  static const struct {
    const char *accepted, *next;
  } kBreaks[] = {
      {"", "1"},
      {"", "\""},
      {"{", "a"},
      {"{", ","},
      {"{\"a\": 1,", "}"},
      {"[1,", "]"},
      {"[1", "}"},
      {"[0", "1"},
      {"[-", "a"},
      {"[1.", "]"},
      {"[1e", "]"},
      {"[1e+", "]"},
      {"[1e999", "]"},
      {"[tru", "x"},
      {"{\"a\"", " 1"},
      {"{\"a\"", "}"},
      {"{\"a", "\n"},
      {"[\"\\", "x"},
      {"[\"\\u00e", "g"},
      {"[\"\\ud83d", "\""},
      {"[\"\\ud83d\\u00e", "9"},
      {"[\"\\udc0", "0"},
      {"[\"\xc3", "("},
      {"[\"\xed", "\xa0"},
      {"{} ", "x"},
      {R"({"a": 1, "a)", "\""},
      {R"({"é": 1, "\u00e9)", "\""},
  };
  for (const auto& [accepted, next] : kBreaks) {
    EXPECT_TRUE(Accepts(accepted)) << accepted;
    EXPECT_FALSE(Accepts(absl::StrCat(accepted, next))) << accepted << next;
  }
  EXPECT_TRUE(IsWhole(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})"));
}

TEST(ScannerTest, BoundsDepthAndValuesAsParseDoes) {
  EXPECT_TRUE(IsWhole(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(Accepts(std::string(65, '[')));
  std::string wide = "[0";
  while (wide.size() < 2 * kMaxValues - 4) wide += ",0";
  EXPECT_TRUE(IsWhole(wide + "]"));
  EXPECT_TRUE(Parse(wide + "]", "f").ok());
  EXPECT_FALSE(IsWhole(wide + ",0,0,0]"));
}

TEST(ScannerTest, CountsTheBytesOfAPartOfACharacter) {
  Scanner scanner;
  for (const char c : absl::string_view("[\"\xf0\x9f")) scanner.Push(c);
  EXPECT_EQ(scanner.partial_bytes(), 2u);
  scanner.Push('\x98');
  scanner.Push('\x80');
  EXPECT_EQ(scanner.partial_bytes(), 0u);
}

TEST(ScannerTest, WholeMembersAreThoseThatCannotGrow) {
  static const struct {
    const char *text, *members;
  } kTexts[] = {
      {"", "{}"},
      {"x", "{}"},
      {"[1]", "{}"},
      {"{", "{}"},
      {" {\"a", "{}"},
      {"{\"a\": 12", "{}"},
      {"{\"a\": 12, ", "{\"a\": 12}"},
      {"{\"a\": \"x", "{}"},
      {"{\"a\": \"x\"", "{\"a\": \"x\"}"},
      {"{\"a\": [1, {\"b\": \"y\", \"c\": tr", "{\"a\": [1, {\"b\": \"y\"}]}"},
      {"{\"a\": {", "{\"a\": {}}"},
      {"{\"a\": 1, \"a\": 2}", "{\"a\": 1}"},
      {"{\"a\": 1, b: 2}", "{\"a\": 1}"},
      {"{\"a\": 1} more", "{\"a\": 1}"},
      {"{\"a\": 1, \"b\": \"line\nline\"}", "{\"a\": 1}"},
  };
  for (const auto& [text, members] : kTexts) EXPECT_EQ(WholeMembers(text), members) << text;
}

// The scanner and the parser accept the same texts, and each beginning of one gives an object.
TEST(ScannerTest, RandomTextsAreWhatTheParserSaysTheyAre) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  static const char* const kPieces[] = {"{",         "}",        "[",
                                        "]",         ",",        ":",
                                        "\"",        "\"a\"",    "\"b\"",
                                        "\"a\": ",   "1",        "-0.5",
                                        "0",         "e1",       ".",
                                        "-",         "+",        "true",
                                        "false",     "nul",      "null",
                                        " ",         "\n",       "\\",
                                        "\\u",       "00e",      "d83",
                                        "9",         "\xc3",     "\xa9",
                                        "é",         "\"x\": {", "\\ud83d\\ude00",
                                        "{\"c\": [", "]}",       "\t",
                                        "/",         "\\n",      "\"\"",
                                        "1e400",     "x"};
  int whole = 0;
  for (int i = 0; i < 50'000; ++i) {
    std::string text = random() % 2 == 0 ? "{" : "[";
    for (size_t n = random() % 10; n > 0; --n) text += kPieces[random() % std::size(kPieces)];
    const std::string closed = random() % 2 == 0 ? text : text + (text[0] == '{' ? "}" : "]");
    ASSERT_EQ(IsWhole(closed), Parse(closed, "f").ok()) << closed;
    whole += IsWhole(closed) ? 1 : 0;
    const std::string members = WholeMembers(closed);
    ASSERT_TRUE(Parse(members, "f").ok()) << closed << " gave " << members;
    if (IsWhole(closed) && closed[0] == '{') {
      EXPECT_EQ(ToText(Parse(members, "f").value()), ToText(Parse(closed, "f").value()));
    }
  }
  EXPECT_GT(whole, 100);
}

}  // namespace
}  // namespace baton::json
