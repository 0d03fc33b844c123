#include "common/base/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

bool IsHost(absl::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

// An IPv6 address in brackets, such as [::1] or [fe80::1%eth0]; a resolver checks its digits.
bool IsInBrackets(absl::string_view host) {
  if (host.size() < 4 || host.front() != '[' || host.back() != ']') return false;
  const absl::string_view inside = host.substr(1, host.size() - 2);
  return inside.find(':') != absl::string_view::npos &&
         std::all_of(inside.begin(), inside.end(), [](char c) {
           return absl::ascii_isalnum(c) || c == ':' || c == '.' || c == '%';
         });
}

// With port 0, the first address of a host gets a free port, and the next ones must have the same.
// While another process has that port at one of them, another port is tried.
constexpr int kMostTries = 10;

// NOT_FOUND if this machine does not have the address, else UNAVAILABLE, most likely because
// another process has the port.
absl::Status Failed(int error) {
  const bool lacks_it = error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
  return absl::Status(lacks_it ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable,
                      std::strerror(error));
}

bool Same(const addrinfo& a, const addrinfo& b) {
  return a.ai_addrlen == b.ai_addrlen && std::memcmp(a.ai_addr, b.ai_addr, a.ai_addrlen) == 0;
}

// The port of a bound socket.
int PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

// Listens at the address `at` with that port.
absl::StatusOr<int> Listen(const addrinfo& at, int port) {
  const int fd = socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Failed(errno);
  absl::Cleanup close_fd = [fd] { close(fd); };
  sockaddr_storage address = {};
  std::memcpy(&address, at.ai_addr, at.ai_addrlen);
  const int yes = 1, no = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (at.ai_family == AF_INET6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    v6.sin6_port = htons(static_cast<uint16_t>(port));
    if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) {
      setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    }
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(static_cast<uint16_t>(port));
  }
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), at.ai_addrlen) != 0) return Failed(errno);
  if (listen(fd, SOMAXCONN) != 0) return Failed(errno);
  std::move(close_fd).Cancel();
  return fd;
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  const absl::string_view host = address.substr(0, std::min(colon, address.size()));
  const absl::string_view port = colon == absl::string_view::npos ? "" : address.substr(colon + 1);
  HostPort parsed;
  const bool number = !port.empty() && std::all_of(port.begin(), port.end(), absl::ascii_isdigit) &&
                      absl::SimpleAtoi(port, &parsed.port) && parsed.port <= 65535;
  const bool brackets = IsInBrackets(host);
  if (!number || !(brackets || IsHost(host))) {
    return absl::InvalidArgumentError(absl::StrCat("\"", address.substr(0, 300),
                                                   "\": expected host:port, e.g. 0.0.0.0:9090 or "
                                                   "[::1]:9090"));
  }
  parsed.host = std::string(brackets ? host.substr(1, host.size() - 2) : host);
  return parsed;
}

absl::StatusOr<ListeningSockets> ListeningSockets::Open(const std::string& address) {
  HostPort wanted;
  BATON_ASSIGN_OR_RETURN(wanted, ParseHostPort(address));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(wanted.host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::UnavailableError(gai_strerror(error));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  std::vector<const addrinfo*> places;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
    const auto same = [at](const addrinfo* other) { return Same(*at, *other); };
    if (std::none_of(places.begin(), places.end(), same)) places.push_back(at);
  }
  absl::StatusOr<ListeningSockets> sockets;
  for (int tries = 0; tries < (wanted.port == 0 ? kMostTries : 1); ++tries) {
    ListeningSockets tried;
    int port = wanted.port;
    absl::Status failed;
    for (const addrinfo* at : places) {
      const absl::StatusOr<int> fd = Listen(*at, port);
      if (!fd.ok()) failed = fd.status();
      if (absl::IsUnavailable(failed)) break;
      if (!fd.ok()) continue;  // "localhost" may have an address of IPv6 that the machine has not
      tried.sockets_.push_back({at->ai_family, *fd});
      if (port == 0) port = PortOf(*fd);
    }
    if (!absl::IsUnavailable(failed) && !tried.sockets_.empty()) {
      tried.address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
      return tried;
    }
    sockets = absl::UnavailableError(failed.ok() ? "the host has no address" : failed.message());
  }
  return sockets;
}

ListeningSockets::~ListeningSockets() { Close(); }

ListeningSockets::ListeningSockets(ListeningSockets&& other) noexcept
    : address_(std::move(other.address_)), sockets_(other.Release()) {}

ListeningSockets& ListeningSockets::operator=(ListeningSockets&& other) noexcept {
  if (this == &other) return *this;
  Close();
  address_ = std::move(other.address_);
  sockets_ = other.Release();
  return *this;
}

std::vector<ListeningSockets::Socket> ListeningSockets::Release() {
  return std::exchange(sockets_, {});
}

void ListeningSockets::Close() {
  for (const Socket& socket : Release()) close(socket.fd);
}

}  // namespace baton
