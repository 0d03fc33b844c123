// gRPC credentials from the files of TLS.
#ifndef BATON_COMMON_BASE_RPC_TLS_H_
#define BATON_COMMON_BASE_RPC_TLS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "common/base/tls_files.h"

namespace baton {

// Plaintext without files. Otherwise the files are read every second, and new handshakes use new
// certificates; open connections stay. Files that cannot be read, or whose key is that of another
// certificate, leave the last good ones in use. The process that starts should have checked them
// (common/security/tls_check.h): until the first good ones, handshakes fail.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const ServerTls& tls);

// Channels may share what this returns, and should: it has a thread.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const ChannelTls& tls);

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_TLS_H_
