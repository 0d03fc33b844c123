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
// More new tokens than this belong to a prompt, not to an answer.
constexpr int64_t kAlwaysIndexed = 64;

// Sequences of one scope may see each other's answers. Another tenant's text would show in the time
// that an answer takes.
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
  // Prompts are indexed a part in each step.
  const auto missing = static_cast<int64_t>(sequence.tokens.size() - sequence.drafter->observed());
  if (missing > kAlwaysIndexed) {
    if (to_index_ <= 0) return {};
    to_index_ -= std::min<int64_t>(missing, Drafter::kMostIndexedAtOnce);
  }
  sequence.drafter->Observe(sequence.tokens);
  Draft draft = sequence.drafter->Propose(most);
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
  to_index_ = Drafter::kMostIndexedAtOnce;
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    const Chunk& chunk = plan.chunks[i];
    if (!chunk.decodes || !DraftsFor(*chunk.sequence)) continue;
    const int most = std::min(scheduler.MaxDrafts(*chunk.sequence), options_.max_drafts);
    if (most <= 0) continue;
    Draft draft = Propose(*chunk.sequence, most);
    if (!draft.tokens.empty()) candidates.push_back({i, std::move(draft)});
  }
  Choose(plan.chunks, room, jobs, times, scheduler.repeats_drafts(), candidates);
  for (const Candidate& candidate : candidates) {
    if (candidate.taken == 0) continue;
    scheduler.AddDrafts(absl::MakeConstSpan(candidate.draft.tokens).first(candidate.taken),
                        plan.chunks[candidate.chunk]);
  }
}

void Speculation::OnMasks(int count, absl::Duration took) {
  constexpr double kWeight = 0.05;
  mask_seconds_ += kWeight * (absl::ToDoubleSeconds(took) / std::max(1, count) - mask_seconds_);
}

void Speculation::Choose(const std::vector<Chunk>& chunks, int room, PrefillWork prompts,
                         const StepTimes& times, bool repeats_drafts,
                         std::vector<Candidate>& candidates) const {
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
  const double plain_seconds = times.DecodeSeconds(rows, context_tokens, prompts);
  const double plain_tokens = tokens;
  double seconds = plain_seconds;
  for (; room > 0; --room) {
    const auto best =
        std::max_element(candidates.begin(), candidates.end(),
                         [&](const Candidate& a, const Candidate& b) { return next(a) < next(b); });
    const double likelihood = next(*best);
    const Chunk& chunk = chunks[best->chunk];
    const double context = StepTimes::kDraftContext * chunk.begin;
    double row = times.DecodeSeconds(rows + 1, context_tokens + context, prompts) -
                 times.DecodeSeconds(rows, context_tokens, prompts);
    if (repeats_drafts) row *= 1 + likelihood;
    if (times.measured() && chunk.sequence->call->grammar != nullptr) row += mask_seconds_;
    if (likelihood * seconds <= kMargin * tokens * row) break;
    ++best->taken;
    tokens += likelihood;
    rows += 1;
    context_tokens += context;
    seconds += row;
  }
  if (tokens * plain_seconds > plain_tokens * (seconds + times.DraftedExtraSeconds())) return;
  for (Candidate& candidate : candidates) candidate.taken = 0;
}

bool Speculation::Promises(const StepTimes& times, const DecodeScheduler& scheduler) {
  if (!on()) return false;
  to_index_ = Drafter::kMostIndexedAtOnce;
  const std::vector<Chunk>& chunks = scheduler.in_flight();
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < chunks.size(); ++i) {
    Sequence* const sequence = chunks[i].sequence;
    if (sequence == nullptr || !DraftsFor(*sequence)) continue;
    // The first token of the proposal is being drawn.
    const int most = std::min(scheduler.MaxDrafts(*sequence), options_.max_drafts + 1);
    if (most <= 1) continue;
    Draft draft = Propose(*sequence, most);
    if (draft.tokens.size() <= 1) continue;
    draft.tokens.erase(draft.tokens.begin());
    draft.likelihoods.erase(draft.likelihoods.begin());
    candidates.push_back({i, std::move(draft)});
  }
  Choose(chunks, options_.max_drafts, /*prompts=*/{}, times, scheduler.repeats_drafts(),
         candidates);
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
