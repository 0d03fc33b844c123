// Computes a prefix that several prompts share once, in the sequence first in rank. The others wait
// and then find it in the prefix cache.
//
// Each step computes anew which sequence waits: if the one ahead is cancelled or preempted, the
// next one computes. The first in rank never waits, so there is no deadlock.
//
// Thread: owned by the scheduler.
#ifndef BATON_DECODE_WORKER_SHARED_PREFILL_H_
#define BATON_DECODE_WORKER_SHARED_PREFILL_H_

#include <vector>

#include "common/kv/radix_cache.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

// False if log probabilities of the prompt are requested: they need the whole prompt computed.
bool MayReuse(const Sequence& sequence);

// Replaces the running sequence's blocks after its computed tokens by cached ones, as far as there
// are any; at least its last token stays to compute. Returns the number of tokens gained.
int TakeCached(kv::RadixCache& cache, Sequence& sequence);

// The tokens of the whole blocks that both have, but for the last token of `sequence`, which it
// computes itself.
int SharedTokens(const Sequence& other, const Sequence& sequence, int block_tokens);

// True if one of `ahead`, which are running and come before it in rank, is going to compute the
// next block that `sequence` needs.
bool WaitsForOneOf(const std::vector<const Sequence*>& ahead, const Sequence& sequence,
                   int block_tokens);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_SHARED_PREFILL_H_
