#include "common/security/shared_secret.h"

#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/utf8.h"

namespace baton::security {
namespace {

constexpr size_t kMaxSecretFileBytes = 4096;
constexpr size_t kMinSecret = 32, kMaxSecret = 512;
constexpr size_t kMaxSecrets = 4;

absl::Status BadSecret(absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_WORKER_SECRET", message);
}

// The secrets in what ReloadedFile::Look returned of the file at `path`.
absl::StatusOr<std::vector<std::string>> SecretsOf(
    const absl::StatusOr<std::optional<std::string>>& text, const std::string& path) {
  if (!text.ok()) return text.status();
  absl::StatusOr<std::vector<std::string>> secrets = ParseSecrets(**text);
  if (!secrets.ok()) return Annotate(secrets.status(), path);
  return secrets;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseSecrets(absl::string_view text) {
  if (!absl::ConsumeSuffix(&text, "\n")) {
    return BadSecret("the last line does not end, a newline expected");
  }
  std::vector<std::string> secrets = absl::StrSplit(WithoutByteOrderMark(text), '\n');
  if (secrets.size() > kMaxSecrets) {
    return BadSecret(absl::StrCat(secrets.size(), " lines, at most ", kMaxSecrets, " expected"));
  }
  for (size_t i = 0; i < secrets.size(); ++i) {
    const std::string& secret = secrets[i];
    if (secret.size() < kMinSecret || secret.size() > kMaxSecret ||
        !absl::c_all_of(secret, [](unsigned char c) { return absl::ascii_isgraph(c); })) {
      return BadSecret(absl::StrCat("line ", i + 1, ": expected ", kMinSecret, " to ", kMaxSecret,
                                    " printable characters without spaces"));
    }
  }
  return secrets;
}

SharedSecret::SharedSecret(const std::string& path, const Clock& clock)
    : file_(path, kMaxSecretFileBytes, "BAD_WORKER_SECRET", clock) {}

absl::StatusOr<std::unique_ptr<SharedSecret>> SharedSecret::Load(const std::string& path,
                                                                 const Clock& clock) {
  std::unique_ptr<SharedSecret> secret(new SharedSecret(path, clock));
  absl::MutexLock lock(&secret->mutex_);
  absl::StatusOr<std::vector<std::string>> parsed = SecretsOf(secret->file_.Look(), path);
  if (!parsed.ok()) return parsed.status();
  secret->Set(*std::move(parsed));
  return secret;
}

void SharedSecret::Set(std::vector<std::string> secrets) {
  accepted_.clear();
  for (const std::string& secret : secrets) accepted_.push_back(Sha256(secret));
  current_ = std::move(secrets.front());
}

void SharedSecret::Reload() {
  const absl::StatusOr<std::optional<std::string>> text = file_.Look();
  if (text.ok() && !*text) return;
  absl::StatusOr<std::vector<std::string>> parsed = SecretsOf(text, file_.path());
  if (!parsed.ok()) {
    BATON_LOG(Error) << "worker secret: " << parsed.status().message()
                     << "; the secret of the last good file stays";
    return;
  }
  Set(*std::move(parsed));
  BATON_LOG(Info) << "worker secret: read again from " << file_.path();
}

std::string SharedSecret::current() {
  absl::MutexLock lock(&mutex_);
  Reload();
  return current_;
}

absl::Status SharedSecret::Check(absl::string_view presented) {
  const Digest digest = Sha256(presented);
  absl::MutexLock lock(&mutex_);
  Reload();
  bool accepted = false;
  for (const Digest& secret : accepted_) accepted |= SameDigest(secret, digest);
  if (accepted) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnauthenticated, "WRONG_WORKER_SECRET",
                   presented.empty()
                       ? "the worker expects its cluster's secret (--worker-secret-file)"
                       : "this is not the worker's secret (--worker-secret-file)");
}

std::function<std::vector<std::pair<std::string, std::string>>()> HeadersOf(SharedSecret* secret) {
  if (secret == nullptr) return nullptr;
  return [secret] {
    return std::vector<std::pair<std::string, std::string>>{
        {kWorkerSecretHeader, secret->current()}};
  };
}

}  // namespace baton::security
