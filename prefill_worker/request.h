// Checks a PrefillRequest and makes a job from it.
#ifndef BATON_PREFILL_WORKER_REQUEST_H_
#define BATON_PREFILL_WORKER_REQUEST_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/internal/v1/prefill.pb.h"
#include "common/engine/engine.h"
#include "prefill_worker/job.h"

namespace baton::prefill_worker {

// Returns DATA_LOSS, for bytes that are no PrefillRequest. They were damaged on the way: the router
// has checked the client's request.
absl::Status Malformed();

// Returns DATA_LOSS (CHECKSUM), FAILED_PRECONDITION (another epoch, model or KV layout than this
// worker's, with both values), or INVALID_ARGUMENT, naming the field.
absl::Status CheckRequest(const internal::v1::PrefillRequest& request, uint64_t epoch,
                          const engine::Engine& engine);

// Returns a job that lacks id and sender. REQUIRES: CheckRequest is OK.
std::unique_ptr<PrefillJob> MakeJob(const internal::v1::PrefillRequest& request,
                                    absl::Time deadline, const engine::Engine& engine);

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_REQUEST_H_
