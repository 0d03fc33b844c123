#include "common/telemetry/metric_set.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <type_traits>

#include "absl/status/status.h"
#include "common/base/check.h"

namespace baton::telemetry {

Label PriorityLabel() { return {"priority", {"low", "normal", "high"}}; }

std::vector<std::string> ErrorCodes() {
  std::vector<std::string> codes;
  const int last = static_cast<int>(absl::StatusCode::kUnauthenticated);
  for (int code = 1; code <= last; ++code) {
    codes.push_back(absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
  }
  return codes;
}

template <typename T>
Family<T>::Family(prometheus::Family<T>& family, const MetricDescription& description)
    : family_(family), labels_(description.labels), bounds_(description.bounds) {
  AddInitialSeries({});
}

// All combinations of the labels' declared values.
template <typename T>
void Family<T>::AddInitialSeries(std::vector<std::string> values) {
  if (values.size() == labels_.size()) {
    With(std::move(values));
    return;
  }
  for (const std::string& value : labels_[values.size()].values) {
    values.push_back(value);
    AddInitialSeries(values);
    values.pop_back();
  }
}

template <typename T>
T& Family<T>::With(std::vector<std::string> values) {
  BATON_CHECK_EQ(values.size(), labels_.size());
  absl::MutexLock lock(&mutex_);
  if (const auto found = series_.find(values); found != series_.end()) return *found->second;
  if (series_.size() >= kMaxSeries) values.assign(labels_.size(), "other");
  T*& series = series_[values];
  if (series != nullptr) return *series;
  prometheus::Labels labels;
  for (size_t i = 0; i < labels_.size(); ++i) labels.emplace(labels_[i].name, values[i]);
  if constexpr (std::is_same_v<T, prometheus::Histogram>) {
    series = &family_.Add(labels, bounds_);
  } else {
    series = &family_.Add(labels);
  }
  return *series;
}

template <typename T>
std::vector<T*> Family<T>::All() {
  absl::MutexLock lock(&mutex_);
  std::vector<T*> all;
  for (const auto& [values, series] : series_) all.push_back(series);
  return all;
}

template class Family<prometheus::Counter>;
template class Family<prometheus::Gauge>;
template class Family<prometheus::Histogram>;

MetricSet::MetricSet(prometheus::Registry& registry, const std::string& role,
                     const std::string& model)
    : registry_(registry), common_({{"role", role}, {"model", model}}) {
  Info("baton_build_info", "Always 1; the labels have the version and the compiler.",
       {{"version", BATON_VERSION}, {"compiler", __VERSION__}});
}

template <typename T>
Family<T> MetricSet::Declare(MetricDescription description) {
  prometheus::detail::Builder<T> builder;
  prometheus::Family<T>& family =
      builder.Name(description.name).Help(description.help).Labels(common_).Register(registry_);
  descriptions_.push_back(std::move(description));
  return Family<T>(family, descriptions_.back());
}

prometheus::Counter& MetricSet::Counter(const std::string& name, const std::string& help) {
  return Counters(name, help, {}).With({});
}

prometheus::Gauge& MetricSet::Gauge(const std::string& name, const std::string& help) {
  return Gauges(name, help, {}).With({});
}

prometheus::Histogram& MetricSet::Histogram(const std::string& name, const std::string& help,
                                            absl::Span<const double> bounds) {
  return Histograms(name, help, bounds, {}).With({});
}

Family<prometheus::Counter> MetricSet::Counters(const std::string& name, const std::string& help,
                                                std::vector<Label> labels) {
  return Declare<prometheus::Counter>({name, "counter", help, std::move(labels), {}});
}

Family<prometheus::Gauge> MetricSet::Gauges(const std::string& name, const std::string& help,
                                            std::vector<Label> labels) {
  return Declare<prometheus::Gauge>({name, "gauge", help, std::move(labels), {}});
}

Family<prometheus::Histogram> MetricSet::Histograms(const std::string& name,
                                                    const std::string& help,
                                                    absl::Span<const double> bounds,
                                                    std::vector<Label> labels) {
  return Declare<prometheus::Histogram>(
      {name, "histogram", help, std::move(labels), {bounds.begin(), bounds.end()}});
}

void MetricSet::Info(const std::string& name, const std::string& help,
                     const std::vector<std::pair<std::string, std::string>>& facts) {
  std::vector<Label> labels;
  std::vector<std::string> values;
  for (const auto& [label, value] : facts) {
    labels.push_back({label, {}});
    values.push_back(value);
  }
  Gauges(name, help, std::move(labels)).With(std::move(values)).Set(1);
}

}  // namespace baton::telemetry
