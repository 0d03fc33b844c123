// Reads the metadata that a client has sent with its call, and adds that of a trace to a call.
#ifndef BATON_COMMON_BASE_RPC_CALL_HEADERS_H_
#define BATON_COMMON_BASE_RPC_CALL_HEADERS_H_

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/trace_context.h"

namespace baton {

// Empty if the call lacks it, or has it twice. Valid as long as the context.
inline absl::string_view CallHeader(const grpc::ServerContextBase& context,
                                    absl::string_view name) {
  const auto& all = context.client_metadata();
  const grpc::string_ref key(name.data(), name.size());
  const auto found = all.find(key);
  if (found == all.end() || all.count(key) != 1) return {};
  return {found->second.data(), found->second.size()};
}

// The trace that the caller is in. Several tracestates are one list, as W3C has it.
inline TraceContext TraceOfCall(const grpc::ServerContextBase& context) {
  const absl::string_view parent = CallHeader(context, kTraceparent);
  if (parent.empty()) return {};
  std::string state;
  const auto [begin, end] = context.client_metadata().equal_range(kTracestate);
  for (auto it = begin; it != end; ++it) {
    absl::StrAppend(&state, state.empty() ? "" : ",",
                    absl::string_view(it->second.data(), it->second.size()));
  }
  return ParseTraceContext(parent, state);
}

// Call before the call starts. Adds nothing of an invalid context, or of one without a span.
inline void AddTrace(const TraceContext& trace, grpc::ClientContext* context) {
  if (!trace.valid() || trace.span_id == 0) return;
  context->AddMetadata(kTraceparent, Traceparent(trace));
  if (!trace.state.empty()) context->AddMetadata(kTracestate, trace.state);
}

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_CALL_HEADERS_H_
