// Refuses calls to a worker that lack its cluster's secret.
#ifndef BATON_COMMON_WORKER_CALL_GATE_H_
#define BATON_COMMON_WORKER_CALL_GATE_H_

#include <grpcpp/server_context.h>

#include "absl/status/status.h"
#include "common/base/rpc/call_headers.h"
#include "common/security/shared_secret.h"

namespace baton::worker {

// UNAUTHENTICATED, WRONG_WORKER_SECRET. OK without a secret (null). Thread-safe.
inline absl::Status CheckCall(security::SharedSecret* secret,
                              const grpc::ServerContextBase& context) {
  if (secret == nullptr) return absl::OkStatus();
  return secret->Check(CallHeader(context, security::kWorkerSecretHeader));
}

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_CALL_GATE_H_
