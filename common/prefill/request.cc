#include "common/prefill/request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/worker/call_checks.h"

namespace baton::prefill {

absl::Status CheckRequest(const internal::v1::PrefillRequest& request, uint64_t epoch,
                          const engine::Engine& engine) {
  BATON_RETURN_IF_ERROR(worker::CheckKvCall(request, {request.prefill_epoch(), epoch}, engine));
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
  BATON_RETURN_IF_ERROR(worker::CheckKvHint(request));
  return worker::CheckTokenFields(request, engine.config().vocab_size);
}

std::unique_ptr<PrefillJob> MakeJob(const internal::v1::PrefillRequest& request,
                                    absl::Time deadline, const engine::Engine& engine) {
  auto job = std::make_unique<PrefillJob>();
  FillJob(request, deadline, engine, job.get());
  job->transfer =
      KvTransfer{.sender = nullptr, .first_block = request.first_block(), .pinned = nullptr};
  job->suppressed.assign(request.suppressed_token_ids().begin(),
                         request.suppressed_token_ids().end());
  return job;
}

absl::Status CheckRequest(const internal::v1::ScoreItemsRequest& request, absl::string_view role,
                          uint64_t epoch, const engine::Engine& engine) {
  BATON_RETURN_IF_ERROR(
      worker::CheckTarget(role, {request.prefill_epoch(), epoch},
                          {request.model_fingerprint(), engine.config().fingerprint}));
  BATON_RETURN_IF_ERROR(CheckRange("items", request.items_size(), 1, kMaxScoredItems));
  if (request.embed() && !engine.config().embeddings) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_AN_EMBEDDING_MODEL",
                     "the model of this worker is not made for embeddings");
  }
  const int vocab_size = engine.config().vocab_size;
  BATON_RETURN_IF_ERROR(CheckTokenIds("prefix", request.prefix(), vocab_size));
  for (const internal::v1::ScoreItemsRequest::Item& item : request.items()) {
    BATON_RETURN_IF_ERROR(CheckTokenIds("items.tokens", item.tokens(), vocab_size));
    BATON_RETURN_IF_ERROR(CheckRange("items.labels", item.labels_size(), request.embed() ? 0 : 1,
                                     request.embed() ? 0 : kMaxLabels));
    const int64_t prompt = int64_t{request.prefix_size()} + item.tokens_size();
    if (prompt < 1) {
      return InvalidField("PROMPT_LENGTH", "items.tokens", "prefix and item have no token");
    }
    if (prompt > engine.max_model_len()) {
      return InvalidField(
          "PROMPT_LENGTH", "items.tokens",
          absl::StrCat(prompt, " given, expected at most ", engine.max_model_len()));
    }
    for (const auto& label : item.labels()) {
      BATON_RETURN_IF_ERROR(CheckTokenIds("items.labels.tokens", label.tokens(), vocab_size));
      BATON_RETURN_IF_ERROR(CheckRange("items.labels.tokens", label.tokens_size(), 1,
                                       engine.max_num_batched_tokens()));
      if (prompt + label.tokens_size() > engine.max_model_len()) {
        return InvalidField(
            "PROMPT_LENGTH", "items.tokens",
            absl::StrCat(prompt + label.tokens_size(), " with a label, expected at most ",
                         engine.max_model_len()));
      }
    }
  }
  if (!v1::Priority_IsValid(request.priority())) {
    return OutOfRange("priority", absl::StrCat(static_cast<int>(request.priority())),
                      "a value of baton.v1.Priority expected");
  }
  return CheckTenant(request.tenant());
}

std::vector<std::unique_ptr<PrefillJob>> MakeJobs(const internal::v1::ScoreItemsRequest& request,
                                                  absl::Time deadline,
                                                  const engine::Engine& engine) {
  std::vector<std::unique_ptr<PrefillJob>> jobs;
  const kv::PrefixKey root =
      kv::RootPrefixKey(engine.config().fingerprint, request.cache_salt(), "");
  for (const internal::v1::ScoreItemsRequest::Item& item : request.items()) {
    auto job = std::make_unique<PrefillJob>();
    job->request_id = request.request_id();
    job->tokens.assign(request.prefix().begin(), request.prefix().end());
    job->tokens.insert(job->tokens.end(), item.tokens().begin(), item.tokens().end());
    job->root = root;
    job->tenant = request.tenant();
    if (request.priority() != v1::PRIORITY_UNSPECIFIED) job->priority = request.priority();
    job->deadline = deadline;
    job->prompt_tokens = job->size();
    job->shared_tokens = request.prefix_size();
    job->scoring = std::make_unique<Scoring>();
    for (const auto& label : item.labels()) {
      job->scoring->labels.emplace_back(label.tokens().begin(), label.tokens().end());
      job->scoring->first_tokens.push_back(label.tokens(0));
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace baton::prefill
