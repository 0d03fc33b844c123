#include "common/worker/socket_tokens.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/security/digest.h"
#include "common/transfer/shared_pool.h"

namespace baton::worker {

transfer::SharedPools::TokenOf SocketTokens(const WorkerOptions& options,
                                            security::SharedSecret* secret) {
  if (secret == nullptr && !options.tls.client_ca.empty()) return nullptr;
  return [secret](absl::string_view socket) {
    const std::string key = secret == nullptr ? "" : secret->current();
    // Twice, so that nobody can go on from the token of one name to that of a longer one.
    const std::string inner = security::ToHex(security::Sha256(absl::StrCat(key, "\n", socket)));
    const security::Digest digest = security::Sha256(absl::StrCat(key, "\n", inner));
    return std::string(digest.begin(), digest.begin() + transfer::kSocketTokenBytes);
  };
}

}  // namespace baton::worker
