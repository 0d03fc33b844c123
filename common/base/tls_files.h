// The PEM files of TLS, of a server and of a channel. Without any, a connection is plaintext.
#ifndef BATON_COMMON_BASE_TLS_FILES_H_
#define BATON_COMMON_BASE_TLS_FILES_H_

#include <string>

#include "absl/status/status.h"

namespace baton {

struct ServerTls {
  std::string cert;  // the server's certificate, then those between it and its CA
  std::string key;
  std::string client_ca;  // not empty: clients must have a certificate of one of these CAs

  bool on() const { return !cert.empty() || !key.empty() || !client_ca.empty(); }
};

struct ChannelTls {
  bool enabled = false;  // TLS even without any file below
  std::string ca;        // CAs of the server's certificate; empty: those of the system
  std::string cert;      // the client's certificate, for servers that require one
  std::string key;
  // The name that the server's certificate must have; empty: the host of the address.
  std::string server_name;

  bool on() const { return enabled || !ca.empty() || !cert.empty() || !key.empty(); }
};

// INVALID_ARGUMENT, BAD_TLS_FILES, unless both are given or neither: gRPC would end the process.
absl::Status CheckPair(const std::string& cert, const std::string& key);

// The same, naming the file, for one that cannot be read or has no PEM. common/security/tls_check.h
// looks deeper, with OpenSSL, which the installed C++ client does without.
absl::Status CheckPem(const ChannelTls& tls);

}  // namespace baton

#endif  // BATON_COMMON_BASE_TLS_FILES_H_
