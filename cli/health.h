// `baton health`: asks the health service (grpc.health.v1) of a router or a worker.
#ifndef BATON_CLI_HEALTH_H_
#define BATON_CLI_HEALTH_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "cli/router_flags.h"

namespace baton::cli {

struct HealthOptions {
  std::string address = "127.0.0.1:50051";  // of the router or the worker
  RouterAccess access;
  // "": the process lives. baton.v1.InferenceService: the router is ready.
  // baton.internal.v1.WorkerService: the worker is.
  std::string service;
  int64_t timeout_ms = 5'000;
};

// Prints the answer. The exit code is kExitOk for SERVING, kExitFailure for another answer, or that
// of the call's error (common/base/exit_code.h).
int RunHealth(const HealthOptions& options, std::ostream& out, std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_HEALTH_H_
