// What one step computes: ragged rows over block tables, prefill chunks and decode tokens alike.
#ifndef BATON_COMMON_ENGINE_BATCH_H_
#define BATON_COMMON_ENGINE_BATCH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/kv/block_pool.h"
#include "common/model/sampler.h"

namespace baton::engine {

// One sequence's share of a step. What spans and pointers refer to must stay valid until Step,
// or Launch, returns.
struct BatchEntry {
  absl::Span<const int32_t> tokens;  // to compute now, 1 or more
  // The entry of the step launched before, not collected yet, whose draw is the last of `tokens`:
  // that holds any id there, and history.tokens lacks it. nullopt: all tokens are known.
  std::optional<int> drawn_by;
  int context = 0;                       // tokens before them, whose KV is in `blocks`
  absl::Span<const kv::BlockId> blocks;  // covers context + tokens.size() tokens
  bool sample = false;                   // draw the token behind the last of `tokens`

  // Of that draw. `sampling` must be set if `sample` is.
  const model::SamplingParams* sampling = nullptr;
  model::SamplingHistory history;
  int draws = 1;  // of sampling->choice, choice + 1, …: one token each, from the same logits
  // Beam search: instead of `draws`, so many of the most probable tokens, best first, with scores.
  int beam_candidates = 0;

  // Log probabilities of tokens that are known, with so many of the most probable beside each.
  std::optional<int> prompt_logprobs;
  // The tokens that follow the first, second, … of `tokens`; at most as many.
  absl::Span<const int32_t> targets;
};

struct Batch {
  std::vector<BatchEntry> entries;
  int rows() const {
    int rows = 0;
    for (const BatchEntry& entry : entries) rows += static_cast<int>(entry.tokens.size());
    return rows;
  }
};

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_BATCH_H_
