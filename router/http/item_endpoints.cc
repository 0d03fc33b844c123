#include "router/http/item_endpoints.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/tracing/tracer.h"
#include "router/fleet/roster.h"
#include "router/http/exchange.h"
#include "router/http/http_trace.h"
#include "router/http/openai_embeddings.h"
#include "router/http/rerank.h"
#include "router/options.h"
#include "router/request/entrance.h"
#include "router/request/request_check.h"
#include "router/score/embedding.h"

namespace baton::router {
namespace {

// The answer of a large call has megabytes, which count with the request.
absl::Status HoldAnswer(const RouterParts& parts, const EmbeddingsBody& body,
                        RequestBytes::Share* held) {
  const std::optional<ModelInfo> model = parts.roster.model();
  if (!model || !CheckEmbeddings(body.request, *model).ok()) return absl::OkStatus();
  const int64_t elements = int64_t{body.request.inputs_size()} * DimensionsOf(body.request, *model);
  return Hold(parts, EmbeddingsBytes(elements, body.base64), held);
}

std::shared_ptr<HttpCall> Embed(RouterParts& parts, const std::string& text, const Caller& caller,
                                std::shared_ptr<HttpResponder> responder, HttpHeaders headers,
                                absl::Status ready, absl::Time deadline) {
  absl::StatusOr<EmbeddingsBody> body = ParseEmbeddings(text);
  if (ready.ok()) ready = body.status();
  if (ready.ok()) ready = HoldAnswer(parts, *body, caller.held.get());
  const bool base64 = body.ok() && body->base64;
  const auto exchange = std::make_shared<EmbeddingsExchange>(parts, caller, std::move(responder),
                                                             std::move(headers), base64);
  if (!ready.ok()) {
    exchange->Refuse(ready);
    return exchange;
  }
  body->request.set_request_id(caller.request_id);
  if (caller.tenant) body->request.clear_tenant();
  ScoreCall::Settings settings;
  settings.request = SettingsOf(body->request);
  settings.embed = std::move(body->request);
  exchange->Start(std::move(settings), deadline);
  return exchange;
}

std::shared_ptr<HttpCall> Rerank(RouterParts& parts, const std::string& text, const Caller& caller,
                                 std::shared_ptr<HttpResponder> responder, HttpHeaders headers,
                                 absl::Status ready, absl::Time deadline) {
  absl::StatusOr<RerankBody> body = ParseRerank(text);
  if (ready.ok() && parts.rerank == nullptr) {
    ready = MakeError(absl::StatusCode::kFailedPrecondition, "NOT_A_RERANK_MODEL",
                      "this router has no prompt for ranking: expected --rerank-template, with a "
                      "model that is made for it");
  }
  if (ready.ok()) ready = body.status();
  RerankRequest request;
  if (ready.ok()) {
    request = body->request;
    if (!body->return_documents) body->request.documents.clear();
    request.names.set_request_id(caller.request_id);
    if (caller.tenant) request.names.clear_tenant();
  }
  const auto exchange =
      std::make_shared<RerankExchange>(parts, caller, std::move(responder), std::move(headers),
                                       body.ok() ? *std::move(body) : RerankBody());
  if (ready.ok()) {
    exchange->Start(parts.rerank->SettingsFor(std::move(request)), deadline);
  } else {
    exchange->Refuse(ready);
  }
  return exchange;
}

}  // namespace

std::shared_ptr<HttpCall> AnswerItems(RouterParts& parts, absl::string_view path, HttpRequest http,
                                      Caller caller, std::shared_ptr<HttpResponder> responder,
                                      const absl::Status& ready) {
  const absl::Time deadline =
      parts.clock.Now() + absl::Milliseconds(parts.options.default_deadline_ms);
  caller.trace = tracing::JoinTrace(parts.tracer, TraceOf(http));
  caller.held = std::make_shared<RequestBytes::Share>(std::move(http.held));
  absl::Status checked = CheckRequestId(http.Header(kHttpRequestId));
  if (checked.ok()) checked = ready;
  const auto answer = path == kEmbeddingsPath ? Embed : Rerank;
  HttpHeaders headers = {{kHttpRequestId, caller.request_id}};
  return answer(parts, http.body, caller, std::move(responder), std::move(headers),
                std::move(checked), deadline);
}

}  // namespace baton::router
