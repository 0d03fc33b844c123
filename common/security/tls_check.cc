#include "common/security/tls_check.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::security {
namespace {

absl::Status BadTls(absl::string_view message) {
  std::string why;
  if (const unsigned long code = ERR_peek_error(); code != 0) {
    if (const char* text = ERR_reason_error_string(code)) why = absl::StrCat(" (", text, ")");
  }
  ERR_clear_error();
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_TLS_FILES", absl::StrCat(message, why));
}

absl::Status CheckFiles(const std::string& cert, const std::string& key, const std::string& ca) {
  BATON_RETURN_IF_ERROR(CheckPair(cert, key));
  ERR_clear_error();
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_method()),
                                                                  SSL_CTX_free);
  if (!cert.empty()) {
    if (SSL_CTX_use_certificate_chain_file(context.get(), cert.c_str()) != 1) {
      return BadTls(absl::StrCat(cert, ": a readable PEM file with a certificate expected"));
    }
    if (SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) != 1) {
      return BadTls(
          absl::StrCat(key, ": a readable PEM file with the private key of ", cert, " expected"));
    }
  }
  if (!ca.empty() && SSL_CTX_load_verify_locations(context.get(), ca.c_str(), nullptr) != 1) {
    return BadTls(absl::StrCat(ca, ": a readable PEM file with CA certificates expected"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTls(const ServerTls& tls) {
  if (tls.on() && tls.cert.empty()) return BadTls("TLS: the server's certificate is not given");
  return CheckFiles(tls.cert, tls.key, tls.client_ca);
}

absl::Status CheckTls(const ChannelTls& tls) { return CheckFiles(tls.cert, tls.key, tls.ca); }

}  // namespace baton::security
