// The /metrics endpoint of a process, in Prometheus's text format, and the registry behind it.
//
// Each binary has one metrics.h, whose methods turn events into metrics of this registry
// (metric_set.h). Only its metrics.cc and this folder include prometheus-cpp.
#ifndef BATON_COMMON_TELEMETRY_METRICS_H_
#define BATON_COMMON_TELEMETRY_METRICS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace prometheus {
class Exposer;
class Registry;
}  // namespace prometheus

namespace baton::telemetry {

// Thread-safe. Starts threads that answer scrapes; the destructor joins them.
class MetricsEndpoint {
 public:
  // Serves http://<address>/metrics. `address` is host:port, e.g. "0.0.0.0:9090" or "[::1]:0"; port
  // 0 means any free port. INVALID_ARGUMENT if `address` has another form, UNAVAILABLE if it cannot
  // be bound; both messages contain it.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  // "host:port" with the port that is bound, never 0.
  const std::string& address() const { return address_; }

  // Lives as long as the endpoint. Metrics that are added to it appear in scrapes.
  prometheus::Registry& registry() { return *registry_; }

 private:
  MetricsEndpoint(std::string address, std::shared_ptr<prometheus::Registry> registry,
                  std::unique_ptr<prometheus::Exposer> exposer);

  const std::string address_;
  // A shared_ptr only because the exposer takes a weak_ptr.
  const std::shared_ptr<prometheus::Registry> registry_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace baton::telemetry

#endif  // BATON_COMMON_TELEMETRY_METRICS_H_
