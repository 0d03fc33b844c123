#include "router/score/embedding.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "router/request/delta_merging.h"
#include "router/request/request_check.h"
#include "router/score/score_check.h"

namespace baton::router {

absl::Status CheckEmbedRequest(const v1::EmbedRequest& request, const Options& options) {
  BATON_RETURN_IF_ERROR(CheckModel(request.model(), options.served_model_name));
  BATON_RETURN_IF_ERROR(CheckNames(NamesOf(SettingsOf(request))));
  BATON_RETURN_IF_ERROR(CheckRange("inputs", request.inputs_size(), 1, kMaxEmbedInputs));
  for (const v1::EmbedInput& input : request.inputs()) {
    const bool empty =
        input.has_token_ids() ? input.token_ids().ids().empty() : input.text().empty();
    if (empty) {
      return InvalidField("EMPTY_PROMPT", "inputs", "empty, a text or token ids expected");
    }
  }
  if (!request.has_dimensions() || request.dimensions() >= 1) return absl::OkStatus();
  return OutOfRange("dimensions", absl::StrCat(request.dimensions()), "1 or more expected");
}

absl::Status CheckEmbeddings(const v1::EmbedRequest& request, const ModelInfo& model) {
  if (!model.embeddings) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_AN_EMBEDDING_MODEL",
                     "the model that is served is not made for embeddings: its files name no "
                     "pooling");
  }
  if (request.dimensions() <= model.embeddings->dimensions()) return absl::OkStatus();
  return OutOfRange(
      "dimensions", absl::StrCat(request.dimensions()),
      absl::StrCat("at most the model's ", model.embeddings->dimensions(), " expected"));
}

v1::ScoreRequest SettingsOf(const v1::EmbedRequest& request) {
  v1::ScoreRequest settings;
  settings.set_model(request.model());
  settings.set_cache_salt(request.cache_salt());
  settings.set_priority(request.priority());
  settings.set_tenant(request.tenant());
  settings.set_request_id(request.request_id());
  if (request.has_add_special_tokens()) {
    settings.set_add_special_tokens(request.add_special_tokens());
  }
  return settings;
}

int DimensionsOf(const v1::EmbedRequest& request, const ModelInfo& model) {
  return request.has_dimensions() ? request.dimensions() : model.embeddings->dimensions();
}

absl::Status CheckAnswerSize(const v1::EmbedRequest& request, const ModelInfo& model) {
  constexpr int64_t kBytesBeside = 32;  // of a vector's message
  const int64_t bytes = request.inputs_size() *
                        (int64_t{sizeof(float)} * DimensionsOf(request, model) + kBytesBeside);
  if (bytes <= static_cast<int64_t>(WholeAnswer::kMaxMessageBytes)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kOutOfRange, "ANSWER_TOO_LARGE",
                   absl::StrCat("the embeddings of ", request.inputs_size(), " inputs are ", bytes,
                                " bytes, more than clients take in one message: expected fewer "
                                "inputs or dimensions"));
}

std::vector<float> EmbeddingOf(absl::Span<const float> hidden_state, int dimensions,
                               bool normalized) {
  const absl::Span<const float> part = hidden_state.first(static_cast<size_t>(dimensions));
  std::vector<float> embedding(part.begin(), part.end());
  if (!normalized) return embedding;
  double squares = 0;
  for (const float value : embedding) squares += static_cast<double>(value) * value;
  if (squares == 0) return embedding;
  const double scale = 1 / std::sqrt(squares);
  for (float& value : embedding) value = static_cast<float>(value * scale);
  return embedding;
}

}  // namespace baton::router
