#include "cli/health.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cli/generate.h"
#include "common/base/exit_code.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

// HealthCheckRequest and HealthCheckResponse, which gRPC's packages do not install, have the same
// encoding: field 1 is the service's name and the status.
using Request = google::protobuf::StringValue;
using Response = google::protobuf::Int32Value;
constexpr int kServing = 1;

absl::StatusOr<int> Check(const HealthOptions& options) {
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                         RouterChannel(options.address, options.access));
  grpc::TemplatedGenericStub<Request, Response> stub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(options.timeout_ms)));
  Request request;
  request.set_value(options.service);
  Response response;
  grpc::Status status;
  absl::Notification done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&](grpc::Status ended) {
                   status = std::move(ended);
                   done.Notify();
                 });
  done.WaitForNotification();
  if (!status.ok()) return FromGrpcStatus(status);
  return response.value();
}

}  // namespace

int RunHealth(const HealthOptions& options, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<int> health = Check(options);
  if (!health.ok()) {
    err << "baton health: " << Describe(health.status()) << std::endl;
    return ExitCode(health.status());
  }
  out << (*health == kServing ? "serving" : "not serving") << std::endl;
  return *health == kServing ? kExitOk : kExitFailure;
}

}  // namespace baton::cli
