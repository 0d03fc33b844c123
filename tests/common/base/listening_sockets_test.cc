#include "common/base/listening_sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/testing/ipv6.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ListeningSocketsTest, AnAddressMeansWhatItSays) {
  for (const auto& [text, host, port] : {std::tuple("127.0.0.1:80", "127.0.0.1", 80),
                                         {"[::1]:9090", "::1", 9090},
                                         {"[::]:0", "::", 0},
                                         {"[fe80::1%eth0]:1", "fe80::1%eth0", 1},
                                         {"[::ffff:10.0.0.1]:65535", "::ffff:10.0.0.1", 65535},
                                         {"host-1.a_b.c:7", "host-1.a_b.c", 7}}) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->host, host);
    EXPECT_EQ(parsed->port, port);
  }
  for (const char* text : {"",
                           ":",
                           "9090",
                           ":9090",
                           "localhost",
                           "localhost:",
                           "localhost:x",
                           "127.0.0.1:65536",
                           "127.0.0.1:-1",
                           "127.0.0.1:+1",
                           "127.0.0.1:80s",
                           "127.0.0.1:0,127.0.0.1:0",
                           "::1:0",
                           "[::1]",
                           "[::1]:",
                           "[]:1",
                           "[host]:1",
                           "[::1:1",
                           "::1]:1",
                           "[[::1]]:1",
                           "host name:1",
                           "127.0.0.1: 1",
                           "127.0.0.1:99999999999",
                           "a/b:1"}) {
    const absl::Status error = ParseHostPort(text).status();
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(error.message()), HasSubstr(text));
    EXPECT_THAT(std::string(error.message()), HasSubstr("[::1]:9090"));
    EXPECT_EQ(ListeningSockets::Open(text).status(), error);
  }
}

bool Accepts(int family, int port) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  v6.sin6_port = htons(static_cast<uint16_t>(port));
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  v4.sin_port = v6.sin6_port;
  const int result = family == AF_INET6 ? connect(fd, reinterpret_cast<sockaddr*>(&v6), sizeof(v6))
                                        : connect(fd, reinterpret_cast<sockaddr*>(&v4), sizeof(v4));
  close(fd);
  return result == 0;
}

TEST(ListeningSocketsTest, ABoundPortIsTakenUntilItsOwnerIsGone) {
  auto first = ListeningSockets::Open("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->address(), StartsWith("127.0.0.1:"));
  const int port = ParseHostPort(first->address())->port;
  EXPECT_GT(port, 0);
  EXPECT_TRUE(Accepts(AF_INET, port));
  EXPECT_EQ(ListeningSockets::Open(first->address()).status().code(),
            absl::StatusCode::kUnavailable);
  const std::string address = first->address();
  ListeningSockets moved = *std::move(first);
  EXPECT_TRUE(Accepts(AF_INET, port));
  { const ListeningSockets gone = std::move(moved); }
  EXPECT_FALSE(Accepts(AF_INET, port));
  EXPECT_TRUE(ListeningSockets::Open(address).ok());
}

TEST(ListeningSocketsTest, AnotherMachinesAddressCannotBeBound) {
  EXPECT_EQ(ListeningSockets::Open("192.0.2.1:0").status().code(), absl::StatusCode::kUnavailable);
}

TEST(ListeningSocketsTest, LocalhostIsEveryAddressThatItHas) {
  const auto sockets = ListeningSockets::Open("localhost:0");
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  EXPECT_TRUE(Accepts(AF_INET, ParseHostPort(sockets->address())->port));
}

TEST(ListeningSocketsTest, Ipv6AndBothFamilies) {
  if (!testing::HasIpv6()) GTEST_SKIP() << "this machine has no ::1";
  const auto loopback = ListeningSockets::Open("[::1]:0");
  ASSERT_TRUE(loopback.ok()) << loopback.status();
  EXPECT_THAT(loopback->address(), StartsWith("[::1]:"));
  EXPECT_TRUE(Accepts(AF_INET6, ParseHostPort(loopback->address())->port));
  const auto any = ListeningSockets::Open("[::]:0");
  ASSERT_TRUE(any.ok()) << any.status();
  EXPECT_TRUE(Accepts(AF_INET6, ParseHostPort(any->address())->port));
  EXPECT_TRUE(Accepts(AF_INET, ParseHostPort(any->address())->port));
}

}  // namespace
}  // namespace baton
