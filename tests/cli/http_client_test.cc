#include "cli/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/cli/one_answer.h"
#include "tests/testing/listening_socket.h"

namespace baton::cli {
namespace {

using ::testing::HasSubstr;

TEST(HttpClientTest, ReturnsStatusHeadersAndBody) {
  OneAnswer server("HTTP/1.1 404 No\r\nX-Name:  a: b \r\nContent-Length: 5\r\n\r\nhello");
  std::optional<HttpClient> client(std::in_place);
  bool body = false;
  HttpRequest request;
  request.url = server.url() + "/a?b";
  request.headers = {"Accept: text/plain"};
  request.json = "{}";
  request.on_body = [&](absl::string_view) {
    body = true;
    return absl::OkStatus();
  };
  const auto response = client->SendAndWait(request);
  client.reset();  // closes the connection
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 404);
  EXPECT_EQ(response->Header("x-name"), "a: b");
  EXPECT_EQ(response->Header("x-other"), "");
  EXPECT_EQ(response->body, "hello");
  EXPECT_FALSE(body) << "the body of an error is no body of an answer";
  const std::string sent = server.request();
  EXPECT_THAT(sent, ::testing::StartsWith("POST /a?b HTTP/1.1\r\n"));
  EXPECT_THAT(sent, HasSubstr("Accept: text/plain\r\n"));
  EXPECT_THAT(sent, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(sent, HasSubstr("User-Agent: baton/"));
}

TEST(HttpClientTest, ACallbackEndsTheRequest) {
  OneAnswer empty("HTTP/1.1 204 No\r\n\r\n");
  OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
  HttpClient client;
  HttpRequest request;
  request.url = server.url();
  request.on_body = [](absl::string_view) { return absl::DataLossError("enough"); };
  EXPECT_EQ(client.SendAndWait(request).status(), absl::DataLossError("enough"));
  request.url = empty.url();
  request.on_head = [](const HttpResponse& head) {
    return head.status == 204 ? absl::AbortedError("empty") : absl::OkStatus();
  };
  EXPECT_EQ(client.SendAndWait(request).status(), absl::AbortedError("empty"));
}

TEST(HttpClientTest, ErrorsNameTheHost) {
  OneAnswer broken("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello");
  HttpClient client;
  const auto error = [&](const std::string& url, absl::Duration timeout = absl::Minutes(1)) {
    HttpRequest request;
    request.url = url;
    request.timeout = timeout;
    return client.SendAndWait(request).status();
  };
  const absl::Status refused = error("http://127.0.0.1:1/secret");
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("http://127.0.0.1:1: "));
  EXPECT_THAT(std::string(refused.message()), ::testing::Not(HasSubstr("secret")));
  EXPECT_TRUE(absl::IsInvalidArgument(error("ftp://127.0.0.1/"))) << error("ftp://127.0.0.1/");
  const testing::ListeningSocket silent;
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      error(absl::StrCat("http://", silent.address()), absl::Milliseconds(200))));
  EXPECT_TRUE(absl::IsUnavailable(error(broken.url())));
}

TEST(HttpClientTest, EndsWithRequestsUnderWay) {
  const testing::ListeningSocket silent;
  HttpClient client;
  HttpRequest request;
  request.url = absl::StrCat("http://", silent.address());
  for (int i = 0; i < 3; ++i) {
    client.Send(request, [](const absl::StatusOr<HttpResponse>&) { FAIL() << "never ends"; });
  }
}

}  // namespace
}  // namespace baton::cli
