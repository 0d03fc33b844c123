#include "common/security/api_keys.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace baton::security {
namespace {

constexpr size_t kMaxTenantName = 128;
constexpr size_t kMaxPresentedKey = 512;
constexpr int kMaxLimit = 1'000'000'000;

absl::Status BadKeys(absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_API_KEYS", message);
}

absl::Status CheckTenantName(absl::string_view name) {
  bool fits = !name.empty() && name.size() <= kMaxTenantName;
  for (char c : name) {
    fits = fits && (absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                    absl::StrContains("._-@:/", absl::string_view(&c, 1)));
  }
  if (fits) return absl::OkStatus();
  return BadKeys(absl::StrCat("tenant \"", name.substr(0, kMaxTenantName), "\": expected 1 to ",
                              kMaxTenantName, " letters, digits and characters of ._-@:/"));
}

absl::Status ReadLimit(absl::string_view name, absl::string_view text, int* limit) {
  if (absl::SimpleAtoi(text, limit) && *limit >= 1 && *limit <= kMaxLimit) return absl::OkStatus();
  return BadKeys(absl::StrCat(name, ": expected 1 to ", kMaxLimit));
}

absl::StatusOr<std::pair<Digest, ApiKey>> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  absl::string_view hash = words[0];
  const bool named = absl::ConsumePrefix(&hash, "sha256:");
  const std::optional<Digest> digest = FromHex(hash);
  // A key in place of its hash must not reach the log.
  if (!named || !digest) return BadKeys("expected sha256: and 64 hexadecimal digits at its start");
  ApiKey key;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    const auto [name, value] = field;
    if (name == "tenant" && key.tenant.empty()) {
      BATON_RETURN_IF_ERROR(CheckTenantName(value));
      key.tenant = std::string(value);
    } else if (words[i] == "admin") {
      key.admin = true;
    } else if (name == "max-concurrent-requests") {
      BATON_RETURN_IF_ERROR(ReadLimit(name, value, &key.limits.max_concurrent_requests));
    } else if (name == "requests-per-minute") {
      BATON_RETURN_IF_ERROR(ReadLimit(name, value, &key.limits.requests_per_minute));
    } else {
      return BadKeys(absl::StrCat("word ", i + 1,
                                  ": expected tenant=NAME once, admin, "
                                  "max-concurrent-requests=N or requests-per-minute=N"));
    }
  }
  if (key.tenant.empty()) return BadKeys("expected tenant=NAME");
  return std::make_pair(*digest, std::move(key));
}

// The keys in what ReloadedFile::Look returned of the file at `path`.
absl::StatusOr<ApiKeyTable> KeysOf(const absl::StatusOr<std::optional<std::string>>& text,
                                   const std::string& path) {
  if (!text.ok()) return text.status();
  absl::StatusOr<ApiKeyTable> keys = ParseApiKeys(**text);
  if (!keys.ok()) return Annotate(keys.status(), path);
  return keys;
}

absl::Status Refused(absl::string_view message) {
  return MakeError(absl::StatusCode::kUnauthenticated, "INVALID_API_KEY", message);
}

}  // namespace

absl::StatusOr<ApiKeyTable> ParseApiKeys(absl::string_view text) {
  // A file that is read while it is written may end within a line.
  if (!text.empty() && text.back() != '\n') {
    return BadKeys("the last line does not end, a newline expected");
  }
  ApiKeyTable keys;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(WithoutByteOrderMark(text), '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    auto parsed = ParseLine(line);
    if (!parsed.ok()) return Annotate(parsed.status(), absl::StrCat("line ", number));
    if (keys.size() == kMaxKeys) {
      return BadKeys(absl::StrCat("line ", number, ": more than ", kMaxKeys, " keys"));
    }
    if (!keys.insert(*std::move(parsed)).second) {
      return BadKeys(absl::StrCat("line ", number, ": this key is listed twice"));
    }
  }
  return keys;
}

absl::StatusOr<NewKey> MakeApiKey(absl::string_view tenant, bool admin) {
  BATON_RETURN_IF_ERROR(CheckTenantName(tenant));
  NewKey made;
  made.key = absl::StrCat("baton-", RandomToken());
  made.line =
      absl::StrCat("sha256:", ToHex(Sha256(made.key)), " tenant=", tenant, admin ? " admin" : "");
  return made;
}

ApiKeys::ApiKeys(const std::string& path, const Clock& clock)
    : file_(path, kMaxKeyFileBytes, "BAD_API_KEYS", clock) {}

absl::StatusOr<std::unique_ptr<ApiKeys>> ApiKeys::Load(const std::string& path,
                                                       const Clock& clock) {
  std::unique_ptr<ApiKeys> keys(new ApiKeys(path, clock));
  absl::MutexLock lock(&keys->mutex_);
  absl::StatusOr<ApiKeyTable> parsed = KeysOf(keys->file_.Look(), path);
  if (!parsed.ok()) return parsed.status();
  keys->keys_ = *std::move(parsed);
  return keys;
}

void ApiKeys::Reload() {
  const absl::StatusOr<std::optional<std::string>> text = file_.Look();
  if (text.ok() && !*text) return;
  absl::StatusOr<ApiKeyTable> parsed = KeysOf(text, file_.path());
  if (!parsed.ok()) {
    BATON_LOG(Error) << "API keys: " << parsed.status().message() << "; the " << keys_.size()
                     << " keys of the last good file stay";
    return;
  }
  keys_ = *std::move(parsed);
  BATON_LOG(Info) << "API keys: " << keys_.size() << " read from " << file_.path();
}

absl::StatusOr<ApiKey> ApiKeys::Find(absl::string_view authorization) {
  if (authorization.empty()) {
    return Refused("no API key: expected the header \"authorization: Bearer KEY\"");
  }
  absl::string_view key = authorization;
  // The scheme's name has no case (RFC 9110, 11.1).
  if (!absl::StartsWithIgnoreCase(key, "bearer ")) {
    return Refused("the header authorization has no API key, \"Bearer KEY\" expected");
  }
  key = absl::StripAsciiWhitespace(key.substr(7));
  if (key.size() > kMaxPresentedKey) return Refused("this API key is not valid");
  const Digest digest = Sha256(key);
  absl::MutexLock lock(&mutex_);
  Reload();
  const auto found = keys_.find(digest);
  if (found == keys_.end()) return Refused("this API key is not valid");
  return found->second;
}

}  // namespace baton::security
