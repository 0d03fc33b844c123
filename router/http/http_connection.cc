#include "router/http/http_connection.h"

#include <algorithm>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "router/http/http_head.h"

namespace baton::router {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr uint32_t kMaxHeaderBytes = 32 << 10;
// What a client sends before its last request is answered is kept up to here. Beyond, its
// disconnect is noticed only by writing.
constexpr size_t kMaxReadAhead = 64 << 10;
constexpr size_t kReadAtOnce = 4096;
constexpr size_t kBodyAtOnce = 64 << 10;
constexpr size_t kWriteAtOnce = 64 << 10;
constexpr absl::Duration kLinger = absl::Seconds(2);
constexpr char kTooSlow[] = "the request took too long to arrive";
constexpr char kNoRoom[] = "the bodies of all requests would take too many bytes";

std::chrono::nanoseconds Chrono(absl::Duration duration) {
  return absl::ToChronoNanoseconds(duration);
}

std::string HeadText(const HttpResponse& response, const HttpHeaders& shared, bool close,
                     absl::string_view framing) {
  std::string head = absl::StrCat(
      "HTTP/1.1 ", response.status, " ",
      std::string(http::obsolete_reason(static_cast<http::status>(response.status))), "\r\n");
  for (const HttpHeaders* headers : {&response.headers, &shared}) {
    for (const auto& [name, value] : *headers) {
      absl::StrAppend(&head, name, ": ", value, "\r\n");
    }
  }
  absl::StrAppend(&head, framing);
  if (close) absl::StrAppend(&head, "Connection: close\r\n");
  absl::StrAppend(&head, "\r\n");
  return head;
}

}  // namespace

void HttpConnection::Expire(absl::Duration after) {
  timer_.expires_after(Chrono(after));
  timer_.async_wait([weak = weak_from_this()](error_code error) {
    if (error) return;
    if (auto self = weak.lock()) self->OnExpired();
  });
}

// A client that has begun a request learns that it was too slow. The end of the read does the rest.
void HttpConnection::OnExpired() {
  if (state_ != State::kReading || !parser_ || !parser_->got_some()) return Close();
  too_slow_ = true;
  error_code ignored;
  stream_.socket().cancel(ignored);
}

void HttpConnection::Handshake() {
  if (!stream_.has_tls()) return ReadRequest();
  Expire(server_.options().read_timeout);
  stream_.Handshake([self = shared_from_this()](error_code error) {
    error ? self->Close() : self->ReadRequest();
  });
}

void HttpConnection::ReadRequest() {
  if (state_ == State::kClosed) return;
  state_ = State::kReading;
  // During a drain each connection gets one more answer.
  if (server_.draining() && answered_) return Close();
  request_ = HttpRequest();
  too_slow_ = false;
  skipped_bytes_ = 0;
  SkipEmptyLines();
  Expire(server_.options().idle_timeout);
  ReadHead();
}

void HttpConnection::ReadHead() {
  parser_.emplace();
  parser_->header_limit(kMaxHeaderBytes);
  parser_->body_limit(server_.options().max_body_bytes);
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->OnHeader(error); });
}

// Some clients send an empty line behind a body; RFC 9112, 2.2, has servers ignore it.
bool HttpConnection::SkipEmptyLines() {
  const auto* const bytes = static_cast<const char*>(buffer_.data().data());
  size_t count = 0;
  while (count < buffer_.size() && skipped_bytes_ + count < kMostEmptyBytes &&
         (bytes[count] == '\r' || bytes[count] == '\n')) {
    ++count;
  }
  skipped_bytes_ += count;
  buffer_.consume(count);
  return count > 0;
}

void HttpConnection::OnHeader(error_code error) {
  if (state_ == State::kClosed) return;
  // Behind a request line that was read, it would be the body of what is refused.
  const bool begun = !parser_->get().target().empty();
  if (error && !too_slow_ && !begun && SkipEmptyLines()) return ReadHead();
  if (error || too_slow_) return OnReadError(error);
  const http::request<http::string_body>& message = parser_->get();
  request_ = HeadOf(message);
  if (const HttpRefusal refusal = CheckHead(message); refusal.status != 0) {
    return Refuse(refusal.status, refusal.why);
  }
  const HttpServerOptions& options = server_.options();
  if (options.request_bytes != nullptr) request_.held = options.request_bytes->Open();
  const uint64_t length = parser_->content_length().value_or(0);  // at most max_body_bytes
  // A request without a body is no load: health probes are answered however many bytes are held.
  if (length > 0 && !request_.held.MayGrow(static_cast<int64_t>(length))) {
    return Refuse(429, kNoRoom);
  }
  if (!absl::EqualsIgnoreCase(request_.Header("expect"), "100-continue")) return ReadBody();
  out_ = "HTTP/1.1 100 Continue\r\n\r\n";
  net::async_write(stream_, net::buffer(out_),
                   [self = shared_from_this()](error_code error, size_t) {
                     error ? self->Close() : self->ReadBody();
                   });
}

void HttpConnection::ReadBody() {
  if (state_ == State::kClosed) return;
  Expire(server_.options().read_timeout);
  ReadMoreBody();
}

// Reads piece by piece, because a body counts as it arrives: an eager parser would read on,
// uncounted, whenever a chunk ends with what has arrived.
void HttpConnection::ReadMoreBody() {
  if (state_ == State::kClosed) return;
  if (parser_->is_done()) return OnRequest();
  http::async_read_some(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->OnBody(error); });
}

void HttpConnection::OnBody(error_code error) {
  if (state_ == State::kClosed) return;
  if (error || too_slow_) return OnReadError(error);
  const auto arrived = static_cast<int64_t>(parser_->get().body().size());
  if (!request_.held.TryGrow(arrived - request_.held.bytes())) return Refuse(429, kNoRoom);
  // The parser reads as much at once as the buffer has room for: a long body comes in large pieces,
  // and no client gets more room than it has sent.
  buffer_.reserve(std::max(buffer_.size(), std::min<size_t>(arrived, kBodyAtOnce)));
  ReadMoreBody();
}

// What is no request gets an answer only if the client still listens.
void HttpConnection::OnReadError(error_code error) {
  if (too_slow_) return Refuse(408, kTooSlow);
  if (error == http::error::body_limit) {
    Refuse(413, error.message());
  } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    Refuse(431, error.message());
  } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
             error != http::error::end_of_stream && error != http::error::partial_message) {
    Refuse(400, error.message());
  } else {
    Close();
  }
}

void HttpConnection::Refuse(int status, absl::string_view why) {
  timer_.cancel();
  // If the head does not parse, the answer is for what was understood of it.
  if (request_.method.empty()) request_ = HeadOf(parser_->get());
  BeginAnswering(request_);
  close_after_ = true;
  HttpResponse response = server_.error_answer()(status, why, request_);
  request_ = HttpRequest();
  parser_.reset();
  Answer(std::move(response));
}

void HttpConnection::CountAnswer(int status) {
  if (metrics() != nullptr) metrics()->HttpAnswered(server_.options().route(path_), status);
}

void HttpConnection::OnRequest() {
  timer_.cancel();
  HttpRequest request = std::exchange(request_, HttpRequest());
  BeginAnswering(request);
  http::request<http::string_body> message = parser_->release();
  parser_.reset();
  chunked_ = message.version() >= 11;
  close_after_ = !message.keep_alive() || !chunked_;
  ending_ = ended_ = gone_ = false;
  request.body = std::move(message.body());
  // A long body's room is not kept.
  if (buffer_.size() == 0 && buffer_.capacity() > kReadAtOnce) buffer_.shrink_to_fit();
  ReadAhead();
  // Answers that come before the handler has returned wait for this thread.
  call_ = server_.handler()(std::move(request), shared_from_this());
}

// A request that comes during a drain is refused at once, so it does not delay the drain's end.
void HttpConnection::BeginAnswering(const HttpRequest& head) {
  state_ = State::kAnswering;
  path_ = head.path;
  head_only_ = head.method == "HEAD";
  if (server_.options().shared_headers) shared_headers_ = server_.options().shared_headers(head);
  busy_ = !server_.draining();
  if (busy_) server_.AddBusy(1);
}

void HttpConnection::ReadAhead() {
  if (reading_ahead_ || buffer_.size() >= kMaxReadAhead) return;
  reading_ahead_ = true;
  stream_.async_read_some(buffer_.prepare(kReadAtOnce),
                          [self = shared_from_this()](error_code error, size_t bytes) {
                            self->OnReadAhead(error, bytes);
                          });
}

void HttpConnection::OnReadAhead(error_code error, size_t bytes) {
  reading_ahead_ = false;
  if (state_ == State::kClosed) return;
  buffer_.commit(bytes);
  if (state_ == State::kLingering) {
    buffer_.consume(buffer_.size());
    error ? Close() : ReadAhead();
  } else if (error == net::error::operation_aborted && state_ == State::kReading) {
    ReadRequest();  // FinishAnswer cancelled it
  } else if (error) {
    const bool answering = state_ == State::kAnswering;
    Close();
    if (answering) ReportGone();
  } else if (state_ == State::kAnswering) {
    ReadAhead();
  } else {
    ReadRequest();
  }
}

void HttpConnection::Answer(HttpResponse response) {
  CountAnswer(response.status);
  ending_ = ended_ = true;
  close_after_ = close_after_ || server_.draining();
  // An answer of 204 has no body, and so no length.
  std::string text = HeadText(
      response, shared_headers_, close_after_,
      response.status == 204 ? "" : absl::StrCat("Content-Length: ", response.body.size(), "\r\n"));
  if (!head_only_) text += response.body;
  Send(std::move(text));
}

void HttpConnection::BeginStream(HttpResponse head) {
  CountAnswer(head.status);
  streaming_ = true;
  if (metrics() != nullptr) metrics()->HttpStreamsChanged(+1);
  close_after_ = close_after_ || server_.draining();
  std::string text = HeadText(head, shared_headers_, close_after_,
                              chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  text += Framed(std::move(head.body));
  Send(std::move(text));
}

std::string HttpConnection::Framed(std::string piece) const {
  if (!chunked_) return piece;
  return absl::StrCat(absl::Hex(piece.size()), "\r\n", piece, "\r\n");
}

void HttpConnection::Send(std::string text) {
  BATON_CHECK(!writing_) << "one piece at a time";
  writing_ = true;
  if (state_ == State::kClosed) {  // the answer is due all the same
    net::post(stream_.get_executor(),
              [self = shared_from_this()] { self->OnSent(net::error::operation_aborted); });
    return;
  }
  out_ = std::move(text);
  moved_ = true;
  WatchWrite();
  net::async_write(
      stream_, net::buffer(out_),
      [this](error_code error, size_t bytes) -> size_t {  // runs at first, and after each part
        moved_ = moved_ || bytes > 0;
        return error ? 0 : kWriteAtOnce;
      },
      [self = shared_from_this()](error_code error, size_t) { self->OnSent(error); });
}

// One timer serves many writes, because most end at once.
void HttpConnection::WatchWrite() {
  if (std::exchange(watching_, true)) return;
  stall_.Begin(server_.options().clock->SinceStart());
  AwaitLook();
}

void HttpConnection::AwaitLook() {
  write_timer_.expires_after(Chrono(stall_.period()));
  write_timer_.async_wait([weak = weak_from_this()](error_code error) {
    if (error) return;
    if (auto self = weak.lock()) self->LookAtWrite();
  });
}

void HttpConnection::LookAtWrite() {
  if (!writing_ || state_ == State::kClosed) {
    watching_ = false;
  } else if (stall_.Look(server_.options().clock->SinceStart(), std::exchange(moved_, false))) {
    watching_ = false;
    if (metrics() != nullptr) metrics()->AnswerNotRead("stalled");
    Reset();  // this ends the write
  } else {
    AwaitLook();
  }
}

void HttpConnection::OnSent(error_code error) {
  writing_ = false;
  if (error) {
    Close();
    if (!ended_) ReportGone();
  }
  if (ended_) return FinishAnswer();
  if (ending_) return FinishStream();
  if (call_ != nullptr) call_->OnWritten();
}

void HttpConnection::FinishStream() {
  ended_ = true;
  if (!chunked_ || state_ == State::kClosed) return FinishAnswer();
  Send("0\r\n\r\n");
}

void HttpConnection::FinishAnswer() {
  if (std::exchange(streaming_, false) && metrics() != nullptr) metrics()->HttpStreamsChanged(-1);
  answered_ = true;
  if (std::exchange(busy_, false)) server_.AddBusy(-1);
  if (std::shared_ptr<HttpCall> call = std::exchange(call_, nullptr)) call->OnDone();
  if (state_ == State::kClosed) return;
  if (close_after_) {
    // A close with unread data would reset the connection, and the client might lose the answer.
    // What it still sends, such as the rest of a body that is too large, is dropped for a while.
    state_ = State::kLingering;
    buffer_.consume(buffer_.size());
    Expire(kLinger);
    if (stream_.has_tls()) {
      stream_.ShutDown([self = shared_from_this()](error_code) { self->Close(); });
    } else {
      error_code ignored;
      stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    }
    return ReadAhead();
  }
  state_ = State::kReading;
  if (!reading_ahead_) return ReadRequest();
  if (server_.draining()) return Close();
  Expire(server_.options().idle_timeout);
  // The read that waits brings the next request, unless it is in the buffer already.
  error_code ignored;
  if (buffer_.size() > 0) stream_.socket().cancel(ignored);
}

void HttpConnection::ReportGone() {
  if (std::exchange(gone_, true) || call_ == nullptr) return;
  call_->OnGone();
}

// The kernel must not keep what it has for a client that does not read, nor the client take this
// for the end of its answer.
void HttpConnection::Reset() {
  if (state_ == State::kClosed) return;
  error_code ignored;
  stream_.socket().set_option(net::socket_base::linger(true, 0), ignored);
  Close();
}

void HttpConnection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  timer_.cancel();
  write_timer_.cancel();
  error_code ignored;
  stream_.socket().close(ignored);
}

}  // namespace baton::router
