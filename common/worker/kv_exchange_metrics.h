// What both workers measure of KvService: fetches of cached KV, and offers of it.
#ifndef BATON_COMMON_WORKER_KV_EXCHANGE_METRICS_H_
#define BATON_COMMON_WORKER_KV_EXCHANGE_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/histogram.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/telemetry/metric_set.h"

namespace baton::worker {

enum class FetchResult {
  kFetched,
  kPartial,  // fewer blocks than requested, or none
  kRefused,  // by the holder, which is well
  kFailed,
};
// The result of a fetch that failed at the receiver.
FetchResult FetchResultOf(const absl::Status& status);

enum class OfferResult {
  kTaken,
  kCached,   // the receiver has all of the blocks
  kBusy,     // the receiver has no room, or something more urgent to do
  kRefused,  // it does not match the worker, or the worker takes no offers
  kFailed,   // no answer came
  kDropped,  // not sent: too many are unanswered
};

// Thread-safe, the constructor excepted.
class KvExchangeMetrics {
 public:
  explicit KvExchangeMetrics(telemetry::MetricSet& set);

  // This worker's own fetch has ended.
  void Received(FetchResult result, int64_t bytes, absl::Duration took);
  // This worker, as the holder, has answered a fetch.
  void Served(FetchResult result);
  void BytesSent(int64_t bytes) { bytes_sent_.Increment(static_cast<double>(bytes)); }
  void Offered(OfferResult result);

 private:
  telemetry::Family<prometheus::Counter> fetches_;
  telemetry::Family<prometheus::Counter> bytes_;
  prometheus::Counter& bytes_sent_;
  prometheus::Counter& bytes_received_;
  prometheus::Histogram& duration_;
  telemetry::Family<prometheus::Counter> offers_;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_KV_EXCHANGE_METRICS_H_
