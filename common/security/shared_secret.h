// The secret that the processes of a cluster share: routers and decode workers send it, workers
// refuse calls without it.
#ifndef BATON_COMMON_SECURITY_SHARED_SECRET_H_
#define BATON_COMMON_SECURITY_SHARED_SECRET_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/security/digest.h"
#include "common/security/reloaded_file.h"

namespace baton::security {

// The metadata of a call that has the secret.
inline constexpr char kWorkerSecretHeader[] = "baton-worker-secret";

// One to four lines of 32 to 512 printable ASCII characters without spaces, each ended by a
// newline. INVALID_ARGUMENT, BAD_WORKER_SECRET, naming the line.
absl::StatusOr<std::vector<std::string>> ParseSecrets(absl::string_view text);

// A file of secrets: the first one is sent, each is accepted. So a secret is changed without a
// break: add the new one to all files as the second line, make it the first, remove the old one.
// Read again when it changes, as ApiKeys is. Thread-safe.
class SharedSecret {
 public:
  // `clock` must outlive it.
  static absl::StatusOr<std::unique_ptr<SharedSecret>> Load(const std::string& path,
                                                            const Clock& clock);

  std::string current();
  // UNAUTHENTICATED, WRONG_WORKER_SECRET, unless `presented` is one of the secrets. Takes the same
  // time for every wrong one: digests are compared, in constant time.
  absl::Status Check(absl::string_view presented);

 private:
  SharedSecret(const std::string& path, const Clock& clock);
  void Set(std::vector<std::string> secrets) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Reload() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  ReloadedFile file_ ABSL_GUARDED_BY(mutex_);
  std::string current_ ABSL_GUARDED_BY(mutex_);
  std::vector<Digest> accepted_ ABSL_GUARDED_BY(mutex_);
};

// The metadata of calls to workers, for ChannelSecurity. Null without a secret (null), which must
// outlive it otherwise.
std::function<std::vector<std::pair<std::string, std::string>>()> HeadersOf(SharedSecret* secret);

}  // namespace baton::security

#endif  // BATON_COMMON_SECURITY_SHARED_SECRET_H_
