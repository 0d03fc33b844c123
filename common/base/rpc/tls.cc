#include "common/base/rpc/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

namespace baton {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kReloadPeriod_s = 1;

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const ServerTls& files) {
  if (!files.on()) return grpc::InsecureServerCredentials();
  tls::TlsServerCredentialsOptions options(std::make_shared<tls::FileWatcherCertificateProvider>(
      files.key, files.cert, files.client_ca, kReloadPeriod_s));
  options.watch_identity_key_cert_pairs();
  if (files.client_ca.empty()) {
    options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  } else {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const ChannelTls& files) {
  if (!files.on()) return grpc::InsecureChannelCredentials();
  tls::TlsChannelCredentialsOptions options;
  if (!files.ca.empty() || !files.cert.empty()) {
    options.set_certificate_provider(std::make_shared<tls::FileWatcherCertificateProvider>(
        files.key, files.cert, files.ca, kReloadPeriod_s));
  }
  if (!files.ca.empty()) options.watch_root_certs();
  if (!files.cert.empty()) options.watch_identity_key_cert_pairs();
  return tls::TlsCredentials(options);
}

}  // namespace baton
