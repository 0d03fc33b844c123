// Write-back: offers the KV of finished answers to the prefill workers that computed their prompts,
// so that the next turn of a conversation finds it there. The blocks stay in this worker's prefix
// cache, where they may be evicted: an offer pins nothing.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_KV_OFFERS_H_
#define BATON_DECODE_WORKER_KV_OFFERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "baton/internal/v1/kv.pb.h"
#include "common/base/clock.h"
#include "common/base/mailbox.h"
#include "common/engine/engine.h"
#include "common/transfer/offer_call.h"
#include "common/worker/kv_exchange_metrics.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

// Opens an OfferKv call; OfferCall::Start over a cached channel, or a fake.
using StartOffer = std::function<std::shared_ptr<transfer::OfferCall>(
    const std::string& address, const internal::v1::OfferKvRequest& request, absl::Time deadline,
    transfer::OfferCall::OnAnswer on_answer)>;

struct KvOffersOptions {
  StartOffer start;        // null: nothing is offered
  int max_unanswered = 4;  // more offers are dropped
};

class KvOffers {
 public:
  static constexpr absl::Duration kAnswerTime = absl::Seconds(2);

  KvOffers(const KvOffersOptions& options, const engine::Engine& engine, const Clock& clock,
           worker::KvExchangeMetrics& metrics, std::shared_ptr<Mailbox> mailbox);

  // Where prefill workers fetch what is offered: this worker. Before this call nothing is offered.
  void SetSelf(internal::v1::WorkerRef self) { self_ = std::move(self); }

  // `sequence` has answered its call and is still there; what it computed will be in the prefix
  // cache when the offer's receiver asks for it. Calls with several choices or beams are not
  // offered, nor answers that end in the block in which the prompt ends.
  void Ended(const Sequence& sequence);

  // For the end of the loop, which must then handle its mailbox until no call is open.
  void CancelAll();
  bool idle() const { return open_.empty(); }

 private:
  void OnAnswer(uint64_t id, const absl::StatusOr<internal::v1::OfferKvResponse::Result>& answer);

  const KvOffersOptions options_;
  const engine::Engine& engine_;
  const Clock& clock_;
  worker::KvExchangeMetrics& metrics_;
  const std::shared_ptr<Mailbox> mailbox_;
  internal::v1::WorkerRef self_;
  std::map<uint64_t, std::shared_ptr<transfer::OfferCall>> open_;
  uint64_t last_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_KV_OFFERS_H_
