// Reads segments of prompts from KV stores into the pool and writes them from the pool, on threads
// beside the loop.
//
// With recurrent layers a segment's KV is of use only up to a state (segment_store.h): a load
// brings the KV of segments and the state behind the last one, or nothing.
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
#include "absl/functional/function_ref.h"
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
  int kv_begin = 0;     // the first segments whose KV needs no load; only a state behind them may
  bool state = false;   // with the state behind the last segment: the model has recurrent layers

  int size() const { return static_cast<int>(keys.size()); }
};

// Segments that stores have, from the first on; of recurrent models, up to a state.
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
  // `pages`: of the blocks of the segments from kv_begin on, [table][block]; `state_pages`: of the
  // block with the state, [table]. By `within` after the start, the first segment should be there,
  // and each further one `each` later: else computing is faster, and the load ends. With a state,
  // all of it should be there by `within`.
  TierLoad(SegmentRange range, std::vector<int32_t> pages, std::vector<int32_t> state_pages,
           absl::Duration within, absl::Duration each)
      : range(std::move(range)),
        pages(std::move(pages)),
        state_pages(std::move(state_pages)),
        within(within),
        each(each) {}

  // The loop's: nothing is written to the blocks any more. False while a segment is being copied:
  // the end follows at once.
  bool TryAbandon();

  const SegmentRange range;
  const std::vector<int32_t> pages, state_pages;
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

  // The bytes of a state, in those of a segment without its tokens: what loads are priced by.
  static double StateSegments(const kv::KvLayout& layout, int segment_tokens);

  // The segments that the stores which need no I/O have.
  Located LocatedAtOnce(const SegmentRange& range);
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
  // How many segments were copied, from the first on; with a state, all of them or none.
  bool Load(std::shared_ptr<TierLoad> load, std::function<void(int)> done);
  // Writes one segment, whose blocks have these pages, to all stores that lack it; of a range with
  // a state, only that, whose block has these pages. `copied` is called when the blocks are no
  // longer read, then `done`: whether each store has it.
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
  // A value that a store did not read in time.
  struct Late {
    size_t store = 0;
    int index = 0;
  };

  Located Locate(const SegmentRange& range, bool ask, absl::Time deadline);
  // Ends what was found at the last state that a store has. `times`: of the segments' loads.
  Located EndAtState(const SegmentRange& range, int found, absl::Span<const absl::Duration> times,
                     bool ask, absl::Time deadline);
  // `late`: is set to a store that ran out of time.
  int RunLoad(TierLoad& load, std::optional<Late>* late);
  // Copies one value. False: no store has it in time.
  bool LoadValue(TierLoad& load, int index, absl::Time deadline, std::optional<Late>* late);
  // Reads a value for which the load had no time, while its jobs go on, to learn how long it
  // takes: else a store that is slower than what a load may lose would be tried with every prompt.
  void Probe(const TierLoad& load, const Late& late);
  // A value from this store took so long.
  void Took(size_t store, const kv_store::Segment& segment, absl::Duration time);
  // Puts a value that was loaded into a faster store, if that needs no network.
  void Promote(size_t store, const kv_store::SegmentKey& key, const kv_store::SegmentBytes& value);
  bool Copy(TierLoad& load, int index, absl::Span<const std::byte> kv);
  // The value's chunks, in its order, in the blocks [begin, begin + blocks) of those with these
  // pages, [table][block].
  void ForEachLayer(
      const kv_store::Segment& segment, absl::Span<const int32_t> pages, int begin, int blocks,
      absl::FunctionRef<void(int slot, absl::Span<const int32_t> of_layer)> visit) const;
  bool RunWrite(const SegmentRange& segment, const std::vector<int32_t>& pages,
                const std::function<void()>& copied);
  // A range's values: its segments, then its state.
  kv_store::Segment ValueOf(const SegmentRange& range, int index) const;
  static kv_store::SegmentKey KeyOf(const SegmentRange& range, int index);
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
  std::atomic<int> promotions_ = 0;  // that wait in writes_ or are worked on
  BoundedQueue<Task> loads_;
  BoundedQueue<Task> writes_;
  std::vector<std::thread> threads_;
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_TIER_IO_H_
