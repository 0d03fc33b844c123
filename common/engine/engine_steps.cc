// The part of the engine that runs steps and makes results of them.
#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/engine/device_draws.h"
#include "common/engine/model_engine.h"
#include "common/model/convert.h"

namespace baton::engine {

void ModelEngine::Gather(const Batch& batch) {
  tokens_.clear();
  drawn_.clear();
  hidden_before_.clear();
  hidden_states_.clear();
  sequences_.clear();
  logit_rows_.clear();
  wanted_.clear();
  for (size_t i = 0; i < batch.entries.size(); ++i) AddEntry(batch.entries[i], i);
  BATON_CHECK(!tokens_.empty());
  BATON_CHECK_LE(tokens_.size(), static_cast<size_t>(shape_.limits.max_rows));
  BATON_CHECK_LE(sequences_.size(), static_cast<size_t>(max_num_seqs_));
}

backend::Tensor ModelEngine::Forward(absl::Span<const backend::SampleRow> draws,
                                     model::LayerObserver* observer) {
  backend::RaggedBatch ragged;
  ragged.tokens = tokens_;
  ragged.drawn = drawn_;
  ragged.sequences = sequences_;
  ragged.logit_rows = logit_rows_;
  ragged.draws = draws;
  return transformer_->Forward(ragged, pool_, observer, hidden_before_);
}

bool ModelEngine::RunsAhead(const Batch& batch) const {
  return backend_->samples_on_device() && !config_.is_mtp_head &&
         std::all_of(batch.entries.begin(), batch.entries.end(), [](const BatchEntry& entry) {
           if (entry.prompt_logprobs || !entry.labels.empty() || entry.embed ||
               entry.hidden_states || !entry.drafts.empty()) {
             return false;
           }
           const int last = static_cast<int>(entry.tokens.size()) - 1;
           return !entry.sample || (entry.draws == 1 && DeviceDraws::Suffice(entry, last) &&
                                    model::Validate(*entry.sampling).ok());
         });
}

void ModelEngine::Launch(const Batch& batch) {
  BATON_CHECK_LT(launched_.size(), size_t{kMaxLaunched});
  BATON_CHECK(RunsAhead(batch));
  Gather(batch);
  Launched& step = launched_.emplace_back();
  step.results.resize(batch.entries.size());
  step.draw_of.assign(batch.entries.size(), -1);
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const size_t entry = wanted_[i].entry;
    step.draw_of[entry] = static_cast<int>(step.draws.rows().size());
    step.draws.Add(batch.entries[entry], /*drafted=*/0, static_cast<int>(i), logit_rows_[i],
                   step.results[entry]);
  }
  const backend::Tensor logits = Forward(step.draws.rows(), nullptr);
  step.draws.Enqueue(*backend_, logits, config_.token_count);
  step.end = backend_->RecordEvent();
}

std::vector<StepResult> ModelEngine::Collect() {
  BATON_CHECK(!launched_.empty());
  Launched& step = launched_.front();
  step.draws.Collect(*backend_);
  step.end->Wait();
  std::vector<StepResult> results = std::move(step.results);
  launched_.pop_front();
  return results;
}

std::vector<StepResult> ModelEngine::Step(const Batch& batch, model::LayerObserver* observer) {
  BATON_CHECK(launched_.empty()) << "a step is in flight";
  Gather(batch);
  backend::Tensor logits = Forward({}, observer);
  std::vector<StepResult> results(batch.entries.size());
  // Padding rows of the embedding (ids that the tokenizer lacks) are never drawn.
  logits_.resize(config_.token_count);
  size_t first = 0;      // wanted row that logits row 0 is of
  bool awaited = false;  // the step, by reading its logits
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (i == first + static_cast<size_t>(logits.rows)) {
      awaited |= draws_.Run(*backend_, logits, config_.token_count, max_num_seqs_);
      first = i;
      logits = transformer_->MoreLogits(static_cast<int>(first));
    }
    awaited |= UseRow(i, first, logits, batch, results);
  }
  awaited |= draws_.Run(*backend_, logits, config_.token_count, max_num_seqs_);
  if (!awaited) backend_->RecordEvent()->Wait();
  return results;
}

bool ModelEngine::UseRow(size_t wanted, size_t first, const backend::Tensor& logits,
                         const Batch& batch, std::vector<StepResult>& results) {
  const auto [index, row] = wanted_[wanted];
  const BatchEntry& entry = batch.entries[index];
  // Drafts that are computed before the row.
  const int drafted = row + 1 - static_cast<int>(entry.tokens.size());
  const bool embeds = entry.embed && drafted == 0;
  if (embeds) {
    const absl::Span<const float> state = HiddenState(static_cast<int>(wanted));
    results[index].hidden_state.assign(state.begin(), state.end());
  }
  if (entry.hidden_states && drafted >= 0) {
    const absl::Span<const float> state = HiddenState(static_cast<int>(wanted));
    std::vector<float>& states = results[index].hidden_states;
    states.insert(states.end(), state.begin(), state.end());
  }
  const bool no_logits = !entry.sample && entry.labels.empty() && !entry.prompt_logprobs;
  if ((embeds || entry.hidden_states) && no_logits) return true;
  const size_t logit_row = wanted - first;
  if (backend_->samples_on_device() && DeviceDraws::Suffice(entry, row)) {
    draws_.Add(entry, drafted, static_cast<int>(logit_row), sequences_[index].first_row + row,
               results[index]);
    return false;
  }
  if (drafted > 0 && !DraftsAreDrawn(entry, drafted, results[index].tokens)) return false;
  const float* source =
      static_cast<const float*>(logits.data) + static_cast<int64_t>(logit_row) * logits.row_stride;
  backend_->CopyToHost(logits_.data(), source, logits_.size() * sizeof(float));
  UseLogits(entry, row, results[index]);
  return true;
}

absl::Span<const float> ModelEngine::HiddenState(int wanted) {
  const auto dim = static_cast<size_t>(config_.hidden_dim);
  const auto known = [&] {
    return wanted >= first_hidden_ &&
           static_cast<size_t>(wanted - first_hidden_) * dim < hidden_states_.size();
  };
  if (!known()) {
    // Each copy waits for the device, so one copy brings all states that lie in one piece.
    const backend::Tensor states = transformer_->HiddenStates(wanted);
    const size_t count = static_cast<size_t>(states.rows) * dim;
    std::vector<std::byte> bytes(count * SizeOf(states.dtype));
    backend_->CopyToHost(bytes.data(), states.data, bytes.size());
    hidden_states_.resize(count);
    model::ToF32(bytes.data(), states.dtype, count, hidden_states_.data());
    first_hidden_ = wanted;
  }
  return absl::MakeConstSpan(hidden_states_)
      .subspan(static_cast<size_t>(wanted - first_hidden_) * dim, dim);
}

void ModelEngine::AddEntry(const BatchEntry& entry, size_t index) {
  const int count = entry.rows();
  BATON_CHECK(!entry.tokens.empty());
  CheckDrafts(entry);
  BATON_CHECK_LE(entry.context + count, max_model_len_);
  BATON_CHECK_GE(
      static_cast<int64_t>(entry.blocks.size()) / pool_.block_tables() * layout_.block_tokens,
      entry.context + count);
  BATON_CHECK(!entry.sample || entry.sampling != nullptr);
  BATON_CHECK_LE(entry.targets.size(), entry.tokens.size());
  backend::SequenceRows rows;
  rows.first_row = static_cast<int>(tokens_.size());
  rows.row_count = count;
  rows.context = entry.context;
  rows.blocks = entry.blocks;
  rows.state = entry.state;
  rows.state_stores = entry.state_stores;
  sequences_.push_back(rows);
  tokens_.insert(tokens_.end(), entry.tokens.begin(), entry.tokens.end());
  tokens_.insert(tokens_.end(), entry.drafts.begin(), entry.drafts.end());
  if (config_.is_mtp_head) {
    BATON_CHECK(entry.drafts.empty());
    BATON_CHECK_EQ(entry.hidden_before.size(),
                   entry.tokens.size() * static_cast<size_t>(config_.hidden_dim));
  }
  hidden_before_.insert(hidden_before_.end(), entry.hidden_before.begin(),
                        entry.hidden_before.end());
  if (entry.drawn_by) {
    // Two steps may be in flight: the one before this is the last.
    BATON_CHECK(!launched_.empty());
    const std::vector<int>& draw_of = launched_.back().draw_of;
    BATON_CHECK_LT(*entry.drawn_by, static_cast<int>(draw_of.size()));
    BATON_CHECK_GE(draw_of[static_cast<size_t>(*entry.drawn_by)], 0);
    drawn_.resize(tokens_.size(), backend::kNotDrawn);
    drawn_.back() = draw_of[static_cast<size_t>(*entry.drawn_by)];
  } else if (!drawn_.empty()) {
    drawn_.resize(tokens_.size(), backend::kNotDrawn);
  }
  const int targets = entry.prompt_logprobs ? static_cast<int>(entry.targets.size()) : 0;
  for (int row = 0; row < count; ++row) {
    const bool after_last =
        (entry.sample || !entry.labels.empty() || entry.embed || entry.hidden_states) &&
        static_cast<size_t>(row) + 1 >= entry.tokens.size();
    if (row >= targets && !after_last) continue;
    logit_rows_.push_back(rows.first_row + row);
    wanted_.push_back({index, row});
  }
}

void ModelEngine::UseLogits(const BatchEntry& entry, int row, StepResult& result) const {
  if (entry.prompt_logprobs && static_cast<size_t>(row) < entry.targets.size() &&
      result.prompt_logprobs.ok()) {
    absl::StatusOr<model::SampledToken> token =
        model::LogprobsOf(logits_, entry.targets[static_cast<size_t>(row)], *entry.prompt_logprobs);
    if (token.ok()) {
      result.prompt_logprobs->push_back(*std::move(token));
    } else {
      result.prompt_logprobs = token.status();
    }
  }
  const int drafted = row + 1 - static_cast<int>(entry.tokens.size());
  if (drafted < 0) return;
  if (!entry.labels.empty()) result.label_logprobs = model::LogprobsOf(logits_, entry.labels);
  if (!entry.sample) return;
  if (entry.beam_candidates > 0) {
    result.tokens =
        model::BestTokens(logits_, *entry.sampling, entry.history, entry.beam_candidates);
    return;
  }
  const uint64_t position = static_cast<uint64_t>(entry.tokens_before + entry.context + row + 1);
  absl::StatusOr<std::vector<model::SampledToken>> drawn = model::SampleMany(
      logits_, *entry.sampling, entry.HistoryBehind(drafted), position, entry.draws);
  if (drafted == 0) {
    result.tokens = std::move(drawn);
  } else if (drawn.ok()) {  // else the next step, of which this is the first draw, fails
    result.tokens->push_back(std::move(drawn->front()));
  }
}

}  // namespace baton::engine
