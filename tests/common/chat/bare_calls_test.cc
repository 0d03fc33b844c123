// Calls whose arguments are no JSON object, in answers that arrive in pieces.
#include "common/chat/bare_calls.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/chat/reasoning.h"
#include "common/chat/tool_call_syntax.h"
#include "common/chat/tool_calls.h"
#include "gtest/gtest.h"
#include "tests/testing/seed.h"

namespace baton::chat {
namespace {

constexpr char kBareTools[] = R"([{"type": "function", "function": {"name": "f", "parameters": {
  "type": "object", "properties": {
    "s": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"},
    "b": {"type": "boolean"}, "o": {"$ref": "#/$defs/o"}, "l": {"type": "array"},
    "m": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "e": {"enum": ["1", "2"]}},
  "$defs": {"o": {"type": "object"}}}}}, {"function": {"name": "g"}}])";

// "text|name(arguments)|..." of what one answer gives, appended in these parts.
std::string ParsedBare(ToolCallFormat format, const std::vector<std::string>& parts,
                       bool calls_begin = false) {
  ToolCallParser parser(
      format, /*id_seed=*/1,
      std::make_shared<const json::Value>(json::Parse(kBareTools, "tools").value()), calls_begin);
  std::string text, calls;
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

struct BareCase {
  ToolCallFormat format;
  std::string answer;
  std::string expected;
};

std::string Qwen(const std::string& parameters, const std::string& name = "f") {
  return absl::StrCat("<tool_call>\n<function=", name, ">\n", parameters,
                      "</function>\n</tool_call>");
}
std::string QwenArgument(const std::string& key, const std::string& value) {
  return absl::StrCat("<parameter=", key, ">\n", value, "\n</parameter>\n");
}
std::string Glm(const std::string& key, const std::string& value, const std::string& line = "\n") {
  return absl::StrCat("<tool_call>f", line, "<arg_key>", key, "</arg_key>", line, "<arg_value>",
                      value, "</arg_value>", line, "</tool_call>");
}

std::vector<BareCase> BareCases() {
  using enum ToolCallFormat;
  std::vector<BareCase> cases = {
      {kQwenXml, "Plain <b>text</b>.\n", "Plain <b>text</b>.\n"},
      {kQwenXml, Qwen(""), "|f({})"},
      {kQwenXml, absl::StrCat("Well.\n", Qwen(QwenArgument("s", "x")), "\n", Qwen("", "g")),
       "Well.|f({\"s\": \"x\"})|g({})"},
      // Some answers leave the outer mark out.
      {kQwenXml, "<function=f>\n<parameter=n>\n5\n</parameter>\n</function>", "|f({\"n\": 5})"},
      {kQwenXml,
       "Hm\n<seed:tool_call>\n<function=f>\n<parameter=n>5</parameter>\n</function>\n"
       "</seed:tool_call>",
       "Hm|f({\"n\": 5})"},
      {kQwenXml, Qwen(absl::StrCat(QwenArgument("s", "1"), QwenArgument("s", "2"))),
       "|f({\"s\": \"2\"})"},
      // An end within a value does not end the call.
      {kQwenXml, Qwen(QwenArgument("s", "a</function></tool_call>b")),
       "|f({\"s\": \"a</function></tool_call>b\"})"},
      {kQwenXml, Qwen(QwenArgument("o", R"({"k": "</parameter></function>"})")),
       "|f({\"o\": {\"k\": \"</parameter></function>\"}})"},
      {kQwenXml, "<function=f>\n<parameter=s>\nno end", "<function=f>\n<parameter=s>\nno end"},
      {kQwenXml, "<function=f>\nx</function>", "<function=f>\nx</function>"},
      {kQwenXml, "<function=a b>\n</function>", "<function=a b>\n</function>"},
      {kQwenXml, "<function=f>\n<parameter=>\n1\n</parameter></function>",
       "<function=f>\n<parameter=>\n1\n</parameter></function>"},
      {kGlm, "<tool_call>g</tool_call>", "|g({})"},
      // It may be the beginning of a longer name.
      {kGlm, "<tool_call>g", "<tool_call>g"},
      {kGlm, "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value>",
       "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value>"},
      {kLfm2, "<|tool_call_start|>[g()]", "|g({})"},
      {kGemma4, "<|tool_call>call:g{}", "|g({})"},
      {kGemma4, "<|tool_call>call:g{", "<|tool_call>call:g{"},
      // A part of the mark that ends a call is there, and maybe not all of the call.
      {kLfm2, "<|tool_call_start|>[g()]<|tool_call_e", "|g({})"},
      {kGemma4, "<|tool_call>call:g{}<tool", "|g({})"},
      {kGlm, "<tool_call>g</tool", "|g({})"},
      {kGlm, "<tool_call>g<", "<tool_call>g<"},
      {kGlm, "<tool_call>f<arg_key>s</arg_key><arg_value>x</tool_call",
       "<tool_call>f<arg_key>s</arg_key><arg_value>x</tool_call"},
      {kQwenXml, "<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n</func",
       "|f({\"n\": 5})"},
      {kQwenXml, "<tool_call>\n<function=g>\n</function>\n</tool_", "|g({})"},
      {kQwenXml, "<tool_call>\n<function=f>\n<parameter=s>\nx</func",
       "<tool_call>\n<function=f>\n<parameter=s>\nx</func"},
      {kGlm, absl::StrCat("Yes\n", Glm("s", "a\nb"), "\n", Glm("n", "7", "")),
       "Yes|f({\"s\": \"a\\nb\"})|f({\"n\": 7})"},
      {kGlm, Glm("s", "</tool_call>"), "|f({\"s\": \"</tool_call>\"})"},
      {kGlm, "<tool_call>{\"name\": 1}</tool_call>", "<tool_call>{\"name\": 1}</tool_call>"},
      {kGlm, "<tool_call>f<arg_key>s</arg_key>x</tool_call>",
       "<tool_call>f<arg_key>s</arg_key>x</tool_call>"},
      {kLfm2, "Ok. <|tool_call_start|>[f(s=\"a\", n=-1, b=True, m=None)]<|tool_call_end|> Done",
       "Ok.Done|f({\"s\": \"a\", \"n\": -1, \"b\": true, \"m\": null})"},
      {kLfm2,
       "<|tool_call_start|>[f(o={'k': [1, 2.5, \"x\"]}, s='q\\'\"\\n'), g()]<|tool_call_end|>",
       "|f({\"o\": {\"k\": [1, 2.5, \"x\"]}, \"s\": \"q'\\\"\\n\"})|g({})"},
      {kLfm2, "<|tool_call_start|>[f(s=\"<|tool_call_end|>\")]<|tool_call_end|>",
       "|f({\"s\": \"<|tool_call_end|>\"})"},
      {kLfm2, "<|tool_call_start|>f()<|tool_call_end|>", "<|tool_call_start|>f()<|tool_call_end|>"},
      {kLfm2, "<|tool_call_start|>[f(1)]<|tool_call_end|>x",
       "<|tool_call_start|>[f(1)]<|tool_call_end|>x"},
      {kGemma4,
       "<|tool_call>call:f{s:<|\"|>a \"b\", "
       "{c}<|\"|>,n:1,l:[1,<|\"|>x<|\"|>],o:{k:true}}<tool_call|>",
       "|f({\"s\": \"a \\\"b\\\", {c}\", \"n\": 1, \"l\": [1, \"x\"], \"o\": {\"k\": true}})"},
      {kGemma4, "Hm<|tool_call>call:g{}<tool_call|><|tool_call>call:f{n:2}<tool_call|>",
       "Hm|g({})|f({\"n\": 2})"},
      {kGemma4, "<|tool_call>call:f{s:<|\"|><tool_call|><|\"|>}<tool_call|>",
       "|f({\"s\": \"<tool_call|>\"})"},
      {kGemma4, "<|tool_call>call:f{n:}<tool_call|>", "<|tool_call>call:f{n:}<tool_call|>"},
      {kHarmony, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}",
       "|f({\"n\": 1})"},
      {kHarmony, "Hm <|channel|>commentary to=functions.f<|message|>{}<|call|>", "Hm|f({})"},
      {kHarmony, "<|channel|>commentary to=functions.f<|message|>x",
       "<|channel|>commentary to=functions.f<|message|>x"},
  };
  // Values by the types of their parameters.
  const struct {
    const char *key, *value, *json;
  } kValues[] = {{"s", "5", "\"5\""},
                 {"s", "", "\"\""},
                 {"s", " a ", "\" a \""},
                 {"s", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
                 {"n", " 5 ", "5"},
                 {"n", "five", "\"five\""},
                 {"x", "2", "2"},
                 {"x", "2.5", "2.5"},
                 {"b", "true", "true"},
                 {"b", "False", "false"},
                 {"o", "{\"a\": [1]}", "{\"a\": [1]}"},
                 {"l", "[\"é\", null]", "[\"é\", null]"},
                 {"m", "null", "null"},
                 {"m", "None", "null"},
                 {"m", "5", "\"5\""},
                 {"e", "1", "\"1\""},
                 {"unknown", "5", "5"},
                 {"unknown", "a", "\"a\""}};
  for (const auto& [key, value, json] : kValues) {
    const std::string expected = absl::StrCat("|f({\"", key, "\": ", json, "})");
    cases.push_back({kQwenXml, Qwen(QwenArgument(key, value)), expected});
    cases.push_back({kGlm, Glm(key, value), expected});
    cases.push_back({kGlm, Glm(key, value, ""), expected});
  }
  return cases;
}

TEST(BareCallsTest, EverySplitGivesTheSame) {
  for (const BareCase& c : BareCases()) {
    ASSERT_EQ(ParsedBare(c.format, {c.answer}), c.expected) << c.answer;
    std::vector<std::string> bytes;
    for (size_t i = 0; i < c.answer.size(); ++i) {
      ASSERT_EQ(ParsedBare(c.format, {c.answer.substr(0, i), c.answer.substr(i)}), c.expected)
          << c.answer << " split at byte " << i;
      bytes.push_back(c.answer.substr(i, 1));
    }
    ASSERT_EQ(ParsedBare(c.format, bytes), c.expected) << c.answer << " byte by byte";
  }
}

TEST(BareCallsTest, StringsMaySpellTheEndOfACall63Times) {
  using enum ToolCallFormat;
  const auto answer = [](ToolCallFormat format, int times) {
    const bool is_python = format == kLfm2;
    const char* const end = is_python ? "<|tool_call_end|>" : "<tool_call|>";
    std::string answer = is_python ? "<|tool_call_start|>[f(s='" : "<|tool_call>call:f{s:<|\"|>";
    for (int i = 0; i < times; ++i) answer += end;
    return absl::StrCat(answer, is_python ? "')]" : "<|\"|>}", end);
  };
  for (const ToolCallFormat format : {kLfm2, kGemma4}) {
    EXPECT_EQ(ParsedBare(format, {answer(format, 63)}).substr(0, 4), "|f({");
    EXPECT_EQ(ParsedBare(format, {answer(format, 64)}), answer(format, 64));
  }
}

TEST(BareCallsTest, RandomAnswersDoNotDependOnTheSplit) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  static const char* const kPieces[] = {"<tool_call>",
                                        "</tool_call>",
                                        "<function=",
                                        "f",
                                        ">",
                                        "\n",
                                        "<parameter=",
                                        "s",
                                        "n",
                                        "5",
                                        "</parameter>",
                                        "</function>",
                                        "<arg_key>",
                                        "</arg_key>",
                                        "<arg_value>",
                                        "</arg_value>",
                                        "<|tool_call_start|>",
                                        "[",
                                        "(",
                                        "=",
                                        "'",
                                        "\"",
                                        ")",
                                        "]",
                                        ",",
                                        "<|tool_call_end|>",
                                        "<|tool_call>",
                                        "call:",
                                        "{",
                                        "}",
                                        ":",
                                        "<|\"|>",
                                        "<tool_call|>",
                                        "\\",
                                        "é",
                                        "<|channel|>commentary to=functions.",
                                        "<|message|>",
                                        "<|call|>",
                                        " "};
  for (int i = 0; i < 20'000; ++i) {
    const auto format = static_cast<ToolCallFormat>(5 + random() % 5);
    std::string answer;
    for (size_t n = random() % 16; n > 0; --n) answer += kPieces[random() % std::size(kPieces)];
    std::vector<std::string> parts;
    for (size_t at = 0; at < answer.size();) {
      const size_t size = 1 + random() % 8;
      parts.push_back(answer.substr(at, size));
      at += size;
    }
    ASSERT_EQ(ParsedBare(format, parts), ParsedBare(format, {answer}))
        << answer << " in format " << static_cast<int>(format);
  }
}

// Where the answer is calls or JSON, JSON has none.
TEST(BareCallsTest, JsonThatQuotesACallIsJson) {
  for (const ToolCallFormat format : {ToolCallFormat::kQwenXml, ToolCallFormat::kGlm}) {
    const std::string call =
        format == ToolCallFormat::kGlm ? Glm("s", "x") : Qwen(QwenArgument("s", "x"));
    const std::string json = absl::StrCat(" {\"doc\": \"", call, "\"}");
    EXPECT_EQ(ParsedBare(format, {json}, /*calls_begin=*/true), json);
    std::vector<std::string> bytes;
    for (const char c : json) bytes.emplace_back(1, c);
    EXPECT_EQ(ParsedBare(format, bytes, /*calls_begin=*/true), json);
    EXPECT_NE(ParsedBare(format, {json}), json);
    EXPECT_EQ(ParsedBare(format, {"\n", call}, /*calls_begin=*/true), "|f({\"s\": \"x\"})");
  }
}

TEST(BareCallsTest, AMarkOfCallsThatNoCallFollowsIsText) {
  for (const char* text : {"Use the <tool_call> tag", "It ends in <tool_call>\n"}) {
    EXPECT_EQ(ParsedBare(ToolCallFormat::kQwenXml, {text}), text);
  }
}

TEST(BareCallsTest, WholeNumbersOfAnySizeAreIntegers) {
  EXPECT_EQ(ParsedBare(ToolCallFormat::kQwenXml, {Qwen(QwenArgument("n", "12345678901234567890"))}),
            "|f({\"n\": 1.2345678901234567e+19})");
}

TEST(BareCallsTest, ManyEndsWithinACallAreBounded) {
  std::string answer = "<function=f>\n<parameter=s>\n";
  for (int i = 0; i < 2000; ++i) answer += "</function>";
  EXPECT_EQ(ParsedBare(ToolCallFormat::kQwenXml, {answer}), answer);
  // So are values in values.
  std::string deep = "<|tool_call_start|>[f(l=";
  for (int i = 0; i < 10'000; ++i) deep += '[';
  deep += "<|tool_call_end|>";
  EXPECT_EQ(ParsedBare(ToolCallFormat::kLfm2, {deep}), deep);
}

TEST(BareCallsTest, TemplatesShowTheirFormats) {
  EXPECT_EQ(DetectToolCallFormat("<tool_call>\n<function=f>\n<parameter=a>"),
            ToolCallFormat::kQwenXml);
  EXPECT_EQ(DetectToolCallFormat("'<tool_call>' + name <arg_key>"), ToolCallFormat::kGlm);
  EXPECT_EQ(DetectToolCallFormat("List of tools: <|tool_list_start|>["), ToolCallFormat::kLfm2);
  EXPECT_EQ(DetectToolCallFormat("'<|tool_call>call:' + name"), ToolCallFormat::kGemma4);
  EXPECT_EQ(DetectToolCallFormat("<|channel|> to=functions. <|message|>"),
            ToolCallFormat::kHarmony);
  const auto find = [](ToolCallFormat format, const std::string& rendered) {
    const ToolCallSyntax* const found = FindSyntax(format, rendered, "f");
    return found == nullptr ? -1 : static_cast<int>(found - SyntaxesOf(format).data());
  };
  EXPECT_EQ(find(ToolCallFormat::kQwenXml, Qwen(QwenArgument("s", "x"))), 0);
  EXPECT_EQ(find(ToolCallFormat::kQwenXml, "<tool_call><function=f><parameter=s>"), -1);
  EXPECT_EQ(find(ToolCallFormat::kGlm, Glm("s", "x")), 0);
  EXPECT_EQ(find(ToolCallFormat::kGlm, Glm("s", "x", "")), 1);
  EXPECT_EQ(find(ToolCallFormat::kHarmony,
                 "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}"),
            0);
  const std::string lfm2 = "<|tool_call_start|>[f(s='x')]<|tool_call_end|>";
  EXPECT_EQ(find(ToolCallFormat::kLfm2, lfm2), 0);
  EXPECT_EQ(find(ToolCallFormat::kLfm2, "a template that leaves calls out"), 0);
  EXPECT_EQ(find(ToolCallFormat::kLfm2, "<|tool_call_start|>[{\"name\": \"f\"}]<|tool_call_end|>"),
            -1);
  EXPECT_EQ(find(ToolCallFormat::kGemma4, "<|tool_call>call:f{s:<|\"|>x<|\"|>}<tool_call|>"), 0);
  EXPECT_EQ(find(ToolCallFormat::kGemma4, "<|tool_call>call:f{\"s\":\"x\"}<tool_call|>"), -1);
}

// Harmony's calls are messages, which the parser of reasoning takes apart first.
TEST(BareCallsTest, MessagesOfHarmonyToFunctionsAreCalls) {
  static const struct {
    const char *answer, *reasoning, *expected;
  } kAnswers[] = {
      {"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.f <|constrain|>json<|message|>{\"n\": 1}<|call|>",
       "hm", "|f({\"n\": 1})"},
      {" to=functions.f<|channel|>commentary json<|message|>{}", "", "|f({})"},
      {"<|channel|>commentary<|message|>I call.<|end|><|start|>assistant to=functions.g"
       "<|channel|>commentary json<|message|>{}<|call|>",
       "", "I call.|g({})"},
      {"<|channel|>final<|message|>No to=functions.f here.", "", "No to=functions.f here."},
  };
  for (const auto& [answer, reasoning, expected] : kAnswers) {
    const std::string text = answer;
    for (size_t at = 0; at <= text.size(); ++at) {
      ReasoningParser parser(ReasoningFormat::kHarmony, /*starts_inside=*/false,
                             /*keeps_calls=*/true);
      std::string thought;
      std::vector<std::string> contents;
      const auto add = [&](const ReasoningParser::Delta& delta) {
        thought += delta.reasoning;
        contents.push_back(delta.content);
      };
      add(parser.Append(text.substr(0, at)));
      add(parser.Append(text.substr(at)));
      add(parser.Finish());
      ASSERT_EQ(thought, reasoning) << answer << " split at " << at;
      ASSERT_EQ(ParsedBare(ToolCallFormat::kHarmony, contents), expected)
          << answer << " split at " << at;
    }
  }
}

}  // namespace
}  // namespace baton::chat
