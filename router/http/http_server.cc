#include "router/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <list>
#include <optional>
#include <thread>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/listening_sockets.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"
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
        accept_strand_(net::make_strand(io_)) {}

  absl::StatusOr<std::string> Listen();
  void Run();
  void StartDraining();
  void Stop(absl::Duration grace);

  const HttpServerOptions& options() const override { return options_; }
  const Handler& handler() const override { return handler_; }
  const ErrorAnswer& error_answer() const override { return error_answer_; }
  bool draining() const override { return draining_; }
  void Remove(HttpConnection* connection) override {
    absl::MutexLock lock(&mutex_);
    connections_.erase(connection);
  }
  // +1: a request that Stop waits for is being answered; -1: no longer.
  void AddBusy(int change) override {
    absl::MutexLock lock(&mutex_);
    busy_ += change;
  }

 private:
  struct Door {
    Door(tcp::acceptor a, net::steady_timer t) : acceptor(std::move(a)), pause(std::move(t)) {}
    tcp::acceptor acceptor;
    net::steady_timer pause;
  };
  void Accept(Door& door);
  void CloseDoors();
  void ForEach(void (HttpConnection::*method)());
  bool Empty() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return connections_.empty(); }
  bool IdleOrCut() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return busy_ == 0 || cut_; }

  const HttpServerOptions options_;
  const Handler handler_;
  const ErrorAnswer error_answer_;
  std::unique_ptr<HttpTls> tls_;  // null: plaintext
  net::io_context io_;
  const net::strand<net::io_context::executor_type> accept_strand_;  // shared by all doors
  std::list<Door> doors_;  // one for each address that is listened on
  std::atomic<bool> draining_{false};
  absl::Mutex mutex_;
  std::unordered_set<HttpConnection*> connections_ ABSL_GUARDED_BY(mutex_);
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // no connection is added any more
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
  absl::StatusOr<ListeningSockets> sockets = ListeningSockets::Open(address);
  if (absl::IsInvalidArgument(sockets.status())) {
    return InvalidField("BAD_ADDRESS", "--http-listen", sockets.status().message());
  }
  if (!sockets.ok()) return cannot(sockets.status().message());
  for (const ListeningSockets::Socket& socket : sockets->Release()) {
    const tcp protocol = socket.family == AF_INET6 ? tcp::v6() : tcp::v4();
    doors_.emplace_back(tcp::acceptor(accept_strand_, protocol, socket.fd),
                        net::steady_timer(accept_strand_));
  }
  return sockets->address();
}

void HttpServer::Impl::Run() {
  const int threads = options_.threads > 0
                          ? options_.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  keep_running_.emplace(io_.get_executor());
  for (Door& door : doors_) {
    net::post(accept_strand_, [this, &door] { Accept(door); });
  }
  absl::MutexLock lock(&join_mutex_);
  for (int i = 0; i < threads; ++i) threads_.push_back(NamedThread("http", [this] { io_.run(); }));
}

void HttpServer::Impl::Accept(Door& door) {
  door.acceptor.async_accept(net::make_strand(io_),
                             [this, &door](error_code error, tcp::socket socket) {
                               if (error == net::error::operation_aborted) return;
                               if (error) {
                                 // Most likely no file descriptor is left: some will be closed.
                                 BATON_LOG(Warning) << "HTTP: accept: " << error.message();
                                 door.pause.expires_after(kAcceptPause);
                                 door.pause.async_wait([this, &door](error_code aborted) {
                                   if (!aborted) Accept(door);
                                 });
                                 return;
                               }
                               std::shared_ptr<HttpConnection> connection;
                               {
                                 absl::MutexLock lock(&mutex_);
                                 if (closed_) return;
                                 if (connections_.size() < options_.max_connections) {
                                   connection = std::make_shared<HttpConnection>(
                                       *this, std::move(socket), tls_ ? tls_->Current() : nullptr);
                                   connections_.insert(connection.get());
                                 }
                               }
                               if (connection != nullptr) {
                                 connection->Run();
                               } else if (options_.metrics != nullptr) {
                                 options_.metrics->HttpConnectionRefused();
                               }
                               Accept(door);
                             });
}

void HttpServer::Impl::CloseDoors() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(closed_, true)) return;
  }
  net::post(accept_strand_, [this] {
    error_code ignored;
    for (Door& door : doors_) {
      door.acceptor.close(ignored);
      door.pause.cancel();
    }
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

void HttpServer::Impl::StartDraining() {
  if (draining_.exchange(true)) return;
  ForEach(&HttpConnection::CloseIfIdle);
}

void HttpServer::Impl::Stop(absl::Duration grace) {
  StartDraining();
  {
    absl::MutexLock lock(&mutex_);
    if (grace <= absl::ZeroDuration()) cut_ = true;
    mutex_.AwaitWithTimeout(absl::Condition(this, &Impl::IdleOrCut), grace);
  }
  CloseDoors();
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

void HttpServer::StartDraining() { impl_->StartDraining(); }

void HttpServer::Stop(absl::Duration grace) { impl_->Stop(grace); }

}  // namespace baton::router
