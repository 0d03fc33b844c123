#include "router/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <deque>
#include <optional>
#include <thread>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "router/http/http_connection.h"
#include "router/http/http_tls.h"
#include "router/metrics.h"

namespace baton::router {
namespace {

namespace net = boost::asio;
using tcp = net::ip::tcp;
using boost::system::error_code;

// After accept() found no file descriptor.
constexpr std::chrono::milliseconds kAcceptPause(100);

}  // namespace

absl::string_view HttpRequest::Header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, name)) return value;
  }
  return "";
}

class HttpServer::Impl final : public HttpConnectionOwner {
 public:
  Impl(HttpServerOptions options, Handler handler, ErrorAnswer error_answer)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        error_answer_(std::move(error_answer)),
        acceptor_(net::make_strand(io_)),
        accept_pause_(acceptor_.get_executor()) {}

  absl::StatusOr<std::string> Listen();
  void Run();
  void StopAccepting();
  void Stop(absl::Duration grace);

  const HttpServerOptions& options() const override { return options_; }
  const Handler& handler() const override { return handler_; }
  const ErrorAnswer& error_answer() const override { return error_answer_; }
  bool draining() const override { return draining_; }
  void Remove(HttpConnection* connection) override {
    absl::MutexLock lock(&mutex_);
    connections_.erase(connection);
  }
  // A request is being answered, or no longer.
  void AddBusy(int change) override {
    absl::MutexLock lock(&mutex_);
    busy_ += change;
  }

 private:
  void Accept();
  void ForEach(void (HttpConnection::*method)());
  bool Empty() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return connections_.empty(); }
  bool IdleOrCut() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return busy_ == 0 || cut_; }

  const HttpServerOptions options_;
  const Handler handler_;
  const ErrorAnswer error_answer_;
  std::unique_ptr<HttpTls> tls_;  // null: plaintext
  net::io_context io_;
  tcp::acceptor acceptor_;  // on a strand, like its timer
  net::steady_timer accept_pause_;
  std::atomic<bool> draining_{false};
  absl::Mutex mutex_;
  std::unordered_set<HttpConnection*> connections_ ABSL_GUARDED_BY(mutex_);
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Mutex join_mutex_;
  std::optional<net::executor_work_guard<net::io_context::executor_type>> keep_running_;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(join_mutex_);
};

absl::StatusOr<std::string> HttpServer::Impl::Listen() {
  const std::string& address = options_.address;
  const auto cannot = [&](absl::string_view why) {
    return MakeError(absl::StatusCode::kUnavailable, "ADDRESS_IN_USE",
                     absl::StrCat("cannot listen for HTTP on ", address, ": ", why));
  };
  if (options_.tls.on()) {
    BATON_ASSIGN_OR_RETURN(tls_, HttpTls::Load(options_.tls, Clock::Real()));
  }
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return InvalidField("BAD_ADDRESS", "--http-listen",
                        absl::StrCat("\"", address, "\" given, host:port expected"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  error_code error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(
      host, absl::StrCat(port), tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) return cannot(error.message());
  const tcp::endpoint endpoint = *found.begin();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(net::socket_base::max_listen_connections, error);
  if (error) return cannot(error.message());
  return absl::StrCat(address.substr(0, colon), ":", acceptor_.local_endpoint().port());
}

void HttpServer::Impl::Run() {
  const int threads = options_.threads > 0
                          ? options_.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  keep_running_.emplace(io_.get_executor());
  net::post(acceptor_.get_executor(), [this] { Accept(); });
  absl::MutexLock lock(&join_mutex_);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { io_.run(); });
}

void HttpServer::Impl::Accept() {
  if (draining_) return;
  acceptor_.async_accept(net::make_strand(io_), [this](error_code error, tcp::socket socket) {
    if (error == net::error::operation_aborted || draining_) return;
    if (error) {
      // Out of file descriptors, most likely: some will be closed.
      BATON_LOG(Warning) << "HTTP: accept: " << error.message();
      accept_pause_.expires_after(kAcceptPause);
      accept_pause_.async_wait([this](error_code) { Accept(); });
      return;
    }
    std::shared_ptr<HttpConnection> connection;
    {
      absl::MutexLock lock(&mutex_);
      if (connections_.size() < options_.max_connections) {
        connection = std::make_shared<HttpConnection>(*this, std::move(socket),
                                                      tls_ ? tls_->Current() : nullptr);
        connections_.insert(connection.get());
      }
    }
    if (connection != nullptr) {
      connection->Run();
    } else if (options_.metrics != nullptr) {
      options_.metrics->HttpConnectionRefused();
    }
    Accept();
  });
}

void HttpServer::Impl::ForEach(void (HttpConnection::*method)()) {
  std::vector<std::shared_ptr<HttpConnection>> all;
  {
    absl::MutexLock lock(&mutex_);
    for (HttpConnection* connection : connections_) {
      if (auto shared = connection->weak_from_this().lock()) all.push_back(std::move(shared));
    }
  }
  for (const auto& connection : all) (connection.get()->*method)();
}

void HttpServer::Impl::StopAccepting() {
  if (draining_.exchange(true)) return;
  net::post(acceptor_.get_executor(), [this] {
    error_code ignored;
    acceptor_.close(ignored);
    accept_pause_.cancel();
  });
  ForEach(&HttpConnection::CloseIfIdle);
}

void HttpServer::Impl::Stop(absl::Duration grace) {
  StopAccepting();
  {
    absl::MutexLock lock(&mutex_);
    if (grace <= absl::ZeroDuration()) cut_ = true;
    mutex_.AwaitWithTimeout(absl::Condition(this, &Impl::IdleOrCut), grace);
  }
  ForEach(&HttpConnection::Cut);
  // Connections end when their calls have answered.
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Impl::Empty));
  }
  absl::MutexLock lock(&join_mutex_);
  keep_running_.reset();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                              Handler handler,
                                                              ErrorAnswer error_answer) {
  auto impl =
      std::make_unique<Impl>(std::move(options), std::move(handler), std::move(error_answer));
  absl::StatusOr<std::string> address = impl->Listen();
  if (!address.ok()) return address.status();
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(*std::move(address), std::move(impl)));
}

HttpServer::HttpServer(std::string address, std::unique_ptr<Impl> impl)
    : address_(std::move(address)), impl_(std::move(impl)) {}

HttpServer::~HttpServer() { Stop(absl::ZeroDuration()); }

void HttpServer::StopAccepting() { impl_->StopAccepting(); }

void HttpServer::Stop(absl::Duration grace) { impl_->Stop(grace); }

}  // namespace baton::router
