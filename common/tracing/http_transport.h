// SpanTransport over libcurl.
#ifndef BATON_COMMON_TRACING_HTTP_TRANSPORT_H_
#define BATON_COMMON_TRACING_HTTP_TRANSPORT_H_

#include <memory>
#include <string>

#include "common/tracing/otlp_json.h"
#include "common/tracing/span_exporter.h"

namespace baton::tracing {

// POSTs JSON to `url`, which is http or https, over a connection that it keeps. `headers`: more of
// them. `ca`: PEM file; empty: the system's. Redirects are not followed. Proxies are those of
// curl's environment variables.
std::unique_ptr<SpanTransport> MakeHttpTransport(const std::string& url, const Resource& headers,
                                                 const std::string& ca);

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_HTTP_TRANSPORT_H_
