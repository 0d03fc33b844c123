// The reports of a worker on one Watch stream: first its card and a snapshot of its prefix cache,
// then its load and the changes of the cache.
#ifndef BATON_COMMON_WORKER_WATCH_REPORT_H_
#define BATON_COMMON_WORKER_WATCH_REPORT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "baton/internal/v1/worker.pb.h"
#include "common/kv/block_pool.h"
#include "common/worker/cache_journal.h"

namespace baton::worker {

// How fast KV comes from a prefill worker.
struct LinkRate {
  std::string worker_id;
  uint64_t epoch = 0;
  double bytes_per_second = 0;
  absl::Duration measured_at;  // by the worker's clock
};

struct WorkerLoad {
  int running = 0;
  int queued = 0;
  int64_t queued_tokens = 0;
  int free_blocks = 0;      // free blocks, and cached ones that can be evicted
  int retained_blocks = 0;  // of the cached ones
  int snapshots = 0;        // of states, that the prefix cache has
  int open_transfers = 0;
  int computing_transfers = 0;  // of them, those of prompts that a prefill worker still computes
  bool draining = false;
  bool drained = false;  // draining, and nothing of a request is left in the loop
  // Time until all prompt tokens accepted so far are computed, by `prefill_cost`; 0 without it.
  absl::Duration remaining_work;
  std::optional<internal::v1::PrefillCost> prefill_cost;  // once it is known
  absl::Duration tier_load_time;  // of a segment that the worker's KV tiers have; 0: not measured
  // Set by decode workers only. Jobs (common/prefill/jobs.h) are not part of the numbers above, but
  // of remaining_work.
  int receiving = 0;  // of `running`: another worker writes to their blocks, or may
  int running_jobs = 0;
  int waiting_jobs = 0;
  std::optional<internal::v1::DecodeCost> decode_cost;  // once it is known
  int64_t context_tokens = 0;                           // of sequences that have blocks
  // The links measured last; another object once something has changed. Null: none was measured.
  std::shared_ptr<const std::vector<LinkRate>> links;
  kv::BlockCounts counts;
  // Since the worker's start.
  int64_t computed_prompt_tokens = 0;  // those of preempted answers included
  int64_t generated_tokens = 0;        // of answers, drawn here
  int64_t draft_tokens = 0;            // of speculative decoding
  int64_t accepted_draft_tokens = 0;   // of draft_tokens, those that were drawn
  // When the loop last accepted requests, and when it read these numbers, by the worker's clock.
  absl::Duration last_accepted_at;
  absl::Duration read_at;
};

// Without the links. `now`: by the worker's clock.
internal::v1::LoadReport ToProto(const WorkerLoad& load, absl::Duration now);

// Unsynchronized.
class WatchReport {
 public:
  // Most keys in one message: 512 KiB.
  static constexpr size_t kKeysPerMessage = 64 * 1024;

  // Both must outlive it.
  WatchReport(const internal::v1::WorkerCard& card, const CacheJournal& journal)
      : card_(card), journal_(journal) {}

  // Returns the messages of the next report, in order: what has changed since the last one, then
  // `load`. A router that is further behind than the journal reaches gets another snapshot, which
  // it refuses, and asks for a new stream.
  std::vector<internal::v1::WatchResponse> Next(const WorkerLoad& load, absl::Duration now);

 private:
  void AddCacheChanges(std::vector<internal::v1::WatchResponse>* report);

  const internal::v1::WorkerCard& card_;
  const CacheJournal& journal_;
  bool introduced_ = false;
  uint64_t journal_position_ = 0;
  uint64_t sequence_ = 0;  // number of the last snapshot or change
  std::shared_ptr<const std::vector<LinkRate>> sent_links_;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_WATCH_REPORT_H_
