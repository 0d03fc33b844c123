#include "router/http/openai_service.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/percent_decoded.h"
#include "common/base/random_id.h"
#include "common/base/request_limits.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tracing/tracer.h"
#include "router/fleet/roster.h"
#include "router/http/anthropic_error.h"
#include "router/http/anthropic_request.h"
#include "router/http/anthropic_response.h"
#include "router/http/exchange.h"
#include "router/http/http_trace.h"
#include "router/http/item_endpoints.h"
#include "router/http/json_readers.h"
#include "router/http/openai_error.h"
#include "router/http/openai_response.h"
#include "router/http/openai_response_format.h"
#include "router/http/reasoning_effort.h"
#include "router/http/response_store.h"
#include "router/http/responses_answer.h"
#include "router/http/responses_request.h"
#include "router/http/web_ui.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/admission.h"
#include "router/request/chat_prompt.h"
#include "router/request/entrance.h"
#include "router/request/request_check.h"
#include "router/request/request_class.h"
#include "router/request/truncation.h"
#include "router/request/work_pool.h"

namespace baton::router {
namespace {

constexpr absl::string_view kCompletions = "/v1/completions";
constexpr absl::string_view kChat = "/v1/chat/completions";
constexpr absl::string_view kAnthropicMessages = "/v1/messages";
constexpr absl::string_view kCountTokens = "/v1/messages/count_tokens";
constexpr absl::string_view kResponses = "/v1/responses";
constexpr absl::string_view kModels = "/v1/models";
constexpr absl::string_view kStatus = "/v1/baton/status";
constexpr absl::string_view kModelPrefix = "/v1/models/";
constexpr absl::string_view kResponsePrefix = "/v1/responses/";

// The client's, or a new one if it sends none that is valid.
std::string RequestIdOf(const HttpRequest& request) {
  const absl::string_view given = request.Header(kHttpRequestId);
  return given.empty() || !CheckRequestId(given).ok() ? RandomIdText() : std::string(given);
}

// One for each prompt.
std::vector<v1::GenerateRequest> RequestsOf(OpenAiRequest request) {
  std::vector<v1::GenerateRequest> requests = std::move(request.prompts);
  for (v1::GenerateRequest& one : requests) one.MergeFrom(request.generate);
  return requests;
}

HttpResponse JsonResponse(int status, const nlohmann::ordered_json& json) {
  return {status, {{"Content-Type", "application/json"}}, json.dump()};
}

// The ids of those markers that are special tokens.
std::vector<int32_t> SpecialTokensOf(absl::Span<const absl::string_view> markers,
                                     const tokenizer::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const absl::string_view marker : markers) {
    const std::optional<int32_t> id = tokenizer.TokenToId(marker);
    if (id && tokenizer.IsSpecial(*id)) ids.push_back(*id);
  }
  return ids;
}

std::unique_ptr<AnswerFormat> FormatOpenAi(OpenAiResponse::Options options,
                                           const tokenizer::Tokenizer& tokenizer) {
  return std::make_unique<OpenAiResponse>(std::move(options), tokenizer);
}

std::unique_ptr<AnswerFormat> FormatAnthropic(OpenAiResponse::Options options,
                                              const tokenizer::Tokenizer&) {
  return std::make_unique<AnthropicResponse>(AnthropicResponse::Options{
      std::move(options.request_id), std::move(options.model), options.parts});
}

std::unique_ptr<AnswerFormat> FormatResponses(OpenAiResponse::Options options,
                                              const tokenizer::Tokenizer& tokenizer) {
  return std::make_unique<ResponsesAnswer>(std::move(options), tokenizer);
}

// Anthropic's clients send the bare key in the header x-api-key.
std::string AuthorizationOf(const HttpRequest& request) {
  const absl::string_view given = request.Header("authorization");
  const absl::string_view key = request.Header("x-api-key");
  return given.empty() && !key.empty() ? absl::StrCat("Bearer ", key) : std::string(given);
}

bool IsAnthropic(absl::string_view route) {
  return route == kAnthropicMessages || route == kCountTokens;
}

// The headers of every answer at `route`.
HttpHeaders IdHeaders(absl::string_view route, const std::string& request_id) {
  HttpHeaders headers = {{kHttpRequestId, request_id}};
  if (IsAnthropic(route)) headers.emplace_back(kAnthropicRequestId, request_id);
  return headers;
}

// Errors of what no exchange answers, in the shape of the API that `route` belongs to.
HttpResponse ErrorAt(absl::string_view route, const absl::Status& error,
                     const std::string& request_id) {
  return IsAnthropic(route) ? AnthropicErrorResponse(error, request_id)
                            : ErrorResponse(error, "prompt");
}
HttpResponse PlainErrorAt(absl::string_view route, int status, absl::string_view message,
                          absl::string_view code, const std::string& request_id) {
  return IsAnthropic(route) ? AnthropicPlainError(status, message, request_id)
                            : PlainError(status, message, code);
}

}  // namespace

// An API that generates, at one path.
struct GenerationApi {
  absl::string_view path;
  bool chat;  // its prompt is a conversation
  absl::StatusOr<OpenAiRequest> (*parse)(absl::string_view body);
  std::unique_ptr<AnswerFormat> (*format)(OpenAiResponse::Options options,
                                          const tokenizer::Tokenizer& tokenizer);
};

static constexpr GenerationApi kApis[] = {
    {kCompletions, false, ParseCompletion, FormatOpenAi},
    {kChat, true, ParseChat, FormatOpenAi},
    {kAnthropicMessages, true, ParseAnthropic, FormatAnthropic},
    {kResponses, true, ParseResponses, FormatResponses},
};

// Null if what `route` names generates nothing.
static const GenerationApi* FindApi(absl::string_view route) {
  const auto* found =
      absl::c_find_if(kApis, [&](const GenerationApi& api) { return api.path == route; });
  return found == std::end(kApis) ? nullptr : found;
}

OpenAiService::OpenAiService(RouterParts& parts)
    : parts_(parts),
      started_(absl::ToUnixSeconds(parts.clock.Now())),
      tool_call_tokens_(
          SpecialTokensOf(chat::ToolCallMarkers(parts.chat.tool_call_format()), parts.tokenizer)),
      reasoning_(parts.options.reasoning_parser == "none" ? chat::ReasoningFormat::kNone
                                                          : parts.chat.reasoning_format()),
      reasoning_tokens_(SpecialTokensOf(chat::ReasoningMarkers(reasoning_), parts.tokenizer)),
      responses_(std::make_shared<ResponseStore>(
          parts.clock, parts.options.response_store_bytes,
          absl::Milliseconds(parts.options.response_store_ttl_ms),
          [&metrics = parts.metrics](const ResponseStore::Change& change) {
            metrics.SetStoredResponses(change.responses, change.bytes);
            metrics.StoredResponsesDropped(change.evicted, change.expired);
          })) {}

absl::string_view OpenAiService::Route(absl::string_view path) {
  static constexpr absl::string_view kRoutes[] = {kCompletions, kChat,      kAnthropicMessages,
                                                  kCountTokens, kResponses, kEmbeddingsPath,
                                                  kRerankPath,  kModels,    kStatus,
                                                  "/",          "/livez",   "/readyz",
                                                  "/startupz",  "/health"};
  if (path == "/rerank" || path == "/v2/rerank") return kRerankPath;  // vLLM's, Cohere's
  if (absl::StartsWith(path, kModelPrefix)) return kModels;
  if (absl::StartsWith(path, kResponsePrefix)) return kResponses;
  const auto* found = absl::c_find(kRoutes, path);
  return found == std::end(kRoutes) ? "other" : *found;
}

// The page itself holds nothing of the cluster: it asks for a key and sends that.
static bool NeedsNoKey(absl::string_view route) {
  return route == "/" || route == "/livez" || route == "/readyz" || route == "/startupz" ||
         route == "/health";
}

HttpResponse OpenAiService::Unread(int status, absl::string_view why, const HttpRequest& head) {
  const absl::string_view route = Route(head.path);
  const std::string request_id = RequestIdOf(head);
  HttpResponse response =
      status == 429
          ? ErrorAt(route, TooManyRequestBytes(parts_), request_id)
          : PlainErrorAt(route, status, why,
                         status == 408 ? "request_timeout" : "malformed_http_request", request_id);
  absl::c_move(IdHeaders(route, request_id), std::back_inserter(response.headers));
  return response;
}

std::shared_ptr<HttpCall> OpenAiService::Handle(HttpRequest request,
                                                std::shared_ptr<HttpResponder> responder) {
  const absl::string_view path = request.path;
  const absl::string_view route = Route(path);
  const bool post = request.method == "POST";
  HttpResponse response;
  const std::string request_id = RequestIdOf(request);
  absl::StatusOr<Caller> caller = parts_.access.Authenticate(
      AuthorizationOf(request), request.Header(security::kWorkerSecretHeader));
  absl::Status allowed = NeedsNoKey(route) ? absl::OkStatus() : caller.status();
  // As AdminService::ListWorkers.
  if (allowed.ok() && route == kStatus) allowed = CheckAdmin(*caller);
  if (!allowed.ok()) {
    response = ErrorAt(route, allowed, request_id);
  } else if (route == kCountTokens && post) {
    CountTokens(std::move(request), *caller, request_id, std::move(responder));
    return nullptr;
  } else if (absl::string_view id = path; absl::ConsumePrefix(&id, kResponsePrefix)) {
    response = StoredResponse(*responses_, caller->tenant.value_or(""), request.method, id);
  } else if (IsItemPath(route) && post) {
    caller->request_id = request_id;
    return AnswerItems(parts_, route, std::move(request), *std::move(caller), std::move(responder),
                       draining_ ? RouterDrains() : absl::OkStatus());
  } else if (const GenerationApi* api = FindApi(route); api != nullptr && post) {
    return Generate(*api, std::move(request), *caller, std::move(responder));
  } else {
    response = Answer(request, route, request_id);
  }
  absl::c_move(IdHeaders(route, request_id), std::back_inserter(response.headers));
  responder->Respond(std::move(response));
  return nullptr;
}

HttpResponse OpenAiService::Answer(const HttpRequest& request, absl::string_view route,
                                   const std::string& request_id) {
  const absl::string_view path = request.path;
  const bool takes_post = FindApi(route) != nullptr || route == kCountTokens || IsItemPath(route);
  const bool get = request.method == "GET" || request.method == "HEAD";
  HttpResponse response;
  if (route == "other") {
    response = PlainError(404, absl::StrCat("no ", request.method, " ", path), "unknown_url");
  } else if (takes_post || !get) {
    const char* allowed = takes_post ? "POST" : "GET, HEAD";
    response = PlainErrorAt(route, 405, absl::StrCat(path, " takes ", allowed),
                            "method_not_allowed", request_id);
    response.headers.emplace_back("Allow", allowed);
  } else if (route == kModels) {
    absl::string_view model = path;
    if (!absl::ConsumePrefix(&model, kModelPrefix)) model = "";
    response = Models(PercentDecoded(model).value_or(std::string(model)));
  } else if (route == "/") {
    response = WebUiResponse();
  } else if (route == kStatus) {
    response = StatusResponse(parts_);
  } else {
    response = Probe(path);
  }
  return response;
}

std::shared_ptr<HttpCall> OpenAiService::Generate(const GenerationApi& api, HttpRequest http,
                                                  Caller caller,
                                                  std::shared_ptr<HttpResponder> responder) {
  const absl::Time now = parts_.clock.Now();
  // Here, because several prompts are one trace.
  caller.trace = tracing::JoinTrace(parts_.tracer, TraceOf(http));
  caller.chat = api.chat;
  if (!api.chat) caller.default_max_tokens = kCompletionMaxTokens;
  caller.held = std::make_shared<RequestBytes::Share>(std::move(http.held));
  absl::StatusOr<OpenAiRequest> request = api.parse(http.body);
  OpenAiResponse::Options options;
  options.chat = api.chat;
  options.request_id = caller.request_id = RequestIdOf(http);
  options.model = parts_.options.served_model_name;
  options.created = absl::ToUnixSeconds(now);
  CallConstraints constraints = {.syntax = parts_.chat.tool_call_syntax(),
                                 .parts_messages = reasoning_ != chat::ReasoningFormat::kNone};
  if (std::optional<ModelInfo> model = parts_.roster.model()) {
    options.fingerprint = model->fingerprint;
    constraints.level = model->grammar_level;
  }
  if (const absl::Status id = CheckRequestId(http.Header(kHttpRequestId)); !id.ok()) request = id;
  std::string().swap(http.body);
  if (draining_) request = RouterDrains();
  if (request.ok()) {
    if (api.chat) ApplyReasoningEffort(parts_.chat, &*request);
    absl::Status checked = api.chat ? ForceTools(constraints, *request) : absl::OkStatus();
    if (checked.ok()) SettleAnyWhitespace(*request);
    if (checked.ok()) checked = CheckIgnored(request->ignored);
    if (checked.ok() && request->responses != nullptr) {
      checked = BindToStore(responses_, caller.tenant.value_or(""), *request);
    }
    if (checked.ok()) checked = CheckOpenAiRequest(*request);
    // A conversation is kept as JSON values until it is rendered.
    if (checked.ok() && api.chat) {
      const int64_t kept = request->responses == nullptr ? 0 : request->responses->kept_bytes;
      checked = Hold(parts_, request->json_bytes + kept, caller.held.get());
    }
    if (!checked.ok()) request = checked;
  }
  int prompts = 1;
  if (request.ok()) {
    prompts = std::max(prompts, static_cast<int>(request->prompts.size()));
    if (!request->conversation.tools.is_null()) {
      options.parts.tool_calls = parts_.chat.tool_call_format();
      options.parts.tools = KeepToolsOfAnswer(options.parts.tool_calls, *request);
      options.parts.calls_begin =
          !request->generate.structured_output().tool_calls().answer_schema().empty();
    }
    if (api.chat) {
      options.parts.reasoning = reasoning_;
      options.parts.include_reasoning = request->include_reasoning;
      options.shown_special_tokens = ShownSpecialTokens(*request);
    }
    options.parts.parallel_tool_calls = request->parallel_tool_calls;
    options.calls_named_tool = !request->required_tool.empty();
    options.parts.call_id_seed = RandomId64();
    options.choices_per_prompt = std::clamp(request->generate.n(), 1, kMaxChoices);
    options.include_usage = request->include_usage;
    options.continuous_usage = request->continuous_usage;
    options.logprobs = request->generate.has_logprobs();
    options.responses = request->responses;
    request->generate.set_request_id(options.request_id);
    // OpenAI's `user` is an end user of the key's owner.
    if (caller.tenant) request->generate.clear_tenant();
  }
  HttpHeaders headers = IdHeaders(api.path, caller.request_id);
  if (request.ok() && !request->ignored.empty()) {
    headers.emplace_back(kIgnoredHeader, absl::StrJoin(request->ignored, ", "));
  }
  const bool stream = request.ok() && request->stream;
  const std::shared_ptr<Exchange> exchange =
      MakeExchange(stream, parts_, caller, std::move(responder), std::move(headers),
                   api.format(std::move(options), parts_.tokenizer), prompts);
  const absl::Time deadline = now + absl::Milliseconds(parts_.options.default_deadline_ms);
  if (!request.ok()) {
    exchange->Refuse(request.status());
  } else if (api.chat) {
    StartChat(exchange, *std::move(request), caller, deadline);
  } else if (request->echo) {
    StartEcho(exchange, *std::move(request), deadline);
  } else {
    exchange->Start(RequestsOf(*std::move(request)), deadline);
  }
  return exchange;
}

absl::Status OpenAiService::CheckIgnored(const std::vector<std::string>& names) {
  if (names.empty()) return absl::OkStatus();
  if (parts_.options.strict_fields) {
    return Unsupported(names[0], "the field has no effect on this server (--strict-fields)");
  }
  absl::MutexLock lock(&mutex_);
  for (const std::string& name : names) {
    if (!logged_ignored_.insert(name).second) continue;
    BATON_LOG(Warning) << "a client sends the field " << name
                       << ", which has no effect here; answers name it in x-baton-ignored "
                          "(each field is logged once)";
  }
  return absl::OkStatus();
}

absl::Status OpenAiService::CheckOpenAiRequest(const OpenAiRequest& request) const {
  if (!request.conversation.tools.is_null() &&
      parts_.chat.tool_call_format() == chat::ToolCallFormat::kUnsupported) {
    return Unsupported("tools", parts_.chat.has_template()
                                    ? "the model's chat template has no tools, or calls them in a "
                                      "format that this server does not know"
                                    : "the model has no chat template");
  }
  const auto most = static_cast<size_t>(parts_.options.max_inflight_requests);
  if (request.prompts.size() > most) {
    return OutOfRange("prompt", absl::StrCat(request.prompts.size(), " prompts"),
                      absl::StrCat("at most ", most, " expected (--max-inflight-requests)"));
  }
  int64_t bytes = 0;
  for (const json::Value& message : request.conversation.messages.items) {
    const json::Value* content = message.Find("content");
    if (content != nullptr) bytes += static_cast<int64_t>(content->scalar.text.size());
  }
  if (bytes <= parts_.options.max_prompt_bytes) return absl::OkStatus();
  return InvalidField(
      "PROMPT_TOO_LONG", "messages",
      absl::StrCat(bytes, " bytes of text given, at most ", parts_.options.max_prompt_bytes,
                   " accepted (--max-prompt-bytes)"));
}

std::vector<int32_t> OpenAiService::ShownSpecialTokens(const OpenAiRequest& request) const {
  std::vector<int32_t> shown;
  if (!request.conversation.tools.is_null()) shown = tool_call_tokens_;
  shown.insert(shown.end(), reasoning_tokens_.begin(), reasoning_tokens_.end());
  return shown;
}

void OpenAiService::RunLater(const std::shared_ptr<Exchange>& exchange,
                             std::function<void()> work) {
  if (parts_.pool.TryRun(std::move(work))) return;
  exchange->Refuse(TokenizerQueueFull(parts_));
}

void OpenAiService::StartChat(std::shared_ptr<Exchange> exchange, OpenAiRequest request,
                              const Caller& caller, absl::Time deadline) {
  const std::string tenant = caller.tenant.value_or(request.generate.tenant());
  auto shared = std::make_shared<OpenAiRequest>(std::move(request));
  exchange->ShowSpecialTokens(ShownSpecialTokens(*shared));
  RunLater(exchange, [this, exchange, shared, tenant, deadline, held = caller.held] {
    v1::GenerateRequest& generate = shared->generate;
    const absl::Duration begin = parts_.clock.SinceStart();
    absl::StatusOr<ChatPrompt> prompt = ChatPrompt();
    if (const absl::Status checked = CheckTruncation(generate); !checked.ok()) {
      prompt = checked;
    } else {
      prompt = RenderChat(parts_, ClassOf(parts_, tenant), tenant, std::move(shared->conversation),
                          &generate);
    }
    shared->conversation = chat::Conversation();
    held->Shrink(shared->json_bytes);
    exchange->Rendered(begin, parts_.clock.SinceStart(), prompt.ok() ? prompt->dropped_tokens : 0);
    if (!prompt.ok()) return exchange->Refuse(prompt.status());
    if (prompt->ends_in_reasoning) exchange->StartInReasoning();
    LetReason(reasoning_, prompt->ends_in_reasoning, prompt->ends_after_reasoning, generate);
    std::vector<v1::GenerateRequest> requests(1);
    requests[0].Swap(&generate);
    exchange->Start(std::move(requests), deadline);
  });
}

// With log probabilities, the answer lists the prompt's tokens, so their ids are sent on.
void OpenAiService::StartEcho(std::shared_ptr<Exchange> exchange, OpenAiRequest request,
                              absl::Time deadline) {
  auto shared = std::make_shared<OpenAiRequest>(std::move(request));
  RunLater(exchange, [this, exchange, shared, deadline] {
    const v1::GenerateRequest& generate = shared->generate;
    const bool special = !generate.has_add_special_tokens() || generate.add_special_tokens();
    const bool logprobs = generate.has_logprobs();
    std::vector<EchoedPrompt> echo;
    for (v1::GenerateRequest& prompt : shared->prompts) {
      if (!prompt.has_text()) {
        echo.push_back(EchoIds(parts_.tokenizer, prompt.token_ids().ids(), logprobs));
        continue;
      }
      const std::string text = prompt.text();
      const absl::Status fits = CheckText("text", text, parts_.options.max_prompt_bytes);
      if (!fits.ok()) return exchange->Refuse(fits);
      if (!logprobs) {
        echo.push_back({text, std::nullopt, {}});
        continue;
      }
      const auto ids = parts_.tokenizer.Encode(text, special,
                                               SplitOfText(generate.split_special_tokens(), text));
      if (!ids.ok()) return exchange->Refuse(ids.status());
      echo.push_back(EchoText(parts_.tokenizer, text, *ids, special));
      prompt.mutable_token_ids()->mutable_ids()->Assign(ids->begin(), ids->end());
    }
    exchange->SetEcho(std::move(echo));
    exchange->Start(RequestsOf(std::move(*shared)), deadline);
  });
}

HttpResponse OpenAiService::Models(absl::string_view id) const {
  const std::string& name = parts_.options.served_model_name;
  if (!id.empty() && id != name) {
    return ErrorResponse(CheckModel(std::string(id), name), "model");
  }
  nlohmann::ordered_json model = {
      {"id", name}, {"object", "model"}, {"created", started_}, {"owned_by", "baton"}};
  if (std::optional<ModelInfo> info = parts_.roster.model()) {
    model["max_model_len"] = info->max_model_len;
  }
  if (!id.empty()) return JsonResponse(200, model);
  return JsonResponse(
      200, {{"object", "list"}, {"data", nlohmann::ordered_json::array({std::move(model)})}});
}

HttpResponse OpenAiService::Probe(absl::string_view path) {
  if (path == "/livez") return JsonResponse(200, {{"status", "alive"}});
  const bool ready = parts_.roster.Ready();
  if (ready) was_ready_ = true;
  if (path == "/startupz") {
    return was_ready_ ? JsonResponse(200, {{"status", "started"}})
                      : JsonResponse(503, {{"status", "starting"}, {"phase", "awaiting workers"}});
  }
  if (draining_) return JsonResponse(503, {{"status", "draining"}});
  return ready ? JsonResponse(200, {{"status", "ready"}})
               : JsonResponse(503, {{"status", "not ready"}, {"why", "no decode worker is ready"}});
}

}  // namespace baton::router
