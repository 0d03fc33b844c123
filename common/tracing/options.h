// What the three servers have to say about tracing: flags, and OpenTelemetry's environment
// variables (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/),
// which flags override.
#ifndef BATON_COMMON_TRACING_OPTIONS_H_
#define BATON_COMMON_TRACING_OPTIONS_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/tracing/otlp_json.h"

namespace CLI {
class App;
}

namespace baton::tracing {

struct TracingOptions {
  std::string endpoint;      // URL of the collector; empty: nothing is traced
  double sample_ratio = 1;   // of traces that begin here
  std::string service_name;  // empty: the program's
  // From the environment only.
  Resource resource;  // further attributes
  Resource headers;   // of each export, e.g. a collector's API key
  std::string ca;     // PEM file of the CAs of the collector's certificate; empty: the system's
  absl::Duration timeout = absl::Seconds(10);
  absl::Status environment;  // what is wrong with it
};

// The value of a variable; null if it is not set.
using GetEnvironment = std::function<const char*(const char* name)>;

// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME,
// OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG, OTEL_RESOURCE_ATTRIBUTES, and of
// OTEL_EXPORTER_OTLP_ HEADERS, CERTIFICATE and TIMEOUT, also as OTEL_EXPORTER_OTLP_TRACES_.
// OTEL_SDK_DISABLED and OTEL_TRACES_EXPORTER=none turn the endpoint off.
void ReadEnvironment(const GetEnvironment& get, TracingOptions* options);

// Reads the environment, and adds --otlp-traces-endpoint, --trace-sample-ratio and
// --otel-service-name.
void AddTracingFlags(CLI::App& app, TracingOptions& options);

// INVALID_ARGUMENT that names the flag or the variable. OK without an endpoint, whatever the rest.
absl::Status Validate(const TracingOptions& options);

// The URL that spans are sent to: an endpoint without a path has /v1/traces.
std::string TracesUrl(const std::string& endpoint);

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_OPTIONS_H_
