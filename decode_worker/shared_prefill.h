// Prompts computed here that begin alike: what they share is computed once, by the first in rank.
// The others wait for it and find it in the prefix cache.
//
// Who waits for whom is not stored but asked anew in each step: where the one ahead is cancelled or
// gives way, the next one computes. The first in rank waits for nobody, so there is no deadlock.
//
// Thread: owned by the scheduler.
#ifndef BATON_DECODE_WORKER_SHARED_PREFILL_H_
#define BATON_DECODE_WORKER_SHARED_PREFILL_H_

#include <vector>

#include "common/kv/radix_cache.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

// False of one whose prompt's log probabilities are wanted: they come from computing all of it.
bool MayReuse(const Sequence& sequence);

// The running sequence takes what the cache has beyond its computed tokens, instead of its own
// blocks there; at least its last token stays to compute. How many tokens it gained.
int TakeCached(kv::RadixCache& cache, Sequence& sequence);

// True if one of `ahead`, which are running and come before it in rank, is going to compute the
// next block that `sequence` lacks.
bool WaitsForOneOf(const std::vector<const Sequence*>& ahead, const Sequence& sequence,
                   int block_tokens);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_SHARED_PREFILL_H_
