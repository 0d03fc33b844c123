// A port of 127.0.0.1 that stays with its owner while the servers on it come and go.
#ifndef BATON_CLI_PORT_RESERVATION_H_
#define BATON_CLI_PORT_RESERVATION_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace baton::cli {

// A socket that is bound to the port and never listens. While it is there, the system gives the
// port to no outgoing connection and to no bind to port 0; a server that binds to it by number with
// SO_REUSEADDR, as gRPC's and ListeningSockets do, can listen on it. Without it, the port of a
// process that is started again is free for as long as the process takes to start.
class PortReservation {
 public:
  // UNAVAILABLE if no port is free.
  static absl::StatusOr<PortReservation> Make();
  ~PortReservation();
  PortReservation(PortReservation&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), address_(std::move(other.address_)) {}
  PortReservation& operator=(PortReservation&&) = delete;

  const std::string& address() const { return address_; }  // 127.0.0.1:PORT

 private:
  explicit PortReservation(int socket) : socket_(socket) {}

  int socket_;
  std::string address_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_PORT_RESERVATION_H_
