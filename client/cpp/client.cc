#include "client/cpp/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "baton/v1/admin.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"
#include "client/cpp/convert.h"
#include "common/base/error.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"

namespace baton::client {
namespace {

void SetTimeout(absl::Duration timeout, grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));  // saturates
}

// An error without a reason is gRPC's own, and lacks the address.
absl::Status FromCall(const grpc::Status& status, const std::string& address) {
  const absl::Status error = FromGrpcStatus(status);
  if (error.ok() || !ErrorReason(error).empty()) return error;
  return Annotate(error, absl::StrCat("router at ", address));
}

ChannelSecurity SecurityFrom(const ClientOptions& options) {
  ChannelTls tls;
  tls.enabled = options.tls.enabled;
  tls.ca = options.tls.ca;
  tls.cert = options.tls.cert;
  tls.key = options.tls.key;
  tls.server_name = options.tls.server_name;
  CallHeaders headers(options.headers.begin(), options.headers.end());
  if (!options.api_key.empty()) {
    headers.emplace_back("authorization", absl::StrCat("Bearer ", options.api_key));
  }
  if (headers.empty()) return MakeChannelSecurity(tls, nullptr);
  return MakeChannelSecurity(tls, [headers] { return headers; });
}

// The router sends empty messages while a request waits for another worker.
bool IsHeartbeat(const v1::GenerateResponse& response) {
  return response.text().empty() && response.token_ids().empty() && response.logprobs().empty() &&
         response.prompt_logprobs().empty() &&
         response.finish_reason() == v1::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : reason == FinishReason::kLength ? "length" : "";
}

struct GenerateStream::Call {
  grpc::ClientContext context;
  // Own stub, so that the stream may outlive its client.
  std::unique_ptr<v1::InferenceService::Stub> stub;
  // Asynchronous, since a synchronous reader would block until there is a connection, where nothing
  // could cancel it. One operation at a time.
  grpc::CompletionQueue queue;
  std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateResponse>> reader;
  std::string address;
  bool started = false;
  bool ended = false;
  absl::Status status;
  Completion completion;

  // Waits for the end of the operation; false if it failed.
  bool Await() {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  }
  // False at the end of the stream.
  bool Read(v1::GenerateResponse* response) {
    if (!std::exchange(started, true) && !Await()) return false;
    reader->Read(response, nullptr);
    return Await();
  }
  grpc::Status Finish() {
    grpc::Status status;
    reader->Finish(&status, nullptr);
    Await();
    return status;
  }
};

GenerateStream::GenerateStream(std::unique_ptr<Call> call) : call_(std::move(call)) {}

GenerateStream::~GenerateStream() {
  if (call_->ended) return;
  call_->context.TryCancel();
  while (Next()) {
  }
}

std::optional<Delta> GenerateStream::Next() {
  if (call_->ended) return std::nullopt;
  v1::GenerateResponse response;
  bool read = call_->Read(&response);
  while (read && IsHeartbeat(response)) read = call_->Read(&response);
  if (!read) {
    call_->ended = true;
    call_->status = FromCall(call_->Finish(), call_->address);
    const std::vector<Choice>& choices = call_->completion.choices;
    const auto unfinished = std::find_if(choices.begin(), choices.end(), [](const Choice& choice) {
      return choice.finish_reason == FinishReason::kUnfinished;
    });
    if (call_->status.ok() && unfinished != choices.end()) {
      call_->status = absl::InternalError(absl::StrCat(
          "the stream ended without a finish reason for choice ", unfinished - choices.begin()));
    }
    return std::nullopt;
  }
  if (!Merge(response, &call_->completion)) {
    call_->status = absl::InternalError(absl::StrCat("the router sent choice ", response.choice(),
                                                     " of ", call_->completion.choices.size()));
    call_->context.TryCancel();
    while (call_->Read(&response)) {
    }
    call_->Finish();
    call_->ended = true;
    return std::nullopt;
  }
  Delta delta;
  delta.text = std::move(*response.mutable_text());
  delta.token_ids.assign(response.token_ids().begin(), response.token_ids().end());
  delta.usage = call_->completion.usage;
  delta.choice = response.choice();
  delta.logprobs = FromProto(response.logprobs());
  delta.prompt_logprobs = FromProto(response.prompt_logprobs());
  return delta;
}

const absl::Status& GenerateStream::status() const { return call_->status; }
const Completion& GenerateStream::completion() const { return call_->completion; }
void GenerateStream::Cancel() { call_->context.TryCancel(); }

struct Client::Connection {
  std::string address;
  ClientOptions options;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::InferenceService::Stub> inference;
  std::unique_ptr<v1::AdminService::Stub> admin;

  // One unary call.
  template <class Stub, class Request, class Response>
  absl::Status Ask(Stub& stub,
                   grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request, Response* response) {
    grpc::ClientContext context;
    SetTimeout(options.timeout, &context);
    return FromCall((stub.*method)(&context, request, response), address);
  }
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const std::string& address,
                                                       const ClientOptions& options) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return InvalidField("BAD_ADDRESS", "address",
                        absl::StrCat("\"", address, "\" is not host:port"));
  }
  auto connection = std::make_unique<Connection>();
  connection->address = address;
  connection->options = options;
  connection->channel = MakeChannel(address, kClientChannel, SecurityFrom(options));
  connection->inference = v1::InferenceService::NewStub(connection->channel);
  connection->admin = v1::AdminService::NewStub(connection->channel);
  return std::unique_ptr<Client>(new Client(std::move(connection)));
}

Client::Client(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}
Client::~Client() = default;

std::unique_ptr<GenerateStream> Client::Generate(const GenerateRequest& request) {
  auto call = std::make_unique<GenerateStream::Call>();
  SetTimeout(connection_->options.timeout, &call->context);
  call->address = connection_->address;
  // The router refuses an n out of this range.
  call->completion.choices.resize(static_cast<size_t>(std::clamp(request.n.value_or(1), 1, 16)));
  call->stub = v1::InferenceService::NewStub(connection_->channel);
  call->reader = call->stub->AsyncGenerate(&call->context, ToProto(request), &call->queue, nullptr);
  return std::unique_ptr<GenerateStream>(new GenerateStream(std::move(call)));
}

absl::StatusOr<Completion> Client::GenerateOnce(const GenerateRequest& request) {
  v1::GenerateOnceRequest once;
  *once.mutable_request() = ToProto(request);
  v1::GenerateOnceResponse response;
  absl::Status status = connection_->Ask(
      *connection_->inference, &v1::InferenceService::Stub::GenerateOnce, once, &response);
  if (!status.ok()) return status;
  return FromProto(std::move(response));
}

absl::StatusOr<std::vector<int32_t>> Client::Tokenize(const std::string& text,
                                                      bool add_special_tokens) {
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(add_special_tokens);
  v1::TokenizeResponse response;
  absl::Status status = connection_->Ask(*connection_->inference,
                                         &v1::InferenceService::Stub::Tokenize, request, &response);
  if (!status.ok()) return status;
  return std::vector<int32_t>(response.token_ids().begin(), response.token_ids().end());
}

absl::StatusOr<std::string> Client::Detokenize(const std::vector<int32_t>& token_ids,
                                               bool skip_special_tokens) {
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Assign(token_ids.begin(), token_ids.end());
  request.set_skip_special_tokens(skip_special_tokens);
  v1::DetokenizeResponse response;
  absl::Status status = connection_->Ask(
      *connection_->inference, &v1::InferenceService::Stub::Detokenize, request, &response);
  if (!status.ok()) return status;
  return response.text();
}

absl::StatusOr<std::vector<Model>> Client::ListModels() {
  v1::ListModelsResponse response;
  absl::Status status =
      connection_->Ask(*connection_->inference, &v1::InferenceService::Stub::ListModels,
                       v1::ListModelsRequest(), &response);
  if (!status.ok()) return status;
  std::vector<Model> models;
  for (const v1::Model& model : response.models()) {
    models.push_back({model.id(), model.max_model_len(), model.vocab_size(), model.fingerprint()});
  }
  return models;
}

absl::StatusOr<std::vector<Worker>> Client::ListWorkers() {
  v1::ListWorkersResponse response;
  absl::Status status = connection_->Ask(*connection_->admin, &v1::AdminService::Stub::ListWorkers,
                                         v1::ListWorkersRequest(), &response);
  if (!status.ok()) return status;
  std::vector<Worker> workers;
  for (const v1::WorkerStatus& worker : response.workers()) workers.push_back(FromProto(worker));
  return workers;
}

}  // namespace baton::client
