#include "common/base/rpc/server.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/error.h"
#include "common/base/rpc/channel.h"
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

}  // namespace
}  // namespace baton
