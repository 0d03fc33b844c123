#include "router/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "tests/testing/http_client.h"
#include "tests/testing/ipv6.h"

namespace baton::router {
namespace {

using ::baton::testing::HttpClient;
using ::baton::testing::HttpReply;
using ::testing::HasSubstr;

// A request that the test answers.
struct Taken : HttpCall {
  HttpRequest request;
  std::shared_ptr<HttpResponder> responder;
  absl::Notification written, gone, done;
  int writes = 0;
  void OnWritten() override {
    if (++writes == 1) written.Notify();
  }
  void OnGone() override { gone.Notify(); }
  void OnDone() override { done.Notify(); }
};

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    options.threads = 2;
    auto server = HttpServer::Start(
        options,
        [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
          return Handle(std::move(request), std::move(responder));
        },
        [](int status, absl::string_view why, const HttpRequest&) {
          return HttpResponse{status, {}, absl::StrCat("bad: ", why)};
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // "/echo" is answered with the body, anything else waits for the test.
  std::shared_ptr<HttpCall> Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    if (request.path == "/echo") {
      responder->Respond({200, {{"X-Method", request.method}}, request.body});
      return nullptr;
    }
    auto taken = std::make_shared<Taken>();
    taken->request = std::move(request);
    taken->responder = std::move(responder);
    absl::MutexLock lock(&mutex_);
    taken_.push_back(taken);
    return taken;
  }

  std::shared_ptr<Taken> Await() {
    absl::MutexLock lock(&mutex_);
    const auto any = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !taken_.empty(); };
    BATON_CHECK(mutex_.AwaitWithTimeout(absl::Condition(&any), absl::Minutes(1)));
    auto first = taken_.front();
    taken_.erase(taken_.begin());
    return first;
  }

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<Taken>> taken_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<HttpServer> server_;
};

std::string Chunked(const std::string& chunks) {
  return absl::StrCat("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
                      chunks);
}

bool Comes(absl::Notification& event) {
  return event.WaitForNotificationWithTimeout(absl::Minutes(1));
}

TEST_F(HttpServerTest, AConnectionServesOneRequestAfterTheOther) {
  Start();
  HttpClient client(server_->address());
  for (const std::string body : {"one", "", "three"}) {
    client.Post("/echo?query", body);
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, body);
    EXPECT_EQ(reply.Header("X-Method"), "POST");
  }
}

// They come in pieces that grow with what has come.
TEST_F(HttpServerTest, LongBodiesArriveWhole) {
  Start();
  HttpClient client(server_->address());
  for (const int bytes : {1, 4095, 4097, 65536, 65537, 300'000, 2}) {
    std::string body(bytes, ' ');
    for (int i = 0; i < bytes; ++i) body[i] = static_cast<char>('a' + i % 23);
    client.Post("/echo", body);
    EXPECT_EQ(client.Read().body, body);
    // With another request right behind it.
    client.Send(absl::StrCat("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: ", bytes,
                             "\r\n\r\n", body,
                             "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nb"));
    EXPECT_EQ(client.Read().body, body);
    EXPECT_EQ(client.Read().body, "b");
  }
}

TEST_F(HttpServerTest, RequestsSentTogetherAreAnsweredInTheirOrder) {
  Start();
  HttpClient client(server_->address());
  client.Send(
      "POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na"
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nb"
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nc");
  auto slow = Await();
  EXPECT_EQ(slow->request.body, "a");
  slow->responder->Respond({201, {}, "first"});
  EXPECT_EQ(client.Read().body, "first");
  EXPECT_EQ(client.Read().body, "b");
  EXPECT_EQ(client.Read().body, "c");
  EXPECT_TRUE(Comes(slow->done));
  EXPECT_FALSE(slow->gone.HasBeenNotified());
}

TEST_F(HttpServerTest, AStreamArrivesPieceByPieceAndTheConnectionLivesOn) {
  Start();
  HttpClient client(server_->address());
  client.Get("/stream");
  auto call = Await();
  call->responder->Begin({200, {{"Content-Type", "text/event-stream"}}, "one"});
  EXPECT_THAT(client.ReadUntil("one\r\n"), HasSubstr("Transfer-Encoding: chunked"));
  ASSERT_TRUE(Comes(call->written));
  call->responder->Write("two");
  EXPECT_EQ(client.ReadUntil("two\r\n"), "3\r\ntwo\r\n");
  call->responder->End();
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_TRUE(Comes(call->done));
  client.Post("/echo", "next");
  EXPECT_EQ(client.Read().body, "next");
}

TEST_F(HttpServerTest, AStreamThatEndsWithItsFirstPiece) {
  Start();
  HttpClient client(server_->address());
  client.Get("/stream");
  auto call = Await();
  call->responder->Begin({200, {}, "all"});
  call->responder->End();
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "all");
  EXPECT_TRUE(Comes(call->done));
}

TEST_F(HttpServerTest, AnOldClientGetsAStreamWithoutChunksThatEndsWithTheConnection) {
  Start();
  HttpClient client(server_->address());
  client.Send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  auto call = Await();
  call->responder->Begin({200, {}, "one"});
  ASSERT_TRUE(Comes(call->written));
  call->responder->Write("two");
  call->responder->End();
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.body, "onetwo");
  EXPECT_EQ(reply.Header("Connection"), "close");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(HttpServerTest, AClientThatLeavesIsNoticedBeforeAnythingIsWritten) {
  Start();
  HttpClient client(server_->address());
  client.Get("/wait");
  auto call = Await();
  EXPECT_FALSE(call->gone.HasBeenNotified());
  client.Close();
  EXPECT_TRUE(Comes(call->gone));
  EXPECT_FALSE(call->done.HasBeenNotified());
  call->responder->Respond({200, {}, "to no one"});
  EXPECT_TRUE(Comes(call->done));
}

TEST_F(HttpServerTest, AClientThatLeavesAStreamIsNoticedWhileNothingIsWritten) {
  Start();
  HttpClient client(server_->address());
  client.Get("/stream");
  auto call = Await();
  call->responder->Begin({200, {}, "one"});
  client.ReadUntil("one");
  ASSERT_TRUE(Comes(call->written));
  client.Close();
  EXPECT_TRUE(Comes(call->gone));
  call->responder->Write("two");
  call->responder->End();
  EXPECT_TRUE(Comes(call->done));
}

TEST_F(HttpServerTest, AnAbortedAnswerEndsTheConnection) {
  Start();
  HttpClient client(server_->address());
  client.Get("/stream");
  auto call = Await();
  call->responder->Begin({200, {}, "one"});
  client.ReadUntil("one\r\n");
  call->responder->Abort();
  EXPECT_TRUE(client.AtEnd());
  EXPECT_TRUE(Comes(call->gone));
  call->responder->End();
  EXPECT_TRUE(Comes(call->done));
}

TEST_F(HttpServerTest, WhatIsNoRequestIsRefusedWithItsStatus) {
  HttpServerOptions options;
  options.max_body_bytes = 10;
  Start(options);
  const struct {
    std::string bytes;
    int status;
  } cases[] = {
      {"nonsense\r\n\r\n", 400},
      {"GET / HTTP/9.9\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n12345678901", 413},
      {Chunked("b\r\n12345678901\r\n0\r\n\r\n"), 413},
      {Chunked("zz\r\n"), 400},
      {absl::StrCat("GET / HTTP/1.1\r\nHost: a\r\nX: ", std::string(64 << 10, 'x'), "\r\n\r\n"),
       431},
  };
  for (const auto& [bytes, status] : cases) {
    HttpClient client(server_->address());
    client.Send(bytes);
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, status) << bytes.substr(0, 60);
    EXPECT_THAT(reply.body, HasSubstr("bad: "));
  }
  // The server lives, and a chunked body within the limit is read.
  HttpClient client(server_->address());
  client.Send(Chunked("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"));
  EXPECT_EQ(client.Read().body, "abcde");
}

// What a proxy before this server may understand in another way is refused, and ends the
// connection: what follows is no request (RFC 9112, 3.2, 5, 6.1, 6.3, 7.1, 11.2).
TEST_F(HttpServerTest, WhatIsAmbiguousIsRefused) {
  Start();
  const auto post = [](const std::string& headers, const std::string& body = "") {
    return absl::StrCat("POST /echo HTTP/1.1\r\nHost: a\r\n", headers, "\r\n\r\n", body);
  };
  const std::string chunks = "2\r\nab\r\n0\r\n\r\n";
  const struct {
    std::string bytes;
    int status;
  } cases[] = {
      {"GET /echo HTTP/1.1\r\n\r\n", 400},
      {"GET /echo HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
      {"GET /echo HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET http://b/echo HTTP/1.1\r\n\r\n", 400},
      {"GET /echo HTTP/1.1\r\nHost: a, b\r\n\r\n", 400},
      {"GET /echo HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {post("Transfer-Encoding: xchunked", chunks), 400},
      {post("Transfer-Encoding: identity\r\nContent-Length: 2", "ab"), 400},
      {post("Transfer-Encoding: identity"), 400},
      {post("Transfer-Encoding: gzip, chunked", chunks), 501},
      {post("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", chunks), 501},
      {post("Transfer-Encoding: chunked, gzip", chunks), 400},
      {post("Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip", chunks), 400},
      {post("Transfer-Encoding: chunked, chunked", chunks), 400},
      {post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", chunks), 400},
      {post("Transfer-Encoding: \"chunked\"", chunks), 400},
      {post("Transfer-Encoding:", chunks), 400},
      {post("Transfer-Encoding: chunked\r\nContent-Length: 12", chunks), 400},
      {post("Content-Length: 12\r\nTransfer-Encoding: chunked", chunks), 400},
      {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks, 400},
      {post("Content-Length: 2\r\nContent-Length: 2", "ab"), 400},
      {post("Content-Length: 2\r\nContent-Length: 3", "abc"), 400},
      {post("Content-Length: 2, 2", "ab"), 400},
      {post("Content-Length: +2", "ab"), 400},
      {post("Content-Length: 0x2", "ab"), 400},
      {post("Content-Length: -1"), 400},
      {post("Content-Length:"), 400},
      {post("Content-Length: 18446744073709551618", "ab"), 400},
      {post("Content-Length : 2", "ab"), 400},
      {post(" Content-Length: 2", "ab"), 400},
      {post("Content\tLength: 2", "ab"), 400},
      {post("X: a\nContent-Length: 2", "ab"), 400},
      {post("X: a\rContent-Length: 2", "ab"), 400},
      {post(absl::StrCat("X: a", std::string(1, '\0'), "b")), 400},
      {"GET /echo HTTP/1.1\nHost: a\n\n\r\n\r\n", 400},
      {"GET  /echo HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {Chunked("2 \r\nab\r\n0\r\n\r\n"), 400},
      {Chunked("0x2\r\nab\r\n0\r\n\r\n"), 400},
      {Chunked("-2\r\nab\r\n0\r\n\r\n"), 400},
      {Chunked("\r\nab\r\n0\r\n\r\n"), 400},
      {Chunked("2\nab\r\n0\r\n\r\n"), 400},
      {Chunked("2\r\nabc\r\n0\r\n\r\n"), 400},
      {Chunked("10000000000000002\r\nab\r\n0\r\n\r\n"), 400},
      {Chunked("ffffffffffffffff\r\nab\r\n0\r\n\r\n"), 413},
      {Chunked("2;=x\r\nab\r\n0\r\n\r\n"), 400},
      {Chunked("2\r\nab\r\n0\r\nContent-Length: 9\r\n\r\n"), 400},
      {Chunked(absl::StrCat("2;x=", std::string(1 << 20, 'x'), "\r\nab\r\n0\r\n\r\n")), 431},
      {Chunked(absl::StrCat("0\r\nX: ", std::string(1 << 20, 'x'), "\r\n\r\n")), 431},
  };
  for (const auto& [bytes, status] : cases) {
    HttpClient client(server_->address());
    client.Send(bytes + "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_EQ(client.Read().status, status) << bytes.substr(0, 100);
    EXPECT_TRUE(client.AtEnd()) << bytes.substr(0, 100);
  }
}

TEST_F(HttpServerTest, WhatIsUnusualAndClearIsServed) {
  Start();
  const struct {
    std::string bytes, path, body;
  } cases[] = {
      {"GET http://other:80/v1/models?x=1 HTTP/1.1\r\nHost: a\r\n\r\n", "/v1/models", ""},
      {"GET HTTPS://other/v1/models HTTP/1.1\r\nHost: a\r\n\r\n", "/v1/models", ""},
      {"GET http://other HTTP/1.1\r\nHost: a\r\n\r\n", "/", ""},
      {"GET http://other?x=/y HTTP/1.1\r\nHost: a\r\n\r\n", "/", ""},
      {"GET /http://x HTTP/1.1\r\nHost: a\r\n\r\n", "/http://x", ""},
      {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "*", ""},
      {"GET / HTTP/1.1\r\nHost:\r\n\r\n", "/", ""},
      {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "/", ""},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
       "Chunked\r\n\r\n2;a=\"b;c\"\r\nab\r\n0\r\n\r\n",
       "/", "ab"},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 002\r\n\r\nab", "/", "ab"},
      {"\r\n\r\nGET /behind-lines HTTP/1.1\r\nHost: a\r\n\r\n", "/behind-lines", ""},
  };
  for (const auto& [bytes, path, body] : cases) {
    HttpClient client(server_->address());
    client.Send(bytes);
    auto call = Await();
    EXPECT_EQ(call->request.path, path) << bytes;
    EXPECT_EQ(call->request.body, body) << bytes;
    call->responder->Respond({200, {}, "served"});
    EXPECT_EQ(client.Read().body, "served") << bytes;
  }
}

// Some clients send an empty line behind a body: with it, or later.
TEST_F(HttpServerTest, FewEmptyLinesBeforeARequestAreIgnored) {
  Start();
  HttpClient client(server_->address());
  const std::string post = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
  client.Send(post + "\r\n" + post + "\r");
  EXPECT_EQ(client.Read().body, "ab");
  EXPECT_EQ(client.Read().body, "ab");
  client.Send("\n");
  client.Send(post);
  EXPECT_EQ(client.Read().body, "ab");
  client.Send("\r\n\r\n\r\n" + post);
  EXPECT_EQ(client.Read().status, 400) << "three are too many";
}

// The body of a request that is refused may begin with an empty line and look like a request.
TEST_F(HttpServerTest, WhatFollowsAWrongHeadIsNoRequest) {
  Start();
  for (const char* const wrong : {"Content-Length: x", "Content-Length: 99999999999", "Bad header",
                                  "Transfer-Encoding: other"}) {
    HttpClient client(server_->address());
    client.Send(absl::StrCat("POST /echo HTTP/1.1\r\nHost: a\r\n", wrong, "\r\n"));
    client.Send("\r\n\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
    EXPECT_NE(client.Read().status, 200) << wrong;
    EXPECT_TRUE(client.AtEnd()) << wrong;
  }
}

TEST_F(HttpServerTest, TheAnswerToAHeadHasTheLengthOfTheBodyAndNoBody) {
  Start();
  HttpClient client(server_->address());
  client.Send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  Await()->responder->Respond({200, {}, "not sent"});
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 8\r\n"));
  client.Post("/echo", "next");
  EXPECT_EQ(client.Read().body, "next");
}

// A trailer comes after everything that was decided by the headers; a folded line is one value.
TEST_F(HttpServerTest, TrailersAreNoHeadersAndAFoldedLineIsOneValue) {
  Start();
  HttpClient client(server_->address());
  client.Send(
      "POST /wait HTTP/1.1\r\nHost: a\r\nX-Folded: one\r\n two\r\nTransfer-Encoding: "
      "chunked\r\n\r\n"
      "2\r\nab\r\n0\r\nAuthorization: Bearer late\r\n\r\n");
  auto call = Await();
  EXPECT_EQ(call->request.Header("x-folded"), "one two");
  EXPECT_EQ(call->request.Header("authorization"), "");
  EXPECT_EQ(call->request.body, "ab");
  call->responder->Respond({200, {}, "served"});
  EXPECT_EQ(client.Read().body, "served");
}

// The bound holds for bodies with a declared length and for chunked ones.
TEST_F(HttpServerTest, TheSumOfBodiesIsBounded) {
  std::atomic<int64_t> held = 0;
  RequestBytes bytes(100, [&](int64_t now) { held = now; });
  HttpServerOptions options;
  options.request_bytes = &bytes;
  Start(options);
  HttpClient first(server_->address()), second(server_->address());
  first.Post("/wait", std::string(80, 'x'));
  auto call = Await();
  EXPECT_EQ(held, 80);
  EXPECT_EQ(call->request.held.bytes(), 80);
  second.Post("/echo", std::string(20, 'y'));
  EXPECT_EQ(second.Read().status, 200);
  second.Send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 21\r\n\r\n");
  EXPECT_EQ(second.Read().status, 429) << "before its body was sent";
  HttpClient third(server_->address());
  third.Send(Chunked(absl::StrCat("14\r\n", std::string(20, 'z'), "\r\n")));
  third.Send(absl::StrCat("14\r\n", std::string(20, 'z'), "\r\n"));
  EXPECT_EQ(third.Read().status, 429);
  EXPECT_TRUE(third.AtEnd());
  call->request = HttpRequest();
  EXPECT_EQ(held, 0);
  call->responder->Respond({200, {}, "served"});
  EXPECT_EQ(first.Read().status, 200);
  first.Post("/wait", std::string(1000, 'x'));
  auto large = Await();
  EXPECT_EQ(held, 1000) << "alone, every body fits";
  HttpClient fourth(server_->address());
  fourth.Get("/echo");
  EXPECT_EQ(fourth.Read().status, 200) << "what has no body is no load";
  fourth.Post("/echo", "x");
  EXPECT_EQ(fourth.Read().status, 429);
  large->request = HttpRequest();
  large->responder->Respond({200, {}, "served"});
  EXPECT_EQ(first.Read().status, 200);
}

TEST_F(HttpServerTest, AClientThatIsStillSendingGetsItsRefusal) {
  HttpServerOptions options;
  options.max_body_bytes = 10;
  Start(options);
  for (int i = 0; i < 20; ++i) {
    HttpClient client(server_->address());
    client.Post("/echo", std::string(1 << 20, 'x'));
    EXPECT_EQ(client.Read().status, 413);
    EXPECT_TRUE(client.AtEnd());
  }
}

TEST_F(HttpServerTest, AClientMayAskBeforeItSendsItsBody) {
  Start();
  HttpClient client(server_->address());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("body");
  EXPECT_EQ(client.Read().body, "body");
}

TEST_F(HttpServerTest, ConnectionsBeyondTheLimitAreClosed) {
  HttpServerOptions options;
  options.max_connections = 2;
  Start(options);
  HttpClient first(server_->address()), second(server_->address());
  first.Post("/echo", "1");
  second.Post("/echo", "2");
  EXPECT_EQ(first.Read().body, "1");
  EXPECT_EQ(second.Read().body, "2");
  HttpClient third(server_->address());
  EXPECT_TRUE(third.AtEnd());
}

TEST_F(HttpServerTest, AnIdleConnectionIsClosedAndARequestThatStopsIsAnswered) {
  HttpServerOptions options;
  options.idle_timeout = options.read_timeout = absl::Milliseconds(50);
  Start(options);
  // A connection is idle, too, until its client has sent something. On a busy machine that may take
  // this test as long as the limit: then it asks again, over another connection.
  const absl::Time end = absl::Now() + testing::kPatience;
  HttpClient idle(server_->address());
  EXPECT_TRUE(idle.AtEnd());
  HttpReply reply;
  for (; reply.status == 0 && absl::Now() < end;) {
    HttpClient used(server_->address());
    used.Post("/echo", "1");
    reply = used.Read();
    EXPECT_TRUE(used.AtEnd());
  }
  EXPECT_EQ(reply.body, "1");
  for (const std::string begun :
       {"POST /echo HT", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"}) {
    for (reply = {}; reply.status == 0 && absl::Now() < end;) {
      HttpClient stuck(server_->address());
      stuck.Send(begun);
      if (begun.find("100-continue") != std::string::npos) stuck.ReadUntil("\r\n\r\n");
      reply = stuck.Read();
      EXPECT_TRUE(stuck.AtEnd());
    }
    EXPECT_EQ(reply.status, 408) << begun;
    EXPECT_THAT(reply.body, HasSubstr("took too long"));
    EXPECT_EQ(reply.Header("Connection"), "close");
  }
}

TEST_F(HttpServerTest, ADrainClosesIdleConnectionsAndAwaitsTheOthers) {
  Start();
  HttpClient idle(server_->address()), busy(server_->address()), silent(server_->address());
  idle.Post("/echo", "one");
  EXPECT_EQ(idle.Read().body, "one");
  busy.Get("/wait");
  auto call = Await();
  std::thread stop([this] { server_->Stop(absl::Minutes(5)); });
  EXPECT_TRUE(idle.AtEnd());
  // A connection that was open without a request, and new ones, get one answer each.
  silent.Post("/echo", "two");
  HttpReply refused = silent.Read();
  EXPECT_EQ(refused.body, "two");
  EXPECT_EQ(refused.Header("Connection"), "close");
  for (const char* body : {"three", "four"}) {
    HttpClient late(server_->address());
    late.Post("/echo", body);
    EXPECT_EQ(late.Read().body, body);
    EXPECT_TRUE(late.AtEnd());
  }
  std::exchange(call->responder, nullptr)->Respond({200, {}, "late"});
  const HttpReply reply = busy.Read();
  EXPECT_EQ(reply.body, "late");
  EXPECT_EQ(reply.Header("Connection"), "close");
  stop.join();
  EXPECT_FALSE(call->gone.HasBeenNotified());
  EXPECT_FALSE(HttpClient(server_->address()).connected());
}

TEST_F(HttpServerTest, ARequestThatComesDuringTheDrainDoesNotHoldUpItsEnd) {
  Start();
  server_->StartDraining();
  HttpClient late(server_->address());
  late.Get("/wait");
  auto call = Await();
  std::thread stop([this] { server_->Stop(absl::InfiniteDuration()); });
  EXPECT_TRUE(Comes(call->gone));
  std::exchange(call->responder, nullptr)->Respond({200, {}, "too late"});
  stop.join();
}

TEST_F(HttpServerTest, AStopWithoutGraceReportsClientsAsGoneAndAwaitsTheirCalls) {
  Start();
  HttpClient busy(server_->address());
  busy.Get("/wait");
  auto call = Await();
  std::thread drain([this] { server_->Stop(absl::Minutes(5)); });
  std::thread stop([this] { server_->Stop(absl::ZeroDuration()); });
  EXPECT_TRUE(Comes(call->gone));
  EXPECT_TRUE(busy.AtEnd());
  std::exchange(call->responder, nullptr)->Respond({200, {}, "too late"});
  stop.join();
  drain.join();
  EXPECT_TRUE(call->done.HasBeenNotified());
}

TEST_F(HttpServerTest, ListensOnIpv6) {
  if (!testing::HasIpv6()) GTEST_SKIP() << "this machine has no ::1";
  for (const char* address : {"[::1]:0", "[::]:0"}) {
    HttpServerOptions options;
    options.address = address;
    Start(options);
    const std::string port = server_->address().substr(server_->address().rfind(':'));
    HttpClient client("[::1]" + port);
    client.Post("/echo", "six");
    EXPECT_EQ(client.Read().body, "six");
    HttpClient four("127.0.0.1" + port);
    EXPECT_EQ(four.connected(), address == std::string("[::]:0"));
    server_.reset();
  }
}

TEST(HttpServerAddressTest, ABadOrTakenAddressIsNamed) {
  const auto start = [](const std::string& address) {
    HttpServerOptions options;
    options.address = address;
    return HttpServer::Start(options, nullptr, nullptr);
  };
  EXPECT_EQ(ErrorReason(start("nonsense").status()), "BAD_ADDRESS");
  EXPECT_EQ(ErrorReason(start("127.0.0.1:70000").status()), "BAD_ADDRESS");
  const auto first = start("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = start((*first)->address()).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.message()), HasSubstr((*first)->address()));
}

}  // namespace
}  // namespace baton::router
