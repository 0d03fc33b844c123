#include "common/tracing/make_tracer.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/version.h"
#include "common/tracing/http_transport.h"

namespace baton::tracing {
namespace {

void Put(const std::string& key, const std::string& value, Resource* resource) {
  for (auto& [present, old] : *resource) {
    if (present == key) {
      old = value;
      return;
    }
  }
  resource->emplace_back(key, value);
}

}  // namespace

std::unique_ptr<Tracer> MakeTracer(const TracingOptions& options, const std::string& program,
                                   const std::string& instance, const Clock& clock,
                                   ExportEvents events) {
  if (options.endpoint.empty()) return nullptr;
  TracerOptions tracer;
  tracer.sample_ratio = options.sample_ratio;
  tracer.exporter.timeout = options.timeout;
  tracer.resource = {{"service.name", program},
                     {"service.version", std::string(Version())},
                     {"service.instance.id", instance}};
  for (const auto& [key, value] : options.resource) Put(key, value, &tracer.resource);
  if (!options.service_name.empty()) Put("service.name", options.service_name, &tracer.resource);
  BATON_LOG(Info) << "traces go to a collector; share of new traces that are sampled: "
                  << options.sample_ratio;
  return std::make_unique<Tracer>(
      std::move(tracer), clock, WallAtZero(clock),
      MakeHttpTransport(TracesUrl(options.endpoint), options.headers, options.ca),
      std::move(events));
}

}  // namespace baton::tracing
