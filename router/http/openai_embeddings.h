// OpenAI's /v1/embeddings.
#ifndef BATON_ROUTER_HTTP_OPENAI_EMBEDDINGS_H_
#define BATON_ROUTER_HTTP_OPENAI_EMBEDDINGS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"
#include "router/http/http_server.h"
#include "router/http/item_exchange.h"
#include "router/request/access.h"
#include "router/request/router_parts.h"

namespace baton::router {

struct EmbeddingsBody {
  v1::EmbedRequest request;
  bool base64 =
      false;  // each vector as the base64 of its 32-bit floats, little endian, else a list
};

// INVALID_ARGUMENT naming the field as the client wrote it: MALFORMED_JSON, UNKNOWN_FIELD,
// WRONG_TYPE, MISSING_FIELD, UNSUPPORTED_FIELD or OUT_OF_RANGE.
absl::StatusOr<EmbeddingsBody> ParseEmbeddings(absl::string_view body);

// Bytes of an answer with so many elements, at most.
int64_t EmbeddingsBytes(int64_t elements, bool base64);

// Makes the answer from the vectors of its call.
class EmbeddingsExchange final : public ItemExchange {
 public:
  EmbeddingsExchange(RouterParts& parts, const Caller& caller,
                     std::shared_ptr<HttpResponder> responder, HttpHeaders headers, bool base64);

  void Result(ItemResult item) override;
  void Finish(const v1::ScoreUsage& usage) override;

 private:
  const std::string model_;
  const bool base64_;
  std::string data_;  // the list's elements so far
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_EMBEDDINGS_H_
