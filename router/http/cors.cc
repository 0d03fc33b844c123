#include "router/http/cors.h"

#include "absl/algorithm/container.h"

namespace baton::router {
namespace {

constexpr char kAny[] = "*";

}  // namespace

absl::string_view Cors::Allowed(const HttpRequest& request) const {
  if (absl::c_linear_search(origins_, kAny)) return kAny;
  const auto found = absl::c_find(origins_, request.Header("origin"));
  return found == origins_.end() ? absl::string_view() : absl::string_view(*found);
}

HttpHeaders Cors::HeadersFor(const HttpRequest& request) const {
  if (origins_.empty()) return {};
  // An answer without the header, too, depends on the origin: a cache must not give it to others.
  HttpHeaders headers = {{"Vary", "Origin"}};
  const absl::string_view allowed = Allowed(request);
  if (allowed.empty()) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", allowed);
  headers.emplace_back("Access-Control-Expose-Headers",
                       "x-request-id, request-id, x-baton-ignored, Retry-After, retry-after-ms");
  return headers;
}

std::optional<HttpResponse> Cors::Preflight(const HttpRequest& request) const {
  if (request.method != "OPTIONS" || request.Header("origin").empty() ||
      request.Header("access-control-request-method").empty() || Allowed(request).empty()) {
    return std::nullopt;
  }
  // The star is for what clients add, such as the x-stainless-* of OpenAI's. It does not cover
  // authorization. Browsers keep the answer for at most two hours.
  return HttpResponse{
      204,
      {{"Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE"},
       {"Access-Control-Allow-Headers", "authorization, content-type, x-request-id, *"},
       {"Access-Control-Max-Age", "7200"}},
      ""};
}

}  // namespace baton::router
