#include "router/http/rerank.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/json/json.h"
#include "router/http/json_readers.h"
#include "router/options.h"

namespace baton::router {
namespace {

constexpr char kDocuments[] = "documents";

absl::StatusOr<std::string> ReadDocument(const std::string& field, const Value& value) {
  if (!IsObject(value)) return Text(field, value);
  BATON_RETURN_IF_ERROR(CheckMembers(field, value, {"text"}));
  const Value* text = FindSet(value, "text");
  if (text == nullptr)
    return InvalidField("MISSING_FIELD", absl::StrCat(field, ".text"), "required");
  return Text(absl::StrCat(field, ".text"), *text);
}

absl::Status ReadDocuments(const Value& value, RerankBody& body) {
  if (!IsArray(value)) return WrongType(kDocuments, "an array of texts");
  BATON_RETURN_IF_ERROR(
      CheckRange(kDocuments, static_cast<int64_t>(value.items.size()), 1, kMaxScoreItems));
  for (size_t i = 0; i < value.items.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(body.request.documents.emplace_back(),
                           ReadDocument(absl::StrCat(kDocuments, "[", i, "]"), value.items[i]));
  }
  return absl::OkStatus();
}

absl::Status ReadField(const std::string& name, const Value& value, RerankBody& body) {
  RerankRequest& request = body.request;
  if (name == "model") {
    BATON_ASSIGN_OR_RETURN(*request.names.mutable_model(), Text(name, value));
  } else if (name == "query") {
    BATON_ASSIGN_OR_RETURN(request.query, Text(name, value));
  } else if (name == kDocuments) {
    return ReadDocuments(value, body);
  } else if (name == "top_n") {
    BATON_ASSIGN_OR_RETURN(body.top_n, Int32(name, value));
    if (body.top_n < 0) return OutOfRange(name, absl::StrCat(body.top_n), "0 or more expected");
  } else if (name == "return_documents") {
    BATON_ASSIGN_OR_RETURN(body.return_documents, Bool(name, value));
  } else if (name == "instruction") {
    BATON_ASSIGN_OR_RETURN(request.instruction, Text(name, value));
  } else if (name == "user") {
    BATON_ASSIGN_OR_RETURN(*request.names.mutable_tenant(), Text(name, value));
  } else if (name == "cache_salt") {
    BATON_ASSIGN_OR_RETURN(*request.names.mutable_cache_salt(), Text(name, value));
  } else {
    const std::string field = json::Printable(name);
    return InvalidField("UNKNOWN_FIELD", field, absl::StrCat("unknown field ", json::Quoted(name)));
  }
  return absl::OkStatus();
}

// Of a document that could not be scored.
absl::Status ErrorOf(const v1::ItemScore& score) {
  const auto code = static_cast<absl::StatusCode>(score.error().code());
  absl::string_view message = score.error().message();
  absl::ConsumePrefix(&message, "items: ");
  if (code == absl::StatusCode::kInvalidArgument) {
    return InvalidField(score.error().reason(), absl::StrCat(kDocuments, "[", score.id(), "]"),
                        message);
  }
  const absl::Status error = MakeError(code, score.error().reason(), message);
  return code == absl::StatusCode::kUnavailable ? WithRetryAfter(error, absl::Seconds(1)) : error;
}

}  // namespace

absl::StatusOr<RerankBody> ParseRerank(absl::string_view text) {
  const absl::StatusOr<Value> document = json::Parse(text, "the request's body");
  if (!document.ok() || !IsObject(*document)) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "MALFORMED_JSON",
        document.ok() ? "the request's body is no JSON object" : document.status().message());
  }
  RerankBody body;
  for (size_t i = 0; i < document->keys.size(); ++i) {
    if (document->items[i].is_null()) continue;
    BATON_RETURN_IF_ERROR(ReadField(document->keys[i], document->items[i], body));
  }
  for (const char* needed : {"query", kDocuments}) {
    if (FindSet(*document, needed) == nullptr) {
      return InvalidField("MISSING_FIELD", needed, "required");
    }
  }
  return body;
}

RerankExchange::RerankExchange(RouterParts& parts, const Caller& caller,
                               std::shared_ptr<HttpResponder> responder, HttpHeaders headers,
                               RerankBody body)
    : ItemExchange(parts, caller, std::move(responder), std::move(headers), kDocuments,
                   /*embeds=*/false),
      id_(caller.request_id),
      model_(parts.options.served_model_name),
      body_(std::move(body)) {}

void RerankExchange::Result(ItemResult item) {
  if (item.score.has_error()) {
    if (error_.ok()) error_ = ErrorOf(item.score);
    return;
  }
  scores_.emplace_back(item.score.probability(), static_cast<size_t>(item.score.id()));
}

void RerankExchange::Finish(const v1::ScoreUsage& usage) {
  if (!error_.ok()) return Fail(error_);
  // Equal scores keep the documents' order.
  std::stable_sort(scores_.begin(), scores_.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (body_.top_n > 0 && scores_.size() > static_cast<size_t>(body_.top_n)) {
    scores_.resize(static_cast<size_t>(body_.top_n));
  }
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const auto& [score, index] : scores_) {
    nlohmann::ordered_json result = {{"index", index}, {"relevance_score", score}};
    if (body_.return_documents) result["document"] = {{"text", body_.request.documents[index]}};
    results.push_back(std::move(result));
  }
  const nlohmann::ordered_json answer = {
      {"id", id_},
      {"model", model_},
      {"results", std::move(results)},
      {"usage",
       {{"prompt_tokens", usage.prompt_tokens()},
        {"total_tokens", usage.prompt_tokens()},
        {"prompt_tokens_details", {{"cached_tokens", usage.cached_prompt_tokens()}}}}}};
  Respond(answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace baton::router
