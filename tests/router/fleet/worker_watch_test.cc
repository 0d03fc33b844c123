// WorkerWatch's streams to workers are tested in tests/router/api/server_test.cc.
#include "router/fleet/worker_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/testing/listening_socket.h"

namespace baton::router {
namespace {

class NoChannels final : public ChannelUser {
 public:
  void Connect(int worker, const std::shared_ptr<grpc::Channel>& channel) override {}
  void Disconnect(int worker) override {}
};

// An address whose host drops connections without an answer, as a firewall does.
class DroppingAddress {
 public:
  DroppingAddress() {
    const int port = std::stoi(socket_.address().substr(socket_.address().rfind(':') + 1));
    const sockaddr_in address = testing::Loopback(port);
    // These are more than the backlog, which nothing empties: the system drops further SYNs.
    for (int i = 0; i < 32; ++i) {
      fds_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      (void)connect(fds_.back(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    }
  }
  ~DroppingAddress() {
    for (const int fd : fds_) close(fd);
  }
  std::string address() const { return socket_.address(); }

 private:
  testing::ListeningSocket socket_;
  std::vector<int> fds_;
};

TEST(WorkerWatchTest, AnAddressThatDropsConnectionsIsNotReachedRatherThanRefused) {
  const DroppingAddress dropping;
  PrefixIndex index;
  Roster roster(7, index, Clock::Real());
  ASSERT_TRUE(roster.SetWorkers({{v1::WORKER_ROLE_DECODE, dropping.address()}}).ok());
  const std::string before = roster.Status(0).detail();
  NoChannels channels;
  WorkerWatch watch(roster, channels, Clock::Real(), [](bool ready) { EXPECT_FALSE(ready); });
  watch.Start();
  while (roster.Status(0).detail() == before) std::this_thread::yield();
  EXPECT_EQ(roster.Status(0).state(), v1::WORKER_STATE_CONNECTING) << roster.Status(0).detail();
  watch.Stop();
}

}  // namespace
}  // namespace baton::router
