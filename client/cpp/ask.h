// A unary call of a client.
#ifndef BATON_CLIENT_CPP_ASK_H_
#define BATON_CLIENT_CPP_ASK_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/connection.h"

namespace baton::client {

// Makes the call, with its retries. Blocks.
template <class Stub, class Request, class Response>
absl::Status Ask(const Connection& connection, const CallOptions& options, Stub& stub,
                 grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                 const Request& request, Response* response, const std::string& request_id = "") {
  Retries retries = connection.NewRetries(options);
  const std::unique_ptr<Timer> timer = connection.environment.make_timer();
  while (true) {
    grpc::ClientContext context;
    connection.Prepare(retries, &context);
    const absl::Status status =
        connection.FromCall((stub.*method)(&context, request, response), request_id);
    if (status.ok()) return status;
    const std::optional<absl::Duration> pause = retries.PauseAfter(status);
    if (!pause) return status;
    absl::Notification over;
    timer->Start(*pause, [&over] { over.Notify(); });
    over.WaitForNotification();
  }
}

}  // namespace baton::client

#endif  // BATON_CLIENT_CPP_ASK_H_
