// Which worker has which prefix cached: key -> set of workers.
//
// A flat table of 12-byte slots, in segments that grow one at a time, so that no insertion waits
// for the whole table to be moved. A worker's keys are not listed anywhere else: a dropped worker
// gets another number inside the table, entries under the old number count no more, and later
// changes sweep them away a segment at a time. Bounded: a worker holds at most as many keys as it
// has blocks.
#ifndef BATON_ROUTER_PREFIX_INDEX_PREFIX_INDEX_H_
#define BATON_ROUTER_PREFIX_INDEX_PREFIX_INDEX_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/kv/prefix_key.h"
#include "router/prefix_index/holder_sets.h"
#include "router/prefix_index/key_table.h"

namespace baton::router {

// The keys of a prompt's blocks, in order, or of a long prompt some of them: the first kDense, and
// then each stride-th. They are numbered from 0; the same ones of all chains, or prompts of
// different lengths would not find each other.
class KeyChain {
 public:
  static constexpr int kDense = 32;

  KeyChain(absl::Span<const kv::PrefixKey> blocks, int stride = 1)  // NOLINT: all, as they are
      : blocks_(blocks), stride_(stride) {}
  KeyChain(const std::vector<kv::PrefixKey>& blocks)  // NOLINT: as a span is made of a vector
      : KeyChain(absl::MakeConstSpan(blocks)) {}

  int size() const { return KeysOf(static_cast<int>(blocks_.size())); }
  kv::PrefixKey operator[](int i) const { return blocks_[static_cast<size_t>(DepthOf(i + 1)) - 1]; }
  // The number of blocks up to that of the last of so many keys, and how many of its first keys
  // are those of so many blocks.
  int DepthOf(int keys) const { return keys <= kDense ? keys : kDense + (keys - kDense) * stride_; }
  int KeysOf(int depth) const {
    return depth <= kDense ? depth : kDense + (depth - kDense) / stride_;
  }

 private:
  absl::Span<const kv::PrefixKey> blocks_;
  int stride_;
};

// Workers are small dense numbers below kMaxWorkers. Thread-safe: matches run side by side; changes
// hold the lock for a few keys at a time.
class PrefixIndex {
 public:
  static constexpr int kMaxWorkers = 16'000;

  explicit PrefixIndex(int worker_count = 0);

  // More workers, with no capacity yet. Never fewer.
  void Grow(int worker_count);

  // How many keys `worker` may hold, 0 before. Dropping a worker keeps its capacity.
  void SetCapacity(int worker, int64_t key_count);

  // False, adding nothing, if the worker would hold more than its capacity. Adding twice is once;
  // `fresh`, if given, gets those that it did not hold before. Changes to one worker must not run
  // at the same time.
  bool Add(int worker, absl::Span<const uint64_t> keys, std::vector<uint64_t>* fresh = nullptr);
  // Keys that the worker does not hold are ignored.
  void Remove(int worker, absl::Span<const uint64_t> keys);
  // Drops all keys of the worker at once, in constant time, and shows it if it was hidden.
  void DropWorker(int worker);
  // While its snapshot arrives, in any order of keys: a hidden worker is in no match. A part of a
  // chain without its beginning would break the nesting that Match relies on.
  void Hide(int worker);
  void Show(int worker);

  // How many blocks of `chain`, from its start, each worker holds, as far as its keys tell: resizes
  // *depths to the number of workers and raises (*depths)[worker] to it. A worker that holds a key
  // of a chain holds all keys before it (a radix tree evicts leaves only). So the holders of the
  // keys are nested sets, and two keys with equally many holders have the same: the chain is
  // bisected where the number changes, and the cost depends on the number of different depths, not
  // of workers. With more than kMaxProbes look-ups to make, the depths are lower bounds.
  // `likely`: depths where the number may change; they are looked at first. `*found`, if given,
  // gets those where it does.
  void Match(const KeyChain& chain, std::vector<int>* depths, absl::Span<const int> likely = {},
             std::vector<int>* found = nullptr) const;
  // Lowers (*depths)[worker] to the depth of the last of its blocks before that with a snapshot
  // (kv::SnapshotKey), where a model's state can be gone on from; 0: there is none. O(depth).
  void LimitToSnapshots(absl::Span<const kv::PrefixKey> chain, std::vector<int>* depths) const {
    LimitTo(
        chain.size(), [&chain](size_t i) { return kv::SnapshotKey(chain[i]); }, depths);
  }
  // The same for any keys: `key_of(i)` names what must be there for a depth of i + 1.
  void LimitTo(size_t most, absl::FunctionRef<kv::PrefixKey(size_t)> key_of,
               std::vector<int>* depths) const;
  // Match for one worker.
  int MatchDepth(int worker, absl::Span<const kv::PrefixKey> chain) const;

  int64_t key_count(int worker) const;
  // Includes keys of dropped workers that are not swept yet.
  int64_t distinct_key_count() const;
  int64_t memory_bytes() const;
  // Sweeps so many segments for keys of dropped workers. For a thread that has time.
  void Sweep(int segments);
  bool swept() const;

  static constexpr int kMaxProbes = 512;

 private:
  using Set = HolderSets::Set;
  struct Worker {
    int member = -1;  // its number in the sets; none until it holds something
    int64_t capacity = 0;
    int64_t keys = 0;
    bool hidden = false;
  };
  struct Probe {
    int position;
    Set set;
    int count;  // of live members
  };

  bool HasRoom(int worker, absl::Span<const uint64_t> keys) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddSome(int worker, absl::Span<const uint64_t> keys, std::vector<uint64_t>* fresh)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveSome(int worker, absl::Span<const uint64_t> keys)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowMember(int worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int TakeMember(int worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SweepSome(int segments) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int LiveCount(Set set) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Look(const KeyChain& chain, absl::Span<Probe> probes) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  KeyTable table_ ABSL_GUARDED_BY(mutex_);
  HolderSets sets_ ABSL_GUARDED_BY(mutex_);
  std::vector<Worker> workers_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> owners_ ABSL_GUARDED_BY(mutex_);  // member -> worker; kFree, …
  std::vector<int> free_members_ ABSL_GUARDED_BY(mutex_);
  // Dead members, and those of them that the sweep under way began with: only these are free when
  // it ends.
  int dead_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int hidden_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int> sweeping_ ABSL_GUARDED_BY(mutex_);
  int sweep_at_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PREFIX_INDEX_PREFIX_INDEX_H_
