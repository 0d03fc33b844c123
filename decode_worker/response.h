// Makes and merges DecodeResponses.
#ifndef BATON_DECODE_WORKER_RESPONSE_H_
#define BATON_DECODE_WORKER_RESPONSE_H_

#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "baton/internal/v1/decode.pb.h"
#include "decode_worker/beam_search.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

// Fill in usage and timings so far. REQUIRES: Call.admitted_at is set.
void FillUsage(const Call& call, internal::v1::DecodeResponse& response);
void FillTimings(const Call& call, absl::Duration now, internal::v1::DecodeResponse& response);
// Moves the prompt's log probabilities that were not sent yet into the response.
void TakePromptLogprobs(Call& call, internal::v1::DecodeResponse& response);

// Maximum number of tokens per message: with 20 top alternatives for each, about 300 kB.
constexpr int kMaxTokensPerMessage = 1024;

// Tries to append `next` to the newest message of the same choice in `waiting` (unsent messages,
// oldest first, not empty). Order between choices does not matter. Returns false, and leaves `next`
// unchanged, if there is none or if it is full or ends the choice; the caller then queues `next` at
// the back.
bool MergeResponse(std::deque<internal::v1::DecodeResponse>& waiting,
                   internal::v1::DecodeResponse& next);

// Returns a beam search's answer in messages of bounded size; finish and score are in the last.
std::vector<internal::v1::DecodeResponse> BeamResponses(const BeamSearch::Answer& answer,
                                                        int choice, bool logprobs);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_RESPONSE_H_
