#include "common/engine/device_draws.h"

#include <algorithm>

#include "absl/types/span.h"
#include "common/base/check.h"

namespace baton::engine {

bool DeviceDraws::Suffice(const BatchEntry& entry, int row) {
  const size_t index = static_cast<size_t>(row);
  const bool is_target = entry.prompt_logprobs && index < entry.targets.size();
  return entry.sample && index + 1 >= entry.tokens.size() && !is_target && entry.labels.empty() &&
         entry.beam_candidates == 0 && !entry.sampling->logprobs && entry.history.allowed.empty() &&
         entry.allowed_after.empty();
}

void DeviceDraws::Add(const BatchEntry& entry, int drafted, int logit_row, int batch_row,
                      StepResult& result) {
  BATON_CHECK_GE(entry.draws, 1);
  const model::SamplingParams& params = *entry.sampling;
  if (absl::Status status = model::Validate(params); !status.ok()) {
    result.tokens = status;
    return;
  }
  if (drafted == 0) result.tokens = std::vector<model::SampledToken>();
  const model::SamplingHistory history = entry.HistoryBehind(drafted);
  for (int i = 0; i < entry.draws; ++i) {
    rows_.push_back(
        {.logit_row = logit_row,
         .temperature = params.temperature,
         .top_p = params.top_p,
         .min_p = params.min_p,
         .top_k = params.top_k,
         .repetition_penalty = params.repetition_penalty,
         .frequency_penalty = params.frequency_penalty,
         .presence_penalty = params.presence_penalty,
         .seed = params.seed,
         .choice = params.choice + static_cast<uint32_t>(i),
         .position = static_cast<uint64_t>(entry.tokens_before + entry.context + drafted) +
                     entry.tokens.size(),
         .tokens = history.tokens,
         .drawn_row = entry.drawn_by ? batch_row : backend::kNotDrawn,
         .prompt_tokens = history.prompt_tokens,
         .drafts = history.drafts,
         .suppressed = history.suppressed,
         .logit_bias = params.logit_bias});
    draws_.push_back(
        {history.suppressed.size(), &result, entry.drafts.empty() ? nullptr : &entry, drafted});
  }
}

void DeviceDraws::Enqueue(backend::Backend& backend, const backend::Tensor& logits,
                          int64_t token_count) {
  if (!rows_.empty()) backend.EnqueueSample(logits, token_count, rows_);
}

bool DeviceDraws::Collect(backend::Backend& backend) {
  outcomes_.assign(rows_.size(), {});
  if (!rows_.empty()) backend.CollectSample(absl::MakeSpan(outcomes_));
  return FinishAll();
}

bool DeviceDraws::Run(backend::Backend& backend, const backend::Tensor& logits, int64_t token_count,
                      int rows_per_call) {
  BATON_CHECK_GE(rows_per_call, 1);
  outcomes_.assign(rows_.size(), {});
  const absl::Span<const backend::SampleRow> rows = rows_;
  const absl::Span<backend::SampleOutcome> outcomes = absl::MakeSpan(outcomes_);
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(rows_per_call)) {
    const size_t count = std::min(rows.size() - begin, static_cast<size_t>(rows_per_call));
    backend.EnqueueSample(logits, token_count, rows.subspan(begin, count));
    backend.CollectSample(outcomes.subspan(begin, count));
  }
  return FinishAll();
}

bool DeviceDraws::FinishAll() {
  for (size_t i = 0; i < draws_.size(); ++i) Finish(draws_[i], outcomes_[i]);
  rows_.clear();
  draws_.clear();
  return !outcomes_.empty();
}

void DeviceDraws::Finish(const Draw& draw, const backend::SampleOutcome& outcome) {
  if (!draw.result->tokens.ok()) return;  // an earlier draw failed
  if (draw.drafted > 0 && (!DraftsAreDrawn(*draw.entry, draw.drafted, draw.result->tokens) ||
                           // The next step, of which this is the first draw, fails.
                           outcome.kind != backend::SampleOutcome::Kind::kToken)) {
    return;
  }
  switch (outcome.kind) {
    case backend::SampleOutcome::Kind::kToken:
      draw.result->tokens->emplace_back();
      draw.result->tokens->back().token_id = outcome.token_id;
      break;
    case backend::SampleOutcome::Kind::kNonFinite:
      draw.result->tokens = model::NonFiniteLogits(outcome.token_id, outcome.bad_logit);
      break;
    case backend::SampleOutcome::Kind::kNoTokenLeft:
      draw.result->tokens = model::NoTokenLeft(draw.suppressed);
      break;
  }
}

}  // namespace baton::engine
