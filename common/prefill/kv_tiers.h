// KV tiers: places outside the pool (host memory, files, Redis) that keep segments of prompts, so
// that KV outlives its eviction from the pool and the worker itself.
//
// Loads. A prompt of which the tiers have more than the prefix cache may wait for a load while
// other prompts are computed, as for a fetch (kv_fetcher.h): what comes goes into the prefix cache.
// A load begins only if it is expected to take kv::kMostLoadShare of computing at most, and ends as
// soon as it has taken kMostLost of the whole computation longer than what it has brought, or, if
// that is more, twice what a segment took lately: so tiers of any speed cost a prompt at most
// kMostLost, and one that suddenly slows down the computation of a segment. Whatever fails, what is
// missing is computed.
//
// Writes. A segment is stored when it has been used twice (SGLang HiCache's
// write-through-selective): what is seen once is not written. A use counts for all segments before
// it, so that a stored segment's predecessors are stored too.
//
// States. A recurrent model's segments are of use up to one with a state (segment_store.h), which
// is stored as a segment is where the prefix cache has a snapshot at the segment's end. A load
// brings what the cache lacks of the KV before the last state, and that state; it brings all of it
// or nothing, so the bound on what may be lost is on the whole load.
//
// Routers learn which segments the host and file tiers have, and how long a load takes
// (tier_listing.h), and price loads by that.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_COMMON_PREFILL_KV_TIERS_H_
#define BATON_COMMON_PREFILL_KV_TIERS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mailbox.h"
#include "common/engine/engine.h"
#include "common/kv/fetch_rule.h"
#include "common/kv/radix_cache.h"
#include "common/kv_store/segment_store.h"
#include "common/prefill/prompt.h"
#include "common/prefill/tier_io.h"
#include "common/prefill/tier_listing.h"
#include "common/prefill/tier_metrics.h"
#include "common/worker/cache_journal.h"
#include "common/worker/step_cost.h"

namespace baton::prefill {

struct KvTiersOptions {
  // The fastest first; empty: there are no tiers.
  std::vector<std::shared_ptr<kv_store::SegmentStore>> stores;
  int segment_tokens = 128;  // whole blocks
  int least_uses = 2;        // of a segment, before it is stored
  int max_loads = 8;         // at once
  // The shares of the pool's blocks for all loads together, and for all writes that have not been
  // copied.
  double max_reserved_share = kv::kMostFetchedShare;
  double max_pinned_share = 0.1;
  int max_pending = 4096;  // segments that wait to be written
  int64_t max_listed = 0;  // segments that are reported to routers; 0: none
  TierIo::Options io;

  // 0: there are no tiers.
  int segment_blocks(int block_tokens) const {
    return stores.empty() ? 0 : segment_tokens / block_tokens;
  }
};

class KvTiers {
 public:
  // A load may lose at most this share of the time that computing the prompt takes.
  static constexpr double kMostLost = 0.05;
  // Before the worker has measured its steps: how long each segment may take.
  static constexpr absl::Duration kUnmeasured = absl::Seconds(1);
  // After the deadlines that stores have, before a store is taken to hang.
  static constexpr absl::Duration kGrace = absl::Milliseconds(250);
  // Segments whose uses are counted.
  static constexpr size_t kMostCounted = 1 << 16;

  // `cache` may be null: there are no tiers. All references must outlive it.
  KvTiers(const KvTiersOptions& options, const engine::Engine& engine, kv::BlockPool& pool,
          kv::RadixCache* cache, const Clock& clock, TierMetrics& metrics,
          worker::CacheJournal& journal, std::shared_ptr<Mailbox> mailbox);

  // For a prompt that waits: looks it up, or lets it wait for a load of the same prefix. Sets
  // prompt.fetching until that has ended. Calls `or_else`, at once or later, if the tiers have
  // nothing that is worth a load. The prompt must stay where it is until then, or Leave.
  void Consider(Prompt& prompt, const worker::StepCost& cost, int max_tokens_per_step,
                std::function<void(Prompt&)> or_else);
  // The prompt waits no more.
  void Leave(Prompt& prompt);
  // The prompt's KV is in the prefix cache: counts a use of its segments, and stores those that are
  // due.
  void Used(const Prompt& prompt);

  // Gives up loads whose stores do not return in time. To be called at least once a second while
  // prompts wait.
  void Tick();
  // For the end of the loop, which must then handle its mailbox until idle().
  void CancelAll();
  // The time to load a segment of the tiers that are reported to routers; zero: not measured.
  absl::Duration load_time() const {
    return listing_ == nullptr ? absl::ZeroDuration() : io_->LoadTime();
  }
  bool idle() const {
    return entries_.empty() && orphans_ == 0 && writes_.empty() && pending_.empty();
  }
  // Pages that are held for loads, and for writes that have not been copied.
  int64_t reserved_pages() const { return loading_pages() + pinned_pages_; }
  // A store that was too slow is being measured.
  bool probing() const { return io_ != nullptr && io_->probing(); }
  void ReportUsage() {
    if (io_ != nullptr) io_->ReportUsage();
  }

 private:
  // A look-up, then a load.
  struct Entry {
    SegmentRange range;
    absl::Duration computing;  // of the whole range; zero: not known
    std::vector<Prompt*> prompts;
    std::function<void(Prompt&)> or_else;
    absl::Duration began_at;
    absl::Duration give_up_at;
    std::shared_ptr<TierLoad> load;  // null while it is looked up
    kv::BlockLease blocks;           // from the prompt's start
  };
  struct Use {
    int count = 0;
    bool stored = false;
    bool pending = false;  // on the way there
    std::list<kv::PrefixKey>::iterator recent;
  };

  // A prompt whose segments are written.
  struct Stored {
    kv::PrefixKey root = 0;
    std::vector<int32_t> tokens;      // whole segments
    std::vector<kv::PrefixKey> keys;  // one a block
  };
  struct PendingWrite {
    std::shared_ptr<const Stored> prompt;
    int segment = 0;
    bool state = false;  // the state behind the segment instead of its KV
  };

  int64_t loading_pages() const;
  // Segments [first, end) of a prompt.
  SegmentRange RangeOf(kv::PrefixKey root, absl::Span<const int32_t> tokens,
                       absl::Span<const kv::PrefixKey> keys, int first, int end) const;
  void OnLookedUp(uint64_t id, const Located& found);
  void Begin(uint64_t id, Entry& entry, const Located& found);
  // Reserves the blocks of the entry's range; false: there is no room, or the prefix cache is not
  // what it was when the look-up began.
  bool Reserve(Entry& entry);
  // The first block that a load of the range writes KV to.
  int FirstLoaded(const SegmentRange& range) const;
  void OnLoaded(uint64_t id, int loaded);
  // The prompts go on, with or_else if nothing has come.
  void Release(uint64_t id, TierLookup result, bool or_else);
  // Begins the writes that there is room for.
  void WritePending();
  // False: too many are being written.
  bool Write(const PendingWrite& pending);
  // Queues the write of a value that was used often enough and that some store may lack. False: it
  // was not used often enough, or the queue is full.
  bool WriteIfDue(const kv_store::SegmentKey& key, PendingWrite pending);
  void NotStored(kv::PrefixKey key);
  Use& UseOf(kv::PrefixKey key);

  const KvTiersOptions options_;
  const engine::Engine& engine_;
  kv::BlockPool& pool_;
  kv::RadixCache* const cache_;
  const Clock& clock_;
  TierMetrics& metrics_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::map<uint64_t, Entry> entries_;
  int orphans_ = 0;  // calls of threads whose entry is gone
  std::deque<PendingWrite> pending_;
  std::map<uint64_t, kv::BlockLease> writes_;  // the blocks until they are copied, then none
  int pinned_pages_ = 0;                       // of writes_
  std::list<kv::PrefixKey> recent_;            // keys of uses_, the most recently used first
  absl::flat_hash_map<kv::PrefixKey, Use> uses_;
  uint64_t last_ = 0;
  // Stores may outlive it: they refer to it weakly.
  std::shared_ptr<TierListing> listing_;  // null: nothing is reported
  std::unique_ptr<TierIo> io_;  // null: no tiers. Destroyed first: its threads post to the mailbox
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_KV_TIERS_H_
