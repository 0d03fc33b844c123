// The tables of docs/metrics.md.
#ifndef BATON_TESTS_CLUSTER_METRICS_DOCUMENT_H_
#define BATON_TESTS_CLUSTER_METRICS_DOCUMENT_H_

#include <map>
#include <string>
#include <vector>

#include "common/telemetry/metric_set.h"

namespace baton {

using Declared = std::map<std::string, std::vector<telemetry::MetricDescription>>;  // by role

// A section for each set of roles that export the same metrics, and one for buckets.
std::string MetricTables(const Declared& declared);

// `document` with `tables` between its two marks.
std::string WithTables(const std::string& document, const std::string& tables);

}  // namespace baton

#endif  // BATON_TESTS_CLUSTER_METRICS_DOCUMENT_H_
