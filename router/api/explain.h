// The routing decision that a request would get now, and why it would miss the prefix caches. The
// request is not sent.
#ifndef BATON_ROUTER_API_EXPLAIN_H_
#define BATON_ROUTER_API_EXPLAIN_H_

#include "absl/status/statusor.h"
#include "baton/v1/admin.pb.h"
#include "baton/v1/inference.pb.h"
#include "router/request/router_parts.h"

namespace baton::router {

// Checks and tokenizes the request and asks the policy, as if it arrived now. Fails with the error
// that the request would get; limits of admission do not apply. With API keys, the prefix counts as
// cached where it is in the namespace of the tenant that the request names. Tokenizes
// synchronously, so do not call it on an event thread.
absl::StatusOr<v1::ExplainResponse> Explain(const v1::GenerateRequest& request,
                                            const RouterParts& parts);

}  // namespace baton::router

#endif  // BATON_ROUTER_API_EXPLAIN_H_
