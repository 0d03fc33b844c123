#include "router/http/openai_service.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/random_id.h"
#include "common/tokenizer/tokenizer.h"
#include "router/fleet/roster.h"
#include "router/http/openai_error.h"
#include "router/http/openai_response.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/admission.h"
#include "router/request/chat_prompt.h"
#include "router/request/delta_merging.h"
#include "router/request/generate_call.h"
#include "router/request/request_check.h"
#include "router/request/work_pool.h"

namespace baton::router {
namespace {

constexpr char kRequestId[] = "x-request-id";
// Between events: proxies and clients see that the stream lives.
constexpr char kComment[] = ": keep-alive\n\n";

}  // namespace

// One generation over HTTP: the sink of its GenerateCall and the handler of its connection. Both
// hold it until the call has ended and the answer has left.
class Exchange : public HttpCall,
                 public ResponseSink,
                 public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(RouterParts& parts, std::shared_ptr<HttpResponder> responder,
           OpenAiResponse::Options options)
      : responder_(std::move(responder)),
        call_(std::make_shared<GenerateCall>(parts)),
        prompt_field_(options.chat ? "messages" : "prompt"),
        request_id_(options.request_id),
        format_(std::move(options), parts.tokenizer) {}

  void Start(v1::GenerateRequest request, absl::Time deadline) {
    if (gone_) return Refuse(absl::CancelledError("the client has closed the connection"));
    self_ = shared_from_this();
    call_->Start(std::move(request), deadline, this);
    // OnGone on another thread may have come before the call could be cancelled.
    if (gone_) call_->Cancel();
  }
  void Refuse(const absl::Status& error) {
    self_ = shared_from_this();
    call_->Refuse(error, this);
  }

  void Abort() override { responder_->Abort(); }
  void OnGone() override {
    gone_ = true;
    call_->Cancel();
  }
  void OnDone() override {
    call_->OnSinkGone();
    self_.reset();
  }

 protected:
  HttpResponse Ok(const char* content_type, std::string body) const {
    return {200, {{"Content-Type", content_type}, {kRequestId, request_id_}}, std::move(body)};
  }
  void RespondError(const absl::Status& error) {
    HttpResponse response = ErrorResponse(error, prompt_field_);
    response.headers.emplace_back(kRequestId, request_id_);
    responder_->Respond(std::move(response));
  }

  const std::shared_ptr<HttpResponder> responder_;
  const std::shared_ptr<GenerateCall> call_;
  const char* const prompt_field_;
  const std::string request_id_;
  OpenAiResponse format_;  // used by one thread at a time

 private:
  std::atomic<bool> gone_{false};
  std::shared_ptr<Exchange> self_;
};

namespace {

class WholeExchange final : public Exchange {
 public:
  using Exchange::Exchange;
  void Send(const v1::GenerateResponse& delta) override { answer_.Add(delta); }
  bool Fits(const v1::GenerateResponse& delta) const override { return answer_.Fits(delta); }
  void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override {
    responder_->Respond(Ok("application/json", format_.Whole(answer_.Take(last, token_counts))));
  }
  void Fail(const absl::Status& error) override { RespondError(error); }

 private:
  WholeAnswer answer_;  // the call makes its calls one at a time
};

// Sends nothing before the first token, so that an error has its own status until then.
class StreamExchange final : public Exchange {
 public:
  using Exchange::Exchange;

  void Send(const v1::GenerateResponse& delta) override {
    absl::MutexLock lock(&mutex_);
    pending_.Add(delta);
    WriteNext();
  }
  void Heartbeat(const v1::GenerateResponse&) override {
    absl::MutexLock lock(&mutex_);
    if (begun_ && !writing_ && pending_.empty() && end_ == End::kOpen) Write(kComment);
  }
  void Finish(const v1::GenerateResponse& last, absl::Span<const int>) override {
    absl::MutexLock lock(&mutex_);
    pending_.Add(last);
    end_ = End::kFinished;
    end_text_ = format_.StreamEnd(last.usage());
    WriteNext();
  }
  void Fail(const absl::Status& error) override {
    absl::MutexLock lock(&mutex_);
    if (!begun_) {
      end_ = End::kDone;
      return RespondError(error);
    }
    end_ = End::kFinished;
    end_text_ = absl::StrCat("data: ", ErrorJson(error, prompt_field_), "\n\n");
    WriteNext();
  }
  void OnWritten() override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    WriteNext();
  }

 private:
  enum class End { kOpen, kFinished, kDone };

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || end_ == End::kDone) return;
    std::string text;
    if (!pending_.empty()) text = format_.Chunk(pending_.Next());
    if (end_ == End::kFinished && pending_.empty()) {
      end_ = End::kDone;
      text += end_text_;
    }
    if (!text.empty()) Write(std::move(text));
    if (end_ == End::kDone) responder_->End();
  }
  void Write(std::string text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    if (std::exchange(begun_, true)) return responder_->Write(std::move(text));
    HttpResponse head = Ok("text/event-stream; charset=utf-8", std::move(text));
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");  // nginx: pass events on at once
    responder_->Begin(std::move(head));
  }

  absl::Mutex mutex_;
  PendingDeltas pending_ ABSL_GUARDED_BY(mutex_);
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  End end_ ABSL_GUARDED_BY(mutex_) = End::kOpen;
  std::string end_text_ ABSL_GUARDED_BY(mutex_);
};

HttpResponse JsonResponse(int status, const nlohmann::ordered_json& json) {
  return {status, {{"Content-Type", "application/json"}}, json.dump()};
}

}  // namespace

OpenAiService::OpenAiService(RouterParts& parts)
    : parts_(parts), started_(absl::ToUnixSeconds(parts.clock.Now())) {}

std::shared_ptr<HttpCall> OpenAiService::Handle(HttpRequest request,
                                                std::shared_ptr<HttpResponder> responder) {
  const absl::string_view path = request.path;
  const bool chat = path == "/v1/chat/completions";
  const bool generates = chat || path == "/v1/completions";
  const bool get = request.method == "GET" || request.method == "HEAD";
  if (generates && request.method == "POST") return Generate(request, std::move(responder), chat);
  HttpResponse response;
  absl::string_view model = path;
  if (generates) {
    response = PlainError(405, absl::StrCat(path, " takes POST"), "method_not_allowed");
    response.headers.emplace_back("Allow", "POST");
  } else if (path == "/livez" || path == "/readyz" || path == "/startupz" || path == "/health") {
    response = Probe(path);
  } else if (path == "/v1/models" && get) {
    response = Models("");
  } else if (absl::ConsumePrefix(&model, "/v1/models/") && get) {
    // Clients escape the slash of an id such as "org/name".
    response = Models(absl::StrReplaceAll(model, {{"%2F", "/"}, {"%2f", "/"}}));
  } else if (path == "/v1/responses" || path == "/v1/messages") {
    response = PlainError(404,
                          absl::StrCat(path,
                                       " is not served; /v1/chat/completions and "
                                       "/v1/completions are"),
                          "unknown_url");
  } else {
    response = PlainError(404, absl::StrCat("no ", request.method, " ", path), "unknown_url");
  }
  if (request.method == "HEAD") response.body.clear();
  responder->Respond(std::move(response));
  return nullptr;
}

std::shared_ptr<HttpCall> OpenAiService::Generate(const HttpRequest& http,
                                                  std::shared_ptr<HttpResponder> responder,
                                                  bool chat) {
  const absl::Time now = parts_.clock.Now();
  absl::StatusOr<OpenAiRequest> request = chat ? ParseChat(http.body) : ParseCompletion(http.body);
  OpenAiResponse::Options options;
  options.chat = chat;
  options.request_id = std::string(http.Header(kRequestId));
  const absl::Status id_ok = CheckRequestId(options.request_id);
  if (options.request_id.empty() || !id_ok.ok()) options.request_id = RandomIdText();
  options.model = parts_.options.served_model_name;
  options.created = absl::ToUnixSeconds(now);
  if (std::optional<ModelInfo> model = parts_.roster.model()) {
    options.fingerprint = model->fingerprint;
  }
  if (!id_ok.ok()) request = id_ok;
  if (request.ok()) {
    options.include_usage = request->include_usage;
    options.continuous_usage = request->continuous_usage;
    options.logprobs = request->generate.has_logprobs();
    request->generate.set_request_id(options.request_id);
  }
  std::shared_ptr<Exchange> exchange;
  if (request.ok() && request->stream) {
    exchange = std::make_shared<StreamExchange>(parts_, std::move(responder), std::move(options));
  } else {
    exchange = std::make_shared<WholeExchange>(parts_, std::move(responder), std::move(options));
  }
  const absl::Time deadline = now + absl::Milliseconds(parts_.options.default_deadline_ms);
  if (!request.ok()) {
    exchange->Refuse(request.status());
  } else if (!chat) {
    exchange->Start(std::move(request->generate), deadline);
  } else {
    StartChat(exchange, *std::move(request), deadline);
  }
  return exchange;
}

void OpenAiService::StartChat(std::shared_ptr<Exchange> exchange, OpenAiRequest request,
                              absl::Time deadline) {
  auto shared = std::make_shared<OpenAiRequest>(std::move(request));
  const bool queued = parts_.pool.TryRun([this, exchange, shared, deadline] {
    const absl::Status rendered = RenderChat(parts_, shared->conversation, &shared->generate);
    if (!rendered.ok()) return exchange->Refuse(rendered);
    exchange->Start(std::move(shared->generate), deadline);
  });
  if (queued) return;
  parts_.metrics.RequestRejected("TOKENIZER_QUEUE_FULL");
  exchange->Refuse(
      WithRetryAfter(MakeError(absl::StatusCode::kResourceExhausted, "TOKENIZER_QUEUE_FULL",
                               "too many prompts wait to be tokenized"),
                     parts_.admission.RetryAfter()));
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
