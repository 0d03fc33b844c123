// Requests through a real router to scripted workers: relay, ends, cancels, failures, retries.
#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "router/request/generate_call.h"
#include "tests/router/generate_client.h"
#include "tests/testing/fake_cluster.h"
#include "tests/testing/http_client.h"

namespace baton::router {
namespace {

using ::baton::testing::Call;
using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::baton::testing::Ids;
using ::baton::testing::kEndToken;
using ::baton::testing::kGone;
using ::baton::testing::Prompt;
using ::baton::testing::Replies;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using DecodeResponse = internal::v1::DecodeResponse;

TEST(GenerateTest, TheBytesOfMessagesAreBounded) {
  FakeCluster cluster(1, 1, [](Options* options) { options->max_inflight_request_bytes = 1000; });
  v1::GenerateRequest large = Prompt("p");
  large.mutable_stop()->set_max_tokens(2);
  // The router does not know this field, and gRPC keeps its bytes for the whole call.
  large.GetReflection()->MutableUnknownFields(&large)->AddLengthDelimited(500,
                                                                          std::string(900, 'x'));
  Call running(cluster, large);
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  Call refused(cluster, large);
  const absl::Status refusal = refused.End();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kResourceExhausted) << refusal;
  EXPECT_EQ(ErrorReason(refusal), "TOO_MANY_REQUEST_BYTES");
  EXPECT_TRUE(ErrorRetryAfter(refusal).has_value());
  // A call that is answered at once is served all the same.
  const auto stub = v1::InferenceService::NewStub(cluster.channel());
  grpc::ClientContext context;
  v1::CancelRequest cancel;
  cancel.set_request_id(std::string(120, 'i'));
  v1::CancelResponse answer;
  EXPECT_EQ(stub->Cancel(&context, cancel, &answer).error_code(), grpc::StatusCode::NOT_FOUND);
  decode.Finish(Ids("ab"), DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(running.Rest().text(), "ab");
  EXPECT_TRUE(running.End().ok());
}

TEST(GenerateTest, WorkersGetEverythingFilledIn) {
  FakeCluster cluster;
  v1::GenerateRequest request = Prompt("hello");
  request.set_request_id("r-1");
  request.set_cache_salt("salt");
  request.mutable_sampling()->set_top_k(-1);
  request.mutable_sampling()->set_seed(42);
  request.mutable_stop()->set_max_tokens(7);
  request.mutable_stop()->add_stop_token_ids(9);
  Call call(cluster, request);
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  const auto& sent = decode.request;
  EXPECT_EQ(sent.request_id(), "r-1");
  EXPECT_THAT(sent.tokens(), ::testing::ElementsAreArray(Ids("hello")));
  EXPECT_EQ(sent.sampling().temperature(), 1);
  EXPECT_EQ(sent.sampling().top_p(), 1);
  EXPECT_EQ(sent.sampling().top_k(), 0);
  EXPECT_EQ(sent.sampling().seed(), 42u);
  EXPECT_EQ(sent.max_tokens(), 7);
  EXPECT_THAT(sent.stop_token_ids(), ElementsAre(9, kEndToken));
  EXPECT_EQ(sent.cache_salt(), "salt");
  const auto workers = cluster.Workers();
  EXPECT_EQ(sent.prefill().address(), workers[0].address());
  EXPECT_EQ(sent.prefill().epoch(), workers[0].epoch());
  EXPECT_EQ(sent.decode_epoch(), workers[1].epoch());
  // The client set no deadline; the router's default is there, minutes away.
  const auto left = decode.deadline - std::chrono::system_clock::now();
  EXPECT_GT(left, std::chrono::minutes(8));
  EXPECT_LT(left, std::chrono::minutes(11));
  decode.Finish(Ids("!"), DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(call.Rest().text(), "!");
  EXPECT_TRUE(call.End().ok());
}

TEST(GenerateTest, StreamsTextUsageTimingsAndSeed) {
  FakeCluster cluster;
  v1::GenerateRequest request = Prompt("hello");
  request.set_return_token_ids(true);
  Call call(cluster, request);
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  DecodeResponse first;
  first.add_token_ids('A');
  first.mutable_usage()->set_cached_prompt_tokens(3);
  first.mutable_usage()->set_kv_bytes(4096);
  decode.stream->Send(first);
  const auto head = call.Next();
  EXPECT_EQ(head.text(), "A");
  EXPECT_FALSE(head.request_id().empty());
  EXPECT_EQ(head.usage().prompt_tokens(), 5);
  EXPECT_EQ(head.usage().cached_prompt_tokens(), 3);
  EXPECT_EQ(head.finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  decode.SendTokens({0xc3});  // half a character: nothing to show yet
  decode.SendTokens({0xa9});
  decode.Finish({'B', kEndToken}, DecodeResponse::FINISH_STOP);
  const auto rest = call.Rest();
  EXPECT_EQ(rest.text(),
            "\xc3\xa9"
            "B")
      << "the stop token is not part of the text";
  EXPECT_THAT(rest.token_ids(), ElementsAre(0xc3, 0xa9, 'B', kEndToken));
  EXPECT_EQ(rest.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(rest.matched_stop(), "");
  EXPECT_EQ(rest.usage().generated_tokens(), 5);
  EXPECT_EQ(rest.usage().kv_bytes(), 4096);
  EXPECT_EQ(rest.timings().prefill_ms(), 7);
  EXPECT_GT(rest.timings().ttft_ms(), 0);
  EXPECT_EQ(rest.seed(), decode.request.sampling().seed());
  EXPECT_NE(rest.seed(), 0u) << "absent seeds are drawn";
  EXPECT_EQ(rest.request_id(), head.request_id());
  EXPECT_TRUE(call.End().ok());
}

TEST(GenerateTest, BrokenUtf8AtTheEndIsReplacedAndUnknownIdsAreSilent) {
  FakeCluster cluster;
  Call call(cluster, Prompt("x"));
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  decode.Finish({'a', 99'999, 0xc3}, DecodeResponse::FINISH_LENGTH);
  const auto rest = call.Rest();
  EXPECT_EQ(rest.text(), "a\xef\xbf\xbd");
  EXPECT_EQ(rest.usage().generated_tokens(), 3);
  EXPECT_EQ(rest.finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST(GenerateTest, AStopStringInTheFirstMessageHasItsTimings) {
  FakeCluster cluster;
  v1::GenerateRequest request = Prompt("x");
  request.mutable_stop()->add_stop("E");
  Call call(cluster, request);
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  DecodeResponse first;
  for (int32_t id : Ids("okE")) first.add_token_ids(id);
  first.mutable_timings()->set_queue_ms(2);
  first.mutable_timings()->set_prefill_ms(3);
  decode.stream->Send(first);
  const auto rest = call.Rest();
  EXPECT_EQ(rest.text(), "ok");
  EXPECT_EQ(rest.matched_stop(), "E");
  EXPECT_EQ(rest.timings().queue_ms(), 2);
  EXPECT_EQ(rest.timings().prefill_ms(), 3);
  EXPECT_TRUE(call.End().ok());
  EXPECT_TRUE(decode.stream->AwaitCancelled());
}

TEST(GenerateTest, StopStringCutsTheTextAndCancelsTheWorker) {
  FakeCluster cluster;
  v1::GenerateRequest request = Prompt("x");
  request.mutable_stop()->add_stop("END");
  request.set_return_token_ids(true);
  Call call(cluster, request);
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  DecodeResponse first;
  for (int32_t id : Ids("okE")) first.add_token_ids(id);
  first.mutable_timings()->set_queue_ms(2);
  first.mutable_timings()->set_prefill_ms(3);
  decode.stream->Send(first);
  EXPECT_EQ(call.Next().text(), "ok") << "E may become END";
  decode.SendTokens(Ids("NDmore"));
  const auto rest = call.Rest();
  EXPECT_EQ(rest.text(), "");
  EXPECT_EQ(rest.matched_stop(), "END");
  EXPECT_EQ(rest.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_THAT(rest.token_ids(), ElementsAre('N', 'D'));
  EXPECT_EQ(rest.usage().generated_tokens(), 5);
  EXPECT_EQ(rest.timings().queue_ms(), 2);
  EXPECT_EQ(rest.timings().prefill_ms(), 3);
  EXPECT_GT(rest.timings().decode_ms(), 0) << "the router's own measure";
  EXPECT_TRUE(call.End().ok());
  EXPECT_TRUE(decode.stream->AwaitCancelled());
}

TEST(GenerateTest, OnceIsTheSameInOneMessage) {
  FakeCluster cluster;
  cluster.decode(0)->SetReply([](DecodeCall decode) {
    decode.SendTokens(Ids("one "));
    decode.SendTokens(Ids("two"));
    decode.Finish({kEndToken}, DecodeResponse::FINISH_STOP);
  });
  v1::GenerateOnceRequest request;
  *request.mutable_request() = Prompt("x");
  request.mutable_request()->set_return_token_ids(true);
  request.mutable_request()->set_request_id("once");
  grpc::ClientContext context;
  v1::GenerateOnceResponse response;
  const auto stub = v1::InferenceService::NewStub(cluster.channel());
  ASSERT_TRUE(stub->GenerateOnce(&context, request, &response).ok());
  EXPECT_EQ(response.text(), "one two");
  EXPECT_EQ(response.token_ids_size(), 8);
  EXPECT_EQ(response.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(response.request_id(), "once");
}

TEST(GenerateTest, ManyTokensArriveWholeHoweverSlowTheClient) {
  FakeCluster cluster;
  Call call(cluster, Prompt("x"));
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  std::string all;
  for (int i = 0; i < 5000; ++i) {
    decode.SendTokens(Ids("abcdefgh"));
    all += "abcdefgh";
  }
  decode.Finish({kEndToken}, DecodeResponse::FINISH_STOP);
  ASSERT_TRUE(decode.stream->AwaitDone());
  EXPECT_EQ(call.Rest().text(), all);
  EXPECT_TRUE(call.End().ok());
}

// As clients have it whose gRPC was told nothing, but that windows do not grow: what nobody reads
// stays at the router.
std::shared_ptr<grpc::Channel> OrdinaryChannel(FakeCluster& cluster) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(cluster.server().address(), grpc::InsecureChannelCredentials(),
                                   arguments);
}

TEST(GenerateTest, AClientThatStopsReadingHoldsNoPlaceOnceItsAnswerIsGenerated) {
  FakeCluster cluster(1, 1, [](Options* options) { options->max_inflight_requests = 1; });
  cluster.decode(0)->SetReply([](DecodeCall call) {
    // More than connections buffer for one who does not read.
    call.Finish(std::vector<int32_t>(1 << 20, 'a'), DecodeResponse::FINISH_LENGTH);
  });
  Call silent(OrdinaryChannel(cluster), Prompt("hello"));
  silent.AwaitHeaders();  // headers come with the first token, here the last
  EXPECT_EQ(Call(cluster, Prompt("hello")).Rest().text().size(), 1u << 20);
}

// With 20 beside each, 12 bytes for each: some 250 bytes for a token.
std::vector<DecodeResponse> ManyLogprobs(int token_count) {
  std::vector<DecodeResponse> messages(token_count);
  for (DecodeResponse& message : messages) {
    message.add_token_ids('a');
    v1::TokenLogprobs* logprobs = message.add_logprobs();
    logprobs->set_token_id('a');
    logprobs->set_logprob(-1);
    for (int i = 0; i < 20; ++i) {
      logprobs->add_top()->set_token_id(200);
      logprobs->mutable_top(i)->set_logprob(-2);
    }
  }
  messages.back().set_finish(DecodeResponse::FINISH_LENGTH);
  return messages;
}

TEST(GenerateTest, ASlowReaderGetsNoMessageThatIsTooLarge) {
  FakeCluster cluster(1, 1, [](Options* options) { options->metrics_listen = "127.0.0.1:0"; });
  constexpr int kTokens = 25'000;
  v1::GenerateRequest request = Prompt("hello");
  request.set_logprobs(20);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + testing::kPatience));
  const auto stub = v1::InferenceService::NewStub(OrdinaryChannel(cluster));
  const auto reader = stub->Generate(&context, request);
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  for (const DecodeResponse& message : ManyLogprobs(kTokens)) decode.stream->Send(message);
  decode.stream->End(grpc::Status::OK);
  ASSERT_TRUE(decode.stream->AwaitDone());
  // Nothing is read before the router has seen the answer's end, however slow it is itself.
  const absl::Time patience = absl::Now() + testing::kPatience;
  const auto ended = [&cluster] {
    const std::string metrics = testing::HttpGet(cluster.server().metrics_address(), "/metrics");
    return absl::StrContains(metrics, R"(code="OK",finish_reason="length"} 1)");
  };
  while (!ended()) ASSERT_LT(absl::Now(), patience);
  v1::GenerateResponse response;
  v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED;
  int tokens = 0, messages = 0;
  size_t largest = 0;
  for (; reader->Read(&response); ++messages) {
    tokens += response.logprobs_size();
    finish = response.finish_reason();
    largest = std::max(largest, response.ByteSizeLong());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, kTokens);
  EXPECT_EQ(finish, v1::FINISH_REASON_LENGTH);
  EXPECT_LT(largest, 2u << 20);
  EXPECT_LT(messages, kTokens / 4) << "nothing was merged, and so nothing was tested";
}

TEST(GenerateTest, AnAnswerTooLargeForOneMessageFailsSoonAndSaysWhatToDo) {
  FakeCluster cluster;
  cluster.decode(0)->SetReply([](DecodeCall call) {
    for (const DecodeResponse& message : ManyLogprobs(25'000)) call.stream->Send(message);
    call.stream->End(grpc::Status::OK);
  });
  v1::GenerateOnceRequest request;
  *request.mutable_request() = Prompt("hello");
  request.mutable_request()->set_logprobs(20);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + testing::kPatience));
  v1::GenerateOnceResponse response;
  const auto stub = v1::InferenceService::NewStub(OrdinaryChannel(cluster));
  const absl::Status end = FromGrpcStatus(stub->GenerateOnce(&context, request, &response));
  EXPECT_EQ(end.code(), absl::StatusCode::kOutOfRange) << end;
  EXPECT_EQ(ErrorReason(end), "ANSWER_TOO_LARGE");
  EXPECT_THAT(std::string(end.message()), HasSubstr("Generate, which streams"));
}

TEST(GenerateTest, CancelReachesTheWorkerAtOnceBeforeAndAfterTheFirstToken) {
  FakeCluster cluster;
  for (bool after_first_token : {false, true}) {
    Call call(cluster, Prompt("x"));
    DecodeCall decode = cluster.decode(0)->AwaitDecode();
    if (after_first_token) {
      decode.SendTokens({'a'});
      call.Next();
    }
    call.Cancel();
    EXPECT_TRUE(decode.stream->AwaitCancelled());
    EXPECT_EQ(call.End().code(), absl::StatusCode::kCancelled);
  }
}

TEST(GenerateTest, DeadlineOfTheClientBindsTheWorker) {
  FakeCluster cluster;
  Call call(cluster, Prompt("x"), absl::Milliseconds(700));
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  EXPECT_LT(decode.deadline, std::chrono::system_clock::now() + std::chrono::minutes(1))
      << "the router's own default is ten";
  EXPECT_TRUE(decode.stream->AwaitCancelled());
  EXPECT_EQ(call.End().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(GenerateTest, DefaultDeadlineEndsACallWithoutOne) {
  FakeCluster cluster(1, 1, [](Options* options) { options->default_deadline_ms = 500; });
  Call call(cluster, Prompt("x"));
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  decode.SendTokens({'a'});
  const absl::Status end = [&] {
    call.Next();
    return call.End();
  }();
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorReason(end), "DEADLINE_EXCEEDED");
}

TEST(GenerateTest, AClientWhoseAnswerPausesHearsThatItsStreamLives) {
  FakeCluster cluster(1, 1);
  Call call(cluster, Prompt("x"));
  DecodeCall first = cluster.decode(0)->AwaitDecode();
  first.SendTokens({'a'});
  EXPECT_EQ(call.Next().text(), "a");
  first.Fail(kGone);
  DecodeCall second = cluster.decode(0)->AwaitDecode();
  EXPECT_TRUE(second.request.continuation());
  const auto empty = call.Next();  // the new stream has said nothing yet
  EXPECT_EQ(empty.text(), "");
  EXPECT_EQ(empty.usage().generated_tokens(), 1);
  EXPECT_EQ(empty.finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  EXPECT_TRUE(empty.request_id().empty());
  second.Finish({'b'}, internal::v1::DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(call.Rest().text(), "b");
  EXPECT_TRUE(call.End().ok());
}

TEST(GenerateTest, WorkerErrorsPassWithoutTheirSecrets) {
  struct Row {
    absl::StatusCode from;
    const char* reason;
    absl::StatusCode to;
    const char* to_reason;
    bool message_passes;
  };
  const std::vector<Row> rows = {
      {absl::StatusCode::kResourceExhausted, "KV_FULL", absl::StatusCode::kResourceExhausted,
       "KV_FULL", true},
      {absl::StatusCode::kInvalidArgument, "OUT_OF_RANGE", absl::StatusCode::kInvalidArgument,
       "OUT_OF_RANGE", true},
      {absl::StatusCode::kInternal, "ENGINE", absl::StatusCode::kInternal, "WORKER_FAILED", false},
      {absl::StatusCode::kDataLoss, "CHECKSUM", absl::StatusCode::kInternal, "WORKER_FAILED",
       false},
      {absl::StatusCode::kUnknown, "", absl::StatusCode::kInternal, "WORKER_FAILED", false},
      {absl::StatusCode::kUnavailable, "", absl::StatusCode::kUnavailable, "WORKER_LOST", false},
      {absl::StatusCode::kUnavailable, "PEER_LOST", absl::StatusCode::kUnavailable, "PEER_LOST",
       false},
      {absl::StatusCode::kUnavailable, "PREFILL_LOST", absl::StatusCode::kUnavailable,
       "PREFILL_LOST", false},
      {absl::StatusCode::kResourceExhausted, "", absl::StatusCode::kResourceExhausted, "", false},
      {absl::StatusCode::kFailedPrecondition, "STALE_EPOCH", absl::StatusCode::kUnavailable,
       "STALE_EPOCH", false},
      {absl::StatusCode::kCancelled, "", absl::StatusCode::kUnavailable, "WORKER_LOST", false},
      {absl::StatusCode::kOk, "", absl::StatusCode::kInternal, "WORKER_FAILED", false},
  };
  // Nobody else to go on with, and no patience.
  FakeCluster cluster(1, 1, [](Options* options) { options->failover_wait_ms = 0; });
  for (const Row& row : rows) {
    for (bool after_first_token : {false, true}) {
      SCOPED_TRACE(absl::StrCat(row.reason, " ", static_cast<int>(row.from)));
      // What has begun waits for room until its deadline.
      if (after_first_token && row.from == absl::StatusCode::kResourceExhausted) continue;
      absl::Status sent(row.from, "block 17 at ipv4:10.0.0.7:7001");
      sent = row.reason[0] == '\0' ? sent : MakeError(row.from, row.reason, sent.message());
      // However often it is asked.
      cluster.decode(0)->SetReply([=](DecodeCall decode) {
        if (after_first_token && decode.request.tokens_size() == 1) decode.SendTokens({'a'});
        decode.Fail(ToGrpcStatus(sent));
      });
      Call call(cluster, Prompt("x"));
      const auto rest = call.Rest();
      EXPECT_EQ(rest.finish_reason(), v1::FINISH_REASON_UNSPECIFIED) << "a failure is no finish";
      EXPECT_EQ(rest.text(), after_first_token ? "a" : "");
      const absl::Status got = call.End();
      EXPECT_EQ(got.code(), row.to) << got;
      EXPECT_EQ(ErrorReason(got), row.to_reason);
      EXPECT_EQ(std::string(got.message()).find("10.0.0.7") != std::string::npos,
                row.message_passes);
    }
  }
}

TEST(GenerateTest, AnotherPairIsTriedBeforeTheFirstToken) {
  FakeCluster cluster(2, 2);
  Replies replies(cluster, 2, [](int n, DecodeCall call) {
    if (n == 0) return call.Fail(kGone);
    call.Finish(Ids("fine"), DecodeResponse::FINISH_LENGTH);
  });
  Call call(cluster, Prompt("x"));
  EXPECT_EQ(call.Rest().text(), "fine");
  EXPECT_TRUE(call.End().ok());
  const auto requests = replies.requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_NE(requests[0].decode_epoch(), requests[1].decode_epoch());
  EXPECT_EQ(requests[0].sampling().seed(), requests[1].sampling().seed());
}

TEST(GenerateTest, AfterALostTransferBothWorkersAreOthers) {
  FakeCluster cluster(2, 2);
  Replies replies(cluster, 2, [](int n, DecodeCall call) {
    if (n > 0) return call.Finish(Ids("fine"), DecodeResponse::FINISH_LENGTH);
    call.Fail(ToGrpcStatus(MakeError(absl::StatusCode::kUnavailable, "PREFILL_LOST", "gone")));
  });
  Call call(cluster, Prompt("x"));
  EXPECT_EQ(call.Rest().text(), "fine");
  EXPECT_TRUE(call.End().ok());
  const auto requests = replies.requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_NE(requests[0].prefill().address(), requests[1].prefill().address());
  EXPECT_NE(requests[0].decode_epoch(), requests[1].decode_epoch());
}

TEST(GenerateTest, ThreeStreamsWithoutATokenAreEnough) {
  FakeCluster cluster(2, 4);
  Replies replies(cluster, 4, [](int, DecodeCall call) { call.Fail(kGone); });
  Call call(cluster, Prompt("x"));
  const absl::Status end = call.End();
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(end), "WORKER_LOST");
  EXPECT_TRUE(ErrorRetryAfter(end).has_value());
  EXPECT_EQ(replies.requests().size(), static_cast<size_t>(kMaxLosses));
}

TEST(GenerateTest, AnErrorOfTheRequestIsNotTriedAgain) {
  for (const char* reason : {"KV_POOL_TOO_SMALL", "TOO_MANY_CHOICES", "TENANT_LIMIT"}) {
    FakeCluster cluster(2, 2);
    Replies replies(cluster, 2, [=](int, DecodeCall call) {
      call.Fail(ToGrpcStatus(MakeError(absl::StatusCode::kResourceExhausted, reason, "no")));
    });
    Call refused(cluster, Prompt("x"));
    EXPECT_EQ(ErrorReason(refused.End()), reason);
    EXPECT_EQ(replies.requests().size(), 1u);
  }
}

TEST(GenerateTest, AFullWorkerIsPassedOverOnceAndThenItsRefusalPasses) {
  FakeCluster cluster(1, 3);
  Replies replies(cluster, 3, [](int, DecodeCall call) {
    call.Fail(ToGrpcStatus(
        WithRetryAfter(MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "9 wait"),
                       absl::Milliseconds(1234))));
  });
  Call call(cluster, Prompt("x"));
  const absl::Status end = call.End();
  EXPECT_EQ(ErrorReason(end), "QUEUE_FULL");
  EXPECT_EQ(ErrorRetryAfter(end), absl::Milliseconds(1234));
  const auto requests = replies.requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_NE(requests[0].decode_epoch(), requests[1].decode_epoch());
  EXPECT_TRUE(requests[1].has_prefill()) << "the only prefill worker was busy, not lost";
}

TEST(GenerateTest, ARefusalWithoutATimeGetsOne) {
  FakeCluster cluster(1, 2);
  Replies replies(cluster, 2, [](int, DecodeCall call) {
    call.Fail(
        ToGrpcStatus(MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "9 wait")));
  });
  Call call(cluster, Prompt("x"));
  const absl::Status end = call.End();
  EXPECT_EQ(ErrorReason(end), "QUEUE_FULL");
  EXPECT_EQ(ErrorRetryAfter(end), absl::Seconds(1));
}

TEST(GenerateTest, NothingIsSentBeforeTheFirstToken) {
  FakeCluster cluster;
  Call call(cluster, Prompt("x"));
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  absl::Notification headers;
  std::thread waiter([&] {
    call.AwaitHeaders();
    headers.Notify();
  });
  DecodeResponse alive;
  alive.mutable_timings()->set_queue_ms(1);
  for (int i = 0; i < 10; ++i) decode.stream->Send(alive);
  // What the router makes of a heartbeat, it makes at once: this is not a wait for something.
  EXPECT_FALSE(headers.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  decode.SendTokens({'a'});
  waiter.join();
  EXPECT_EQ(call.Next().text(), "a");
  decode.Finish({kEndToken}, DecodeResponse::FINISH_STOP);
  EXPECT_EQ(call.Rest().finish_reason(), v1::FINISH_REASON_STOP);
}

TEST(GenerateTest, MoreRequestsThanTheLimitAreRefusedWithTheTimeToRetry) {
  FakeCluster cluster(1, 1, [](Options* options) {
    options->max_inflight_requests = 2;
    options->retry_after_ms = 1500;
  });
  Call a(cluster, Prompt("x")), b(cluster, Prompt("x"));
  DecodeCall decode_a = cluster.decode(0)->AwaitDecode();
  DecodeCall decode_b = cluster.decode(0)->AwaitDecode();
  Call c(cluster, Prompt("x"));
  const absl::Status refused = c.End();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(refused), "TOO_MANY_REQUESTS");
  EXPECT_EQ(ErrorRetryAfter(refused), absl::Milliseconds(1500));
  decode_a.Finish({'a'}, DecodeResponse::FINISH_LENGTH);
  decode_b.Finish({'b'}, DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(a.Rest().text().size() + b.Rest().text().size(), 2u);
}

TEST(GenerateTest, ConcurrentRequestsWithCancelsAllEnd) {
  FakeCluster cluster(2, 2);
  Replies replies(cluster, 2, [](int n, DecodeCall call) {
    call.SendTokens(Ids("some"));
    if (n % 3 == 0) return;  // left hanging: the client will cancel
    call.Finish({kEndToken}, DecodeResponse::FINISH_STOP);
  });
  std::vector<std::thread> clients;
  std::atomic<int> ended{0};
  for (int t = 0; t < 4; ++t) {
    clients.emplace_back([&] {
      for (int i = 0; i < 40; ++i) {
        Call call(cluster, Prompt("x"));
        call.Next();
        call.Cancel();
        call.Rest();
        ++ended;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(ended, 160);
}

}  // namespace
}  // namespace baton::router
