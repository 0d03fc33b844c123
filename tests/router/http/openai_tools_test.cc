// What a chat's tools and tool_choice make of the request's structured output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/chat/tool_call_syntax.h"
#include "common/grammar/from_proto.h"
#include "common/grammar/schema_check.h"
#include "common/json/json.h"
#include "router/http/openai_request.h"

namespace baton::router {
namespace {

using chat::SyntaxesOf;
using chat::ToolCallFormat;
using ToolCalls = v1::StructuredOutput::ToolCalls;

constexpr char kTools[] = R"(, "tools": [
  {"type": "function", "function": {"name": "f", "parameters": {"type": "object",
   "properties": {"a": {"type": "integer"}}, "required": ["a"]}}},
  {"type": "function", "function": {"name": "g"}},
  {"type": "function", "function": {"name": "any", "parameters": {}}},
  {"type": "function", "function": {"name": "beyond", "parameters": {"type": "object", "not": {}}}}])";
constexpr char kStrictTools[] = R"(, "tools": [{"function": {"name": "g"}},
  {"function": {"name": "f", "strict": true, "parameters": {"type": "object",
   "properties": {"a": {"type": "integer"}}}}}])";

absl::StatusOr<v1::StructuredOutput> Forced(const std::string& more,
                                            ToolCallFormat format = ToolCallFormat::kHermes,
                                            CallConstraints constraints = {}) {
  absl::StatusOr<OpenAiRequest> request =
      ParseChat(absl::StrCat(R"({"messages": [{"role": "user", "content": "hi"}])", more, "}"));
  if (!request.ok()) return request.status();
  const auto syntaxes = SyntaxesOf(format);
  constraints.syntax = syntaxes.empty() ? nullptr : &syntaxes[0];
  BATON_RETURN_IF_ERROR(ForceTools(constraints, *request));
  if (request->generate.has_structured_output()) {
    BATON_RETURN_IF_ERROR(
        grammar::CheckSpec(grammar::FromProto(request->generate.structured_output())));
  }
  return request->generate.structured_output();
}

ToolCalls CallsOf(const std::string& more, ToolCallFormat format = ToolCallFormat::kHermes) {
  const auto forced = Forced(more, format);
  EXPECT_TRUE(forced.ok()) << forced.status();
  return forced.ok() ? forced->tool_calls() : ToolCalls();
}

std::string Refused(const std::string& more, ToolCallFormat format = ToolCallFormat::kHermes) {
  const absl::Status status = Forced(more, format).status();
  return absl::StrCat(ErrorReason(status), " ", ErrorField(status));
}

TEST(OpenAiToolsTest, ARequiredCallIsOfAnyToolAndNothingElse) {
  const ToolCalls calls = CallsOf(absl::StrCat(kTools, R"(, "tool_choice": "required")"));
  ASSERT_EQ(calls.tools_size(), 4);
  EXPECT_EQ(calls.tools(0).name(), "f");
  EXPECT_EQ(calls.tools(0).parameters(),
            R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})");
  EXPECT_EQ(calls.tools(1).parameters(), R"({"type":"object","properties":{}})")
      << "a function without parameters takes none";
  EXPECT_EQ(calls.tools(2).parameters(), "") << "any object";
  EXPECT_EQ(calls.tools(3).parameters(), "") << "any object, as the schema is not supported";
  EXPECT_TRUE(calls.required());
  EXPECT_FALSE(calls.single());
  EXPECT_EQ(calls.before_name(), "<tool_call>\n{\"name\": \"");
  EXPECT_EQ(calls.trigger(), "");
  EXPECT_TRUE(
      CallsOf(absl::StrCat(kTools, R"(, "tool_choice": "required", "parallel_tool_calls": false)"))
          .single());
}

TEST(OpenAiToolsTest, ANamedToolIsCalledOnce) {
  const std::string choice = R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})";
  // The order of the fields is the client's.
  for (const std::string& more : {kTools + choice, choice + kTools}) {
    const ToolCalls calls = CallsOf(more);
    ASSERT_EQ(calls.tools_size(), 1);
    EXPECT_EQ(calls.tools(0).name(), "g");
    EXPECT_TRUE(calls.required() && calls.single());
  }
}

TEST(OpenAiToolsTest, StrictToolsConstrainTheCallsInAText) {
  const ToolCalls calls = CallsOf(kStrictTools);
  EXPECT_EQ(calls.tools_size(), 2);
  EXPECT_FALSE(calls.required() || calls.single());
  EXPECT_EQ(calls.trigger(), "<tool_call>");
  const ToolCalls bare = CallsOf(kStrictTools, ToolCallFormat::kLlama3);
  EXPECT_EQ(bare.trigger(), "");
  ASSERT_EQ(bare.excluded_size(), 2);
  EXPECT_EQ(bare.excluded(0), "{");
  EXPECT_TRUE(CallsOf(absl::StrCat(kStrictTools, R"(, "parallel_tool_calls": false)")).single());
}

TEST(OpenAiToolsTest, NothingIsForcedUnlessItIsAskedFor) {
  for (const std::string& more :
       {std::string(kTools), absl::StrCat(kTools, R"(, "tool_choice": "auto")"),
        absl::StrCat(kStrictTools, R"(, "tool_choice": "none")"), std::string()}) {
    const auto forced = Forced(more, ToolCallFormat::kUnsupported);
    ASSERT_TRUE(forced.ok()) << forced.status();
    EXPECT_EQ(forced->kind_case(), v1::StructuredOutput::KIND_NOT_SET) << more;
  }
  const auto beside = Forced(absl::StrCat(kTools, R"(, "guided_regex": "a")"));
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(beside->regex(), "a");
  // A required call leaves no text to which the format could apply.
  EXPECT_TRUE(CallsOf(absl::StrCat(kTools, R"(, "tool_choice": "required", "response_format": )",
                                   R"({"type": "json_object"})"))
                  .required());
}

TEST(OpenAiToolsTest, AFormatBesideToolsIsThatOfAnAnswerWithoutCalls) {
  const std::string format = R"(, "response_format": {"type": "json_schema", "json_schema":
      {"name": "n", "schema": {"type": "null"}}})";
  for (const char* const tools : {kTools, kStrictTools}) {
    const ToolCalls calls = CallsOf(tools + format);
    EXPECT_EQ(calls.answer_schema(), R"({"type":"null"})");
    EXPECT_FALSE(calls.required());
    EXPECT_EQ(calls.trigger(), "");
    EXPECT_EQ(calls.excluded_size(), 0);
  }
  EXPECT_EQ(CallsOf(kStrictTools + format, ToolCallFormat::kLlama3).excluded_size(), 0);
  EXPECT_EQ(CallsOf(absl::StrCat(kTools, R"(, "response_format": {"type": "json_object"})"))
                .answer_schema(),
            R"({"type":"object","additionalProperties":true})");
  EXPECT_EQ(CallsOf(absl::StrCat(kStrictTools, R"(, "response_format": {"type": "text"})"))
                .answer_schema(),
            "");
  EXPECT_EQ(Refused(absl::StrCat(kTools, R"(, "guided_json": {"not": {}})")),
            "SCHEMA_UNSUPPORTED structured_output.json_schema");
  // Without a way to force calls, the answer has none.
  const auto plain = Forced(kStrictTools + format, ToolCallFormat::kUnsupported);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE(plain->has_json_schema());
}

// Of an API with other places of tools, as /v1/responses has them.
TEST(OpenAiToolsTest, AFormatBesideToolsThatAreNotStrictNamesNoTool) {
  auto request = ParseChat(
      R"({"messages": [{"role": "user", "content": "hi"}], "response_format":
          {"type": "json_object"}, "tools": [{"type": "function", "function": {"name": "g"}}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  request->tool_places = {"tools[0]"};
  const auto syntaxes = SyntaxesOf(ToolCallFormat::kHermes);
  ASSERT_TRUE(ForceTools({.syntax = &syntaxes[0]}, *request).ok());
  EXPECT_FALSE(request->generate.structured_output().tool_calls().answer_schema().empty());
}

TEST(OpenAiToolsTest, ToolsThatCannotBeForcedLeaveTheFormatOfTheAnswer) {
  const std::string format = R"(, "response_format": {"type": "json_object"}, "tools": [
      {"function": {"name": "two words")";
  const auto forced = Forced(format + "}}]", ToolCallFormat::kQwenXml);
  ASSERT_TRUE(forced.ok()) << forced.status();
  EXPECT_TRUE(forced->has_json_object());
  EXPECT_FALSE(Forced(format + R"(, "strict": true}}])", ToolCallFormat::kQwenXml).ok());
}

// References let a small schema have very many branches.
TEST(OpenAiToolsTest, ASchemaThatRefersToItselfIsLookedAtForABoundedTime) {
  std::string branches = R"({"type": "string"})";
  for (int i = 0; i < 100; ++i) branches += R"(, {"$ref": "#/$defs/d"})";
  const auto forced =
      Forced(absl::StrCat(R"(, "tool_choice": "required", "tools": [{"function": {"name": "f",
          "parameters": {"type": "object", "properties": {"a": {"$ref": "#/$defs/d"}},
          "$defs": {"d": {"anyOf": [)",
                          branches, "]}}}}}]"),
             ToolCallFormat::kQwenXml);
  EXPECT_TRUE(forced.ok() || absl::IsInvalidArgument(forced.status())) << forced.status();
}

TEST(OpenAiToolsTest, ArgumentsAreInTheStyleOfTheModel) {
  const ToolCalls calls =
      CallsOf(absl::StrCat(kTools, R"(, "tool_choice": "required")"), ToolCallFormat::kQwenXml);
  EXPECT_EQ(calls.argument_style(), ToolCalls::ARGUMENT_STYLE_QWEN_XML);
  EXPECT_EQ(CallsOf(absl::StrCat(kTools, R"(, "tool_choice": "required")")).argument_style(),
            ToolCalls::ARGUMENT_STYLE_JSON);
  // What the style cannot write is beyond the support, as a keyword is.
  const auto with = [](const std::string& strict, const char* schema) {
    return absl::StrCat(R"(, "tool_choice": "required", "tools": [{"function": {"name": "f", )",
                        strict, R"("parameters": {"type": "object", "properties": {"a": )", schema,
                        "}}}}]");
  };
  constexpr char kTag[] = R"({"type": "string", "pattern": "^</?[a-z]+>$"})";
  constexpr char kBounded[] = R"({"type": "string", "maxLength": 3})";
  EXPECT_EQ(CallsOf(with("", kTag), ToolCallFormat::kQwenXml).tools(0).parameters(), "");
  EXPECT_NE(CallsOf(with("", kTag)).tools(0).parameters(), "");
  EXPECT_NE(CallsOf(with("", kBounded), ToolCallFormat::kQwenXml).tools(0).parameters(), "");
  EXPECT_EQ(Refused(with(R"("strict": true, )", kTag), ToolCallFormat::kQwenXml),
            "SCHEMA_UNSUPPORTED tools[0].function.parameters");
  // So is what not all workers know.
  const auto mixed = Forced(with("", kBounded), ToolCallFormat::kQwenXml,
                            {.level = internal::v1::GRAMMAR_LEVEL_UNSPECIFIED});
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  EXPECT_EQ(mixed->tool_calls().tools(0).parameters(), "");
}

TEST(OpenAiToolsTest, StylesOfLiteralsTakeWhatJsonTakes) {
  const std::string bounded = R"(, "tools": [{"function": {"name": "f", "strict": true,
      "parameters": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}}}])";
  for (const auto& [format, style, opening, trigger] :
       {std::tuple(ToolCallFormat::kLfm2, ToolCalls::ARGUMENT_STYLE_PYTHON, "<|tool_call_start|>[",
                   "<|tool_call_start|>"),
        std::tuple(ToolCallFormat::kGemma4, ToolCalls::ARGUMENT_STYLE_GEMMA, "", "<|tool_call>")}) {
    const ToolCalls strict = CallsOf(bounded, format);
    EXPECT_EQ(strict.argument_style(), style);
    EXPECT_EQ(strict.opening(), opening);
    EXPECT_EQ(strict.trigger(), trigger);
    EXPECT_NE(strict.tools(0).parameters(), "");
    const ToolCalls named =
        CallsOf(absl::StrCat(bounded,
                             R"(, "tool_choice": {"type": "function", "function": {"name": "f"}})"),
                format);
    EXPECT_TRUE(named.required() && named.single());
    EXPECT_EQ(Refused(R"(, "tools": [{"function": {"name": "f", "strict": true, "parameters": {
                  "type": "object", "properties": {"n": {"type": "integer", "multipleOf": 2}}}}}])",
                      format),
              "SCHEMA_UNSUPPORTED tools[0].function.parameters");
  }
}

constexpr char kNullAnswer[] = R"(, "response_format": {"type": "json_schema", "json_schema":
    {"name": "n", "schema": {"type": "null"}}})";

TEST(OpenAiToolsTest, HarmonysAnswersAreMessagesOrACall) {
  const ToolCalls required =
      CallsOf(absl::StrCat(kTools, R"(, "tool_choice": "required")"), ToolCallFormat::kHarmony);
  EXPECT_TRUE(required.required() && required.single());
  EXPECT_EQ(required.before_answer(), "");
  const ToolCalls strict = CallsOf(kStrictTools, ToolCallFormat::kHarmony);
  EXPECT_FALSE(strict.required());
  EXPECT_TRUE(strict.single()) << "a call ends the answer";
  EXPECT_EQ(strict.trigger(), "");
  EXPECT_EQ(strict.before_answer(), "<|channel|>final<|message|>");
  EXPECT_THAT(strict.before_message(), ::testing::ElementsAre("<|channel|>analysis<|message|>",
                                                              "<|channel|>commentary<|message|>"));
  EXPECT_THAT(strict.excluded(), ::testing::Contains("<|end|>"));
  const ToolCalls format = CallsOf(absl::StrCat(kTools, kNullAnswer), ToolCallFormat::kHarmony);
  EXPECT_EQ(format.answer_schema(), R"({"type":"null"})");
  EXPECT_EQ(format.before_answer(), "<|channel|>final<|message|>");
  EXPECT_THAT(format.before_message(), ::testing::ElementsAre("<|channel|>analysis<|message|>"))
      << "a preamble would be content that is no JSON";
}

// Where workers of a version that does not know messages answer, too, or no messages are parted.
TEST(OpenAiToolsTest, HarmonysMessagesAreConstrainedWhereAllKnowThem) {
  for (const CallConstraints& constraints :
       {CallConstraints{.level = internal::v1::GRAMMAR_LEVEL_UNSPECIFIED},
        CallConstraints{.parts_messages = false}}) {
    const auto strict = Forced(kStrictTools, ToolCallFormat::kHarmony, constraints);
    ASSERT_TRUE(strict.ok()) << strict.status();
    EXPECT_EQ(strict->kind_case(), v1::StructuredOutput::KIND_NOT_SET);
    const auto format =
        Forced(absl::StrCat(kTools, kNullAnswer), ToolCallFormat::kHarmony, constraints);
    ASSERT_TRUE(format.ok()) << format.status();
    EXPECT_TRUE(format->has_json_schema());
    const auto required = Forced(absl::StrCat(kTools, R"(, "tool_choice": "required")"),
                                 ToolCallFormat::kHarmony, constraints);
    ASSERT_TRUE(required.ok()) << required.status();
    EXPECT_TRUE(required->tool_calls().required());
  }
}

TEST(OpenAiToolsTest, WhatCannotBeForcedIsRefusedByName) {
  const std::string required = R"(, "tool_choice": "required")";
  EXPECT_EQ(Refused(required), "MISSING_FIELD tools");
  EXPECT_EQ(Refused(required + R"(, "tools": [])"), "MISSING_FIELD tools");
  const std::string named = R"(, "tool_choice": {"type": "function", "function": {"name": "h"}})";
  EXPECT_EQ(Refused(named), "MISSING_FIELD tools");
  EXPECT_EQ(Refused(kTools + named), "OUT_OF_RANGE tool_choice.function.name");
  EXPECT_TRUE(absl::StrContains(Forced(kTools + named).status().message(), "\"h\""));
  EXPECT_EQ(Refused(kTools + required, ToolCallFormat::kUnsupported),
            "UNSUPPORTED_FIELD tool_choice");
  EXPECT_EQ(Refused(absl::StrCat(kStrictTools, R"(, "guided_regex": "a")")),
            "NOT_WITH_STRUCTURED_OUTPUT tools[1].function.strict");
  const auto tool = [&](const std::string& function) {
    return absl::StrCat(R"(, "tools": [{"function": {)", function, "}}]", required);
  };
  EXPECT_EQ(Refused(tool(R"("name": "f", "strict": true, "parameters": {"type": "object",
                            "properties": {"a": {"not": {}}}})")),
            "SCHEMA_UNSUPPORTED tools[0].function.parameters");
  EXPECT_EQ(Refused(tool(R"("name": "f", "strict": true, "parameters": {"type": "string"})")),
            "SCHEMA_UNSUPPORTED tools[0].function.parameters");
  EXPECT_EQ(Refused(tool(R"("name": "f", "parameters": {"type": "thing"})")),
            "SCHEMA_INVALID tools[0].function.parameters");
  EXPECT_EQ(Refused(tool(R"("name": "a b")"), ToolCallFormat::kDeepSeek),
            "UNSUPPORTED_FIELD tools[0].function.name");
  EXPECT_EQ(
      Refused(absl::StrCat(
          R"(, "tools": [{"function": {"name": "f"}}, {"function": {"name": "f"}}])", required)),
      "SCHEMA_INVALID tools[1].function.name");
}

TEST(OpenAiToolsTest, AnAnswerKeepsWhatItsCallsNeedOfTheTools) {
  const std::string body = R"({"messages": [{"role": "user", "content": "hi"}], "tools": [
      {"type": "function", "function": {"name": "f", "description": "d", "parameters":
       {"type": "object", "properties": {"a": {"$ref": "#/$defs/s"}}, "$defs": {"s": {"type": "string"}}}}},
      {"type": "function", "function": {"name": "g"}}]})";
  const std::string names = R"([{"function":{"name":"f"}},{"function":{"name":"g"}}])";
  const std::string types =
      R"([{"function":{"name":"f","parameters":{"type":"object","properties":{"a":{"$ref":"#/$defs/s"}},)"
      R"("$defs":{"s":{"type":"string"}}}}},{"function":{"name":"g"}}])";
  const struct {
    ToolCallFormat format;
    std::string kept;
    int64_t values;
  } kFormats[] = {{ToolCallFormat::kHermes, names, 7},
                  {ToolCallFormat::kHarmony, names, 7},
                  {ToolCallFormat::kGemma4, names, 7},
                  {ToolCallFormat::kGlm, types, 15},
                  {ToolCallFormat::kQwenXml, types, 15}};
  for (const auto& [format, kept, values] : kFormats) {
    auto request = ParseChat(body);
    ASSERT_TRUE(request.ok()) << request.status();
    const int64_t before = request->json_bytes;
    const auto tools = KeepToolsOfAnswer(format, *request);
    EXPECT_EQ(nlohmann::json::parse(json::ToText(*tools)), nlohmann::json::parse(kept));
    EXPECT_EQ(before - request->json_bytes, values * static_cast<int64_t>(sizeof(json::Value)));
    EXPECT_GE(request->json_bytes, 0);
  }
}

TEST(OpenAiToolsTest, StrictToolsAreAsOthersWhereCallsCannotBeForced) {
  auto request = ParseChat(
      absl::StrCat(R"({"messages": [{"role": "user", "content": "hi"}])", kStrictTools, "}"));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(ForceTools({}, *request), absl::OkStatus());
  EXPECT_FALSE(request->generate.has_structured_output());
  EXPECT_THAT(request->ignored, ::testing::ElementsAre("strict"));
}

}  // namespace
}  // namespace baton::router
