// The OpenAI endpoints of a router: /v1/completions, /v1/chat/completions, /v1/models; and the
// probes /livez, /readyz, /startupz and /health.
#ifndef BATON_ROUTER_HTTP_OPENAI_SERVICE_H_
#define BATON_ROUTER_HTTP_OPENAI_SERVICE_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "router/http/http_server.h"
#include "router/http/openai_request.h"
#include "router/request/router_parts.h"

namespace baton::router {

class Exchange;

// Thread-safe. Requests take the same way as those of gRPC: checks, limits, routing and failover
// are GenerateCall's.
class OpenAiService {
 public:
  // `parts` must outlive the server that uses this.
  explicit OpenAiService(RouterParts& parts);

  // A handler of HttpServer.
  std::shared_ptr<HttpCall> Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder);

  // The router drains: /readyz fails from now on.
  void SetDraining() { draining_ = true; }

 private:
  std::shared_ptr<HttpCall> Generate(const HttpRequest& request,
                                     std::shared_ptr<HttpResponder> responder, bool chat);
  // Renders a chat's messages and starts the exchange, on a tokenizer thread.
  void StartChat(std::shared_ptr<Exchange> exchange, OpenAiRequest request, absl::Time deadline);
  HttpResponse Models(absl::string_view id) const;
  HttpResponse Probe(absl::string_view path);

  RouterParts& parts_;
  const int64_t started_;  // Unix time in seconds
  std::atomic<bool> draining_{false};
  std::atomic<bool> was_ready_{false};
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_SERVICE_H_
