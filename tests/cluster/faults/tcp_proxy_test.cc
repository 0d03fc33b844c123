// The proxy against plain sockets: what passes, when, and what does not.
#include "tests/cluster/faults/tcp_proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/cluster/faults/socket_owner.h"

namespace baton::testing {
namespace {

using Way = Flow::Way;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

uint16_t LocalPort(int fd) {
  sockaddr_in address;
  socklen_t size = sizeof(address);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

// A target that the test plays itself, and one connection to it through the proxy.
class TcpProxyTest : public ::testing::Test {
 protected:
  TcpProxyTest() {
    target_ = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in any = Loopback(0);
    EXPECT_EQ(bind(target_, reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
    EXPECT_EQ(listen(target_, 8), 0);
    auto proxy = TcpProxy::Start([this](uint16_t, uint16_t) { return opener_name_; }, 7);
    EXPECT_TRUE(proxy.ok()) << proxy.status();
    proxy_ = *std::move(proxy);
    auto address = proxy_->AddTarget("target", LocalPort(target_));
    EXPECT_TRUE(address.ok()) << address.status();
    port_ = static_cast<uint16_t>(std::stoi(address->substr(address->find(':') + 1)));
  }
  ~TcpProxyTest() override {
    for (const int fd : {near_, far_, target_}) {
      if (fd >= 0) close(fd);
    }
  }

  void Connect() {
    near_ = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Loopback(port_);
    ASSERT_EQ(connect(near_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    far_ = accept(target_, nullptr, nullptr);
    ASSERT_GE(far_, 0);
  }
  static void Send(int fd, const std::string& bytes) {
    ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // `count` bytes, or fewer if the stream ends or breaks.
  static std::string Receive(int fd, size_t count) {
    std::string bytes(count, '\0');
    size_t have = 0;
    while (have < count) {
      const ssize_t n = recv(fd, bytes.data() + have, count - have, 0);
      if (n <= 0) break;
      have += n;
    }
    bytes.resize(have);
    return bytes;
  }
  static bool Silent(int fd, int for_ms) {
    pollfd wait = {fd, POLLIN, 0};
    return poll(&wait, 1, for_ms) == 0;
  }

  std::string opener_name_ = "opener-0";
  std::unique_ptr<TcpProxy> proxy_;
  uint16_t port_ = 0;
  int target_ = -1, near_ = -1, far_ = -1;
};

TEST_F(TcpProxyTest, PassesBothWaysAndTheEnd) {
  Connect();
  const std::string much(300'000, 'x');
  Send(near_, much);
  EXPECT_EQ(Receive(far_, much.size()), much);
  Send(far_, "back");
  EXPECT_EQ(Receive(near_, 4), "back");
  EXPECT_EQ(proxy_->BytesPassed({"*", "target", Way::kToTarget}), 300'000);
  EXPECT_EQ(proxy_->BytesPassed({"opener-*", "*", Way::kToOpener}), 4);
  EXPECT_EQ(proxy_->BytesPassed({"other", "*", Way::kToOpener}), 0);
  shutdown(near_, SHUT_WR);
  EXPECT_EQ(Receive(far_, 1), "");
  Send(far_, "still");  // half closed: the other way goes on
  EXPECT_EQ(Receive(near_, 5), "still");
}

TEST_F(TcpProxyTest, DelaysAndNarrows) {
  Connect();
  proxy_->Set({"opener-0", "target", Way::kToTarget}, {absl::Milliseconds(150), 0, false, 0});
  absl::Time begin = absl::Now();
  Send(near_, "late");
  EXPECT_EQ(Receive(far_, 4), "late");
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(149));
  proxy_->Set({"opener-0", "target", Way::kToTarget}, {absl::ZeroDuration(), 100'000, false, 0});
  begin = absl::Now();
  Send(near_, std::string(30'000, 'y'));
  EXPECT_EQ(Receive(far_, 30'000).size(), 30'000u);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(280));
}

TEST_F(TcpProxyTest, HoldsOneWayAndGoesOnLater) {
  Connect();
  proxy_->Set({"opener-0", "target", Way::kToTarget}, {absl::ZeroDuration(), 0, true, 0});
  Send(near_, "held");
  Send(far_, "passes");
  EXPECT_EQ(Receive(near_, 6), "passes");
  EXPECT_TRUE(Silent(far_, 50));
  proxy_->Heal();
  EXPECT_EQ(Receive(far_, 4), "held");
}

TEST_F(TcpProxyTest, RulesAreForWhomTheyName) {
  opener_name_ = "other";
  Connect();
  proxy_->Set({"opener-0", "target", Way::kToTarget}, {absl::ZeroDuration(), 0, true, 0});
  Send(near_, "free");
  EXPECT_EQ(Receive(far_, 4), "free");
}

TEST_F(TcpProxyTest, ATripStopsAtTheByte) {
  Connect();
  Send(near_, "before");
  EXPECT_EQ(Receive(far_, 6), "before");
  absl::Notification tripped;
  proxy_->Arm({"opener-*", "target", Way::kToTarget}, 1000,
              [&](const std::string& opener, const std::string& target) {
                EXPECT_EQ(opener, "opener-0");
                EXPECT_EQ(target, "target");
                tripped.Notify();
                return TripEnd::kHold;
              });
  Send(near_, std::string(5000, 'z'));
  ASSERT_TRUE(tripped.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(Receive(far_, 1000).size(), 1000u);
  EXPECT_TRUE(Silent(far_, 50));
  proxy_->Heal();
  EXPECT_EQ(Receive(far_, 4000).size(), 4000u);
}

TEST_F(TcpProxyTest, ATripCanResetBothEnds) {
  Connect();
  proxy_->Arm({"*", "*", Way::kToTarget}, 10,
              [](const std::string&, const std::string&) { return TripEnd::kReset; });
  Send(near_, std::string(100, 'z'));
  EXPECT_LE(Receive(far_, 100).size(), 10u);
  char byte;
  EXPECT_EQ(recv(near_, &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

// The action's own consequences may heal the proxy while it still runs.
TEST_F(TcpProxyTest, HealingDuringATripIsNotForgotten) {
  Connect();
  proxy_->Arm({"*", "*", Way::kToTarget}, 10, [this](const std::string&, const std::string&) {
    proxy_->Heal();
    return TripEnd::kHold;
  });
  Send(near_, std::string(100, 'z'));
  EXPECT_EQ(Receive(far_, 100).size(), 100u);
}

TEST_F(TcpProxyTest, ResetIsForThePairNamed) {
  Connect();
  proxy_->Reset("other", "target");
  Send(near_, "alive");
  EXPECT_EQ(Receive(far_, 5), "alive");
  proxy_->Reset("opener-0", "target");
  EXPECT_EQ(Receive(far_, 1), "");
  EXPECT_EQ(Receive(near_, 1), "");
}

TEST_F(TcpProxyTest, FlipsAboutAsManyBytesAsTold) {
  Connect();
  proxy_->Set({"*", "*", Way::kToTarget}, {absl::ZeroDuration(), 0, false, 0.01});
  const std::string sent(100'000, 'a');
  Send(near_, sent);
  const std::string got = Receive(far_, sent.size());
  ASSERT_EQ(got.size(), sent.size());
  int flipped = 0;
  for (const char c : got) flipped += c != 'a';
  EXPECT_GT(flipped, 800);
  EXPECT_LT(flipped, 1200);
}

TEST_F(TcpProxyTest, WhoeverReadsNothingIsNotBufferedWithoutBound) {
  Connect();
  timeval soon = {0, 200'000};
  setsockopt(near_, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof(soon));
  const std::string megabyte(1 << 20, 'm');
  int64_t sent = 0;
  while (sent < (256 << 20)) {
    const ssize_t n = send(near_, megabyte.data(), megabyte.size(), MSG_NOSIGNAL);
    if (n < static_cast<ssize_t>(megabyte.size())) break;
    sent += n;
  }
  EXPECT_LT(sent, 64 << 20);  // two pairs of kernel buffers and one MiB of ours
}

// A thread that a held, dead connection keeps awake would burn a core.
TEST_F(TcpProxyTest, SleepsWhileAHeldPeerIsGone) {
  Connect();
  proxy_->Set({"*", "*", Way::kToTarget}, {absl::ZeroDuration(), 0, true, 0});
  proxy_->Set({"*", "*", Way::kToOpener}, {absl::ZeroDuration(), 0, true, 0});
  Send(near_, "x");
  close(near_);
  near_ = -1;
  const auto cpu = [] {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return absl::DurationFromTimespec(now);
  };
  const absl::Duration before = cpu();
  EXPECT_TRUE(Silent(far_, 300));
  EXPECT_LT(cpu() - before, absl::Milliseconds(100));
}

TEST_F(TcpProxyTest, TheOwnerOfASocketIsFound) {
  Connect();
  EXPECT_EQ(SocketOwner(LocalPort(near_), port_, {1, getpid()}), getpid());
  EXPECT_EQ(SocketOwner(LocalPort(near_), port_, {}), std::nullopt);
  EXPECT_EQ(SocketOwner(port_, 1, {getpid()}), std::nullopt);
}

}  // namespace
}  // namespace baton::testing
