#include "router/http/anthropic_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kHi[] = R"("messages": [{"role": "user", "content": "hi"}])";

OpenAiRequest Parsed(absl::string_view members) {
  auto request = ParseAnthropic(absl::StrCat("{\"max_tokens\": 8, ", members, "}"));
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? *std::move(request) : OpenAiRequest();
}

// The messages of OpenAI's API.
Json Messages(absl::string_view members) {
  return Json::parse(json::ToText(Parsed(members).conversation.messages));
}

// "REASON field" of the refusal.
std::string Refusal(absl::string_view members) {
  const auto request = ParseAnthropic(absl::StrCat("{\"max_tokens\": 8, ", members, "}"));
  if (request.ok()) return "accepted";
  return absl::StrCat(ErrorReason(request.status()), " ", ErrorField(request.status()));
}

TEST(AnthropicRequestTest, AWholeConversationOfAnAgentBecomesOpenAis) {
  const Json messages = Messages(R"(
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
               {"type": "text", "text": "Use tools."}],
    "messages": [
      {"role": "user", "content": "Weather?"},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Two towns.", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I look.", "citations": null},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"z": "Köln", "b": [1, 2.5, null]}},
        {"type": "tool_use", "id": "b", "name": "f", "input": {}, "caller": {"type": "direct"}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": [
          {"type": "text", "text": "rain"}, {"type": "text", "text": "wind"}]},
        {"type": "text", "text": "And?"},
        {"type": "tool_result", "tool_use_id": "b", "is_error": true, "content": "no such town",
         "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": "Go on."}]}])");
  EXPECT_EQ(messages, Json::parse(R"([
    {"role": "system", "content": "Be brief.\nUse tools."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "I look.", "reasoning_content": "Two towns.", "tool_calls": [
      {"id": "a", "type": "function",
       "function": {"name": "f", "arguments": "{\"z\":\"Köln\",\"b\":[1,2.5,null]}"}},
      {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "content": "rain\nwind", "tool_call_id": "a"},
    {"role": "tool", "content": "Error: no such town", "tool_call_id": "b"},
    {"role": "user", "content": "And?\nGo on."}])"));
}

TEST(AnthropicRequestTest, MessagesOfOneRoleThatFollowOneAnotherAreOne) {
  EXPECT_EQ(Messages(R"("messages": [
      {"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c"},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "f", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i"}]},
      {"role": "system", "content": "d"},
      {"role": "user", "content": "e"}])"),
            Json::parse(R"([
      {"role": "user", "content": "a\nb"},
      {"role": "assistant", "content": "c", "tool_calls": [
        {"id": "i", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "content": "", "tool_call_id": "i"},
      {"role": "system", "content": "d"},
      {"role": "user", "content": "e"}])"));
  // A message of calls alone has no content, and the text of an error is not marked twice.
  EXPECT_EQ(Messages(R"("messages": [
      {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "f", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "i", "is_error": true, "content": "error 5"}]}])"),
            Json::parse(R"([
      {"role": "assistant", "content": null, "tool_calls": [
        {"id": "i", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "content": "error 5", "tool_call_id": "i"}])"));
}

TEST(AnthropicRequestTest, TheParametersAreThoseOfOpenAis) {
  const OpenAiRequest request = Parsed(absl::StrCat(
      R"("model": "m", "temperature": 0.5, "top_p": 0.25, "top_k": 7, "stop_sequences": ["x", "y"],
         "stream": true, "metadata": {"user_id": "me"}, "service_tier": "standard_only",
         "speed": "standard", "speculation": false, "mcp_servers": [], "container": null, )",
      kHi));
  EXPECT_EQ(request.generate.model(), "m");
  EXPECT_EQ(request.generate.stop().max_tokens(), 8);
  EXPECT_EQ(request.generate.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.generate.sampling().top_p(), 0.25f);
  EXPECT_EQ(request.generate.sampling().top_k(), 7);
  EXPECT_THAT(request.generate.stop().stop(), ElementsAre("x", "y"));
  EXPECT_EQ(request.generate.tenant(), "me");
  EXPECT_TRUE(request.generate.has_speculation() && !request.generate.speculation());
  EXPECT_TRUE(request.stream);
  EXPECT_FALSE(request.generate.add_special_tokens());
  EXPECT_TRUE(request.generate.has_add_special_tokens());
  EXPECT_TRUE(request.conversation.add_generation_prompt);
  EXPECT_TRUE(request.ignored.empty());
  EXPECT_GT(request.json_bytes, 0);
}

TEST(AnthropicRequestTest, AUsersIdThatIsNoTenantsNameIsOneByItsDigest) {
  const auto tenant = [](const std::string& id) {
    return Parsed(absl::StrCat("\"metadata\": {\"user_id\": \"", id, "\"}, ", kHi))
        .generate.tenant();
  };
  const std::string longest(300, 'a');
  EXPECT_EQ(tenant(longest).size(), 64u);
  EXPECT_EQ(tenant(longest), tenant(longest));
  EXPECT_NE(tenant(longest), tenant(longest + "b"));
  EXPECT_EQ(tenant("é").size(), 64u);
}

TEST(AnthropicRequestTest, ToolsAreFunctions) {
  const std::string tools = absl::StrCat(
      R"("tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "x": null},
                    "cache_control": {"type": "ephemeral"}, "type": "custom", "strict": false,
                    "defer_loading": false, "allowed_callers": ["direct"]}], )",
      kHi);
  OpenAiRequest request = Parsed(tools);
  EXPECT_EQ(Json::parse(json::ToText(request.conversation.tools)), Json::parse(R"([
      {"type": "function", "function": {"name": "f", "description": "d",
                                        "parameters": {"type": "object", "x": null}}}])"));
  EXPECT_TRUE(request.parallel_tool_calls);
  request = Parsed(absl::StrCat(
      R"("tool_choice": {"type": "auto", "disable_parallel_tool_use": true}, )", tools));
  EXPECT_FALSE(request.parallel_tool_calls);
  request = Parsed(absl::StrCat(R"("tool_choice": {"type": "none"}, )", tools));
  EXPECT_TRUE(request.conversation.tools.is_null());
  EXPECT_TRUE(Parsed(absl::StrCat("\"tools\": [], ", kHi)).conversation.tools.is_null());
}

TEST(AnthropicRequestTest, ThinkingIsAVariableOfTheTemplate) {
  const auto variables = [](absl::string_view thinking) {
    return json::ToText(
        Parsed(absl::StrCat("\"thinking\": ", thinking, ", ", kHi)).conversation.variables);
  };
  EXPECT_EQ(variables(R"({"type": "disabled"})"), R"({"enable_thinking":false,"thinking":false})");
  EXPECT_EQ(variables(R"({"type": "adaptive", "display": "summarized"})"),
            R"({"enable_thinking":true,"thinking":true})");
  const OpenAiRequest request = Parsed(absl::StrCat(
      R"("thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, )", kHi));
  EXPECT_THAT(request.ignored, ElementsAre("thinking.budget_tokens", "thinking.display"));
}

TEST(AnthropicRequestTest, AnOutputFormatIsASchema) {
  for (
      const char* const members :
      {R"("output_config": {"effort": null, "format": {"type": "json_schema", "schema": {"a": 1}}})",
       R"("output_format": {"type": "json_schema", "schema": {"a": 1}})"}) {
    EXPECT_EQ(Parsed(absl::StrCat(members, ", ", kHi)).generate.structured_output().json_schema(),
              R"({"a":1})");
  }
}

TEST(AnthropicRequestTest, WhatHasNoEffectIsNamedOnce) {
  const OpenAiRequest request = Parsed(R"(
      "cache_control": {"type": "ephemeral", "ttl": "5m"}, "betas": ["b"],
      "context_management": {"edits": []}, "diagnostics": {"previous_message_id": null},
      "output_config": {"effort": "high"},
      "tools": [{"name": "f", "input_schema": {}, "eager_input_streaming": true,
                 "input_examples": [{}]}],
      "messages": [{"role": "user", "content": [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": "b", "citations": []}]}])");
  EXPECT_THAT(request.ignored, ElementsAre("eager_input_streaming", "input_examples",
                                           "output_config.effort", "cache_control.ttl", "betas",
                                           "context_management", "diagnostics", "citations"));
}

// The line of Claude Code that differs from request to request would end every cached prefix.
TEST(AnthropicRequestTest, TheLineForABillIsNoPartOfThePrompt) {
  const std::string line = "x-anthropic-billing-header: cc_version=2; cch=1f;";
  const auto system = [&](const std::string& json) {
    const Json messages = Messages(absl::StrCat("\"system\": ", json, ", ", kHi));
    return messages.size() == 1 ? "none" : messages[0]["content"].get<std::string>();
  };
  EXPECT_EQ(system(absl::StrCat(R"([{"type": "text", "text": ")", line,
                                R"("}, {"type": "text", "text": "You are"}])")),
            "You are");
  EXPECT_EQ(system(absl::StrCat("\"", line, "\\nYou are\"")), "You are");
  EXPECT_EQ(system(absl::StrCat("\"", line, "\"")), "none");
  EXPECT_EQ(system(absl::StrCat("\"About ", line, "\"")), "About " + line);
  EXPECT_THAT(Parsed(absl::StrCat("\"system\": \"", line, "\", ", kHi)).ignored,
              ElementsAre("x-anthropic-billing-header"));
}

TEST(AnthropicRequestTest, WhatIsNotHonouredIsRefusedByName) {
  const auto of_block = [](const std::string& role, const std::string& block) {
    return absl::StrCat(R"("messages": [{"role": ")", role, R"(", "content": [)", block, "]}]");
  };
  const auto with = [](const std::string& members) { return absl::StrCat(members, ", ", kHi); };
  const struct {
    std::string members, refusal;
  } cases[] = {
      {of_block("user", R"({"type": "image", "source": {}})"),
       "UNSUPPORTED_FIELD messages[0].content[0].type"},
      {of_block("user", R"({"type": "document", "source": {}})"),
       "UNSUPPORTED_FIELD messages[0].content[0].type"},
      {of_block("user", R"({"type": "tool_use", "id": "i", "name": "f", "input": {}})"),
       "UNSUPPORTED_FIELD messages[0].content[0].type"},
      {of_block("assistant", R"({"type": "server_tool_use", "id": "i"})"),
       "UNSUPPORTED_FIELD messages[0].content[0].type"},
      {of_block("user", R"({"type": "text"})"), "MISSING_FIELD messages[0].content[0].text"},
      {of_block("user", R"({"type": "text", "text": 5})"),
       "WRONG_TYPE messages[0].content[0].text"},
      {of_block("user", R"({"text": "x"})"), "WRONG_TYPE messages[0].content[0]"},
      {of_block("user", R"("x")"), "WRONG_TYPE messages[0].content[0]"},
      {of_block("user", R"({"type": "text", "text": "x", "bold": true})"),
       "UNKNOWN_FIELD messages[0].content[0].bold"},
      {of_block("user", R"({"type": "tool_result", "content": "x"})"),
       "MISSING_FIELD messages[0].content[0].tool_use_id"},
      {of_block("user", R"({"type": "tool_result", "tool_use_id": "i",
                            "content": [{"type": "image"}]})"),
       "UNSUPPORTED_FIELD messages[0].content[0].content[0].type"},
      {of_block("assistant", R"({"type": "tool_use", "id": "i", "name": "f", "input": "{}"})"),
       "WRONG_TYPE messages[0].content[0].input"},
      {of_block("assistant", R"({"type": "tool_use", "id": "i", "name": "f", "input": {},
                                 "caller": {"type": "code_execution_20250825"}})"),
       "UNSUPPORTED_FIELD messages[0].content[0].caller.type"},
      {of_block("user", R"({"type": "text", "text": "x", "cache_control": {"type": "forever"}})"),
       "UNSUPPORTED_FIELD messages[0].content[0].cache_control.type"},
      {R"("messages": [{"role": "tool", "content": "x"}])", "UNSUPPORTED_FIELD messages[0].role"},
      {R"("messages": [{"role": "user"}])", "MISSING_FIELD messages[0].content"},
      {R"("messages": [{"role": "user", "content": "x", "name": "n"}])",
       "UNKNOWN_FIELD messages[0].name"},
      {R"("messages": ["x"])", "WRONG_TYPE messages[0]"},
      {R"("messages": [])", "WRONG_TYPE messages"},
      // The model is not made to go on with it.
      {R"("messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])",
       "UNSUPPORTED_FIELD messages"},
      {R"("model": "m")", "MISSING_FIELD messages"},
      {with(R"("prompt": "x")"), "UNKNOWN_FIELD prompt"},
      {with(R"("n": 2)"), "UNKNOWN_FIELD n"},
      {with(R"("container": "c")"), "UNSUPPORTED_FIELD container"},
      {with(R"("thread": {"type": "create"})"), "UNSUPPORTED_FIELD thread"},
      {with(R"("inference_geo": "eu")"), "UNSUPPORTED_FIELD inference_geo"},
      {with(R"("mcp_servers": [{"url": "u"}])"), "UNSUPPORTED_FIELD mcp_servers"},
      {with(R"("speed": "fast")"), "UNSUPPORTED_FIELD speed"},
      {with(R"("service_tier": "priority")"), "UNSUPPORTED_FIELD service_tier"},
      {with(R"("metadata": {"user": "me"})"), "UNKNOWN_FIELD metadata.user"},
      {with(R"("thinking": {"type": "between_tools"})"), "UNSUPPORTED_FIELD thinking.type"},
      {with(R"("output_config": {"format": {"type": "xml"}})"),
       "UNSUPPORTED_FIELD output_config.format.type"},
      {with(R"("system": [{"type": "image"}])"), "UNSUPPORTED_FIELD system[0].type"},
      {with(R"("tools": [{"type": "web_search_20250305", "name": "web_search"}])"),
       "UNSUPPORTED_FIELD tools[0].type"},
      {with(R"("tools": [{"name": "f"}])"), "MISSING_FIELD tools[0].input_schema"},
      {with(R"("tools": [{"input_schema": {}}])"), "MISSING_FIELD tools[0].name"},
      {with(R"("tools": [{"name": "", "input_schema": {}}])"), "OUT_OF_RANGE tools[0].name"},
      {with(R"("tools": [{"name": "f", "input_schema": {}, "defer_loading": true}])"),
       "UNSUPPORTED_FIELD tools[0].defer_loading"},
      {with(R"("tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["x"]}])"),
       "UNSUPPORTED_FIELD tools[0].allowed_callers"},
      {with(R"("tool_choice": "auto")"), "WRONG_TYPE tool_choice"},
      {with(R"("tool_choice": {"type": "some"})"), "UNSUPPORTED_FIELD tool_choice.type"},
      {with(R"("tool_choice": {"type": "tool"})"), "MISSING_FIELD tool_choice.name"},
      {with(R"("tool_choice": {"type": "auto", "name": "f"})"),
       "UNSUPPORTED_FIELD tool_choice.name"},
  };
  for (const auto& c : cases) EXPECT_EQ(Refusal(c.members), c.refusal) << c.members;
  EXPECT_EQ(ErrorField(ParseAnthropic(absl::StrCat("{", kHi, "}")).status()), "max_tokens");
  EXPECT_EQ(ErrorReason(ParseAnthropic(absl::StrCat("{\"max_tokens\": 0, ", kHi, "}")).status()),
            "OUT_OF_RANGE");
  EXPECT_EQ(ErrorReason(ParseAnthropic("[]").status()), "MALFORMED_JSON");
  // The message begins with the client's name of the field.
  EXPECT_THAT(ParseAnthropic(
                  absl::StrCat(R"({"max_tokens": 8, "tools": [{"name": "", "input_schema": {}}], )",
                               kHi, "}"))
                  .status()
                  .message(),
              HasSubstr("tools[0].name: "));
}

TEST(AnthropicRequestTest, ACountHasNoFieldsOfAnAnswer) {
  const auto count = [](absl::string_view members) {
    return ParseAnthropicCount(absl::StrCat("{", members, "}"));
  };
  EXPECT_TRUE(count(kHi).ok());
  EXPECT_EQ(ErrorField(count(absl::StrCat("\"max_tokens\": 8, ", kHi)).status()), "max_tokens");
  EXPECT_EQ(ErrorField(count(absl::StrCat("\"speculation\": false, ", kHi)).status()),
            "speculation");
  const auto begun = count(R"("messages": [{"role": "user", "content": "x"},
                                           {"role": "assistant", "content": "y"}])");
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_FALSE(begun->conversation.add_generation_prompt);
}

}  // namespace
}  // namespace baton::router
