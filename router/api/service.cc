#include "router/api/service.h"

#include <functional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/random_id.h"
#include "common/base/request_limits.h"
#include "common/base/rpc/call_headers.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/tokenizer.h"
#include "router/api/explain.h"
#include "router/api/response_writer.h"
#include "router/api/score_writer.h"
#include "router/api/wire.h"
#include "router/fleet/roster.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/access.h"
#include "router/request/admission.h"
#include "router/request/call_registry.h"
#include "router/request/entrance.h"
#include "router/request/generate_call.h"
#include "router/request/request_check.h"
#include "router/request/work_pool.h"
#include "router/routing/decision_log.h"
#include "router/score/embedding.h"

namespace baton::router {
namespace {

constexpr int kDefaultDecisions = 64;  // of ListDecisions without max_decisions

constexpr char kRequestId[] = "x-request-id";

absl::StatusOr<Caller> Authenticate(const RouterParts& parts,
                                    const grpc::ServerContextBase& context) {
  return parts.access.Authenticate(CallHeader(context, "authorization"),
                                   CallHeader(context, security::kWorkerSecretHeader));
}

// Adds the call's id to its answer: that of the message, or else of the metadata, or else a new
// one. Ids that are not valid are passed over.
std::string EchoRequestId(absl::string_view in_message, grpc::CallbackServerContext* context) {
  std::string id;
  for (const absl::string_view given : {in_message, CallHeader(*context, kRequestId)}) {
    if (id.empty() && CheckRequestId(given).ok()) id = std::string(given);
  }
  if (id.empty()) id = RandomIdText();
  context->AddInitialMetadata(kRequestId, id);
  return id;
}

// gRPC keeps the bytes of a message for as long as the call, so they count for as long.
absl::StatusOr<Caller> Admit(const RouterParts& parts, const grpc::ServerContextBase& context,
                             const grpc::ByteBuffer& message) {
  Caller caller;
  BATON_ASSIGN_OR_RETURN(caller, Authenticate(parts, context));
  if (parts.request_bytes == nullptr) return caller;
  caller.held = std::make_shared<RequestBytes::Share>(parts.request_bytes->Open());
  BATON_RETURN_IF_ERROR(Hold(parts, static_cast<int64_t>(message.Length()), caller.held.get()));
  return caller;
}

// Authenticates a call that generates nothing and is answered at once.
absl::StatusOr<Caller> CallerOf(const RouterParts& parts, grpc::CallbackServerContext& context) {
  EchoRequestId("", &context);
  return Authenticate(parts, context);
}

// Returns the caller of a call that generates or scores, with the trace that it is in. Gives the
// request its id. `status`: whether the call is allowed and was understood so far.
template <class Request>
Caller Receive(absl::StatusOr<Caller> allowed, grpc::CallbackServerContext* context,
               Request* request, absl::Status* status) {
  if (status->ok() && request->request_id().empty()) {
    *status = CheckRequestId(CallHeader(*context, kRequestId));
  }
  const std::string id = EchoRequestId(request->request_id(), context);
  if (request->request_id().empty()) request->set_request_id(id);
  Caller caller = allowed.ok() ? *std::move(allowed) : Caller();
  caller.request_id = id;
  caller.trace = TraceOfCall(*context);
  if constexpr (std::is_same_v<Request, v1::GenerateRequest>) caller.chat = request->has_messages();
  return caller;
}

template <class Reactor>
Reactor* StartCall(const std::shared_ptr<GenerateCall>& call, Reactor* reactor,
                   const absl::Status& parsed, v1::GenerateRequest request, absl::Time deadline) {
  if (parsed.ok()) {
    call->Start(std::move(request), deadline, reactor);
  } else {
    call->Refuse(parsed, reactor);
  }
  return reactor;
}

grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context,
                                   const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// Runs `answer` on the pool and finishes the call with its status.
grpc::ServerUnaryReactor* OnPool(RouterParts& parts, grpc::CallbackServerContext* context,
                                 std::function<absl::Status()> answer) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool queued = parts.pool.TryRun(
      [reactor, answer = std::move(answer)] { reactor->Finish(ToGrpcStatus(answer())); });
  if (!queued) {
    reactor->Finish(ToGrpcStatus(TokenizerQueueFull(parts)));
  }
  return reactor;
}

}  // namespace

absl::Time DeadlineOf(const grpc::CallbackServerContext& context, const RouterParts& parts) {
  const absl::Time ours = parts.clock.Now() + absl::Milliseconds(parts.options.default_deadline_ms);
  if (context.deadline() == std::chrono::system_clock::time_point::max()) return ours;
  return absl::FromChrono(context.deadline());
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  absl::StatusOr<Caller> caller = Admit(parts_, *context, *bytes);
  v1::GenerateRequest request;
  absl::Status parsed = caller.ok() ? ParseRequest(*bytes, &request) : caller.status();
  auto call = std::make_shared<GenerateCall>(
      parts_, Receive(std::move(caller), context, &request, &parsed));
  return StartCall(call, new StreamWriter(call, context, parts_), parsed, std::move(request),
                   DeadlineOf(*context, parts_));
}

grpc::ServerUnaryReactor* InferenceService::GenerateOnce(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* bytes,
                                                         grpc::ByteBuffer* response) {
  absl::StatusOr<Caller> caller = Admit(parts_, *context, *bytes);
  v1::GenerateOnceRequest request;
  absl::Status parsed = caller.ok() ? ParseRequest(*bytes, &request) : caller.status();
  auto call = std::make_shared<GenerateCall>(
      parts_, Receive(std::move(caller), context, request.mutable_request(), &parsed));
  return StartCall(call, new OnceWriter(call, context, response, parts_), parsed,
                   std::move(*request.mutable_request()), DeadlineOf(*context, parts_));
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes,
                                                     grpc::ByteBuffer* response) {
  EchoRequestId("", context);
  const absl::StatusOr<Caller> caller = Admit(parts_, *context, *bytes);
  if (!caller.ok()) return Finished(context, caller.status());
  return OnPool(parts_, context, [this, bytes, response, held = caller->held] {
    v1::TokenizeRequest request;
    BATON_RETURN_IF_ERROR(ParseRequest(*bytes, &request));
    BATON_RETURN_IF_ERROR(CheckModel(request.model(), parts_.options.served_model_name));
    BATON_RETURN_IF_ERROR(CheckText("text", request.text(), parts_.options.max_prompt_bytes));
    const bool special = !request.has_add_special_tokens() || request.add_special_tokens();
    std::vector<int32_t> ids;
    BATON_ASSIGN_OR_RETURN(
        ids, parts_.tokenizer.Encode(request.text(), special,
                                     SplitOfText(request.split_special_tokens(), request.text())));
    v1::TokenizeResponse answer;
    answer.mutable_token_ids()->Assign(ids.begin(), ids.end());
    *response = ToBytes(answer);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       grpc::ByteBuffer* response) {
  EchoRequestId("", context);
  const absl::StatusOr<Caller> caller = Admit(parts_, *context, *bytes);
  if (!caller.ok()) return Finished(context, caller.status());
  return OnPool(parts_, context, [this, bytes, response, held = caller->held] {
    v1::DetokenizeRequest request;
    BATON_RETURN_IF_ERROR(ParseRequest(*bytes, &request));
    BATON_RETURN_IF_ERROR(CheckModel(request.model(), parts_.options.served_model_name));
    BATON_RETURN_IF_ERROR(
        CheckTokenCount("token_ids", request.token_ids_size(), parts_.options.max_prompt_bytes));
    BATON_RETURN_IF_ERROR(
        CheckTokenIds("token_ids", request.token_ids(), parts_.tokenizer.vocab_size()));
    const bool skip = !request.has_skip_special_tokens() || request.skip_special_tokens();
    v1::DetokenizeResponse answer;
    BATON_ASSIGN_OR_RETURN(*answer.mutable_text(),
                           parts_.tokenizer.Decode(request.token_ids(), skip));
    *response = ToBytes(answer);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       grpc::ByteBuffer* response) {
  if (auto caller = CallerOf(parts_, *context); !caller.ok()) {
    return Finished(context, caller.status());
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  v1::ListModelsResponse answer;
  v1::Model* served = answer.add_models();
  served->set_id(parts_.options.served_model_name);
  served->set_vocab_size(parts_.tokenizer.vocab_size());
  // Unknown until a worker has introduced itself.
  if (std::optional<ModelInfo> model = parts_.roster.model()) {
    served->set_max_model_len(model->max_model_len);
    served->set_fingerprint(model->fingerprint);
  }
  *response = ToBytes(answer);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Cancel(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* bytes,
                                                   grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status status = [&]() -> absl::Status {
    Caller caller;
    BATON_ASSIGN_OR_RETURN(caller, CallerOf(parts_, *context));
    v1::CancelRequest request;
    BATON_RETURN_IF_ERROR(ParseRequest(*bytes, &request));
    BATON_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
    BATON_RETURN_IF_ERROR(CheckTenant(request.tenant()));
    if (request.request_id().empty()) {
      return InvalidField("BAD_REQUEST_ID", "request_id", "empty, the id of a request expected");
    }
    std::string tenant;
    BATON_ASSIGN_OR_RETURN(tenant, TenantOf(caller, request.tenant()));
    v1::CancelResponse answer;
    answer.set_cancelled(parts_.calls.Cancel(tenant, request.request_id()));
    if (answer.cancelled() == 0) {
      return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_REQUEST",
                       absl::StrCat("this router runs no request \"", request.request_id(),
                                    "\" of tenant \"", tenant, "\""));
    }
    *response = ToBytes(answer);
    return absl::OkStatus();
  }();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Score(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* bytes,
                                                  grpc::ByteBuffer* response) {
  absl::StatusOr<Caller> caller = Admit(parts_, *context, *bytes);
  ScoreCall::Settings settings;
  absl::Status parsed = caller.ok() ? ParseRequest(*bytes, &settings.request) : caller.status();
  auto call = std::make_shared<ScoreCall>(
      parts_, Receive(std::move(caller), context, &settings.request, &parsed));
  auto* writer = new ItemsOnceWriter<v1::ScoreResponse>(
      call, context, settings.request.request_id(), response, parts_);
  if (parsed.ok()) {
    call->Start(std::move(settings), DeadlineOf(*context, parts_), writer);
  } else {
    call->Refuse(parsed, writer);
  }
  return writer;
}

grpc::ServerUnaryReactor* InferenceService::Embed(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* bytes,
                                                  grpc::ByteBuffer* response) {
  absl::StatusOr<Caller> caller = Admit(parts_, *context, *bytes);
  v1::EmbedRequest request;
  absl::Status parsed = caller.ok() ? ParseRequest(*bytes, &request) : caller.status();
  const std::optional<ModelInfo> model = parts_.roster.model();
  if (parsed.ok() && model && CheckEmbedRequest(request, parts_.options).ok() &&
      CheckEmbeddings(request, *model).ok()) {
    parsed = CheckAnswerSize(request, *model);
  }
  auto call =
      std::make_shared<ScoreCall>(parts_, Receive(std::move(caller), context, &request, &parsed),
                                  /*embeds=*/true);
  auto* writer =
      new ItemsOnceWriter<v1::EmbedResponse>(call, context, request.request_id(), response, parts_);
  if (!parsed.ok()) {
    call->Refuse(parsed, writer);
    return writer;
  }
  ScoreCall::Settings settings;
  settings.request = SettingsOf(request);
  settings.embed = std::move(request);
  call->Start(std::move(settings), DeadlineOf(*context, parts_), writer);
  return writer;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* InferenceService::ScoreStream(
    grpc::CallbackServerContext* context) {
  auto begin = [this, context](v1::ScoreRequest* settings, absl::Status* status) {
    absl::StatusOr<Caller> caller = Authenticate(parts_, *context);
    if (!caller.ok()) *status = caller.status();
    return std::make_shared<ScoreCall>(parts_,
                                       Receive(std::move(caller), context, settings, status));
  };
  return new ScoreStreamWriter(DeadlineOf(*context, parts_), context, parts_, std::move(begin));
}

absl::Status AdminService::Allow(grpc::CallbackServerContext& context) const {
  Caller caller;
  BATON_ASSIGN_OR_RETURN(caller, CallerOf(parts_, context));
  return CheckAdmin(caller);
}

grpc::ServerUnaryReactor* AdminService::ListWorkers(grpc::CallbackServerContext* context,
                                                    const v1::ListWorkersRequest* request,
                                                    v1::ListWorkersResponse* response) {
  if (absl::Status allowed = Allow(*context); !allowed.ok()) return Finished(context, allowed);
  for (v1::WorkerStatus& status : parts_.roster.List()) {
    *response->add_workers() = std::move(status);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Explain(grpc::CallbackServerContext* context,
                                                const v1::ExplainRequest* request,
                                                v1::ExplainResponse* response) {
  if (absl::Status allowed = Allow(*context); !allowed.ok()) return Finished(context, allowed);
  return OnPool(parts_, context, [this, request, response] {
    BATON_ASSIGN_OR_RETURN(*response, router::Explain(request->request(), parts_));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::ListDecisions(grpc::CallbackServerContext* context,
                                                      const v1::ListDecisionsRequest* request,
                                                      v1::ListDecisionsResponse* response) {
  if (absl::Status allowed = Allow(*context); !allowed.ok()) return Finished(context, allowed);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const int max = request->max_decisions();
  if (max < 0 || max > DecisionLog::kCapacity) {
    reactor->Finish(ToGrpcStatus(
        InvalidField("OUT_OF_RANGE", "max_decisions",
                     absl::StrCat(max, " given, 0 to ", DecisionLog::kCapacity, " expected"))));
    return reactor;
  }
  for (v1::Decision& decision :
       parts_.decisions.Last(max == 0 ? kDefaultDecisions : max, request->request_id())) {
    *response->add_decisions() = std::move(decision);
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace baton::router
