#include "common/base/rpc/server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/error.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"
#include "tests/testing/ipv6.h"
#include "tests/testing/listening_socket.h"

namespace baton {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// An open connection, or -1 if nothing listens there.
int Connect(int port) {
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = testing::Loopback(port);
  if (connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return client;
  }
  close(client);
  return -1;
}

TEST(RpcServerTest, ClosesTheConnectionOfASilentClient) {
  RpcServerOptions options;
  options.keepalive = {absl::Milliseconds(100), absl::Milliseconds(100)};
  auto server = RpcServer::Start(options, {}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  const int client = Connect((*server)->port());
  ASSERT_GE(client, 0);
  const timeval patience = {static_cast<time_t>(absl::ToInt64Seconds(kPatience)), 0};
  ASSERT_EQ(setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
  // The least that makes an HTTP/2 client: the preface and an empty SETTINGS frame.
  const std::string hello =
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\4\0\0\0\0\0", 9);
  ASSERT_EQ(write(client, hello.data(), hello.size()), static_cast<ssize_t>(hello.size()));
  char buffer[4096];
  ssize_t got;
  do got = read(client, buffer, sizeof(buffer));
  while (got > 0);  // settings, and pings that get no answer
  EXPECT_EQ(got, 0) << "still open after " << kPatience;
  close(client);
}

// Calls run until they are cancelled.
class EndlessService final : public v1::InferenceService::CallbackService {
 public:
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext*, const v1::ListModelsRequest*,
                                       v1::ListModelsResponse*) override {
    class Call final : public grpc::ServerUnaryReactor {
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    called.Notify();
    return new Call();
  }

  absl::Notification called;
};

TEST(RpcServerTest, ABusyPortIsAnError) {
  const auto first = RpcServer::Start({}, {}, {});
  ASSERT_TRUE(first.ok()) << first.status();
  RpcServerOptions options;
  options.address = (*first)->address();
  const auto second = RpcServer::Start(options, {}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(ErrorReason(second.status()), "ADDRESS_IN_USE");
  EXPECT_NE(second.status().message().find(options.address), absl::string_view::npos);
}

// gRPC's bound on a message is one of what it unpacks to, and is seen only then.
TEST(RpcServerTest, CompressedMessagesAreRefusedUnread) {
  EndlessService service;
  const auto server = RpcServer::Start({}, {&service}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = v1::InferenceService::NewStub(MakeChannel((*server)->address()));
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    context.set_compression_algorithm(algorithm);
    v1::TokenizeRequest request;
    request.set_text(std::string(1 << 20, 'x'));
    v1::TokenizeResponse response;
    const grpc::Status status = stub->Tokenize(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr("ompress"));
  }
}

TEST(RpcServerTest, AStopWithoutGraceShortensOneThatWaits) {
  EndlessService service;
  auto server = RpcServer::Start({}, {&service}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  grpc::Status end;
  std::thread client([&] {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    v1::ListModelsResponse response;
    end = v1::InferenceService::NewStub(MakeChannel((*server)->address()))
              ->ListModels(&context, {}, &response);
  });
  service.called.WaitForNotification();
  std::thread patient([&] { (*server)->Stop(absl::InfiniteDuration()); });
  // Until that one refuses connections, and so waits.
  for (int other; (other = Connect((*server)->port())) >= 0;) close(other);
  (*server)->Stop(absl::ZeroDuration());
  patient.join();
  client.join();
  EXPECT_FALSE(end.ok());
  EXPECT_NE(end.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

// Asks the health service about a service on a new connection: 1 is SERVING, 2 NOT_SERVING, 0 no
// answer. The request's bytes are written out, because nothing else here needs that proto.
int HealthAt(const std::string& address, const std::string& service) {
  const std::string bytes = std::string("\x0a") + static_cast<char>(service.size()) + service;
  grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1), response;
  grpc::GenericStub stub(MakeChannel(address));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  absl::Notification done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&](grpc::Status) { done.Notify(); });
  done.WaitForNotification();
  grpc::Slice answer;
  if (!response.TrySingleSlice(&answer).ok() || answer.size() < 2) return 0;
  return answer.begin()[1];
}

absl::Status ListModelsAt(const std::string& address) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  v1::ListModelsResponse response;
  return FromGrpcStatus(
      v1::InferenceService::NewStub(MakeChannel(address))->ListModels(&context, {}, &response));
}

class DrainTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Addresses, DrainTest, ::testing::Values("127.0.0.1:0", "[::1]:0"));

TEST_P(DrainTest, NewConnectionsHearThatTheServerEnds) {
  if (GetParam()[0] == '[' && !testing::HasIpv6()) GTEST_SKIP() << "this machine has no ::1";
  constexpr char kName[] = "baton.v1.InferenceService";
  EndlessService service;
  RpcServerOptions options;
  options.address = GetParam();
  auto server = RpcServer::Start(options, {&service}, {kName});
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string address = (*server)->address();
  (*server)->SetServing(true);
  EXPECT_EQ(HealthAt(address, kName), 1);
  absl::Status end;
  std::thread client([&] { end = ListModelsAt(address); });
  service.called.WaitForNotification();
  const absl::Status refusal = WithRetryAfter(
      MakeError(absl::StatusCode::kUnavailable, "DRAINING", "it ends"), absl::Seconds(1));
  std::thread drain([&] { (*server)->Drain(absl::InfiniteDuration(), refusal); });
  // Waits until a new connection meets the server that refuses.
  const absl::Time patience = absl::Now() + kPatience;
  while (HealthAt(address, kName) != 2 && absl::Now() < patience) {
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(HealthAt(address, kName), 2);
    EXPECT_EQ(HealthAt(address, ""), 1) << "it lives";
    EXPECT_EQ(ListModelsAt(address), refusal);
  }
  (*server)->Stop(absl::ZeroDuration());
  drain.join();
  client.join();
  EXPECT_FALSE(end.ok());
  EXPECT_EQ(ListModelsAt(address), refusal) << "until all of the process is done";
  (*server)->StopRefusing();
  EXPECT_EQ(ErrorReason(ListModelsAt(address)), "");
}

// Load balancers watch the health for as long as they are connected.
TEST(RpcServerTest, AWatchOfTheHealthDoesNotHoldUpTheEnd) {
  auto server = RpcServer::Start({}, {}, {"baton.v1.InferenceService"});
  ASSERT_TRUE(server.ok()) << server.status();
  grpc::GenericStub stub(MakeChannel((*server)->address()));
  struct Watch final : grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
    grpc::ByteBuffer request, response;
    absl::Notification heard, done;
    void OnReadDone(bool ok) override {
      if (!heard.HasBeenNotified()) heard.Notify();
      if (ok) StartRead(&response);
    }
    void OnDone(const grpc::Status&) override { done.Notify(); }
  } watch;
  grpc::Slice nothing;
  watch.request = grpc::ByteBuffer(&nothing, 1);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + 2 * kPatience));
  stub.PrepareBidiStreamingCall(&context, "/grpc.health.v1.Health/Watch", grpc::StubOptions(),
                                &watch);
  watch.StartWriteLast(&watch.request, grpc::WriteOptions());
  watch.StartRead(&watch.response);
  watch.StartCall();
  ASSERT_TRUE(watch.heard.WaitForNotificationWithTimeout(kPatience));
  absl::Notification stopped;
  std::thread stop([&] {
    (*server)->Stop(absl::InfiniteDuration());
    stopped.Notify();
  });
  EXPECT_TRUE(stopped.WaitForNotificationWithTimeout(kPatience));
  (*server)->Stop(absl::ZeroDuration());
  stop.join();
  watch.done.WaitForNotification();
}

}  // namespace
}  // namespace baton
