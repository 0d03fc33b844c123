// Chats whose model reasons, over scripted workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/router/http/http_router_test.h"
#include "tests/testing/http_client.h"
#include "tests/testing/model_dir.h"

namespace baton::router {
namespace {

using ::baton::internal::v1::DecodeResponse;
using ::baton::testing::DecodeCall;
using ::baton::testing::HttpClient;
using ::baton::testing::HttpReply;
using ::baton::testing::Ids;
using Json = nlohmann::json;

// As Qwen 3.5's: the prompt begins the reasoning, or has it closed.
constexpr char kThinks[] =
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}";
// As gpt-oss's. "<|end|>" is a special token of the tiny tokenizer.
constexpr char kHarmony[] =
    "{{ reasoning_effort | default('medium') }}<|channel|><|message|>{{ messages[0].content }}";

// What a client has of an answer.
struct Parts {
  Json reasoning;  // null if no chunk, or the message, has the field
  std::string content;
  std::string finish;
  friend bool operator==(const Parts&, const Parts&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Parts& parts) {
    return out << parts.reasoning << " " << parts.content << " [" << parts.finish << "]";
  }
};

class ReasoningServiceTest : public HttpRouterTest {
 protected:
  void StartWith(const std::string& chat_template, const std::string& reasoning_parser = "auto") {
    testing::WriteTinyTokenizer(dir_.path());
    dir_.Write("chat_template.jinja", chat_template);
    Start([&](Options* options) {
      options->model_dir = dir_.path();
      options->reasoning_parser = reasoning_parser;
    });
  }
  // Answers a chat with these tokens, which arrive one by one.
  HttpReply Answer(const std::string& more, const std::vector<int32_t>& tokens, bool stream) {
    HttpClient client(address());
    client.Post("/v1/chat/completions",
                absl::StrCat(R"({"messages": [{"role": "user", "content": "<think>"}], "stream": )",
                             stream ? "true" : "false", more, "}"));
    DecodeCall call = cluster_->decode(0)->AwaitDecode();
    prompt_.assign(call.request.tokens().begin(), call.request.tokens().end());
    constraint_ = call.request.structured_output();
    for (const int32_t token : tokens) call.SendTokens({token});
    call.Finish({testing::kEndToken}, DecodeResponse::FINISH_STOP);
    return client.Read();
  }
  // The same parts whole and streamed.
  Parts Ask(const std::string& more, const std::vector<int32_t>& tokens) {
    const HttpReply whole = Answer(more, tokens, false);
    EXPECT_EQ(whole.status, 200) << whole.body;
    if (whole.status != 200) return {};
    const Json answer = Json::parse(whole.body);
    const Json& choice = answer["choices"][0];
    reasoning_tokens_ = ReasoningTokensOf(answer["usage"]);
    Parts parts = {choice["message"].value("reasoning_content", Json()),
                   choice["message"]["content"].is_null()
                       ? ""
                       : choice["message"]["content"].get<std::string>(),
                   choice["finish_reason"]};
    EXPECT_EQ(choice["message"]["content"].is_null(),
              parts.content.empty() && !parts.reasoning.is_null());
    const std::string usage = R"(, "stream_options": {"include_usage": true})";
    EXPECT_EQ(Streamed(Answer(usage + more, tokens, true).body), parts);
    return parts;
  }
  static int Count(const std::string& text) { return static_cast<int>(Ids(text).size()); }

  testing::ModelDir dir_;
  std::string prompt_;
  int reasoning_tokens_ = 0;  // of the last answer; -1: its usage says nothing of them
  v1::StructuredOutput constraint_;

 private:
  static int ReasoningTokensOf(const Json& usage) {
    return usage.contains("completion_tokens_details")
               ? usage["completion_tokens_details"]["reasoning_tokens"].get<int>()
               : -1;
  }
  Parts Streamed(const std::string& body) {
    Parts parts;
    for (absl::string_view event : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
      const size_t data = event.find("data: {");
      if (data == absl::string_view::npos) continue;
      const Json chunk = Json::parse(event.substr(data + 6));
      if (chunk["choices"].empty()) {
        EXPECT_EQ(ReasoningTokensOf(chunk["usage"]), reasoning_tokens_);
        continue;
      }
      const Json& choice = chunk["choices"][0];
      const Json& delta = choice["delta"];
      if (delta.contains("reasoning_content")) {
        EXPECT_EQ(parts.content, "") << "reasoning behind the answer";
        const std::string before = parts.reasoning.is_null() ? "" : parts.reasoning;
        parts.reasoning = before + delta["reasoning_content"].get<std::string>();
      }
      parts.content += delta.value("content", "");
      if (!choice["finish_reason"].is_null()) parts.finish = choice["finish_reason"];
    }
    return parts;
  }
};

TEST_F(ReasoningServiceTest, ThePromptBeginsTheReasoning) {
  StartWith(kThinks);
  const std::vector<int32_t> answer = Ids("well, é\n</think>\n\n4 </think>");
  // The mark, and the white space around it, are a part of what they end.
  const int reasoning = Count("well, é\n</think>\n\n");
  EXPECT_EQ(Ask("", answer), (Parts{"well, é", "4 </think>", "stop"}));
  EXPECT_EQ(reasoning_tokens_, reasoning);
  EXPECT_EQ(prompt_, "<think><think>\n");
  EXPECT_EQ(Ask("", Ids("well")), (Parts{"well", "", "stop"}));
  EXPECT_EQ(reasoning_tokens_, Count("well") + 1) << "the last one is the end token";
  EXPECT_EQ(Ask("", Ids("</think>4")), (Parts{Json(), "4", "stop"}));
  EXPECT_EQ(reasoning_tokens_, 0);
  // A client that wants none has none, but the answer alone.
  EXPECT_EQ(Ask(R"(, "include_reasoning": false)", answer), (Parts{Json(), "4 </think>", "stop"}));
  EXPECT_EQ(reasoning_tokens_, reasoning);
  // The template has closed it.
  EXPECT_EQ(Ask(R"(, "chat_template_kwargs": {"enable_thinking": false})", Ids("a</think>b")),
            (Parts{Json(), "a</think>b", "stop"}));
  EXPECT_EQ(Ask(R"(, "reasoning_effort": "none")", Ids("a</think>b")),
            (Parts{Json(), "a</think>b", "stop"}));
  EXPECT_EQ(prompt_, "<think><think>\n\n</think>\n\n");
  EXPECT_EQ(Ask(R"(, "reasoning_effort": "low")", answer),
            (Parts{"well, é", "4 </think>", "stop"}));
  // What the request says of the switch itself goes before.
  Ask(R"(, "reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true})", answer);
  EXPECT_EQ(prompt_, "<think><think>\n");
}

TEST_F(ReasoningServiceTest, AConstraintIsOfWhatFollowsTheReasoning) {
  StartWith(kThinks);
  const std::string choice = R"(, "structured_outputs": {"choice": ["4"]})";
  EXPECT_EQ(Ask(choice, Ids("hm\n</think>\n\n4")), (Parts{"hm", "4", "stop"}));
  EXPECT_EQ(constraint_.choices().texts_size(), 1);
  EXPECT_EQ(constraint_.reasoning().begin(), "") << "the prompt has begun it";
  EXPECT_EQ(constraint_.reasoning().end(), "</think>");
  EXPECT_EQ(Ask(choice + R"(, "reasoning_effort": "none")", Ids("4")),
            (Parts{Json(), "4", "stop"}));
  EXPECT_FALSE(constraint_.has_reasoning()) << "the template has closed it";
  Ask("", Ids("</think>4"));
  EXPECT_FALSE(constraint_.has_reasoning()) << "nothing is constrained";
}

TEST_F(ReasoningServiceTest, TheAnswerMayBeginTheReasoningItself) {
  StartWith("{# </think> #}{{ messages[0].content }}");
  const std::string json = R"(, "response_format": {"type": "json_object"})";
  EXPECT_EQ(Ask(json, Ids("<think>hm</think>{}")), (Parts{"hm", "{}", "stop"}));
  EXPECT_EQ(constraint_.reasoning().begin(), "<think>");
  EXPECT_EQ(constraint_.reasoning().end(), "</think>");
  EXPECT_EQ(Ask(json, Ids("{}")), (Parts{Json(), "{}", "stop"}));
}

TEST_F(ReasoningServiceTest, WithoutAParserTheConstraintHoldsFromTheFirstTokenOn) {
  StartWith(kThinks, "none");
  EXPECT_EQ(Ask(R"(, "response_format": {"type": "json_object"})", Ids("{}")),
            (Parts{Json(), "{}", "stop"}));
  EXPECT_TRUE(constraint_.has_json_object() && !constraint_.has_reasoning());
}

TEST_F(ReasoningServiceTest, WithoutAParserTheReasoningIsContent) {
  StartWith(kThinks, "none");
  EXPECT_EQ(Ask("", Ids("well\n</think>\n4")), (Parts{Json(), "well\n</think>\n4", "stop"}));
  EXPECT_EQ(reasoning_tokens_, -1);
}

TEST_F(ReasoningServiceTest, AUsersMarkBeginsNoReasoning) {
  StartWith("{# </think> #}{{ messages[0].content }}");
  EXPECT_EQ(Ask("", Ids("a</think>b")), (Parts{Json(), "a</think>b", "stop"}));
  EXPECT_EQ(Ask(R"(, "split_special_tokens": false)", Ids("a</think>b")),
            (Parts{Json(), "a</think>b", "stop"}));
  EXPECT_EQ(Ask("", Ids("<think>a</think>b")), (Parts{"a", "b", "stop"}));
}

TEST_F(ReasoningServiceTest, MarksThatAreSpecialTokensAreFound) {
  StartWith(kHarmony);
  std::vector<int32_t> answer = Ids("<|channel|>analysis<|message|>well");
  answer.push_back(testing::kEndToken);
  for (const int32_t id : Ids("<|start|>assistant<|channel|>final<|message|>4")) {
    answer.push_back(id);
  }
  EXPECT_EQ(Ask("", answer), (Parts{"well", "4", "stop"}));
  EXPECT_EQ(reasoning_tokens_, static_cast<int>(answer.size()) - Count("4"));
  Ask(R"(, "reasoning_effort": "high")", answer);
  EXPECT_EQ(prompt_, "high<|channel|><|message|><think>");
  Ask(R"(, "reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "x"})", answer);
  EXPECT_EQ(prompt_, "x<|channel|><|message|><think>");
}

TEST_F(ReasoningServiceTest, AnEffortMustBeOneOfTheApis) {
  StartWith(kThinks);
  HttpClient client(address());
  for (const char* effort : {R"("much")", "1", R"({"nonsense": 1})"}) {
    client.Post("/v1/chat/completions",
                absl::StrCat(R"({"messages": [{"role": "user", "content": "x"}],)",
                             R"("reasoning_effort": )", effort, "}"));
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "reasoning_effort");
  }
}

}  // namespace
}  // namespace baton::router
