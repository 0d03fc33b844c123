#include "common/telemetry/metrics.h"

#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/error.h"
#include "common/base/listening_sockets.h"
#include "common/base/named_thread.h"

namespace baton::telemetry {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = boost::asio::ip::tcp;
using boost::system::error_code;

// A Prometheus server keeps one connection to each process that it scrapes. More are closed at
// once.
constexpr int kMostConnections = 64;
// Longest pause between two scrapes of a connection.
constexpr std::chrono::seconds kIdleTimeout(150);
constexpr std::chrono::seconds kWriteTimeout(30);
constexpr uint32_t kMostHeaderBytes = 16 << 10;
// Pause after accept() finds no file descriptor.
constexpr std::chrono::milliseconds kMetricsAcceptPause(100);

using Answer = http::response<http::string_body>;

Answer AnswerTo(const http::request<http::empty_body>& request, prometheus::Registry& registry) {
  Answer answer;
  answer.version(request.version());
  answer.keep_alive(request.keep_alive());
  const absl::string_view target(request.target().data(), request.target().size());
  const bool head = request.method() == http::verb::head;
  if (target.substr(0, target.find('?')) != "/metrics") {
    answer.result(http::status::not_found);
    answer.body() = "only /metrics is served here\n";
  } else if (!head && request.method() != http::verb::get) {
    answer.result(http::status::method_not_allowed);
    answer.set(http::field::allow, "GET, HEAD");
  } else {
    answer.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    answer.body() = prometheus::TextSerializer().Serialize(registry.Collect());
  }
  answer.prepare_payload();
  if (head) answer.body().clear();
  return answer;
}

// A connection to a Prometheus server. It lives as long as one of its operations is pending.
class Scraper final : public std::enable_shared_from_this<Scraper> {
 public:
  Scraper(tcp::socket socket, prometheus::Registry& registry, int& open)
      : registry_(registry), open_(open), stream_(std::move(socket)) {
    ++open_;
  }
  ~Scraper() { --open_; }

  void Read() {
    parser_.emplace();
    parser_->header_limit(kMostHeaderBytes);
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    stream_.expires_after(kIdleTimeout);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](error_code error, size_t) {
                              if (!error) self->Write();
                            });
  }

 private:
  void Write() {
    answer_ = AnswerTo(parser_->get(), registry_);
    // No request here needs a body, so none is read; the connection ends instead.
    if (!parser_->is_done()) answer_.keep_alive(false);
    stream_.expires_after(kWriteTimeout);
    http::async_write(stream_, answer_, [self = shared_from_this()](error_code error, size_t) {
      if (!error && self->answer_.keep_alive()) self->Read();
    });
  }

  prometheus::Registry& registry_;
  int& open_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{2 * kMostHeaderBytes};
  std::optional<http::request_parser<http::empty_body>> parser_;
  Answer answer_;
};

}  // namespace

// Everything but the constructor and the destructor runs on its thread.
class MetricsEndpoint::Server {
 public:
  Server(std::vector<ListeningSockets::Socket> sockets, prometheus::Registry& registry)
      : registry_(registry) {
    for (const ListeningSockets::Socket& socket : sockets) {
      const tcp protocol = socket.family == AF_INET6 ? tcp::v6() : tcp::v4();
      Accept(doors_.emplace_back(tcp::acceptor(io_, protocol, socket.fd), net::steady_timer(io_)));
    }
    thread_ = NamedThread("metrics-http", [this] { io_.run(); });
  }
  ~Server() {
    io_.stop();
    thread_.join();
  }

 private:
  struct Door {
    Door(tcp::acceptor a, net::steady_timer t) : acceptor(std::move(a)), pause(std::move(t)) {}
    tcp::acceptor acceptor;
    net::steady_timer pause;
  };

  void Accept(Door& door) {
    door.acceptor.async_accept([this, &door](error_code error, tcp::socket socket) {
      if (error) {  // most likely no file descriptor is left: some will be closed
        door.pause.expires_after(kMetricsAcceptPause);
        door.pause.async_wait([this, &door](error_code) { Accept(door); });
        return;
      }
      if (open_ < kMostConnections) {
        std::make_shared<Scraper>(std::move(socket), registry_, open_)->Read();
      }
      Accept(door);
    });
  }

  prometheus::Registry& registry_;
  int open_ = 0;
  net::io_context io_{1};
  std::list<Door> doors_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address) {
  absl::StatusOr<ListeningSockets> sockets = ListeningSockets::Open(address);
  if (absl::IsInvalidArgument(sockets.status())) {
    return MakeError(absl::StatusCode::kInvalidArgument, "ADDRESS_INVALID",
                     absl::StrCat("metrics address ", sockets.status().message()));
  }
  if (!sockets.ok()) {
    return MakeError(
        absl::StatusCode::kUnavailable, "METRICS_BIND_FAILED",
        absl::StrCat("metrics address ", address, ": cannot be bound (", sockets.status().message(),
                     "): expected a free port on an address of this machine"));
  }
  auto registry = std::make_unique<prometheus::Registry>();
  auto server = std::make_unique<Server>(sockets->Release(), *registry);
  return std::unique_ptr<MetricsEndpoint>(
      new MetricsEndpoint(sockets->address(), std::move(registry), std::move(server)));
}

MetricsEndpoint::MetricsEndpoint(std::string address,
                                 std::unique_ptr<prometheus::Registry> registry,
                                 std::unique_ptr<Server> server)
    : address_(std::move(address)), registry_(std::move(registry)), server_(std::move(server)) {}

MetricsEndpoint::~MetricsEndpoint() = default;

}  // namespace baton::telemetry
