#include "common/worker/call_checks.h"

namespace baton::worker {
namespace {

// `worker`: "worker", perhaps with its role.
absl::Status Check(absl::StatusCode code, absl::string_view worker, const Meant& epoch,
                   const Meant& model_fingerprint) {
  const auto differs = [&](absl::string_view reason, absl::string_view what, const Meant& meant) {
    return MakeError(code, reason,
                     absl::StrCat("the caller means ", what, " ", absl::Hex(meant.by_caller),
                                  ", this ", worker, " has ", absl::Hex(meant.here)));
  };
  if (epoch.by_caller != epoch.here) return differs("STALE_EPOCH", "epoch", epoch);
  if (model_fingerprint.by_caller != model_fingerprint.here) {
    return differs("MODEL_MISMATCH", "model", model_fingerprint);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTarget(absl::string_view role, const Meant& epoch,
                         const Meant& model_fingerprint) {
  return Check(absl::StatusCode::kUnavailable, absl::StrCat(role, " worker"), epoch,
               model_fingerprint);
}

absl::Status CheckTargetOfPeer(const Meant& epoch, const Meant& model_fingerprint) {
  return Check(absl::StatusCode::kFailedPrecondition, "worker", epoch, model_fingerprint);
}

}  // namespace baton::worker
