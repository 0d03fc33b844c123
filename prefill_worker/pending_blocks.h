// Which jobs in flight are going to compute which blocks, so that a prefix that several of them
// share is computed once: whoever lacks a block that another job will compute first waits for it.
//
// Found by prefix key, decided by tokens. A job stands under the key of each of its whole blocks
// until that block is computed. Adding and removing one costs O(blocks) look-ups, asking O(1) and a
// comparison of the tokens in question.
//
// Thread: owned by the scheduler.
#ifndef BATON_PREFILL_WORKER_PENDING_BLOCKS_H_
#define BATON_PREFILL_WORKER_PENDING_BLOCKS_H_

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "prefill_worker/job.h"

namespace baton::prefill_worker {

class PendingBlocks {
 public:
  explicit PendingBlocks(int block_tokens) : block_tokens_(block_tokens) {}

  // The job with its present rank, or its place among the running. That must not change while it is
  // here: take it out first.
  void Add(PrefillJob* job);
  void Remove(PrefillJob* job);
  // Blocks [begin, end) of the job have been computed.
  void Computed(PrefillJob* job, int begin, int end);

  // The first job that will compute `block` of `job`'s prompt and everything before it, and that
  // comes before `job`: it runs, or waits with a lower rank. Null if there is none.
  PrefillJob* Leader(const PrefillJob& job, int block) const;
  // The same of any job but `job`, whatever its place.
  PrefillJob* Other(const PrefillJob& job, int block) const;

  // Whole blocks from the start that the two prompts share.
  int SharedBlocks(const PrefillJob& a, const PrefillJob& b) const;

  // Ends the process unless it holds exactly the blocks that `jobs` have not computed.
  void CheckIntegrity(const std::vector<const PrefillJob*>& jobs) const;

 private:
  using Jobs = absl::InlinedVector<PrefillJob*, 2>;  // those before others first

  static bool Before(const PrefillJob* a, const PrefillJob* b);
  void Erase(PrefillJob* job, int block);
  bool Shares(const PrefillJob& a, const PrefillJob& b, int block) const;

  const int block_tokens_;
  absl::flat_hash_map<kv::PrefixKey, Jobs> jobs_;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_PENDING_BLOCKS_H_
