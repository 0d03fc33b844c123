#include "common/telemetry/trace_counters.h"

#include <prometheus/counter.h>
#include <prometheus/registry.h>

namespace baton::telemetry {

TraceCounters::TraceCounters(prometheus::Registry& registry, const std::string& role,
                             const std::string& model)
    : role_(role),
      model_(model),
      exported_(prometheus::BuildCounter()
                    .Name("baton_trace_spans_exported_total")
                    .Help("Spans that the trace collector has taken.")
                    .Register(registry)
                    .Add({{"role", role}, {"model", model}})),
      dropped_(prometheus::BuildCounter()
                   .Name("baton_trace_spans_dropped_total")
                   .Help("Spans that were not exported, by reason.")
                   .Register(registry)) {
  Dropped(0, "queue_full");
}

void TraceCounters::Exported(int spans) { exported_.Increment(spans); }

void TraceCounters::Dropped(int spans, const std::string& reason) {
  dropped_.Add({{"role", role_}, {"model", model_}, {"reason", reason}}).Increment(spans);
}

}  // namespace baton::telemetry
