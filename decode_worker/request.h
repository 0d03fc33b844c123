// Checks a DecodeRequest and makes a call and a sequence from it.
#ifndef BATON_DECODE_WORKER_REQUEST_H_
#define BATON_DECODE_WORKER_REQUEST_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/internal/v1/decode.pb.h"
#include "common/engine/engine.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

// UNAVAILABLE (another epoch or model than this worker's, with both values), or INVALID_ARGUMENT,
// naming the field.
absl::Status CheckRequest(const internal::v1::DecodeRequest& request, uint64_t epoch,
                          const engine::Engine& engine);

// Returns a sequence whose call lacks id and stream. REQUIRES: CheckRequest is OK.
std::unique_ptr<Sequence> MakeSequence(const internal::v1::DecodeRequest& request,
                                       absl::Time deadline, const engine::Engine& engine);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_REQUEST_H_
