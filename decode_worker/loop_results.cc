// The part of the loop that makes tokens, choices, beams and messages of a step's results.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/worker/token_sampling.h"
#include "decode_worker/beam_search.h"
#include "decode_worker/call_trace.h"
#include "decode_worker/loop.h"
#include "decode_worker/response.h"

namespace baton::decode_worker {

using internal::v1::DecodeResponse;

void DecodeLoop::TakeResult(const Chunk& chunk, engine::StepResult& result) {
  Sequence& sequence = *chunk.sequence;
  const std::shared_ptr<Call> call = sequence.call;
  if (!CollectPromptLogprobs(*call, result)) return;
  speculation_.AddStates(chunk, result);
  if (!chunk.draws()) return;
  if (!result.tokens.ok()) {
    EndCall(call, result.tokens.status());
    return;
  }
  OnComputedHere(sequence);
  Draw(chunk, *std::move(result.tokens));
}

bool DecodeLoop::CollectPromptLogprobs(Call& call, engine::StepResult& result) {
  if (!result.prompt_logprobs.ok()) {
    EndCall(calls_.at(call.id), result.prompt_logprobs.status());
    return false;
  }
  for (const model::SampledToken& token : *result.prompt_logprobs) {
    call.computed_prompt_logprobs.push_back(worker::ToProto(token));
  }
  return true;
}

void DecodeLoop::Draw(const Chunk& chunk, std::vector<model::SampledToken> tokens) {
  Sequence& sequence = *chunk.sequence;
  std::vector<int32_t> ids;
  std::vector<v1::TokenLogprobs> logprobs;
  for (const model::SampledToken& token : tokens) {
    ids.push_back(token.token_id);
    if (sequence.sampling.logprobs) logprobs.push_back(worker::ToProto(token));
  }
  if (!chunk.drafts.empty()) {
    BATON_CHECK_LE(tokens.size(), chunk.drafts.size() + 1);
    const std::shared_ptr<Call> call = sequence.call;
    const int drafts = static_cast<int>(chunk.drafts.size());
    call->draft_tokens += drafts;
    const int appended = Append(sequence, ids, logprobs, /*drafted=*/true);
    CountGenerated(appended);
    CountDrafts(drafts, appended - 1);
    return;
  }
  BATON_CHECK_EQ(static_cast<int>(tokens.size()), sequence.draws);
  CountGenerated(sequence.draws);
  sequence.draws = 1;
  std::vector<Sequence*> choices = {&sequence};
  for (size_t i = 1; i < tokens.size(); ++i) {
    auto choice = std::make_unique<Sequence>();
    choice->id = ++last_sequence_id_;
    choice->call = sequence.call;
    choice->tokens = sequence.tokens;
    choice->sampling = sequence.sampling;
    choice->sampling.choice += static_cast<uint32_t>(i);
    choices.push_back(scheduler_.Fork(sequence, std::move(choice)));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    Append(*choices[i], absl::MakeConstSpan(ids).subspan(i, 1),
           absl::MakeConstSpan(logprobs).subspan(logprobs.empty() ? 0 : i, 1), /*drafted=*/false);
  }
}

void DecodeLoop::AdvanceBeams(Call& shared, std::vector<engine::StepResult*> results,
                              std::vector<Sequence*> beams) {
  const std::shared_ptr<Call> call = calls_.at(shared.id);
  std::vector<std::vector<model::SampledToken>> proposed;
  for (engine::StepResult* result : results) {
    if (!CollectPromptLogprobs(*call, *result)) return;
    if (!result->tokens.ok()) {
      EndCall(call, result->tokens.status());
      return;
    }
    proposed.push_back(*std::move(result->tokens));
  }
  OnComputedHere(*beams.front());
  const absl::Duration now = clock_.SinceStart();
  if (!call->first_token_at) call->first_token_at = now;
  if (call->trace != nullptr) {
    call->trace->Tokens(static_cast<int>(beams.size()), call->computed_at, now);
  }
  const std::vector<BeamSearch::Step> steps = call->beams->Advance(proposed);
  // Two generations of beams never have a rank in common.
  const uint32_t width = static_cast<uint32_t>(call->beams->width());
  const uint32_t generation = beams[0]->sampling.choice < width ? width : 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Sequence& parent = *beams[static_cast<size_t>(steps[i].parent)];
    auto beam = std::make_unique<Sequence>();
    beam->id = ++last_sequence_id_;
    beam->call = call;
    beam->tokens = parent.tokens;
    beam->sampling = parent.sampling;
    beam->sampling.choice = generation + static_cast<uint32_t>(i);
    Sequence* forked = scheduler_.Fork(parent, std::move(beam));
    forked->tokens.push_back(steps[i].token_id);
  }
  scheduler_.Charge(*call, static_cast<int64_t>(steps.size()));
  for (Sequence* beam : beams) {
    if (!steps.empty() || beam != beams.back()) scheduler_.Remove(*beam);
  }
  if (!steps.empty()) return;

  const std::vector<BeamSearch::Answer> best = call->beams->Best();
  const bool logprobs = beams.back()->sampling.logprobs.has_value();
  for (size_t i = 0; i < best.size(); ++i) {
    for (DecodeResponse& response : BeamResponses(best[i], static_cast<int>(i), logprobs)) {
      if (response.finish() != 0) {
        FillUsage(*call, response);
        FillTimings(*call, now, response);
      }
      TakePromptLogprobs(*call, response);
      Send(*call, std::move(response));
    }
    CountGenerated(static_cast<int64_t>(best[i].tokens.size()));
    call->answered = true;
  }
  if (best.empty()) {
    EndCall(call, MakeError(absl::StatusCode::kInternal, "NON_FINITE_LOGITS",
                            "no beam has a token to continue with"));
    return;
  }
  call->open_choices = 1;
  EndChoice(*beams.back());
}

void DecodeLoop::CountGenerated(int64_t tokens) {
  generated_tokens_ += tokens;
  metrics_.Generated(tokens);
}

void DecodeLoop::CountDrafts(int64_t drafted, int64_t accepted) {
  draft_tokens_ += drafted;
  accepted_draft_tokens_ += accepted;
  metrics_.Drafted(/*steps=*/1, drafted, accepted);
}

int DecodeLoop::Append(Sequence& sequence, absl::Span<const int32_t> tokens,
                       absl::Span<const v1::TokenLogprobs> logprobs, bool drafted) {
  Call& call = *sequence.call;
  const auto stop = std::find_if(tokens.begin(), tokens.end(), [&](int32_t token) {
    return call.stop_token_set.contains(token);
  });
  const bool stopped = stop != tokens.end();
  if (stopped) tokens = tokens.first(static_cast<size_t>(stop - tokens.begin()) + 1);
  const int count = static_cast<int>(tokens.size());
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  if (drafted) {
    scheduler_.EndDrafts(sequence, count - 1);
    call.accepted_draft_tokens += count - 1;
  }
  scheduler_.Charge(call, count);
  const bool full = sequence.generated_tokens() == call.max_tokens;
  // The first token overtakes the last layers' KV: a sequence that continues waits for that, one
  // that ends here does not.
  DecodeResponse response;
  response.set_choice(static_cast<int>(sequence.sampling.choice));
  response.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  for (size_t i = 0; i < logprobs.size() && i < tokens.size(); ++i) {
    *response.add_logprobs() = logprobs[i];
  }
  const absl::Duration now = clock_.SinceStart();
  if (!call.first_token_at) call.first_token_at = now;
  if (call.trace != nullptr) call.trace->Tokens(count, call.computed_at, now);
  const bool at_an_end = !call.answered || stopped || full;
  // A router that ends the answer itself, at a stop string, gets no last message.
  if (at_an_end || drafted) FillUsage(call, response);
  if (at_an_end) FillTimings(call, now, response);
  TakePromptLogprobs(call, response);
  call.answered = true;
  if (stopped || full) {
    response.set_finish(stopped ? DecodeResponse::FINISH_STOP : DecodeResponse::FINISH_LENGTH);
  }
  Send(call, std::move(response));
  if (stopped || full) EndChoice(sequence);
  return count;
}

}  // namespace baton::decode_worker
