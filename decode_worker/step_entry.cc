#include "decode_worker/step_entry.h"

#include <algorithm>

#include "absl/types/span.h"
#include "decode_worker/beam_search.h"

namespace baton::decode_worker {

engine::BatchEntry MakeEntry(const Chunk& chunk, int block_tokens) {
  const Sequence& sequence = *chunk.sequence;
  const Call& call = *sequence.call;
  const absl::Span<const int32_t> tokens = sequence.tokens;
  engine::BatchEntry entry;
  entry.tokens = tokens.subspan(chunk.begin, chunk.end - chunk.begin);
  entry.drafts = chunk.drafts;
  entry.context = chunk.begin;
  engine::SetBlocks(sequence.blocks, &entry, block_tokens);
  entry.sample = chunk.draws();
  entry.sampling = &sequence.sampling;
  entry.draws = sequence.draws;
  if (call.beams != nullptr) entry.beam_candidates = call.beams->proposals();
  entry.history.tokens = tokens;
  entry.history.prompt_tokens = call.prompt_tokens;
  if (sequence.generated_tokens() < call.min_tokens) {
    entry.history.suppressed = call.stop_token_ids;
    entry.suppressed_draws = call.min_tokens - sequence.generated_tokens();
  }
  if (call.prompt_logprobs && !call.answered) {
    const int last = std::min(chunk.end, call.prompt_tokens - 1);
    entry.prompt_logprobs = call.prompt_logprobs;
    entry.targets = tokens.subspan(chunk.begin + 1, std::max(0, last - chunk.begin));
  }
  return entry;
}

engine::BatchEntry MakeEntryAhead(const Chunk& chunk, int block_tokens) {
  static const int32_t unknown = 0;
  const Sequence& sequence = *chunk.sequence;
  const Call& call = *sequence.call;
  engine::BatchEntry entry;
  entry.tokens = absl::MakeConstSpan(&unknown, 1);
  entry.drawn_by = chunk.drawn_by;
  entry.context = chunk.begin;
  engine::SetBlocks(sequence.blocks, &entry, block_tokens);
  entry.sample = true;
  entry.sampling = &sequence.sampling;
  entry.history.tokens = sequence.tokens;
  entry.history.prompt_tokens = call.prompt_tokens;
  if (sequence.generated_tokens() + 1 < call.min_tokens) {
    entry.history.suppressed = call.stop_token_ids;
  }
  return entry;
}

}  // namespace baton::decode_worker
