#include "common/security/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "common/base/check.h"

namespace baton::security {

Digest Sha256(absl::string_view text) {
  Digest digest;
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest.data());
  return digest;
}

Digest HmacSha256(absl::string_view key, absl::string_view text) {
  Digest digest;
  unsigned size = 0;
  const uint8_t* const made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest.data(), &size);
  BATON_CHECK(made != nullptr && size == digest.size());
  return digest;
}

bool SameDigest(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string ToHex(const Digest& digest) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

std::optional<Digest> FromHex(absl::string_view text) {
  Digest digest;
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (char c : text) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
  }
  const std::string bytes = absl::HexStringToBytes(text);
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

std::string RandomToken() {
  char bytes[32];
  size_t filled = 0;
  while (filled < sizeof(bytes)) {
    const ssize_t count = getrandom(bytes + filled, sizeof(bytes) - filled, 0);
    BATON_CHECK(count > 0 || errno == EINTR) << "getrandom: errno " << errno;
    if (count > 0) filled += static_cast<size_t>(count);
  }
  return absl::WebSafeBase64Escape(absl::string_view(bytes, sizeof(bytes)));
}

}  // namespace baton::security
