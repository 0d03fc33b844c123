#include "router/http/http_tls.h"

#include <boost/asio/buffer.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::router {
namespace {

namespace net = boost::asio;
namespace ssl = boost::asio::ssl;

constexpr size_t kMaxPemBytes = 1 << 20;
constexpr char kBadFiles[] = "BAD_TLS_FILES";

}  // namespace

HttpTls::Source::Source(const std::string& path, const Clock& clock)
    : file(path, kMaxPemBytes, kBadFiles, clock) {}

absl::StatusOr<bool> HttpTls::Source::Look() {
  if (file.path().empty()) return false;
  std::optional<std::string> news;
  BATON_ASSIGN_OR_RETURN(news, file.Look());
  if (news) content = *std::move(news);
  return news.has_value();
}

HttpTls::HttpTls(const ServerTls& files, const Clock& clock)
    : cert_(files.cert, clock), key_(files.key, clock), client_ca_(files.client_ca, clock) {}

absl::Status HttpTls::Reload() {
  bool news = false;
  for (Source* source : {&cert_, &key_, &client_ca_}) {
    bool changed = false;
    BATON_ASSIGN_OR_RETURN(changed, source->Look());
    news = news || changed;
  }
  if (!news) return absl::OkStatus();
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* raw = context->native_handle();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(raw, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(raw, 0);
  boost::system::error_code error;
  context->use_certificate_chain(net::buffer(cert_.content), error);
  if (!error) context->use_private_key(net::buffer(key_.content), ssl::context::pem, error);
  if (!error && !client_ca_.content.empty()) {
    context->add_certificate_authority(net::buffer(client_ca_.content), error);
  }
  if (error) {
    return MakeError(absl::StatusCode::kInvalidArgument, kBadFiles,
                     absl::StrCat(cert_.file.path(), ", ", key_.file.path(), ", ",
                                  client_ca_.file.path(), ": ", error.message()));
  }
  if (!client_ca_.file.path().empty()) {
    context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert);
  }
  context_ = std::move(context);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HttpTls>> HttpTls::Load(const ServerTls& files, const Clock& clock) {
  std::unique_ptr<HttpTls> tls(new HttpTls(files, clock));
  absl::MutexLock lock(&tls->mutex_);
  BATON_RETURN_IF_ERROR(tls->Reload());
  return tls;
}

std::shared_ptr<ssl::context> HttpTls::Current() {
  absl::MutexLock lock(&mutex_);
  if (absl::Status reloaded = Reload(); !reloaded.ok()) {
    BATON_LOG(Error) << "HTTP: TLS: " << reloaded.message() << "; the last good files stay in use";
  }
  return context_;
}

}  // namespace baton::router
