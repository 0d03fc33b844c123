#include "common/security/flags.h"

#include <CLI/CLI.hpp>

namespace baton::security {

void AddServerTls(CLI::App& app, ServerTls& tls) {
  app.add_option("--tls-cert,--ssl-certfile", tls.cert,
                 "PEM file of this server's certificate and its chain; read again when it changes");
  app.add_option("--tls-key,--ssl-keyfile", tls.key, "PEM file of the certificate's private key");
  app.add_option("--tls-client-ca,--ssl-ca-certs", tls.client_ca,
                 "PEM file of CAs; clients must have a certificate of one of them (mTLS)");
}

void AddWorkerTls(CLI::App& app, ChannelTls& tls) {
  app.add_option(
      "--worker-tls-ca", tls.ca,
      "PEM file of the CAs of workers' certificates; with it, workers are called by TLS");
  app.add_option("--worker-tls-cert", tls.cert,
                 "PEM file of the certificate for workers that require one");
  app.add_option("--worker-tls-key", tls.key, "PEM file of its private key");
  app.add_option("--worker-tls-server-name", tls.server_name,
                 "name that workers' certificates must have; empty: the host of the address");
}

void AddWorkerSecret(CLI::App& app, std::string& path) {
  app.add_option("--worker-secret-file", path,
                 "file with the secret that workers expect of their callers; read again when it "
                 "changes");
}

}  // namespace baton::security
