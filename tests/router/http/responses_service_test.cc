#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
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

constexpr char kPath[] = "/v1/responses";

class ResponsesServiceTest : public HttpRouterTest {
 protected:
  void StartChat(const std::function<void(Options*)>& change = [](Options*) {}) {
    testing::WriteTinyTokenizer(dir_.path());
    dir_.Write("chat_template.jinja",
               "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
    Start([&](Options* options) {
      options->model_dir = dir_.path();
      change(options);
    });
  }
  std::string Prompt(const DecodeCall& call) {
    return std::string(call.request.tokens().begin(), call.request.tokens().end());
  }
  // The response to `body`, which the worker answers with `text`; `prompt` is what it was sent.
  Json Ask(HttpClient& client, const std::string& body, const std::string& text,
           std::string* prompt = nullptr) {
    client.Post(kPath, body);
    DecodeCall call = cluster_->decode(0)->AwaitDecode();
    if (prompt != nullptr) *prompt = Prompt(call);
    call.SendTokens(Ids(text));
    call.Finish({testing::kEndToken}, DecodeResponse::FINISH_STOP);
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }

  const testing::ModelDir dir_;
};

TEST_F(ResponsesServiceTest, AConversationGoesOnByTheIdOfItsLastResponse) {
  StartChat();
  HttpClient client(address());
  std::string prompt;
  const Json first =
      Ask(client, R"({"input": "q", "instructions": "i", "metadata": {"a": "b"}})", "ab", &prompt);
  EXPECT_EQ(prompt, "<system>i<user>q");
  EXPECT_EQ(first["output"][0]["content"][0]["text"], "ab");
  EXPECT_EQ(first["metadata"], Json({{"a", "b"}}));
  EXPECT_EQ(first["store"], true);
  EXPECT_EQ(first["usage"]["input_tokens"], 16);
  EXPECT_EQ(first["usage"]["output_tokens"], 3);
  const std::string id = first["id"];
  const std::string more = absl::StrCat(R"({"input": "r", "previous_response_id": ")", id, R"("})");
  const Json second = Ask(client, more, "cd", &prompt);
  EXPECT_EQ(prompt, "<user>q<assistant>ab<user>r");
  EXPECT_EQ(second["previous_response_id"], id);

  const std::string path = absl::StrCat(kPath, "/", id);
  client.Get(path);
  HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body), first);
  client.Send(absl::StrCat("DELETE ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
  reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body)["deleted"], true);
  client.Post(kPath, more);
  reply = client.Read();
  EXPECT_EQ(reply.status, 404) << reply.body;
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["code"], "previous_response_not_found");
  EXPECT_EQ(error["param"], "previous_response_id");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("send the whole conversation"));
  // The second one has all that it needs.
  Ask(client,
      absl::StrCat(R"({"input": "s", "previous_response_id": ")", second["id"].get<std::string>(),
                   R"("})"),
      "ef", &prompt);
  EXPECT_EQ(prompt, "<user>q<assistant>ab<user>r<assistant>cd<user>s");
}

TEST_F(ResponsesServiceTest, WhatIsNotStoredIsNotFound) {
  StartChat();
  HttpClient client(address());
  const Json json = Ask(client, R"({"input": "q", "store": false})", "ab");
  EXPECT_EQ(json["store"], false);
  client.Get(absl::StrCat(kPath, "/", json["id"].get<std::string>()));
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "response_not_found");
}

TEST_F(ResponsesServiceTest, ARouterWithoutAStoreKeepsNothing) {
  StartChat([](Options* options) { options->response_store_bytes = 0; });
  HttpClient client(address());
  const Json json = Ask(client, R"({"input": "q", "store": true})", "ab");
  EXPECT_EQ(json["store"], false);
  client.Get(absl::StrCat(kPath, "/", json["id"].get<std::string>()));
  EXPECT_EQ(client.Read().status, 404);
}

TEST_F(ResponsesServiceTest, TenantsDoNotFindEachOthersResponses) {
  const security::NewKey a = *security::MakeApiKey("a", /*admin=*/false);
  const security::NewKey b = *security::MakeApiKey("b", /*admin=*/false);
  const security::NewKey admin = *security::MakeApiKey("ops", /*admin=*/true);
  testing::WriteTinyTokenizer(dir_.path());
  dir_.Write("chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  dir_.Write("keys", absl::StrCat(a.line, "\n", b.line, "\n", admin.line, "\n"));
  ChannelSecurity security;
  security.headers = [&] { return CallHeaders{{"authorization", "Bearer " + admin.key}}; };
  cluster_ = std::make_unique<testing::FakeCluster>(
      1, 1,
      [&](Options* options) {
        options->model_dir = dir_.path();
        options->api_keys = dir_.PathOf("keys");
        options->http_listen = "127.0.0.1:0";
      },
      Clock::Real(), security);
  HttpClient client(address());
  const auto of = [](const security::NewKey& key) {
    return absl::StrCat("Authorization: Bearer ", key.key, "\r\n");
  };
  client.Post(kPath, R"({"input": "secret"})", of(a));
  cluster_->decode(0)->AwaitDecode().Finish({testing::kEndToken}, DecodeResponse::FINISH_STOP);
  const std::string id = Json::parse(client.Read().body)["id"];
  const std::string more = absl::StrCat(R"({"input": "x", "previous_response_id": ")", id, "\"}");
  const std::string path = absl::StrCat(kPath, "/", id);
  for (const security::NewKey* other : {&b, &admin}) {
    client.Get(path, of(*other));
    EXPECT_EQ(client.Read().status, 404);
    client.Post(kPath, more, of(*other));
    EXPECT_EQ(client.Read().status, 404);
  }
  client.Get(path);
  EXPECT_EQ(client.Read().status, 401);
  client.Get(path, of(a));
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(ResponsesServiceTest, AStreamEndsWithTheWholeResponse) {
  StartChat();
  HttpClient client(address());
  client.Post(kPath, R"({"input": "q", "stream": true})");
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  call.SendTokens(Ids("a"));
  const std::string begin = client.ReadUntil(R"("delta":"a")");
  EXPECT_THAT(begin, HasSubstr("text/event-stream"));
  EXPECT_THAT(begin, HasSubstr("event: response.created\ndata: {"));
  call.Finish(Ids("b"), DecodeResponse::FINISH_LENGTH);
  const std::string end = client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(end, HasSubstr("event: response.incomplete\ndata: {"));
  EXPECT_THAT(end, HasSubstr(R"("text":"ab")"));
  EXPECT_THAT(end, HasSubstr(R"("output_tokens":2)"));
}

TEST_F(ResponsesServiceTest, ErrorsHaveTheNamesOfThisApi) {
  StartChat();
  const struct {
    std::string body, code, param;
  } cases[] = {
      {absl::StrCat(R"({"input": ")", std::string(200, 'a'), "\"}"), "context_length_exceeded",
       "input"},
      {absl::StrCat(R"({"input": ")", std::string(2 << 20, 'a'), "\"}"), "context_length_exceeded",
       "input"},
      {R"({"input": "x", "max_output_tokens": 1000})", "context_length_exceeded",
       "max_output_tokens"},
      {R"({"input": "x", "temperature": 9})", "out_of_range", "temperature"},
      {R"({"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 99})",
       "out_of_range", "top_logprobs"},
      {R"({"input": "x", "tools": [{"type": "function", "name": "f"}]})", "unsupported_field",
       "tools"},
      {R"({"input": "x", "text": {"format": {"type": "json_schema", "name": "n",
                                             "schema": {"type": "text"}}}})",
       "schema_invalid", "text.format.schema"},
  };
  HttpClient client(address());
  for (const auto& c : cases) {
    client.Post(kPath, c.body);
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 400) << reply.body;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["code"], c.code) << error;
    EXPECT_EQ(error["param"], c.param) << error;
  }
  client.Get(kPath);
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.Header("Allow"), "POST");
}

}  // namespace
}  // namespace baton::router
