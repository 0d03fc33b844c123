// An HTTP/1.1 server on Boost.Beast's parser: a few threads serve any number of connections.
//
// The server reads requests and reports disconnects; what to answer is the handler's part. Answers
// are whole, or chunked streams of which one piece is written at a time.
#ifndef BATON_ROUTER_HTTP_HTTP_SERVER_H_
#define BATON_ROUTER_HTTP_HTTP_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/tls_files.h"
#include "router/request/request_bytes.h"

namespace baton::router {

class RouterMetrics;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"
  std::string path;     // "/v1/models"; the query is cut off, as are the scheme and host of a URL
  HttpHeaders headers;  // trailers are left out
  std::string body;
  RequestBytes::Share held;  // bytes of the body

  // The first header of that name, in any case; empty if there is none.
  absl::string_view Header(absl::string_view name) const;
};

// Values must be printable: they are written as they are. The server adds the headers that concern
// the connection.
struct HttpResponse {
  int status = 200;
  HttpHeaders headers;
  std::string body;
};

// The server's end of a request. Thread-safe, never blocks. Exactly one Respond, or one Begin with
// at least one Write and one End. After the client is gone, the calls have no effect but are still
// due.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;
  virtual void Respond(HttpResponse response) = 0;
  // Begins a stream. `head.body` is its first piece, not empty.
  virtual void Begin(HttpResponse head) = 0;
  // Only after HttpCall::OnWritten of the piece before it. `piece` is not empty.
  virtual void Write(std::string piece) = 0;
  // Ends the stream once what was written has left.
  virtual void End() = 0;
  // Resets the connection, whatever is unsent. May come in addition to the calls above.
  virtual void Abort() = 0;
};

// The handler's end of a request. Called one at a time, on a thread of the server.
class HttpCall {
 public:
  virtual ~HttpCall() = default;
  // A piece of the stream has been handed to the kernel.
  virtual void OnWritten() {}
  // The client has closed the connection, or the server stops. At most once, before OnDone.
  virtual void OnGone() {}
  // After Respond or End: the answer has been sent, or never will be. The last call.
  virtual void OnDone() {}
};

struct HttpServerOptions {
  std::string address = "127.0.0.1:0";  // host:port; port 0: any free port
  ServerTls tls;                        // without files: plaintext
  int threads = 0;                      // 0: one for each core
  size_t max_connections = 16'384;      // further ones are closed at once
  uint64_t max_body_bytes = 8 << 20;    // larger bodies are answered with 413
  // Counts the bytes of bodies, as they arrive. A body that no longer fits is answered with 429.
  // Null: there is no bound on their sum. Must outlive the server.
  RequestBytes* request_bytes = nullptr;
  // A connection without a request may stay open for idle_timeout, within which a request's head
  // must have come, too. Its body must have come within read_timeout after the head. A request that
  // has begun and comes too slowly is answered with 408.
  absl::Duration idle_timeout = absl::Seconds(75);
  absl::Duration read_timeout = absl::Seconds(60);
  // A client that reads nothing of what is being written for so long, by this clock, is gone.
  absl::Duration write_stall_timeout = absl::Seconds(30);
  const Clock* clock = &Clock::Real();
  // Counts connections, streams and answers; null: nothing is counted. Must outlive the server.
  RouterMetrics* metrics = nullptr;
  // Headers that each answer to a request has beside its own, errors included; null: none. `head`:
  // as much of the request as was understood, without its body.
  std::function<HttpHeaders(const HttpRequest& head)> shared_headers = nullptr;
  // The label of a path, one of a few.
  absl::string_view (*route)(absl::string_view path) = nullptr;
};

// Thread-safe.
class HttpServer {
 public:
  // Must answer every request, at once or later. Null: it has answered already. Runs on a thread of
  // the server, so it must not block.
  using Handler =
      std::function<std::shared_ptr<HttpCall>(HttpRequest, std::shared_ptr<HttpResponder>)>;
  // Answers a request that the server does not read to its end, with a status and why: 400, 413,
  // 431 or 501 for what it does not take, 408 for what came too slowly, 429 for what has no room in
  // `request_bytes`. `head`: as much of the request as was understood, perhaps nothing.
  using ErrorAnswer =
      std::function<HttpResponse(int status, absl::string_view why, const HttpRequest& head)>;

  // UNAVAILABLE, with the address in the message, if it cannot be bound; INVALID_ARGUMENT if the
  // files of TLS cannot be used. They are read again when they change.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options,
                                                           Handler handler,
                                                           ErrorAnswer error_answer);
  ~HttpServer();  // Stop(0)

  // "host:port" with the port that is bound.
  const std::string& address() const { return address_; }

  // From now on each connection ends with its next answer, and idle ones end at once. New
  // connections are accepted until Stop ends, and the handler decides what their requests get.
  // Returns at once.
  void StartDraining();
  // Does the same, waits up to `grace` for the requests that came before it and are being answered,
  // then accepts no more, reports all requests as gone, and returns when they have ended and their
  // responders are released. A Stop with a grace of zero shortens one that waits in another thread.
  void Stop(absl::Duration grace);

  class Impl;

 private:
  HttpServer(std::string address, std::unique_ptr<Impl> impl);
  const std::string address_;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_HTTP_SERVER_H_
