#include "cli/port_reservation.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "common/base/listening_sockets.h"
#include "common/base/rpc/server.h"
#include "tests/testing/listening_socket.h"

namespace baton::cli {
namespace {

TEST(PortReservationTest, ServersOnItComeAndGo) {
  const auto reserved = PortReservation::Make();
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  for (int i = 0; i < 3; ++i) {
    {
      RpcServerOptions options;
      options.address = reserved->address();
      const auto server = RpcServer::Start(options, {}, {});
      ASSERT_TRUE(server.ok()) << server.status();
      EXPECT_EQ((*server)->address(), reserved->address());
      EXPECT_FALSE(ListeningSockets::Open(reserved->address()).ok()) << "one at a time";
    }
    const auto sockets = ListeningSockets::Open(reserved->address());
    EXPECT_TRUE(sockets.ok()) << sockets.status();
  }
}

TEST(PortReservationTest, ItStaysTakenWithoutAServer) {
  auto reserved = PortReservation::Make();
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  const auto other = PortReservation::Make();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(other->address(), reserved->address());
  const PortReservation moved = *std::move(reserved);
  const int port = std::stoi(moved.address().substr(moved.address().rfind(':') + 1));
  sockaddr_in address = testing::Loopback(port);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_NE(bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(socket);
}

}  // namespace
}  // namespace baton::cli
