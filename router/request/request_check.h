// From a client's request to a decode worker's: checks every field, fills in every default.
#ifndef BATON_ROUTER_REQUEST_REQUEST_CHECK_H_
#define BATON_ROUTER_REQUEST_REQUEST_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/internal/v1/decode.pb.h"
#include "baton/v1/inference.pb.h"
#include "common/base/byte_range.h"
#include "common/tokenizer/tokenizer.h"
#include "router/fleet/model_info.h"
#include "router/request/prepared_request.h"
#include "router/request/request_class.h"

namespace baton::router {

// NOT_FOUND unless `model` is empty or the one served.
absl::Status CheckModel(const std::string& model, const std::string& served_model_name);

// INVALID_ARGUMENT unless it is at most 128 printable ASCII characters.
absl::Status CheckRequestId(absl::string_view id);

// INVALID_ARGUMENT naming `field` if the text is over the limit.
absl::Status CheckText(absl::string_view field, const std::string& text, int64_t max_prompt_bytes);
absl::Status CheckTokenCount(absl::string_view field, int64_t count, int64_t max_prompt_bytes);

// Checks request_id, tenant, priority and cache_salt.
absl::Status CheckNames(const v1::GenerateRequest& request);

// INVALID_ARGUMENT if a prompt given as token ids does not fit in the context. Does not look at the
// ids, of which there may be millions.
absl::Status CheckIdCount(const v1::GenerateRequest& request, int max_model_len);

// INVALID_ARGUMENT naming `field`: a prompt of so many tokens leaves no room for an answer.
absl::Status TooLong(absl::string_view field, int64_t prompt_tokens, int max_model_len);

// What the tokenizer is to split of a prompt that is given as text: all or nothing.
ByteRanges SplitOfText(bool split_special_tokens, absl::string_view text);

// All checks that need neither the tokenizer nor a worker: cheap enough for an event thread.
absl::Status CheckRequest(const v1::GenerateRequest& request, const std::string& served_model_name,
                          int64_t max_prompt_bytes);

// Tokenizes, truncates, checks against the model and the class, fills in defaults and seed.
// REQUIRES: CheckRequest passed, and RenderMessages (chat_prompt.h) too.
absl::StatusOr<PreparedRequest> PrepareRequest(v1::GenerateRequest request,
                                               const tokenizer::Tokenizer& tokenizer,
                                               const ModelInfo& model,
                                               const RequestClass& request_class = {});

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_REQUEST_CHECK_H_
