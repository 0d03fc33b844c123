// What a peer that is there but silent (stopped, partitioned) does to the other end: nothing for
// ever. Its part is played by bare sockets.
#include "common/base/rpc/server.h"

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace baton {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
// An empty HTTP/2 SETTINGS frame: all that a peer must say to be taken for one.
const std::string kSettings("\0\0\0\4\0\0\0\0\0", 9);
const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// Accepts one connection after the other, greets, and never says a word again.
class SilentServer {
 public:
  SilentServer() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_, 8), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (int peer; (peer = accept(socket_, nullptr, nullptr)) >= 0;) {
        EXPECT_EQ(write(peer, kSettings.data(), kSettings.size()), 9);
        peers_.push_back(peer);
      }
    });
  }
  ~SilentServer() {
    shutdown(socket_, SHUT_RDWR);  // ends accept
    thread_.join();
    for (int peer : peers_) close(peer);
    close(socket_);
  }
  int port() const { return port_; }

 private:
  const int socket_;
  int port_ = 0;
  std::vector<int> peers_;  // the thread's
  std::thread thread_;
};

TEST(KeepaliveTest, ACallToASilentServerEnds) {
  SilentServer server;
  const auto channel = MakeChannel(absl::StrCat("127.0.0.1:", server.port()),
                                   {absl::Milliseconds(100), absl::Milliseconds(100)});
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  grpc::Slice empty("");
  grpc::ByteBuffer request(&empty, 1), response;
  absl::Notification done;
  grpc::Status end;
  stub.UnaryCall(&context, "/some/Method", grpc::StubOptions(), &request, &response,
                 [&](grpc::Status status) {
                   end = status;
                   done.Notify();
                 });
  done.WaitForNotification();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::UNAVAILABLE) << end.error_message();
}

TEST(KeepaliveTest, AServerClosesTheConnectionOfASilentClient) {
  RpcServerOptions options;
  options.keepalive = {absl::Milliseconds(100), absl::Milliseconds(100)};
  auto server = RpcServer::Start(options, {}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  const timeval patience = {static_cast<time_t>(absl::ToInt64Seconds(kPatience)), 0};
  ASSERT_EQ(setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
  sockaddr_in address = Loopback((*server)->port());
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string hello = kPreface + kSettings;
  ASSERT_EQ(write(client, hello.data(), hello.size()), static_cast<ssize_t>(hello.size()));
  char buffer[4096];
  ssize_t got;
  do got = read(client, buffer, sizeof(buffer));
  while (got > 0);  // settings and pings, which nobody answers
  EXPECT_EQ(got, 0) << "the time to wait has passed";
  close(client);
}

}  // namespace
}  // namespace baton
