#include "decode_worker/draft_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/prefill_work.h"

namespace baton::decode_worker {
namespace {

// A text keeps its blocks until so many steps were planned that did not use it.
constexpr uint64_t kKeptSteps = 32;

absl::Status Unfit(absl::StatusCode code, const std::string& what) {
  return MakeError(code, "DRAFT_MODEL", absl::StrCat("--speculative draft: ", what));
}

}  // namespace

absl::Status CheckDraftModel(const model::ModelConfig& draft, const model::ModelConfig& model) {
  if (draft.tokenizer_fingerprint != model.tokenizer_fingerprint) {
    return Unfit(absl::StatusCode::kInvalidArgument,
                 absl::StrCat("the draft model's tokenizer.json has ", draft.token_count,
                              " tokens and other content than the model's, which has ",
                              model.token_count, "; expected the same tokenizer"));
  }
  if (draft.token_count != model.token_count) {
    return Unfit(absl::StatusCode::kInvalidArgument,
                 absl::StrCat("the draft model has ", draft.token_count,
                              " tokens, expected the model's ", model.token_count));
  }
  const bool recurrent = absl::c_any_of(
      draft.layers, [](const model::LayerSpec& layer) { return layer.recurrence() != nullptr; });
  if (recurrent) {
    return Unfit(absl::StatusCode::kUnimplemented,
                 absl::StrCat(draft.architecture,
                              " has recurrent layers, whose state cannot leave refused drafts; "
                              "expected a model of attention layers"));
  }
  return absl::OkStatus();
}

DraftModel::DraftModel(engine::Engine& engine, const Options& options, const Clock& clock)
    : engine_(engine),
      options_(options),
      hidden_dim_(static_cast<size_t>(engine.config().hidden_dim)),
      clock_(clock),
      block_tokens_(engine.kv_layout().block_tokens),
      shape_(DecodeShapeOf(engine.config(), options_.on_gpu)),
      pool_(engine.kv_pool().block_count, engine.kv_layout().Shape()),
      cache_(pool_, block_tokens_),
      steps_(shape_.costs),
      prompts_(worker::kPrefillShape) {}

DraftModel::Text& DraftModel::TextOf(const Sequence& sequence) {
  Text& text = texts_[sequence.id];
  const absl::Span<const int32_t> tokens = sequence.tokens;
  text.sequence = &sequence;
  if (shares_texts() && text.blocks.empty()) {
    kv::Match match =
        cache_.MatchPrefix(sequence.call->root, tokens, static_cast<int>(tokens.size()) - 1);
    text.blocks = std::move(match.blocks);
    text.computed = match.tokens;
  }
  // Drafts that were drawn are the sequence's tokens now, but for a head, which gets the model's
  // states of them.
  if (options_.kind == Kind::kMtpHead) text.drafted.clear();
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
  return options_.kind == Kind::kMtpHead && states(text) < missing ? kNoStates : missing;
}

bool DraftModel::Holds(const Sequence& sequence) {
  Text& text = TextOf(sequence);
  for (; text.checked < sequence.tokens.size(); ++text.checked) {
    text.unknown |= sequence.tokens[text.checked] >= engine_.config().vocab_size;
  }
  const auto tokens = static_cast<int>(sequence.tokens.size());
  // A head's KV begins where the states do, which will be behind these tokens if it has none.
  const bool begins = options_.kind == Kind::kMtpHead && text.computed == 0;
  const int kept = begins ? kMostMissing : tokens - text.first;
  return !text.unknown && tokens < engine_.max_model_len() &&
         BlocksFor(kept + 1) <= pool_.counts().total / pool_.shape().pages();
}

void DraftModel::AddStates(const Sequence& sequence, int begin, absl::Span<const float> states) {
  BATON_CHECK(options_.kind == Kind::kMtpHead);
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
  for (const Sequence* const sequence : sequences) {
    if (most_tokens == 0 || static_cast<int>(parts.size()) == engine_.max_num_seqs()) break;
    // The other choices of a request take the first one's blocks, where there is a prefix cache.
    const bool computed = absl::c_any_of(
        parts, [&](const auto& part) { return part.first->sequence->call == sequence->call; });
    if (computed) continue;
    Text& text = TextOf(*sequence);
    int missing = static_cast<int>(sequence->tokens.size()) - 1 - text.computed;
    if (options_.kind == Kind::kMtpHead) missing = std::min(missing, states(text));
    const int count = std::min(missing, most_tokens);
    if (count <= 0 || !Reserve(text, static_cast<int>(sequence->tokens.size()))) continue;
    text.used_in = planned_steps_;
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
    if (options_.kind == Kind::kMtpHead) entry.hidden_before = StatesBefore(*text, count);
    entry.tokens = absl::MakeConstSpan(text->sequence->tokens)
                       .subspan(static_cast<size_t>(text->computed), static_cast<size_t>(count));
    entry.history.tokens = text->sequence->tokens;
    engine::SetBlocks(text->blocks, &entry, block_tokens_);
  }
  Step(batch, prompts_, {1, work.tokens, work.pairs});
  for (const auto& [text, count] : parts) {
    text->computed += count;
    if (options_.kind == Kind::kMtpHead) {
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

void DraftModel::Extend(absl::Span<Drafting* const> drafting) {
  std::vector<Drafting*> extended;
  for (Drafting* const line : drafting) {
    const auto text = texts_.find(line->sequence->id);
    line->ended = text == texts_.end();  // it has lost its blocks to another
    if (line->ended) continue;
    text->second.used_in = planned_steps_;
    extended.push_back(line);
  }
  std::erase_if(extended, [&](Drafting* line) {
    if (line->tokens.empty()) line->tokens = line->sequence->tokens;
    line->ended = !Reserve(texts_.at(line->sequence->id), static_cast<int>(line->tokens.size()));
    return line->ended;
  });
  if (extended.empty()) return;
  engine::Batch batch;
  double context = 0;
  for (const Drafting* const line : extended) {
    Text& text = texts_.at(line->sequence->id);
    const Call& call = *line->sequence->call;
    if (line->drafts.empty()) {
      text.sampling = line->sequence->sampling;
      text.sampling.logprobs = options_.on_gpu ? std::nullopt : std::make_optional(0);
    }
    engine::BatchEntry& entry = batch.entries.emplace_back();
    const int end = text.computed + static_cast<int>(text.drafted.size());
    entry.context = end - text.first;
    entry.tokens_before = text.first;
    entry.tokens = absl::MakeConstSpan(line->tokens).subspan(static_cast<size_t>(end));
    BATON_CHECK_LE(entry.tokens.size(), size_t{kMostMissing});
    if (options_.kind == Kind::kMtpHead) {
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
    Drafting& line = *extended[i];
    Text& text = texts_.at(line.sequence->id);
    const int known = static_cast<int>(line.sequence->tokens.size());
    if (options_.kind == Kind::kMtpHead) {
      const std::vector<float>& own = results[i].hidden_states;
      BATON_CHECK_GE(own.size(), hidden_dim_);
      text.own_state.assign(own.end() - static_cast<std::ptrdiff_t>(hidden_dim_), own.end());
      if (text.computed < known) text.states.clear();
    }
    text.computed = std::max(text.computed, known);
    text.drafted = line.drafts;
    const auto& drawn = results[i].tokens;
    line.ended = !drawn.ok();
    if (line.ended) {
      if (!std::exchange(reported_error_, true)) {
        BATON_LOG(Warning) << "a draft could not be drawn, and others may not be (this is logged "
                              "once): "
                           << drawn.status();
      }
      continue;
    }
    line.drafts.push_back(drawn->front().token_id);
    line.tokens.push_back(drawn->front().token_id);
    if (!options_.on_gpu) line.confidences.push_back(std::exp(drawn->front().logprob));
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
  const int missing = BlocksFor(tokens) - text.blocks.size();
  if (missing <= 0) return true;
  const int pages = missing * pool_.shape().pages();
  // Nothing is taken from others in vain. (Blocks that several texts have count for each of them.)
  int64_t available = pool_.counts().free + cache_.evictable_page_count();
  for (const auto& [id, other] : texts_) {
    if (&other == &text || InUse(other)) continue;
    available += int64_t{other.blocks.size()} * pool_.shape().pages();
  }
  if (available < pages) return false;
  while (pool_.counts().free + cache_.evictable_page_count() < pages) {
    if (!ReleaseOldest(text)) return false;
  }
  cache_.Evict(std::max(0, pages - pool_.counts().free));
  absl::StatusOr<kv::BlockLease> fresh = pool_.Acquire(missing, kv::BlockUse::kActive);
  if (!fresh.ok()) return false;
  text.blocks.Append(*std::move(fresh));
  return true;
}

// Two that took turns in the same blocks would compute their prompts again and again.
bool DraftModel::InUse(const Text& text) const {
  return text.used_in + kKeptSteps >= planned_steps_;
}

bool DraftModel::ReleaseOldest(const Text& other) {
  auto oldest = texts_.end();
  for (auto it = texts_.begin(); it != texts_.end(); ++it) {
    if (&it->second == &other || it->second.blocks.empty() || InUse(it->second)) continue;
    if (oldest == texts_.end() || it->second.used_in < oldest->second.used_in) oldest = it;
  }
  if (oldest == texts_.end()) return false;
  Share(oldest->second);
  texts_.erase(oldest);
  return true;
}

void DraftModel::Share(const Text& text) {
  if (!shares_texts()) return;
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

double DraftModel::StepSeconds(double rows, double context, const StepTimes& worker) const {
  const worker::StepCost::Terms work = TermsOf(rows, context);
  const bool measured = worker.measured() && steps_.known();
  const worker::StepCost::Terms& terms = measured ? steps_.terms() : shape_.costs;
  double seconds = 0;
  for (int i = 0; i < worker::StepCost::kTerms; ++i) seconds += terms[i] * work[i];
  return measured ? seconds : seconds * worker.SecondsPerUnit();
}

double DraftModel::CatchUpSeconds(double tokens, double context, int steps,
                                  const StepTimes& worker) const {
  if (!worker.measured() || !prompts_.known()) {
    // Rows of answers cost more, so the draft model does not catch up too early.
    return steps * StepSeconds(tokens / steps, context, worker);
  }
  PrefillWork work;
  work.Add(tokens, context);
  const worker::StepCost::Terms& terms = prompts_.terms();
  return steps * terms[0] + terms[1] * work.tokens + terms[2] * work.pairs;
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
