// The part of AdminService that keeps prefixes warm.
#include <utility>

#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "router/api/service.h"
#include "router/metrics.h"
#include "router/request/admission.h"
#include "router/request/work_pool.h"

namespace baton::router {

grpc::ServerUnaryReactor* AdminService::WarmPrefix(grpc::CallbackServerContext* context,
                                                   const v1::WarmPrefixRequest* request,
                                                   v1::WarmPrefixResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status allowed = Allow(*context); !allowed.ok()) {
    reactor->Finish(ToGrpcStatus(allowed));
    return reactor;
  }
  auto answer = [reactor, response](absl::StatusOr<v1::WarmPrefix> prefix) {
    if (prefix.ok()) *response->mutable_prefix() = *std::move(prefix);
    reactor->Finish(ToGrpcStatus(prefix.status()));
  };
  const bool queued = parts_.pool.TryRun(
      [this, request, deadline = DeadlineOf(*context, parts_), answer = std::move(answer)] {
        warmer_.Warm(*request, deadline, answer);
      });
  if (!queued) {
    parts_.metrics.RequestRejected("TOKENIZER_QUEUE_FULL");
    reactor->Finish(ToGrpcStatus(
        WithRetryAfter(MakeError(absl::StatusCode::kResourceExhausted, "TOKENIZER_QUEUE_FULL",
                                 "too many prompts wait to be tokenized"),
                       parts_.admission.RetryAfter())));
  }
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ListWarmPrefixes(grpc::CallbackServerContext* context,
                                                         const v1::ListWarmPrefixesRequest* request,
                                                         v1::ListWarmPrefixesResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status allowed = Allow(*context);
  if (allowed.ok()) {
    for (v1::WarmPrefix& prefix : warmer_.List()) *response->add_prefixes() = std::move(prefix);
  }
  reactor->Finish(ToGrpcStatus(allowed));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::DropWarmPrefix(grpc::CallbackServerContext* context,
                                                       const v1::DropWarmPrefixRequest* request,
                                                       v1::DropWarmPrefixResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status allowed = Allow(*context);
  reactor->Finish(ToGrpcStatus(allowed.ok() ? warmer_.Drop(request->id()) : allowed));
  return reactor;
}

}  // namespace baton::router
