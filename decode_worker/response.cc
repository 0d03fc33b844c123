#include "decode_worker/response.h"

#include <algorithm>
#include <utility>

#include "common/worker/token_sampling.h"

namespace baton::decode_worker {
namespace {

bool IsHeartbeat(const internal::v1::DecodeResponse& response) {
  return response.token_ids().empty() && response.finish() == 0 && !response.has_usage() &&
         !response.has_timings();
}

}  // namespace

void FillUsage(const Call& call, internal::v1::DecodeResponse& response) {
  response.mutable_usage()->set_cached_prompt_tokens(call.transfer.cached_prompt_tokens);
  response.mutable_usage()->set_kv_bytes(call.transfer.kv_bytes);
  response.mutable_usage()->set_draft_tokens(call.draft_tokens);
  response.mutable_usage()->set_accepted_draft_tokens(call.accepted_draft_tokens);
}

void FillTimings(const Call& call, absl::Duration now, internal::v1::DecodeResponse& response) {
  const auto milliseconds = [](absl::Duration duration) {
    return absl::ToDoubleMilliseconds(std::max(duration, absl::ZeroDuration()));
  };
  auto* timings = response.mutable_timings();
  timings->set_queue_ms(milliseconds(*call.admitted_at - call.submitted_at) +
                        call.transfer.queue_ms);
  timings->set_prefill_ms(call.transfer.prefill_ms);
  if (!call.computed_at) {
    // The prefill worker's own times come with its commit. Until then, and for an answer that ends
    // at its first token, this is what the prompt took from here, the queue there included.
    timings->set_prefill_ms(milliseconds(now - *call.admitted_at));
    return;
  }
  const absl::Duration computed_at = *call.computed_at;
  if (call.transfer.kv_bytes == 0) {  // computed here
    timings->set_prefill_ms(milliseconds(computed_at - *call.admitted_at));
  } else {
    timings->set_kv_transfer_ms(
        milliseconds(computed_at - call.first_token_at.value_or(computed_at)));
  }
  timings->set_decode_ms(milliseconds(now - computed_at));
}

void TakePromptLogprobs(Call& call, internal::v1::DecodeResponse& response) {
  for (v1::TokenLogprobs& logprobs : call.computed_prompt_logprobs) {
    *response.add_prompt_logprobs() = std::move(logprobs);
  }
  call.computed_prompt_logprobs.clear();
}

bool MergeResponse(std::deque<internal::v1::DecodeResponse>& waiting,
                   internal::v1::DecodeResponse& next) {
  if (IsHeartbeat(next)) return true;  // the unsent message says as much
  if (IsHeartbeat(waiting.back())) {
    waiting.back().Swap(&next);
    return true;
  }
  const auto last = std::find_if(waiting.rbegin(), waiting.rend(), [&](const auto& response) {
    return response.choice() == next.choice();
  });
  if (last == waiting.rend() || last->finish() != 0 ||
      last->token_ids_size() + next.token_ids_size() > kMaxTokensPerMessage) {
    return false;
  }
  // Appends tokens; usage, timings and finish are the newest, zeros included.
  if (next.has_usage()) last->clear_usage();
  if (next.has_timings()) last->clear_timings();
  last->MergeFrom(next);
  return true;
}

std::vector<internal::v1::DecodeResponse> BeamResponses(const BeamSearch::Answer& answer,
                                                        int choice, bool logprobs) {
  std::vector<internal::v1::DecodeResponse> responses;
  for (const model::SampledToken& token : answer.tokens) {
    if (responses.empty() || responses.back().token_ids_size() == kMaxTokensPerMessage) {
      responses.emplace_back().set_choice(choice);
    }
    responses.back().add_token_ids(token.token_id);
    if (logprobs) *responses.back().add_logprobs() = worker::ToProto(token);
  }
  // An answer has at least the token that ended it.
  responses.back().set_beam_score(answer.score);
  responses.back().set_finish(answer.stopped ? internal::v1::DecodeResponse::FINISH_STOP
                                             : internal::v1::DecodeResponse::FINISH_LENGTH);
  return responses;
}

}  // namespace baton::decode_worker
