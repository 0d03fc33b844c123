#include "common/telemetry/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/telemetry/buckets.h"
#include "common/telemetry/metric_set.h"
#include "tests/testing/ipv6.h"
#include "tests/testing/listening_socket.h"

namespace baton::telemetry {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

int PortOf(const std::string& address) {
  int port = -1;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  return port;
}

// The whole answer to a GET, headers included, over a plain socket to 127.0.0.1, or ::1.
std::string Get(int port, const std::string& path, int family = AF_INET) {
  const int socket = ::socket(family, SOCK_STREAM, 0);
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(port));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 peer6{};
  peer6.sin6_family = AF_INET6;
  peer6.sin6_port = peer.sin_port;
  peer6.sin6_addr = in6addr_loopback;
  const int connected = family == AF_INET
                            ? ::connect(socket, reinterpret_cast<sockaddr*>(&peer), sizeof(peer))
                            : ::connect(socket, reinterpret_cast<sockaddr*>(&peer6), sizeof(peer6));
  EXPECT_EQ(connected, 0);
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(::send(socket, request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = ::recv(socket, buffer, sizeof(buffer), 0)) > 0;) answer.append(buffer, n);
  ::close(socket);
  return answer;
}

std::vector<std::string> BodyLines(const std::string& answer) {
  const size_t body = answer.find("\r\n\r\n");
  EXPECT_NE(body, std::string::npos) << answer;
  return absl::StrSplit(answer.substr(body + 4), '\n', absl::SkipEmpty());
}

TEST(MetricsEndpointTest, ServesWhatIsRegistered) {
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_THAT((*endpoint)->address(), StartsWith("127.0.0.1:"));
  const int port = PortOf((*endpoint)->address());
  EXPECT_GT(port, 0);

  MetricSet set((*endpoint)->registry(), "router", "tiny");
  set.Counters("baton_requests_total", "Requests.", {{"code", {"OK"}}}).With({"OK"}).Increment(3);
  set.Histogram("baton_time_to_first_token_seconds", "TTFT.", kFirstTokenSecondsBuckets)
      .Observe(0.03);

  const std::string answer = Get(port, "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain"));
  const std::vector<std::string> lines = BodyLines(answer);
  EXPECT_THAT(lines, Contains("# TYPE baton_requests_total counter"));
  EXPECT_THAT(lines,
              Contains("baton_requests_total{model=\"tiny\",role=\"router\",code=\"OK\"} 3"));
  EXPECT_THAT(lines, Contains("# TYPE baton_time_to_first_token_seconds histogram"));
  EXPECT_THAT(lines, Contains("baton_time_to_first_token_seconds_bucket{model=\"tiny\",role="
                              "\"router\",le=\"0.04\"} 1"));
  EXPECT_THAT(lines, Contains("baton_time_to_first_token_seconds_bucket{model=\"tiny\",role="
                              "\"router\",le=\"+Inf\"} 1"));
  EXPECT_THAT(lines, Contains(MatchesRegex("baton_build_info\\{.*version=\".*\\} 1")));
}

TEST(MetricsEndpointTest, EveryLineIsInTheExpositionFormat) {
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const MetricSet set((*endpoint)->registry(), "router", "tiny");
  const std::string comment =
      "# (HELP [a-zA-Z_:][a-zA-Z0-9_:]* .*|"
      "TYPE [a-zA-Z_:][a-zA-Z0-9_:]* (counter|gauge|histogram|summary))";
  const std::string sample =
      "[a-zA-Z_:][a-zA-Z0-9_:]*"
      "(\\{([a-zA-Z_][a-zA-Z0-9_]*=\"([^\"\\\\]|\\\\.)*\",?)*\\})?"
      " ([-+]?[0-9.]+(e[-+]?[0-9]+)?|[-+]?Inf|[Nn]a[Nn])( [0-9]+)?";
  for (const std::string& line : BodyLines(Get(PortOf((*endpoint)->address()), "/metrics"))) {
    EXPECT_THAT(line, MatchesRegex(line[0] == '#' ? comment : sample));
  }
}

TEST(MetricsEndpointTest, OtherPathsAreNotFound) {
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_THAT(Get(PortOf((*endpoint)->address()), "/etc/passwd"), StartsWith("HTTP/1.1 404"));
}

TEST(MetricsEndpointTest, ABoundPortIsRefusedByName) {
  auto first = MetricsEndpoint::Start("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = MetricsEndpoint::Start((*first)->address());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(second.status()), "METRICS_BIND_FAILED");
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));

  // The port is free again once its owner is gone.
  const std::string address = (*first)->address();
  first->reset();
  auto third = MetricsEndpoint::Start(address);
  EXPECT_TRUE(third.ok()) << third.status();
}

TEST(MetricsEndpointTest, ListensOnIpv6) {
  if (!testing::HasIpv6()) GTEST_SKIP() << "this machine has no ::1";
  for (const char* address : {"[::1]:0", "[::]:0"}) {
    auto endpoint = MetricsEndpoint::Start(address);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    const std::string& bound = (*endpoint)->address();
    EXPECT_EQ(bound.substr(0, bound.rfind(':') + 1),
              std::string(address).substr(0, bound.rfind(':') + 1));
    const int port = PortOf(bound);
    EXPECT_GT(port, 0);
    EXPECT_THAT(Get(port, "/metrics", AF_INET6), StartsWith("HTTP/1.1 200 OK"));
    if (std::string(address) == "[::]:0") {
      EXPECT_THAT(Get(port, "/metrics"), StartsWith("HTTP/1.1 200 OK")) << "and on IPv4";
    }
  }
}

TEST(MetricsEndpointTest, AConnectionServesManyScrapesOfAnyMethodThatReads) {
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in peer = testing::Loopback(PortOf((*endpoint)->address()));
  ASSERT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
  const std::string requests =
      "GET /metrics HTTP/1.1\r\n\r\nHEAD /metrics?x HTTP/1.1\r\n\r\n"
      "DELETE /metrics HTTP/1.1\r\nConnection: close\r\n\r\n";
  ASSERT_EQ(::send(socket, requests.data(), requests.size(), 0),
            static_cast<ssize_t>(requests.size()));
  std::string answers;
  char buffer[4096];
  for (ssize_t n; (n = ::recv(socket, buffer, sizeof(buffer), 0)) > 0;) answers.append(buffer, n);
  ::close(socket);
  EXPECT_THAT(answers, MatchesRegex("HTTP/1.1 200 OK.*HTTP/1.1 200 OK.*"
                                    "HTTP/1.1 405 Method Not Allowed.*"));
}

TEST(MetricsEndpointTest, ARequestWithABodyIsAnsweredAndEndsTheConnection) {
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in peer = testing::Loopback(PortOf((*endpoint)->address()));
  ASSERT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
  const std::string request = "POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx";
  ASSERT_EQ(::send(socket, request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = ::recv(socket, buffer, sizeof(buffer), 0)) > 0;) answer.append(buffer, n);
  ::close(socket);
  EXPECT_THAT(answer, MatchesRegex("HTTP/1.1 405 Method Not Allowed.*Connection: close.*"));
}

// Clients may open many connections, with requests that never end: they take a bounded number of
// places.
TEST(MetricsEndpointTest, FurtherConnectionsAreClosed) {
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const sockaddr_in peer = testing::Loopback(PortOf((*endpoint)->address()));
  std::vector<int> sockets;
  for (int i = 0; i < 65; ++i) {
    sockets.push_back(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(::connect(sockets.back(), reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
  }
  char byte;
  EXPECT_LE(::recv(sockets.back(), &byte, 1, 0), 0) << "the last one is closed";
  for (int socket : sockets) ::close(socket);
}

TEST(MetricsEndpointTest, StopsAtOnce) {
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const absl::Time begin = absl::Now();
  endpoint->reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(1));
}

TEST(MetricsEndpointTest, OtherAddressFormsAreRefused) {
  for (const char* address :
       {"", ":", "9090", ":9090", "localhost", "localhost:", "localhost:x", "127.0.0.1:65536",
        "127.0.0.1:-1", "127.0.0.1:+1", "127.0.0.1:80s", "127.0.0.1:0,127.0.0.1:0", "::1:0",
        "[::1]", "host name:1", "127.0.0.1: 1", "127.0.0.1:99999999999"}) {
    auto endpoint = MetricsEndpoint::Start(address);
    EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(endpoint.status().message()), HasSubstr(address));
  }
}

TEST(MetricsEndpointTest, AForeignAddressCannotBeBound) {
  auto endpoint = MetricsEndpoint::Start("192.0.2.1:0");  // TEST-NET-1, nobody's
  EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(endpoint.status().message()), HasSubstr("192.0.2.1:0"));
}

TEST(MetricsEndpointTest, HostNamesWork) {
  auto endpoint = MetricsEndpoint::Start("localhost:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_THAT((*endpoint)->address(), StartsWith("localhost:"));
}

}  // namespace
}  // namespace baton::telemetry
