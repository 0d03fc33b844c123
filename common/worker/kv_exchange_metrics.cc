#include "common/worker/kv_exchange_metrics.h"

#include "common/telemetry/buckets.h"
#include "common/transfer/kv_receiver.h"

namespace baton::worker {
namespace {

const char* Name(FetchResult result) {
  switch (result) {
    case FetchResult::kFetched:
      return "fetched";
    case FetchResult::kPartial:
      return "partial";
    case FetchResult::kRefused:
      return "refused";
    case FetchResult::kFailed:
      break;
  }
  return "failed";
}

const char* Name(OfferResult result) {
  switch (result) {
    case OfferResult::kTaken:
      return "taken";
    case OfferResult::kCached:
      return "cached";
    case OfferResult::kBusy:
      return "busy";
    case OfferResult::kRefused:
      return "refused";
    case OfferResult::kDropped:
      return "dropped";
    case OfferResult::kFailed:
      break;
  }
  return "failed";
}

}  // namespace

FetchResult FetchResultOf(const absl::Status& status) {
  return transfer::AbortReasonOf(status) == transfer::AbortReason::kRefused ? FetchResult::kRefused
                                                                            : FetchResult::kFailed;
}

KvExchangeMetrics::KvExchangeMetrics(telemetry::MetricSet& set)
    : fetches_(set.Counters(
          "baton_kv_fetches_total",
          "Fetches of cached KV that this worker received or sent. partial: fewer blocks than "
          "requested, or none; failed: also those that were cancelled with their request.",
          {{"direction", {"received", "sent"}},
           {"result", {"fetched", "partial", "refused", "failed"}}})),
      bytes_(set.Counters("baton_kv_fetch_bytes_total", "KV payload of fetches.",
                          {{"direction", {"received", "sent"}}})),
      bytes_sent_(bytes_.With({"sent"})),
      bytes_received_(bytes_.With({"received"})),
      duration_(set.Histogram("baton_kv_fetch_duration_seconds",
                              "A fetch that this worker received, from its request to its end.",
                              telemetry::kTransferSecondsBuckets)),
      offers_(set.Counters(
          "baton_kv_offers_total",
          "Offers of an answer's KV that this worker made or got. "
          "cached: all of it was there; busy: no room, or more urgent work; dropped: not sent, as "
          "too many were unanswered.",
          {{"result", {"taken", "cached", "busy", "refused", "failed", "dropped"}}})) {}

void KvExchangeMetrics::Received(FetchResult result, int64_t bytes, absl::Duration took) {
  fetches_.With({"received", Name(result)}).Increment();
  bytes_received_.Increment(static_cast<double>(bytes));
  duration_.Observe(absl::ToDoubleSeconds(took));
}

void KvExchangeMetrics::Served(FetchResult result) {
  fetches_.With({"sent", Name(result)}).Increment();
}

void KvExchangeMetrics::Offered(OfferResult result) { offers_.With({Name(result)}).Increment(); }

}  // namespace baton::worker
