// One HTTP request whose answer is made of scores or embeddings: between its connection and its
// ScoreCall.
#ifndef BATON_ROUTER_HTTP_ITEM_EXCHANGE_H_
#define BATON_ROUTER_HTTP_ITEM_EXCHANGE_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/http/http_server.h"
#include "router/request/access.h"
#include "router/request/router_parts.h"
#include "router/request/unread_answers.h"
#include "router/score/score_call.h"
#include "router/score/score_sink.h"

namespace baton::router {

// The sink of its ScoreCall and the handler of its connection. Both hold it until the call has
// ended and the answer has left.
class ItemExchange : public HttpCall,
                     public ScoreSink,
                     public std::enable_shared_from_this<ItemExchange> {
 public:
  // `headers` are those of every answer, errors included. `field`: of the items, as clients name
  // it.
  ItemExchange(RouterParts& parts, const Caller& caller, std::shared_ptr<HttpResponder> responder,
               HttpHeaders headers, const char* field, bool embeds);

  void Start(ScoreCall::Settings settings, absl::Time deadline);
  void Refuse(const absl::Status& error);

  void Fail(const absl::Status& error) override;
  void Abort(const absl::Status&) override { responder_->Abort(); }
  void OnGone() override;
  void OnDone() override;

 protected:
  // Answers with a JSON object.
  void Respond(std::string body);

 private:
  void Send(HttpResponse response);

  const std::shared_ptr<HttpResponder> responder_;
  const HttpHeaders headers_;
  const char* const field_;
  UnreadAnswers::Answer unread_;
  const std::shared_ptr<ScoreCall> call_;
  std::atomic<bool> gone_{false};
  std::shared_ptr<ItemExchange> self_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_ITEM_EXCHANGE_H_
