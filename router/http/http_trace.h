// The trace that an HTTP request is in.
#ifndef BATON_ROUTER_HTTP_HTTP_TRACE_H_
#define BATON_ROUTER_HTTP_HTTP_TRACE_H_

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/trace_context.h"
#include "router/http/http_server.h"

namespace baton::router {

// Invalid without exactly one traceparent. Several tracestates are one list, as W3C has it.
inline TraceContext TraceOf(const HttpRequest& request) {
  int parents = 0;
  std::string parent, state;
  for (const auto& [name, value] : request.headers) {
    if (absl::EqualsIgnoreCase(name, kTraceparent)) {
      ++parents;
      parent = value;
    } else if (absl::EqualsIgnoreCase(name, kTracestate)) {
      absl::StrAppend(&state, state.empty() ? "" : ",", value);
    }
  }
  return parents == 1 ? ParseTraceContext(parent, state) : TraceContext();
}

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_HTTP_TRACE_H_
