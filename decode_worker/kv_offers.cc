#include "decode_worker/kv_offers.h"

#include <utility>

#include "common/base/log.h"
#include "common/transfer/checksum.h"
#include "common/transfer/kv_receiver.h"

namespace baton::decode_worker {
namespace {

using internal::v1::OfferKvResponse;

worker::OfferResult ResultOf(const absl::StatusOr<OfferKvResponse::Result>& answer) {
  if (!answer.ok()) {
    return transfer::AbortReasonOf(answer.status()) == transfer::AbortReason::kRefused
               ? worker::OfferResult::kRefused
               : worker::OfferResult::kFailed;
  }
  switch (*answer) {
    case OfferKvResponse::RESULT_TAKEN:
      return worker::OfferResult::kTaken;
    case OfferKvResponse::RESULT_CACHED:
      return worker::OfferResult::kCached;
    case OfferKvResponse::RESULT_BUSY:
      return worker::OfferResult::kBusy;
    default:
      return worker::OfferResult::kFailed;
  }
}

}  // namespace

KvOffers::KvOffers(const KvOffersOptions& options, const engine::Engine& engine, const Clock& clock,
                   worker::KvExchangeMetrics& metrics, std::shared_ptr<Mailbox> mailbox)
    : options_(options),
      engine_(engine),
      clock_(clock),
      metrics_(metrics),
      mailbox_(std::move(mailbox)) {}

void KvOffers::Ended(const Sequence& sequence) {
  const Call& call = *sequence.call;
  if (options_.start == nullptr || self_.address().empty() || call.prefill.address.empty() ||
      call.n > 1 || call.beams != nullptr) {
    return;
  }
  const int block_tokens = engine_.kv_layout().block_tokens;
  const int blocks = sequence.computed_tokens / block_tokens;
  if (blocks <= call.request_tokens / block_tokens) return;
  if (static_cast<int>(open_.size()) >= options_.max_unanswered) {
    metrics_.Offered(worker::OfferResult::kDropped);
    return;
  }
  internal::v1::OfferKvRequest request;
  request.set_request_id(call.request_id);
  request.set_model_fingerprint(engine_.config().fingerprint);
  request.set_kv_layout_fingerprint(engine_.kv_layout().Fingerprint());
  request.set_receiver_epoch(call.prefill.epoch);
  *request.mutable_holder() = self_;
  request.set_cache_salt(call.cache_salt);
  const auto begin = sequence.tokens.begin();
  request.mutable_tokens()->Add(begin, begin + static_cast<std::ptrdiff_t>(blocks) * block_tokens);
  request.set_checksum(transfer::RequestChecksum(request));
  const uint64_t id = ++last_;
  open_.emplace(id, options_.start(call.prefill.address, request, clock_.Now() + kAnswerTime,
                                   [this, id, mailbox = mailbox_](auto answer) {
                                     mailbox->Post([this, id, answer] { OnAnswer(id, answer); });
                                   }));
}

void KvOffers::OnAnswer(uint64_t id, const absl::StatusOr<OfferKvResponse::Result>& answer) {
  open_.erase(id);
  metrics_.Offered(ResultOf(answer));
  if (!answer.ok()) BATON_LOG(Info) << "offer of cached KV failed: " << answer.status();
}

void KvOffers::CancelAll() {
  for (const auto& [id, call] : open_) call->Cancel();
}

}  // namespace baton::decode_worker
