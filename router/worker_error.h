// What a failed Decode call means to the client.
#ifndef BATON_ROUTER_WORKER_ERROR_H_
#define BATON_ROUTER_WORKER_ERROR_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace baton::router {

// The end of a Decode stream that was not ended by the router and has brought no finish. Never OK:
// a failure never looks like a finish. Codes and reasons that mean something to a client pass; what
// went wrong inside a worker is logged by the caller and not told.
absl::Status FromWorker(const grpc::Status& status);

// Another pair of workers may succeed where this error happened.
bool AnotherPairMayDo(const absl::Status& error);

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_ERROR_H_
