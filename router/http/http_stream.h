// The bytes of an HTTP connection: a TCP socket, with or without TLS.
#ifndef BATON_ROUTER_HTTP_HTTP_STREAM_H_
#define BATON_ROUTER_HTTP_HTTP_STREAM_H_

#include <netinet/tcp.h>

#include <boost/asio/detail/socket_option.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>
#include <optional>
#include <utility>

namespace baton::router {

// An AsyncReadStream and AsyncWriteStream of Asio. All on the socket's strand.
class HttpStream {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Context = boost::asio::ssl::context;
  using executor_type = Socket::executor_type;
  using Error = boost::system::error_code;
  using NotSentLowWater =
      boost::asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>;
  static constexpr int kUnsentBytes = 64 << 10;  // bytes that may wait in the kernel

  // `context`: null for plaintext.
  HttpStream(Socket socket, std::shared_ptr<Context> context) : context_(std::move(context)) {
    if (context_ != nullptr) {
      tls_.emplace(std::move(socket), *context_);
    } else {
      plain_.emplace(std::move(socket));
    }
    Error ignored;
    this->socket().set_option(boost::asio::ip::tcp::no_delay(true), ignored);
    // By itself the kernel takes megabytes for a client that does not read, and takes more only
    // once a third of it is read: too seldom to tell a slow reader from one that has stopped.
    this->socket().set_option(NotSentLowWater(kUnsentBytes), ignored);
  }

  bool has_tls() const { return tls_.has_value(); }
  Socket& socket() { return tls_ ? tls_->next_layer() : *plain_; }
  executor_type get_executor() { return socket().get_executor(); }

  // REQUIRES: has_tls().
  template <class Handler>
  void Handshake(Handler handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::move(handler));
  }
  // Says that nothing more comes, and waits for the client to say so. REQUIRES: has_tls().
  template <class Handler>
  void ShutDown(Handler handler) {
    tls_->async_shutdown(std::move(handler));
  }

  template <class Buffers, class Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) return tls_->async_read_some(buffers, std::forward<Handler>(handler));
    plain_->async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <class Buffers, class Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) return tls_->async_write_some(buffers, std::forward<Handler>(handler));
    plain_->async_write_some(buffers, std::forward<Handler>(handler));
  }

 private:
  const std::shared_ptr<Context> context_;
  std::optional<Socket> plain_;
  std::optional<boost::asio::ssl::stream<Socket>> tls_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_HTTP_STREAM_H_
