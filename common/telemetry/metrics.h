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
class Registry;
}  // namespace prometheus

namespace baton::telemetry {

// Thread-safe. Starts a thread that answers scrapes; the destructor joins it.
//
// The HTTP server is Boost.Beast's and not the one that comes with prometheus-cpp: that one is
// civetweb, which Debian builds without IPv6.
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
  class Server;
  MetricsEndpoint(std::string address, std::unique_ptr<prometheus::Registry> registry,
                  std::unique_ptr<Server> server);

  const std::string address_;
  const std::unique_ptr<prometheus::Registry> registry_;
  const std::unique_ptr<Server> server_;
};

}  // namespace baton::telemetry

#endif  // BATON_COMMON_TELEMETRY_METRICS_H_
