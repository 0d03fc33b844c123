// Clients that do not read their answers, or read them slowly: what they hold in a router, and for
// how long. The answer is generated first; then the clock moves only as far as a test moves it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "tests/router/fake_clock.h"
#include "tests/router/generate_client.h"
#include "tests/testing/fake_cluster.h"
#include "tests/testing/http_client.h"
#include "tests/testing/unread_call.h"

namespace baton::router {
namespace {

using ::baton::internal::v1::DecodeResponse;
using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::baton::testing::HttpClient;
using ::baton::testing::HttpReply;
using ::baton::testing::Ids;
using ::baton::testing::kPatience;
using ::baton::testing::UnreadCall;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kUnreadChoices = 16;
constexpr int kUnreadTokens =
    500;  // tokens of each choice: some 2 MB of JSON, more than all socket buffers hold
constexpr int kTinyBuffer = 4096;
constexpr absl::Duration kUnreadLimit = absl::Milliseconds(400);
// Between two looks at a write, less time than this passes for a client that reads.
constexpr absl::Duration kReaderStep = absl::Milliseconds(25);

std::string LargeBody(bool stream) {
  return absl::StrCat(R"({"prompt": "p", "n": 16, "logprobs": 20, "stream": )",
                      stream ? "true" : "false", "}");
}

v1::GenerateRequest LargeRequest() {
  v1::GenerateRequest request = testing::Prompt("p");
  request.set_n(kUnreadChoices);
  request.set_logprobs(20);
  return request;
}

DecodeResponse TokensWithLogprobs(int choice, int count) {
  DecodeResponse message;
  message.set_choice(choice);
  for (int i = 0; i < count; ++i) {
    message.add_token_ids('a');
    v1::TokenLogprobs* logprobs = message.add_logprobs();
    logprobs->set_token_id('a');
    for (int k = 0; k < 20; ++k) logprobs->add_top()->set_token_id('a' + k);
  }
  return message;
}

// The worker generates the whole answer at once.
void GenerateAll(DecodeCall& call, int tokens = kUnreadTokens) {
  for (int i = 0; i < tokens; i += 50) {
    for (int choice = 0; choice < kUnreadChoices; ++choice) {
      DecodeResponse message = TokensWithLogprobs(choice, 50);
      if (i + 50 >= tokens) message.set_finish(DecodeResponse::FINISH_LENGTH);
      call.stream->Send(message);
    }
  }
  call.stream->End(grpc::Status::OK);
}

class UnreadTest : public ::testing::Test {
 protected:
  void Start(const std::function<void(Options*)>& adjust = nullptr) { Start(adjust, clock_); }
  void Start(const std::function<void(Options*)>& adjust, const Clock& clock) {
    const auto options = [&](Options* options) {
      options->http_listen = options->metrics_listen = "127.0.0.1:0";
      options->max_inflight_requests = 4;
      options->write_stall_timeout_ms = absl::ToInt64Milliseconds(kUnreadLimit);
      if (adjust != nullptr) adjust(options);
    };
    cluster_ = std::make_unique<FakeCluster>(1, 1, options, clock);
  }
  std::string http() const { return cluster_->server().http_address(); }
  std::unique_ptr<UnreadCall> NewUnread(const std::string& method,
                                        const google::protobuf::Message& request) {
    return std::make_unique<UnreadCall>(
        cluster_->server().address(), absl::StrCat("/baton.v1.InferenceService/", method), request);
  }
  DecodeCall NextDecode() { return cluster_->decode(0)->AwaitDecode(); }

  // -1: there is no such series.
  double Metric(const std::string& series) const {
    const std::string text = testing::HttpGet(cluster_->server().metrics_address(), "/metrics");
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      if (absl::ConsumePrefix(&line, series)) return std::stod(std::string(line));
    }
    return -1;
  }
  double Stalled() const { return Metric(Series("baton_unread_answers_total", "stalled")); }
  static std::string Series(const std::string& name, const std::string& reason) {
    return absl::StrCat(name, R"({model="tiny",role="router",reason=")", reason, "\"} ");
  }
  static std::string Plain(const std::string& name) {
    return absl::StrCat(name, R"({model="tiny",role="router"} )");
  }
  double Ended() const {
    return Metric(
        R"(baton_requests_total{model="tiny",role="router",code="OK",finish_reason="length"} )");
  }
  // Calls `happened` again and again until it is true, and `meanwhile` in between.
  bool AwaitThat(const std::function<bool()>& happened,
                 const std::function<void()>& meanwhile = nullptr) {
    const absl::Time patience = absl::Now() + kPatience;
    while (!happened()) {
      if (absl::Now() > patience) return false;
      if (meanwhile != nullptr) meanwhile();
    }
    return true;
  }
  void PassTime() { clock_.Advance(kUnreadLimit / 4); }

  // A further request is let in and answered.
  void ExpectRoom() {
    cluster_->SetReply(
        [](DecodeCall call) { call.Finish(Ids("x"), DecodeResponse::FINISH_LENGTH); });
    HttpClient other(http());
    other.Post("/v1/completions", R"({"prompt": "p"})");
    const HttpReply reply = other.Read();
    EXPECT_EQ(reply.status, 200) << reply.body;
  }

  testing::SteppedClock clock_;
  std::unique_ptr<FakeCluster> cluster_;
};

class UnreadHttpTest : public UnreadTest, public ::testing::WithParamInterface<bool> {};

TEST_P(UnreadHttpTest, AClientThatNeverReadsHoldsNoPlaceAndIsLeftAfterTheLimit) {
  Start();
  std::vector<std::unique_ptr<HttpClient>> clients;
  std::vector<DecodeCall> calls;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<HttpClient>(http(), kTinyBuffer));
    clients.back()->Post("/v1/completions", LargeBody(GetParam()));
    calls.push_back(NextDecode());
  }
  HttpClient refused(http());
  refused.Post("/v1/completions", R"({"prompt": "p"})");
  EXPECT_EQ(refused.Read().status, 429) << "four are generated";
  for (DecodeCall& call : calls) GenerateAll(call);
  ASSERT_TRUE(AwaitThat([&] { return Ended() == 4; }));
  EXPECT_EQ(Metric(Plain("baton_requests_inflight")), 0);
  EXPECT_TRUE(AwaitThat([&] { return Metric(Plain("baton_unread_bytes")) > 2e6; }));
  ExpectRoom();
  EXPECT_EQ(Stalled(), 0);

  for (const auto& client : clients) {
    EXPECT_TRUE(AwaitThat([&] { return client->WasReset(absl::Milliseconds(20)); },
                          [this] { PassTime(); }));
  }
  EXPECT_EQ(Stalled(), 4);
  EXPECT_TRUE(AwaitThat([&] { return Metric(Plain("baton_unread_bytes")) == 0; }));
}

INSTANTIATE_TEST_SUITE_P(StreamOrNot, UnreadHttpTest, ::testing::Bool());

class UnreadGrpcTest : public UnreadTest, public ::testing::WithParamInterface<const char*> {
 protected:
  std::unique_ptr<UnreadCall> Call(const v1::GenerateRequest& request) {
    if (GetParam() == std::string("Generate")) {
      return NewUnread("Generate", request);
    }
    v1::GenerateOnceRequest once;
    *once.mutable_request() = request;
    return NewUnread("GenerateOnce", once);
  }
};

TEST_P(UnreadGrpcTest, AClientThatNeverReadsHoldsNoPlaceAndIsLeftAfterTheLimit) {
  Start();
  std::vector<std::unique_ptr<UnreadCall>> unread;
  for (int i = 0; i < 4; ++i) {
    unread.push_back(Call(LargeRequest()));
    DecodeCall call = NextDecode();
    GenerateAll(call);
  }
  ASSERT_TRUE(AwaitThat([&] { return Ended() == 4; }));
  EXPECT_EQ(Metric(Plain("baton_requests_inflight")), 0);
  EXPECT_GT(Metric(Plain("baton_unread_bytes")), 1e6);
  ExpectRoom();
  EXPECT_EQ(Stalled(), 0);

  // A message gets the limit for each 64 KiB.
  EXPECT_TRUE(AwaitThat([&] { return Stalled() == 4; }, [this] { PassTime(); }));
  for (const auto& call : unread) {
    const absl::Status end = call->Rest();
    EXPECT_EQ(end.code(), absl::StatusCode::kAborted) << end;
    EXPECT_THAT(std::string(end.message()), HasSubstr("READER_STALLED"));
  }
  EXPECT_TRUE(AwaitThat([&] { return Metric(Plain("baton_unread_bytes")) == 0; }));
}

INSTANTIATE_TEST_SUITE_P(StreamOrNot, UnreadGrpcTest,
                         ::testing::Values("Generate", "GenerateOnce"));

TEST_F(UnreadTest, AnAnswerThatIsStillGeneratedEndsWithItsReader) {
  Start(nullptr, Clock::Real());  // by the test's clock, the worker would soon be silent
  const auto unread = NewUnread("Generate", LargeRequest());
  DecodeCall call = NextDecode();
  for (int i = 0; i < 20; ++i) call.stream->Send(TokensWithLogprobs(i % kUnreadChoices, 200));
  EXPECT_TRUE(call.stream->AwaitCancelled());
  EXPECT_EQ(Stalled(), 1);
  EXPECT_EQ(unread->Rest().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(AwaitThat([&] { return Metric(Plain("baton_requests_inflight")) == 0; }));
}

TEST_F(UnreadTest, ASlowReaderOverHttpGetsEverything) {
  for (const bool stream : {true, false}) {
    Start();
    HttpClient client(http(), kTinyBuffer);
    client.Post("/v1/completions", LargeBody(stream), "Connection: close\r\n");
    DecodeCall call = NextDecode();
    GenerateAll(call);
    ASSERT_TRUE(AwaitThat([&] { return Ended() == 1; }));
    // Within the limit, the client reads several times what the sockets hold.
    std::string all;
    absl::Duration took;
    while (true) {
      const std::string piece = client.Take(16'000);
      if (piece.empty()) break;
      all += piece;
      clock_.Advance(kReaderStep);
      took += kReaderStep;
    }
    EXPECT_GT(took, 3 * kUnreadLimit);
    EXPECT_EQ(Stalled(), 0);
    EXPECT_TRUE(absl::EndsWith(all, stream ? "data: [DONE]\n\n\r\n0\r\n\r\n" : "}")) << all.size();
  }
}

TEST_F(UnreadTest, ASlowReaderOverGrpcGetsEverything) {
  Start();
  const auto client = NewUnread("Generate", LargeRequest());
  DecodeCall call = NextDecode();
  GenerateAll(call, 4 * kUnreadTokens);
  ASSERT_TRUE(AwaitThat([&] { return Ended() == 1; }));
  grpc::ByteBuffer bytes;
  size_t tokens = 0;
  int messages = 0;
  while (client->Read(&bytes)) {
    clock_.Advance(kReaderStep);
    ++messages;
    v1::GenerateResponse response;
    grpc::Slice slice;
    ASSERT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
    ASSERT_TRUE(response.ParseFromArray(slice.begin(), static_cast<int>(slice.size())));
    tokens += response.text().size();
  }
  EXPECT_GT(messages, 32) << "twice the limit at least";
  EXPECT_EQ(tokens, static_cast<size_t>(kUnreadChoices * 4 * kUnreadTokens));
  EXPECT_TRUE(client->Rest().ok());
  EXPECT_EQ(Stalled(), 0);
}

TEST_F(UnreadTest, OneStreamHasABoundAndEndsWithAnErrorBehindWhatWaited) {
  Start([](Options* options) { options->unread_answer_bytes = 1 << 20; });
  HttpClient http_client(http(), kTinyBuffer);
  http_client.Post("/v1/completions", LargeBody(true));
  DecodeCall over_http = NextDecode();
  const auto grpc_client = NewUnread("Generate", LargeRequest());
  DecodeCall over_grpc = NextDecode();
  for (DecodeCall* call : {&over_http, &over_grpc}) {
    GenerateAll(*call, 4 * kUnreadTokens);
    EXPECT_TRUE(call->stream->AwaitDone());
  }
  ASSERT_TRUE(AwaitThat(
      [&] { return Metric(Series("baton_unread_answers_total", "answer_memory")) == 2; }));
  EXPECT_TRUE(AwaitThat([&] { return Metric(Plain("baton_requests_inflight")) == 0; }));
  // These bytes are what waits, what is being written, and what an answer takes besides.
  EXPECT_LT(Metric(Plain("baton_unread_bytes")), 2 * (1 << 20) + 2e6);
  const std::string events = http_client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(events, HasSubstr("reader_behind"));
  EXPECT_THAT(events, Not(HasSubstr("[DONE]")));
  EXPECT_GT(events.size(), 200'000u);
  const absl::Status end = grpc_client->Rest();
  EXPECT_EQ(end.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ErrorReason(end), "READER_BEHIND");
}

TEST_F(UnreadTest, AllAnswersHaveABoundAndTheLeastReadOneEnds) {
  Start([](Options* options) { options->unread_bytes = 12 << 20; });
  HttpClient first(http(), kTinyBuffer);
  first.Post("/v1/completions", LargeBody(true));
  DecodeCall call = NextDecode();
  GenerateAll(call);
  ASSERT_TRUE(AwaitThat([&] { return Ended() == 1; }));
  const auto second = NewUnread("Generate", LargeRequest());
  call = NextDecode();
  GenerateAll(call);
  EXPECT_TRUE(AwaitThat([&] { return Ended() == 2; }));
  // Each of the two takes some 7 MB.
  EXPECT_TRUE(first.WasReset(kPatience));
  EXPECT_EQ(Metric(Series("baton_unread_answers_total", "memory")), 1);
  EXPECT_LE(Metric(Plain("baton_unread_bytes")), 12 << 20);
  EXPECT_TRUE(second->Rest().ok());
  ExpectRoom();
}

}  // namespace
}  // namespace baton::router
