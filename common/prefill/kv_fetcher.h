// Fetches cached KV of prompts from other workers instead of computing it.
//
// A prompt of which the router names a holder that has more than this worker may wait for a fetch
// while other prompts are computed: it holds no blocks and is in no step. The fetch reserves blocks
// (held), and what comes goes into the prefix cache, where the prompt, like all others, finds it
// when it starts. Whatever fails, what is missing is computed. Prompts whose next missing block is
// on its way already wait for the same fetch.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_COMMON_PREFILL_KV_FETCHER_H_
#define BATON_COMMON_PREFILL_KV_FETCHER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "baton/internal/v1/kv.pb.h"
#include "common/base/clock.h"
#include "common/base/mailbox.h"
#include "common/engine/engine.h"
#include "common/kv/fetch_rule.h"
#include "common/kv/radix_cache.h"
#include "common/prefill/prompt.h"
#include "common/transfer/peer_channels.h"
#include "common/transfer/prefill_call.h"
#include "common/worker/kv_exchange_metrics.h"
#include "common/worker/kv_service.h"
#include "common/worker/step_cost.h"

namespace baton::prefill {

// Opens a FetchKv call; PrefillCall::StartFetch over a cached channel, or a fake.
using StartFetch = std::function<std::shared_ptr<transfer::PrefillCall>(
    const std::string& address, const internal::v1::FetchKvRequest& request, absl::Time deadline,
    transfer::TransferPlan plan, transfer::PrefillEvents events)>;

// `peers` must outlive what it opens.
StartFetch FetchOver(transfer::PeerChannels& peers);

struct KvFetcherOptions {
  StartFetch start;                          // null: nothing is fetched
  std::string worker_id;                     // this worker's
  int min_blocks = kv::kLeastFetchedBlocks;  // a fetch for a prompt has at least so many
  int max_fetches = 8;                       // at once, those of offers included
  int max_offer_fetches = 2;
  double max_reserved_share = kv::kMostFetchedShare;  // of the pool, for all fetches together
  double default_bytes_per_second = 500e6;            // of a holder that was not measured
  const Clock* awake =
      nullptr;  // an AwakeClock, so that no pause of this process is a holder's fault
};

class KvFetcher {
 public:
  // A fetch has a deadline of four times the time that its bytes should take and kLeastTime, at
  // most kMostTime.
  static constexpr absl::Duration kLeastTime = absl::Seconds(1);
  static constexpr absl::Duration kMostTime = absl::Seconds(10);
  // After a failed fetch, nothing is fetched from that holder for so long, unless this process was
  // paused during the fetch.
  static constexpr absl::Duration kPause = absl::Seconds(5);

  // `cache` may be null: nothing is fetched. All references must outlive it.
  KvFetcher(const KvFetcherOptions& options, const engine::Engine& engine, kv::BlockPool& pool,
            kv::RadixCache* cache, const Clock& clock, worker::KvExchangeMetrics& metrics,
            std::shared_ptr<Mailbox> mailbox);

  // For a prompt that waits: starts a fetch if by `cost` that is sooner done than computing, or
  // lets the prompt wait for one that brings its blocks. Sets prompt.fetching until the fetch has
  // ended. The prompt must stay where it is until then, or Leave.
  void Consider(Prompt& prompt, const worker::StepCost& cost, int max_tokens_per_step);
  // The prompt waits no more. A fetch that no prompt waits for is cancelled.
  void Leave(Prompt& prompt);
  // Answers an offer. `busy`: the worker has more urgent work.
  internal::v1::OfferKvResponse::Result TakeOffer(const worker::KvOffer& offer, bool busy);

  // Work waits: what offers have begun makes way.
  void CancelOffers();
  // For the end of the loop, which must then handle its mailbox until no call is open.
  void CancelAll();
  // Pages that are held for what comes.
  int64_t reserved_pages() const;
  // No call is left that a gRPC thread may report from, or write by.
  bool idle() const { return fetches_.empty() && open_calls_.empty(); }

 private:
  struct Fetch {
    std::string request_id;
    internal::v1::WorkerRef holder;
    kv::PrefixKey root = 0;
    std::vector<int32_t> tokens;  // whole blocks
    int first_block = 0;
    kv::BlockLease blocks;  // from the prompt's start; those from first_block on are written
    int64_t reserved_pages = 0;
    std::vector<Prompt*> prompts;
    bool of_offer = false;
    bool cancelled = false;
    absl::Duration began;
    absl::Duration awake_began;  // when it began, by the clock of the options
    std::shared_ptr<transfer::PrefillCall> call;
    int missing() const { return blocks.size() - first_block; }
  };
  // What is known of a holder.
  struct Holder {
    double bytes_per_second = 0;  // 0: not measured
    absl::Duration paused_until;
    absl::Duration used_at;
  };
  struct Wish {
    const std::string& request_id;
    const internal::v1::WorkerRef& holder;
    const std::string& cache_salt;
    kv::PrefixKey root;
    absl::Span<const int32_t> tokens;  // whole blocks
    int first_block;                   // those before it are cached
    absl::Time deadline;
    TraceContext trace;
  };

  double ExpectedSeconds(const Holder& holder, int first_block, int end) const;
  Holder& HolderOf(const internal::v1::WorkerRef& worker);
  // Null if there are no blocks or no place for it.
  Fetch* Begin(const Wish& wish);
  bool PausedDuring(const Fetch& fetch) const;
  // Cancels the call unless that has been done.
  static void Cancel(Fetch& fetch);
  void OnEnd(uint64_t id, const absl::Status& status, const transfer::TransferSummary& summary);

  const KvFetcherOptions options_;
  const engine::Engine& engine_;
  kv::BlockPool& pool_;
  kv::RadixCache* const cache_;
  const Clock& clock_;
  worker::KvExchangeMetrics& metrics_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::map<uint64_t, Fetch> fetches_;
  // Calls whose stream is not over, by the fetch's number: this thread drops the last reference.
  std::map<uint64_t, std::shared_ptr<transfer::PrefillCall>> open_calls_;
  std::map<std::string, Holder> holders_;  // by id; bounded
  uint64_t last_ = 0;
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_KV_FETCHER_H_
