#include "common/json/reader.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/testing/seed.h"

namespace baton::json {
namespace {

// What was found, one event a line.
class Recorder : public Events {
 public:
  bool OnValue(Scalar scalar) override {
    events.push_back(absl::StrCat(ScalarText(scalar), " of kind ", static_cast<int>(scalar.kind),
                                  absl::StrFormat(", %a", scalar.real)));
    return true;
  }
  bool OnKey(std::string name) override {
    events.push_back(absl::StrCat("key ", absl::CHexEscape(name)));
    return true;
  }
  bool OnBegin(bool is_array) override {
    events.push_back(is_array ? "[" : "{");
    return true;
  }
  bool OnEnd() override {
    events.push_back("end");
    return true;
  }

  std::vector<std::string> events;
};

// True if the text is read. As part of a text that simdjson does not read, because it is too long,
// it must be read alike.
bool CompareOn(const std::string& text) {
  Recorder found, expected;
  std::string problem, expected_problem;
  const ReadResult result = Read(text, found, &problem);
  const std::string long_text = text + std::string(kMostAtOnce, ' ');
  EXPECT_EQ(Read(long_text, expected, &expected_problem), result) << absl::CHexEscape(text);
  if (result == ReadResult::kRead) {
    EXPECT_EQ(found.events, expected.events) << absl::CHexEscape(text);
  } else {
    EXPECT_FALSE(problem.empty());
  }
  return result == ReadResult::kRead;
}

const std::vector<std::string>& Samples() {
  static const auto* const samples = new std::vector<std::string>{
      "null",
      " true ",
      "[]",
      "{}",
      "[[],{}]",
      "0",
      "-0",
      "-0.0",
      "1e5",
      "1E-7",
      "0.1e+3",
      "1e999",
      "-1e-999",
      "9223372036854775807",
      "9223372036854775808",
      "-9223372036854775808",
      "-9223372036854775809",
      "18446744073709551615",
      "18446744073709551616",
      "123456789012345678901234567890",
      "2.2250738585072011e-308",
      "01",
      "1.",
      ".5",
      "-",
      "+1",
      "1e",
      "1e+",
      "--1",
      "1 2",
      "[1 2]",
      "[1,]",
      "[,1]",
      "{\"a\"}",
      "{\"a\":}",
      "{\"a\":1,}",
      "{a:1}",
      "{\"a\":1 \"b\":2}",
      "{\"a\":1}}",
      "[1}",
      "{\"a\":1]",
      "nul",
      "nulls",
      "True",
      "\"",
      "\"a",
      R"("\")",
      R"("\u00e9\u20AC\ud83d\ude00\b\f\n\r\t\/\\\"")",
      R"("\u12")",
      R"("\ud83d")",
      R"("\ude00")",
      R"("\ud83d\ud83d")",
      R"("\ud83dx")",
      R"("\ud83d\n")",
      R"("\x41")",
      R"("\uD83D\uDE00")",
      R"("\u0000")",
      R"({"a": 1, "a": 2})",
      "\xEF\xBB\xBF[1]",
      "\xEF\xBB[1]",
      "[1]\xEF\xBB\xBF",
      "[1] // comment",
      "[1]\f",
      "NaN",
      "Infinity",
      "",
      " \t\r\n",
      std::string("[1]\0x", 5),
      std::string("\"a\0b\"", 5),
      std::string("[1,\0 2]", 7),
      "\"\x1f\"",
      "\"\x7f\"",
      "\"a long plain text, longer than eight bytes\"",
      "\"a long text with \\\"escapes\\\" and \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80 in it\"",
      "\"\xC0\x80\"",
      "\"\xED\xA0\x80\"",
      "\"\xF4\x90\x80\x80\"",
      "\"\xE2\x82\"",
      "\"\xE2\x82",
      "\"\xFF\"",
      "\"12345678\xC3\x28\"",
      R"({"messages": [{"role": "user", "content": "Hi.\n\nThere"}, {"role": "assistant",
          "content": null, "tool_calls": [{"id": "a", "function": {"arguments": "{\"b\": 1}"}}]}],
          "max_tokens": 16, "temperature": 0.7, "stop": ["\n"], "seed": -3, "stream": false})"};
  return *samples;
}

TEST(ReaderTest, BothParsersReadTheSame) {
  int read = 0;
  for (const std::string& text : Samples()) read += CompareOn(text) ? 1 : 0;
  EXPECT_GT(read, 25);
  EXPECT_LT(read, static_cast<int>(Samples().size()) - 40);
}

// Each sample with some bytes changed, dropped, doubled or taken from another sample.
TEST(ReaderTest, BothParsersReadTheSameOfRandomTexts) {
  std::mt19937 random(testing::TestSeed());
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  static constexpr char kText[] = "[]{}\",:\\/ \n0123456789-+.eEtrufalsnbd\x00\x1f\x80\xC3\xE2";
  constexpr absl::string_view kBytes(kText, sizeof(kText) - 1);
  int read = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string text = Samples()[below(Samples().size())];
    for (size_t change = below(4); change > 0 && !text.empty(); --change) {
      const size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = kBytes[below(kBytes.size())];
          break;
        case 1:
          text.erase(at, 1 + below(3));
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), below(12)));
          break;
        default:
          text.insert(at, Samples()[below(Samples().size())]);
      }
    }
    read += CompareOn(text) ? 1 : 0;
    if (HasFailure()) return;
  }
  EXPECT_GT(read, 50);
}

TEST(ReaderTest, StopsWhereTheEventsSay) {
  class Stops : public Recorder {
   public:
    bool OnKey(std::string name) override {
      Recorder::OnKey(name);
      return name != "stop";
    }
  } stops;
  std::string problem;
  EXPECT_EQ(Read(R"({"a": 1, "stop": 2, "b": 3})", stops, &problem), ReadResult::kStopped);
  EXPECT_EQ(stops.events.back(), "key stop");
}

}  // namespace
}  // namespace baton::json
