// A gRPC server: bind, serve, drain, stop. Health (`""` is liveness, each service's
// name is readiness) and reflection come with it.
#ifndef BATON_COMMON_BASE_RPC_SERVER_H_
#define BATON_COMMON_BASE_RPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton {

// Pings on a connection that has been silent for `time`; without an answer within `timeout` it is
// closed, and with it all its calls: so a stopped or partitioned peer is noticed.
struct Keepalive {
  absl::Duration time = absl::Seconds(2);
  absl::Duration timeout = absl::Seconds(3);
};

struct RpcServerOptions {
  std::string address = "127.0.0.1:0";  // port 0: any free one
  int max_message_bytes = 16 << 20;     // of one received message
  Keepalive keepalive;
};

// Thread-safe once started. Services must outlive it.
class RpcServer {
 public:
  // UNAVAILABLE, naming the address, if it cannot be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const RpcServerOptions& options, const std::vector<grpc::Service*>& services,
      const std::vector<std::string>& service_names);
  ~RpcServer();

  // "host:port" with the port that was bound.
  const std::string& address() const { return address_; }
  int port() const { return port_; }

  // Readiness of the named services. Not serving at start, until called with true.
  void SetServing(bool serving);

  // No new calls; waits for those running until `grace` is over, then cancels them. Idempotent.
  void Stop(absl::Duration grace);

 private:
  RpcServer() = default;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::string> service_names_;
  std::string address_;
  int port_ = 0;
};

// A channel with the message limits that all hops share. A peer that restarts at its
// address is reached within a second.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const Keepalive& keepalive = Keepalive());

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_SERVER_H_
