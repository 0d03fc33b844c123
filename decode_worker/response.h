// What goes into a DecodeResponse beside the tokens.
#ifndef BATON_DECODE_WORKER_RESPONSE_H_
#define BATON_DECODE_WORKER_RESPONSE_H_

#include "absl/time/time.h"
#include "baton/internal/v1/decode.pb.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

// Usage and timings so far. Call.admitted_at must be set.
void FillUsage(const Call& call, internal::v1::DecodeResponse& response);
void FillTimings(const Call& call, absl::Duration now, internal::v1::DecodeResponse& response);
// The prompt's log probabilities, which are then told.
void TakePromptLogprobs(Call& call, internal::v1::DecodeResponse& response);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_RESPONSE_H_
