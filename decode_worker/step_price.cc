#include "decode_worker/step_price.h"

namespace baton::decode_worker {

StepPrice::StepPrice(const std::vector<Chunk>& chunks, const PrefillWork& prompts,
                     const StepTimes& times, bool repeats_drafts, double mask_seconds)
    : times_(times),
      repeats_drafts_(repeats_drafts),
      mask_seconds_(times.measured() ? mask_seconds : 0),
      prompts_(prompts) {
  // Tokens of prompts, which a longer step makes wait as well, count like those that are drawn.
  tokens_ = prompts.tokens;
  for (const Chunk& chunk : chunks) {
    const int count = chunk.end - chunk.begin;
    if (chunk.decodes) {
      rows_ += count;
      context_tokens_ += chunk.begin;
      tokens_ += 1;
    } else {
      prompts_.Add(count, chunk.begin);
      tokens_ += count;
    }
  }
  seconds_ = times.DecodeSeconds(rows_, context_tokens_, prompts_);
  plain_tokens_ = tokens_;
  plain_seconds_ = seconds_;
}

double StepPrice::RowSeconds(const Chunk& chunk, double likelihood) const {
  const double context = StepTimes::kDraftContext * chunk.begin;
  double seconds = times_.DecodeSeconds(rows_ + 1, context_tokens_ + context, prompts_) -
                   times_.DecodeSeconds(rows_, context_tokens_, prompts_);
  if (repeats_drafts_) seconds *= 1 + likelihood;
  if (chunk.sequence->call->grammar != nullptr) seconds += mask_seconds_;
  return seconds;
}

void StepPrice::Add(const Chunk& chunk, double likelihood) {
  seconds_ += RowSeconds(chunk, likelihood);
  rows_ += 1;
  context_tokens_ += StepTimes::kDraftContext * chunk.begin;
  tokens_ += likelihood;
}

bool StepPrice::Gains() const {
  return tokens_ * plain_seconds_ > plain_tokens_ * (seconds_ + times_.DraftedExtraSeconds());
}

}  // namespace baton::decode_worker
