// What one step computes: ragged rows over block tables, prefill chunks and decode tokens alike.
#ifndef BATON_COMMON_ENGINE_BATCH_H_
#define BATON_COMMON_ENGINE_BATCH_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/tensor.h"
#include "common/kv/block_pool.h"
#include "common/model/sampler.h"

namespace baton::engine {

// One sequence's share of a step. What its spans and pointers refer to must stay valid until
// Engine::Step, or Engine::Launch, returns.
struct BatchEntry {
  absl::Span<const int32_t> tokens;  // input of this step, 1 or more, drafts apart
  // Index of the entry, in the previous uncollected step, whose sampled token is this entry's last
  // input. The id in tokens.back() is then ignored, and history.tokens does not contain it yet.
  // nullopt: all tokens are known.
  std::optional<int> drawn_by;
  int context = 0;  // tokens before `tokens`; their KV is in `blocks`
  // The pages of its blocks as SequenceRows has them; for pools whose blocks are pages, the blocks'
  // ids. Covers context + rows() tokens.
  absl::Span<const int32_t> blocks;
  // Of pools with states, as SequenceRows has them.
  absl::Span<const int32_t> state;
  absl::Span<const backend::StateStore> state_stores;
  struct Tables {
    std::vector<int32_t> pages;
    std::vector<backend::StateStore> stores;
  };
  std::shared_ptr<const Tables> tables;  // what these refer to, or null
  bool sample = false;                   // draw the token after the last of `tokens`

  // Tokens that may follow `tokens`: each is computed, and a token is drawn behind each, with
  // `drafts` before it in the history. The result has the draws up to the first one that differs
  // from its draft, so at least one and at most one more than there are drafts. The KV of drafts
  // that were not drawn stays in the blocks, and no state goes on over any draft. REQUIRES with
  // drafts: `sample`, one draw, and no drawn_by, beams, labels, targets or `embed`.
  absl::Span<const int32_t> drafts;

  // For the draw requested by `sample`: `sampling` must then be set. With drafts, the history's
  // suppressed tokens are for the first suppressed_draws draws, and `allowed` is for the first one:
  // allowed_after[i] is for that behind drafts[i]. Empty: all.
  const model::SamplingParams* sampling = nullptr;
  model::SamplingHistory history;
  int suppressed_draws = std::numeric_limits<int>::max();
  absl::Span<const absl::Span<const uint32_t>> allowed_after;
  // Number of choices to draw for, starting at sampling->choice: one token each, from the same
  // logits.
  int draws = 1;
  // Beam search: if > 0, return this many of the most probable tokens instead of `draws`, best
  // first, with scores.
  int beam_candidates = 0;

  // If set, return the log probabilities of `targets`, each with this many top alternatives.
  std::optional<int> prompt_logprobs;
  // targets[i] is the token after tokens[i]; may be shorter than `tokens`.
  absl::Span<const int32_t> targets;

  // Return the log probability of each of these as the token after the last of `tokens`.
  absl::Span<const int32_t> labels;

  // Return the hidden state of the last of `tokens`, behind the model's final norm.
  bool embed = false;
  // Return the hidden states of the last of `tokens` and of each draft, behind the model's final
  // norm.
  bool hidden_states = false;

  // For the engine of an MTP head (Engine::mtp_head), which needs it: what `hidden_states` gave for
  // the token before each of `tokens`, by the model or by the head itself. [tokens.size(),
  // hidden_dim].
  absl::Span<const float> hidden_before;
  // Tokens of the sequence that are before those of `context`: an MTP head may have KV of a
  // sequence's last tokens only. The position of a draw counts them.
  int tokens_before = 0;

  int rows() const { return static_cast<int>(tokens.size() + drafts.size()); }
  // Draws requested by `sample`: one behind the last of `tokens`, and one behind each draft.
  int draw_rows() const { return 1 + static_cast<int>(drafts.size()); }
  // The history of the draw behind the first `drafted` drafts.
  model::SamplingHistory HistoryBehind(int drafted) const;
};

// Ends the process unless an entry with drafts has nothing that these exclude.
void CheckDrafts(const BatchEntry& entry);

// Whether draw `index` counts: those before it, which the result has, are the drafts before it.
bool DraftsAreDrawn(const BatchEntry& entry, int index,
                    const absl::StatusOr<std::vector<model::SampledToken>>& drawn);

// Sets `blocks` to those of the lease, which must live as long as the entry, and where the state is
// read and left: behind the last of `tokens`, and at the end of each block before that has window
// pages. REQUIRES: `context`, `tokens` and `drafts` are set; the lease has the window pages that
// the tokens and drafts see, or the last token's that is not a draft.
void SetBlocks(const kv::BlockLease& lease, BatchEntry* entry, int block_tokens);

struct Batch {
  std::vector<BatchEntry> entries;
  int rows() const {
    int rows = 0;
    for (const BatchEntry& entry : entries) rows += entry.rows();
    return rows;
  }
};

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_BATCH_H_
