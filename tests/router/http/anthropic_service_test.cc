#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/security/api_keys.h"
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
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kPath[] = "/v1/messages";
constexpr char kCount[] = "/v1/messages/count_tokens";
// A token is a byte.
constexpr char kTemplate[] =
    "{% for m in messages %}{{ m.role }}{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}";
constexpr char kMembers[] = R"("system": "Be", "messages": [{"role": "user", "content": "hello"}])";
constexpr char kRendered[] = "systemBe;userhello;>";

class AnthropicServiceTest : public HttpRouterTest {
 protected:
  AnthropicServiceTest() {
    testing::WriteTinyTokenizer(dir_.path());
    dir_.Write("chat_template.jinja", kTemplate);
  }
  void StartChat(const std::function<void(Options*)>& adjust = nullptr) {
    Start([&](Options* options) {
      options->model_dir = dir_.path();
      options->served_model_name = "tiny";
      if (adjust != nullptr) adjust(options);
    });
  }
  static std::string Body(const std::string& more = "") {
    return absl::StrCat("{\"max_tokens\": 5, ", kMembers, more, "}");
  }

  const testing::ModelDir dir_;
};

TEST_F(AnthropicServiceTest, AnAnswerComesWhole) {
  StartChat();
  HttpClient client(address());
  client.Post(kPath, Body(R"(, "stop_sequences": ["END"], "betas": ["x"])"),
              "X-Request-Id: me\r\nanthropic-version: 2023-06-01\r\n");
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  EXPECT_EQ(std::string(call.request.tokens().begin(), call.request.tokens().end()), kRendered);
  EXPECT_EQ(call.request.max_tokens(), 5);
  DecodeResponse first;
  first.add_token_ids('a');
  first.mutable_usage()->set_cached_prompt_tokens(4);
  call.stream->Send(first);
  call.Finish(Ids("END"), DecodeResponse::FINISH_LENGTH);
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.Header("request-id"), "me");
  EXPECT_EQ(reply.Header("x-request-id"), "me");
  EXPECT_EQ(reply.Header("x-baton-ignored"), "betas");
  EXPECT_EQ(Json::parse(reply.body), Json::parse(R"({
    "id": "msg_me", "type": "message", "role": "assistant", "model": "tiny",
    "content": [{"type": "text", "text": "a"}],
    "stop_reason": "stop_sequence", "stop_sequence": "END",
    "usage": {"input_tokens": 16, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4,
              "output_tokens": 4}})"));
}

TEST_F(AnthropicServiceTest, AStreamHasTheEventsOfAMessage) {
  StartChat();
  HttpClient client(address());
  client.Post(kPath, Body(R"(, "stream": true)"));
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  call.SendTokens(Ids("a"));
  const std::string head = client.ReadUntil(R"("text":"a"}})");
  EXPECT_THAT(head, HasSubstr("text/event-stream"));
  EXPECT_THAT(head, HasSubstr("\r\nrequest-id: "));
  EXPECT_THAT(head, HasSubstr("event: message_start\ndata: {\"type\":\"message_start\""));
  // The prompt is counted when the answer begins.
  EXPECT_THAT(
      head, HasSubstr(absl::StrCat("\"usage\":{\"input_tokens\":", std::string(kRendered).size())));
  call.Finish(Ids("b"), DecodeResponse::FINISH_LENGTH);
  const std::string rest = client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(rest, HasSubstr("event: content_block_stop\n"));
  EXPECT_THAT(rest, HasSubstr(R"("stop_reason":"max_tokens")"));
  EXPECT_THAT(rest, HasSubstr(R"("output_tokens":2)"));
  EXPECT_THAT(rest, HasSubstr("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
  EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
}

TEST_F(AnthropicServiceTest, AnErrorAfterTheFirstTokenIsAnEvent) {
  StartChat([](Options* options) { options->failover_wait_ms = 0; });
  HttpClient client(address());
  client.Post(kPath, Body(R"(, "stream": true)"));
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  call.SendTokens(Ids("a"));
  client.ReadUntil(R"("text":"a"}})");
  cluster_->decode(0).reset();
  const std::string rest = client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(rest, HasSubstr("event: error\ndata: {\"type\":\"error\",\"error\":{"));
  EXPECT_EQ(rest.find("message_stop"), std::string::npos);
}

TEST_F(AnthropicServiceTest, TokensAreCountedWithoutAWorkerAndWithoutAPlace) {
  StartChat([](Options* options) { options->max_inflight_requests = 1; });
  HttpClient running(address()), client(address());
  running.Post(kPath, Body());
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  const auto count = [&](const std::string& members) {
    client.Post(kCount, absl::StrCat("{", members, "}"), "X-Request-Id: me\r\n");
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.Header("request-id"), "me");
    EXPECT_EQ(reply.Header("x-request-id"), "me");
    return Json::parse(reply.body);
  };
  EXPECT_EQ(count(kMembers), Json({{"input_tokens", std::string(kRendered).size()}}));
  // The assistant's last message is not followed by another one's beginning.
  EXPECT_EQ(count(R"("messages": [{"role": "user", "content": "a"},
                                  {"role": "assistant", "content": "b"}])"),
            Json({{"input_tokens", 17}}));
  // An agent asks in order to shorten what does not fit.
  EXPECT_EQ(count(absl::StrCat(R"("messages": [{"role": "user", "content": ")",
                               std::string(1000, 'a'), "\"}]")),
            Json({{"input_tokens", 1006}}));
  EXPECT_EQ(cluster_->decode(0)->decode_count(), 1);
  client.Post(kPath, Body());
  const HttpReply refused = client.Read();
  EXPECT_EQ(refused.status, 429);
  EXPECT_GE(std::stoi(refused.Header("Retry-After")), 1);
  EXPECT_EQ(Json::parse(refused.body)["error"]["type"], "rate_limit_error");
  call.Finish(Ids("x"), DecodeResponse::FINISH_LENGTH);
  const Json usage = Json::parse(running.Read().body)["usage"];
  EXPECT_EQ(usage["input_tokens"], std::string(kRendered).size());
}

TEST_F(AnthropicServiceTest, ErrorsHaveAnthropicsShape) {
  StartChat([](Options* options) { options->max_prompt_bytes = 1 << 20; });
  const std::string messages = R"("messages": [{"role": "user", "content": "x"}])";
  const std::string huge(2 << 20, 'a');
  const struct {
    std::string path, body;
    int status;
    std::string type, message;
  } cases[] = {
      {kPath, "{" + messages + "}", 400, "invalid_request_error", "max_tokens: required"},
      {kPath, "nonsense", 400, "invalid_request_error", "JSON"},
      {kPath, Body(R"(, "model": "other")"), 404, "not_found_error", "\"other\" is not served"},
      {kPath, Body(R"(, "temperature": 3)"), 400, "invalid_request_error", "temperature: "},
      {kPath, Body(R"(, "stop_sequences": [""])"), 400, "invalid_request_error",
       "stop_sequences: "},
      {kPath, "{\"max_tokens\": 500, " + messages + "}", 400, "invalid_request_error",
       "max_tokens: 500 given"},
      {kPath,
       absl::StrCat(R"({"max_tokens": 5, "messages": [{"role": "user", "content": ")",
                    std::string(200, 'a'), "\"}]}"),
       400, "invalid_request_error", "prompt is too long: messages: "},
      {kPath, Body(R"(, "tools": [{"name": "f", "input_schema": {}}])"), 400,
       "invalid_request_error", "tools: "},
      {kCount, "{" + messages + R"(, "max_tokens": 5})", 400, "invalid_request_error",
       "max_tokens"},
      {kCount, "{" + messages + R"(, "model": "other"})", 404, "not_found_error",
       "\"other\" is not served"},
      {kCount, "{" + messages + R"(, "tools": [{"name": "f", "input_schema": {}}]})", 400,
       "invalid_request_error", "tools: "},
      {kCount, absl::StrCat(R"({"messages": [{"role": "user", "content": ")", huge, "\"}]}"), 400,
       "invalid_request_error", "prompt is too long: messages: "},
  };
  HttpClient client(address());
  for (const auto& c : cases) {
    client.Post(c.path, c.body, "X-Request-Id: mine\r\n");
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, c.status) << c.message << reply.body;
    EXPECT_EQ(reply.Header("x-request-id"), "mine");
    EXPECT_EQ(reply.Header("request-id"), "mine");
    const Json error = Json::parse(reply.body);
    EXPECT_EQ(error["type"], "error");
    EXPECT_EQ(error["request_id"], "mine");
    EXPECT_EQ(error["error"]["type"], c.type);
    EXPECT_THAT(error["error"]["message"].get<std::string>(), HasSubstr(c.message));
  }
  for (const char* const path : {kPath, kCount}) {
    client.Get(path);
    HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 405);
    EXPECT_EQ(reply.Header("Allow"), "POST");
    EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "invalid_request_error");
    EXPECT_EQ(Json::parse(reply.body)["request_id"], reply.Header("request-id"));
    client.Post(path, "{" + messages + "}", "X-Request-Id: caf\xC3\xA9\r\n");
    reply = client.Read();
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(Json::parse(reply.body)["type"], "error");
  }
  EXPECT_EQ(cluster_->decode(0)->decode_count(), 0);
}

TEST_F(AnthropicServiceTest, WhatIsNotReadIsRefusedInItsShape) {
  StartChat([](Options* options) {
    options->max_inflight_request_bytes = 100'000;
    options->metrics_listen = "127.0.0.1:0";
  });
  HttpClient running(address()), refused(address());
  const std::string spaces(60'000, ' ');
  running.Post(kPath, Body(spaces));
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  refused.Post(kCount, absl::StrCat("{", kMembers, spaces, "}"));
  HttpReply reply = refused.Read();
  EXPECT_EQ(reply.status, 429) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "rate_limit_error");
  EXPECT_EQ(Json::parse(reply.body)["request_id"], reply.Header("request-id"));
  call.Finish(Ids("x"), DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(running.Read().status, 200);
  HttpClient malformed(address());
  malformed.Send(absl::StrCat("POST ", kPath, " HTTP/1.1\r\nHost: x\r\nContent-Length: z\r\n\r\n"));
  reply = malformed.Read();
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "invalid_request_error") << reply.body;
  const std::string metrics = testing::HttpGet(cluster_->server().metrics_address(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr(R"(code="429",route="/v1/messages/count_tokens"} 1)"));
  EXPECT_THAT(metrics, HasSubstr(R"(code="200",route="/v1/messages"} 1)"));
}

TEST_F(AnthropicServiceTest, AKeyComesInTheHeaderOfAnthropicsClients) {
  const security::NewKey key = *security::MakeApiKey("a", /*admin=*/false);
  // The cluster's own calls for its workers' states have no key.
  const security::NewKey admin = *security::MakeApiKey("ops", /*admin=*/true);
  dir_.Write("keys", absl::StrCat(key.line, "\n", admin.line, "\n"));
  ChannelSecurity security;
  security.headers = [&] {
    return CallHeaders{{"authorization", absl::StrCat("Bearer ", admin.key)}};
  };
  cluster_ = std::make_unique<testing::FakeCluster>(
      1, 1,
      [&](Options* options) {
        options->http_listen = "127.0.0.1:0";
        options->model_dir = dir_.path();
        options->api_keys = dir_.PathOf("keys");
      },
      Clock::Real(), security);
  HttpClient client(address());
  const std::string wrong[] = {
      "", "x-api-key: wrong\r\n",
      absl::StrCat("Authorization: Bearer wrong\r\nx-api-key: ", key.key, "\r\n")};
  for (const char* const path : {kPath, kCount}) {
    for (const std::string& headers : wrong) {
      client.Post(path, Body(), headers);
      const HttpReply reply = client.Read();
      EXPECT_EQ(reply.status, 401) << path << headers;
      const Json error = Json::parse(reply.body);
      EXPECT_EQ(error["error"]["type"], "authentication_error");
      EXPECT_EQ(error["request_id"], reply.Header("request-id"));
    }
  }
  const std::string header = absl::StrCat("x-api-key: ", key.key, "\r\n");
  client.Post(kCount, absl::StrCat("{", kMembers, "}"), header);
  EXPECT_EQ(client.Read().status, 200);
  client.Get("/v1/models", header);
  EXPECT_EQ(client.Read().status, 200);
  client.Post(kPath, Body(R"(, "metadata": {"user_id": "someone"})"), header);
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  EXPECT_EQ(call.request.tenant(), "a");
  call.Finish(Ids("x"), DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(client.Read().status, 200);
}

}  // namespace
}  // namespace baton::router
