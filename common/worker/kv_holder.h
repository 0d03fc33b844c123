// The holder's side of FetchKv: pins what a worker's prefix cache has of a prefix, and sends it.
//
// A fetch pins its blocks until the last byte that points into them has left, or its call has
// ended: no timer, and nothing to release. All fetches together pin at most a share of the pool, so
// that the worker's own sequences go on; a decode worker whose last sequence needs a block that is
// pinned waits for the fetch (DecodeScheduler). The callers' deadlines bound that wait; a call must
// have one of at most kMostTime.
#ifndef BATON_COMMON_WORKER_KV_HOLDER_H_
#define BATON_COMMON_WORKER_KV_HOLDER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/kv/kv_layout.h"
#include "common/kv/radix_cache.h"
#include "common/transfer/kv_sender.h"
#include "common/worker/kv_exchange_metrics.h"
#include "common/worker/mid_step_mailbox.h"

namespace baton::worker {

// A checked FetchKvRequest.
struct KvFetch {
  kv::PrefixKey root = 0;
  std::vector<int32_t> tokens;  // whole blocks
  int first_block = 0;
  std::shared_ptr<transfer::KvSender> sender;
};

struct KvHolderOptions {
  bool enabled = false;
  int max_fetches = 8;             // whose calls are open
  double max_pinned_share = 0.25;  // of the pool
};

// Enter and Submit are thread-safe; the rest is for the loop that owns pool and cache.
class KvHolder {
 public:
  static constexpr absl::Duration kMostTime = absl::Seconds(15);

  // `cache` may be null. The mailbox is the loop's: fetches are served, and their blocks given
  // back, while a step runs. All references must outlive it.
  KvHolder(const KvHolderOptions& options, const kv::KvLayout& layout, kv::BlockPool& pool,
           kv::RadixCache* cache, std::shared_ptr<MidStepMailbox> mid_step,
           KvExchangeMetrics& metrics);

  // A place among the fetches, until the last copy of the token is destroyed: the call keeps it.
  // FAILED_PRECONDITION (KV_FETCH_OFF) or RESOURCE_EXHAUSTED (KV_FETCH_LIMIT).
  absl::StatusOr<std::shared_ptr<void>> Enter();
  // The fetch's sender gets the KV, or a status: UNAVAILABLE (DRAINING), RESOURCE_EXHAUSTED
  // (KV_FETCH_LIMIT) if others pin all blocks of the share.
  void Submit(KvFetch fetch);

  // While draining, refuses fetches.
  void SetDraining(bool draining) { draining_ = draining; }
  // Pages that cannot be evicted because of fetches; those of several fetches count for each.
  int pinned_pages() const { return pinned_pages_; }
  // Gives all blocks back, at the end of the loop: nothing writes to them any more, and frames in
  // gRPC's buffers read memory that the engine owns.
  void ReleaseAll();

 private:
  void Serve(const KvFetch& fetch);
  void Release(uint64_t number);

  const KvHolderOptions options_;
  const kv::KvLayout layout_;
  kv::RadixCache* const cache_;
  const int most_pinned_;
  const std::shared_ptr<MidStepMailbox> mid_step_;
  KvExchangeMetrics& metrics_;
  const std::shared_ptr<std::atomic<int>> entered_ = std::make_shared<std::atomic<int>>(0);
  absl::flat_hash_map<uint64_t, kv::BlockLease> pinned_;  // by a number of the fetch
  int pinned_pages_ = 0;
  uint64_t last_ = 0;
  bool draining_ = false;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_KV_HOLDER_H_
