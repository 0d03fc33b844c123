// What a call that embeds has beside one that scores: its checks, and the vectors that it returns.
#ifndef BATON_ROUTER_SCORE_EMBEDDING_H_
#define BATON_ROUTER_SCORE_EMBEDDING_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "baton/internal/v1/worker.pb.h"
#include "baton/v1/inference.pb.h"
#include "router/fleet/model_info.h"
#include "router/options.h"

namespace baton::router {

// What needs neither the tokenizer nor a worker. INVALID_ARGUMENT naming the field; NOT_FOUND for
// another model.
absl::Status CheckEmbedRequest(const v1::EmbedRequest& request, const Options& options);

// FAILED_PRECONDITION, NOT_AN_EMBEDDING_MODEL, for a model that is not made for embeddings;
// INVALID_ARGUMENT for more dimensions than it has.
absl::Status CheckEmbeddings(const v1::EmbedRequest& request, const ModelInfo& model);

// The parts of a scoring call that the two kinds of calls have in common.
v1::ScoreRequest SettingsOf(const v1::EmbedRequest& request);

// How many elements each vector of the answer has. REQUIRES: CheckEmbeddings(request, model).ok().
int DimensionsOf(const v1::EmbedRequest& request, const ModelInfo& model);

// OUT_OF_RANGE, ANSWER_TOO_LARGE, if the answer is larger than a message of gRPC may be. REQUIRES:
// as DimensionsOf.
absl::Status CheckAnswerSize(const v1::EmbedRequest& request, const ModelInfo& model);

// The first `dimensions` elements of a model's hidden state, and of length 1 if the model's vectors
// are. A vector of zeros stays one.
std::vector<float> EmbeddingOf(absl::Span<const float> hidden_state, int dimensions,
                               bool normalized);

}  // namespace baton::router

#endif  // BATON_ROUTER_SCORE_EMBEDDING_H_
