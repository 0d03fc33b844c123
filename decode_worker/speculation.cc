#include "decode_worker/speculation.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/prefill_work.h"
#include "decode_worker/drafts/drafter.h"

namespace baton::decode_worker {
namespace {

// What a draft has to promise beyond its cost, for all that is not in the measured times: a row
// that draws nothing has been looked for, sampled and thrown away.
constexpr double kMargin = 1.15;

// Who may be told what: another tenant's text would show in the time of an answer.
std::string ScopeOf(const Call& call) {
  return absl::StrCat(call.tenant.size(), ":", call.tenant, call.cache_salt);
}

DrafterOptions DrafterOptionsOf(const SpeculationOptions& options) {
  DrafterOptions drafter;
  if (options.mode == SpeculationOptions::Mode::kNgram) {
    drafter.mode = DrafterOptions::Mode::kNgram;
    drafter.ngram_min = options.ngram_min;
    drafter.ngram_max = options.ngram_max;
  }
  return drafter;
}

}  // namespace

Speculation::Speculation(const SpeculationOptions& options) : options_(options), memory_({}) {}

bool Speculation::DraftsFor(const Sequence& sequence) const {
  return sequence.call->speculates &&
         options_.priorities[static_cast<size_t>(sequence.call->priority)];
}

Draft Speculation::Propose(Sequence& sequence, int most) {
  if (sequence.drafter == nullptr) {
    sequence.drafter = std::make_shared<Drafter>(DrafterOptionsOf(options_), &acceptance_, &memory_,
                                                 ScopeOf(*sequence.call));
  }
  sequence.drafter->Observe(sequence.tokens);
  Draft draft = sequence.drafter->Propose(std::min(most, options_.max_drafts));
  // The token that ends an answer is never computed.
  const auto& stops = sequence.call->stop_token_set;
  const auto end = std::find_if(draft.tokens.begin(), draft.tokens.end(),
                                [&](int32_t token) { return stops.contains(token); });
  draft.tokens.erase(end, draft.tokens.end());
  draft.likelihoods.resize(draft.tokens.size());
  return draft;
}

void Speculation::AddDrafts(int room, const PrefillWork& jobs, const StepTimes& times,
                            DecodeScheduler& scheduler, StepPlan& plan) {
  if (!on()) return;
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    const Chunk& chunk = plan.chunks[i];
    if (!chunk.decodes || !DraftsFor(*chunk.sequence)) continue;
    const int most = scheduler.MaxDrafts(*chunk.sequence);
    if (most <= 0) continue;
    Draft draft = Propose(*chunk.sequence, most);
    if (!draft.tokens.empty()) candidates.push_back({i, std::move(draft)});
  }
  Choose(plan.chunks, room, jobs, times, candidates);
  for (const Candidate& candidate : candidates) {
    scheduler.AddDrafts(absl::MakeConstSpan(candidate.draft.tokens).first(candidate.taken),
                        plan.chunks[candidate.chunk]);
  }
}

void Speculation::Choose(const std::vector<Chunk>& chunks, int room, PrefillWork prompts,
                         const StepTimes& times, std::vector<Candidate>& candidates) const {
  if (candidates.empty()) return;
  // Tokens of prompts, which a longer step makes wait as well, count like those that are drawn.
  double rows = 0, context_tokens = 0, tokens = prompts.tokens;
  for (const Chunk& chunk : chunks) {
    const int count = chunk.end - chunk.begin;
    if (chunk.decodes) {
      rows += count;
      context_tokens += chunk.begin;
      tokens += 1;
    } else {
      prompts.Add(count, chunk.begin);
      tokens += count;
    }
  }
  const auto next = [](const Candidate& candidate) {
    return candidate.taken < candidate.draft.tokens.size()
               ? candidate.draft.likelihoods[candidate.taken]
               : 0.0f;
  };
  double seconds = times.DecodeSeconds(rows, context_tokens, prompts);
  for (; room > 0; --room) {
    const auto best =
        std::max_element(candidates.begin(), candidates.end(),
                         [&](const Candidate& a, const Candidate& b) { return next(a) < next(b); });
    const double likelihood = next(*best);
    const double longer = times.DecodeSeconds(rows + 1, context_tokens, prompts);
    if (likelihood * seconds <= kMargin * tokens * (longer - seconds)) return;
    ++best->taken;
    tokens += likelihood;
    rows += 1;
    seconds = longer;
  }
}

bool Speculation::Promises(const StepTimes& times, const DecodeScheduler& scheduler) {
  if (!on()) return false;
  const std::vector<Chunk>& chunks = scheduler.in_flight();
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < chunks.size(); ++i) {
    Sequence* const sequence = chunks[i].sequence;
    if (sequence == nullptr || !DraftsFor(*sequence)) continue;
    // One token is being drawn.
    const int most = scheduler.MaxDrafts(*sequence) - 1;
    if (most <= 0) continue;
    Draft draft = Propose(*sequence, most);
    if (!draft.tokens.empty()) candidates.push_back({i, std::move(draft)});
  }
  Choose(chunks, options_.max_drafts, /*prompts=*/{}, times, candidates);
  return std::any_of(candidates.begin(), candidates.end(),
                     [](const Candidate& candidate) { return candidate.taken > 0; });
}

void Speculation::Ended(const Sequence& sequence) {
  if (options_.mode != SpeculationOptions::Mode::kSuffix || !DraftsFor(sequence)) return;
  const Call& call = *sequence.call;
  if (call.beams != nullptr) return;
  memory_.Add(
      ScopeOf(call),
      absl::MakeConstSpan(sequence.tokens).subspan(static_cast<size_t>(call.prompt_tokens)));
}

}  // namespace baton::decode_worker
