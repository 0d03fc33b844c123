// One HTTP/1.1 connection of an HttpServer.
#ifndef BATON_ROUTER_HTTP_HTTP_CONNECTION_H_
#define BATON_ROUTER_HTTP_HTTP_CONNECTION_H_

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/stall_watch.h"
#include "router/http/http_server.h"
#include "router/http/http_stream.h"
#include "router/metrics.h"

namespace baton::router {

class HttpConnection;

// Most bytes that are read and not yet parsed. This is more than a head, than what is read ahead,
// and than what is read at once of a body. A line of a chunked body must fit, and so must its
// trailers.
inline constexpr size_t kMaxBuffered = 128 << 10;

// Two empty lines before a request are ignored.
inline constexpr size_t kMostEmptyBytes = 4;

// The server, as its connections see it. Thread-safe.
class HttpConnectionOwner {
 public:
  virtual ~HttpConnectionOwner() = default;
  virtual const HttpServerOptions& options() const = 0;
  virtual const HttpServer::Handler& handler() const = 0;
  virtual const HttpServer::ErrorAnswer& error_answer() const = 0;
  // True once connections end with their next answer.
  virtual bool draining() const = 0;
  // +1: a request that came before the drain is being answered; -1: no longer.
  virtual void AddBusy(int change) = 0;
  // The last that the destructor of the connection does.
  virtual void Remove(HttpConnection* connection) = 0;
};

// All members are used on the socket's strand. Lives as long as an operation of it is pending or
// someone has it as a responder.
class HttpConnection final : public HttpResponder,
                             public std::enable_shared_from_this<HttpConnection> {
 public:
  // `context`: of TLS; null for plaintext.
  HttpConnection(HttpConnectionOwner& server, boost::asio::ip::tcp::socket socket,
                 std::shared_ptr<HttpStream::Context> context)
      : place_{server, *this},
        server_(server),
        stream_(std::move(socket), std::move(context)),
        timer_(stream_.get_executor()),
        write_timer_(stream_.get_executor()),
        stall_(server.options().write_stall_timeout) {
    if (metrics() != nullptr) metrics()->HttpConnectionsChanged(+1);
  }
  ~HttpConnection() override {
    if (metrics() != nullptr) metrics()->HttpConnectionsChanged(-1);
  }

  void Run() {
    OnStrand([](HttpConnection& c) { c.Handshake(); });
  }
  // Ends the connection if it waits for another request than its first one.
  void CloseIfIdle() {
    OnStrand([](HttpConnection& c) {
      if (c.state_ == State::kReading && c.answered_) c.Close();
    });
  }
  void Cut() {
    OnStrand([](HttpConnection& c) {
      c.Close();
      c.ReportGone();
    });
  }

  void Respond(HttpResponse response) override {
    OnStrand([response = std::move(response)](HttpConnection& c) mutable {
      c.Answer(std::move(response));
    });
  }
  void Begin(HttpResponse head) override {
    OnStrand(
        [head = std::move(head)](HttpConnection& c) mutable { c.BeginStream(std::move(head)); });
  }
  void Write(std::string piece) override {
    OnStrand([piece = std::move(piece)](HttpConnection& c) mutable {
      c.Send(c.Framed(std::move(piece)));
    });
  }
  void End() override {
    OnStrand([](HttpConnection& c) {
      c.ending_ = true;
      if (!c.writing_) c.FinishStream();
    });
  }
  void Abort() override {
    OnStrand([](HttpConnection& c) {
      c.Reset();
      c.ReportGone();
    });
  }

 private:
  enum class State { kReading, kAnswering, kLingering, kClosed };
  struct Place {
    ~Place() { server.Remove(&connection); }
    HttpConnectionOwner& server;
    HttpConnection& connection;
  };

  // Later, never from within: callers may hold locks.
  template <class Function>
  void OnStrand(Function function) {
    boost::asio::post(
        stream_.get_executor(),
        [self = shared_from_this(), function = std::move(function)]() mutable { function(*self); });
  }

  void Handshake();
  RouterMetrics* metrics() const { return server_.options().metrics; }
  void CountAnswer(int status);
  void ReadRequest();
  void ReadHead();
  // Drops empty lines before a request. False if there are none, or too many came before.
  bool SkipEmptyLines();
  void OnHeader(boost::system::error_code error);
  void ReadBody();
  void ReadMoreBody();
  void OnBody(boost::system::error_code error);
  void OnRequest();
  // A read has failed, or was too slow.
  void OnReadError(boost::system::error_code error);
  void Refuse(int status, absl::string_view why);
  void OnExpired();
  // `head`: what was understood of the request.
  void BeginAnswering(const HttpRequest& head);
  void ReadAhead();
  void OnReadAhead(boost::system::error_code error, size_t bytes);
  void Answer(HttpResponse response);
  void BeginStream(HttpResponse head);
  std::string Framed(std::string piece) const;
  void Send(std::string text);
  // Looks at the write under way, now and then, until none is.
  void WatchWrite();
  void AwaitLook();
  void LookAtWrite();
  void OnSent(boost::system::error_code error);
  void FinishStream();
  void FinishAnswer();
  void ReportGone();
  void Reset();
  void Close();
  void Expire(absl::Duration after);

  // Declared first, so destroyed last: the server, whose event loop the others use, may be gone as
  // soon as its last connection is. Another thread than the loop's may release a responder.
  const Place place_;
  HttpConnectionOwner& server_;
  HttpStream stream_;
  boost::asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_{kMaxBuffered};
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  State state_ = State::kReading;
  // The request that is being read. It has the head as soon as that has come, so trailers do not
  // count.
  HttpRequest request_;
  bool too_slow_ = false;       // the read was cut short
  std::string path_;            // path of the request being answered
  HttpHeaders shared_headers_;  // of the answer to it, beside its own
  std::shared_ptr<HttpCall> call_;
  size_t skipped_bytes_ = 0;    // of empty lines before the request
  bool head_only_ = false;      // the request is a HEAD, whose answer has no body
  bool answered_ = false;       // a request was answered
  bool busy_ = false;           // the server counts the request as busy
  bool close_after_ = false;    // the connection ends with this answer
  bool streaming_ = false;      // the answer is a stream
  bool chunked_ = false;        // else the end of the connection ends the stream
  bool ending_ = false;         // nothing comes after what is being written
  bool ended_ = false;          // the end itself is being written
  bool reading_ahead_ = false;  // a read waits for the next request, or the client's end
  bool writing_ = false;
  boost::asio::steady_timer write_timer_;
  StallWatch stall_;
  bool watching_ = false;  // write_timer_ runs
  bool moved_ = false;     // the write has moved since the last look
  bool gone_ = false;      // the client's end was reported
  std::string out_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_HTTP_CONNECTION_H_
