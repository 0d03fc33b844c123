// The embedding call of Client.
#include "client/cpp/ask.h"
#include "client/cpp/client.h"
#include "client/cpp/connection.h"
#include "client/cpp/convert.h"
#include "common/base/random_id.h"

namespace baton::client {

absl::StatusOr<Embeddings> Client::Embed(const EmbedRequest& request,
                                         const std::vector<EmbedInput>& inputs,
                                         const CallOptions& options) {
  v1::EmbedRequest proto;
  proto.set_model(request.model);
  for (const EmbedInput& input : inputs) {
    v1::EmbedInput* const added = proto.add_inputs();
    if (const auto* const text = std::get_if<std::string>(&input)) {
      added->set_text(*text);
    } else {
      const auto& ids = std::get<std::vector<int32_t>>(input);
      added->mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
    }
  }
  if (request.dimensions) proto.set_dimensions(*request.dimensions);
  if (request.add_special_tokens) proto.set_add_special_tokens(*request.add_special_tokens);
  proto.set_priority(ToProto(request.priority));
  proto.set_tenant(request.tenant);
  proto.set_request_id(request.request_id.empty() ? RandomIdText() : request.request_id);
  proto.set_cache_salt(request.cache_salt);
  v1::EmbedResponse response;
  absl::Status status =
      Ask(*connection_, options, *connection_->inference, &v1::InferenceService::Stub::Embed, proto,
          &response, proto.request_id());
  if (!status.ok()) return status;
  Embeddings made;
  for (const v1::Embedding& embedding : response.embeddings()) {
    made.embeddings.push_back({{embedding.values().begin(), embedding.values().end()},
                               embedding.prompt_tokens(),
                               embedding.cached_prompt_tokens()});
  }
  made.request_id = response.request_id();
  return made;
}

}  // namespace baton::client
