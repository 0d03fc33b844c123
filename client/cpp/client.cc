#include "client/cpp/client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/synchronization/notification.h"
#include "client/cpp/ask.h"
#include "client/cpp/connection.h"
#include "client/cpp/convert.h"
#include "client/cpp/stream_call.h"
#include "common/base/random_id.h"

namespace baton::client {
namespace {

// True on a thread that runs a callback: it must not wait for another one, which may need it.
thread_local bool in_callback = false;

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : reason == FinishReason::kLength ? "length" : "";
}

GenerateStream::GenerateStream(std::shared_ptr<const Connection> connection,
                               std::shared_ptr<StreamCall> call)
    : connection_(std::move(connection)), call_(std::move(call)) {}

GenerateStream::~GenerateStream() {
  if (!ended_) Cancel();
  while (Next()) {
  }
}

std::optional<Delta> GenerateStream::Next() {
  if (ended_) return std::nullopt;
  std::optional<Delta> delta;
  absl::Notification read;
  call_->Read([&](std::optional<Delta> next) {
    delta = std::move(next);
    read.Notify();
  });
  read.WaitForNotification();
  ended_ = !delta.has_value();
  return delta;
}

const absl::Status& GenerateStream::status() const { return call_->status(); }
const Completion& GenerateStream::completion() const { return call_->completion(); }
void GenerateStream::Cancel() { call_->Cancel(); }

struct CallbackStream::State {
  std::shared_ptr<StreamCall> call;
  StreamCallbacks callbacks;
  absl::Notification done;

  static void Read(std::shared_ptr<State> state) {
    StreamCall& call = *state->call;
    call.Read([state = std::move(state)](std::optional<Delta> delta) {
      in_callback = true;
      if (!delta) {
        const StreamCallbacks callbacks = std::move(state->callbacks);
        if (callbacks.on_done) callbacks.on_done(state->call->status(), state->call->completion());
      } else if (state->callbacks.on_delta) {
        state->callbacks.on_delta(*delta);
      }
      in_callback = false;
      if (delta) return Read(state);
      state->done.Notify();
    });
  }
};

CallbackStream::CallbackStream(std::shared_ptr<const Connection> connection,
                               std::shared_ptr<State> state)
    : connection_(std::move(connection)), state_(std::move(state)) {}

CallbackStream::~CallbackStream() {
  Cancel();
  if (!in_callback) state_->done.WaitForNotification();
}

void CallbackStream::Cancel() { state_->call->Cancel(); }

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const std::string& address,
                                                       const ClientOptions& options) {
  auto connection = Connection::Make(address, options);
  if (!connection.ok()) return connection.status();
  return std::make_unique<Client>(*std::move(connection));
}

Client::Client(std::shared_ptr<const Connection> connection) : connection_(std::move(connection)) {}
Client::~Client() = default;

std::unique_ptr<GenerateStream> Client::Generate(const GenerateRequest& request,
                                                 const CallOptions& options) {
  auto call = std::make_shared<StreamCall>(connection_, request, options);
  call->Start();
  return std::unique_ptr<GenerateStream>(new GenerateStream(connection_, std::move(call)));
}

std::unique_ptr<CallbackStream> Client::Generate(const GenerateRequest& request,
                                                 StreamCallbacks callbacks,
                                                 const CallOptions& options) {
  auto state = std::make_shared<CallbackStream::State>();
  state->call = std::make_shared<StreamCall>(connection_, request, options);
  state->callbacks = std::move(callbacks);
  state->call->Start();
  CallbackStream::State::Read(state);
  return std::unique_ptr<CallbackStream>(new CallbackStream(connection_, std::move(state)));
}

absl::StatusOr<Completion> Client::GenerateOnce(const GenerateRequest& request,
                                                const CallOptions& options) {
  v1::GenerateOnceRequest once;
  *once.mutable_request() = ToProto(request);
  std::string& request_id = *once.mutable_request()->mutable_request_id();
  if (request_id.empty()) request_id = RandomIdText();
  v1::GenerateOnceResponse response;
  absl::Status status = Ask(*connection_, options, *connection_->inference,
                            &v1::InferenceService::Stub::GenerateOnce, once, &response, request_id);
  if (!status.ok()) return InCallersNames(status, once.request());
  return FromProto(std::move(response));
}

absl::StatusOr<std::vector<int32_t>> Client::Tokenize(const std::string& text,
                                                      bool add_special_tokens,
                                                      const CallOptions& options,
                                                      bool split_special_tokens) {
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(add_special_tokens);
  request.set_split_special_tokens(split_special_tokens);
  v1::TokenizeResponse response;
  absl::Status status = Ask(*connection_, options, *connection_->inference,
                            &v1::InferenceService::Stub::Tokenize, request, &response);
  if (!status.ok()) return status;
  return std::vector<int32_t>(response.token_ids().begin(), response.token_ids().end());
}

absl::StatusOr<std::string> Client::Detokenize(const std::vector<int32_t>& token_ids,
                                               bool skip_special_tokens,
                                               const CallOptions& options) {
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Assign(token_ids.begin(), token_ids.end());
  request.set_skip_special_tokens(skip_special_tokens);
  v1::DetokenizeResponse response;
  absl::Status status = Ask(*connection_, options, *connection_->inference,
                            &v1::InferenceService::Stub::Detokenize, request, &response);
  if (!status.ok()) return status;
  return response.text();
}

absl::StatusOr<std::vector<Model>> Client::ListModels(const CallOptions& options) {
  v1::ListModelsResponse response;
  absl::Status status =
      Ask(*connection_, options, *connection_->inference, &v1::InferenceService::Stub::ListModels,
          v1::ListModelsRequest(), &response);
  if (!status.ok()) return status;
  std::vector<Model> models;
  for (const v1::Model& model : response.models()) {
    models.push_back({model.id(), model.max_model_len(), model.vocab_size(), model.fingerprint()});
  }
  return models;
}

absl::StatusOr<std::vector<Worker>> Client::ListWorkers(const CallOptions& options) {
  v1::ListWorkersResponse response;
  absl::Status status =
      Ask(*connection_, options, *connection_->admin, &v1::AdminService::Stub::ListWorkers,
          v1::ListWorkersRequest(), &response);
  if (!status.ok()) return status;
  std::vector<Worker> workers;
  for (const v1::WorkerStatus& worker : response.workers()) workers.push_back(FromProto(worker));
  return workers;
}

}  // namespace baton::client
