// Cross-origin resource sharing: which pages of other servers may read the answers of this one in a
// browser.
#ifndef BATON_ROUTER_HTTP_CORS_H_
#define BATON_ROUTER_HTTP_CORS_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/http/http_server.h"

namespace baton::router {

// Immutable, so thread-safe. Without origins it adds nothing and answers nothing.
class Cors {
 public:
  // `origins` are those of Options::http_cors_origins; a "*" among them allows every origin.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // The headers that each answer to `request` has beside its own, errors included.
  HttpHeaders HeadersFor(const HttpRequest& request) const;
  // The answer to a preflight, by which a browser asks for leave to send a request of its page. It
  // needs no key, because browsers send none with it. Nothing for any other request, and for an
  // origin that is not allowed.
  std::optional<HttpResponse> Preflight(const HttpRequest& request) const;

 private:
  // The value of Access-Control-Allow-Origin; empty if the request's origin is not allowed.
  absl::string_view Allowed(const HttpRequest& request) const;

  const std::vector<std::string> origins_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_CORS_H_
