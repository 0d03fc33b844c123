#include "cli/admin.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "baton/v1/admin.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"
#include "cli/generate.h"
#include "common/base/exit_code.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

std::string Text(const v1::ListWorkersResponse& response) {
  std::string text =
      absl::StrFormat("%-8s %-24s %-10s %7s %6s %7s %7s %7s  %-20s  id\n", "role", "worker",
                      "state", "running", "queued", "blocks", "free", "indexed", "work");
  for (const v1::WorkerStatus& w : response.workers()) {
    const std::string work =
        absl::StrJoin(w.capabilities(), ",", [](std::string* out, int capability) {
          absl::StrAppend(out, Short(static_cast<v1::WorkerCapability>(capability)));
        });
    absl::StrAppendFormat(&text, "%-8s %-24s %-10s %7d %6d %7d %7d %7d  %-20s  %s%s\n",
                          Short(w.role()), w.address(), Short(w.state()), w.running(), w.queued(),
                          w.total_blocks(), w.free_blocks(), w.indexed_blocks(), work,
                          w.worker_id(), w.detail().empty() ? "" : "  " + w.detail());
  }
  return text;
}

std::string Text(const v1::GetLoadsResponse& response) {
  std::string text =
      absl::StrFormat("%-8s %-24s %-10s %7s %6s %8s %8s %7s %6s %6s %6s %6s %9s %6s\n", "role",
                      "worker", "state", "running", "queued", "q.tokens", "context", "work ms",
                      "free", "cached", "active", "held", "transfers", "age ms");
  for (const v1::WorkerLoad& w : response.workers()) {
    absl::StrAppendFormat(&text, "%-8s %-24s %-10s %7d %6d %8d %8d %7.0f %6d %6d %6d %6d %9d %6s\n",
                          Short(w.role()), w.address(), Short(w.state()), w.running(), w.queued(),
                          w.queued_tokens(), w.context_tokens(), w.remaining_work_ms(),
                          w.free_blocks(), w.cached_blocks(), w.active_blocks(), w.held_blocks(),
                          w.open_transfers(),
                          w.has_age_ms() ? absl::StrFormat("%.0f", w.age_ms()) : "-");
  }
  const v1::RouterLoad& router = response.router();
  absl::StrAppendFormat(&text,
                        "router: %d of %d requests, %d of %d prompt tokens, %d before their first "
                        "token\n",
                        router.requests(), router.max_requests(), router.prompt_tokens(),
                        router.max_prompt_tokens(), router.requests_before_first_token());
  return text;
}

std::string Text(const v1::WorkerStatus& worker) {
  return absl::StrFormat("%s worker %s is %s: %d running, %d queued\n", Short(worker.role()),
                         worker.address(), Short(worker.state()), worker.running(),
                         worker.queued());
}
std::string Text(const v1::DrainResponse& response) { return Text(response.worker()); }
std::string Text(const v1::UndrainResponse& response) { return Text(response.worker()); }

std::string Text(const v1::FlushCacheResponse& response) {
  std::string text;
  for (const v1::FlushedCache& w : response.workers()) {
    absl::StrAppend(
        &text, Short(w.role()), " worker ", w.address(), ": ",
        w.error().empty() ? absl::StrCat(w.dropped_blocks(), " blocks dropped") : w.error(), "\n");
  }
  return text;
}

std::string Text(const v1::CancelResponse& response) {
  return absl::StrCat(response.cancelled(), response.cancelled() == 1 ? " request" : " requests",
                      " cancelled\n");
}

// Makes one call of `Service` and prints its answer.
template <class Service, class Request, class Response>
absl::Status Ask(grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&,
                                                       Response*),
                 const Request& request, const AdminOptions& options, std::ostream& out,
                 Response* response) {
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                         RouterChannel(options.address, options.access));
  const auto stub = Service::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(options.timeout_ms)));
  const grpc::Status status = ((*stub).*method)(&context, request, response);
  if (!status.ok()) return FromGrpcStatus(status);
  out << (options.json ? JsonLine(*response) + "\n" : Text(*response)) << std::flush;
  return absl::OkStatus();
}

absl::Status Flush(const AdminOptions& options, std::ostream& out) {
  v1::FlushCacheRequest request;
  request.set_worker(options.worker);
  v1::FlushCacheResponse response;
  absl::Status status =
      Ask<v1::AdminService>(&v1::AdminService::Stub::FlushCache, request, options, out, &response);
  for (const v1::FlushedCache& worker : response.workers()) {
    if (status.ok() && !worker.error().empty()) {
      status = absl::UnavailableError("not all workers could be reached");
    }
  }
  return status;
}

absl::Status Run(const std::string& command, const AdminOptions& options, std::ostream& out) {
  using Admin = v1::AdminService;
  if (command == "workers") {
    v1::ListWorkersResponse response;
    return Ask<Admin>(&Admin::Stub::ListWorkers, v1::ListWorkersRequest(), options, out, &response);
  }
  if (command == "loads") {
    v1::GetLoadsResponse response;
    return Ask<Admin>(&Admin::Stub::GetLoads, v1::GetLoadsRequest(), options, out, &response);
  }
  if (command == "drain") {
    v1::DrainRequest request;
    request.set_worker(options.worker);
    request.set_wait(options.wait);
    v1::DrainResponse response;
    return Ask<Admin>(&Admin::Stub::Drain, request, options, out, &response);
  }
  if (command == "undrain") {
    v1::UndrainRequest request;
    request.set_worker(options.worker);
    v1::UndrainResponse response;
    return Ask<Admin>(&Admin::Stub::Undrain, request, options, out, &response);
  }
  if (command == "flush-cache") return Flush(options, out);
  v1::CancelRequest request;
  request.set_request_id(options.request_id);
  request.set_tenant(options.tenant);
  v1::CancelResponse response;
  return Ask<v1::InferenceService>(&v1::InferenceService::Stub::Cancel, request, options, out,
                                   &response);
}

}  // namespace

std::string Short(v1::WorkerRole role) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::WorkerRole_Name(role), "WORKER_ROLE_"));
}
std::string Short(v1::WorkerState state) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::WorkerState_Name(state), "WORKER_STATE_"));
}
std::string Short(v1::WorkerCapability capability) {
  return absl::AsciiStrToLower(
      absl::StripPrefix(v1::WorkerCapability_Name(capability), "WORKER_CAPABILITY_"));
}

std::string JsonLine(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string line;
  // Cannot fail: the messages have no field without a JSON form.
  (void)google::protobuf::util::MessageToJsonString(message, &line, options);
  return line;
}

int RunAdmin(const std::string& command, const AdminOptions& options, std::ostream& out,
             std::ostream& err) {
  const absl::Status status = Run(command, options, out);
  if (status.ok()) return kExitOk;
  err << "baton " << command << ": " << Describe(status) << std::endl;
  return ExitCode(status);
}

}  // namespace baton::cli
