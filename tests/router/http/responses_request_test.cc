#include "router/http/responses_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/chat/tool_call_syntax.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;
using Json = nlohmann::json;

OpenAiRequest ParsedResponses(const std::string& body) {
  absl::StatusOr<OpenAiRequest> request = ParseResponses(body);
  EXPECT_TRUE(request.ok()) << body << request.status();
  return request.ok() ? *std::move(request) : OpenAiRequest();
}

Json ConversationOf(const OpenAiRequest& request) {
  return Json::parse(json::ToText(request.conversation.messages));
}

Json MessagesOf(const std::string& input) {
  return ConversationOf(ParsedResponses(absl::StrCat(R"({"input": )", input, "}")));
}

Json EchoedBy(const std::string& body) {
  return Json::parse(absl::StrCat("{", ParsedResponses(body).responses->echo, "}"));
}

TEST(ResponsesRequestTest, ATextIsTheUsersAndInstructionsComeBefore) {
  EXPECT_EQ(MessagesOf(R"("hi")"), Json::parse(R"([{"role": "user", "content": "hi"}])"));
  const OpenAiRequest request = ParsedResponses(R"({"instructions": "be brief", "input": "hi"})");
  EXPECT_EQ(ConversationOf(request), Json::parse(R"([{"role": "system", "content": "be brief"},
                            {"role": "user", "content": "hi"}])"));
  EXPECT_EQ(request.responses->lead, 1u);
  EXPECT_FALSE(request.generate.add_special_tokens());
}

TEST(ResponsesRequestTest, PartsAreJoinedAndEachRoleIsKept) {
  EXPECT_EQ(MessagesOf(R"([
      {"role": "developer", "content": "d"},
      {"type": "message", "role": "user", "status": "completed", "id": null, "content": [
         {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
      {"type": "message", "role": "assistant", "id": "msg_1", "content": [
         {"type": "output_text", "text": "c", "annotations": [], "logprobs": []},
         {"type": "refusal", "refusal": "no"}]}])"),
            Json::parse(R"([{"role": "developer", "content": "d"},
                            {"role": "user", "content": "a\nb"},
                            {"role": "assistant", "content": "c\nno"}])"));
}

// What a model wrote in one turn is one message of the assistant, as the template would have it.
TEST(ResponsesRequestTest, ATurnIsOneMessage) {
  EXPECT_EQ(MessagesOf(R"([
      {"role": "user", "content": "q"},
      {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "short"}],
       "content": [{"type": "reasoning_text", "text": "long"}]},
      {"role": "assistant", "content": "Let me see."},
      {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}",
       "status": "completed"},
      {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"a\": 1}"},
      {"type": "function_call_output", "call_id": "c1", "output": "x"},
      {"type": "function_call_output", "call_id": "c2", "output": [
         {"type": "input_text", "text": "y"}, {"type": "input_text", "text": "z"}]},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "again"}]},
      {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c3", "output": "w"},
      {"type": "reasoning", "summary": [], "encrypted_content": "??"},
      {"role": "user", "content": "and?"}])"),
            Json::parse(R"([
      {"role": "user", "content": "q"},
      {"role": "assistant", "content": "Let me see.", "reasoning_content": "long", "tool_calls": [
         {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
         {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{\"a\": 1}"}}]},
      {"role": "tool", "content": "x", "tool_call_id": "c1"},
      {"role": "tool", "content": "y\nz", "tool_call_id": "c2"},
      {"role": "assistant", "content": null, "reasoning_content": "again", "tool_calls": [
         {"id": "c3", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "content": "w", "tool_call_id": "c3"},
      {"role": "user", "content": "and?"}])"));
}

TEST(ResponsesRequestTest, ToolsBecomeThoseOfAChat) {
  const OpenAiRequest request =
      ParsedResponses(R"({"input": "x", "parallel_tool_calls": false, "tools": [
      {"type": "function", "name": "f", "description": null, "strict": false,
       "parameters": {"type": "object", "default": null}},
      {"type": "function", "name": "g", "description": "does g", "parameters": null}]})");
  EXPECT_EQ(Json::parse(json::ToText(request.conversation.tools)), Json::parse(R"([
      {"type": "function", "function": {"name": "f", "strict": false,
         "parameters": {"type": "object", "default": null}}},
      {"type": "function", "function": {"name": "g", "description": "does g"}}])"));
  EXPECT_FALSE(request.parallel_tool_calls);
  EXPECT_TRUE(ParsedResponses(R"({"input": "x", "tool_choice": "none",
                         "tools": [{"type": "function", "name": "f"}]})")
                  .conversation.tools.is_null());
}

TEST(ResponsesRequestTest, LimitsFormatsAndSampling) {
  const OpenAiRequest request =
      ParsedResponses(R"({"input": "x", "model": "m", "max_output_tokens": 7,
      "temperature": 0.5, "top_p": 0.25, "stream": true, "user": "u", "truncation": "auto",
      "top_logprobs": 2, "include": ["message.output_text.logprobs"], "seed": 3, "top_k": 4,
      "speculation": false,
      "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "strict": true,
               "schema": {"type": "object"}}}})");
  EXPECT_EQ(request.generate.model(), "m");
  EXPECT_EQ(request.generate.stop().max_tokens(), 7);
  EXPECT_EQ(request.generate.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.generate.sampling().top_p(), 0.25f);
  EXPECT_EQ(request.generate.sampling().top_k(), 4);
  EXPECT_EQ(request.generate.sampling().seed(), 3u);
  EXPECT_EQ(request.generate.tenant(), "u");
  EXPECT_EQ(request.generate.logprobs(), 2);
  EXPECT_TRUE(request.generate.has_truncation());
  EXPECT_TRUE(request.generate.has_speculation() && !request.generate.speculation());
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(Json::parse(request.generate.structured_output().json_schema()),
            Json({{"type", "object"}}));
  EXPECT_FALSE(
      ParsedResponses(R"({"input": "x", "truncation": "disabled"})").generate.has_truncation());
  EXPECT_TRUE(ParsedResponses(R"({"input": "x", "text": {"format": {"type": "json_object"}}})")
                  .generate.structured_output()
                  .has_json_object());
}

TEST(ResponsesRequestTest, WhatHasNoEffectIsNamed) {
  EXPECT_THAT(
      ParsedResponses(R"({"input": [{"role": "assistant", "content": "a", "phase": "commentary"},
      {"role": "assistant", "content": "a", "phase": "commentary"}],
      "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low", "summary": "auto"},
      "stream_options": {"include_obfuscation": true}, "text": {"verbosity": "low"},
      "max_tool_calls": 3, "metadata": {"a": "b"}, "prompt_cache_key": "k"})")
          .ignored,
      ElementsAre("phase", "reasoning.encrypted_content", "reasoning.summary",
                  "stream_options.include_obfuscation", "text.verbosity", "max_tool_calls"));
}

// Codex offers them to every model. Errors of what is left have the places of the request.
TEST(ResponsesRequestTest, ToolsThatAreOfferedUnaskedAreLeftOutByName) {
  OpenAiRequest request =
      ParsedResponses(R"({"input": "x", "client_metadata": {"a": "b"}, "tools": [
      {"type": "web_search", "external_web_access": false}, {"type": "function", "name": "f"},
      {"type": "custom", "name": "patch", "format": {"type": "grammar"}}, {"type": "web_search"},
      {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "c"},
         {"type": "function", "name": "g", "strict": true, "parameters": {"type": "object", "not": 1}}]}]})");
  EXPECT_THAT(request.ignored, ElementsAre("client_metadata", "tools.web_search", "tools.custom"));
  ASSERT_EQ(request.conversation.tools.items.size(), 2u);
  const auto syntaxes = chat::SyntaxesOf(chat::ToolCallFormat::kHermes);
  const absl::Status error = WithResponsesField(ForceTools({.syntax = &syntaxes[0]}, request));
  EXPECT_THAT(ErrorField(error), StartsWith("tools[4].tools[1].")) << error;
  EXPECT_TRUE(ParsedResponses(R"({"input": "x", "tools": [{"type": "tool_search"}]})")
                  .conversation.tools.is_null());
}

// The model knows a function of a namespace by a name of both, in the tools and in the history.
TEST(ResponsesRequestTest, FunctionsOfNamespacesHaveQualifiedNames) {
  const OpenAiRequest request = ParsedResponses(R"({"input": [
      {"type": "function_call", "call_id": "c", "namespace": "mcp__a__", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": "x"}], "tools": [
      {"type": "namespace", "name": "mcp__a__", "description": "A", "tools": [
         {"type": "function", "name": "f", "defer_loading": true, "output_schema": {"type": "object"}}]},
      {"type": "namespace", "name": "b", "tools": [
         {"type": "function", "name": "f", "defer_loading": false, "parameters": {"type": "object"}}]},
      {"type": "namespace", "name": "functions", "tools": [{"type": "function", "name": "f"}]}]})");
  EXPECT_EQ(Json::parse(json::ToText(request.conversation.tools)), Json::parse(R"([
      {"type": "function", "function": {"name": "mcp__a__f"}},
      {"type": "function", "function": {"name": "b__f", "parameters": {"type": "object"}}},
      {"type": "function", "function": {"name": "f"}}])"));
  EXPECT_EQ(ConversationOf(request)[0]["tool_calls"][0]["function"]["name"], "mcp__a__f");
  EXPECT_THAT(request.ignored, ElementsAre("tools.namespace.description", "tools.defer_loading",
                                           "tools.output_schema"));
  const auto& names = request.responses->namespaced;
  ASSERT_EQ(names.size(), 3u);
  EXPECT_EQ(names.at("b__f").name_space, "b");
  EXPECT_EQ(names.at("b__f").name, "f");
  EXPECT_EQ(names.at("f").name_space, "functions");
}

TEST(ResponsesRequestTest, TheResponseRepeatsTheRequest) {
  const Json defaults = EchoedBy(R"({"input": "x", "temperature": null})");
  EXPECT_EQ(defaults, Json::parse(R"({"instructions": null, "max_output_tokens": null,
      "max_tool_calls": null, "metadata": {}, "parallel_tool_calls": true,
      "previous_response_id": null, "prompt_cache_key": null,
      "reasoning": {"effort": null, "summary": null}, "safety_identifier": null,
      "service_tier": "default", "temperature": null, "text": {"format": {"type": "text"}},
      "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": null,
      "truncation": "disabled", "user": null, "background": false})"));
  const Json given = EchoedBy(R"({"input": "x", "instructions": "be \"brief\"", "top_p": 0.5,
      "metadata": {"a": "b", "c": null}, "service_tier": "auto", "text": {"verbosity": "low"},
      "tools": [{"type": "function", "name": "f"}], "truncation": {"retention_ratio": 0.5}})");
  EXPECT_EQ(given["instructions"], "be \"brief\"");
  EXPECT_EQ(given["metadata"], Json({{"a", "b"}}));
  EXPECT_EQ(given["service_tier"], "default");
  EXPECT_EQ(given["text"], Json::parse(R"({"verbosity": "low", "format": {"type": "text"}})"));
  EXPECT_EQ(given["tools"], Json::parse(R"([{"type": "function", "name": "f"}])"));
  EXPECT_EQ(given["top_p"], 0.5);
  EXPECT_EQ(given["truncation"], "auto");
}

TEST(ResponsesRequestTest, ErrorsNameTheClientsField) {
  const struct {
    const char* members;
    const char* reason;
    const char* field;
  } cases[] = {
      {R"("input": null)", "MISSING_FIELD", "input"},
      {R"("input": [])", "EMPTY_PROMPT", "input"},
      {R"("input": 5)", "WRONG_TYPE", "input"},
      {R"("input": [5])", "WRONG_TYPE", "input[0]"},
      {R"("input": [{"id": "x"}])", "WRONG_TYPE", "input[0]"},
      {R"("input": [{"type": "item_reference", "id": "x"}])", "UNSUPPORTED_FIELD", "input[0].type"},
      {R"("input": [{"type": "web_search_call"}])", "UNSUPPORTED_FIELD", "input[0].type"},
      {R"("input": [{"role": "tool", "content": "x"}])", "UNSUPPORTED_FIELD", "input[0].role"},
      {R"("input": [{"role": "user"}])", "MISSING_FIELD", "input[0].content"},
      {R"("input": [{"role": "user", "content": "x", "extra": 1}])", "UNKNOWN_FIELD",
       "input[0].extra"},
      {R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])", "UNSUPPORTED_FIELD",
       "input[0].content[0].type"},
      {R"("input": [{"role": "user", "content": [{"type": "input_text"}]}])", "MISSING_FIELD",
       "input[0].content[0].text"},
      {R"("input": [{"type": "function_call", "call_id": "c", "name": "f"}])", "MISSING_FIELD",
       "input[0].arguments"},
      {R"("input": [{"type": "function_call_output", "call_id": "c", "output": 1}])", "WRONG_TYPE",
       "input[0].output"},
      {R"("nonsense": 1)", "UNKNOWN_FIELD", "nonsense"},
      {R"("messages": [])", "UNKNOWN_FIELD", "messages"},
      {R"("n": 2)", "UNKNOWN_FIELD", "n"},
      {R"("prompt": {"id": "p"})", "UNSUPPORTED_FIELD", "prompt"},
      {R"("prompt": "p")", "UNSUPPORTED_FIELD", "prompt"},
      {R"("conversation": "c")", "UNSUPPORTED_FIELD", "conversation"},
      {R"("background": true)", "UNSUPPORTED_FIELD", "background"},
      {R"("max_output_tokens": 0)", "OUT_OF_RANGE", "max_output_tokens"},
      {R"("metadata": {"a": 1})", "WRONG_TYPE", "metadata.a"},
      {R"("include": ["file_search_call.results"])", "UNSUPPORTED_FIELD", "include[0]"},
      {R"("top_logprobs": 2)", "ONLY_WITH_LOGPROBS", "top_logprobs"},
      {R"("tools": [{"type": "file_search"}])", "UNSUPPORTED_FIELD", "tools[0].type"},
      {R"("tools": [{"type": "web_search"}, {"type": "function"}])", "MISSING_FIELD",
       "tools[1].name"},
      {R"("tools": [{"type": "namespace", "tools": []}])", "MISSING_FIELD", "tools[0].name"},
      {R"("tools": [{"type": "namespace", "name": ""}])", "WRONG_TYPE", "tools[0].name"},
      {R"("tools": [{"type": "namespace", "name": "n"}])", "WRONG_TYPE", "tools[0].tools"},
      {R"("tools": [{"type": "namespace", "name": "n", "x": 1}])", "UNKNOWN_FIELD", "tools[0].x"},
      {R"("tools": [{"type": "namespace", "name": "n", "tools": [{"type": "namespace"}]}])",
       "UNSUPPORTED_FIELD", "tools[0].tools[0].type"},
      {R"("tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}])",
       "MISSING_FIELD", "tools[0].tools[0].name"},
      {R"("tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": ""}]}])",
       "WRONG_TYPE", "tools[0].tools[0].name"},
      {R"("tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"},
          {"type": "function", "name": "f"}]}])",
       "SCHEMA_INVALID", "tools[0].tools[1].name"},
      {R"("tools": [{"type": "function", "name": "n__f"}, {"type": "namespace", "name": "n",
          "tools": [{"type": "function", "name": "f"}]}])",
       "SCHEMA_INVALID", "tools[0].name"},
      {R"("tools": [{"type": "function", "name": "f", "defer_loading": 1}])", "WRONG_TYPE",
       "tools[0].defer_loading"},
      {R"("client_metadata": "x")", "WRONG_TYPE", "client_metadata"},
      {R"("reasoning": {"context": 1})", "WRONG_TYPE", "reasoning.context"},
      {R"("tools": [{"type": "function"}])", "MISSING_FIELD", "tools[0].name"},
      {R"("tools": [{"name": "f"}])", "MISSING_FIELD", "tools[0].type"},
      {R"("tools": [{"type": "function", "name": "f", "strict": 1}])", "WRONG_TYPE",
       "tools[0].strict"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}])", "UNKNOWN_FIELD",
       "tools[0].function"},
      {R"("tool_choice": {"type": "mcp"})", "UNSUPPORTED_FIELD", "tool_choice.type"},
      {R"("tool_choice": 5)", "WRONG_TYPE", "tool_choice"},
      {R"("include": ["message.output_text.logprobs"], "tools": [{"type": "function", "name": "f"}])",
       "UNSUPPORTED_FIELD", "include"},
      {R"("text": {"format": {"type": "json_schema", "name": "n"}})", "WRONG_TYPE",
       "text.format.schema"},
      {R"("text": {"format": {"type": "grammar"}})", "UNSUPPORTED_FIELD", "text.format.type"},
      {R"("truncation": "middle")", "UNSUPPORTED_FIELD", "truncation"},
      {R"("reasoning": {"effort": 1})", "WRONG_TYPE", "reasoning.effort"},
      {R"("stream_options": {"include_usage": true})", "UNKNOWN_FIELD",
       "stream_options.include_usage"},
      {R"("previous_response_id": "")", "WRONG_TYPE", "previous_response_id"},
  };
  for (const auto& c : cases) {
    std::string body = absl::StrCat("{", c.members, "}");
    if (!absl::StrContains(c.members, "\"input\"")) body.replace(0, 1, R"({"input": "x", )");
    const absl::Status error = ParseResponses(body).status();
    EXPECT_EQ(ErrorReason(error), c.reason) << body << error;
    EXPECT_EQ(ErrorField(error), c.field) << body;
    EXPECT_THAT(std::string(error.message()), StartsWith(absl::StrCat(c.field, ": "))) << body;
  }
  EXPECT_EQ(ErrorReason(ParseResponses("[]").status()), "MALFORMED_JSON");
  EXPECT_EQ(ErrorReason(ParseResponses("{").status()), "MALFORMED_JSON");
}

TEST(ResponsesRequestTest, LaterErrorsHaveTheClientsNamesToo) {
  const absl::Status renamed = WithResponsesField(
      InvalidField("CONTEXT_LENGTH_EXCEEDED", "stop.max_tokens", "5 given, 4 expected"));
  EXPECT_EQ(ErrorField(renamed), "max_output_tokens");
  EXPECT_EQ(ErrorReason(renamed), "CONTEXT_LENGTH_EXCEEDED");
  EXPECT_EQ(renamed.message(), "max_output_tokens: 5 given, 4 expected");
  EXPECT_EQ(ErrorField(WithResponsesField(
                InvalidField("UNSUPPORTED_FIELD", "tools[1].function.strict", "no"))),
            "tools[1].strict");
  const absl::Status kept = InvalidField("OUT_OF_RANGE", "sampling.top_p", "no");
  EXPECT_EQ(WithResponsesField(kept), kept);
}

}  // namespace
}  // namespace baton::router
