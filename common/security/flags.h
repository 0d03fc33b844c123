// The flags of TLS and of the workers' secret, the same in every program.
#ifndef BATON_COMMON_SECURITY_FLAGS_H_
#define BATON_COMMON_SECURITY_FLAGS_H_

#include <string>

#include "common/base/tls_files.h"

namespace CLI {
class App;
}

namespace baton::security {

// Adds the flags of a server: --tls-cert, --tls-key, --tls-client-ca; also by vLLM's names.
void AddServerTls(CLI::App& app, ServerTls& tls);

// Adds those of a program that calls workers: --worker-tls-ca, --worker-tls-cert, --worker-tls-key,
// --worker-tls-server-name.
void AddWorkerTls(CLI::App& app, ChannelTls& tls);

// Adds --worker-secret-file.
void AddWorkerSecret(CLI::App& app, std::string& path);

}  // namespace baton::security

#endif  // BATON_COMMON_SECURITY_FLAGS_H_
