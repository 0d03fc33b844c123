// What a failed Decode call means to the client.
#ifndef BATON_ROUTER_REQUEST_WORKER_ERROR_H_
#define BATON_ROUTER_REQUEST_WORKER_ERROR_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/fleet/membership.h"

namespace baton::router {

// The end of a Decode stream that was not ended by the router and has brought no finish. Never OK:
// a failure never looks like a finish. Codes and reasons that mean something to a client pass; what
// went wrong inside a worker is logged by the caller and not told.
absl::Status FromWorker(const grpc::Status& status);

// A stream that the router gave up on: "WORKER_STALLED", "WORKER_EXPIRED".
absl::Status LostWorker(absl::string_view reason);

// The request's deadline passed while its stream, or the wait for one, was under way.
absl::Status DeadlinePassed();

// Another pair of workers may succeed where this error happened; `begun`: workers had let the
// request in before.
bool AnotherPairMayDo(const absl::Status& error, bool begun);

// The workers did not fail, but had no room.
bool IsRefusal(const absl::Status& error);

Blame BlameFor(const absl::Status& error);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_WORKER_ERROR_H_
