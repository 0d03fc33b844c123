// What a failed Decode call means to the client.
#ifndef BATON_ROUTER_REQUEST_WORKER_ERROR_H_
#define BATON_ROUTER_REQUEST_WORKER_ERROR_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/routing/route.h"

namespace baton::router {

// The error for a Decode stream that ended without a finish, and not by the router. Never OK: a
// failure never looks like a finish. Codes and reasons that mean something to a client pass, and a
// worker's text where it is about the request; errors inside a worker become INTERNAL. No address
// of a worker passes. The caller logs the whole.
absl::Status FromWorker(const grpc::Status& status);

// The error for a stream that the router gave up on: "WORKER_STALLED", "WORKER_EXPIRED",
// "WORKER_SUSPECT", "PREFILL_SUSPECT".
absl::Status LostWorker(absl::string_view reason);

// True if the error says that the worker fell silent: it did not end when the stream did.
bool IsSilence(const absl::Status& error);

// The request's deadline passed while it had a stream or waited for one.
absl::Status DeadlinePassed();

// Another pair of workers may succeed where this error happened; `begun`: workers had let the
// request in before.
bool AnotherPairMayDo(const absl::Status& error, bool begun);

// The workers did not fail, but had no room.
bool IsRefusal(const absl::Status& error);

// The stream was neither refused for want of room nor by a worker that drains.
bool IsLoss(const absl::Status& error);

Blame BlameFor(const absl::Status& error);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_WORKER_ERROR_H_
