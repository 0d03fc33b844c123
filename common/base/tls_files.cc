#include "common/base/tls_files.h"

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/file.h"

namespace baton {
namespace {

constexpr size_t kMaxPemBytes = size_t{16} << 20;

absl::Status BadFiles(absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_TLS_FILES", message);
}

}  // namespace

absl::Status CheckPair(const std::string& cert, const std::string& key) {
  if (cert.empty() == key.empty()) return absl::OkStatus();
  return BadFiles("TLS: a certificate and its key are given together, or neither");
}

absl::Status CheckPem(const ChannelTls& tls) {
  if (absl::Status pair = CheckPair(tls.cert, tls.key); !pair.ok()) return pair;
  for (const std::string& path : {tls.ca, tls.cert, tls.key}) {
    if (path.empty()) continue;
    const absl::StatusOr<std::string> text = ReadFile(path, kMaxPemBytes);
    if (!text.ok()) return BadFiles(text.status().message());
    if (!absl::StrContains(*text, "-----BEGIN ")) {
      return BadFiles(absl::StrCat(path, ": a PEM file expected"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
