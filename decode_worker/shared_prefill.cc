#include "decode_worker/shared_prefill.h"

#include <algorithm>
#include <utility>

namespace baton::decode_worker {

int SharedTokens(const Sequence& other, const Sequence& sequence, int block_tokens) {
  if (other.call->root != sequence.call->root) return 0;
  const auto [end, ignored] = std::mismatch(sequence.tokens.begin(), sequence.tokens.end() - 1,
                                            other.tokens.begin(), other.tokens.end());
  return static_cast<int>(end - sequence.tokens.begin()) / block_tokens * block_tokens;
}

bool MayReuse(const Sequence& sequence) {
  return !sequence.call->prompt_logprobs || sequence.call->answered;
}

int TakeCached(kv::RadixCache& cache, Sequence& sequence) {
  const int most = static_cast<int>(sequence.tokens.size()) - 1;
  // Asks first: a match that is not used would still count as a use.
  if (cache.Peek(sequence.call->root, sequence.tokens, most) <= sequence.computed_tokens) return 0;
  kv::Match match = cache.MatchPrefix(sequence.call->root, sequence.tokens, most);
  kv::BlockLease rest = sequence.blocks.SplitAt(match.blocks.size());
  sequence.blocks = std::move(match.blocks);
  sequence.window_end = std::max(sequence.window_end, sequence.blocks.size());
  sequence.blocks.Append(std::move(rest));
  return match.tokens - std::exchange(sequence.computed_tokens, match.tokens);
}

bool WaitsForOneOf(const std::vector<const Sequence*>& ahead, const Sequence& sequence,
                   int block_tokens) {
  return std::any_of(ahead.begin(), ahead.end(), [&](const Sequence* other) {
    // One that has computed less than `sequence` is not waited for.
    return other->computed_tokens >= sequence.computed_tokens &&
           other->computed_tokens < SharedTokens(*other, sequence, block_tokens);
  });
}

}  // namespace baton::decode_worker
