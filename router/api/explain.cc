#include "router/api/explain.h"

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "router/fleet/roster.h"
#include "router/options.h"
#include "router/request/access.h"
#include "router/request/cache_miss.h"
#include "router/request/chat_prompt.h"
#include "router/request/request_check.h"
#include "router/request/request_class.h"
#include "router/routing/decision_log.h"
#include "router/routing/route_planner.h"

namespace baton::router {

absl::StatusOr<v1::ExplainResponse> Explain(const v1::GenerateRequest& request,
                                            const RouterParts& parts) {
  BATON_RETURN_IF_ERROR(
      CheckRequest(request, parts.options.served_model_name, parts.options.max_prompt_bytes));
  // An operator asks for any tenant.
  v1::GenerateRequest bound = request;
  if (parts.access.has_keys()) {
    BATON_RETURN_IF_ERROR(BindToTenant({request.tenant(), true, {}}, &bound));
  }
  const std::optional<ModelInfo> model = parts.roster.model();
  if (!model) return parts.roster.NoDecodeWorker();
  const RequestClass request_class = ClassOf(parts, bound.tenant());
  BATON_RETURN_IF_ERROR(ApplyClass(request_class, &bound));
  BATON_RETURN_IF_ERROR(RenderMessages(parts, request_class, &bound).status());
  PreparedRequest prepared;
  BATON_ASSIGN_OR_RETURN(prepared,
                         PrepareRequest(std::move(bound), parts.tokenizer, *model, request_class));
  RouteRequest wanted;
  wanted.model_fingerprint = prepared.decode.model_fingerprint();
  wanted.keys = prepared.keys;
  wanted.prompt_tokens = prepared.decode.tokens_size();
  wanted.LimitTo(wanted.prompt_tokens, prepared.block_tokens);
  if (IsOneToken(prepared.decode)) wanted.workers = RouteRequest::Workers::kPrefillIfAny;
  wanted.max_answer_tokens = prepared.decode.max_tokens();
  wanted.pool = PoolFor(request_class, parts.options, prepared.decode.prompt_tokens());
  wanted.spill = request_class.spill;
  wanted.ttft_slo = request_class.ttft_slo;
  wanted.explain = true;
  wanted.dispatch = false;
  wanted.may_refuse = true;
  Route route;
  BATON_ASSIGN_OR_RETURN(route, parts.planner.Choose(wanted));
  route.why->request_id = request.request_id();
  route.why->time = parts.clock.Now();
  v1::ExplainResponse response;
  *response.mutable_decision() = ToProto(*route.why);
  if (prepared.explain_cache && !prepared.decode.has_prompt_logprobs()) {
    const int cached = route.why->predicted_cached_tokens;
    if (auto miss = ExplainCacheMiss(parts, prepared, route, cached)) {
      *response.mutable_cache_miss() = *std::move(miss);
    }
  }
  return response;
}

}  // namespace baton::router
