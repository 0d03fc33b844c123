// The router as a process: its roster over real streams, readiness, drain, metrics, start errors.
#include "router/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <thread>

#include "absl/synchronization/notification.h"
#include "common/base/error.h"
#include "common/base/rpc/address_file.h"
#include "common/base/rpc/grpc_status.h"
#include "tests/testing/fake_cluster.h"
#include "tests/testing/http_client.h"
#include "tests/testing/ipv6.h"
#include "tests/testing/metrics_scrape.h"

namespace baton::router {
namespace {

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCard;
using ::baton::testing::FakeCluster;
using ::baton::testing::FakeWorker;
using ::baton::testing::Ids;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// What grpc.health.v1 says of InferenceService: 1 is SERVING, 2 NOT_SERVING. The bytes are written
// out, as nothing else here needs that proto.
int Health(const std::shared_ptr<grpc::Channel>& channel) {
  const std::string name = "baton.v1.InferenceService";
  const std::string bytes = std::string("\x0a") + static_cast<char>(name.size()) + name;
  grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1), response;
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + testing::kPatience));
  absl::Notification done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&](grpc::Status) { done.Notify(); });
  done.WaitForNotification();
  grpc::Slice answer;
  if (!response.TrySingleSlice(&answer).ok() || answer.size() < 2) return 0;
  return answer.begin()[1];
}

bool AwaitHealth(FakeCluster& cluster, int wanted) {
  const absl::Time end = absl::Now() + testing::kPatience;
  while (absl::Now() < end) {
    if (Health(cluster.channel()) == wanted) return true;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return false;
}

// `padding`: strings of a kilobyte to stop at, which never come.
absl::Status GenerateOnce(FakeCluster& cluster, std::string* text, int padding = 0) {
  v1::GenerateOnceRequest request;
  request.mutable_request()->set_text("0123456789abcdef0123456789abcdef!");
  for (int i = 0; i < padding; ++i) {
    request.mutable_request()->mutable_stop()->add_stop(std::string(1000, 'z'));
  }
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + testing::kPatience));
  v1::GenerateOnceResponse response;
  const grpc::Status status =
      v1::InferenceService::NewStub(cluster.channel())->GenerateOnce(&context, request, &response);
  *text = response.text();
  return FromGrpcStatus(status);
}

// Where the prompt of GenerateOnce would go now; asking leaves no trace.
v1::Decision Explain(const FakeCluster& cluster) {
  v1::ExplainRequest request;
  request.mutable_request()->set_text("0123456789abcdef0123456789abcdef!");
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + testing::kPatience));
  v1::ExplainResponse response;
  const grpc::Status status =
      v1::AdminService::NewStub(cluster.channel())->Explain(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.decision();
}

TEST(ServerTest, ItsOwnStopIsNoLossOfWorkers) {
  auto cluster = std::make_unique<FakeCluster>(1, 1);
  ::testing::internal::CaptureStderr();
  cluster.reset();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("worker 127.0.0.1:")));
}

TEST(ServerTest, WarmPrefixDecidesAndDeltasChangeIt) {
  FakeCluster cluster(2, 1);
  std::string prefill_used;
  absl::Mutex mutex;
  cluster.decode(0)->SetReply([&](DecodeCall call) {
    absl::MutexLock lock(&mutex);
    prefill_used = call.request.prefill().address();
    call.Finish(Ids("x"), internal::v1::DecodeResponse::FINISH_LENGTH);
  });
  const auto keys = kv::PrefixKeys(kv::RootPrefixKey(0xA0DE1, "", ""),
                                   Ids("0123456789abcdef0123456789abcdef!"), 16);
  ASSERT_EQ(keys.size(), 2u);
  const std::vector<uint64_t> chain(keys.begin(), keys.end());
  for (int holder : {1, 0}) {
    // The keys move from one worker to the other.
    cluster.prefill(holder)->TellDelta(1, chain, {});
    if (holder == 0) cluster.prefill(1)->TellDelta(2, {}, chain);
    const std::string address = cluster.prefill(holder)->address();
    ASSERT_TRUE(cluster.AwaitState([&](const v1::WorkerStatus& w) {
      return w.role() != v1::WORKER_ROLE_PREFILL ||
             w.indexed_blocks() == (w.address() == address ? 2 : 0);
    }));
    const v1::Decision decision = Explain(cluster);
    EXPECT_EQ(decision.computes_address(), address);
    EXPECT_EQ(decision.predicted_cached_tokens(), 32);
    EXPECT_EQ(decision.decision(), "prefix");
  }
  std::string text;
  ASSERT_TRUE(GenerateOnce(cluster, &text).ok());
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(prefill_used, cluster.prefill(0)->address());
}

TEST(ServerTest, AGapBringsANewStreamAndItsSnapshot) {
  FakeCluster cluster;
  cluster.prefill(0)->TellDelta(1, {1, 2, 3}, {});
  const auto indexed = [&](int64_t count) {
    return cluster.AwaitState([&](const v1::WorkerStatus& w) {
      return w.role() != v1::WORKER_ROLE_PREFILL ||
             (w.indexed_blocks() == count && w.state() == v1::WORKER_STATE_READY);
    });
  };
  ASSERT_TRUE(indexed(3));
  cluster.prefill(0)->SetSnapshot(9, {7});
  cluster.prefill(0)->TellDelta(3, {4}, {});  // 2 was lost
  ASSERT_TRUE(cluster.prefill(0)->AwaitWatches(2));
  EXPECT_TRUE(indexed(1));
}

TEST(ServerTest, AWorkerThatComesBackAtItsAddressStartsCold) {
  FakeCluster cluster;
  cluster.prefill(0)->TellDelta(1, {1, 2, 3}, {});
  const std::string address = cluster.prefill(0)->address();
  const uint64_t epoch = cluster.Workers()[0].epoch();
  cluster.prefill(0).reset();
  ASSERT_TRUE(cluster.AwaitState([](const v1::WorkerStatus& w) {
    return w.role() != v1::WORKER_ROLE_PREFILL || w.state() == v1::WORKER_STATE_CONNECTING;
  }));
  cluster.prefill(0) = cluster.MakeWorker(v1::WORKER_ROLE_PREFILL, address);
  ASSERT_TRUE(cluster.AwaitState([](const v1::WorkerStatus& w) {
    return w.state() == v1::WORKER_STATE_READY && w.indexed_blocks() == 0;
  }));
  EXPECT_NE(cluster.Workers()[0].epoch(), epoch);
  EXPECT_TRUE(AwaitHealth(cluster, 1));
}

TEST(ServerTest, WithoutADecodeWorkerNothingIsServed) {
  FakeCluster cluster;
  cluster.decode(0).reset();
  EXPECT_TRUE(AwaitHealth(cluster, 2));
  std::string text;
  const absl::Status refused = GenerateOnce(cluster, &text);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(refused), "NO_WORKER");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no decode worker is ready (1 listed"));
}

TEST(ServerTest, DecodeWorkersAloneServe) {
  for (bool listed : {false, true}) {
    FakeCluster cluster(listed ? 1 : 0, 1,
                        [&](Options* options) { options->metrics_listen = "127.0.0.1:0"; });
    if (listed) {
      cluster.prefill(0).reset();
      ASSERT_TRUE(cluster.AwaitState([](const v1::WorkerStatus& w) {
        return (w.role() == v1::WORKER_ROLE_DECODE) == (w.state() == v1::WORKER_STATE_READY);
      }));
    } else {
      EXPECT_TRUE(AwaitHealth(cluster, 1));
    }
    cluster.decode(0)->SetReply([&](DecodeCall call) {
      EXPECT_FALSE(call.request.has_prefill());
      call.Finish(Ids("alone"), internal::v1::DecodeResponse::FINISH_LENGTH);
    });
    std::string text;
    EXPECT_TRUE(GenerateOnce(cluster, &text).ok());
    EXPECT_EQ(text, "alone");
    EXPECT_THAT(testing::HttpGet(cluster.server().metrics_address(), "/metrics"),
                HasSubstr(R"(decision="decode_only",policy="priced"} 1)"));
  }
}

// Takes the place of a worker that is gone: hangs up on whoever calls.
class HangingUp {
 public:
  explicit HangingUp(const std::string& address) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    const int yes = 1;
    EXPECT_EQ(setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
    EXPECT_EQ(listen(socket_, 8), 0);
  }
  ~HangingUp() { close(socket_); }
  void HangUp() { close(accept(socket_, nullptr, nullptr)); }

 private:
  const int socket_;
};

// What stands between a worker's coming back and its use are the back-offs of the watch and of its
// channel. After that many attempts they have grown as long as they do.
TEST(ServerTest, AWorkerThatWasAwayForLongIsUsedSoonAfterItsReturn) {
  FakeCluster cluster;
  const std::string address = cluster.decode(0)->address();
  cluster.decode(0).reset();
  {
    HangingUp absent(address);
    for (int attempt = 0; attempt < 8; ++attempt) absent.HangUp();
  }
  cluster.decode(0) = cluster.MakeWorker(v1::WORKER_ROLE_DECODE, address);
  const absl::Time back = absl::Now();
  ASSERT_TRUE(AwaitHealth(cluster, 1));
  // Back-offs that were not bounded would be longer than this.
  EXPECT_LT(absl::Now() - back, absl::Seconds(4));
}

TEST(ServerTest, AWorkerOfAnotherModelIsRefusedAndTheOthersGoOn) {
  FakeCluster cluster(2, 1);
  cluster.decode(0)->SetReply(
      [&](DecodeCall call) { call.Finish(Ids("x"), internal::v1::DecodeResponse::FINISH_LENGTH); });
  const std::string address = cluster.prefill(1)->address();
  cluster.prefill(1).reset();
  auto card = FakeCard(v1::WORKER_ROLE_PREFILL, cluster.tokenizer().fingerprint());
  card.set_model_fingerprint(0xBAD);
  cluster.prefill(1) = std::make_unique<FakeWorker>(card, address);
  ASSERT_TRUE(cluster.AwaitState([&](const v1::WorkerStatus& w) {
    return w.address() != address || w.state() == v1::WORKER_STATE_REFUSED;
  }));
  EXPECT_THAT(cluster.Workers()[1].detail(), HasSubstr("0000000000000bad"));
  std::string text;
  EXPECT_TRUE(GenerateOnce(cluster, &text).ok());
}

// A call that comes now is refused by a router that drains, and by no other.
void AwaitDraining(FakeCluster& cluster) {
  const absl::Time end = absl::Now() + testing::kPatience;
  while (absl::Now() < end) {
    // The server says goodbye to the channel, which then connects anew in vain.
    grpc::ClientContext context;
    v1::ListModelsResponse response;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    if (!v1::InferenceService::NewStub(cluster.channel())
             ->ListModels(&context, v1::ListModelsRequest(), &response)
             .ok()) {
      return;
    }
  }
  ADD_FAILURE() << "the router takes calls";
}

TEST(ServerTest, DrainLetsRunningStreamsFinish) {
  FakeCluster cluster;
  ASSERT_TRUE(AwaitHealth(cluster, 1));
  std::string text;
  absl::Status end;
  std::thread client([&] { end = GenerateOnce(cluster, &text); });
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  std::thread drain([&] { cluster.server().Drain(absl::Seconds(60)); });
  AwaitDraining(cluster);
  decode.SendTokens(Ids("still "));
  decode.Finish(Ids("here"), internal::v1::DecodeResponse::FINISH_LENGTH);
  client.join();
  drain.join();
  EXPECT_TRUE(end.ok()) << end;
  EXPECT_EQ(text, "still here");
}

// The status of a call on a new connection.
absl::Status CallAnew(FakeCluster& cluster) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + testing::kPatience));
  v1::ListModelsResponse response;
  const auto channel = MakeChannel(cluster.server().address(), kClientChannel);
  return FromGrpcStatus(
      v1::InferenceService::NewStub(channel)->ListModels(&context, {}, &response));
}

// Waits until the router has its gRPC address again, a moment after the drain began.
bool AwaitRefusals(FakeCluster& cluster) {
  const absl::Time end = absl::Now() + testing::kPatience;
  while (absl::Now() < end) {
    if (ErrorReason(CallAnew(cluster)) == "DRAINING") return true;
  }
  return false;
}

// docs/http.md: /readyz is 503 while the router drains, for new connections.
TEST(ServerTest, NewConnectionsDuringADrainHearOfIt) {
  FakeCluster cluster(1, 1, [](Options* options) { options->http_listen = "127.0.0.1:0"; });
  ASSERT_TRUE(AwaitHealth(cluster, 1));
  const std::string http = cluster.server().http_address();
  EXPECT_THAT(testing::HttpGet(http, "/readyz"), HasSubstr(" 200 "));
  std::string text;
  absl::Status end;
  std::thread client([&] { end = GenerateOnce(cluster, &text); });
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  std::thread drain([&] { cluster.server().Drain(absl::InfiniteDuration()); });
  ASSERT_TRUE(AwaitRefusals(cluster));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(testing::HttpGet(http, "/readyz"), HasSubstr(" 503 "));
    EXPECT_THAT(testing::HttpGet(http, "/health"), HasSubstr("draining"));
    EXPECT_THAT(testing::HttpGet(http, "/livez"), HasSubstr(" 200 "));
    testing::HttpClient late(http);
    late.Post("/v1/completions", R"({"model": "tiny", "prompt": "x"})");
    const testing::HttpReply refused = late.Read();
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.Header("Retry-After"), "1");
    EXPECT_THAT(refused.body, HasSubstr("shutting down"));
    EXPECT_TRUE(late.AtEnd());
    EXPECT_EQ(Health(MakeChannel(cluster.server().address(), kClientChannel)), 2);
    const absl::Status refusal = CallAnew(cluster);
    EXPECT_EQ(refusal.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ErrorReason(refusal), "DRAINING");
    EXPECT_TRUE(ErrorRetryAfter(refusal).has_value());
  }
  decode.Finish(Ids("all the same"), internal::v1::DecodeResponse::FINISH_LENGTH);
  client.join();
  drain.join();
  EXPECT_TRUE(end.ok()) << end;
  EXPECT_EQ(text, "all the same");
  EXPECT_FALSE(testing::HttpClient(http).connected());
}

// A request over HTTP runs, and none over gRPC: the refusals of both go on until it is done.
TEST(ServerTest, GrpcRefusesForAsLongAsHttpRuns) {
  FakeCluster cluster(1, 1, [](Options* options) { options->http_listen = "127.0.0.1:0"; });
  testing::HttpClient client(cluster.server().http_address());
  client.Post("/v1/completions", R"({"model": "tiny", "prompt": "x"})");
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  std::thread drain([&] { cluster.server().Drain(absl::InfiniteDuration()); });
  EXPECT_TRUE(AwaitRefusals(cluster));
  decode.Finish(Ids("done"), internal::v1::DecodeResponse::FINISH_LENGTH);
  EXPECT_EQ(client.Read().status, 200);
  drain.join();
}

TEST(ServerTest, ListensOnIpv6) {
  if (!testing::HasIpv6()) GTEST_SKIP() << "this machine has no ::1";
  FakeCluster cluster(1, 1, [](Options* options) {
    options->listen = options->metrics_listen = options->http_listen = "[::1]:0";
  });
  RouterServer& server = cluster.server();
  for (const std::string& address :
       {server.address(), server.metrics_address(), server.http_address()}) {
    EXPECT_THAT(address, ::testing::StartsWith("[::1]:"));
  }
  ASSERT_TRUE(AwaitHealth(cluster, 1));
  EXPECT_THAT(testing::HttpGet(server.metrics_address(), "/metrics"), HasSubstr(" 200 "));
  EXPECT_THAT(testing::HttpGet(server.http_address(), "/readyz"), HasSubstr(" 200 "));
}

TEST(ServerTest, ARequestThatLosesItsWorkerDuringTheDrainGetsAnother) {
  FakeCluster cluster(1, 2);
  std::string text;
  absl::Status end;
  absl::Mutex mutex;
  std::vector<DecodeCall> calls;
  for (int i : {0, 1}) {
    cluster.decode(i)->SetReply([&](DecodeCall call) {
      absl::MutexLock lock(&mutex);
      calls.push_back(std::move(call));
    });
  }
  const auto call = [&](size_t i) {
    absl::MutexLock lock(&mutex);
    const auto there = [&] { return calls.size() > i; };
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&there), testing::kPatience));
    return calls[i];
  };
  std::thread client([&] { end = GenerateOnce(cluster, &text); });
  call(0).SendTokens(Ids("still "));
  std::thread drain([&] { cluster.server().Drain(absl::Seconds(60)); });
  AwaitDraining(cluster);
  call(0).Fail({grpc::StatusCode::UNAVAILABLE, "gone"});
  call(1).Finish(Ids("here"), internal::v1::DecodeResponse::FINISH_LENGTH);
  client.join();
  drain.join();
  EXPECT_TRUE(end.ok()) << end;
  EXPECT_EQ(text, "still here");
}

TEST(ServerTest, APromptThatIsQueuedWhenTheDrainBeginsGetsItsWorker) {
  FakeCluster cluster(1, 1, [](Options* options) {
    options->tokenizer_threads = 1;
    options->metrics_listen = "127.0.0.1:0";
  });
  cluster.decode(0)->SetReply(
      [](DecodeCall call) { call.Finish(Ids("x"), internal::v1::DecodeResponse::FINISH_LENGTH); });
  // Keeps the only tokenizer thread busy: long texts, whose tokens nobody wants.
  const auto stub = v1::InferenceService::NewStub(cluster.channel());
  v1::TokenizeRequest busy;
  busy.set_text(std::string(1 << 20, 'a'));
  struct Work {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
  };
  std::deque<Work> queued;
  absl::Mutex mutex;
  int done = 0;
  for (int i = 0; i < 10; ++i) {
    Work& work = queued.emplace_back();
    work.context.set_deadline(absl::ToChronoTime(absl::Now() + testing::kPatience));
    stub->async()->Tokenize(&work.context, &busy, &work.response, [&](grpc::Status) {
      absl::MutexLock lock(&mutex);
      ++done;
    });
  }
  std::string text;
  absl::Status end;
  // Short ones do not queue.
  std::thread client([&] { end = GenerateOnce(cluster, &text, /*padding=*/3); });
  const std::string inside = R"(baton_requests_inflight{model="tiny",role="router"} 1)";
  const absl::Time patience = absl::Now() + testing::kPatience;
  bool seen = false;
  while (!seen && absl::Now() < patience) {
    const std::string metrics = testing::HttpGet(cluster.server().metrics_address(), "/metrics");
    seen = metrics.find(inside) != std::string::npos;
  }
  EXPECT_TRUE(seen);
  cluster.server().Drain(absl::Seconds(60));
  client.join();
  EXPECT_TRUE(end.ok()) << end;
  absl::MutexLock lock(&mutex);
  const auto all = [&] { return done == 10; };
  EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all), testing::kPatience));
}

TEST(ServerTest, DrainWithoutGraceEndsWhatHangs) {
  FakeCluster cluster;
  std::string text;
  absl::Status end;
  std::thread client([&] { end = GenerateOnce(cluster, &text); });
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  cluster.server().Drain(absl::ZeroDuration());
  client.join();
  EXPECT_EQ(ErrorReason(end), "ROUTER_STOPPED") << end;
  EXPECT_TRUE(decode.stream->AwaitCancelled());
}

// docs/http.md, "Errors": an answer that has begun ends with an event, another one has a status.
TEST(ServerTest, AnswersThatOutliveTheGraceEndWithAnError) {
  FakeCluster cluster(1, 1, [](Options* options) { options->http_listen = "127.0.0.1:0"; });
  ASSERT_TRUE(AwaitHealth(cluster, 1));
  testing::HttpClient stream(cluster.server().http_address()),
      whole(cluster.server().http_address());
  stream.Post("/v1/completions", R"({"model": "tiny", "prompt": "x", "stream": true})");
  DecodeCall streamed = cluster.decode(0)->AwaitDecode();
  streamed.SendTokens(Ids("begun"));
  EXPECT_THAT(stream.ReadUntil("begun"), HasSubstr(" 200 "));
  whole.Post("/v1/completions", R"({"model": "tiny", "prompt": "y"})");
  DecodeCall waiting = cluster.decode(0)->AwaitDecode();
  std::string text;
  absl::Status end;
  std::thread client([&] { end = GenerateOnce(cluster, &text); });
  DecodeCall called = cluster.decode(0)->AwaitDecode();
  std::thread drain([&] { cluster.server().Drain(absl::Milliseconds(50)); });
  EXPECT_THAT(
      stream.ReadUntil("\r\n0\r\n\r\n"),
      AllOf(HasSubstr("\"error\""), HasSubstr("shut down before"), EndsWith("\r\n0\r\n\r\n")));
  const testing::HttpReply refused = whole.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.Header("Retry-After"), "1");
  EXPECT_THAT(refused.body, HasSubstr("shut down before"));
  client.join();
  EXPECT_EQ(ErrorReason(end), "ROUTER_STOPPED") << end;
  EXPECT_EQ(ErrorRetryAfter(end), absl::Seconds(1));
  drain.join();
  for (DecodeCall* call : {&streamed, &waiting, &called}) {
    EXPECT_TRUE(call->stream->AwaitCancelled());
  }
}

TEST(ServerTest, AStopEndsADrainThatWaits) {
  FakeCluster cluster;
  std::string text;
  absl::Status end;
  std::thread client([&] { end = GenerateOnce(cluster, &text); });
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  std::thread drain([&] { cluster.server().Drain(absl::InfiniteDuration()); });
  AwaitDraining(cluster);
  cluster.server().Stop();
  drain.join();
  client.join();
  EXPECT_FALSE(end.ok());
  EXPECT_TRUE(decode.stream->AwaitCancelled());
}

TEST(ServerTest, ListsItsModel) {
  FakeCluster cluster(1, 1, [](Options* options) { options->served_model_name = "demo"; });
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + testing::kPatience));
  v1::ListModelsResponse response;
  ASSERT_TRUE(v1::InferenceService::NewStub(cluster.channel())
                  ->ListModels(&context, v1::ListModelsRequest(), &response)
                  .ok());
  ASSERT_EQ(response.models_size(), 1);
  EXPECT_EQ(response.models(0).id(), "demo");
  EXPECT_EQ(response.models(0).max_model_len(), 128);
  EXPECT_EQ(response.models(0).fingerprint(), 0xA0DE1u);
}

TEST(ServerTest, MetricsTellWhatHappened) {
  const std::string file = ::testing::TempDir() + "/router.address";
  FakeCluster cluster(1, 1, [&](Options* options) {
    options->metrics_listen = "127.0.0.1:0";
    options->address_file = file;
  });
  cluster.decode(0)->SetReply([&](DecodeCall call) {
    call.SendTokens(Ids("ab"));
    call.Finish(Ids("c"), internal::v1::DecodeResponse::FINISH_LENGTH);
  });
  std::string text;
  ASSERT_TRUE(GenerateOnce(cluster, &text).ok());
  const auto bound = ReadAddressFile(file);
  ASSERT_TRUE(bound.has_value());
  EXPECT_EQ(bound->grpc, cluster.server().address());
  EXPECT_EQ(bound->metrics, cluster.server().metrics_address());
  // A thread publishes the workers' states within a tick of their change.
  const absl::Time end = absl::Now() + testing::kPatience;
  while (absl::Now() < end &&
         testing::MetricSum(bound->metrics, "baton_workers", R"(state="ready")") < 2) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  const std::string body = testing::HttpGet(bound->metrics, "/metrics");
  const std::string labels = R"(model="tiny",role="router")";
  for (const std::string& line : {
           absl::StrCat("baton_requests_total{", labels, R"(,code="OK",finish_reason="length"} 1)"),
           absl::StrCat("baton_prompt_tokens_total{", labels, "} 33"),
           absl::StrCat("baton_generated_tokens_total{", labels, "} 3"),
           absl::StrCat("baton_time_to_first_token_seconds_count{", labels, "} 1"),
           absl::StrCat("baton_inter_token_latency_seconds_count{", labels, "} 1"),
           absl::StrCat("baton_request_duration_seconds_count{", labels, "} 1"),
           absl::StrCat("baton_queue_duration_seconds_count{", labels, R"(,priority="normal"} 1)"),
           absl::StrCat("baton_requests_queued{", labels, R"(,stage="admit"} 0)"),
           absl::StrCat("baton_workers{", labels, R"(,state="ready",worker_role="decode"} 1)"),
           absl::StrCat("baton_route_decisions_total{", labels,
                        R"(,decision="load",policy="priced"} 1)"),
           std::string("baton_build_info"),
       }) {
    EXPECT_THAT(body, HasSubstr(line));
  }
}

TEST(ServerTest, MetricsTellHowManyWorkersTheLoadWants) {
  FakeCluster cluster(1, 1, [&](Options* options) {
    options->metrics_listen = "127.0.0.1:0";
    options->scaling_decode_fill = 0.5;
  });
  // Of 16 places, half of which are to be taken.
  cluster.decode(0)->TellLoad(16, 40, 640);
  const std::string& metrics = cluster.server().metrics_address();
  const auto await = [&](const char* name, const char* label, double least) {
    const absl::Time end = absl::Now() + testing::kPatience;
    while (absl::Now() < end && testing::MetricSum(metrics, name, label) < least) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return testing::MetricSum(metrics, name, label);
  };
  EXPECT_EQ(await("baton_desired_workers", R"(worker_role="decode")", 7), 7);
  EXPECT_EQ(await("baton_desired_workers", R"(worker_role="prefill")", 1), 1);
  EXPECT_LT(testing::MetricSum(metrics, "baton_decode_headroom_ratio", R"(resource="sequences")"),
            0);
}

TEST(ServerTest, MetricsOfSeveralChoicesAndOfARefusedPrompt) {
  FakeCluster cluster(1, 1, [&](Options* options) {
    options->metrics_listen = "127.0.0.1:0";
    options->max_inflight_prompt_tokens = 40;
  });
  v1::GenerateRequest request;
  request.set_text("0123456789");
  request.set_n(4);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + testing::kPatience));
  const auto stub = v1::InferenceService::NewStub(cluster.channel());
  const auto reader = stub->Generate(&context, request);
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  for (int i = 0; i < 4; ++i) decode.SendTokens(Ids("a"), i);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  const absl::Time first = absl::Now();
  std::string text;
  EXPECT_EQ(ErrorReason(GenerateOnce(cluster, &text)), "TOO_MANY_PROMPT_TOKENS");
  // One more token for each, at least 20 ms later.
  while (absl::Now() < first + absl::Milliseconds(20)) {
    ASSERT_EQ(cluster.Workers().size(), 2u);
  }
  for (int i = 0; i < 4; ++i) {
    decode.FinishChoice(i, Ids("b"), internal::v1::DecodeResponse::FINISH_LENGTH);
  }
  decode.stream->End(grpc::Status::OK);
  while (reader->Read(&response)) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  const std::string body = testing::HttpGet(cluster.server().metrics_address(), "/metrics");
  const std::string labels = R"(model="tiny",role="router")";
  EXPECT_THAT(body, HasSubstr(absl::StrCat("baton_prompt_tokens_total{", labels, "} 10\n")))
      << "what was refused was no prompt";
  EXPECT_THAT(
      body, HasSubstr(absl::StrCat("baton_second_token_latency_seconds_count{", labels, "} 4\n")));
  const std::string sum = absl::StrCat("baton_time_per_output_token_seconds_sum{", labels, "} ");
  ASSERT_THAT(body, HasSubstr(sum));
  EXPECT_GE(std::stod(body.substr(body.find(sum) + sum.size())), 0.015)
      << "two tokens of each, and one gap between them";
}

TEST(ServerTest, BadOptionsAreNamed) {
  Options options;
  options.model_dir = ::testing::TempDir() + "/no-such-model";
  options.listen = "127.0.0.1:0";
  options.prefill_workers = {"127.0.0.1:1"};
  options.decode_workers = {"127.0.0.1:2"};
  EXPECT_EQ(RouterServer::Start(options).status().code(), absl::StatusCode::kNotFound);
  const auto field_of = [&](const std::function<void(Options*)>& spoil) {
    Options bad = options;
    spoil(&bad);
    return ErrorField(Validate(&bad));
  };
  EXPECT_EQ(field_of([](Options* o) { o->decode_workers = {"127.0.0.1:1"}; }), "--decode-workers");
  EXPECT_EQ(field_of([](Options* o) { o->prefill_workers.clear(); }), "")
      << "served by decode alone";
  EXPECT_EQ(field_of([](Options* o) { o->decode_workers.clear(); }), "--decode-workers");
  EXPECT_EQ(field_of([](Options* o) {
              o->decode_workers.clear();
              o->workers_file = "somewhere";
            }),
            "");
  EXPECT_EQ(field_of([](Options* o) { o->decode_dns = "host"; }), "--decode-dns");
  EXPECT_EQ(field_of([](Options* o) { o->prefill_dns = "host:0"; }), "--prefill-dns");
  EXPECT_EQ(field_of([](Options* o) { o->dns_refresh_ms = 0; }), "--dns-refresh-ms");
  EXPECT_EQ(field_of([](Options* o) { o->retry_budget_percent = 101; }), "--retry-budget-percent");
  EXPECT_EQ(field_of([](Options* o) { o->prefill_workers = {"nowhere"}; }), "--prefill-workers");
  EXPECT_EQ(field_of([](Options* o) { o->listen = ":1"; }), "--listen");
  EXPECT_EQ(field_of([](Options* o) { o->max_inflight_requests = 0; }), "--max-inflight-requests");
  options.model_dir = "/models/demo/";
  ASSERT_TRUE(Validate(&options).ok());
  EXPECT_EQ(options.served_model_name, "demo");
}

}  // namespace
}  // namespace baton::router
