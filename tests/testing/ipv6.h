// Tells whether tests of IPv6 can run on this machine.
#ifndef BATON_TESTS_TESTING_IPV6_H_
#define BATON_TESTS_TESTING_IPV6_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace baton::testing {

// The machine has the address ::1.
inline bool HasIpv6() {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in6 loopback = {};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) == 0;
  close(fd);
  return bound;
}

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_IPV6_H_
