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

// Usage and timings so far. Call.admitted_at must be set.
void FillUsage(const Call& call, internal::v1::DecodeResponse& response);
void FillTimings(const Call& call, absl::Duration now, internal::v1::DecodeResponse& response);
// Moves the prompt's log probabilities that were not sent yet into the response.
void TakePromptLogprobs(Call& call, internal::v1::DecodeResponse& response);

// In one message: with 20 log probabilities beside each, some 300 kB.
constexpr int kMaxTokensPerMessage = 1024;

// Merges `next` into one of the unsent messages (one or more, oldest first): into the last of its
// choice, unless that is full or the choice's end. The order between choices does not matter.
// False: `next` must be queued behind them.
bool MergeResponse(std::deque<internal::v1::DecodeResponse>& waiting,
                   internal::v1::DecodeResponse& next);

// A beam search's answer, in messages of bounded size; finish and score are in the last.
std::vector<internal::v1::DecodeResponse> BeamResponses(const BeamSearch::Answer& answer,
                                                        int choice, bool logprobs);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_RESPONSE_H_
