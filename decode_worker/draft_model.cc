#include "decode_worker/draft_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/prefill_work.h"

namespace baton::decode_worker {
namespace {

// A text keeps its blocks until CatchUp and Extend were called so many times without it.
constexpr uint64_t kKeptUses = 64;

absl::Status Unfit(absl::StatusCode code, const std::string& what) {
  return MakeError(code, "DRAFT_MODEL", absl::StrCat("--speculative draft: ", what));
}

}  // namespace

absl::Status CheckDraftModel(const engine::Engine& draft, const engine::Engine& answers) {
  if (draft.config().tokenizer_fingerprint != answers.config().tokenizer_fingerprint) {
    return Unfit(absl::StatusCode::kInvalidArgument,
                 absl::StrCat("the draft model's tokenizer.json has ", draft.config().token_count,
                              " tokens and other content than the model's, which has ",
                              answers.config().token_count, "; expected the same tokenizer"));
  }
  if (draft.config().token_count != answers.config().token_count) {
    return Unfit(absl::StatusCode::kInvalidArgument,
                 absl::StrCat("the draft model has ", draft.config().token_count,
                              " tokens, expected the model's ", answers.config().token_count));
  }
  if (draft.kv_layout().recurrent()) {
    return Unfit(absl::StatusCode::kUnimplemented,
                 absl::StrCat(draft.config().architecture,
                              " has recurrent layers, whose state cannot leave refused drafts; "
                              "expected a model of attention layers"));
  }
  return absl::OkStatus();
}

DraftModel::DraftModel(engine::Engine& engine, Kind kind, bool on_gpu, const Clock& clock)
    : engine_(engine),
      kind_(kind),
      hidden_dim_(static_cast<size_t>(engine.config().hidden_dim)),
      clock_(clock),
      block_tokens_(engine.kv_layout().block_tokens),
      on_gpu_(on_gpu),
      shape_(DecodeShapeOf(engine.config(), on_gpu_)),
      pool_(engine.kv_pool().block_count, engine.kv_layout().Shape()),
      cache_(pool_, block_tokens_),
      steps_(shape_.costs),
      prompts_(worker::kPrefillShape) {}

DraftModel::Text& DraftModel::TextOf(const Sequence& sequence) {
  Text& text = texts_[sequence.id];
  const absl::Span<const int32_t> tokens = sequence.tokens;
  text.sequence = &sequence;
  if (kind_ == Kind::kModel && text.blocks.empty()) {
    kv::Match match =
        cache_.MatchPrefix(sequence.call->root, tokens, static_cast<int>(tokens.size()) - 1);
    text.blocks = std::move(match.blocks);
    text.computed = match.tokens;
  }
  // Drafts that were drawn are the sequence's tokens now, but for a head, which gets the model's
  // states of them.
  if (kind_ == Kind::kMtpHead) text.drafted.clear();
  for (const int32_t draft : text.drafted) {
    const auto next = static_cast<size_t>(text.computed);
    if (next + 1 >= tokens.size() || tokens[next] != draft) break;
    ++text.computed;
  }
  text.drafted.clear();
  return text;
}

int DraftModel::Missing(const Sequence& sequence) {
  const Text& text = TextOf(sequence);
  const int missing = static_cast<int>(sequence.tokens.size()) - text.computed;
  return kind_ == Kind::kMtpHead && states(text) < missing ? kNoStates : missing;
}

bool DraftModel::Holds(const Sequence& sequence) {
  Text& text = TextOf(sequence);
  for (; text.checked < sequence.tokens.size(); ++text.checked) {
    text.unknown |= sequence.tokens[text.checked] >= engine_.config().vocab_size;
  }
  return !text.unknown && static_cast<int>(sequence.tokens.size()) < engine_.max_model_len();
}

void DraftModel::AddStates(const Sequence& sequence, int begin, absl::Span<const float> states) {
  BATON_CHECK(kind_ == Kind::kMtpHead);
  if (states.empty()) return;
  Text& text = TextOf(sequence);
  const int known = text.computed - 1 + this->states(text);  // of the tokens before
  if (begin > known || text.computed == 0) {
    text.blocks.Release();
    text.states.clear();
    text.first = text.computed = begin + 1;
  } else {
    const size_t again = std::min(states.size(), static_cast<size_t>(known - begin) * hidden_dim_);
    states.remove_prefix(again);
  }
  text.states.insert(text.states.end(), states.begin(), states.end());
  // States take much memory, and these are more than the next step computes.
  const int ready =
      std::min(this->states(text), static_cast<int>(sequence.tokens.size()) - 1 - text.computed);
  if (ready <= kMostMissing) return;
  const Sequence* const one[] = {&sequence};
  CatchUp(one, ready);
  if (this->states(text) <= kMostMissing) return;
  // There is no room for their KV: the head begins again with the last one.
  text.blocks.Release();
  text.first = text.computed = text.computed + this->states(text) - 1;
  text.states.erase(text.states.begin(),
                    text.states.end() - static_cast<std::ptrdiff_t>(hidden_dim_));
}

absl::Span<const float> DraftModel::StatesBefore(const Text& text, int count) const {
  return absl::MakeConstSpan(text.states).first(static_cast<size_t>(count) * hidden_dim_);
}

int DraftModel::CatchUp(absl::Span<const Sequence* const> sequences, int most_tokens) {
  most_tokens = std::min(most_tokens, engine_.max_num_batched_tokens());
  std::vector<std::pair<Text*, int>> parts;  // how many tokens of each
  PrefillWork work;
  ++uses_;
  for (const Sequence* const sequence : sequences) {
    if (most_tokens == 0 || static_cast<int>(parts.size()) == engine_.max_num_seqs()) break;
    // The other choices of a request take the first one's blocks.
    const bool computed = absl::c_any_of(
        parts, [&](const auto& part) { return part.first->sequence->call == sequence->call; });
    if (computed) continue;
    Text& text = TextOf(*sequence);
    int missing = static_cast<int>(sequence->tokens.size()) - 1 - text.computed;
    if (kind_ == Kind::kMtpHead) missing = std::min(missing, states(text));
    const int count = std::min(missing, most_tokens);
    if (count <= 0 || !Reserve(text, text.computed + count)) continue;
    text.used_in = uses_;
    most_tokens -= count;
    work.Add(count, text.computed);
    parts.emplace_back(&text, count);
  }
  if (parts.empty()) return 0;
  engine::Batch batch;
  for (const auto& [text, count] : parts) {
    engine::BatchEntry& entry = batch.entries.emplace_back();
    entry.context = text->computed - text->first;
    entry.tokens_before = text->first;
    if (kind_ == Kind::kMtpHead) entry.hidden_before = StatesBefore(*text, count);
    entry.tokens = absl::MakeConstSpan(text->sequence->tokens)
                       .subspan(static_cast<size_t>(text->computed), static_cast<size_t>(count));
    entry.history.tokens = text->sequence->tokens;
    engine::SetBlocks(text->blocks, &entry, block_tokens_);
  }
  Step(batch, prompts_, {1, work.tokens, work.pairs});
  for (const auto& [text, count] : parts) {
    text->computed += count;
    if (kind_ == Kind::kMtpHead) {
      text->states.erase(
          text->states.begin(),
          text->states.begin() + static_cast<std::ptrdiff_t>(StatesBefore(*text, count).size()));
      continue;
    }
    // Other choices of the request, and its next turn, begin with the same tokens.
    if (text->computed + 1 == static_cast<int>(text->sequence->tokens.size())) Share(*text);
  }
  return static_cast<int>(work.tokens);
}

void DraftModel::Extend(absl::Span<Line* const> lines) {
  ++uses_;
  std::vector<Line*> extended;
  for (Line* const line : lines) {
    const auto text = texts_.find(line->sequence->id);
    line->ended = text == texts_.end();  // it has lost its blocks to another
    if (line->ended) continue;
    text->second.used_in = uses_;
    extended.push_back(line);
  }
  std::erase_if(extended, [&](Line* line) {
    if (line->tokens.empty()) line->tokens = line->sequence->tokens;
    line->ended = !Reserve(texts_.at(line->sequence->id), static_cast<int>(line->tokens.size()));
    return line->ended;
  });
  if (extended.empty()) return;
  engine::Batch batch;
  double context = 0;
  for (const Line* const line : extended) {
    Text& text = texts_.at(line->sequence->id);
    const Call& call = *line->sequence->call;
    if (line->drafts.empty()) {
      text.sampling = line->sequence->sampling;
      text.sampling.logprobs = on_gpu_ ? std::nullopt : std::make_optional(0);
    }
    engine::BatchEntry& entry = batch.entries.emplace_back();
    const int end = text.computed + static_cast<int>(text.drafted.size());
    entry.context = end - text.first;
    entry.tokens_before = text.first;
    entry.tokens = absl::MakeConstSpan(line->tokens).subspan(static_cast<size_t>(end));
    BATON_CHECK_LE(entry.tokens.size(), size_t{kMostMissing});
    if (kind_ == Kind::kMtpHead) {
      entry.hidden_before = line->drafts.empty()
                                ? StatesBefore(text, static_cast<int>(entry.tokens.size()))
                                : absl::MakeConstSpan(text.own_state);
      entry.hidden_states = true;
    }
    engine::SetBlocks(text.blocks, &entry, block_tokens_);
    entry.sample = true;
    entry.sampling = &text.sampling;
    entry.history.tokens = line->tokens;
    entry.history.prompt_tokens = call.prompt_tokens;
    const int generated =
        line->sequence->generated_tokens() + static_cast<int>(line->drafts.size());
    if (generated < call.min_tokens) entry.history.suppressed = call.stop_token_ids;
    context += entry.context;
  }
  const std::vector<engine::StepResult> results =
      Step(batch, steps_, TermsOf(batch.rows(), context));
  for (size_t i = 0; i < extended.size(); ++i) {
    Line& line = *extended[i];
    Text& text = texts_.at(line.sequence->id);
    const int known = static_cast<int>(line.sequence->tokens.size());
    if (kind_ == Kind::kMtpHead) {
      const std::vector<float>& own = results[i].hidden_states;
      BATON_CHECK_GE(own.size(), hidden_dim_);
      text.own_state.assign(own.end() - static_cast<std::ptrdiff_t>(hidden_dim_), own.end());
      if (text.computed < known) text.states.clear();
    }
    text.computed = std::max(text.computed, known);
    text.drafted = line.drafts;
    const auto& drawn = results[i].tokens;
    line.ended = !drawn.ok();
    if (line.ended) continue;
    line.drafts.push_back(drawn->front().token_id);
    line.tokens.push_back(drawn->front().token_id);
    if (!on_gpu_) line.confidences.push_back(std::exp(drawn->front().logprob));
  }
}

void DraftModel::Ended(const Sequence& sequence) {
  const auto it = texts_.find(sequence.id);
  if (it == texts_.end()) return;
  TextOf(sequence);  // the drafts that were drawn last
  Share(it->second);
  texts_.erase(it);
}

bool DraftModel::Reserve(Text& text, int tokens) {
  tokens -= text.first;
  if (tokens > engine_.max_model_len()) return false;
  const int missing = (tokens + block_tokens_ - 1) / block_tokens_ - text.blocks.size();
  if (missing <= 0) return true;
  const int pages = missing * pool_.shape().pages();
  while (pool_.counts().free + cache_.evictable_page_count() < pages) {
    if (!ReleaseOldest(text)) return false;
  }
  cache_.Evict(std::max(0, pages - pool_.counts().free));
  absl::StatusOr<kv::BlockLease> fresh = pool_.Acquire(missing, kv::BlockUse::kActive);
  if (!fresh.ok()) return false;
  text.blocks.Append(*std::move(fresh));
  return true;
}

bool DraftModel::ReleaseOldest(const Text& other) {
  auto oldest = texts_.end();
  for (auto it = texts_.begin(); it != texts_.end(); ++it) {
    // Two that took turns in the same blocks would compute their prompts again and again.
    const bool in_use = it->second.used_in + kKeptUses >= uses_;
    if (&it->second == &other || it->second.blocks.empty() || in_use) continue;
    if (oldest == texts_.end() || it->second.used_in < oldest->second.used_in) oldest = it;
  }
  if (oldest == texts_.end()) return false;
  Share(oldest->second);
  texts_.erase(oldest);
  return true;
}

void DraftModel::Share(const Text& text) {
  if (kind_ == Kind::kMtpHead) return;
  const auto whole = static_cast<size_t>(text.computed / block_tokens_ * block_tokens_);
  cache_.Insert(text.sequence->call->root, absl::MakeConstSpan(text.sequence->tokens).first(whole),
                text.blocks);
}

std::vector<engine::StepResult> DraftModel::Step(const engine::Batch& batch, worker::StepCost& cost,
                                                 const worker::StepCost::Terms& work) {
  const absl::Duration began = clock_.SinceStart();
  std::vector<engine::StepResult> results = engine_.Step(batch);
  const absl::Duration now = clock_.SinceStart();
  cost.AddStep(work, now - began, now);
  return results;
}

worker::StepCost::Terms DraftModel::TermsOf(double rows, double context) const {
  return {1, rows, context, shape_.experts.Distinct(rows)};
}

double DraftModel::StepSeconds(double rows, double context, const StepTimes& answers) const {
  const worker::StepCost::Terms work = TermsOf(rows, context);
  const bool measured = answers.measured() && steps_.known();
  const worker::StepCost::Terms& terms = measured ? steps_.terms() : shape_.costs;
  double seconds = 0;
  for (int i = 0; i < worker::StepCost::kTerms; ++i) seconds += terms[i] * work[i];
  return measured ? seconds : seconds * answers.SecondsPerUnit();
}

double DraftModel::CatchUpSeconds(double tokens, double context, const StepTimes& answers) const {
  if (!answers.measured() || !prompts_.known()) {
    // Rows of answers cost more, so the draft model does not catch up too early.
    return StepSeconds(tokens, context, answers);
  }
  PrefillWork work;
  work.Add(tokens, context);
  const worker::StepCost::Terms& terms = prompts_.terms();
  return terms[0] + terms[1] * work.tokens + terms[2] * work.pairs;
}

void DraftModel::CheckIntegrity() const {
  pool_.CheckIntegrity();
  cache_.CheckIntegrity();
  for (const auto& [id, text] : texts_) {
    BATON_CHECK_EQ(id, text.sequence->id);
    BATON_CHECK_LE(text.computed - text.first + static_cast<int>(text.drafted.size()),
                   text.blocks.size() * block_tokens_);
  }
}

}  // namespace baton::decode_worker
