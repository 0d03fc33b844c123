#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
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
using ::testing::Not;
using Json = nlohmann::json;

constexpr char kCompletions[] = "/v1/completions";

using OpenAiServiceTest = HttpRouterTest;

// The JSON of each event, whatever stands between them; "[DONE]" as a string.
std::vector<Json> Events(const std::string& body) {
  std::vector<Json> events;
  for (absl::string_view line : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    const size_t data = line.find("data: ");
    if (data == absl::string_view::npos) continue;
    line.remove_prefix(data + 6);
    events.push_back(line == "[DONE]" ? Json("[DONE]") : Json::parse(line));
  }
  return events;
}

TEST_F(OpenAiServiceTest, AWholeAnswerHasEveryChoiceAndTheUsage) {
  Start();
  HttpClient client(address());
  client.Post(kCompletions, R"({"prompt": "hello", "n": 2, "max_tokens": 5})",
              "X-Request-Id: me\r\n");
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  EXPECT_EQ(call.request.request_id(), "me");
  EXPECT_EQ(call.request.max_tokens(), 5);
  call.SendTokens(Ids("ab"), 0);
  call.FinishChoice(1, Ids("cd"), DecodeResponse::FINISH_LENGTH);
  call.Finish({testing::kEndToken}, DecodeResponse::FINISH_STOP);
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.Header("x-request-id"), "me");
  const Json json = Json::parse(reply.body);
  EXPECT_EQ(json["id"], "cmpl-me");
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["model"], "tiny");
  ASSERT_EQ(json["choices"].size(), 2u);
  EXPECT_EQ(json["choices"][0]["text"], "ab");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["choices"][1]["text"], "cd");
  EXPECT_EQ(json["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(json["usage"]["completion_tokens"], 5);
  EXPECT_EQ(json["usage"]["total_tokens"], 10);
}

TEST_F(OpenAiServiceTest, AStreamSendsEachTokenThenTheUsage) {
  Start();
  HttpClient client(address());
  client.Post(kCompletions,
              R"({"prompt": "p", "stream": true, "stream_options": {"include_usage": true}})");
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  call.SendTokens(Ids("a"));
  const std::string first = client.ReadUntil("\n\n");
  EXPECT_THAT(first, HasSubstr("text/event-stream"));
  EXPECT_THAT(first, HasSubstr(R"("text":"a")"));
  client.ReadUntil("\r\n");
  call.Finish(Ids("b"), DecodeResponse::FINISH_LENGTH);
  const std::vector<Json> events = Events(client.ReadUntil("[DONE]\n\n"));
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events[events.size() - 1], "[DONE]");
  const Json& usage = events[events.size() - 2];
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 2);
  EXPECT_EQ(events[0]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(events[0]["usage"].is_null());
  EXPECT_THAT(client.ReadUntil("0\r\n\r\n"), HasSubstr("0\r\n\r\n"));
}

TEST_F(OpenAiServiceTest, AFieldWithoutEffectIsNamedInAHeader) {
  Start();
  HttpClient client(address());
  const std::string fields = R"("max_tokens": 5, "stream_options": {"include_usage": true}})";
  client.Post(kCompletions, R"({"prompt": "p", )" + fields);
  cluster_->decode(0)->AwaitDecode().Finish(Ids("a"), DecodeResponse::FINISH_LENGTH);
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.Header("x-baton-ignored"), "stream_options");
  client.Post(kCompletions, R"({"prompt": "p", "stream": true, )" + fields);
  cluster_->decode(0)->AwaitDecode().Finish(Ids("a"), DecodeResponse::FINISH_LENGTH);
  EXPECT_THAT(client.ReadUntil("[DONE]\n\n"), Not(HasSubstr("x-baton-ignored")));
}

TEST_F(OpenAiServiceTest, StrictFieldsRefuseWhatHasNoEffect) {
  Start([](Options* options) { options->strict_fields = true; });
  HttpClient client(address());
  client.Post(kCompletions, R"({"prompt": "p", "stream_options": {"include_usage": true}})");
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "stream_options");
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "unsupported_field");
}

TEST_F(OpenAiServiceTest, AnErrorBeforeTheFirstTokenHasItsStatusAndOneAfterItIsAnEvent) {
  Start([](Options* options) { options->failover_wait_ms = 0; });
  HttpClient client(address());
  const std::string body = R"({"prompt": "p", "stream": true})";
  client.Post(kCompletions, body);
  const grpc::Status too_small = ToGrpcStatus(
      MakeError(absl::StatusCode::kResourceExhausted, "KV_POOL_TOO_SMALL", "never fits"));
  cluster_->decode(0)->AwaitDecode().Fail(too_small);
  HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "kv_pool_too_small");

  client.Post(kCompletions, body);
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  call.SendTokens(Ids("a"));
  client.ReadUntil(R"("text":"a")");
  cluster_->decode(0).reset();
  const std::string rest = client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(rest, HasSubstr(R"(data: {"error":{)"));
  EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
}

TEST_F(OpenAiServiceTest, ALeavingClientCancelsWithAndWithoutAStream) {
  Start();
  for (const char* stream : {"true", "false"}) {
    HttpClient client(address());
    client.Post(kCompletions, absl::StrCat(R"({"prompt": "p", "stream": )", stream, "}"));
    DecodeCall call = cluster_->decode(0)->AwaitDecode();
    call.SendTokens(Ids("a"));
    client.Close();
    EXPECT_TRUE(call.stream->AwaitDone()) << stream;
  }
}

TEST_F(OpenAiServiceTest, ARefusalForLoadSaysWhenToRetry) {
  Start([](Options* options) { options->max_inflight_requests = 1; });
  HttpClient running(address()), refused(address());
  running.Post(kCompletions, R"({"prompt": "p"})");
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  refused.Post(kCompletions, R"({"prompt": "p"})");
  const HttpReply reply = refused.Read();
  EXPECT_EQ(reply.status, 429) << reply.body;
  EXPECT_GE(std::stoi(reply.Header("Retry-After")), 1);
  EXPECT_FALSE(reply.Header("retry-after-ms").empty());
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["type"], "rate_limit_error");
  EXPECT_EQ(error["code"], "too_many_requests");
  call.Finish(Ids("x"), DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(running.Read().status, 200);
}

TEST_F(OpenAiServiceTest, BodiesBeyondTheBoundAreRefusedForLoad) {
  Start([](Options* options) {
    options->max_inflight_request_bytes = 100'000;
    options->metrics_listen = "127.0.0.1:0";
  });
  HttpClient running(address()), refused(address());
  const std::string spaces(60'000, ' ');
  running.Post(kCompletions, absl::StrCat(R"({"prompt": "p")", spaces, "}"));
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  EXPECT_THAT(testing::HttpGet(cluster_->server().metrics_address(), "/metrics"),
              HasSubstr(absl::StrCat(R"(baton_inflight_request_bytes{model="tiny",role="router"} )",
                                     60'015)));
  refused.Post(kCompletions, absl::StrCat(R"({"prompt": "p")", spaces, "}"));
  HttpReply reply = refused.Read();
  EXPECT_EQ(reply.status, 429) << reply.body;
  EXPECT_GE(std::stoi(reply.Header("Retry-After")), 1);
  EXPECT_FALSE(reply.Header("x-request-id").empty());
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "too_many_request_bytes");
  EXPECT_THAT(testing::HttpGet(cluster_->server().metrics_address(), "/metrics"),
              HasSubstr(R"(role="router",reason="too_many_request_bytes"} 1)"));
  // A conversation also counts as what its JSON values take.
  std::string zeros = "[0";
  for (int i = 0; i < 1000; ++i) zeros += ",0";
  HttpClient chat(address());
  chat.Post("/v1/chat/completions", absl::StrCat(R"({"messages": [{"role": "user", "content": "x"}],
                             "chat_template_kwargs": {"z": )",
                                                 zeros, "]}}"));
  reply = chat.Read();
  EXPECT_EQ(reply.status, 429) << reply.body;
  call.Finish(Ids("x"), DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(running.Read().status, 200);
}

TEST_F(OpenAiServiceTest, APromptIsScoredAndNothingIsGenerated) {
  Start();
  HttpClient client(address());
  for (const bool stream : {false, true}) {
    client.Post(kCompletions, absl::StrCat(R"({"prompt": "abc", "echo": true, "max_tokens": 0,
        "logprobs": 1, "stream": )",
                                           stream ? "true" : "false", "}"));
    // The answer has one token, so a prefill worker gives it.
    DecodeCall call = cluster_->prefill(0)->AwaitDecode();
    EXPECT_EQ(call.request.max_tokens(), 1);
    EXPECT_EQ(call.request.prompt_logprobs(), 1);
    DecodeResponse scored;
    scored.add_token_ids('z');
    scored.add_logprobs()->set_token_id('z');
    for (const int id : Ids("bc")) {
      v1::TokenLogprobs* one = scored.add_prompt_logprobs();
      one->set_token_id(id);
      one->set_logprob(-0.5f);
      one->add_top()->set_token_id(id);
    }
    scored.set_finish(DecodeResponse::FINISH_LENGTH);
    call.stream->Send(scored);
    call.stream->End(grpc::Status::OK);
    const HttpReply reply = client.Read();
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json json = stream ? Events(reply.body)[0] : Json::parse(reply.body);
    const Json& choice = json["choices"][0];
    EXPECT_EQ(choice["text"], "abc");
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["logprobs"]["tokens"], Json({"a", "b", "c"}));
    EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({nullptr, -0.5, -0.5}));
    if (!stream) {
      EXPECT_EQ(json["usage"]["completion_tokens"], 0);
    }
  }
}

TEST_F(OpenAiServiceTest, ADefaultLengthFitsTheRoomThatIsLeft) {
  Start();
  HttpClient client(address());
  client.Post(kCompletions, absl::StrCat(R"({"prompt": ")", std::string(124, 'a'), "\"}"));
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  EXPECT_EQ(call.request.max_tokens(), 4);
  call.Finish(Ids("wxyz"), DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(OpenAiServiceTest, ErrorsHaveOpenAisShape) {
  Start();
  const struct {
    std::string path, body;
    int status;
    std::string code, param;
  } cases[] = {
      {kCompletions, R"({"prompt": "p", "model": "other"})", 404, "model_not_found", "model"},
      {kCompletions, absl::StrCat(R"({"prompt": ")", std::string(300, 'a'), R"("})"), 400,
       "context_length_exceeded", "prompt"},
      {kCompletions, R"({"prompt": "p", "temperature": 3})", 400, "out_of_range", "temperature"},
      {kCompletions, R"({"prompt": "p", "max_tokens": 1000})", 400, "context_length_exceeded",
       "max_tokens"},
      {kCompletions, absl::StrCat(R"({"prompt": ")", std::string(300, 'a'), R"(", "echo": true})"),
       400, "context_length_exceeded", "prompt"},
      {kCompletions, R"({"prompt": ""})", 400, "empty_prompt", "prompt"},
      {kCompletions, "nonsense", 400, "malformed_json", ""},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "x"}]})", 400,
       "no_chat_template", "messages"},
      {"/v1/chat/completions",
       R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": "f"}}]})",
       400, "unsupported_field", "tools"},
      {"/v1/responses", "{}", 400, "missing_field", "input"},
      {"/nowhere", "{}", 404, "unknown_url", ""},
  };
  HttpClient client(address());
  for (const auto& c : cases) {
    client.Post(c.path, c.body, "X-Request-Id: mine\r\n");
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, c.status) << c.body << reply.body;
    EXPECT_EQ(reply.Header("x-request-id"), "mine") << c.path;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["code"], c.code) << c.body;
    EXPECT_EQ(error["param"], c.param.empty() ? Json() : Json(c.param)) << c.body;
    EXPECT_FALSE(error["message"].get<std::string>().empty());
  }
  client.Get(kCompletions);
  HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.Header("Allow"), "POST");
  client.Post("/v1/models", "{}");
  reply = client.Read();
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.Header("Allow"), "GET, HEAD");
  client.Post(kCompletions, R"({"prompt": "p"})", "X-Request-Id: caf\xC3\xA9\r\n");
  reply = client.Read();
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "bad_request_id");
  EXPECT_FALSE(reply.Header("x-request-id").empty());
  client.Send("nonsense\r\n\r\n");
  reply = client.Read();
  EXPECT_EQ(reply.status, 400);
  EXPECT_FALSE(reply.Header("x-request-id").empty());
  EXPECT_EQ(cluster_->decode(0)->decode_count(), 0);
}

// A prompt of the context's length has no room for a token; one less has room for one.
TEST_F(OpenAiServiceTest, WhatDoesNotFitTheContextHasBothCounts) {
  const testing::ModelDir dir;
  testing::WriteTinyTokenizer(dir.path());
  dir.Write("chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  Start([&](Options* options) { options->model_dir = dir.path(); });
  HttpClient client(address());
  const std::string full(128, 'a'), room(127, 'a'), huge(2 << 20, 'a');
  std::string ids = "[97";
  for (int i = 1; i < 128; ++i) ids += ",97";
  const auto chat = [](const std::string& text, const std::string& more) {
    return absl::StrCat(R"({"messages": [{"role": "user", "content": ")", text, "\"}]", more, "}");
  };
  const auto completion = [](const std::string& prompt, const std::string& more) {
    return absl::StrCat(R"({"prompt": )", prompt, more, "}");
  };
  const std::string quoted = absl::StrCat("\"", room, "\"");
  const struct {
    const char* path;
    std::string body, param;
    std::vector<std::string> counts;
  } cases[] = {
      {kCompletions, completion(absl::StrCat("\"", full, "\""), ""), "prompt", {"128 tokens"}},
      {kCompletions, completion(ids + "]", ""), "prompt", {"128 tokens"}},
      {kCompletions,
       completion(quoted, R"(, "max_tokens": 2)"),
       "max_tokens",
       {"127", "128", "1 "}},
      {kCompletions,
       completion(absl::StrCat("\"", huge, "\""), ""),
       "prompt",
       {"2097152 bytes", "1048576"}},
      {"/v1/chat/completions", chat(full, ""), "messages", {"128 tokens"}},
      {"/v1/chat/completions", chat(room, R"(, "max_tokens": 2)"), "max_tokens", {"127", "128"}},
      {"/v1/chat/completions", chat(huge, ""), "messages", {"2097152 bytes", "1048576"}},
  };
  for (const auto& c : cases) {
    client.Post(c.path, c.body);
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 400) << c.path;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded") << error;
    EXPECT_EQ(error["param"], c.param) << error;
    for (const std::string& count : c.counts) {
      EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(count));
    }
  }
  EXPECT_EQ(cluster_->decode(0)->decode_count(), 0);
}

TEST_F(OpenAiServiceTest, AnswersConnectionsAndStreamsAreCounted) {
  Start([](Options* options) {
    options->metrics_listen = "127.0.0.1:0";
    options->max_http_connections = 2;
  });
  const auto metrics = [&] {
    return testing::HttpGet(cluster_->server().metrics_address(), "/metrics");
  };
  const auto await = [&](const std::string& line) {
    const absl::Time patience = absl::Now() + testing::kPatience;
    while (!absl::StrContains(metrics(), line)) {
      if (absl::Now() > patience) return false;
    }
    return true;
  };
  const std::string common = R"({model="tiny",role="router"})";
  HttpClient client(address()), idle(address());
  client.Get("/nowhere/at/all");
  EXPECT_EQ(client.Read().status, 404);
  EXPECT_TRUE(await(R"(code="404",route="other"} 1)"));
  client.Get("/v1/models/tiny");
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_TRUE(await(R"(code="200",route="/v1/models"} 1)"));
  EXPECT_TRUE(await(absl::StrCat("baton_http_connections", common, " 2")));
  HttpClient refused(address());
  EXPECT_TRUE(refused.AtEnd());
  EXPECT_TRUE(await(absl::StrCat("baton_http_connections_refused_total", common, " 1")));

  client.Post(kCompletions, R"({"prompt": "p", "stream": true})");
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  call.SendTokens(Ids("a"));
  client.ReadUntil(R"("text":"a")");
  EXPECT_TRUE(await(absl::StrCat("baton_http_streams", common, " 1")));
  EXPECT_TRUE(await(R"(code="200",route="/v1/completions"} 1)"));
  call.Finish(Ids("b"), DecodeResponse::FINISH_LENGTH);
  client.ReadUntil("0\r\n\r\n");
  EXPECT_TRUE(await(absl::StrCat("baton_http_streams", common, " 0")));
  client.Close();
  EXPECT_TRUE(await(absl::StrCat("baton_http_connections", common, " 1")));
}

TEST_F(OpenAiServiceTest, TheStatusHasWorkersAndLatencies) {
  Start([](Options* options) { options->metrics_listen = "127.0.0.1:0"; });
  HttpClient client(address());
  const auto status = [&] {
    client.Get("/v1/baton/status");
    return Json::parse(client.Read().body);
  };
  const Json before = status();
  EXPECT_EQ(before["ready"], true);
  ASSERT_EQ(before["workers"].size(), 2u);
  EXPECT_EQ(before["workers"][1]["role"], "decode");
  const Json& blocks = before["workers"][1]["kv_blocks"];
  EXPECT_EQ(blocks["total"], 64);
  EXPECT_EQ(blocks["total"],
            blocks["used"].get<int>() + blocks["cached"].get<int>() + blocks["free"].get<int>());
  for (const char* name : {"time_to_first_token", "inter_token_latency"}) {
    EXPECT_EQ(before[name]["counts"].size(), before[name]["bounds_s"].size() + 1);
    EXPECT_EQ(before[name]["counts"].back(), 0);
  }
  client.Post(kCompletions, R"({"prompt": "p"})");
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  call.SendTokens(Ids("a"));
  call.SendTokens(Ids("b"));
  call.Finish(Ids("c"), DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(client.Read().status, 200);
  const Json after = status();
  EXPECT_EQ(after["time_to_first_token"]["counts"].back(), 1);
  EXPECT_EQ(after["inter_token_latency"]["counts"].back(), 2);
}

TEST_F(OpenAiServiceTest, ModelsAndProbes) {
  Start();
  HttpClient client(address());
  const auto get = [&](const std::string& path) {
    client.Get(path);
    return client.Read();
  };
  const Json models = Json::parse(get("/v1/models").body);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 128);
  EXPECT_EQ(Json::parse(get("/v1/models/tiny").body)["id"], "tiny");
  EXPECT_EQ(Json::parse(get("/v1/models/%74in%79").body)["id"], "tiny");
  EXPECT_EQ(get("/v1/models/other").status, 404);
  EXPECT_EQ(get("/v1/models/tiny%2").status, 404);
  EXPECT_EQ(get("/livez").status, 200);
  EXPECT_EQ(get("/startupz").status, 200);
  // Ready before, and no longer once its only decode worker is gone.
  EXPECT_EQ(get("/readyz").status, 200);
  cluster_->decode(0).reset();
  ASSERT_TRUE(cluster_->AwaitState([](const v1::WorkerStatus& w) {
    return w.role() != v1::WORKER_ROLE_DECODE || w.state() != v1::WORKER_STATE_READY;
  }));
  EXPECT_EQ(get("/readyz").status, 503);
  EXPECT_EQ(get("/startupz").status, 200);
  EXPECT_EQ(get("/livez").status, 200);
}

TEST_F(OpenAiServiceTest, ASlowReaderGetsTheWholeTextInFewerEvents) {
  Start([](Options* options) { options->metrics_listen = "127.0.0.1:0"; });
  HttpClient client(address());
  constexpr int kTokens = 30'000;
  // With log probabilities, the answer is larger than the buffers of both sockets.
  client.Post(kCompletions, R"({"prompt": "p", "stream": true, "logprobs": 20})");
  DecodeCall call = cluster_->decode(0)->AwaitDecode();
  for (int i = 0; i < kTokens; ++i) {
    DecodeResponse message;
    message.add_token_ids('a');
    v1::TokenLogprobs* logprobs = message.add_logprobs();
    logprobs->set_token_id('a');
    for (int k = 0; k < 20; ++k) logprobs->add_top()->set_token_id('a' + k);
    if (i + 1 == kTokens) message.set_finish(DecodeResponse::FINISH_LENGTH);
    call.stream->Send(message);
  }
  call.stream->End(grpc::Status::OK);
  ASSERT_TRUE(call.stream->AwaitDone());
  const absl::Time patience = absl::Now() + testing::kPatience;
  const auto ended = [&] {
    return absl::StrContains(testing::HttpGet(cluster_->server().metrics_address(), "/metrics"),
                             R"(code="OK",finish_reason="length"} 1)");
  };
  while (!ended()) ASSERT_LT(absl::Now(), patience);
  size_t text = 0;
  const std::vector<Json> events = Events(client.Read().body);
  for (const Json& event : events) {
    if (event.is_object()) text += event["choices"][0]["text"].get<std::string>().size();
  }
  EXPECT_EQ(text, static_cast<size_t>(kTokens));
  EXPECT_LT(events.size(), static_cast<size_t>(kTokens / 4)) << "nothing was merged";
}

}  // namespace
}  // namespace baton::router
