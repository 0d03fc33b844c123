// The metrics of one process. Each is declared once, with its help text, labels and buckets: what
// /metrics exports and the tables of docs/metrics.md both come from these declarations.
#ifndef BATON_COMMON_TELEMETRY_METRIC_SET_H_
#define BATON_COMMON_TELEMETRY_METRIC_SET_H_

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
class Registry;
template <typename T>
class Family;
}  // namespace prometheus

namespace baton::telemetry {

struct Label {
  std::string name;
  // Series with these values exist from the start: Prometheus computes rates from the second sample
  // of a series on, so a series that began with its first event would hide that event. Other values
  // may follow.
  std::vector<std::string> values;
};

// Labels that several roles have.
Label PriorityLabel();                  // low, normal, high
std::vector<std::string> ErrorCodes();  // the names of all status codes but OK

struct MetricDescription {
  std::string name;
  std::string type;  // "counter", "gauge" or "histogram"
  std::string help;
  std::vector<Label> labels;   // besides role and model
  std::vector<double> bounds;  // upper bounds of a histogram's buckets, without +Inf
};

// A metric with labels. Thread-safe.
template <typename T>
class Family {
 public:
  // Once a family has so many series, new values become "other". Values come from code, not from
  // requests, so this is a bound for errors in code and for reasons that other processes send.
  static constexpr size_t kMaxSeries = 200;

  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  // The series with these values of the labels, in the order in which the labels were declared. The
  // reference is valid as long as the registry.
  T& With(std::vector<std::string> values);
  // Those that there are now.
  std::vector<T*> All();

 private:
  friend class MetricSet;
  Family(prometheus::Family<T>& family, const MetricDescription& description);
  void AddInitialSeries(std::vector<std::string> values);

  prometheus::Family<T>& family_;
  const std::vector<Label> labels_;
  const std::vector<double> bounds_;
  absl::Mutex mutex_;
  std::map<std::vector<std::string>, T*> series_ ABSL_GUARDED_BY(mutex_);
};

// Unsynchronized: for constructors. The methods of what it returns are thread-safe.
class MetricSet {
 public:
  // All series get the labels `role` ("router", "prefill" or "decode") and `model`. Declares
  // baton_build_info. The registry must outlive the set and its metrics.
  MetricSet(prometheus::Registry& registry, const std::string& role, const std::string& model);

  // Without further labels. `help` is a sentence.
  prometheus::Counter& Counter(const std::string& name, const std::string& help);
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help);
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   absl::Span<const double> bounds);
  // With labels.
  Family<prometheus::Counter> Counters(const std::string& name, const std::string& help,
                                       std::vector<Label> labels);
  Family<prometheus::Gauge> Gauges(const std::string& name, const std::string& help,
                                   std::vector<Label> labels);
  Family<prometheus::Histogram> Histograms(const std::string& name, const std::string& help,
                                           absl::Span<const double> bounds,
                                           std::vector<Label> labels);
  // A gauge that is always 1, with facts as labels: (name, value).
  void Info(const std::string& name, const std::string& help,
            const std::vector<std::pair<std::string, std::string>>& facts);

  // In the order of their declaration.
  const std::vector<MetricDescription>& descriptions() const { return descriptions_; }

 private:
  template <typename T>
  Family<T> Declare(MetricDescription description);

  prometheus::Registry& registry_;
  const std::map<std::string, std::string> common_;
  std::vector<MetricDescription> descriptions_;
};

}  // namespace baton::telemetry

#endif  // BATON_COMMON_TELEMETRY_METRIC_SET_H_
