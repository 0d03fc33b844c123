// Which prompts a worker computes next as jobs, in which chunks, into which blocks.
// Works on tokens and counts only, without gRPC, an engine or a clock.
//
// Order. Priorities first, strictly. Within one, tenants have equal shares: the tenant for which
// the fewest tokens have been computed is next (start-time fair queueing; a tenant that had no job
// begins where the least served one is, so it gets neither credit nor debt). Within a tenant,
// shortest remaining first with ageing: the job with the least (tokens it still has to compute +
// tokens that the worker had computed when it came) goes first. So a short prompt passes a long
// one, but each token computed ages all waiting jobs by one token: a job of R tokens is passed by
// no job of its tenant that comes after R more tokens have been computed. If the worker holds at
// most Q tokens at a time (its queue is bounded), a job is done at the latest when R + Q tokens
// have been computed after it came, whatever its tenant, as those that come later have no more than
// their share.
//
// Blocks. A job starts when the step has room for it and it gets all its blocks, cached ones
// evicted as needed, so a started job always completes. While the next job in order lacks blocks,
// jobs after it may start, until these have as many tokens as it has; then no job after it starts
// before it. Running jobs complete and free their blocks, so it starts.
//
// Windows (common/kv/block_pool.h). A job holds window pages of the blocks that its next tokens see
// and of those that it computes next; what it has left behind it gives back, to the prefix cache at
// first. It starts with as many as it needs on its way. Jobs that match its blocks may keep some of
// these from it; then its chunks are shorter, and it may wait for a job that started after it. No
// job waits for one that started before it, so the last one goes on.
//
// States (common/kv/snapshots.h). A job holds a state and a spare for the next one, so what is said
// of windows holds. It leaves snapshots where its chunks end, at the end of its prompt, and where
// it leaves a path of the prefix cache that has none there.
//
// Shared prefixes. Each chunk's whole blocks go to the prefix cache at once. A job whose next
// uncached block will be computed by a job that runs, or that waits before it, waits for that block
// and then finds it in the cache. Each step computes anew which job waits for which: if the job
// ahead is cancelled, the next one computes. The first job in the order never waits for another
// one, so there is no deadlock; it may wait for a fetch, which has a deadline (kv_fetcher.h). A job
// that others wait for is served at the place of the first of them, up to the block they share: so
// a HIGH job does not wait behind a LOW one.
//
// Beside answers. On a worker that also answers (decode_worker/loop.h), jobs and answers share
// pool, slots and steps. An answer whose prompt another worker computes (it *receives*) holds
// blocks until that worker's job ends, so two workers could wait for each other's jobs for ever.
// They do not, as a job never waits for a receiving answer, and both kinds progress:
// - A started job holds all its blocks, and each step leaves jobs a block of tokens or more. So it
//   completes, whatever answers do, and its blocks become free.
// - Half of the pool and of the slots is the jobs' *reserve*: while there are jobs, and for a while
//   after, answers receive into no more than the other half (a request that needs more computes its
//   prompt itself), and where the first job finds more in use, the last in rank are evicted.
// - While requests wait for blocks, only jobs that fit into the reserve start (StepRoom). While the
//   first of these lacks blocks or slots, no request is admitted. So it waits for nothing but
//   answers that run, which end, as the first in rank of them always progresses: it preempts
//   others, and where jobs have the block that it lacks, these complete.
// - Jobs leave the running answers a block each for their next tokens.
// - A request that has waited for long at the head of its queue (it may need more than half of the
//   pool) keeps all jobs from starting until it is admitted.
// - A job that could not start for kLongestWait, while none runs, is refused (jobs.h): the reserve
//   is too small for it, or such a request waits. Its caller asks elsewhere.
//
// Scoring. The blocks of a job that only its item has are not inserted: they would evict the prefix
// that items share. A job gets the blocks of its labels together with those of its prompt. For the
// bound on requests, kMaxScoredItems items count as one request. The tokens of labels that are
// computed behind the prompt count for the bound on tokens and in estimates.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_COMMON_PREFILL_SCHEDULER_H_
#define BATON_COMMON_PREFILL_SCHEDULER_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/kv/block_pool.h"
#include "common/kv/radix_cache.h"
#include "common/prefill/job.h"
#include "common/prefill/pending_blocks.h"
#include "common/worker/step_cost.h"

namespace baton::prefill {

struct SchedulerOptions {
  int block_tokens = 16;
  // How many blocks a segment of the worker's KV tiers has: prompts of recurrent models leave
  // snapshots at the ends of segments, too. 0: the worker has no tiers.
  int tier_segment_blocks = 0;
  int max_num_batched_tokens = 2048;
  int max_num_seqs = 64;
  int max_queued_requests = 256;
  int64_t max_queued_tokens = 1 << 20;  // tokens still to compute of the waiting jobs
};

// Tokens [begin, end) of a job in one step. `begin` is a block's first token, and so is `end`
// unless it is the prompt's end: every (layer, block) is written in one step and sent once.
struct Chunk {
  PrefillJob* job = nullptr;
  int begin = 0;
  int end = 0;
  bool last() const { return end == job->size(); }
};

// What jobs may take of a step, and of the pool.
struct StepRoom {
  int tokens = std::numeric_limits<int>::max();     // beside the bound of the options
  int jobs = std::numeric_limits<int>::max();       // that run; beside the bound of the options
  int pages = std::numeric_limits<int>::max();      // of the jobs that run, with those that start
  int free_jobs = std::numeric_limits<int>::max();  // of `jobs`, those that others leave now
  int spare_pages = 0;                              // free or evictable ones that a start leaves
};

struct StepPlan {
  std::vector<PrefillJob*> started;  // `blocks`, `cached_tokens` and `computed_tokens` are set
  std::vector<Chunk> chunks;         // at most one per job; together within the token budget
};

class PrefillScheduler {
 public:
  // `cache` may be null: no prefix caching. Pool and cache must outlive the scheduler.
  PrefillScheduler(const SchedulerOptions& options, kv::BlockPool& pool, kv::RadixCache* cache);

  // RESOURCE_EXHAUSTED, and the job is gone:
  // - KV_POOL_TOO_SMALL if the prompt can never fit;
  // - QUEUE_FULL, with the time until the present queue is computed as the retry time;
  // - DEADLINE_UNREACHABLE if by `tokens_per_second` (nullopt: not known yet) what is before it in
  //   the order takes so long that its deadline passes before its own tokens are computed. A job
  //   with nothing before it is never refused with this reason.
  absl::Status Submit(std::unique_ptr<PrefillJob> job, absl::Time now,
                      std::optional<double> tokens_per_second);

  // Starts jobs and plans a step. No chunks: there is nothing to do until a job comes or goes, or
  // blocks are released.
  StepPlan NextStep(const StepRoom& room = StepRoom());
  // The first job for which the last plan had room, but not the blocks or slots yet. Null: none.
  const PrefillJob* blocked() const { return blocked_; }
  // The first job that the last plan could not start, for want of them or of room.
  const PrefillJob* held_up() const { return held_up_; }

  // The chunk has been computed. Its job stays until Remove.
  void Computed(const Chunk& chunk);
  // Inserts the whole blocks computed so far into the prefix cache, at most those of
  // cacheable_tokens(), and retains what the job asks for. Their KV must be valid.
  void InsertIntoCache(const PrefillJob& job);
  // Gives back the window pages that a running job has left behind, after InsertIntoCache, and
  // gives it those of its next blocks.
  void MoveWindows(PrefillJob& job);

  // Removes and returns a job, waiting or running; null if there is none with that id.
  std::unique_ptr<PrefillJob> Remove(uint64_t id);

  // Running ones, then waiting ones.
  void ForEachJob(absl::FunctionRef<void(const PrefillJob&)> visit) const;
  int waiting_count() const { return static_cast<int>(waiting_.size()); }
  // As the bound on requests counts them.
  int waiting_requests() const;
  int running_count() const { return static_cast<int>(running_.size()); }
  bool empty() const { return waiting_.empty() && running_.empty(); }
  // Prompt tokens that all jobs still have to compute; what several of them share counts once.
  int64_t queued_tokens() const;
  // The same as PrefillWork, which includes the context that those tokens attend to.
  PrefillWork remaining_work() const;

  // Ends the process unless queue, running jobs and counts are consistent.
  void CheckIntegrity() const;

 private:
  class Planner;

  absl::Status CheckAdmission(const PrefillJob& job, absl::Time now,
                              std::optional<double> tokens_per_second) const;
  Rank RankOf(const PrefillJob& job, int remaining_tokens) const;
  // Tokens that are computed before the job is done, without its own.
  int64_t TokensBefore(const PrefillJob& job) const;
  // Counts a job in, and out.
  void Join(const PrefillJob& job);
  void Quit(const PrefillJob& job);
  int MatchableBlocks(const PrefillJob& job) const;
  int CachedBlocks(const PrefillJob& job) const;
  int ExpectedTokens(const PrefillJob& job, int cached_blocks) const;
  // That the job takes with its labels, nothing of it being cached.
  int64_t PagesOf(const PrefillJob& job) const;
  int WindowBlocksOf(const PrefillJob& job) const;
  // Of a job that starts behind so many cached blocks.
  void SetSnapshots(PrefillJob& job, int matched_blocks) const;
  void PlaceStates(const Chunk& chunk);
  bool TryAllocate(PrefillJob& job, int spare_pages);
  void MoveToRunning(PrefillJob& job);
  void ForgetHeldUp(const PrefillJob& job);
  void NoteCached(PrefillJob& job, int cached_blocks);
  int BlocksFor(int64_t tokens) const;

  const SchedulerOptions options_;
  kv::BlockPool& pool_;
  kv::RadixCache* const cache_;
  std::map<Rank, std::unique_ptr<PrefillJob>> waiting_;
  std::vector<std::unique_ptr<PrefillJob>> running_;  // in order of their start
  PendingBlocks pending_;
  int64_t waiting_tokens_ = 0;  // sum of expected_tokens
  int waiting_items_ = 0;       // jobs with `scoring`
  int64_t work_ = 0;            // tokens computed since the worker began
  uint64_t starts_ = 0;
  // They wait.
  const PrefillJob* blocked_ = nullptr;
  const PrefillJob* held_up_ = nullptr;
  int64_t running_pages_ = 0;
  struct Tenant {
    int jobs = 0;
    int64_t served =
        0;  // tokens computed for it, from those of the least served one at its first job
  };
  std::map<std::string, Tenant> tenants_;  // with jobs
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_SCHEDULER_H_
