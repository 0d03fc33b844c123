// The HTTP side of bench_target.h, with answers of servers that are not Baton's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "cli/bench/target.h"
#include "common/base/error.h"
#include "tests/cli/one_answer.h"

namespace baton::cli {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Events(const std::vector<std::string>& events) {
  std::string answer = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: a comment\n";
  for (const std::string& event : events) absl::StrAppend(&answer, "data: ", event, "\r\n\r\n");
  return answer;
}

std::string Chunk(const std::string& text, const std::string& more = "") {
  return absl::StrCat("{\"choices\": [{\"index\": 0, \"text\": \"", text, "\"}]", more, "}");
}

struct Exchange {
  Outcome outcome;
  nlohmann::json sent;
  std::string headers;
};

// Sends one prompt to a server that gives `answer`.
Exchange Ask(const std::string& answer, TargetOptions options = {},
             const BenchPrompt& prompt = {"", {1, 2, 3}, 9}) {
  OneAnswer server(answer);
  options.backend = options.backend == "baton" ? "openai" : options.backend;
  options.base_url = server.url() + "/";
  options.model = "m";
  options.keep_text = true;
  std::unique_ptr<BenchTarget> target = MakeTarget(options);
  EXPECT_EQ(target->Connect()->id, "m");
  EXPECT_FALSE(target->Counter());
  Exchange exchange;
  absl::Notification ended;
  target->Send(prompt, 5, 0, [&](Outcome outcome) {
    exchange.outcome = std::move(outcome);
    ended.Notify();
  });
  ended.WaitForNotification();
  target.reset();  // closes the connection
  const std::string request = server.request();
  const size_t body = request.find("\r\n\r\n") + 4;
  exchange.headers = request.substr(0, body);
  exchange.sent = nlohmann::json::parse(request.substr(body));
  return exchange;
}

TEST(BenchHttpTest, SendsWhatServersOfOpenAiTake) {
  TargetOptions options;
  options.headers = {"X-Name: value"};
  options.ignore_eos = true;
  options.sampling.seed = 7;
  options.sampling.temperature = 0.5f;
  const Exchange completion = Ask(Events({"[DONE]"}), options);
  EXPECT_THAT(completion.headers, ::testing::StartsWith("POST /v1/completions HTTP/1.1\r\n"));
  EXPECT_THAT(completion.headers, HasSubstr("X-Name: value\r\n"));
  EXPECT_EQ(completion.sent,
            nlohmann::json(
                {{"model", "m"},
                 {"prompt", {1, 2, 3}},
                 {"max_tokens", 9},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}},
                 {"ignore_eos", true},
                 {"temperature", 0.5},
                 {"seed", 12}}));
  options = {};
  options.backend = "openai-chat";
  options.endpoint = "/chat";
  const Exchange chat = Ask(Events({"[DONE]"}), options, {"hi", {}, 9});
  EXPECT_THAT(chat.headers, ::testing::StartsWith("POST /chat HTTP/1.1\r\n"));
  EXPECT_EQ(chat.sent["messages"], nlohmann::json::parse(R"([{"role": "user", "content": "hi"}])"));
  EXPECT_FALSE(chat.sent.contains("prompt"));
  EXPECT_FALSE(chat.sent.contains("ignore_eos"));
}

TEST(BenchHttpTest, CountsTokensAsTheServerDoes) {
  // With each chunk: three tokens in two.
  const Outcome running =
      Ask(Events({Chunk("a", ", \"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": 1}"),
                  Chunk("bc", ", \"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": 3}"),
                  "{\"choices\": [], \"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": 3, "
                  "\"prompt_tokens_details\": {\"cached_tokens\": 2}}}",
                  "[DONE]"}))
          .outcome;
  EXPECT_TRUE(running.status.ok()) << running.status;
  EXPECT_EQ(running.kind, 5);
  EXPECT_EQ(running.text, "abc");
  EXPECT_THAT(running.token_s, SizeIs(3));
  EXPECT_EQ(running.usage.cached_prompt_tokens(), 2);
  // At the end only: five tokens in three chunks, none before the first.
  const Outcome at_the_end =
      Ask(Events({Chunk("a"), Chunk("b"), Chunk(""), Chunk("c"),
                  "{\"choices\": [], \"usage\": {\"prompt_tokens\": 4, \"completion_tokens\": 5}}",
                  "[DONE]"}))
          .outcome;
  EXPECT_THAT(at_the_end.token_s, SizeIs(5));
  EXPECT_TRUE(std::is_sorted(at_the_end.token_s.begin(), at_the_end.token_s.end()));
  EXPECT_EQ(at_the_end.usage.generated_tokens(), 5);
  EXPECT_EQ(at_the_end.usage.prompt_tokens(), 4);
  // Never: a token for each chunk, and the prompt as it was sent.
  const Outcome never = Ask(Events({Chunk("a"), Chunk("b"), "[DONE]"})).outcome;
  EXPECT_THAT(never.token_s, SizeIs(2));
  EXPECT_THAT(never.token_s, Each(::testing::Ge(never.sent_s)));
  EXPECT_EQ(never.usage.generated_tokens(), 2);
  EXPECT_EQ(never.usage.prompt_tokens(), 3);
}

TEST(BenchHttpTest, ThoughtsOfAChatAreTokens) {
  TargetOptions options;
  options.backend = "openai-chat";
  const Outcome outcome =
      Ask(Events({R"({"choices": [{"delta": {"role": "assistant", "content": ""}}]})",
                  R"({"choices": [{"delta": {"reasoning_content": "hm "}}]})",
                  R"({"choices": [{"delta": {"content": "yes"}}]})", "[DONE]"}),
          options, {"hi", {}, 9})
          .outcome;
  EXPECT_THAT(outcome.token_s, SizeIs(2)) << "a role is no token";
  EXPECT_EQ(outcome.text, "hm yes");
}

TEST(BenchHttpTest, FailuresKeepTheirKind) {
  const auto failure = [](const std::string& answer) { return Ask(answer).outcome.status; };
  const absl::Status busy = failure("HTTP/1.1 429 Busy\r\nContent-Length: 4\r\n\r\nwait");
  EXPECT_TRUE(absl::IsResourceExhausted(busy)) << busy;
  EXPECT_THAT(std::string(busy.message()), HasSubstr("answered 429: wait"));
  EXPECT_EQ(ErrorReason(busy), "");
  EXPECT_FALSE(ErrorRetryAfter(busy));
  const std::string body = R"({"error": {"code": "router_full", "message": "m"}})";
  const auto refused = [&](const std::string& headers) {
    return failure(absl::StrCat("HTTP/1.1 429 Busy\r\nContent-Length: ", body.size(), "\r\n",
                                headers, "\r\n", body));
  };
  EXPECT_EQ(ErrorReason(refused("")), "ROUTER_FULL");
  EXPECT_EQ(ErrorRetryAfter(refused("Retry-After: 2\r\n")), absl::Seconds(2));
  EXPECT_EQ(ErrorRetryAfter(refused("Retry-After: 2\r\nretry-after-ms: 1250\r\n")),
            absl::Milliseconds(1250));
  for (const char* wrong : {"-1", "soon", "inf", "nan"}) {
    const auto retry = ErrorRetryAfter(refused(absl::StrCat("Retry-After: ", wrong, "\r\n")));
    EXPECT_FALSE(retry) << wrong << ": " << *retry;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(failure("HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n")));
  EXPECT_TRUE(absl::IsInternal(failure("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")));
  EXPECT_THAT(std::string(failure(Events({Chunk("a")})).message()), HasSubstr("without [DONE]"));
  EXPECT_THAT(std::string(failure(Events({"{\"error\": \"gone\"}", "[DONE]"})).message()),
              HasSubstr("gone"));
  for (const char* event : {"{", "3", "\"x\""}) {
    EXPECT_TRUE(absl::IsInternal(failure(Events({event, "[DONE]"})))) << event;
  }
  // What has another form than OpenAI's gives no token, and no crash.
  for (const char* event :
       {R"({"choices": 3})", R"({"choices": [3]})", R"({"choices": [{"delta": 3}]})",
        R"({"choices": [{"text": 3}], "usage": {"completion_tokens": -3}})", R"({"usage": []})",
        R"({"usage": {"prompt_tokens_details": null}})"}) {
    const Outcome outcome = Ask(Events({event, "[DONE]"})).outcome;
    EXPECT_TRUE(outcome.status.ok()) << event << outcome.status;
    EXPECT_THAT(outcome.token_s, SizeIs(0)) << event;
  }
}

TEST(BenchHttpTest, FindsTheModel) {
  const auto model_of = [](const std::string& body) {
    OneAnswer server(
        absl::StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
    TargetOptions options;
    options.backend = "openai";
    options.base_url = server.url();
    const auto model = MakeTarget(options)->Connect();
    return model.ok() ? model->id : std::string(model.status().message());
  };
  EXPECT_EQ(model_of(R"({"data": [{"id": "org/m"}, {"id": "other"}]})"), "org/m");
  for (const char* body : {"", "[]", "{}", R"({"data": []})", R"({"data": [{"id": 3}]})"}) {
    EXPECT_THAT(model_of(body), HasSubstr("/v1/models lists no model")) << body;
  }
}

}  // namespace
}  // namespace baton::cli
