#include "prefill_worker/request.h"

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/transfer/checksum.h"
#include "common/worker/token_sampling.h"

namespace baton::prefill_worker {
namespace {

absl::Status Mismatch(absl::string_view reason, absl::string_view what, uint64_t found,
                      uint64_t expected) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason,
                   absl::StrCat("the caller means ", what, " ", absl::Hex(found),
                                ", this prefill worker has ", absl::Hex(expected)));
}

}  // namespace

absl::Status Malformed() {
  return MakeError(absl::StatusCode::kDataLoss, "MALFORMED_REQUEST",
                   "the message is no PrefillRequest");
}

absl::Status CheckRequest(const internal::v1::PrefillRequest& request, uint64_t epoch,
                          const engine::Engine& engine) {
  if (const uint64_t sum = transfer::RequestChecksum(request); sum != request.checksum()) {
    return MakeError(absl::StatusCode::kDataLoss, "CHECKSUM",
                     absl::StrCat("PrefillRequest has checksum ", absl::Hex(request.checksum()),
                                  ", its content ", absl::Hex(sum)));
  }
  if (request.prefill_epoch() != epoch) {
    return Mismatch("STALE_EPOCH", "epoch", request.prefill_epoch(), epoch);
  }
  if (request.model_fingerprint() != engine.config().fingerprint) {
    return Mismatch("MODEL_MISMATCH", "model", request.model_fingerprint(),
                    engine.config().fingerprint);
  }
  const uint64_t layout = engine.kv_layout().Fingerprint();
  if (request.kv_layout_fingerprint() != layout) {
    return Mismatch("KV_LAYOUT", "KV layout", request.kv_layout_fingerprint(), layout);
  }
  if (request.tokens_size() < 1 || request.tokens_size() > engine.max_model_len()) {
    return InvalidField(
        "PROMPT_LENGTH", "tokens",
        absl::StrCat(request.tokens_size(), " given, expected 1 to ", engine.max_model_len()));
  }
  const int blocks = (request.tokens_size() + engine.kv_layout().block_tokens - 1) /
                     engine.kv_layout().block_tokens;
  if (request.first_block() < 0 || request.first_block() > blocks) {
    return InvalidField("FIRST_BLOCK", "first_block",
                        absl::StrCat(request.first_block(), " given, expected 0 to ", blocks));
  }
  return worker::CheckTokenFields(request, engine.config().vocab_size);
}

std::unique_ptr<PrefillJob> MakeJob(const internal::v1::PrefillRequest& request,
                                    absl::Time deadline, const engine::Engine& engine) {
  auto job = std::make_unique<PrefillJob>();
  job->request_id = request.request_id();
  job->tokens.assign(request.tokens().begin(), request.tokens().end());
  job->root = kv::RootPrefixKey(engine.config().fingerprint, request.cache_salt(), "");
  job->first_block = request.first_block();
  if (request.priority() != v1::PRIORITY_UNSPECIFIED) job->priority = request.priority();
  job->deadline = deadline;
  job->sampling = worker::FromProto(request.sampling());
  job->prompt_tokens = worker::PromptTokens(request);
  job->suppressed.assign(request.suppressed_token_ids().begin(),
                         request.suppressed_token_ids().end());
  job->retention = worker::FromProto(request.retention(), job->prompt_tokens);
  if (request.has_prompt_logprobs()) job->prompt_logprobs = request.prompt_logprobs();
  return job;
}

}  // namespace baton::prefill_worker
