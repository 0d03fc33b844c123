#include "router/http/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "router/http/body_reader.h"
#include "router/http/openai_response_format.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

OpenAiRequest Completion(absl::string_view body) {
  auto request = ParseCompletion(body);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? *std::move(request) : OpenAiRequest();
}

OpenAiRequest Chat(absl::string_view more) {
  auto request =
      ParseChat(absl::StrCat(R"({"messages": [{"role": "user", "content": "hi"}])", more, "}"));
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? *std::move(request) : OpenAiRequest();
}

TEST(OpenAiRequestTest, APromptIsTextOrTokensOrAListOfThem) {
  const auto prompts = [](const std::string& json) {
    return Completion("{\"prompt\": " + json + "}").prompts;
  };
  EXPECT_EQ(prompts(R"("a b")")[0].text(), "a b");
  EXPECT_EQ(prompts(R"(["a b"])")[0].text(), "a b");
  EXPECT_THAT(prompts("[1, 2]")[0].token_ids().ids(), ElementsAre(1, 2));
  EXPECT_THAT(prompts("[[1, 2]]")[0].token_ids().ids(), ElementsAre(1, 2));
  const auto several = prompts(R"(["a", "b", [3]])");
  ASSERT_EQ(several.size(), 3u);
  EXPECT_EQ(several[1].text(), "b");
  EXPECT_THAT(several[2].token_ids().ids(), ElementsAre(3));
  std::string most = "[\"x\"";
  for (size_t i = 1; i < kMaxPrompts; ++i) most += ", \"x\"";
  EXPECT_EQ(prompts(most + "]").size(), kMaxPrompts);
  EXPECT_EQ(ErrorReason(ParseCompletion("{\"prompt\": " + most + ", \"x\"]}").status()),
            "OUT_OF_RANGE");
}

// Ids never become JSON values, of which a body has few.
TEST(OpenAiRequestTest, ThePromptsOfAMillionIdsAreRead) {
  std::string ids = "[[0";
  for (int i = 1; i < 1 << 20; ++i) ids += ",0";
  const OpenAiRequest request =
      Completion("{\"prompt\": " + ids + "], \"b\", [1.0, 2e0]], \"n\": 1}");
  ASSERT_EQ(request.prompts.size(), 3u);
  EXPECT_EQ(request.prompts[0].token_ids().ids_size(), 1 << 20);
  EXPECT_EQ(request.prompts[1].text(), "b");
  EXPECT_THAT(request.prompts[2].token_ids().ids(), ElementsAre(1, 2));
  EXPECT_LT(request.json_bytes, 10'000);
}

// A body is refused where an unknown field begins: what follows is neither checked nor kept.
TEST(OpenAiRequestTest, AnUnknownFieldEndsTheReadingWhereItBegins) {
  const auto refused = [](const std::string& body, const std::string& field) {
    const absl::Status status = ParseChat(body).status();
    EXPECT_EQ(ErrorReason(status), "UNKNOWN_FIELD") << status;
    EXPECT_EQ(ErrorField(status), field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  refused(R"({"messages": [{"role": "user", "content": "a"}, {"role": "user", "z": [0, nonsense)",
          "messages[1].z");
  refused(R"({"messages": [{"z": {)", "messages[0].z");
  refused(R"({"messages": [{"z": 1)", "messages[0].z");
  refused(R"({"z": [0, nonsense)", "z");
  refused(R"({"prompt": [0, nonsense)", "prompt");
  std::string zeros = "[0";
  for (size_t i = 0; i < kMaxBodyValues; ++i) zeros += ",0";
  for (const char* field : {"tools", "chat_template_kwargs", "stop", "model"}) {
    const absl::Status status =
        ParseChat(absl::StrCat("{\"", field, "\": ", zeros, ", nonsense")).status();
    EXPECT_EQ(ErrorReason(status), "OUT_OF_RANGE") << status;
    EXPECT_EQ(ErrorField(status), field);
  }
}

TEST(OpenAiRequestTest, MessagesHaveTheFieldsThatTemplatesRead) {
  auto request = ParseChat(R"({"messages": [{"role": "assistant", "content": "x", "name": "n",
      "refusal": "r", "reasoning": "a", "reasoning_content": "b", "thinking": "c"}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->conversation.messages.items[0].Find("thinking")->scalar.text, "c");
}

TEST(OpenAiRequestTest, ReasoningFields) {
  auto request = ParseChat(R"({"messages": [{"role": "user", "content": "x"}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->include_reasoning);
  EXPECT_EQ(request->reasoning_effort, "");
  request = ParseChat(R"({"messages": [{"role": "user", "content": "x"}],
      "include_reasoning": false, "reasoning_effort": "xhigh"})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_FALSE(request->include_reasoning);
  EXPECT_EQ(request->reasoning_effort, "xhigh");
}

TEST(OpenAiRequestTest, AWholeNumberMayHaveAFraction) {
  const OpenAiRequest request = Completion(R"({"prompt": "p", "max_tokens": 16.0, "top_k": 1e1,
      "n": 2.0, "seed": -7.0, "stop_token_ids": [3.0], "retention": {"ttl_ms": 5.0, "priority": 1.0},
      "truncation": {"keep_last": 8.0}, "logprobs": 2.0, "best_of": 2.0, "min_tokens": 0.0})");
  EXPECT_EQ(request.generate.stop().max_tokens(), 16);
  EXPECT_EQ(request.generate.sampling().top_k(), 10);
  EXPECT_EQ(request.generate.sampling().seed(), ~uint64_t{6});
  EXPECT_THAT(request.generate.stop().stop_token_ids(), ElementsAre(3));
  EXPECT_EQ(request.generate.retention().ttl_ms(), 5);
  EXPECT_EQ(request.generate.truncation().keep_last(), 8);
  EXPECT_EQ(request.generate.logprobs(), 2);
  EXPECT_EQ(Chat(R"(, "logprobs": true, "top_logprobs": 3.0, "max_completion_tokens": 5.0)")
                .generate.stop()
                .max_tokens(),
            5);
}

TEST(OpenAiRequestTest, ANullIsAbsentAtAnyDepth) {
  const OpenAiRequest request = Completion(R"({"prompt": "p", "max_tokens": null, "stop": null,
      "retention": {"ttl_ms": null, "priority": null, "until_token": 3, "other": null},
      "truncation": {"keep_first": null}, "logit_bias": {"5": null, "6": 1},
      "stream_options": {"include_usage": null}, "logprobs": null, "echo": null,
      "response_format": {"type": "json_schema", "json_schema": {"name": null, "description": null,
          "strict": null, "schema": {"const": null}}},
      "structured_outputs": null, "what no field is": null})");
  EXPECT_EQ(request.generate.retention().until_token(), 3);
  EXPECT_EQ(request.generate.retention().ttl_ms(), 0);
  EXPECT_EQ(request.generate.sampling().logit_bias().size(), 1u);
  EXPECT_EQ(request.generate.structured_output().json_schema(), R"({"const":null})");
  EXPECT_EQ(Completion(R"({"prompt": "p", "structured_outputs": {"json": null, "regex": "a"}})")
                .generate.structured_output()
                .regex(),
            "a");
  EXPECT_EQ(
      Completion(R"({"prompt": "p", "response_format": {"type": "text", "json_schema": null}})")
          .generate.has_structured_output(),
      false);
  auto chat = ParseChat(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a",
      "cache_control": null}]}, {"role": "assistant", "content": null, "z": null, "name": null,
      "tool_calls": [{"id": null, "type": null, "index": null, "function": {"name": "f",
      "arguments": {"x": null}, "z": null}}]}], "max_completion_tokens": null,
      "tools": [{"type": null, "function": {"name": "f", "description": null, "strict": null,
      "parameters": {"default": null}}}], "chat_template_kwargs": {"v": null}})");
  ASSERT_TRUE(chat.ok()) << chat.status();
  const chat::Conversation& conversation = chat->conversation;
  EXPECT_EQ(json::CanonicalText(conversation.messages.items[1]),
            R"({"content":null,"role":"assistant","tool_calls":[{"function":)"
            R"({"arguments":{"x":null,},"name":"f",},},],})");
  EXPECT_EQ(json::CanonicalText(conversation.tools),
            R"([{"function":{"name":"f","parameters":{"default":null,},},},])");
  EXPECT_EQ(json::CanonicalText(conversation.variables), R"({"v":null,})")
      << "a document of the client's";
}

TEST(OpenAiRequestTest, EchoAsksForThePromptsLogprobsIfTheAnswersAreWanted) {
  EXPECT_FALSE(Completion(R"({"prompt": "p", "logprobs": 2})").generate.has_prompt_logprobs());
  const OpenAiRequest echo = Completion(R"({"prompt": "p", "echo": true})");
  EXPECT_TRUE(echo.echo);
  EXPECT_FALSE(echo.generate.has_prompt_logprobs());
  EXPECT_EQ(
      Completion(R"({"prompt": "p", "echo": true, "logprobs": 2})").generate.prompt_logprobs(), 2);
  EXPECT_EQ(Completion(R"({"prompt": "p", "best_of": 2, "n": 2})").generate.n(), 2);
}

TEST(OpenAiRequestTest, APromptIsScoredWithoutAnAnswer) {
  const v1::GenerateRequest scored =
      Completion(R"({"prompt": "p", "echo": true, "max_tokens": 0, "logprobs": 2})").generate;
  EXPECT_TRUE(scored.stop().has_max_tokens());
  EXPECT_EQ(scored.stop().max_tokens(), 0);
  EXPECT_EQ(scored.prompt_logprobs(), 2);
  const v1::GenerateRequest text =
      Completion(R"({"prompt": "p", "echo": true, "max_tokens": 0})").generate;
  EXPECT_TRUE(text.has_prompt_logprobs()) << "without them, max_tokens is 1 or more";
  EXPECT_FALSE(text.has_logprobs());
}

TEST(OpenAiRequestTest, TruncationIsAnExtension) {
  const v1::Truncation truncation =
      Completion(R"({"prompt": "p", "truncation": {"keep_first": 4, "keep_last": 8,
                     "retention_ratio": 0.5}})")
          .generate.truncation();
  EXPECT_EQ(truncation.keep_first(), 4);
  EXPECT_EQ(truncation.keep_last(), 8);
  EXPECT_EQ(truncation.retention_ratio(), 0.5f);
  EXPECT_TRUE(Chat(R"(, "truncation": {})").generate.has_truncation());
  const struct {
    const char* truncation;
    const char* reason;
  } bad[] = {{R"("auto")", "WRONG_TYPE"},
             {R"({"keep": 1})", "UNKNOWN_FIELD"},
             {R"({"keep_last": "1"})", "WRONG_TYPE"},
             {R"({"keep_last": 1})", "NOT_WITH_MESSAGES"}};
  for (const auto& [json, reason] : bad) {
    const absl::Status status =
        ParseChat(
            absl::StrCat(R"({"messages": [{"role": "user", "content": "hi"}], "truncation": )",
                         json, "}"))
            .status();
    EXPECT_EQ(ErrorReason(status), reason) << json;
  }
}

TEST(OpenAiRequestTest, ToolsAreKeptUnlessNoneMayBeCalled) {
  const std::string tools =
      R"(, "tools": [{"type": "function", "function": {"name": "f", "strict": false}}])";
  EXPECT_EQ(Chat(tools).conversation.tools.items.size(), 1u);
  EXPECT_EQ(Chat(tools + R"(, "tool_choice": "auto")").conversation.tools.items.size(), 1u);
  EXPECT_TRUE(Chat(R"(, "tool_choice": "none")" + tools).conversation.tools.is_null());
  EXPECT_TRUE(Chat(R"(, "tools": [])").conversation.tools.is_null());
  EXPECT_TRUE(Chat("").parallel_tool_calls);
  EXPECT_FALSE(Chat(R"(, "parallel_tool_calls": false)").parallel_tool_calls);
}

TEST(OpenAiRequestTest, NullsOfMessagesAreAbsent) {
  auto request = ParseChat(R"({"messages": [{"role": "assistant", "content": null,
      "refusal": null, "tool_calls": [{"id": "a", "type": "function",
      "function": {"name": "f", "arguments": "{}"}}], "audio": null}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->conversation.messages.items[0].keys,
              ElementsAre("role", "content", "tool_calls"));
}

TEST(OpenAiRequestTest, EveryFieldArrives) {
  const OpenAiRequest request = Completion(R"({
      "model": "m", "prompt": "p", "stream": true,
      "stream_options": {"include_usage": true, "continuous_usage_stats": true},
      "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5,
      "frequency_penalty": -1, "presence_penalty": 2, "seed": -1, "logit_bias": {"5": -100},
      "stop": ["x", "y"], "stop_token_ids": [3], "ignore_eos": true, "max_tokens": 9,
      "min_tokens": 2, "n": 3, "user": "u", "cache_salt": "s", "add_special_tokens": false,
      "split_special_tokens": true,
      "retention": {"until_token": 5, "priority": 7, "ttl_ms": 86400000000}, "explain_cache": true,
      "speculation": false,
      "skip_special_tokens": true, "include_stop_str_in_output": false, "logprobs": 4,
      "best_of": 1, "suffix": "", "echo": false, "response_format": {"type": "text"}})");
  EXPECT_TRUE(request.stream && request.include_usage && request.continuous_usage);
  const v1::GenerateRequest& g = request.generate;
  EXPECT_EQ(g.model(), "m");
  EXPECT_FLOAT_EQ(g.sampling().temperature(), 0.5);
  EXPECT_FLOAT_EQ(g.sampling().top_p(), 0.25);
  EXPECT_EQ(g.sampling().top_k(), 7);
  EXPECT_FLOAT_EQ(g.sampling().min_p(), 0.125);
  EXPECT_FLOAT_EQ(g.sampling().repetition_penalty(), 1.5);
  EXPECT_FLOAT_EQ(g.sampling().frequency_penalty(), -1);
  EXPECT_FLOAT_EQ(g.sampling().presence_penalty(), 2);
  EXPECT_EQ(g.sampling().seed(), ~uint64_t{0});
  EXPECT_FLOAT_EQ(g.sampling().logit_bias().at(5), -100);
  EXPECT_THAT(g.stop().stop(), ElementsAre("x", "y"));
  EXPECT_THAT(g.stop().stop_token_ids(), ElementsAre(3));
  EXPECT_TRUE(g.stop().ignore_eos());
  EXPECT_EQ(g.stop().max_tokens(), 9);
  EXPECT_EQ(g.stop().min_tokens(), 2);
  EXPECT_EQ(g.n(), 3);
  EXPECT_EQ(g.tenant(), "u");
  EXPECT_EQ(g.cache_salt(), "s");
  EXPECT_EQ(g.retention().until_token(), 5);
  EXPECT_EQ(g.retention().priority(), 7);
  EXPECT_EQ(g.retention().ttl_ms(), 86'400'000'000);
  EXPECT_TRUE(g.explain_cache());
  EXPECT_TRUE(g.has_speculation() && !g.speculation());
  EXPECT_TRUE(g.has_add_special_tokens() && !g.add_special_tokens());
  EXPECT_TRUE(g.split_special_tokens());
  EXPECT_EQ(g.logprobs(), 4);
  EXPECT_TRUE(g.return_token_ids());
}

TEST(OpenAiRequestTest, StructuredOutput) {
  const auto structured = [](const std::string& fields) {
    return Completion(R"({"prompt": "p", )" + fields + "}").generate.structured_output();
  };
  EXPECT_TRUE(structured(R"("response_format": {"type": "json_object"})").has_json_object());
  EXPECT_EQ(structured(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n",
                "strict": true, "schema": {"z": {"b": [1, 2.5, null, true]}, "a": "\""}}})")
                .json_schema(),
            R"({"z":{"b":[1,2.5,null,true]},"a":"\""})");
  EXPECT_EQ(structured(R"("structured_outputs": {"regex": "a+"})").regex(), "a+");
  EXPECT_EQ(structured(R"("structured_outputs": {"json": "{}"})").json_schema(), "{}");
  EXPECT_THAT(structured(R"("structured_outputs": {"choice": ["a", "b"]})").choices().texts(),
              ElementsAre("a", "b"));
  EXPECT_EQ(structured(R"("guided_regex": "a+")").regex(), "a+");
  EXPECT_EQ(structured(R"("guided_json": {"type": "null"})").json_schema(), R"({"type":"null"})");
  EXPECT_THAT(structured(R"("guided_choice": ["a", "b"])").choices().texts(),
              ElementsAre("a", "b"));
  EXPECT_FALSE(Completion(R"({"prompt": "p", "response_format": {"type": "text"}})")
                   .generate.has_structured_output());
}

TEST(OpenAiRequestTest, AnyWhiteSpaceIsOfWhatIsConstrained) {
  for (const char* const asked :
       {R"("response_format": {"type": "json_object"})", R"("guided_json": {"type": "null"})"}) {
    OpenAiRequest request =
        Completion(absl::StrCat(R"({"prompt": "p", "any_whitespace": true, )", asked, "}"));
    EXPECT_FALSE(request.generate.structured_output().any_whitespace());
    SettleAnyWhitespace(request);
    EXPECT_TRUE(request.generate.structured_output().any_whitespace());
    EXPECT_THAT(request.ignored, ElementsAre());
  }
  OpenAiRequest nothing = Completion(R"({"prompt": "p", "any_whitespace": true})");
  SettleAnyWhitespace(nothing);
  EXPECT_FALSE(nothing.generate.has_structured_output());
  EXPECT_THAT(nothing.ignored, ElementsAre("any_whitespace"));
}

TEST(OpenAiRequestTest, DefaultsAreOpenAis) {
  const OpenAiRequest completion = Completion(R"({"prompt": "p", "temperature": null})");
  EXPECT_FALSE(completion.generate.stop().has_max_tokens()) << "16 of them, if there is room";
  EXPECT_FALSE(completion.generate.sampling().has_temperature());
  const OpenAiRequest chat = Chat("");
  EXPECT_FALSE(chat.generate.stop().has_max_tokens());
  EXPECT_FALSE(chat.generate.has_logprobs());
  EXPECT_FALSE(chat.generate.has_speculation());
  EXPECT_FALSE(chat.generate.has_split_special_tokens());
  EXPECT_FALSE(completion.generate.has_split_special_tokens());
  EXPECT_TRUE(Chat(R"(, "split_special_tokens": false)").generate.has_split_special_tokens());
  // The template writes them.
  EXPECT_TRUE(chat.generate.has_add_special_tokens() && !chat.generate.add_special_tokens());
}

TEST(OpenAiRequestTest, ChatsNewerNamesWinWhateverTheirOrder) {
  EXPECT_EQ(Chat(R"(, "max_completion_tokens": 5, "max_tokens": 7)").generate.stop().max_tokens(),
            5);
  EXPECT_EQ(Chat(R"(, "max_tokens": 7, "max_completion_tokens": 5)").generate.stop().max_tokens(),
            5);
  EXPECT_EQ(Chat(R"(, "logprobs": true)").generate.logprobs(), 0);
  EXPECT_EQ(Chat(R"(, "top_logprobs": 3, "logprobs": true)").generate.logprobs(), 3);
}

TEST(OpenAiRequestTest, PartsOfTextAreJoined) {
  auto request = ParseChat(R"({"messages": [{"role": "user", "content": [
      {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->conversation.messages.items[0].Find("content")->scalar.text, "a\nb");
}

TEST(OpenAiRequestTest, FieldsWithoutEffectAreNamed) {
  const OpenAiRequest chat = Chat(R"(, "metadata": {"a": "b", "c": null}, "store": true,
      "verbosity": "low", "prediction": {"type": "content", "content": "x"}, "functions": [],
      "function_call": "none", "service_tier": "flex", "top_logprobs": 0,
      "stream_options": {"include_usage": true, "include_obfuscation": true})");
  EXPECT_THAT(chat.ignored,
              ElementsAre("metadata", "store", "verbosity", "prediction", "functions",
                          "function_call", "service_tier", "stream_options.include_obfuscation",
                          "stream_options", "top_logprobs"));
  EXPECT_FALSE(chat.include_usage);
  EXPECT_FALSE(chat.generate.has_logprobs());
  const OpenAiRequest nothing_new = Chat(R"(, "store": false, "service_tier": "auto",
      "prompt_cache_key": "k", "safety_identifier": "s", "logprobs": true, "top_logprobs": 0,
      "stream": true, "stream_options": {"include_usage": true})");
  EXPECT_TRUE(nothing_new.ignored.empty());
  EXPECT_TRUE(nothing_new.include_usage);
  EXPECT_EQ(nothing_new.generate.logprobs(), 0);
}

struct Bad {
  const char* body;
  const char* reason;
  const char* field;
};

template <class Parse>
void ExpectRefused(Parse parse, const std::vector<Bad>& cases) {
  for (const Bad& bad : cases) {
    const absl::Status status = parse(bad.body).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.body << status;
    EXPECT_EQ(ErrorReason(status), bad.reason) << bad.body;
    EXPECT_EQ(ErrorField(status), bad.field) << bad.body;
  }
}

TEST(OpenAiRequestTest, WhatIsNotHonouredIsRefusedByName) {
  ExpectRefused(
      ParseCompletion,
      {{"", "MALFORMED_JSON", ""},
       {"[]", "MALFORMED_JSON", ""},
       {R"({"prompt": "a", "prompt": "b"})", "MALFORMED_JSON", ""},
       {"{}", "MISSING_FIELD", "prompt"},
       {R"({"prompt": null})", "MISSING_FIELD", "prompt"},
       {R"({"prompt": ""  , "what": 0})", "UNKNOWN_FIELD", "what"},
       {R"({"prompt": 5})", "WRONG_TYPE", "prompt"},
       {R"({"prompt": [["a"]]})", "WRONG_TYPE", "prompt[0]"},
       {R"({"prompt": ["a", []]})", "WRONG_TYPE", "prompt[1]"},
       {R"({"prompt": [1, "a"]})", "WRONG_TYPE", "prompt"},
       {R"({"prompt": [4294967296]})", "OUT_OF_RANGE", "prompt"},
       {R"({"prompt": "p", "echo": 1})", "WRONG_TYPE", "echo"},
       {R"({"prompt": "p", "speculation": "off"})", "WRONG_TYPE", "speculation"},
       {R"({"prompt": "p", "suffix": "s"})", "UNSUPPORTED_FIELD", "suffix"},
       {R"({"prompt": "p", "best_of": 2})", "UNSUPPORTED_FIELD", "best_of"},
       {R"({"prompt": "p", "temperature": "hot"})", "WRONG_TYPE", "temperature"},
       {R"({"prompt": "p", "retention": 1})", "WRONG_TYPE", "retention"},
       {R"({"prompt": "p", "retention": {"ttl": 1}})", "UNSUPPORTED_FIELD", "retention.ttl"},
       {R"({"prompt": "p", "retention": {"priority": 1.5}})", "WRONG_TYPE", "retention.priority"},
       {R"({"prompt": "p", "temperature": 1e300})", "OUT_OF_RANGE", "temperature"},
       {R"({"prompt": "p", "max_tokens": 1.5})", "WRONG_TYPE", "max_tokens"},
       {R"({"prompt": "p", "stop": [1]})", "WRONG_TYPE", "stop"},
       {R"({"prompt": "p", "logit_bias": {"a": 1}})", "WRONG_TYPE", "logit_bias[\"a\"]"},
       {R"({"prompt": "p", "logit_bias": {"+5": 1}})", "WRONG_TYPE", "logit_bias[\"+5\"]"},
       {R"({"prompt": "p", "logit_bias": {" 5": 1}})", "WRONG_TYPE", "logit_bias[\" 5\"]"},
       {R"({"prompt": "p", "logit_bias": {"5 ": 1}})", "WRONG_TYPE", "logit_bias[\"5 \"]"},
       {R"({"prompt": "p", "logit_bias": {"05": 1}})", "WRONG_TYPE", "logit_bias[\"05\"]"},
       {R"({"prompt": "p", "logit_bias": {"-0": 1}})", "WRONG_TYPE", "logit_bias[\"-0\"]"},
       {R"({"prompt": "p", "logit_bias": {"5.0": 1}})", "WRONG_TYPE", "logit_bias[\"5.0\"]"},
       {R"({"prompt": "p", "logit_bias": {"": 1}})", "WRONG_TYPE", "logit_bias[\"\"]"},
       {R"({"prompt": "p", "logit_bias": {"2147483648": 1}})", "WRONG_TYPE",
        "logit_bias[\"2147483648\"]"},
       {R"({"prompt": "p", "logit_bias": {"5": 1, "\u0035": 2}})", "MALFORMED_JSON", ""},
       {R"({"prompt": "p", "max_tokens": 0})", "OUT_OF_RANGE", "max_tokens"},
       {R"({"prompt": "p", "max_tokens": 16.5})", "WRONG_TYPE", "max_tokens"},
       {R"({"prompt": "p", "max_tokens": "16"})", "WRONG_TYPE", "max_tokens"},
       {R"({"prompt": "p", "max_tokens": 1e300})", "OUT_OF_RANGE", "max_tokens"},
       {R"({"prompt": "p", "seed": 9223372036854775808})", "OUT_OF_RANGE", "seed"},
       {R"({"prompt": [1.5]})", "WRONG_TYPE", "prompt"},
       {R"({"prompt": [1, [2]]})", "WRONG_TYPE", "prompt"},
       {R"({"prompt": [1, null]})", "WRONG_TYPE", "prompt"},
       {R"({"prompt": [null]})", "WRONG_TYPE", "prompt[0]"},
       {R"({"prompt": ["a", 1]})", "WRONG_TYPE", "prompt[1]"},
       {R"({"prompt": ["a", {}]})", "WRONG_TYPE", "prompt[1]"},
       {R"({"prompt": [[1], [[2]]]})", "WRONG_TYPE", "prompt[1]"},
       {R"({"prompt": []})", "WRONG_TYPE", "prompt"},
       {R"({"prompt": {}})", "WRONG_TYPE", "prompt"},
       {"5", "MALFORMED_JSON", ""},
       {R"({"prompt": "p", "stream": true, "stream_options": {"x": true}})", "UNKNOWN_FIELD",
        "stream_options.x"},
       {R"({"prompt": "p", "response_format": {"type": "xml"}})", "UNSUPPORTED_FIELD",
        "response_format.type"},
       {R"({"prompt": "p", "response_format": {"type": "json_schema"}})", "WRONG_TYPE",
        "response_format.json_schema"},
       {R"({"prompt": "p", "response_format": {"type": "json_schema", "json_schema":
                      {"name": "n"}}})",
        "WRONG_TYPE", "response_format.json_schema.schema"},
       {R"({"prompt": "p", "response_format": {"type": "json_object", "x": 1}})", "UNKNOWN_FIELD",
        "response_format.x"},
       {R"({"prompt": "p", "structured_outputs": {"grammar": "g"}})", "UNSUPPORTED_FIELD",
        "structured_outputs.grammar"},
       {R"({"prompt": "p", "structured_outputs": {"choice": [1]}})", "WRONG_TYPE",
        "structured_outputs.choice"},
       {R"({"prompt": "p", "guided_regex": ["a"]})", "WRONG_TYPE", "guided_regex"},
       {R"({"prompt": "p", "guided_json": 1})", "WRONG_TYPE", "guided_json"},
       {R"({"prompt": "p", "guided_choice": [1]})", "WRONG_TYPE", "guided_choice"},
       {R"({"prompt": "p", "guided_grammar": "g"})", "UNKNOWN_FIELD", "guided_grammar"},
       {R"({"prompt": "p", "guided_regex": "a", "guided_choice": ["a"]})",
        "NOT_WITH_STRUCTURED_OUTPUT", "guided_choice"},
       {R"({"prompt": "p", "structured_outputs": {"regex": "a"},
                      "response_format": {"type": "json_object"}})",
        "NOT_WITH_STRUCTURED_OUTPUT", "response_format"}});
  ExpectRefused(
      ParseChat,
      {{"{}", "MISSING_FIELD", "messages"},
       {R"({"messages": []})", "WRONG_TYPE", "messages"},
       {R"({"messages": [{}]})", "WRONG_TYPE", "messages[0]"},
       {R"({"messages": [{"role": "user", "content": 5}]})", "WRONG_TYPE", "messages[0].content"},
       {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
        "UNSUPPORTED_FIELD", "messages[0].content[0].type"},
       {R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "z": 1}]}]})",
        "UNKNOWN_FIELD", "messages[0].content[0].z"},
       {R"({"messages": [{"role": "user", "content": "x", "name": 1}]})", "WRONG_TYPE",
        "messages[0].name"},
       {R"({"messages": [{"role": null, "content": "x"}]})", "WRONG_TYPE", "messages[0]"},
       {R"({"messages": [{"role": "assistant", "tool_calls": [{"z": 1, "function": {"name": "f",
            "arguments": "{}"}}]}]})",
        "UNKNOWN_FIELD", "messages[0].tool_calls[0].z"},
       {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "z": 1,
            "arguments": "{}"}}]}]})",
        "UNKNOWN_FIELD", "messages[0].tool_calls[0].function.z"},
       {R"({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 5,
            "max_tokens": "garbage"})",
        "WRONG_TYPE", "max_tokens"},
       {R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": {},
            "max_completion_tokens": 5})",
        "WRONG_TYPE", "max_tokens"},
       {R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": -1,
            "max_completion_tokens": 5})",
        "OUT_OF_RANGE", "max_tokens"},
       {R"({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 0,
            "max_tokens": 5})",
        "OUT_OF_RANGE", "max_completion_tokens"},
       {R"({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2})",
        "ONLY_WITH_LOGPROBS", "top_logprobs"},
       {R"({"messages": [{"role": "user", "content": "x"}], "tools": [{}]})", "WRONG_TYPE",
        "tools[0]"},
       {R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {}}]})",
        "MISSING_FIELD", "tools[0].function.name"},
       {R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "custom"}]})",
        "UNSUPPORTED_FIELD", "tools[0].type"},
       {R"({"messages": [{"role": "user", "content": "x"}],
            "tools": [{"function": {"name": "f", "strict": 1}}]})",
        "WRONG_TYPE", "tools[0].function.strict"},
       {R"({"messages": [{"role": "user", "content": "x"}], "tool_choice": "always"})",
        "UNSUPPORTED_FIELD", "tool_choice"},
       {R"({"messages": [{"role": "user", "content": "x"}],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}})",
        "UNSUPPORTED_FIELD", "tool_choice.type"},
       {R"({"messages": [{"role": "user", "content": "x"}],
            "tool_choice": {"type": "function", "function": {}}})",
        "MISSING_FIELD", "tool_choice.function.name"},
       {R"({"messages": [{"role": "user", "content": "x"}],
            "tool_choice": {"type": "function", "function": {"name": "f", "z": 1}}})",
        "UNKNOWN_FIELD", "tool_choice.function.z"},
       {R"({"messages": [{"role": "user", "content": "x"}], "tool_choice": 1})", "WRONG_TYPE",
        "tool_choice"},
       {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]})",
        "MISSING_FIELD", "messages[0].tool_calls[0].function.arguments"},
       {R"({"messages": [{"role": "tool", "content": "x", "tool_call_id": 1}]})", "WRONG_TYPE",
        "messages[0].tool_call_id"},
       {R"({"messages": [{"role": "user", "content": "x"}], "store": 1})", "WRONG_TYPE", "store"},
       {R"({"messages": [{"role": "user", "content": "x"}], "metadata": {"a": 1}})", "WRONG_TYPE",
        "metadata.a"},
       {R"({"messages": [{"role": "user", "content": "x"}], "metadata": []})", "WRONG_TYPE",
        "metadata"},
       {R"({"messages": [{"role": "user", "content": "x"}], "verbosity": 1})", "WRONG_TYPE",
        "verbosity"},
       {R"({"messages": [{"role": "user", "content": "x"}], "prediction": {"x": 1}})",
        "UNKNOWN_FIELD", "prediction.x"},
       {R"({"messages": [{"role": "user", "content": "x"}], "functions": [{"name": "f"}]})",
        "UNSUPPORTED_FIELD", "functions"},
       {R"({"messages": [{"role": "user", "content": "x"}], "function_call": {"name": "f"}})",
        "UNSUPPORTED_FIELD", "function_call"},
       {R"({"messages": [{"role": "user", "content": "x"}], "web_search_options": {}})",
        "UNSUPPORTED_FIELD", "web_search_options"},
       {R"({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "much"})",
        "OUT_OF_RANGE", "reasoning_effort"},
       {R"({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": 3})", "WRONG_TYPE",
        "reasoning_effort"},
       {R"({"messages": [{"role": "user", "content": "x"}], "any_whitespace": 1})", "WRONG_TYPE",
        "any_whitespace"},
       {R"({"messages": [{"role": "user", "content": "x"}], "include_reasoning": 1})", "WRONG_TYPE",
        "include_reasoning"}});
}

}  // namespace
}  // namespace baton::router
