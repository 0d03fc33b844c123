// Checks requests for prompts to compute and items to score, and makes jobs from them.
#ifndef BATON_COMMON_PREFILL_REQUEST_H_
#define BATON_COMMON_PREFILL_REQUEST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/internal/v1/prefill.pb.h"
#include "common/engine/engine.h"
#include "common/prefill/job.h"
#include "common/worker/kv_hint.h"
#include "common/worker/request_tokens.h"
#include "common/worker/retention.h"
#include "common/worker/token_sampling.h"

namespace baton::prefill {

// Returns DATA_LOSS (CHECKSUM), FAILED_PRECONDITION (another epoch, model or KV layout than this
// worker's, with both values), or INVALID_ARGUMENT, naming the field.
absl::Status CheckRequest(const internal::v1::PrefillRequest& request, uint64_t epoch,
                          const engine::Engine& engine);

// Sets what messages about one prompt have in common: a PrefillRequest, and a DecodeRequest for an
// answer of one token. REQUIRES: the request was checked.
template <class Request>
void FillJob(const Request& request, absl::Time deadline, const engine::Engine& engine,
             PrefillJob* job) {
  job->request_id = request.request_id();
  const auto& tokens = worker::TokensOf(request);
  job->tokens.assign(tokens.begin(), tokens.end());
  job->root = kv::RootPrefixKey(engine.config().fingerprint, request.cache_salt(), "");
  if (request.priority() != v1::PRIORITY_UNSPECIFIED) job->priority = request.priority();
  job->deadline = deadline;
  job->sampling = worker::FromProto(request.sampling());
  job->prompt_tokens = worker::PromptTokens(request);
  if (request.has_prompt_logprobs()) job->prompt_logprobs = request.prompt_logprobs();
  job->retention = worker::FromProto(request.retention(), job->prompt_tokens);
  job->kv_hint = worker::ToKvHint(request);
  job->cache_salt = request.cache_salt();
  job->tenant = request.tenant();
}

// Returns a job that lacks its id, its sink, and the sender of its KV. REQUIRES: CheckRequest is
// OK.
std::unique_ptr<PrefillJob> MakeJob(const internal::v1::PrefillRequest& request,
                                    absl::Time deadline, const engine::Engine& engine);

// The same for the items of a ScoreItemsRequest. Errors: UNAVAILABLE as worker::CheckTarget, or
// INVALID_ARGUMENT, naming the field. `role`: of this worker, for messages.
absl::Status CheckRequest(const internal::v1::ScoreItemsRequest& request, absl::string_view role,
                          uint64_t epoch, const engine::Engine& engine);
std::vector<std::unique_ptr<PrefillJob>> MakeJobs(const internal::v1::ScoreItemsRequest& request,
                                                  absl::Time deadline,
                                                  const engine::Engine& engine);

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_REQUEST_H_
