// An HTTP client over libcurl: many streaming requests at once, on one thread.
#ifndef BATON_CLI_HTTP_CLIENT_H_
#define BATON_CLI_HTTP_CLIENT_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::cli {

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // what on_body did not get; its first MiB

  std::string Header(const std::string& name) const;  // empty if there is none
};

struct HttpRequest {
  std::string url;                                          // http or https
  std::vector<std::string> headers;                         // "Name: value"
  std::optional<std::string> json;                          // POSTed; absent: a GET
  bool head = false;                                        // a HEAD instead of a GET
  absl::Duration timeout = absl::InfiniteDuration();        // for everything
  absl::Duration stall_timeout = absl::InfiniteDuration();  // without a byte received
  // Called on the client's thread. An error ends the request with that error. Either may be null.
  std::function<absl::Status(const HttpResponse&)> on_head;  // status and headers are there
  std::function<absl::Status(absl::string_view)> on_body;    // a piece of the body of a 2xx answer
};

// Thread-safe. Redirects are not followed. Requests honour the environment variables for proxies
// that curl documents (http_proxy, https_proxy, no_proxy).
class HttpClient {
 public:
  HttpClient();
  // Ends the requests that still run, without calling `done`.
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // `done` runs once, on the client's thread. Any HTTP status is a response; errors are
  // UNAVAILABLE (no connection, or it broke), DEADLINE_EXCEEDED, INVALID_ARGUMENT (the URL), or
  // those of the callbacks, and name the URL's host.
  void Send(HttpRequest request, std::function<void(absl::StatusOr<HttpResponse>)> done);
  absl::StatusOr<HttpResponse> SendAndWait(HttpRequest request);

 private:
  class Loop;
  class Transfer;
  const std::unique_ptr<Loop> loop_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_HTTP_CLIENT_H_
