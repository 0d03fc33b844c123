// The endpoints whose answers are made of scores or embeddings: /v1/embeddings and /v1/rerank.
#ifndef BATON_ROUTER_HTTP_ITEM_ENDPOINTS_H_
#define BATON_ROUTER_HTTP_ITEM_ENDPOINTS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/http/http_server.h"
#include "router/request/access.h"
#include "router/request/router_parts.h"

namespace baton::router {

inline constexpr absl::string_view kEmbeddingsPath = "/v1/embeddings";
inline constexpr absl::string_view kRerankPath = "/v1/rerank";

inline bool IsItemPath(absl::string_view path) {
  return path == kEmbeddingsPath || path == kRerankPath;
}

// Answers a POST to one of the two. `caller` has the request's id. `ready`: otherwise the error
// that is the answer. Thread-safe; `parts` must outlive the result.
std::shared_ptr<HttpCall> AnswerItems(RouterParts& parts, absl::string_view path, HttpRequest http,
                                      Caller caller, std::shared_ptr<HttpResponder> responder,
                                      const absl::Status& ready);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_ITEM_ENDPOINTS_H_
