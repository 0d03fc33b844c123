// TCP sockets that listen on "host:port", for servers that are not gRPC's.
#ifndef BATON_COMMON_BASE_LISTENING_SOCKETS_H_
#define BATON_COMMON_BASE_LISTENING_SOCKETS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};
// An address of IPv6 stands in brackets, as in "[::1]:9090". INVALID_ARGUMENT for any other form.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

// Owns its sockets. Unsynchronized.
class ListeningSockets {
 public:
  struct Socket {
    int family;  // AF_INET or AF_INET6
    int fd;
  };

  // Opens a socket for each address of the host ("localhost" may have two), all with one port: any
  // free one for port 0. "[::]" serves IPv4, too. INVALID_ARGUMENT as ParseHostPort; UNAVAILABLE,
  // with the reason alone as its message, if the host has no address or one of them cannot be
  // bound.
  static absl::StatusOr<ListeningSockets> Open(const std::string& address);
  ~ListeningSockets();
  ListeningSockets(ListeningSockets&& other) noexcept;
  ListeningSockets& operator=(ListeningSockets&& other) noexcept;

  // The host as it was given, and the port that is bound.
  const std::string& address() const { return address_; }
  // Returns the sockets, which the caller owns from now on.
  std::vector<Socket> Release();

 private:
  ListeningSockets() = default;
  void Close();

  std::string address_;
  std::vector<Socket> sockets_;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_LISTENING_SOCKETS_H_
