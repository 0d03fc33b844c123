// The blocks that in-flight jobs will compute, so that a prefix that several jobs share is computed
// once: a job that lacks a block which a job before it will compute waits for that block.
//
// Blocks are looked up by prefix key and compared by tokens. A job is listed under the key of each
// whole block that it will compute and that will go into the prefix cache, until that block is
// computed. What is cached already is not listed: of a long conversation, that is nearly all. Add
// and Remove take a look-up for each block, a query O(1) and one comparison of tokens.
//
// Thread: owned by the scheduler.
#ifndef BATON_COMMON_PREFILL_PENDING_BLOCKS_H_
#define BATON_COMMON_PREFILL_PENDING_BLOCKS_H_

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "common/prefill/job.h"

namespace baton::prefill {

class PendingBlocks {
 public:
  explicit PendingBlocks(int block_tokens) : block_tokens_(block_tokens) {}

  // Lists the job from the block `from` on. The job's rank, or its place among the running jobs,
  // must not change between Add and Remove.
  void Add(PrefillJob* job, int from);
  // Lists it from `from` on, if that is earlier: blocks that were cached are so no more.
  void ListFrom(PrefillJob* job, int from);
  void Remove(PrefillJob* job);
  // The job's blocks before `end` have been computed.
  void Computed(PrefillJob* job, int end);

  // Returns the first job before `job` (one that runs, or waits with a lower rank) that will
  // compute `block` of `job`'s prompt and everything before it. Null if there is none.
  PrefillJob* Leader(const PrefillJob& job, int block) const;
  // The same among all jobs but `job`.
  PrefillJob* Other(const PrefillJob& job, int block) const;

  // Returns the number of whole blocks that the two prompts share from the start, of those that
  // both list.
  int SharedBlocks(const PrefillJob& a, const PrefillJob& b) const;

  // Ends the process unless it holds exactly the blocks of `jobs` from their pending_from on, which
  // no job has computed.
  void CheckIntegrity(const std::vector<const PrefillJob*>& jobs) const;

 private:
  using Jobs = absl::InlinedVector<PrefillJob*, 2>;  // in their order of work

  static bool Before(const PrefillJob* a, const PrefillJob* b);
  void List(PrefillJob* job, int block);
  void Erase(PrefillJob* job, int block);
  bool Shares(const PrefillJob& a, const PrefillJob& b, int block) const;

  const int block_tokens_;
  absl::flat_hash_map<kv::PrefixKey, Jobs> jobs_;
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_PENDING_BLOCKS_H_
