#include "common/chat/tool_calls.h"

#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/seed.h"

namespace baton::chat {
namespace {

using ::testing::MatchesRegex;

// "text|name(arguments)|..." of what one answer gives, appended in these parts.
std::string Parsed(ToolCallFormat format, const std::vector<std::string>& parts) {
  ToolCallParser parser(format, /*id_seed=*/1);
  std::string text;
  std::string calls;
  const auto add = [&](const ToolCallParser::Delta& delta) {
    text += delta.text;
    for (const ToolCall& call : delta.calls) {
      absl::StrAppend(&calls, "|", call.name, "(", call.arguments, ")");
    }
  };
  for (const std::string& part : parts) add(parser.Append(part));
  add(parser.Finish());
  return text + calls;
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
     "after|f({\"s\": \"日本é\"})"},
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
    std::vector<std::string> bytes;
    for (size_t i = 0; i < answer.size(); ++i) {
      ASSERT_EQ(Parsed(c.format, {answer.substr(0, i), answer.substr(i)}), c.expected)
          << answer << " split at byte " << i;
      bytes.push_back(answer.substr(i, 1));
    }
    ASSERT_EQ(Parsed(c.format, bytes), c.expected) << answer << " byte by byte";
  }
}

TEST(ToolCallsTest, TextComesOutAtOnce) {
  ToolCallParser parser(ToolCallFormat::kHermes, 1);
  EXPECT_EQ(parser.Append("Hello").text, "Hello");
  EXPECT_EQ(parser.Append(" world").text, " world");
  EXPECT_EQ(parser.Append("\n").text, "");  // a call may follow
  EXPECT_EQ(parser.Append("<tool").text, "");
  EXPECT_EQ(parser.Append("box>").text, "\n<toolbox>");
}

TEST(ToolCallsTest, IdsDiffer) {
  std::set<std::string> ids;
  ToolCallParser parser(ToolCallFormat::kHermes, 7);
  for (int i = 0; i < 100; ++i) {
    const auto delta = parser.Append("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
    ASSERT_EQ(delta.calls.size(), 1u);
    EXPECT_THAT(delta.calls[0].id, MatchesRegex("call_[0-9a-zA-Z]{24}"));
    ids.insert(delta.calls[0].id);
  }
  EXPECT_EQ(ids.size(), 100u);
  ToolCallParser mistral(ToolCallFormat::kMistral, 7);
  EXPECT_THAT(mistral.Append("[TOOL_CALLS]f{}").calls.at(0).id, MatchesRegex("[0-9a-zA-Z]{9}"));
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
  for (int i = 0; i < 20'000; ++i) {
    const auto format = static_cast<ToolCallFormat>(1 + random() % 4);
    std::string answer;
    for (size_t n = random() % 12; n > 0; --n) answer += kPieces[random() % std::size(kPieces)];
    std::vector<std::string> parts;
    for (size_t at = 0; at < answer.size();) {
      const size_t size = 1 + random() % 8;
      parts.push_back(answer.substr(at, size));
      at += size;
    }
    ASSERT_EQ(Parsed(format, parts), Parsed(format, {answer}))
        << answer << " in format " << static_cast<int>(format);
  }
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
