// The metrics of the export of traces.
#ifndef BATON_COMMON_TELEMETRY_TRACE_COUNTERS_H_
#define BATON_COMMON_TELEMETRY_TRACE_COUNTERS_H_

#include "absl/strings/string_view.h"
#include "common/telemetry/metric_set.h"

namespace baton::telemetry {

// Thread-safe. A copy is valid as long as the registry.
class TraceCounters {
 public:
  explicit TraceCounters(MetricSet& set);

  void Exported(int spans) const;
  // reason: "queue_full", "export_failed", "rejected" or "shutdown".
  void Dropped(int spans, absl::string_view reason) const;

 private:
  prometheus::Counter* exported_;
  prometheus::Counter* queue_full_;
  prometheus::Counter* export_failed_;
  prometheus::Counter* rejected_;
  prometheus::Counter* shutdown_;
};

}  // namespace baton::telemetry

#endif  // BATON_COMMON_TELEMETRY_TRACE_COUNTERS_H_
