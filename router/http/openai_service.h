// The HTTP endpoints of a router: OpenAI's /v1/completions, /v1/chat/completions, /v1/responses,
// /v1/embeddings and /v1/models; /v1/rerank; Anthropic's /v1/messages and
// /v1/messages/count_tokens; the probes /livez, /readyz, /startupz and /health; and web_ui.h's page
// and /v1/baton/status.
#ifndef BATON_ROUTER_HTTP_OPENAI_SERVICE_H_
#define BATON_ROUTER_HTTP_OPENAI_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/chat/reasoning.h"
#include "router/http/http_server.h"
#include "router/http/openai_request.h"
#include "router/request/access.h"
#include "router/request/router_parts.h"

namespace baton::router {

class Exchange;
class ResponseStore;
struct GenerationApi;

// With API keys, all but the probes need one. Thread-safe. Requests take the same way as those of
// gRPC: checks, limits, routing and failover are GenerateCall's.
class OpenAiService {
 public:
  // `parts` must outlive the server that uses this.
  explicit OpenAiService(RouterParts& parts);

  // A handler of HttpServer.
  std::shared_ptr<HttpCall> Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder);

  // The answer to a request that is not read to its end: HttpServer::ErrorAnswer.
  HttpResponse Unread(int status, absl::string_view why, const HttpRequest& head);
  // The path itself if it is served, "/v1/models" for each model, "/v1/responses" for each
  // response, else "other".
  static absl::string_view Route(absl::string_view path);

  // The router drains: /readyz fails from now on, and new requests are refused.
  void SetDraining() { draining_ = true; }

 private:
  std::shared_ptr<HttpCall> Generate(const GenerationApi& api, HttpRequest request, Caller caller,
                                     std::shared_ptr<HttpResponder> responder);
  // Answers, on a tokenizer thread, with the length of a conversation's prompt.
  void CountTokens(HttpRequest http, const Caller& caller, const std::string& request_id,
                   std::shared_ptr<HttpResponder> responder);
  // The answer to a request that generates nothing. `route` is Route() of its path.
  HttpResponse Answer(const HttpRequest& request, absl::string_view route,
                      const std::string& request_id);
  // Returns UNSUPPORTED_FIELD for the first of these fields with --strict-fields, and else logs
  // each field once.
  absl::Status CheckIgnored(const std::vector<std::string>& names);
  // What has no other place to be checked.
  absl::Status CheckOpenAiRequest(const OpenAiRequest& request) const;
  // Those that are a part of a chat's answer, because they mark what is taken apart.
  std::vector<int32_t> ShownSpecialTokens(const OpenAiRequest& request) const;
  // Runs on a tokenizer thread, or refuses the exchange.
  void RunLater(const std::shared_ptr<Exchange>& exchange, std::function<void()> work);
  // Each starts the exchange on a tokenizer thread: renders a chat's messages; tokenizes the
  // prompts that the answer repeats.
  void StartChat(std::shared_ptr<Exchange> exchange, OpenAiRequest request, const Caller& caller,
                 absl::Time deadline);
  void StartEcho(std::shared_ptr<Exchange> exchange, OpenAiRequest request, absl::Time deadline);
  HttpResponse Models(absl::string_view id) const;
  HttpResponse Probe(absl::string_view path);

  RouterParts& parts_;
  const int64_t started_;                  // Unix time in seconds
  std::vector<int32_t> tool_call_tokens_;  // special tokens that mark tool calls
  const chat::ReasoningFormat reasoning_;  // kNone also with --reasoning-parser none
  std::vector<int32_t> reasoning_tokens_;  // special tokens that mark reasoning
  const std::shared_ptr<ResponseStore> responses_;
  absl::Mutex mutex_;
  // Names of fields, of which the API has a fixed number.
  std::set<std::string> logged_ignored_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> draining_{false};
  std::atomic<bool> was_ready_{false};
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_SERVICE_H_
