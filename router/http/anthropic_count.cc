// Anthropic's count_tokens: how long the prompt of a conversation is.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/request_limits.h"
#include "router/http/anthropic_error.h"
#include "router/http/anthropic_request.h"
#include "router/http/exchange.h"
#include "router/http/openai_service.h"
#include "router/options.h"
#include "router/request/chat_prompt.h"
#include "router/request/entrance.h"
#include "router/request/request_check.h"
#include "router/request/work_pool.h"

namespace baton::router {
namespace {

HttpResponse CountResponse(const absl::StatusOr<int64_t>& tokens, const std::string& request_id,
                           const std::string& ignored) {
  HttpResponse response;
  if (tokens.ok()) {
    response.headers.emplace_back("Content-Type", "application/json");
    response.body = absl::StrCat("{\"input_tokens\":", *tokens, "}");
  } else {
    response = AnthropicErrorResponse(tokens.status(), request_id);
  }
  response.headers.emplace_back(kHttpRequestId, request_id);
  response.headers.emplace_back(kAnthropicRequestId, request_id);
  if (!ignored.empty()) response.headers.emplace_back(kIgnoredHeader, ignored);
  return response;
}

}  // namespace

// Nothing is generated, so the request takes no place among those in flight: the tokenizer's queue
// and --max-inflight-request-bytes bound what waits here.
void OpenAiService::CountTokens(HttpRequest http, const Caller& caller,
                                const std::string& request_id,
                                std::shared_ptr<HttpResponder> responder) {
  auto held = std::make_shared<RequestBytes::Share>(std::move(http.held));
  absl::StatusOr<OpenAiRequest> request = ParseAnthropicCount(http.body);
  std::string().swap(http.body);
  absl::Status checked = CheckRequestId(http.Header(kHttpRequestId));
  if (draining_) checked = RouterDrains();
  if (checked.ok()) checked = request.status();
  if (checked.ok()) {
    checked = CheckModel(request->generate.model(), parts_.options.served_model_name);
  }
  if (checked.ok()) checked = CheckIgnored(request->ignored);
  if (checked.ok()) checked = CheckOpenAiRequest(*request);
  if (checked.ok()) checked = Hold(parts_, request->json_bytes, held.get());
  const std::string ignored = request.ok() ? absl::StrJoin(request->ignored, ", ") : "";
  if (!checked.ok()) return responder->Respond(CountResponse(checked, request_id, ignored));
  auto shared = std::make_shared<OpenAiRequest>(*std::move(request));
  const std::string tenant = caller.tenant.value_or("");
  const bool runs =
      parts_.pool.TryRun([this, shared, held, responder, tenant, request_id, ignored] {
        const absl::StatusOr<int64_t> tokens =
            CountChatTokens(parts_, tenant, std::move(shared->conversation), shared->generate);
        responder->Respond(CountResponse(tokens, request_id, ignored));
      });
  if (!runs) responder->Respond(CountResponse(TokenizerQueueFull(parts_), request_id, ignored));
}

}  // namespace baton::router
