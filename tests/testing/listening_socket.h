// A TCP socket that listens on loopback, and no more: the test decides what happens to connections.
#ifndef BATON_TESTS_TESTING_LISTENING_SOCKET_H_
#define BATON_TESTS_TESTING_LISTENING_SOCKET_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::testing {

inline sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// The system completes TCP handshakes, up to a backlog, before anything accepts them.
class ListeningSocket {
 public:
  ListeningSocket() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    BATON_CHECK_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    BATON_CHECK_EQ(listen(socket_, 8), 0);
    BATON_CHECK_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~ListeningSocket() { close(socket_); }
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  // Blocks until a connection comes; the caller closes it. -1 after Shutdown().
  int Accept() { return accept(socket_, nullptr, nullptr); }
  void Shutdown() { shutdown(socket_, SHUT_RDWR); }

 private:
  const int socket_;
  int port_ = 0;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_LISTENING_SOCKET_H_
