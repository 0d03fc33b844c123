// The scoring calls of Client.
#include <deque>
#include <utility>

#include "client/cpp/ask.h"
#include "client/cpp/client.h"
#include "client/cpp/connection.h"
#include "client/cpp/convert.h"
#include "common/base/error.h"
#include "common/base/random_id.h"

namespace baton::client {
namespace {

v1::ScoreRequest ToProto(const ScoreRequest& request) {
  v1::ScoreRequest proto;
  proto.set_model(request.model);
  proto.set_prefix(request.prefix);
  proto.mutable_labels()->Assign(request.labels.begin(), request.labels.end());
  if (request.add_special_tokens) proto.set_add_special_tokens(*request.add_special_tokens);
  proto.set_priority(ToProto(request.priority));
  proto.set_tenant(request.tenant);
  proto.set_request_id(request.request_id.empty() ? RandomIdText() : request.request_id);
  proto.set_cache_salt(request.cache_salt);
  return proto;
}

ItemScore FromProto(const v1::ItemScore& proto) {
  ItemScore item;
  item.id = proto.id();
  if (proto.has_error()) {
    item.status = MakeError(static_cast<absl::StatusCode>(proto.error().code()),
                            proto.error().reason(), proto.error().message());
  }
  for (const v1::LabelScore& label : proto.labels()) {
    item.labels.push_back({label.logprob(),
                           {label.token_ids().begin(), label.token_ids().end()},
                           {label.token_logprobs().begin(), label.token_logprobs().end()}});
  }
  if (proto.has_probability()) item.probability = proto.probability();
  item.prompt_tokens = proto.prompt_tokens();
  item.cached_prompt_tokens = proto.cached_prompt_tokens();
  return item;
}

ScoreUsage FromProto(const v1::ScoreUsage& proto) {
  return {proto.items(), proto.failed_items(), proto.prompt_tokens(), proto.cached_prompt_tokens()};
}

}  // namespace

struct ScoreStream::State {
  std::shared_ptr<const Connection> connection;
  std::string request_id;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ScoreStreamRequest, v1::ScoreStreamResponse>> call;
  // Only the thread that reads uses these.
  std::deque<ItemScore> read;
  bool ended = false;
  absl::Status status;
  ScoreUsage usage;
};

ScoreStream::ScoreStream(std::unique_ptr<State> state) : state_(std::move(state)) {}

ScoreStream::~ScoreStream() {
  if (!state_->ended) Cancel();
  while (Next()) {
  }
}

bool ScoreStream::Send(const std::vector<ScoreItem>& items) {
  v1::ScoreStreamRequest message;
  for (const ScoreItem& item : items) {
    v1::ScoreItem* added = message.add_items();
    added->set_id(item.id);
    added->set_text(item.text);
  }
  return state_->call->Write(message);
}

void ScoreStream::EndItems() { state_->call->WritesDone(); }

std::optional<ItemScore> ScoreStream::Next() {
  State& state = *state_;
  v1::ScoreStreamResponse message;
  while (!state.ended && state.read.empty()) {
    if (!state.call->Read(&message)) {
      state.ended = true;
      state.status = state.connection->FromCall(state.call->Finish(), state.request_id);
      break;
    }
    for (const v1::ItemScore& item : message.items()) state.read.push_back(FromProto(item));
    if (message.has_usage()) state.usage = FromProto(message.usage());
  }
  if (state.read.empty()) return std::nullopt;
  ItemScore item = std::move(state.read.front());
  state.read.pop_front();
  return item;
}

const absl::Status& ScoreStream::status() const { return state_->status; }
const ScoreUsage& ScoreStream::usage() const { return state_->usage; }
void ScoreStream::Cancel() { state_->context.TryCancel(); }

absl::StatusOr<Scores> Client::Score(const ScoreRequest& request,
                                     const std::vector<std::string>& items,
                                     const CallOptions& options) {
  v1::ScoreRequest proto = ToProto(request);
  proto.mutable_items()->Assign(items.begin(), items.end());
  v1::ScoreResponse response;
  absl::Status status =
      Ask(*connection_, options, *connection_->inference, &v1::InferenceService::Stub::Score, proto,
          &response, proto.request_id());
  if (!status.ok()) return status;
  Scores scores;
  for (const v1::ItemScore& item : response.items()) scores.items.push_back(FromProto(item));
  scores.usage = FromProto(response.usage());
  scores.request_id = response.request_id();
  return scores;
}

std::unique_ptr<ScoreStream> Client::Score(const ScoreRequest& request, bool in_order,
                                           const CallOptions& options) {
  auto state = std::make_unique<ScoreStream::State>();
  state->connection = connection_;
  connection_->Prepare(connection_->NewRetries(options), &state->context);
  state->call = connection_->inference->ScoreStream(&state->context);
  v1::ScoreStreamRequest first;
  *first.mutable_settings() = ToProto(request);
  first.set_in_order(in_order);
  state->request_id = first.settings().request_id();
  state->call->Write(first);  // if it fails, Next() says why
  return std::unique_ptr<ScoreStream>(new ScoreStream(std::move(state)));
}

}  // namespace baton::client
