// The /metrics page of a process, in Prometheus' text format, and the registry behind it.
//
// Each binary has one file of metrics that takes the registry and turns events into counts; only
// such files, and this room, include prometheus-cpp.
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

// Thread-safe. Scrapes are answered by threads of its own, which the destructor joins.
class MetricsEndpoint {
 public:
  // Serves http://<address>/metrics. `address` is host:port, e.g. "0.0.0.0:9090" or "[::1]:0"; with
  // port 0 the system chooses one. INVALID_ARGUMENT for another form, UNAVAILABLE if the address
  // cannot be bound; both name it. The registry begins with baton_build_info.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  // host:port as bound: never port 0.
  const std::string& address() const { return address_; }

  // For the life of the endpoint. Metrics made in it appear on the page.
  prometheus::Registry& registry() { return *registry_; }

 private:
  MetricsEndpoint(std::string address, std::shared_ptr<prometheus::Registry> registry,
                  std::unique_ptr<prometheus::Exposer> exposer);

  const std::string address_;
  // Shared because the exposer asks for a weak_ptr; nobody else holds it.
  const std::shared_ptr<prometheus::Registry> registry_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace baton::telemetry

#endif  // BATON_COMMON_TELEMETRY_METRICS_H_
