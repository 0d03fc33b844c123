#include "cli/port_reservation.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace baton::cli {

absl::StatusOr<PortReservation> PortReservation::Make() {
  PortReservation made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (made.socket_ < 0 ||
      setsockopt(made.socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      bind(made.socket_, any, size) != 0 || getsockname(made.socket_, any, &size) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no port of 127.0.0.1 can be reserved: ", std::strerror(errno)));
  }
  made.address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  return made;
}

PortReservation::~PortReservation() {
  if (socket_ >= 0) close(socket_);
}

}  // namespace baton::cli
