// What both workers check of a router's call.
#ifndef BATON_COMMON_WORKER_ROUTER_CALL_H_
#define BATON_COMMON_WORKER_ROUTER_CALL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::worker {

// A number that the caller gives, and the worker's.
struct Meant {
  uint64_t by_caller = 0;
  uint64_t here = 0;
};

// UNAVAILABLE (STALE_EPOCH, MODEL_MISMATCH), with both values, if the caller means another process
// or model: the router is behind, and the request may go elsewhere. `role`: "prefill" or "decode".
absl::Status CheckTarget(absl::string_view role, const Meant& epoch,
                         const Meant& model_fingerprint);

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_ROUTER_CALL_H_
