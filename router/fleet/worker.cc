#include "router/fleet/worker.h"

namespace baton::router {

absl::string_view RoleName(v1::WorkerRole role) {
  return role == v1::WORKER_ROLE_PREFILL  ? "prefill"
         : role == v1::WORKER_ROLE_DECODE ? "decode"
                                          : "unknown";
}

absl::string_view StateName(v1::WorkerState state) {
  switch (state) {
    case v1::WORKER_STATE_CONNECTING:
      return "connecting";
    case v1::WORKER_STATE_READY:
      return "ready";
    case v1::WORKER_STATE_SUSPECT:
      return "suspect";
    case v1::WORKER_STATE_EXPIRED:
      return "expired";
    case v1::WORKER_STATE_REFUSED:
      return "refused";
    case v1::WORKER_STATE_DRAINING:
      return "draining";
    case v1::WORKER_STATE_DRAINED:
      return "drained";
    default:
      return "unknown";
  }
}

}  // namespace baton::router
