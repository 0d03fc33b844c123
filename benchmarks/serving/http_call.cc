#include "benchmarks/serving/http_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/http_client.h"

namespace baton::benchmarks {
namespace {

absl::StatusOr<std::string> BodyOf(cli::HttpRequest request, absl::Duration timeout) {
  std::string body;
  const std::string url = request.url;
  request.timeout = timeout;
  request.on_body = [&body](absl::string_view piece) {
    absl::StrAppend(&body, piece);
    return absl::OkStatus();
  };
  cli::HttpClient client;
  const absl::StatusOr<cli::HttpResponse> response = client.SendAndWait(std::move(request));
  if (!response.ok()) return response.status();
  if (response->status == 200) return body;
  return absl::UnavailableError(
      absl::StrCat(url, " answered ", response->status, ": ", response->body));
}

}  // namespace

absl::StatusOr<std::string> HttpPost(const std::string& url, const std::string& path,
                                     const std::string& json, absl::Duration timeout) {
  cli::HttpRequest request;
  request.url = url + path;
  request.json = json;
  return BodyOf(std::move(request), timeout);
}

absl::StatusOr<std::string> HttpGet(const std::string& url, const std::string& path,
                                    absl::Duration timeout) {
  cli::HttpRequest request;
  request.url = url + path;
  return BodyOf(std::move(request), timeout);
}

}  // namespace baton::benchmarks
