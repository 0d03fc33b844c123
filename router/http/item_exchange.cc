#include "router/http/item_exchange.h"

#include <cstdint>
#include <utility>

#include "router/http/openai_error.h"

namespace baton::router {

ItemExchange::ItemExchange(RouterParts& parts, const Caller& caller,
                           std::shared_ptr<HttpResponder> responder, HttpHeaders headers,
                           const char* field, bool embeds)
    : responder_(std::move(responder)),
      headers_(std::move(headers)),
      field_(field),
      unread_(parts.unread, [this] { responder_->Abort(); }),
      call_(std::make_shared<ScoreCall>(parts, caller, embeds)) {}

void ItemExchange::Start(ScoreCall::Settings settings, absl::Time deadline) {
  if (gone_) return Refuse(absl::CancelledError("the client has closed the connection"));
  self_ = shared_from_this();
  call_->Start(std::move(settings), deadline, this);
  // OnGone on another thread may have come before the call could be cancelled.
  if (gone_) call_->Cancel();
}

void ItemExchange::Refuse(const absl::Status& error) {
  self_ = shared_from_this();
  call_->Refuse(error, this);
}

void ItemExchange::Fail(const absl::Status& error) { Send(ErrorResponse(error, field_)); }

void ItemExchange::OnGone() {
  gone_ = true;
  call_->Cancel();
}

void ItemExchange::OnDone() {
  call_->OnSinkGone();
  self_.reset();
}

void ItemExchange::Respond(std::string body) {
  Send({200, {{"Content-Type", "application/json"}}, std::move(body)});
}

void ItemExchange::Send(HttpResponse response) {
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
  unread_.Update(UnreadAnswers::kAnswerBytes + static_cast<int64_t>(response.body.size()), true);
  responder_->Respond(std::move(response));
}

}  // namespace baton::router
