// SHA-256 of keys and secrets, and random text for new ones.
#ifndef BATON_COMMON_SECURITY_DIGEST_H_
#define BATON_COMMON_SECURITY_DIGEST_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::security {

using Digest = std::array<uint8_t, 32>;

Digest Sha256(absl::string_view text);
// HMAC (RFC 2104) by SHA-256, which nothing but the key makes.
Digest HmacSha256(absl::string_view key, absl::string_view text);

// In a time that depends on neither argument.
bool SameDigest(const Digest& a, const Digest& b);

// 64 lower-case hexadecimal digits, and back; FromHex takes upper case too.
std::string ToHex(const Digest& digest);
std::optional<Digest> FromHex(absl::string_view text);

// 256 bits from the kernel's random number generator as 43 characters of URL-safe base64.
std::string RandomToken();

}  // namespace baton::security

#endif  // BATON_COMMON_SECURITY_DIGEST_H_
