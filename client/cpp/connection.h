// What the calls of a client share: its channel, its options, and the time that their retries take.
#ifndef BATON_CLIENT_CPP_CONNECTION_H_
#define BATON_CLIENT_CPP_CONNECTION_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/admin.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"
#include "client/cpp/client.h"
#include "client/cpp/retries.h"
#include "common/base/clock.h"

namespace baton::client {

// A pause that can be ended. Thread-safe.
class Timer {
 public:
  virtual ~Timer() = default;
  // Calls `done` once: after `pause`, or at once if Cancel() was or is called.
  virtual void Start(absl::Duration pause, std::function<void()> done) = 0;
  virtual void Cancel() = 0;
};

// Time and chance, replaced in tests.
struct Environment {
  const Clock* clock = &Clock::Real();
  std::function<double()> random;  // from 0 to below 1; thread-safe
  std::function<std::unique_ptr<Timer>()> make_timer;
};
Environment RealEnvironment();

// Immutable, thread-safe.
struct Connection {
  // INVALID_ARGUMENT as of MakeClientChannel. Does not connect.
  static absl::StatusOr<std::shared_ptr<const Connection>> Make(
      const std::string& address, const ClientOptions& options,
      Environment environment = RealEnvironment());

  Retries NewRetries(const CallOptions& call) const;
  // Prepares one attempt.
  void Prepare(const Retries& retries, grpc::ClientContext* context) const;
  // An error without a reason is gRPC's own: the address is added. `request_id` may be empty.
  absl::Status FromCall(const grpc::Status& status, const std::string& request_id) const;

  std::string address;
  ClientOptions options;
  Environment environment;
  std::unique_ptr<v1::InferenceService::Stub> inference;
  std::unique_ptr<v1::AdminService::Stub> admin;
};

}  // namespace baton::client

#endif  // BATON_CLIENT_CPP_CONNECTION_H_
