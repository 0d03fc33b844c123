#include "common/telemetry/trace_counters.h"

#include <prometheus/counter.h>

#include "common/base/check.h"

namespace baton::telemetry {

TraceCounters::TraceCounters(MetricSet& set)
    : exported_(&set.Counter("baton_trace_spans_exported_total",
                             "Spans that the trace collector has taken.")) {
  Family<prometheus::Counter> dropped =
      set.Counters("baton_trace_spans_dropped_total", "Spans that were not exported.",
                   {{"reason", {"queue_full", "export_failed", "rejected", "shutdown"}}});
  queue_full_ = &dropped.With({"queue_full"});
  export_failed_ = &dropped.With({"export_failed"});
  rejected_ = &dropped.With({"rejected"});
  shutdown_ = &dropped.With({"shutdown"});
}

void TraceCounters::Exported(int spans) const { exported_->Increment(spans); }

void TraceCounters::Dropped(int spans, absl::string_view reason) const {
  prometheus::Counter* const counter = reason == "queue_full"      ? queue_full_
                                       : reason == "export_failed" ? export_failed_
                                       : reason == "rejected"      ? rejected_
                                       : reason == "shutdown"      ? shutdown_
                                                                   : nullptr;
  BATON_CHECK(counter != nullptr) << "no such reason: " << reason;
  counter->Increment(spans);
}

}  // namespace baton::telemetry
