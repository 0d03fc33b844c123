// How a call enters the router: the bounds on calls and prompt tokens inside, the limits of its
// tenant, and whether it can be answered by its deadline. Refusals are counted in the metrics.
#ifndef BATON_ROUTER_REQUEST_ENTRANCE_H_
#define BATON_ROUTER_REQUEST_ENTRANCE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/request/access.h"
#include "router/request/admission.h"
#include "router/request/request_bytes.h"
#include "router/request/router_parts.h"
#include "router/request/tenant_limits.h"

namespace baton::router {

// The places that a call holds, until Leave or its destructor. Move-only.
//
// A worker's stream may hold the call for longer than the client's, and RouterServer waits only for
// the ticket's end: nothing of the call may use the router after that.
struct Entrance {
  std::optional<Admission::Ticket> ticket;  // set by Enter
  TenantLimits::Place tenant_place;

  // The call has ended, though its answer may not be read yet.
  void Leave() {
    if (ticket) ticket->Leave();
    tenant_place = TenantLimits::Place();
  }
};

// RESOURCE_EXHAUSTED with a time to retry: SURVIVORS_FULL, TENANT_LIMIT, TENANT_RATE_LIMIT or
// TOO_MANY_REQUESTS.
absl::StatusOr<Entrance> Enter(const RouterParts& parts, const Caller& caller);

// Once, when the length of the call's prompt is known. RESOURCE_EXHAUSTED, TOO_MANY_PROMPT_TOKENS.
absl::Status AddPrompt(const RouterParts& parts, int64_t tokens, Entrance* entrance);

// Refuses a call that would hardly be answered by its deadline: DEADLINE_UNREACHABLE.
absl::Status CheckDeadline(const RouterParts& parts, absl::Time deadline, int64_t tokens,
                           int64_t max_tokens);

// Counts so many more bytes of the request. RESOURCE_EXHAUSTED, TOO_MANY_REQUEST_BYTES.
absl::Status Hold(const RouterParts& parts, int64_t bytes, RequestBytes::Share* held);
// The error of Hold.
absl::Status TooManyRequestBytes(const RouterParts& parts);

// UNAVAILABLE, DRAINING, with a time to retry: the router is shutting down.
absl::Status RouterDrains();
// The error of a request that a router, which stops, could not answer within its drain's grace.
absl::Status RouterStopped();

// RESOURCE_EXHAUSTED, TOKENIZER_QUEUE_FULL: RouterParts::pool takes no more work.
absl::Status TokenizerQueueFull(const RouterParts& parts);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ENTRANCE_H_
