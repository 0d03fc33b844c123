// The metrics of a process that exports traces.
#ifndef BATON_COMMON_TELEMETRY_TRACE_COUNTERS_H_
#define BATON_COMMON_TELEMETRY_TRACE_COUNTERS_H_

#include <string>

namespace prometheus {
class Counter;
template <typename T>
class Family;
class Registry;
}  // namespace prometheus

namespace baton::telemetry {

// Thread-safe. The registry must outlive it.
class TraceCounters {
 public:
  // `role` and `model` are labels of every series.
  TraceCounters(prometheus::Registry& registry, const std::string& role, const std::string& model);

  void Exported(int spans);
  void Dropped(int spans, const std::string& reason);

 private:
  const std::string role_;
  const std::string model_;
  prometheus::Counter& exported_;
  prometheus::Family<prometheus::Counter>& dropped_;
};

}  // namespace baton::telemetry

#endif  // BATON_COMMON_TELEMETRY_TRACE_COUNTERS_H_
