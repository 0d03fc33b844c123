#include "decode_worker/speculation.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/prefill_work.h"
#include "decode_worker/drafts/drafter.h"

namespace baton::decode_worker {
namespace {

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

Speculation::Speculation(const SpeculationOptions& options, engine::Engine* draft_engine,
                         DraftModel::Options draft_options, const Clock& clock)
    : options_(options), memory_({}) {
  const bool head = options.mode == SpeculationOptions::Mode::kMtp;
  const bool drafts = head || options.mode == SpeculationOptions::Mode::kDraft;
  BATON_CHECK_EQ(draft_engine != nullptr, drafts);
  if (!drafts) return;
  draft_options.kind = head ? DraftModel::Kind::kMtpHead : DraftModel::Kind::kModel;
  model_ = std::make_unique<ModelDrafter>(*draft_engine, draft_options, clock);
}

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

int Speculation::MostDrafts(const Sequence& sequence, const DecodeScheduler& scheduler) const {
  if (!DraftsFor(sequence)) return 0;
  return std::min(scheduler.MaxDrafts(sequence), options_.max_drafts);
}

void Speculation::AddDrafts(int room, int catch_up_tokens, const PrefillWork& jobs,
                            const StepTimes& times, DecodeScheduler& scheduler, StepPlan& plan) {
  const StepPrice price(plan.chunks, jobs, times, scheduler.repeats_drafts(), mask_seconds_);
  std::vector<Candidate> candidates;
  if (model_ != nullptr) {
    std::vector<ModelDrafter::Wish> wishes;
    for (const Chunk& chunk : plan.chunks) {
      const int most = chunk.decodes ? MostDrafts(*chunk.sequence, scheduler) : 0;
      if (most > 0) wishes.push_back({&chunk, most});
    }
    std::vector<Draft> drafts = model_->Propose(wishes, room, catch_up_tokens, price);
    for (size_t i = 0; i < wishes.size(); ++i) {
      const auto chunk = static_cast<size_t>(wishes[i].chunk - plan.chunks.data());
      if (!drafts[i].tokens.empty()) candidates.push_back({chunk, std::move(drafts[i])});
    }
  } else {
    to_index_ = Drafter::kMostIndexedAtOnce;
    for (size_t i = 0; i < plan.chunks.size(); ++i) {
      const Chunk& chunk = plan.chunks[i];
      const int most = chunk.decodes ? MostDrafts(*chunk.sequence, scheduler) : 0;
      if (most <= 0) continue;
      Draft draft = Propose(*chunk.sequence, most);
      if (!draft.tokens.empty()) candidates.push_back({i, std::move(draft)});
    }
  }
  Choose(plan.chunks, room, price, candidates);
  for (const Candidate& candidate : candidates) {
    if (candidate.taken == 0) continue;
    scheduler.AddDrafts(absl::MakeConstSpan(candidate.draft.tokens).first(candidate.taken),
                        plan.chunks[candidate.chunk]);
  }
}

bool Speculation::WantsStates(const Sequence& sequence) const {
  return model_ != nullptr && model_->wants_states() && DraftsFor(sequence) &&
         sequence.call->beams == nullptr;
}

void Speculation::AddStates(const Chunk& chunk, const engine::StepResult& result) {
  if (result.hidden_states.empty()) return;
  const size_t row = result.hidden_states.size() / (1 + chunk.drafts.size());
  // Those of drafts that were not drawn are of no token.
  size_t known = 1;
  if (!chunk.drafts.empty() && result.tokens.ok()) known = result.tokens->size();
  model_->AddStates(*chunk.sequence, chunk.end - 1,
                    absl::MakeConstSpan(result.hidden_states).first(known * row));
}

void Speculation::OnMasks(int count, absl::Duration took) {
  constexpr double kWeight = 0.05;
  mask_seconds_ += kWeight * (absl::ToDoubleSeconds(took) / std::max(1, count) - mask_seconds_);
}

void Speculation::Choose(const std::vector<Chunk>& chunks, int room, StepPrice price,
                         std::vector<Candidate>& candidates) {
  const auto next = [](const Candidate& candidate) {
    return candidate.taken < candidate.draft.tokens.size()
               ? candidate.draft.likelihoods[candidate.taken]
               : 0.0f;
  };
  for (; room > 0 && !candidates.empty(); --room) {
    const auto best =
        std::max_element(candidates.begin(), candidates.end(),
                         [&](const Candidate& a, const Candidate& b) { return next(a) < next(b); });
    const double likelihood = next(*best);
    const Chunk& chunk = chunks[best->chunk];
    if (!price.Pays(likelihood, price.RowSeconds(chunk, likelihood))) break;
    ++best->taken;
    price.Add(chunk, likelihood);
  }
  if (price.Gains()) return;
  for (Candidate& candidate : candidates) candidate.taken = 0;
}

bool Speculation::Promises(int room, int catch_up_tokens, const StepTimes& times,
                           const DecodeScheduler& scheduler) {
  if (!on() || room <= 0) return false;
  const std::vector<Chunk>& chunks = scheduler.in_flight();
  const StepPrice price(chunks, /*prompts=*/{}, times, scheduler.repeats_drafts(), mask_seconds_);
  std::vector<ModelDrafter::Wish> wishes;
  std::vector<Candidate> candidates;
  to_index_ = Drafter::kMostIndexedAtOnce;
  for (size_t i = 0; i < chunks.size(); ++i) {
    Sequence* const sequence = chunks[i].sequence;
    if (sequence == nullptr || !DraftsFor(*sequence)) continue;
    // The first token of the proposal is being drawn.
    const int most = std::min(scheduler.MaxDrafts(*sequence), options_.max_drafts + 1);
    if (most <= 1) continue;
    if (model_ != nullptr) {
      wishes.push_back({&chunks[i], most - 1});
      continue;
    }
    Draft draft = Propose(*sequence, most);
    if (draft.tokens.size() <= 1) continue;
    draft.tokens.erase(draft.tokens.begin());
    draft.likelihoods.erase(draft.likelihoods.begin());
    candidates.push_back({i, std::move(draft)});
  }
  if (model_ != nullptr) return model_->WouldPropose(wishes, catch_up_tokens, price);
  Choose(chunks, std::min(room, options_.max_drafts), price, candidates);
  return std::any_of(candidates.begin(), candidates.end(),
                     [](const Candidate& candidate) { return candidate.taken > 0; });
}

void Speculation::Ended(const Sequence& sequence) {
  if (model_ != nullptr) model_->Ended(sequence);
  if (options_.mode != SpeculationOptions::Mode::kSuffix || !DraftsFor(sequence)) return;
  const Call& call = *sequence.call;
  if (call.beams != nullptr) return;
  memory_.Add(
      ScopeOf(call),
      absl::MakeConstSpan(sequence.tokens).subspan(static_cast<size_t>(call.prompt_tokens)));
}

}  // namespace baton::decode_worker
