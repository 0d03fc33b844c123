#include "common/tracing/http_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/listening_socket.h"

namespace baton::tracing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Reads until `body` has come, then answers.
std::string ReadAndAnswer(testing::ListeningSocket& listener, const std::string& body,
                          const std::string& answer) {
  const int connection = listener.Accept();
  std::string request;
  char buffer[4096];
  while (!absl::EndsWith(request, "\r\n\r\n" + body)) {
    const ssize_t n = read(connection, buffer, sizeof(buffer));
    if (n <= 0) break;
    request.append(buffer, static_cast<size_t>(n));
  }
  EXPECT_EQ(write(connection, answer.data(), answer.size()), static_cast<ssize_t>(answer.size()));
  close(connection);
  return request;
}

TEST(HttpTransport, PostsJsonAndReadsTheStatus) {
  testing::ListeningSocket listener;
  std::string request;
  std::thread server([&] {
    request = ReadAndAnswer(listener, "{}",
                            "HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 3\r\n"
                            "Connection: close\r\n\r\nno\n");
  });
  const auto transport = MakeHttpTransport(
      absl::StrCat("http://", listener.address(), "/v1/traces"), {{"api-key", "k"}}, /*ca=*/"");
  const auto reply = transport->Post("{}", absl::Seconds(60));
  server.join();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, 503);
  EXPECT_EQ(reply->retry_after, absl::Seconds(7));
  EXPECT_EQ(reply->body, "no\n");
  EXPECT_THAT(request, StartsWith("POST /v1/traces HTTP/1.1\r\n"));
  EXPECT_THAT(request, HasSubstr("\r\nContent-Type: application/json\r\n"));
  EXPECT_THAT(request, HasSubstr("\r\napi-key: k\r\n"));
}

TEST(HttpTransport, KeepsTheBeginningOfALongAnswer) {
  testing::ListeningSocket listener;
  const std::string body(5 * SpanTransport::kMaxAnswerBytes / 2, 'b');
  std::thread server([&] {
    for (int i = 0; i < 2; ++i) {
      ReadAndAnswer(listener, "{}",
                    absl::StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(),
                                 "\r\nConnection: close\r\n\r\n", body));
    }
  });
  const auto transport = MakeHttpTransport("http://" + listener.address(), {}, "");
  for (int i = 0; i < 2; ++i) {
    const auto reply = transport->Post("{}", absl::Seconds(60));
    EXPECT_EQ(reply.ok() ? reply->body : "", body.substr(0, SpanTransport::kMaxAnswerBytes));
  }
  server.join();
}

TEST(HttpTransport, ACollectorThatIsNotThereIsAnError) {
  std::string address;
  {
    testing::ListeningSocket gone;
    address = gone.address();
  }
  const auto transport = MakeHttpTransport("http://" + address, {}, "");
  EXPECT_TRUE(absl::IsUnavailable(transport->Post("{}", absl::Seconds(60)).status()));
}

TEST(HttpTransport, ACollectorThatDoesNotAnswerIsGivenUp) {
  testing::ListeningSocket deaf;
  const auto transport = MakeHttpTransport("http://" + deaf.address(), {}, "");
  EXPECT_TRUE(absl::IsDeadlineExceeded(transport->Post("{}", absl::Milliseconds(10)).status()));
}

TEST(HttpTransport, CancelEndsThePostThatRunsAndLaterOnes) {
  testing::ListeningSocket deaf;
  const auto transport = MakeHttpTransport("http://" + deaf.address(), {}, "");
  int connection = -1;
  std::thread canceller([&] {
    connection = deaf.Accept();  // the post runs
    transport->Cancel();
  });
  EXPECT_TRUE(absl::IsCancelled(transport->Post("{}", absl::InfiniteDuration()).status()));
  canceller.join();
  close(connection);
  EXPECT_TRUE(absl::IsCancelled(transport->Post("{}", absl::InfiniteDuration()).status()));
}

}  // namespace
}  // namespace baton::tracing
