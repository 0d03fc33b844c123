#include "common/worker/router_call.h"

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::worker {
namespace {

absl::Status Differs(absl::string_view reason, absl::string_view what, absl::string_view role,
                     const Meant& meant) {
  return MakeError(absl::StatusCode::kUnavailable, reason,
                   absl::StrCat("the caller means ", what, " ", absl::Hex(meant.by_caller),
                                ", this ", role, " worker has ", absl::Hex(meant.here)));
}

}  // namespace

absl::Status CheckTarget(absl::string_view role, const Meant& epoch,
                         const Meant& model_fingerprint) {
  if (epoch.by_caller != epoch.here) return Differs("STALE_EPOCH", "epoch", role, epoch);
  if (model_fingerprint.by_caller != model_fingerprint.here) {
    return Differs("MODEL_MISMATCH", "model", role, model_fingerprint);
  }
  return absl::OkStatus();
}

}  // namespace baton::worker
