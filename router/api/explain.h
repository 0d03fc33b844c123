// The routing decision that a request would get now, without sending it.
#ifndef BATON_ROUTER_API_EXPLAIN_H_
#define BATON_ROUTER_API_EXPLAIN_H_

#include "absl/status/statusor.h"
#include "baton/v1/admin.pb.h"
#include "baton/v1/inference.pb.h"
#include "router/request/router_parts.h"

namespace baton::router {

// Checks, tokenizes and asks the policy as for a request that arrives now, and fails as that would.
// Takes as long as tokenizing: not for an event thread.
absl::StatusOr<v1::Decision> Explain(const v1::GenerateRequest& request, const RouterParts& parts);

}  // namespace baton::router

#endif  // BATON_ROUTER_API_EXPLAIN_H_
