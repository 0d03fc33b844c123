#include "router/http/prompt_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "tests/router/http/http_router_test.h"
#include "tests/testing/http_client.h"

namespace baton::router {
namespace {

using ::baton::internal::v1::DecodeResponse;
using ::baton::testing::DecodeCall;
using ::baton::testing::HttpClient;
using ::baton::testing::HttpReply;
using ::baton::testing::Ids;
using Json = nlohmann::json;

constexpr char kManyPrompts[] = "/v1/completions";

class PromptGroupTest : public HttpRouterTest {
 protected:
  void Start(const std::function<void(Options*)>& adjust = nullptr) {
    HttpRouterTest::Start(adjust);
    client_ = std::make_unique<HttpClient>(address());
  }
  // The calls of so many prompts, by prompt.
  std::map<std::string, DecodeCall> Calls(int count) {
    std::map<std::string, DecodeCall> calls;
    for (int i = 0; i < count; ++i) {
      DecodeCall call = cluster_->decode(0)->AwaitDecode();
      calls[std::string(call.request.tokens().begin(), call.request.tokens().end())] = call;
    }
    return calls;
  }
  std::unique_ptr<HttpClient> client_;
};

TEST_F(PromptGroupTest, ChoicesAreNumberedByPromptAndUsageIsTheSum) {
  Start();
  client_->Post(kManyPrompts,
                R"({"prompt": ["one", [116, 119, 111, 33]], "n": 2, "max_tokens": 3})");
  auto calls = Calls(2);
  for (auto& [prompt, call] : calls) {
    EXPECT_EQ(call.request.n(), 2);
    DecodeResponse drafted;
    drafted.mutable_usage()->set_draft_tokens(8);
    drafted.mutable_usage()->set_accepted_draft_tokens(prompt == "one" ? 3 : 1);
    call.stream->Send(drafted);
    call.FinishChoice(1, Ids(prompt.substr(0, 1) + "1"), DecodeResponse::FINISH_LENGTH);
    call.Finish(Ids(prompt.substr(0, 1) + "0"), DecodeResponse::FINISH_LENGTH);
  }
  const HttpReply reply = client_->Read();
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = Json::parse(reply.body);
  ASSERT_EQ(json["choices"].size(), 4u);
  const char* const expected[] = {"o0", "o1", "t0", "t1"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], expected[i]);
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], 7);
  EXPECT_EQ(json["usage"]["completion_tokens"], 8);
  EXPECT_EQ(json["usage"]["completion_tokens_details"],
            Json({{"accepted_prediction_tokens", 4}, {"rejected_prediction_tokens", 12}}));
}

TEST_F(PromptGroupTest, UsageBeyondWhatAMessageHoldsSaturates) {
  Start();
  client_->Post(kManyPrompts, R"({"prompt": ["one", "two"], "max_tokens": 3})");
  for (auto& [prompt, call] : Calls(2)) {
    DecodeResponse drafted;
    drafted.mutable_usage()->set_draft_tokens(2'000'000'000);
    drafted.mutable_usage()->set_accepted_draft_tokens(2'000'000'000);
    call.stream->Send(drafted);
    call.Finish(Ids("1"), DecodeResponse::FINISH_LENGTH);
  }
  const HttpReply reply = client_->Read();
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["usage"]["completion_tokens_details"],
            Json({{"accepted_prediction_tokens", 2147483647}, {"rejected_prediction_tokens", 0}}));
}

TEST_F(PromptGroupTest, StreamsInterleave) {
  Start();
  client_->Post(kManyPrompts, R"({"prompt": ["a", "b"], "stream": true, "echo": true,
                           "stream_options": {"include_usage": true}})");
  auto calls = Calls(2);
  calls["b"].SendTokens(Ids("1"));
  EXPECT_NE(client_->ReadUntil("\n\n").find(R"("index":1,"text":"b1")"), std::string::npos);
  calls["a"].SendTokens(Ids("2"));
  client_->ReadUntil(R"("index":0,"text":"a2")");
  calls["b"].Finish(Ids("3"), DecodeResponse::FINISH_LENGTH);
  client_->ReadUntil(R"("index":1,"text":"3")");
  calls["a"].Finish(Ids("4"), DecodeResponse::FINISH_LENGTH);
  client_->ReadUntil(R"("index":0,"text":"4")");
  EXPECT_NE(client_->ReadUntil("[DONE]").find(R"("prompt_tokens":2,"completion_tokens":4)"),
            std::string::npos);
}

TEST_F(PromptGroupTest, AFailureOfOnePromptFailsTheRequestAndCancelsTheOthers) {
  Start();
  client_->Post(kManyPrompts, R"({"prompt": ["a", "b", "c"]})");
  auto calls = Calls(3);
  calls["a"].SendTokens(Ids("x"));
  calls["b"].Fail(ToGrpcStatus(
      MakeError(absl::StatusCode::kResourceExhausted, "KV_POOL_TOO_SMALL", "never fits")));
  const HttpReply reply = client_->Read();
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "kv_pool_too_small");
  EXPECT_TRUE(calls["a"].stream->AwaitCancelled());
  EXPECT_TRUE(calls["c"].stream->AwaitCancelled());
}

TEST_F(PromptGroupTest, AFailureAfterTheFirstTokenCancelsEvenIfTheClientDoesNotRead) {
  Start();
  client_->Post(kManyPrompts, R"({"prompt": ["a", "b"], "stream": true})");
  auto calls = Calls(2);
  calls["a"].SendTokens(Ids("x"));
  client_->ReadUntil(R"("text":"x")");
  calls["b"].Fail(ToGrpcStatus(
      MakeError(absl::StatusCode::kResourceExhausted, "KV_POOL_TOO_SMALL", "never fits")));
  EXPECT_TRUE(calls["a"].stream->AwaitCancelled());
  const std::string rest = client_->ReadUntil("0\r\n\r\n");
  EXPECT_NE(rest.find(R"(data: {"error":{)"), std::string::npos);
  EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
}

TEST_F(PromptGroupTest, ABadPromptIsNamed) {
  Start();
  client_->Post(kManyPrompts,
                absl::StrCat(R"({"prompt": ["good", ")", std::string(300, 'a'), "\"]}"));
  const HttpReply reply = client_->Read();
  EXPECT_EQ(reply.status, 400);
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "prompt[1]");
  EXPECT_NE(error["message"].get<std::string>().find("prompt[1]: the prompt has 300 tokens"),
            std::string::npos)
      << error;
}

TEST_F(PromptGroupTest, ALeavingClientCancelsAllPrompts) {
  Start();
  for (const char* stream : {"true", "false"}) {
    HttpClient client(cluster_->server().http_address());
    client.Post(kManyPrompts,
                absl::StrCat(R"({"prompt": ["a", "b", "c"], "stream": )", stream, "}"));
    auto calls = Calls(3);
    client.Close();
    for (auto& [prompt, call] : calls) EXPECT_TRUE(call.stream->AwaitCancelled()) << prompt;
  }
}

TEST_F(PromptGroupTest, EachPromptTakesAPlaceOfTheRouter) {
  Start([](Options* options) { options->max_inflight_requests = 2; });
  client_->Post(kManyPrompts, R"({"prompt": ["a", "b", "c"]})");
  const Json error = Json::parse(client_->Read().body)["error"];
  EXPECT_EQ(error["code"], "out_of_range");
  EXPECT_EQ(error["param"], "prompt");
  // Two fit, but not beside another one.
  HttpClient other(cluster_->server().http_address());
  other.Post(kManyPrompts, R"({"prompt": "x"})");
  auto running = Calls(1);
  client_->Post(kManyPrompts, R"({"prompt": ["a", "b"]})");
  EXPECT_EQ(client_->Read().status, 429);
  running["x"].Finish(Ids("y"), DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(other.Read().status, 200);
}

}  // namespace
}  // namespace baton::router
