// /v1/rerank, as Jina's and Cohere's APIs and vLLM have it.
#ifndef BATON_ROUTER_HTTP_RERANK_H_
#define BATON_ROUTER_HTTP_RERANK_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/http_server.h"
#include "router/http/item_exchange.h"
#include "router/request/access.h"
#include "router/request/router_parts.h"
#include "router/score/rerank_prompt.h"

namespace baton::router {

struct RerankBody {
  RerankRequest request;
  int top_n = 0;  // 0: all documents
  bool return_documents = true;
};

// INVALID_ARGUMENT naming the field as the client wrote it: MALFORMED_JSON, UNKNOWN_FIELD,
// WRONG_TYPE, MISSING_FIELD or OUT_OF_RANGE.
absl::StatusOr<RerankBody> ParseRerank(absl::string_view body);

// Makes the answer from the scores of its call: documents with the best first.
class RerankExchange final : public ItemExchange {
 public:
  // `body.request` has the documents, if the answer returns them.
  RerankExchange(RouterParts& parts, const Caller& caller, std::shared_ptr<HttpResponder> responder,
                 HttpHeaders headers, RerankBody body);

  void Result(ItemResult item) override;
  void Finish(const v1::ScoreUsage& usage) override;

 private:
  const std::string id_;
  const std::string model_;
  const RerankBody body_;
  std::vector<std::pair<double, size_t>> scores_;  // with the document's index
  absl::Status error_;                             // of the first document that has one
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_RERANK_H_
