// Which worker has which prefix cached: key -> set of workers.
// Bounded by the blocks that exist: a worker can never hold more keys than it has blocks.
#ifndef BATON_ROUTER_PREFIX_INDEX_H_
#define BATON_ROUTER_PREFIX_INDEX_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "common/kv/prefix_key.h"

namespace baton::router {

// Workers are small dense numbers. Unsynchronized: guarded by its owner.
class PrefixIndex {
 public:
  explicit PrefixIndex(int worker_count);

  // More workers, with no capacity yet. Never fewer.
  void Grow(int worker_count);

  // How many keys `worker` may hold. Dropping a worker keeps its capacity.
  void SetCapacity(int worker, int64_t key_count);

  // False, adding nothing, if the worker would hold more than its capacity. Adding twice is once.
  bool Add(int worker, absl::Span<const uint64_t> keys);
  // Keys that the worker does not hold are ignored.
  void Remove(int worker, absl::Span<const uint64_t> keys);
  void DropWorker(int worker);

  // How many keys of `chain`, from its start, the worker holds. Who holds a key of a chain holds
  // all before it (a radix tree evicts leaves only), hence a binary search.
  int MatchDepth(int worker, absl::Span<const kv::PrefixKey> chain) const;

  int64_t key_count(int worker) const;
  int64_t distinct_key_count() const { return static_cast<int64_t>(holders_.size()); }

 private:
  // Most prefixes sit on one or two workers.
  using WorkerSet = absl::InlinedVector<uint16_t, 4>;
  struct Worker {
    int64_t capacity = 0;
    absl::flat_hash_set<kv::PrefixKey> keys;  // so that dropping a worker costs its own keys only
  };

  bool Holds(int worker, kv::PrefixKey key) const;
  void Erase(int worker, kv::PrefixKey key);

  absl::flat_hash_map<kv::PrefixKey, WorkerSet> holders_;
  std::vector<Worker> workers_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PREFIX_INDEX_H_
