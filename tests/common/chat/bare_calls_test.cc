// Calls whose arguments are no JSON object, in answers that arrive in pieces.
#include "common/chat/bare_calls.h"

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/chat/reasoning.h"
#include "common/chat/tool_call_syntax.h"
#include "common/chat/tool_calls.h"
#include "gtest/gtest.h"
#include "tests/common/chat/parsed_answer.h"
#include "tests/testing/seed.h"

namespace baton::chat {
namespace {

constexpr char kBareTools[] = R"([{"type": "function", "function": {"name": "f", "parameters": {
  "type": "object", "properties": {
    "s": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"},
    "b": {"type": "boolean"}, "o": {"$ref": "#/$defs/o"}, "l": {"type": "array"},
    "m": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "e": {"enum": ["1", "2"]}},
  "$defs": {"o": {"type": "object"}}}}}, {"function": {"name": "g"}}])";

std::string ParsedBare(ToolCallFormat format, const std::vector<std::string>& pieces,
                       bool calls_begin = false) {
  return Described(Joined(format, pieces, ToolsOf(kBareTools), calls_begin));
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
       "|f({\"s\": \"1\"})"},
      // An end within a value does not end the call.
      {kQwenXml, Qwen(QwenArgument("s", "a</function></tool_call>b")),
       "|f({\"s\": \"a</function></tool_call>b\"})"},
      {kQwenXml, Qwen(QwenArgument("o", R"({"k": "</parameter></function>"})")),
       "|f({\"o\": {\"k\": \"</parameter></function>\"}})"},
      {kQwenXml, "<function=f>\n<parameter=s>\nno end", "|f({\"s\": \"no end~"},
      {kQwenXml, "<function=f>\n<parameter=n>\n5", "|f({~"},
      {kQwenXml, "<function=f>\n<parameter=s>\na\n</parameter>\n?</function>\n</tool_call>",
       "?</function>|f({\"s\": \"a\"~"},
      {kQwenXml, "<function=f>\nx</function>", "<function=f>\nx</function>"},
      {kQwenXml, "<function=a b>\n</function>", "<function=a b>\n</function>"},
      {kQwenXml, "<function=f>\n<parameter=>\n1\n</parameter></function>",
       "<function=f>\n<parameter=>\n1\n</parameter></function>"},
      {kGlm, "<tool_call>g</tool_call>", "|g({})"},
      // It may be the beginning of a longer name.
      {kGlm, "<tool_call>g", "<tool_call>g"},
      {kGlm, "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value>", "|f({\"n\": 1~"},
      {kLfm2, "<|tool_call_start|>[g()]", "|g({})"},
      {kGemma4, "<|tool_call>call:g{}", "|g({})"},
      {kGemma4, "<|tool_call>call:g{", "<|tool_call>call:g{"},
      {kGemma4, "<|tool_call>call:f{s:<|\"|>a\"b", "|f({\"s\": \"a\\\"b~"},
      {kGemma4, "<|tool_call>call:f{s:<|\"|>a<|\"", "|f({\"s\": \"a~"},
      {kGemma4, "<|tool_call>call:f{n:5, \"s\":'x\\u00e9', s:1}",
       "|f({\"n\": 5, \"s\": \"x\\u00e9\"})"},
      {kGemma4, "<|tool_call>call:f{o:{<|\"|>}<|\"|>:1,b:[(2)]}}<tool_call|>",
       "|f({\"o\": {\"}\": 1, \"b\": [[2]]}})"},
      {kLfm2, "<|tool_call_start|>[f(s='x', n=5", "|f({\"s\": \"x\"~"},
      {kLfm2, "<|tool_call_start|>[f(s='\\ud83d', n=5)]", "', n=5)]|f({\"s\": \"\\ud83d~"},
      {kLfm2, "<|tool_call_start|>[f(s='x') g()]<|tool_call_end|>",
       "g()]<|tool_call_end|>|f({\"s\": \"x\"})"},
      {kLfm2, "<|tool_call_start|>[f(n=5), h(n=6", "h(n=6|f({\"n\": 5})"},
      // A part of the mark that ends a call is there, and maybe not all of the call.
      {kLfm2, "<|tool_call_start|>[g()]<|tool_call_e", "|g({})"},
      {kGemma4, "<|tool_call>call:g{}<tool", "|g({})"},
      {kGlm, "<tool_call>g</tool", "|g({})"},
      {kGlm, "<tool_call>g<", "<tool_call>g<"},
      {kGlm, "<tool_call>f<arg_key>s</arg_key><arg_value>x</tool_call",
       "|f({\"s\": \"x</tool_call~"},
      {kQwenXml, "<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n</func",
       "|f({\"n\": 5})"},
      {kQwenXml, "<tool_call>\n<function=g>\n</function>\n</tool_", "|g({})"},
      {kQwenXml, "<tool_call>\n<function=f>\n<parameter=s>\nx</func", "|f({\"s\": \"x</func~"},
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
      // A number beyond a double's range is none.
      {kGemma4, "<|tool_call>call:f{n:1,x:1e999}<tool_call|>", "}<tool_call|>|f({\"n\": 1~"},
      {kGemma4, "<|tool_call>call:f{x:1e999}<tool_call|>",
       "<|tool_call>call:f{x:1e999}<tool_call|>"},
      {kGlm, Glm("x", "1e999"), "|f({\"x\": \"1e999\"})"},
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
    for (size_t i = 0; i < c.answer.size(); ++i) {
      ASSERT_EQ(ParsedBare(c.format, {c.answer.substr(0, i), c.answer.substr(i)}), c.expected)
          << c.answer << " split at byte " << i;
    }
    ASSERT_EQ(ParsedBare(c.format, BytesOf(c.answer)), c.expected) << c.answer << " byte by byte";
  }
}

TEST(BareCallsTest, StringsMaySpellTheEndOfACall) {
  using enum ToolCallFormat;
  const struct {
    ToolCallFormat format;
    const char *before, *end, *after;
  } kCalls[] = {
      {kQwenXml, "<function=f>\n<parameter=s>\n", "</function>", "\n</parameter>\n"},
      {kGlm, "<tool_call>f<arg_key>s</arg_key><arg_value>", "</tool_call>", "</arg_value>"},
      {kLfm2, "<|tool_call_start|>[f(s='", "<|tool_call_end|>", "')]"},
      {kGemma4, "<|tool_call>call:f{s:<|\"|>", "<tool_call|>", "<|\"|>}"}};
  for (const auto& [format, before, end, after] : kCalls) {
    std::string text;
    for (int i = 0; i < 2000; ++i) text += end;
    EXPECT_EQ(ParsedBare(format, {absl::StrCat(before, text, after, end)}),
              absl::StrCat("|f({\"s\": \"", text, "\"})"));
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
    ASSERT_EQ(ParsedBare(format, RandomPiecesOf(answer, &random)), ParsedBare(format, {answer}))
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
    EXPECT_EQ(ParsedBare(format, BytesOf(json), /*calls_begin=*/true), json);
    EXPECT_NE(ParsedBare(format, {json}), json);
    EXPECT_EQ(ParsedBare(format, {"\n", call}, /*calls_begin=*/true), "|f({\"s\": \"x\"})");
  }
}

TEST(BareCallsTest, AMarkOfCallsThatNoCallFollowsIsText) {
  for (const char* text : {"Use the <tool_call> tag", "It ends in <tool_call>\n"}) {
    EXPECT_EQ(ParsedBare(ToolCallFormat::kQwenXml, {text}), text);
  }
}

TEST(BareCallsTest, WholeNumbersOfAnySizeKeepTheirDigits) {
  const std::string digits = "123456789012345678901234567890";
  EXPECT_EQ(ParsedBare(ToolCallFormat::kQwenXml,
                       {Qwen(absl::StrCat(QwenArgument("n", "12345678901234567890"),
                                          QwenArgument("l", absl::StrCat("[-", digits, "]"))))}),
            absl::StrCat(R"(|f({"n": 12345678901234567890, "l": [-)", digits, "]})"));
  EXPECT_EQ(ParsedBare(ToolCallFormat::kLfm2,
                       {absl::StrCat("<|tool_call_start|>[f(l=[", digits, "])]<|tool_call_end|>")}),
            absl::StrCat(R"(|f({"l": [)", digits, "]})"));
}

TEST(BareCallsTest, ValuesInValuesAreBounded) {
  const std::string brackets(10'000, '[');
  EXPECT_EQ(ParsedBare(ToolCallFormat::kLfm2, {absl::StrCat("<|tool_call_start|>[f(l=", brackets)}),
            absl::StrCat(brackets.substr(63), "|f({~"));
  for (const size_t depth : {63, 64}) {
    const std::string value = std::string(depth, '[') + std::string(depth, ']');
    const std::string call = absl::StrCat("<|tool_call>call:f{l:", value, "}<tool_call|>");
    EXPECT_EQ(Joined(ToolCallFormat::kGemma4, {call}, ToolsOf(kBareTools)).calls.at(0).is_whole,
              depth == 63);
  }
}

// What has come out after some bytes of an answer.
TEST(BareCallsTest, StringsComeOutAsTheyGrowAndOtherValuesWhole) {
  using enum ToolCallFormat;
  const struct {
    ToolCallFormat format;
    std::vector<std::pair<std::string, std::string>> steps;  // more text, what is out then
  } kAnswers[] = {
      {kQwenXml,
       {{"<tool_call>\n<function=f>\n<parameter=s", ""},
        {">", "|f({\"s\": ~"},
        {"\na\"b", "|f({\"s\": \"a\\\"b~"},
        {"\n", "|f({\"s\": \"a\\\"b~"},
        {"c</param", "|f({\"s\": \"a\\\"b\\nc~"},
        {"\n</parameter>\n<parameter=n>\n5", "|f({\"s\": \"a\\\"b\\nc</param\"~"},
        {"\n</parameter>", "|f({\"s\": \"a\\\"b\\nc</param\", \"n\": 5~"},
        {"\n</function>", "|f({\"s\": \"a\\\"b\\nc</param\", \"n\": 5})"}}},
      {kGlm,
       {{"<tool_call>f\n<arg_key>e</arg_key>\n", ""},
        {"<arg_value>1 <", "|f({\"e\": \"1 ~"},
        {"/arg_value><arg_key>m</arg_key><arg_value>x", "|f({\"e\": \"1 \"~"},
        {"</arg_value></tool_call", "|f({\"e\": \"1 \", \"m\": \"x\"~"},
        {">", "|f({\"e\": \"1 \", \"m\": \"x\"})"}}},
      // A tool that is not known.
      {kGlm,
       {{"<tool_call>h<arg_key>s</arg_key><arg_value>x</arg_value>", ""},
        {"</tool_call>", "|h({\"s\": \"x\"})"}}},
      {kLfm2,
       {{"<|tool_call_start|>[f(s=", ""},
        {"'a\\", "|f({\"s\": \"a~"},
        {"'\"é", "|f({\"s\": \"a'\\\"é~"},
        {"', l=[1, ']'", "|f({\"s\": \"a'\\\"é\"~"},
        {"], n=5", "|f({\"s\": \"a'\\\"é\", \"l\": [1, \"]\"]~"},
        {")", "|f({\"s\": \"a'\\\"é\", \"l\": [1, \"]\"], \"n\": 5})"}}},
      {kGemma4,
       {{"<|tool_call>call:f{s:<|\"", ""},
        {"|>a<", "|f({\"s\": \"a~"},
        {"b<|\"|>,", "|f({\"s\": \"a<b\"~"},
        {"o:{k:<|\"|>}<|\"|>}", "|f({\"s\": \"a<b\", \"o\": {\"k\": \"}\"}~"},
        {"}", "|f({\"s\": \"a<b\", \"o\": {\"k\": \"}\"}})"}}},
  };
  for (const auto& [format, steps] : kAnswers) {
    ToolCallParser parser(format, 1, ToolsOf(kBareTools));
    JoinedAnswer joined;
    for (const auto& [text, out] : steps) {
      for (const AnswerPart& part : parser.Append(text)) joined.Add(part);
      EXPECT_EQ(Described(joined), out) << text;
    }
  }
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
