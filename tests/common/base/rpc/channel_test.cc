#include "common/base/rpc/channel.h"

#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/testing/listening_socket.h"

namespace baton {
namespace {

// Sends each connection an empty HTTP/2 SETTINGS frame, and never anything else: a peer that is
// stopped or partitioned.
class SilentServer {
 public:
  SilentServer()
      : thread_([this] {
          const std::string settings("\0\0\0\4\0\0\0\0\0", 9);
          for (int peer; (peer = socket_.Accept()) >= 0;) {
            EXPECT_EQ(write(peer, settings.data(), settings.size()), 9);
            peers_.push_back(peer);
          }
        }) {}
  ~SilentServer() {
    socket_.Shutdown();
    thread_.join();
    for (int peer : peers_) close(peer);
  }
  std::string address() const { return socket_.address(); }

 private:
  testing::ListeningSocket socket_;
  std::vector<int> peers_;  // used by thread_
  std::thread thread_;
};

TEST(ChannelTest, ACallToASilentServerEnds) {
  SilentServer server;
  ChannelSettings settings = kPeerChannel;
  settings.keepalive = {absl::Milliseconds(100), absl::Milliseconds(100)};
  grpc::GenericStub stub(MakeChannel(server.address(), settings));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
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

}  // namespace
}  // namespace baton
