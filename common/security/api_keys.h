// The API keys of a router: a file with their hashes, read again when it changes.
//
// A key is `baton-` and 256 random bits, so it cannot be guessed from its hash however fast the
// hash is: a plain SHA-256 suffices, where passwords would need a slow hash with a salt.
#ifndef BATON_COMMON_SECURITY_API_KEYS_H_
#define BATON_COMMON_SECURITY_API_KEYS_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/security/digest.h"
#include "common/security/reloaded_file.h"

namespace baton::security {

// 0: no limit.
struct KeyLimits {
  int max_concurrent_requests = 0;
  int requests_per_minute = 0;
};

// What the file says of a key.
struct ApiKey {
  std::string tenant;
  bool admin = false;  // may call the admin RPCs
  KeyLimits limits;
};

using ApiKeyTable = absl::flat_hash_map<Digest, ApiKey>;

inline constexpr size_t kMaxKeyFileBytes = 4 << 20;
inline constexpr size_t kMaxKeys = 10'000;

// Lines of
//   sha256:DIGEST tenant=NAME [admin] [max-concurrent-requests=N] [requests-per-minute=N]
// each ended by a newline. Empty lines and text after a '#' are ignored. NAME has 1 to 128 letters,
// digits and characters of "._-@:/". INVALID_ARGUMENT, BAD_API_KEYS, naming the line.
absl::StatusOr<ApiKeyTable> ParseApiKeys(absl::string_view text);

// A new key, and its line for the file, without a newline. INVALID_ARGUMENT for a bad tenant.
struct NewKey {
  std::string key;
  std::string line;
};
absl::StatusOr<NewKey> MakeApiKey(absl::string_view tenant, bool admin);

// Thread-safe.
class ApiKeys {
 public:
  // INVALID_ARGUMENT if the file cannot be read or parsed. A file without keys refuses every call.
  // `clock` must outlive it.
  static absl::StatusOr<std::unique_ptr<ApiKeys>> Load(const std::string& path, const Clock& clock);

  // The entry of the key in an `authorization` header, "Bearer KEY". UNAUTHENTICATED,
  // INVALID_API_KEY, if there is none. Looks at the file at most once a second; a change takes
  // effect at the next call after that. A file that turns bad is logged with its line, and the
  // keys of the last good one stay.
  //
  // Keys are looked up by digest. The time of a lookup may depend on the digests of other keys, and
  // therefore tell something of them, but a digest is worth nothing: it takes the 256-bit preimage
  // to pass.
  absl::StatusOr<ApiKey> Find(absl::string_view authorization);

 private:
  ApiKeys(const std::string& path, const Clock& clock);
  void Reload() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  ReloadedFile file_ ABSL_GUARDED_BY(mutex_);
  ApiKeyTable keys_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::security

#endif  // BATON_COMMON_SECURITY_API_KEYS_H_
