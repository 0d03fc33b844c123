// The tracer of a server, as its flags have it.
#ifndef BATON_COMMON_TRACING_MAKE_TRACER_H_
#define BATON_COMMON_TRACING_MAKE_TRACER_H_

#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/tracing/options.h"
#include "common/tracing/tracer.h"

namespace baton::tracing {

// Null without an endpoint. `program` is the service.name unless the options have one; `instance`,
// which is unique, the service.instance.id. `clock` must outlive the tracer.
// REQUIRES: Validate(options).ok().
std::unique_ptr<Tracer> MakeTracer(const TracingOptions& options, const std::string& program,
                                   const std::string& instance, const Clock& clock,
                                   ExportEvents events);

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_MAKE_TRACER_H_
