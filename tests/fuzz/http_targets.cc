// What arrives at the HTTP port.
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/json/json.h"
#include "router/http/anthropic_request.h"
#include "router/http/http_server.h"
#include "router/http/openai_embeddings.h"
#include "router/http/openai_request.h"
#include "router/http/rerank.h"
#include "router/http/responses_request.h"
#include "router/request/request_check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/testing/http_client.h"

namespace baton::fuzz {
namespace {

// Every error names a field and has a reason.
void CheckBody(const absl::StatusOr<router::OpenAiRequest>& request) {
  if (request.ok()) {
    (void)router::CheckRequest(request->generate, "tiny", 1 << 16);
  } else {
    BATON_CHECK(request.status().code() == absl::StatusCode::kInvalidArgument) << request.status();
    BATON_CHECK(!request.status().message().empty());
  }
}

void FuzzCompletion(absl::string_view data) { CheckBody(router::ParseCompletion(data)); }
void FuzzChat(absl::string_view data) { CheckBody(router::ParseChat(data)); }
void FuzzAnthropic(absl::string_view data) {
  CheckBody(router::ParseAnthropic(data));
  CheckBody(router::ParseAnthropicCount(data));
}

void FuzzItems(absl::string_view data) {
  for (const absl::Status& status :
       {router::ParseEmbeddings(data).status(), router::ParseRerank(data).status()}) {
    BATON_CHECK(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
    BATON_CHECK(status.ok() || !status.message().empty());
  }
}

// What the response repeats is JSON.
void FuzzResponses(absl::string_view data) {
  const auto request = router::ParseResponses(data);
  CheckBody(request);
  if (!request.ok()) return;
  BATON_CHECK(json::Parse(absl::StrCat("{", request->responses->echo, "}"), "echo").ok());
  BATON_CHECK(request->responses->lead <= request->conversation.messages.items.size());
}

// A connection's bytes, up to its end. The server must answer or hang up: a client that waits for
// the end of the connection gets it.
void FuzzConnection(absl::string_view data) {
  static const router::HttpServer* const server = [] {
    router::HttpServerOptions options;
    options.threads = 1;
    options.max_body_bytes = 4096;
    auto started = router::HttpServer::Start(
        options,
        [](router::HttpRequest request,
           std::shared_ptr<router::HttpResponder> responder) -> std::shared_ptr<router::HttpCall> {
          BATON_CHECK(request.body.size() <= 4096);
          (void)request.Header("authorization");
          responder->Respond({200, {{"X-Method", "seen"}}, std::move(request.body)});
          return nullptr;
        },
        [](int status, absl::string_view why, const router::HttpRequest&) {
          BATON_CHECK(status >= 400) << status;
          return router::HttpResponse{status, {}, std::string(why)};
        });
    BATON_CHECK(started.ok()) << started.status();
    return started->release();  // serves until the process ends
  }();
  testing::HttpClient client(server->address());
  BATON_CHECK(client.connected());
  client.Send(std::string(data));
  client.FinishSending();
  while (client.Read().status != 0) {
  }
}

}  // namespace

std::vector<FuzzTarget> HttpTargets() {
  const std::string body =
      R"({"prompt": "p", "max_tokens": 5, "stream": true, "stream_options": {"include_usage": true},
          "n": 2, "stop": ["a", "b"], "logprobs": 2, "logit_bias": {"5": -1.5}, "seed": 7})";
  return {
      {"completion_body", FuzzCompletion, {body, R"({"prompt": [1, 2, 3], "echo": false})"}},
      {"chat_body",
       FuzzChat,
       {R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content":
            [{"type": "text", "text": "hi"}]}], "max_completion_tokens": 5, "temperature": 0.5,
            "top_logprobs": 2, "logprobs": true, "chat_template_kwargs": {"enable_thinking": false}})",
        R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f",
            "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "4"}]})"}},
      {"anthropic_body",
       FuzzAnthropic,
       {R"({"max_tokens": 5, "system": [{"type": "text", "text": "s"}], "messages": [
            {"role": "user", "content": "q"}, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1",
            "is_error": true, "content": "4", "cache_control": {"type": "ephemeral"}}]}]})",
        R"({"max_tokens": 5, "messages": [{"role": "user", "content": "q"}], "stop_sequences": ["a"],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}], "metadata":
            {"user_id": "u"}, "tool_choice": {"type": "tool", "name": "f"},
            "thinking": {"type": "enabled", "budget_tokens": 1024}})"}},
      {"items_body",
       FuzzItems,
       {R"({"input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 2, "user": "u"})",
        R"({"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": true,
            "instruction": "i"})"}},
      {"responses_body",
       FuzzResponses,
       {R"({"input": [{"role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "4"}], "instructions": "i",
            "tools": [{"type": "function", "name": "f", "parameters": {}}], "metadata": {"a": "b"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}})",
        R"({"input": "hi", "max_output_tokens": 5, "truncation": "auto", "top_logprobs": 2,
            "include": ["message.output_text.logprobs"], "reasoning": {"effort": "low"},
            "previous_response_id": "resp_1", "tool_choice": {"type": "function", "name": "f"}})"}},
      {"http",
       FuzzConnection,
       {absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
                     "GET /livez?x=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3;a=b\r\nabc\r\n0\r\nTrailer: t\r\n\r\n",
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"}},
  };
}

}  // namespace baton::fuzz
