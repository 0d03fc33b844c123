// The check at start that the files of TLS can be used.
#ifndef BATON_COMMON_SECURITY_TLS_CHECK_H_
#define BATON_COMMON_SECURITY_TLS_CHECK_H_

#include "absl/status/status.h"
#include "common/base/tls_files.h"

namespace baton::security {

// INVALID_ARGUMENT, BAD_TLS_FILES, naming the file: one that is missing or not PEM, a key of
// another certificate, a certificate without its key. An expired certificate passes: it may be
// replaced while the process runs. OK without files.
absl::Status CheckTls(const ServerTls& tls);
absl::Status CheckTls(const ChannelTls& tls);

}  // namespace baton::security

#endif  // BATON_COMMON_SECURITY_TLS_CHECK_H_
