#include "common/chat/tool_call_syntax.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/chat/tool_calls.h"
#include "gtest/gtest.h"
#include "tests/common/chat/parsed_answer.h"
#include "tests/testing/seed.h"

namespace baton::chat {
namespace {

constexpr ToolCallFormat kWrittenFormats[] = {ToolCallFormat::kHermes, ToolCallFormat::kLlama3,
                                              ToolCallFormat::kMistral, ToolCallFormat::kDeepSeek};
constexpr ToolCallFormat kLiteralFormats[] = {ToolCallFormat::kLfm2, ToolCallFormat::kGemma4};

using Calls = std::vector<std::pair<std::string, std::string>>;  // names and arguments

std::string Written(const ToolCallSyntax& syntax, const Calls& calls) {
  std::string text(syntax.opening);
  for (size_t i = 0; i < calls.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : syntax.separator, syntax.before_name,
                    WrittenName(syntax, calls[i].first).value(), syntax.before_arguments,
                    calls[i].second, syntax.after_arguments);
  }
  return absl::StrCat(text, syntax.closing);
}

// The calls in an answer, and its text as the name of a call without arguments.
Calls ReadBack(ToolCallFormat format, const std::vector<absl::string_view>& parts) {
  const JoinedAnswer joined = Joined(format, {parts.begin(), parts.end()});
  Calls calls;
  for (const ToolCall& call : joined.calls) calls.emplace_back(call.name, call.arguments);
  if (!joined.text.empty()) calls.emplace_back(joined.text, "");
  return calls;
}

TEST(ToolCallSyntaxTest, WhatIsWrittenIsReadBackWhateverTheSplit) {
  static const char* const kArguments[] = {
      R"({})", R"({"a": 1})", R"({"a": "}{]\"</tool_call>[ARGS]", "b": [{"c": null}]})",
      R"({"é": "```<｜tool▁call▁end｜>; {"})"};
  static const char* const kPlainNames[] = {"f", "get_weather", "a.b:c-1"};
  static const char* const kQuotedNames[] = {"f", "with space", "q\"\\{}", "é\n", "get_weather"};
  std::mt19937 random(testing::TestSeed(61));
  for (const ToolCallFormat format : kWrittenFormats) {
    ASSERT_FALSE(SyntaxesOf(format).empty());
    for (const ToolCallSyntax& syntax : SyntaxesOf(format)) {
      for (int i = 0; i < 24; ++i) {
        Calls calls;
        for (int count = 1 + i % 3; count > 0; --count) {
          const std::string name = syntax.quoted_names
                                       ? kQuotedNames[random() % std::size(kQuotedNames)]
                                       : kPlainNames[random() % std::size(kPlainNames)];
          calls.emplace_back(name, kArguments[random() % std::size(kArguments)]);
        }
        const std::string answer = Written(syntax, calls);
        const absl::string_view text = answer;
        std::vector<absl::string_view> bytes;
        for (size_t at = 0; at < text.size(); ++at) {
          ASSERT_EQ(ReadBack(format, {text.substr(0, at), text.substr(at)}), calls)
              << answer << " split at byte " << at;
          bytes.push_back(text.substr(at, 1));
        }
        ASSERT_EQ(ReadBack(format, bytes), calls) << answer << " byte by byte";
      }
    }
  }
  EXPECT_TRUE(SyntaxesOf(ToolCallFormat::kUnsupported).empty());
}

// Arguments that are literals: as they are written, and as JSON.
TEST(ToolCallSyntaxTest, LiteralsAreReadBackWhateverTheSplit) {
  using Literals = std::vector<std::pair<std::string, std::string>>;
  static const Literals kPython = {
      {"", "{}"},
      {"a=1, b_2=-2.5e3", R"({"a": 1, "b_2": -2500.0})"},
      {"a=True, b=False, c=None", R"({"a": true, "b": false, "c": null})"},
      {R"(a="x\"'\n\u00e9)]<|tool_call_end|>")", R"({"a": "x\"'\n\u00e9)]<|tool_call_end|>"})"},
      {R"(a='x\'\"\\"')", R"({"a": "x'\"\\\""})"},
      {"a=\"1\n2\"", R"({"a": "1\n2"})"},
      {R"(a=[{"k 1": [True, None], 'k"2': {}}, []])",
       R"({"a": [{"k 1": [true, null], "k\"2": {}}, []]})"}};
  static const Literals kGemma = {
      {"", "{}"},
      {"a:1,b_2:-2.5e3", R"({"a": 1, "b_2": -2500.0})"},
      {"a:true,b:false,c:null", R"({"a": true, "b": false, "c": null})"},
      {R"(a:<|"|>x"'\n<|"|}<tool_call|><|"|>)", R"({"a": "x\"'\\n<|\"|}<tool_call|>"})"},
      {"a:<|\"|>1\n2<|\"|>,b:<|\"|><|\"|>", R"({"a": "1\n2", "b": ""})"},
      {R"(<|"|>k 1<|"|>:[{k:[true,None],<|"|>{}<|"|>:{}},[]])",
       R"({"k 1": [{"k": [true, null], "{}": {}}, []]})"}};
  std::mt19937 random(testing::TestSeed(62));
  for (const auto& [format, literals] :
       {std::pair(ToolCallFormat::kLfm2, kPython), std::pair(ToolCallFormat::kGemma4, kGemma)}) {
    const ToolCallSyntax& syntax = SyntaxesOf(format)[0];
    for (size_t i = 0; i < literals.size(); ++i) {
      Calls written, expected;
      for (size_t count = 1 + i % 3; count > 0; --count) {
        const auto& [literal, json] = literals[count == 1 ? i : random() % literals.size()];
        const std::string name = absl::StrCat("f.", count);
        written.emplace_back(name, literal);
        expected.emplace_back(name, json);
      }
      const std::string answer = Written(syntax, written);
      const absl::string_view text = answer;
      for (size_t at = 0; at < text.size(); ++at) {
        ASSERT_EQ(ReadBack(format, {text.substr(0, at), text.substr(at)}), expected)
            << answer << " split at byte " << at;
      }
    }
  }
}

// What constrains a text relies on this.
TEST(ToolCallSyntaxTest, TextWithoutTriggersAndExcludedTextsHasNoCalls) {
  std::vector<ToolCallFormat> formats(std::begin(kWrittenFormats), std::end(kWrittenFormats));
  formats.insert(formats.end(), std::begin(kLiteralFormats), std::end(kLiteralFormats));
  for (const ToolCallFormat format : formats) {
    for (const ToolCallSyntax& syntax : SyntaxesOf(format)) {
      const absl::string_view beginning =
          syntax.opening.empty() ? syntax.before_name : syntax.opening;
      EXPECT_TRUE(absl::StartsWith(beginning, syntax.trigger));
      const bool is_json = syntax.argument_style == ToolCallSyntax::ArgumentStyle::kJson;
      const std::string call = Written(syntax, {{"f", is_json ? "{}" : ""}});
      // The shortest ends of the text with a call that are still calls.
      for (size_t from = 1; from < call.size(); ++from) {
        const std::string rest = call.substr(from);
        const Calls parsed = ReadBack(format, {rest});
        const bool has_call = std::any_of(parsed.begin(), parsed.end(),
                                          [](const auto& c) { return !c.second.empty(); });
        if (!has_call) continue;
        bool is_known = !syntax.trigger.empty() && absl::StrContains(rest, syntax.trigger);
        for (const absl::string_view excluded : syntax.excluded) {
          is_known = is_known || (syntax.trigger.empty() ? absl::StartsWith(rest, excluded)
                                                         : absl::StrContains(rest, excluded));
        }
        EXPECT_TRUE(is_known) << rest;
      }
    }
  }
}

TEST(ToolCallSyntaxTest, NamesAreWrittenAsTheFormatReadsThem) {
  const ToolCallSyntax& json = SyntaxesOf(ToolCallFormat::kHermes)[0];
  EXPECT_EQ(WrittenName(json, "a\"b\né"), "a\\\"b\\né");
  const ToolCallSyntax& plain = SyntaxesOf(ToolCallFormat::kDeepSeek)[0];
  EXPECT_EQ(WrittenName(plain, "get_weather-2.b:c"), "get_weather-2.b:c");
  for (const char* const name : {"", "a b", "a{", "é", "[ARGS]", "a\n"}) {
    EXPECT_EQ(WrittenName(plain, name), std::nullopt) << name;
  }
  EXPECT_EQ(WrittenName(json, "\xff"), std::nullopt);
}

TEST(ToolCallSyntaxTest, ATemplateShowsWhichWayOfItsFormatItWrites) {
  const auto find = [](ToolCallFormat format, const std::string& rendered) {
    const ToolCallSyntax* const found = FindSyntax(format, rendered, "f");
    return found == nullptr ? -1 : static_cast<int>(found - SyntaxesOf(format).data());
  };
  EXPECT_EQ(find(ToolCallFormat::kMistral, "x[TOOL_CALLS]f[ARGS]{}"), 0);
  EXPECT_EQ(find(ToolCallFormat::kMistral,
                 R"([TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "x"}])"),
            1);
  EXPECT_EQ(find(ToolCallFormat::kMistral, "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}"), -1);
  EXPECT_EQ(find(ToolCallFormat::kHermes,
                 "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"),
            0);
  EXPECT_EQ(find(ToolCallFormat::kHermes,
                 "<tool_call>\n{\"arguments\": {}, \"name\": \"f\"}\n</tool_call>"),
            -1);
  EXPECT_EQ(find(ToolCallFormat::kDeepSeek,
                 "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}"),
            1);
}

}  // namespace
}  // namespace baton::chat
