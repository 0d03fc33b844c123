// One generation over HTTP: between its connection and its GenerateCalls.
#ifndef BATON_ROUTER_HTTP_EXCHANGE_H_
#define BATON_ROUTER_HTTP_EXCHANGE_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "router/http/answer_format.h"
#include "router/http/http_server.h"
#include "router/http/prompt_group.h"
#include "router/request/access.h"
#include "router/request/response_sink.h"
#include "router/request/router_parts.h"
#include "router/request/unread_answers.h"

namespace baton::router {

inline constexpr char kHttpRequestId[] = "x-request-id";
// Names the fields of a request that have no effect.
inline constexpr char kIgnoredHeader[] = "x-baton-ignored";

// The sink of its GenerateCall and the handler of its connection. Both hold it until the call has
// ended and the answer has left.
class Exchange : public HttpCall,
                 public ResponseSink,
                 public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(RouterParts& parts, const Caller& caller, std::shared_ptr<HttpResponder> responder,
           HttpHeaders headers, std::unique_ptr<AnswerFormat> format, int prompts)
      : parts_(parts),
        responder_(std::move(responder)),
        unread_(parts.unread, [this] { responder_->Abort(); }),
        call_(std::make_shared<PromptGroup>(parts, caller, prompts)),
        format_(std::move(format)),
        headers_(std::move(headers)) {}

  // Call these before Start.
  void ShowSpecialTokens(const std::vector<int32_t>& ids) { call_->ShowSpecialTokens(ids); }
  void Rendered(absl::Duration begin, absl::Duration end, int dropped_tokens) {
    call_->Rendered(begin, end, dropped_tokens);
  }
  void SetEcho(std::vector<EchoedPrompt> echo) { format_->SetEcho(std::move(echo)); }
  void StartInReasoning() { format_->StartInReasoning(); }

  // `requests` has one for each prompt.
  void Start(std::vector<v1::GenerateRequest> requests, absl::Time deadline) {
    if (gone_) return Refuse(absl::CancelledError("the client has closed the connection"));
    self_ = shared_from_this();
    call_->Start(std::move(requests), deadline, this);
    // OnGone on another thread may have come before the call could be cancelled.
    if (gone_) call_->Cancel();
  }
  void Refuse(const absl::Status& error) {
    self_ = shared_from_this();
    call_->Refuse(error, this);
  }

  void Abort(const absl::Status&) override { responder_->Abort(); }
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
    HttpResponse response = {200, {{"Content-Type", content_type}}, std::move(body)};
    AddHeaders(response);
    return response;
  }
  void RespondError(const absl::Status& error) {
    HttpResponse response = format_->Error(error);
    AddHeaders(response);
    responder_->Respond(std::move(response));
  }

  RouterParts& parts_;
  const std::shared_ptr<HttpResponder> responder_;
  UnreadAnswers::Answer unread_;
  const std::shared_ptr<PromptGroup> call_;
  const std::unique_ptr<AnswerFormat> format_;  // used by one thread at a time

 private:
  void AddHeaders(HttpResponse& response) const {
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
  }

  const HttpHeaders headers_;
  std::atomic<bool> gone_{false};
  std::shared_ptr<Exchange> self_;
};

// `stream`: the answer is sent as server-sent events, else whole. `headers` are those of every
// answer, errors included.
std::shared_ptr<Exchange> MakeExchange(bool stream, RouterParts& parts, const Caller& caller,
                                       std::shared_ptr<HttpResponder> responder,
                                       HttpHeaders headers, std::unique_ptr<AnswerFormat> format,
                                       int prompts);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_EXCHANGE_H_
