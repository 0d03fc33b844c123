#include "common/worker/socket_tokens.h"

#include <string>

#include "common/security/digest.h"
#include "common/transfer/shared_pool.h"

namespace baton::worker {

transfer::SharedPools::TokenOf SocketTokens(const WorkerOptions& options,
                                            security::SharedSecret* secret) {
  if (secret == nullptr && !options.tls.client_ca.empty()) return nullptr;
  return [secret](absl::string_view socket) {
    const security::Digest digest =
        security::HmacSha256(secret == nullptr ? "" : secret->current(), socket);
    return std::string(digest.begin(), digest.begin() + transfer::kSocketTokenBytes);
  };
}

}  // namespace baton::worker
