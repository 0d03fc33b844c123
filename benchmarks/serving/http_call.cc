#include "benchmarks/serving/http_call.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace baton::benchmarks {
namespace {

constexpr size_t kMaxAnswerBytes = 64 << 20;

absl::Status Failed(const std::string& url, const std::string& what) {
  return absl::UnavailableError(absl::StrCat(url, ": ", what));
}

absl::Status SendAll(int fd, const std::string& url, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0) return Failed(url, strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

// Sends `request` with its `headers` over a connection of its own, and reads to the end.
absl::StatusOr<std::string> Exchange(const std::string& url, const std::string& request,
                                     const std::string& headers, const std::string& body,
                                     absl::Duration timeout) {
  absl::string_view place = url;
  const std::vector<std::string> host_port = absl::ConsumePrefix(&place, "http://")
                                                 ? absl::StrSplit(place, ':')
                                                 : std::vector<std::string>();
  if (host_port.size() != 2) return absl::InvalidArgumentError(url + ": expected http://host:port");
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host_port[0].c_str(), host_port[1].c_str(), &hints, &found) != 0) {
    return Failed(url, "no such host");
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  const int fd = socket(found->ai_family, SOCK_STREAM, 0);
  if (fd < 0) return Failed(url, strerror(errno));
  const absl::Cleanup close_fd = [fd] { close(fd); };
  const timeval wait = absl::ToTimeval(timeout);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
  if (connect(fd, found->ai_addr, found->ai_addrlen) != 0) return Failed(url, strerror(errno));
  const std::string message = absl::StrCat(request, " HTTP/1.1\r\nHost: ", std::string(place),
                                           "\r\nConnection: close\r\n", headers, "\r\n", body);
  if (absl::Status status = SendAll(fd, url, message); !status.ok()) return status;
  std::string answer;
  char buffer[16384];
  ssize_t count;
  while ((count = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
    answer.append(buffer, static_cast<size_t>(count));
    if (answer.size() > kMaxAnswerBytes) return Failed(url, "the answer is too long");
  }
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    return absl::DeadlineExceededError(absl::StrCat(url, ": no answer in time"));
  }
  if (count < 0) return Failed(url, strerror(errno));
  const size_t head_end = answer.find("\r\n\r\n");
  const std::string first_line = answer.substr(0, answer.find("\r\n"));
  if (head_end == std::string::npos || !absl::StrContains(first_line, " 200")) {
    return Failed(url, "answered " + first_line);
  }
  return answer.substr(head_end + 4);
}

}  // namespace

absl::StatusOr<std::string> HttpPost(const std::string& url, const std::string& path,
                                     const std::string& json, absl::Duration timeout) {
  const std::string headers =
      absl::StrCat("Content-Type: application/json\r\nContent-Length: ", json.size(), "\r\n");
  return Exchange(url, absl::StrCat("POST ", path), headers, json, timeout);
}

absl::StatusOr<std::string> HttpGet(const std::string& url, const std::string& path,
                                    absl::Duration timeout) {
  return Exchange(url, absl::StrCat("GET ", path), "", "", timeout);
}

}  // namespace baton::benchmarks
