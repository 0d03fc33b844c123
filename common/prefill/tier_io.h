// Reads segments of prompts from KV stores into the pool and writes them from the pool, on threads
// beside the loop.
//
// A load's blocks are reserved by the loop, which may abandon the load at any time, except while a
// segment is being copied into the blocks: so a store that hangs costs a thread, and no block.
#ifndef BATON_COMMON_PREFILL_TIER_IO_H_
#define BATON_COMMON_PREFILL_TIER_IO_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/backend/tensor.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"
#include "common/kv_store/segment_store.h"
#include "common/kv_store/segment_value.h"
#include "common/prefill/tier_metrics.h"

namespace baton::prefill {

// A prompt's consecutive segments. Immutable while it is worked on.
struct SegmentRange {
  std::vector<kv_store::SegmentKey> keys;  // one a segment, in order
  kv::PrefixKey root = 0;
  std::vector<int32_t> tokens;  // the prompt up to the end of the last segment
  int segment_tokens = 0;
  int first_token = 0;  // of the first segment

  int size() const { return static_cast<int>(keys.size()); }
};

// Segments that stores have, from the first on.
struct Located {
  int segments = 0;
  absl::Duration expected;  // that loading them takes, as far as it was measured lately
};

// The mean of the last durations. It is forgotten kForgetAfter the last one, so that a store that
// was slow is tried again. Thread-safe.
class TimeMean {
 public:
  static constexpr absl::Duration kForgetAfter = absl::Minutes(1);

  void Add(absl::Duration value, absl::Duration now);
  absl::Duration Get(absl::Duration now) const;  // zero: not known
  absl::Duration Last() const;                   // the forgotten one, too

 private:
  mutable absl::Mutex mutex_;
  absl::Duration mean_ ABSL_GUARDED_BY(mutex_);
  absl::Duration added_at_ ABSL_GUARDED_BY(mutex_);
};

// One load, shared by the loop and the thread that works on it.
class TierLoad {
 public:
  // `pages`: of the blocks of all segments, [table][block]. By `within` after the start, the first
  // segment should be there, and each further one `each` later: else computing is faster, and the
  // load ends.
  TierLoad(SegmentRange range, std::vector<int32_t> pages, absl::Duration within,
           absl::Duration each)
      : range(std::move(range)), pages(std::move(pages)), within(within), each(each) {}

  // The loop's: nothing is written to the blocks any more. False while a segment is being copied:
  // the end follows at once.
  bool TryAbandon();

  const SegmentRange range;
  const std::vector<int32_t> pages;
  const absl::Duration within, each;

 private:
  friend class TierIo;
  bool BeginCopy();
  void EndCopy();

  absl::Mutex mutex_;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool copying_ ABSL_GUARDED_BY(mutex_) = false;
};

class TierIo {
 public:
  struct Options {
    int load_threads = 2;
    int most_loads = 64;   // that wait
    int most_writes = 16;  // that wait
    absl::Duration put_deadline = absl::Seconds(5);
  };

  // All references must outlive it. `stores`: the fastest first.
  TierIo(const Options& options, std::vector<std::shared_ptr<kv_store::SegmentStore>> stores,
         const backend::KvPool& pool, const kv::KvLayout& layout, const Clock& clock,
         TierMetrics& metrics);
  // Waits for what is being worked on; drops what waits.
  ~TierIo();

  // The segments that the stores which need no I/O have.
  Located LocatedAtOnce(absl::Span<const kv_store::SegmentKey> keys);
  // Whether another store must be asked.
  bool asks() const { return asks_; }
  // How long a look-up takes that must ask; zero if that was not measured lately.
  absl::Duration LookUpTime() const { return look_up_time_.Get(clock_.SinceStart()); }

  // How long a segment takes from the stores that need no I/O to know what they have; zero: not
  // measured since the start.
  absl::Duration LoadTime() const { return local_load_time_.Last(); }

  // Call `done` from a thread: false, and it is not called, if too many wait.
  // What any of the stores has.
  bool LookUp(SegmentRange range, absl::Duration within, std::function<void(Located)> done);
  // How many segments were copied, from the first on.
  bool Load(std::shared_ptr<TierLoad> load, std::function<void(int)> done);
  // Writes one segment, whose blocks have these pages, to all stores that lack it. `copied` is
  // called when the blocks are no longer read, then `done`: whether each store has it.
  bool Write(SegmentRange segment, std::vector<int32_t> pages, std::function<void()> copied,
             std::function<void(bool)> done);

  // Whether a store that needs no I/O lacks it.
  bool LackedAtOnce(const kv_store::SegmentKey& key);
  bool probing() const { return probing_; }
  // What waits ends at once, and what is worked on at its next step.
  void Stop() { stopping_ = true; }
  void ReportUsage();

 private:
  using Task = std::function<void()>;

  Located Locate(absl::Span<const kv_store::SegmentKey> keys, bool ask, absl::Time deadline);
  // `late`: is set to a store that ran out of time.
  int RunLoad(TierLoad& load, std::optional<size_t>* late);
  // Copies one segment. False: no store has it in time.
  bool LoadSegment(TierLoad& load, int index, absl::Time deadline, std::optional<size_t>* late);
  // Reads a segment for which the load had no time, while its jobs go on, to learn how long it
  // takes: else a store that is slower than what a load may lose would be tried with every prompt.
  void Probe(const TierLoad& load, int index, size_t store);
  // A segment from this store took so long.
  void Took(size_t store, absl::Duration time);
  bool Copy(TierLoad& load, int index, absl::Span<const std::byte> kv);
  bool RunWrite(const SegmentRange& segment, const std::vector<int32_t>& pages,
                const std::function<void()>& copied);
  kv_store::Segment SegmentOf(const SegmentRange& range, int index) const;
  static void Work(BoundedQueue<Task>& queue);

  const Options options_;
  const std::vector<std::shared_ptr<kv_store::SegmentStore>> stores_;
  const bool asks_;
  const backend::KvPool& pool_;
  const kv::KvLayout layout_;
  const Clock& clock_;
  TierMetrics& metrics_;
  std::vector<TimeMean> load_times_;  // of a segment, by store
  TimeMean local_load_time_;
  TimeMean look_up_time_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> probing_ = false;
  BoundedQueue<Task> loads_;
  BoundedQueue<Task> writes_;
  std::vector<std::thread> threads_;
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_TIER_IO_H_
