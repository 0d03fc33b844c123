// Reads metrics of a registry.
#ifndef BATON_TESTS_TESTING_REGISTRY_VALUES_H_
#define BATON_TESTS_TESTING_REGISTRY_VALUES_H_

#include <prometheus/registry.h>

#include <algorithm>
#include <string>

namespace baton::testing {

// Both add up the series of `name` that have a label of that value; empty: all series.

// Of a counter or gauge its value, of a histogram how many values it has.
inline double MetricValue(const prometheus::Registry& registry, const std::string& name,
                          const std::string& label_value = "", bool sum_of_histogram = false) {
  double sum = 0;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    if (family.name != name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      const bool wanted =
          label_value.empty() || std::any_of(metric.label.begin(), metric.label.end(),
                                             [&](const auto& l) { return l.value == label_value; });
      if (!wanted) continue;
      sum += metric.counter.value + metric.gauge.value +
             (sum_of_histogram ? metric.histogram.sample_sum
                               : static_cast<double>(metric.histogram.sample_count));
    }
  }
  return sum;
}

// The sum of a histogram's values.
inline double HistogramSum(const prometheus::Registry& registry, const std::string& name,
                           const std::string& label_value = "") {
  return MetricValue(registry, name, label_value, /*sum_of_histogram=*/true);
}

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_REGISTRY_VALUES_H_
