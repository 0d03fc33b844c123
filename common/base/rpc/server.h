// A gRPC server: binds, serves, drains, stops. It includes server reflection and the health
// service, where "" is liveness and the name of a service is that service's readiness.
#ifndef BATON_COMMON_BASE_RPC_SERVER_H_
#define BATON_COMMON_BASE_RPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/rpc/answer_watch.h"
#include "common/base/rpc/keepalive.h"
#include "common/base/tls_files.h"

namespace baton {

struct RpcServerOptions {
  std::string address = "127.0.0.1:0";  // port 0: any free port
  int max_message_bytes = 16 << 20;     // limit for one received message
  Keepalive keepalive;
  ServerTls tls;  // without files: plaintext
  // Path of a Unix domain socket that is served besides `address`, without TLS; empty: none. The
  // rights of its file and directory decide which processes of this machine may connect.
  std::string unix_socket;
  // Whether a client may read the reflection service. Null: every one. The other services check
  // their callers themselves; the health service has none to check.
  std::function<absl::Status(const grpc::ServerContextBase&)> may_reflect;
  // A unary call of whose answer the client takes nothing for so long, by this clock, ends, and
  // `on_stalled` is called: see AnswerWatch. Streams watch themselves.
  absl::Duration write_stall_timeout = absl::Seconds(30);
  const Clock* clock = &Clock::Real();
  std::function<void()> on_stalled;
};

// Thread-safe. The services must outlive it.
class RpcServer {
 public:
  // Each of `service_names` has a separate readiness. UNAVAILABLE, with the address in the
  // message, if the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const RpcServerOptions& options, const std::vector<grpc::Service*>& services,
      const std::vector<std::string>& service_names);
  ~RpcServer();

  // "host:port" with the port that is bound, never 0.
  const std::string& address() const { return address_; }
  int port() const { return port_; }

  // Sets the readiness of the services, which start as NOT_SERVING.
  void SetServing(bool serving);

  // Refuses new calls, waits up to `grace` for the running ones, then cancels them. Returns when
  // all have ended. It does not wait for calls of the health and reflection services. A call with a
  // grace of zero shortens one that waits in another thread.
  void Stop(absl::Duration grace);
  // Does the same, but a few milliseconds after its begin the address accepts connections again,
  // until StopRefusing() or the destructor: their calls get `refusal`, and the health service
  // answers that the process lives and is not ready. Each such connection ends after a second, so
  // that a client may reach another server. The Unix domain socket accepts no more connections.
  void Drain(absl::Duration grace, const absl::Status& refusal);
  void StopRefusing();

 private:
  class OwnCalls;
  class OwnCall;
  class Refuser;
  RpcServer();
  static absl::StatusOr<std::unique_ptr<RpcServer>> Build(
      const RpcServerOptions& options, const std::vector<grpc::Service*>& services,
      const std::vector<std::string>& service_names, std::unique_ptr<Refuser> refuser);

  RpcServerOptions options_;
  std::unique_ptr<Refuser> refuser_;  // null: the server serves
  std::shared_ptr<OwnCalls> own_calls_;
  std::unique_ptr<AnswerWatch> answers_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<RpcServer> refusing_;  // during and after Drain
  std::vector<std::string> service_names_;
  std::string address_;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  absl::Notification stopped_;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_SERVER_H_
