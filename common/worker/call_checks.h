// What workers check of each call first: that the caller means this process, its model and its KV.
#ifndef BATON_COMMON_WORKER_CALL_CHECKS_H_
#define BATON_COMMON_WORKER_CALL_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/engine/engine.h"
#include "common/transfer/checksum.h"

namespace baton::worker {

// A number that the caller gives, and the worker's.
struct Meant {
  uint64_t by_caller = 0;
  uint64_t here = 0;
};

// For a router's call. UNAVAILABLE (STALE_EPOCH, MODEL_MISMATCH), with both values, if the caller
// means another process or model: the router is behind, and the request may go elsewhere. `role`:
// "prefill" or "decode".
absl::Status CheckTarget(absl::string_view role, const Meant& epoch,
                         const Meant& model_fingerprint);
// The same for another worker's call: FAILED_PRECONDITION, as that worker has no other to ask.
absl::Status CheckTargetOfPeer(const Meant& epoch, const Meant& model_fingerprint);

// For another worker's call that moves KV: the request's checksum too (DATA_LOSS, CHECKSUM), and
// the layout of its KV (KvLayout::CheckCaller).
template <class Request>
absl::Status CheckKvCall(const Request& request, const Meant& epoch, const engine::Engine& engine) {
  if (const uint64_t sum = transfer::RequestChecksum(request); sum != request.checksum()) {
    return MakeError(absl::StatusCode::kDataLoss, "CHECKSUM",
                     absl::StrCat(Request::descriptor()->name(), " has checksum ",
                                  absl::Hex(request.checksum()), ", its content ", absl::Hex(sum)));
  }
  BATON_RETURN_IF_ERROR(
      CheckTargetOfPeer(epoch, {request.model_fingerprint(), engine.config().fingerprint}));
  return engine.kv_layout().CheckCaller(request.kv_layout_fingerprint());
}

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_CALL_CHECKS_H_
