#include "client/cpp/connection.h"

#include <grpcpp/alarm.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/random_id.h"
#include "common/base/rpc/client_channel.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/status_macros.h"

namespace baton::client {
namespace {

class AlarmTimer final : public Timer {
 public:
  void Start(absl::Duration pause, std::function<void()> done) override {
    absl::MutexLock lock(&mutex_);
    const absl::Time end = absl::Now() + (cancelled_ ? absl::ZeroDuration() : pause);
    // The alarm keeps its function, which may own what owns the alarm.
    alarm_.Set(absl::ToChronoTime(end),
               [done = std::move(done)](bool) mutable { std::exchange(done, nullptr)(); });
  }
  void Cancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    alarm_.Cancel();
  }

 private:
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);  // calls back on gRPC's threads only
};

absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelFor(const std::string& address,
                                                          const ClientOptions& options) {
  ChannelTls tls;
  tls.enabled = options.tls.enabled;
  tls.ca = options.tls.ca;
  tls.cert = options.tls.cert;
  tls.key = options.tls.key;
  tls.server_name = options.tls.server_name;
  return MakeClientChannel(address, tls, options.api_key,
                           CallHeaders(options.headers.begin(), options.headers.end()));
}

}  // namespace

Environment RealEnvironment() {
  Environment real;
  real.random = [] { return static_cast<double>(RandomId64() >> 11) * 0x1p-53; };
  real.make_timer = [] { return std::make_unique<AlarmTimer>(); };
  return real;
}

absl::StatusOr<std::shared_ptr<const Connection>> Connection::Make(const std::string& address,
                                                                   const ClientOptions& options,
                                                                   Environment environment) {
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                         ChannelFor(address, options));
  auto connection = std::make_shared<Connection>();
  connection->address = address;
  connection->options = options;
  connection->environment = std::move(environment);
  connection->inference = v1::InferenceService::NewStub(channel);
  connection->admin = v1::AdminService::NewStub(channel);
  return connection;
}

Retries Connection::NewRetries(const CallOptions& call) const {
  return Retries(call.timeout.value_or(options.timeout), options.max_retries, *environment.clock,
                 environment.random);
}

void Connection::Prepare(const Retries& retries, grpc::ClientContext* context) const {
  context->set_deadline(absl::ToChronoTime(absl::Now() + retries.TimeLeft()));  // saturates
  context->set_wait_for_ready(options.wait_for_ready);
}

absl::Status Connection::FromCall(const grpc::Status& status, const std::string& request_id) const {
  absl::Status error = FromGrpcStatus(status);
  if (!error.ok() && ErrorReason(error).empty()) {
    error = Annotate(error, absl::StrCat("router at ", address));
  }
  return WithRequestId(std::move(error), request_id);
}

}  // namespace baton::client
