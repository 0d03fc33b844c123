// Which prompts the prefill worker computes next, in which chunks, into which blocks.
// Decides over tokens and counts: knows no gRPC, no engine.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_PREFILL_WORKER_SCHEDULER_H_
#define BATON_PREFILL_WORKER_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/kv/block_pool.h"
#include "common/kv/prefix_key.h"
#include "common/kv/radix_cache.h"
#include "common/model/sampler.h"

namespace baton::transfer {
class KvSender;
class PinnedBlocks;
}  // namespace baton::transfer

namespace baton::prefill_worker {

// One prompt on its way through the worker.
struct PrefillJob {
  uint64_t id = 0;
  std::string request_id;
  std::vector<int32_t> tokens;
  kv::PrefixKey root = 0;
  int first_block = 0;  // the first that the decode worker wants
  model::SamplingParams sampling;
  int prompt_tokens = 0;               // of `tokens`; the rest is the answer so far
  std::vector<int32_t> suppressed;     // not to be drawn as the first token
  std::optional<int> prompt_logprobs;  // then nothing of the prompt is taken from the cache
  std::shared_ptr<transfer::KvSender> sender;

  // Set when it starts.
  kv::BlockLease blocks;
  std::shared_ptr<const transfer::PinnedBlocks> pinned;  // set by the loop
  int cached_tokens = 0;
  int computed_tokens = 0;  // cached ones included
  absl::Duration submitted_at;
  absl::Duration started_at;

  int remaining_tokens() const { return static_cast<int>(tokens.size()) - computed_tokens; }
};

struct SchedulerOptions {
  int block_tokens = 16;
  int max_num_batched_tokens = 2048;
  int max_num_seqs = 64;
  int max_queued_requests = 256;
  int64_t max_queued_tokens = 1 << 20;
};

// Tokens [begin, end) of a job in one step. `begin` is a block's first token, and so is `end`
// unless it is the prompt's end: every (layer, block) is written in one step and sent once.
struct Chunk {
  PrefillJob* job = nullptr;
  int begin = 0;
  int end = 0;
  bool last() const { return end == static_cast<int>(job->tokens.size()); }
};

class PrefillScheduler {
 public:
  // `cache` may be null: no prefix caching. Pool and cache must outlive the scheduler.
  PrefillScheduler(const SchedulerOptions& options, kv::BlockPool& pool, kv::RadixCache* cache);

  // RESOURCE_EXHAUSTED: QUEUE_FULL, or KV_POOL_TOO_SMALL if the prompt can never fit.
  absl::Status Submit(std::unique_ptr<PrefillJob> job);

  // Starts waiting jobs for which there are blocks, evicting cached ones as needed, and returns
  // them: their `blocks` and `cached_tokens` are set. First come, first served. A started job has
  // all its blocks, so it always gets to its end.
  std::vector<PrefillJob*> StartJobs();

  // The next step: running jobs in order of their start, up to the token budget.
  std::vector<Chunk> NextBatch() const;

  // The chunk has been computed. Its job stays until Remove.
  void Computed(const Chunk& chunk);
  // Donates the prompt's whole blocks to the prefix cache. REQUIRES: all tokens are computed.
  void Donate(const PrefillJob& job);

  // Takes a job out, waiting or running; null if there is none of that id.
  std::unique_ptr<PrefillJob> Remove(uint64_t id);

  std::vector<uint64_t> JobIds() const;  // running, then waiting
  int waiting_count() const { return static_cast<int>(waiting_.size()); }
  int running_count() const { return static_cast<int>(running_.size()); }
  bool empty() const { return waiting_.empty() && running_.empty(); }
  // Prompt tokens not computed yet, of all jobs.
  int64_t queued_tokens() const;

 private:
  bool TryStart(PrefillJob& job);
  int BlocksFor(int64_t tokens) const;

  const SchedulerOptions options_;
  kv::BlockPool& pool_;
  kv::RadixCache* const cache_;
  std::deque<std::unique_ptr<PrefillJob>> waiting_;
  std::list<std::unique_ptr<PrefillJob>> running_;
  int64_t waiting_tokens_ = 0;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_SCHEDULER_H_
