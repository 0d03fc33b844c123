// How workers of one host prove to each other that they are of one cluster before they have called
// each other.
#ifndef BATON_COMMON_WORKER_SOCKET_TOKENS_H_
#define BATON_COMMON_WORKER_SOCKET_TOKENS_H_

#include "common/security/shared_secret.h"
#include "common/transfer/shared_pools.h"
#include "common/worker/options.h"

namespace baton::worker {

// Tokens of sockets (SharedPoolServer::Options) that follow from the socket's name and the
// cluster's secret (HMAC), so that a worker that has the secret needs no Prefill call to learn one.
// Without a secret (null), any process that reaches the worker could learn it by a call, and it
// follows from the name alone. Null where callers prove who they are by certificates only: a token
// comes with a call then. The secret must outlive the result.
transfer::SharedPools::TokenOf SocketTokens(const WorkerOptions& options,
                                            security::SharedSecret* secret);

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_SOCKET_TOKENS_H_
