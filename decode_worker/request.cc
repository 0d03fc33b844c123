#include "decode_worker/request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/worker/call_checks.h"
#include "common/worker/kv_hint.h"
#include "common/worker/request_tokens.h"
#include "common/worker/token_sampling.h"
#include "decode_worker/beam_search.h"

namespace baton::decode_worker {
namespace {

Priority ToPriority(v1::Priority priority) {
  return priority == v1::PRIORITY_LOW    ? Priority::kLow
         : priority == v1::PRIORITY_HIGH ? Priority::kHigh
                                         : Priority::kNormal;
}

}  // namespace

absl::Status CheckRequest(const internal::v1::DecodeRequest& request, uint64_t epoch,
                          const engine::Engine& engine) {
  BATON_RETURN_IF_ERROR(
      worker::CheckTarget("decode", {request.decode_epoch(), epoch},
                          {request.model_fingerprint(), engine.config().fingerprint}));
  const int limit = engine.max_model_len();
  const int count = worker::TokensOf(request).size();
  if (count < 1 || count >= limit) {
    return InvalidField("PROMPT_LENGTH", "tokens",
                        absl::StrCat(count, " given, expected 1 to ", limit - 1,
                                     " (--max-model-len ", limit, ", one left to generate)"));
  }
  if (request.has_prefill() && request.prefill().address().empty()) {
    return InvalidField("PREFILL_ADDRESS", "prefill.address", "empty, expected host:port");
  }
  BATON_RETURN_IF_ERROR(worker::CheckKvHint(request));
  return worker::CheckTokenFields(request, engine.config().vocab_size);
}

std::unique_ptr<Sequence> MakeSequence(const internal::v1::DecodeRequest& request,
                                       absl::Time deadline, const engine::Engine& engine) {
  auto call = std::make_shared<Call>();
  call->request_id = request.request_id();
  call->prefill = {request.prefill().address(), request.prefill().worker_id(),
                   request.prefill().epoch()};
  call->kv_hint = worker::ToKvHint(request);
  call->deadline = deadline;
  call->priority = ToPriority(request.priority());
  call->continuation = request.continuation();
  call->tenant = request.tenant();
  call->cache_salt = request.cache_salt();
  call->root = kv::RootPrefixKey(engine.config().fingerprint, request.cache_salt(), "");
  const auto& tokens = worker::TokensOf(request);
  call->request_tokens = tokens.size();
  call->prompt_tokens = worker::PromptTokens(request);
  call->retention = worker::FromProto(request.retention(), call->prompt_tokens);
  call->max_tokens = std::min(request.max_tokens(), engine.max_model_len() - tokens.size());
  call->min_tokens = std::min(request.min_tokens(), call->max_tokens);
  call->n = std::max(1, request.n());
  call->stop_token_ids.assign(request.stop_token_ids().begin(), request.stop_token_ids().end());
  call->stop_token_set.insert(request.stop_token_ids().begin(), request.stop_token_ids().end());
  call->speculates = !request.no_speculation();
  if (request.has_prompt_logprobs()) call->prompt_logprobs = request.prompt_logprobs();

  auto sequence = std::make_unique<Sequence>();
  sequence->tokens.assign(tokens.begin(), tokens.end());
  sequence->sampling = worker::FromProto(request.sampling());
  if (request.beam_width() > 0) {
    BeamSearch::Options beams;
    beams.width = request.beam_width();
    beams.n = call->n;
    beams.length_penalty = request.length_penalty();
    beams.max_tokens = call->max_tokens;
    beams.min_tokens = call->min_tokens;
    beams.stop_token_ids = call->stop_token_set;
    call->beams = std::make_shared<BeamSearch>(std::move(beams));
  } else {
    sequence->draws = call->n;
  }
  sequence->call = std::move(call);
  return sequence;
}

}  // namespace baton::decode_worker
