#include "common/chat/tool_calls.h"

#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/chat/parsed_answer.h"
#include "tests/testing/seed.h"

namespace baton::chat {
namespace {

using ::testing::MatchesRegex;

std::string Parsed(ToolCallFormat format, const std::vector<std::string>& pieces) {
  return Described(Joined(format, pieces));
}

struct Case {
  ToolCallFormat format;
  const char* answer;
  const char* expected;
};

const Case kCases[] = {
    {ToolCallFormat::kHermes, "Plain text.\n", "Plain text.\n"},
    {ToolCallFormat::kHermes,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "|f({\"a\": 1})"},
    {ToolCallFormat::kHermes,
     "Let me see.\n\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"}{]\\\"</tool_call>\"}}"
     "</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call>\n",
     "Let me see.|f({\"a\": \"}{]\\\"</tool_call>\"})|g({})"},
    {ToolCallFormat::kHermes, "a <tool_ b < c <tool_call", "a <tool_ b < c <tool_call"},
    {ToolCallFormat::kHermes, "Say <tool_call> to call.", "Say <tool_call> to call."},
    {ToolCallFormat::kHermes,
     "a  <tool_call>b <tool_call> \n<tool_call>{\"name\": \"f\", \"arguments\": {}} \n"
     "</tool_call> c</tool_call>d <tool_ </tool_call",
     "a  <tool_call>b <tool_call>cd <tool_ </tool_call|f({})"},
    {ToolCallFormat::kHermes, "a\n<tool_call>{\"name\": \"f\"}</tool_call>b",
     "a\n<tool_call>{\"name\": \"f\"}b"},
    {ToolCallFormat::kHermes, "<tool_call>{\"name\": 5, \"arguments\": {}}",
     "<tool_call>{\"name\": 5, \"arguments\": {}}"},
    {ToolCallFormat::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}",
     "<tool_call>{\"name\": \"f\", \"arguments\": [1]}"},
    {ToolCallFormat::kHermes, "x\n<tool_call>{\"name\": \"f\", \"argum",
     "x\n<tool_call>{\"name\": \"f\", \"argum"},
    {ToolCallFormat::kHermes,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"日本\\u00e9\"}}</tool_call> after",
     "after|f({\"s\": \"日本\\u00e9\"})"},
    // The arguments end with the answer, or where they are no JSON.
    {ToolCallFormat::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x",
     "|f({\"a\": \"x~"},
    {ToolCallFormat::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {", "|f({~"},
    {ToolCallFormat::kHermes,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>b",
     "y\"}}b|f({\"a\": \"x~"},
    {ToolCallFormat::kHermes,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, \"a\": 2}}</tool_call>",
     "\": 2}}|f({\"a\": 1, \"a~"},
    {ToolCallFormat::kMistral, "[TOOL_CALLS]f[ARGS]{a: 1}", "a: 1}|f({~"},
    {ToolCallFormat::kMistral, "[TOOL_CALLS]f[ARGS]{\"a\": 1e999}", "}|f({\"a\": 1e999~"},
    // The call itself is not closed.
    {ToolCallFormat::kHermes,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call> b", "b|f({\"a\": 1})"},
    {ToolCallFormat::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id",
     "|f({\"a\": 1})"},
    {ToolCallFormat::kMistral,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"",
     "{\"name\": \"g\"|f({})"},
    {ToolCallFormat::kMistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, 5] b",
     "5] b|f({})"},
    // Arguments before the name, and those of both names.
    {ToolCallFormat::kHermes,
     "<tool_call>{\"arguments\": {\"name\": \"x\"}, \"name\": \"f\", \"parameters\": {}}",
     "|f({\"name\": \"x\"})"},
    {ToolCallFormat::kHermes, "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"",
     "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\""},
    {ToolCallFormat::kHermes,
     "<tool_call>{\"name\": \"f\", \"id\": {\"name\": [{}]}, \"parameters\": {\"a\" : [ ]} }",
     "|f({\"a\" : [ ]})"},
    {ToolCallFormat::kLlama3, "Hello {\"name\": 1}", "Hello {\"name\": 1}"},
    {ToolCallFormat::kLlama3, "{\"name\": \"f\", \"parameters\": {\"a\": [1, 2]}}",
     "|f({\"a\": [1, 2]})"},
    {ToolCallFormat::kLlama3,
     " <|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": "
     "{\"b\": null}}",
     "|f({})|g({\"b\": null})"},
    {ToolCallFormat::kLlama3, "{\"a\": 1} is JSON", "{\"a\": 1} is JSON"},
    {ToolCallFormat::kLlama3, "<|python_tag|>print(1)", "<|python_tag|>print(1)"},
    {ToolCallFormat::kLlama3, "\n<|py", "\n<|py"},
    {ToolCallFormat::kMistral,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": "
     "{}}]",
     "|f({\"a\": 1})|g({})"},
    {ToolCallFormat::kMistral,
     "Ok [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"abc\"}]", "Ok|f({})"},
    {ToolCallFormat::kMistral,
     "[TOOL_CALLS]f[ARGS]{\"a\": {\"b\": 2}}[TOOL_CALLS]g[CALL_ID]x1[ARGS]{}",
     "|f({\"a\": {\"b\": 2}})|g({})"},
    {ToolCallFormat::kMistral, "[TOOL_CALLS]f{\"a\": 1}", "|f({\"a\": 1})"},
    {ToolCallFormat::kMistral, "[TOOL_CALLS][]", "[TOOL_CALLS][]"},
    {ToolCallFormat::kMistral, "[TOOL] [1, 2]", "[TOOL] [1, 2]"},
    {ToolCallFormat::kDeepSeek,
     "Sure.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
     "1}\n```"
     "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<"
     "｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜>",
     "Sure.|f({\"a\": 1})|g({})"},
    {ToolCallFormat::kDeepSeek,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "
     "1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "|f({\"a\": 1})"},
    // Answers that end within a mark.
    {ToolCallFormat::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool_ca",
     "|f({})"},
    {ToolCallFormat::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool_box",
     "</tool_box|f({})"},
    {ToolCallFormat::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n<tool_ca",
     "\n<tool_ca|f({})"},
    {ToolCallFormat::kDeepSeek,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls",
     "|f({})"},
    {ToolCallFormat::kDeepSeek, "```json\n{}\n``` <｜tool", "```json\n{}\n``` <｜tool"},
};

TEST(ToolCallsTest, EverySplitGivesTheSame) {
  for (const Case& c : kCases) {
    const std::string answer = c.answer;
    ASSERT_EQ(Parsed(c.format, {answer}), c.expected) << answer;
    for (size_t i = 0; i < answer.size(); ++i) {
      ASSERT_EQ(Parsed(c.format, {answer.substr(0, i), answer.substr(i)}), c.expected)
          << answer << " split at byte " << i;
    }
    ASSERT_EQ(Parsed(c.format, BytesOf(answer)), c.expected) << answer << " byte by byte";
  }
}

TEST(ToolCallsTest, TextComesOutAtOnce) {
  ToolCallParser parser(ToolCallFormat::kHermes, 1);
  EXPECT_EQ(parser.Append("Hello").at(0).text, "Hello");
  EXPECT_EQ(parser.Append(" world").at(0).text, " world");
  EXPECT_TRUE(parser.Append("\n").empty());  // a call may follow
  EXPECT_TRUE(parser.Append("<tool").empty());
  EXPECT_EQ(parser.Append("box>").at(0).text, "\n<toolbox>");
}

TEST(ToolCallsTest, IdsDiffer) {
  std::set<std::string> ids;
  ToolCallParser parser(ToolCallFormat::kHermes, 7);
  for (int i = 0; i < 100; ++i) {
    const auto parts = parser.Append("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_THAT(parts[0].id, MatchesRegex("call_[0-9a-zA-Z]{24}"));
    ids.insert(parts[0].id);
  }
  EXPECT_EQ(ids.size(), 100u);
  ToolCallParser mistral(ToolCallFormat::kMistral, 7);
  EXPECT_THAT(mistral.Append("[TOOL_CALLS]f{}").at(0).id, MatchesRegex("[0-9a-zA-Z]{9}"));
}

TEST(ToolCallsTest, RandomAnswersDoNotDependOnTheSplit) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  static const char* const kPieces[] = {"<tool_call>",
                                        "</tool_call>",
                                        "<tool_",
                                        "[TOOL_CALLS]",
                                        "[ARGS]",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "{\"name\": \"f\", \"arguments\": {}}",
                                        "[{\"name\": \"f\", \"arguments\": {\"a\": ",
                                        "{\"arguments\": {}, \"name\": \"g\"",
                                        "{\"name\": \"g\", \"parameters\": {\"x\": 1}}",
                                        "\"",
                                        "\\",
                                        "<|python_tag|>",
                                        ";",
                                        "\n",
                                        " ",
                                        "text",
                                        "<｜tool▁calls▁begin｜>",
                                        "<｜tool▁call▁begin｜>",
                                        "<｜tool▁sep｜>",
                                        "f",
                                        "```",
                                        "```json\n",
                                        "<｜tool▁call▁end｜>",
                                        "<｜tool▁calls▁end｜>",
                                        ","};
  const SharedTools known = ToolsOf(R"([{"function": {"name": "f"}}])");
  for (int i = 0; i < 20'000; ++i) {
    const auto format = static_cast<ToolCallFormat>(1 + random() % 4);
    const SharedTools tools = random() % 2 == 0 ? nullptr : known;
    std::string answer;
    for (size_t n = random() % 12; n > 0; --n) answer += kPieces[random() % std::size(kPieces)];
    const std::vector<std::string> pieces = RandomPiecesOf(answer, &random);
    ASSERT_EQ(Described(Joined(format, pieces, tools)), Described(Joined(format, {answer}, tools)))
        << answer << " in format " << static_cast<int>(format);
  }
}

// What has come out after each byte of an answer: text, calls and arguments.
std::vector<std::string> Growing(ToolCallFormat format, const std::string& answer,
                                 SharedTools tools = nullptr) {
  ToolCallParser parser(format, 1, std::move(tools));
  std::vector<std::string> growing;
  JoinedAnswer joined;
  for (const char c : answer) {
    for (const AnswerPart& part : parser.Append(std::string(1, c))) joined.Add(part);
    growing.push_back(Described(joined));
  }
  return growing;
}

TEST(ToolCallsTest, ArgumentsComeOutByteForByteOnceTheirBracketOpens) {
  using enum ToolCallFormat;
  const std::string arguments = "{ \"path\": \"a\\n}\", \"n\":[1, {}] }";
  const struct {
    ToolCallFormat format;
    std::string before, after;
  } kAnswers[] = {
      {kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": ", "}\n</tool_call>"},
      {kLlama3, "{\"name\": \"f\", \"parameters\": ", "}"},
      {kMistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": ", "}]"},
      {kMistral, "[TOOL_CALLS]f[ARGS]", ""},
      {kDeepSeek, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "<｜tool▁call▁end｜>"},
      {kHarmony, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "<|call|>"},
  };
  for (const auto& [format, before, after] : kAnswers) {
    const std::string answer = before + arguments + after;
    const std::vector<std::string> growing = Growing(format, answer);
    for (size_t i = 0; i < growing.size(); ++i) {
      const size_t size = i + 1 - std::min(i + 1, before.size());
      const std::string call = absl::StrCat("|f(", arguments.substr(0, size));
      if (size == 0) {
        EXPECT_EQ(growing[i], "") << answer << " at byte " << i;
      } else if (size < arguments.size()) {
        EXPECT_EQ(growing[i], call + "~") << answer;
      } else {
        EXPECT_EQ(growing[i].substr(0, call.size()), call) << answer;
      }
    }
    EXPECT_EQ(growing.back(), absl::StrCat("|f(", arguments, ")"));
  }
}

TEST(ToolCallsTest, ACallOfAnotherToolComesOutWhenItIsComplete) {
  using enum ToolCallFormat;
  const SharedTools tools = ToolsOf(R"([{"function": {"name": "f"}}])");
  const std::string call = "<tool_call>{\"name\": \"g\", \"arguments\": {\"a\": 1}}";
  std::vector<std::string> growing = Growing(kHermes, call, tools);
  EXPECT_EQ(growing.back(), "|g({\"a\": 1})");
  EXPECT_EQ(growing[growing.size() - 2], "");
  // What merely looks like a call stays text.
  const std::string begun = "<tool_call>{\"name\": \"g\", \"arguments\": {\"a\": 1";
  for (const char* const end : {"", "x", "}", "}, 5"}) {
    EXPECT_EQ(Described(Joined(kHermes, BytesOf(begun + end), tools)), begun + end);
  }
  // Behind another call, too.
  growing = Growing(kMistral,
                    "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, "
                    "{\"name\": \"g\", \"arguments\": {}}]",
                    tools);
  EXPECT_EQ(growing.back(), "|f({})|g({})");
  EXPECT_EQ(growing[growing.size() - 3], "|f({})");
}

// Text that begins like many calls and is none is read again a bounded number of times.
TEST(ToolCallsTest, WhatIsNoCallIsReadAgainUpToABound) {
  const SharedTools tools = ToolsOf(R"([{"function": {"name": "g"}}])");
  std::string answer;
  while (answer.size() < 200'000) answer += "<tool_call>f<arg_key>a</arg_key><arg_value>";
  answer += "</arg_value>x<tool_call>g</tool_call>";
  const JoinedAnswer joined = Joined(ToolCallFormat::kGlm, {answer}, tools);
  EXPECT_EQ(joined.text, answer);
  EXPECT_EQ(Described(Joined(ToolCallFormat::kGlm, {answer.substr(100'000)}, tools)),
            answer.substr(100'000));
}

// Each of these takes minutes if the time grows as the square of the length.
TEST(ToolCallsTest, TheTimeForATextIsLinear) {
  const SharedTools tools = ToolsOf(R"([{"function": {"name": "g"}}])");
  const std::string space(size_t{1} << 20, ' ');
  const struct {
    ToolCallFormat format;
    std::string before, after;
    bool calls_begin = false;
  } kSpaces[] = {
      {ToolCallFormat::kHermes, "a", "b"},
      {ToolCallFormat::kHermes, "", "", /*calls_begin=*/true},
      {ToolCallFormat::kLlama3, "", "b"},
      {ToolCallFormat::kLlama3, "<|python_tag|>", "b"},
  };
  for (const auto& [format, before, after, calls_begin] : kSpaces) {
    const std::string answer = absl::StrCat(before, space, after);
    // Not EXPECT_EQ, which would print them.
    EXPECT_TRUE(Joined(format, BytesOf(answer), tools, calls_begin).text == answer) << before;
  }
  const std::string call = "<tool_call>{\"name\": \"g\", \"arguments\": {}}";
  EXPECT_EQ(Described(Joined(ToolCallFormat::kHermes, BytesOf(call + space + call), tools)),
            "|g({})|g({})");

  std::string openers;
  while (openers.size() < size_t{8} << 20) openers += "<tool_call>x";
  EXPECT_TRUE(Joined(ToolCallFormat::kHermes, {openers}, tools).text == openers);
  // A call of another tool that is none at its end is read again.
  std::string unknown = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"";
  absl::StrAppend(&unknown, openers.substr(0, 1'000'000), "\"]", openers);
  EXPECT_TRUE(Joined(ToolCallFormat::kHermes, {unknown}, tools).text == unknown);
  EXPECT_TRUE(Described(Joined(ToolCallFormat::kHermes, {openers, call}, tools)) ==
              absl::StrCat(openers, "|g({})"));
}

TEST(ToolCallsTest, MarkersAreThoseOfTheFormat) {
  EXPECT_TRUE(ToolCallMarkers(ToolCallFormat::kUnsupported).empty());
  for (const Case& c : kCases) {
    if (std::string(c.expected).find('|') == std::string::npos ||
        c.format == ToolCallFormat::kLlama3)
      continue;
    // Without its markers, an answer with a call is text.
    std::string answer = c.answer;
    for (const absl::string_view marker : ToolCallMarkers(c.format)) {
      answer = absl::StrReplaceAll(answer, {{marker, ""}});
    }
    EXPECT_EQ(Parsed(c.format, {answer}), answer);
  }
}

TEST(ToolCallsTest, DetectsTheFormatOfATemplate) {
  EXPECT_EQ(DetectToolCallFormat("x <tool_call>\\n{\"name\": <function-name>}"),
            ToolCallFormat::kHermes);
  EXPECT_EQ(DetectToolCallFormat("<tool_call>\\n{\\\"name\\\": <name>}"), ToolCallFormat::kHermes);
  EXPECT_EQ(DetectToolCallFormat("<tool_call>\n<function=f>"), ToolCallFormat::kUnsupported);
  EXPECT_EQ(DetectToolCallFormat("'[TOOL_CALLS]['"), ToolCallFormat::kMistral);
  EXPECT_EQ(DetectToolCallFormat("'<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>'"),
            ToolCallFormat::kDeepSeek);
  EXPECT_EQ(
      DetectToolCallFormat("<|start_header_id|> {\"name\": function name, \"parameters\": x}"),
      ToolCallFormat::kLlama3);
  EXPECT_EQ(DetectToolCallFormat("{{ messages }}"), ToolCallFormat::kUnsupported);
}

}  // namespace
}  // namespace baton::chat
