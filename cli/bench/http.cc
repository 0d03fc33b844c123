// OpenAI's API as a target: Baton's own endpoints, or those of a peer.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/bench/target.h"
#include "cli/http_client.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

using JsonValue = nlohmann::json;

constexpr absl::Duration kListModelsWithin = absl::Seconds(10);
constexpr size_t kMostEventBytes = 16 << 20;
constexpr size_t kMostMessageBytes = 300;  // of a server's error, in ours

absl::StatusCode CodeOfHttp(int status) {
  switch (status) {
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 408:
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return status / 100 == 4 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kInternal;
  }
}

// A whole number in `object`; `otherwise` if there is none.
int CountIn(const JsonValue& object, const char* key, int otherwise) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end() || !found->is_number_integer()) return otherwise;
  return static_cast<int>(std::clamp<int64_t>(found->get<int64_t>(), 0, int64_t{1} << 30));
}

std::string TextIn(const JsonValue& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end() || !found->is_string()) return "";
  return found->get<std::string>();
}

// retry-after-ms as OpenAI's clients read it, else Retry-After in seconds.
std::optional<absl::Duration> RetryAfterOf(const HttpResponse& response) {
  double value = 0;
  for (const auto& [name, unit] : {std::pair("retry-after-ms", absl::Milliseconds(1)),
                                   std::pair("retry-after", absl::Seconds(1))}) {
    if (absl::SimpleAtod(response.Header(name), &value) && value >= 0 && value < 1e9) {
      return value * unit;
    }
  }
  return std::nullopt;
}

// The reason is the error's code, in the form of docs/errors.md.
absl::Status StatusOfHttp(const std::string& url, const HttpResponse& response) {
  const std::string answer(absl::StripAsciiWhitespace(response.body));
  const JsonValue parsed = JsonValue::parse(answer, nullptr, /*allow_exceptions=*/false);
  const std::string code =
      parsed.is_object() && parsed.contains("error") ? TextIn(parsed["error"], "code") : "";
  return WithDetails(absl::Status(CodeOfHttp(response.status),
                                  absl::StrCat(url, " answered ", response.status, ": ",
                                               answer.substr(0, kMostMessageBytes))),
                     absl::AsciiStrToUpper(code), "", RetryAfterOf(response));
}

// The answer to one request, from its server-sent events.
class Answer {
 public:
  Answer(Outcome outcome, bool keep_text) : outcome_(std::move(outcome)), keep_text_(keep_text) {}

  absl::Status Take(absl::string_view piece) {
    const double now_s = NowSeconds();
    for (const char c : piece) {
      if (c != '\n') {
        line_ += c;
        continue;
      }
      const absl::Status status = TakeLine(now_s);
      line_.clear();
      if (!status.ok()) return status;
    }
    return line_.size() > kMostEventBytes ? absl::InternalError("an event is too long")
                                          : absl::OkStatus();
  }

  Outcome End(absl::Status status) {
    outcome_.ended_s = NowSeconds();
    if (status.ok() && !done_) status = absl::InternalError("the stream ended without [DONE]");
    outcome_.status = std::move(status);
    SpreadTokens();
    return std::move(outcome_);
  }

 private:
  absl::Status TakeLine(double now_s) {
    absl::string_view event = absl::StripAsciiWhitespace(line_);
    if (!absl::ConsumePrefix(&event, "data:")) return absl::OkStatus();  // a comment
    event = absl::StripAsciiWhitespace(event);
    if (event == "[DONE]") {
      done_ = true;
      return absl::OkStatus();
    }
    const JsonValue parsed = JsonValue::parse(event, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object()) return absl::InternalError("an event is not a JSON object");
    if (parsed.contains("error")) {
      return absl::InternalError(parsed["error"].dump().substr(0, kMostMessageBytes));
    }
    const std::string text = TextOf(parsed);
    if (keep_text_) outcome_.text += text;
    if (!text.empty()) chunks_.push_back(now_s);
    const auto usage = parsed.find("usage");
    if (usage == parsed.end() || !usage->is_object()) return absl::OkStatus();
    outcome_.usage.set_prompt_tokens(
        CountIn(*usage, "prompt_tokens", outcome_.usage.prompt_tokens()));
    if (const auto details = usage->find("prompt_tokens_details"); details != usage->end()) {
      outcome_.usage.set_cached_prompt_tokens(
          CountIn(*details, "cached_tokens", outcome_.usage.cached_prompt_tokens()));
    }
    const auto counted = static_cast<size_t>(CountIn(*usage, "completion_tokens", 0));
    if (!HasChoices(parsed)) {
      total_ = counted;  // the last event: these tokens have come before
    } else if (counted > outcome_.token_s.size()) {
      outcome_.token_s.resize(counted, now_s);
    }
    return absl::OkStatus();
  }

  static bool HasChoices(const JsonValue& event) {
    const auto choices = event.find("choices");
    return choices != event.end() && choices->is_array() && !choices->empty();
  }

  static std::string TextOf(const JsonValue& event) {
    if (!HasChoices(event)) return "";
    const JsonValue& choice = event["choices"][0];
    if (!choice.is_object()) return "";
    if (!choice.contains("delta")) return TextIn(choice, "text");
    // Thoughts are tokens, too.
    return TextIn(choice["delta"], "reasoning_content") + TextIn(choice["delta"], "content");
  }

  // A server that counts at the end only: each chunk after the first gets an equal share.
  void SpreadTokens() {
    std::vector<double>& token_s = outcome_.token_s;
    if (!chunks_.empty() && (token_s.empty() || token_s.size() < total_)) {
      const size_t tokens = total_ > 0 ? total_ : chunks_.size();
      token_s.assign(tokens, chunks_.front());
      for (size_t i = 1; i < tokens; ++i) {
        // Rounded up: no token is taken to have come before its chunk.
        token_s[i] = chunks_[(i * (chunks_.size() - 1) + tokens - 2) / (tokens - 1)];
      }
    }
    outcome_.usage.set_generated_tokens(static_cast<int>(std::max(total_, token_s.size())));
  }

  Outcome outcome_;
  const bool keep_text_;
  std::string line_;
  std::vector<double> chunks_;  // when those with text came
  size_t total_ = 0;            // tokens, as the server counts them; 0: not known
  bool done_ = false;
};

class HttpTarget : public BenchTarget {
 public:
  explicit HttpTarget(const TargetOptions& options)
      : options_(options), chat_(options.backend == "openai-chat"), headers_(options.headers) {
    const char* key = std::getenv("OPENAI_API_KEY");
    if (key != nullptr) headers_.push_back(absl::StrCat("Authorization: Bearer ", key));
    const std::string path = !options.endpoint.empty()
                                 ? options.endpoint
                                 : (chat_ ? "/v1/chat/completions" : "/v1/completions");
    url_ = absl::StrCat(absl::StripSuffix(options.base_url, "/"), path);
  }

  absl::StatusOr<TargetModel> Connect() override {
    model_ = options_.model;
    if (!model_.empty()) return TargetModel{model_};
    HttpRequest request;
    request.url = absl::StrCat(absl::StripSuffix(options_.base_url, "/"), "/v1/models");
    request.headers = headers_;
    request.timeout = kListModelsWithin;
    const std::string url = request.url;
    BATON_ASSIGN_OR_RETURN(const HttpResponse response, http_.SendAndWait(std::move(request)));
    if (response.status != 200) return StatusOfHttp(url, response);
    const JsonValue parsed = JsonValue::parse(response.body, nullptr, /*allow_exceptions=*/false);
    const auto data = parsed.is_object() ? parsed.find("data") : parsed.end();
    if (parsed.is_object() && data != parsed.end() && data->is_array() && !data->empty()) {
      model_ = TextIn((*data)[0], "id");
    }
    if (model_.empty()) return absl::UnavailableError(absl::StrCat(url, " lists no model"));
    return TargetModel{model_};
  }

  TokenCounter Counter() override { return nullptr; }

  void Send(const BenchPrompt& prompt, int number, double due_s,
            std::function<void(Outcome)> done) override {
    Outcome outcome;
    outcome.kind = number;
    outcome.max_tokens = prompt.output_tokens;
    outcome.due_s = due_s;
    outcome.timeout_s = absl::ToDoubleSeconds(options_.timeout);
    outcome.usage.set_prompt_tokens(static_cast<int>(prompt.token_ids.size()));
    HttpRequest request;
    request.url = url_;
    request.headers = headers_;
    request.json = Body(prompt, number);
    request.timeout = options_.timeout;
    outcome.sent_s = NowSeconds();
    const auto answer = std::make_shared<Answer>(std::move(outcome), options_.keep_text);
    request.on_body = [answer](absl::string_view piece) { return answer->Take(piece); };
    http_.Send(std::move(request), [this, answer, done = std::move(done)](
                                       const absl::StatusOr<HttpResponse>& response) {
      if (!response.ok()) return done(answer->End(response.status()));
      done(answer->End(response->status / 100 == 2 ? absl::OkStatus()
                                                   : StatusOfHttp(url_, *response)));
    });
  }

 private:
  std::string Body(const BenchPrompt& prompt, int number) const {
    JsonValue body = {
        {"model", model_},
        {"max_tokens", prompt.output_tokens},
        {"stream", true},
        {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}};
    if (chat_) {
      body["messages"] = {{{"role", "user"}, {"content", prompt.text}}};
    } else {
      body["prompt"] = prompt.text.empty() ? JsonValue(prompt.token_ids) : JsonValue(prompt.text);
    }
    if (options_.ignore_eos) body["ignore_eos"] = true;
    const client::Sampling& sampling = options_.sampling;
    body["seed"] = sampling.seed.value_or(0) + static_cast<uint64_t>(number);
    const auto set = [&body](const char* key, const auto& value) {
      if (value) body[key] = *value;
    };
    set("temperature", sampling.temperature);
    set("top_p", sampling.top_p);
    set("top_k", sampling.top_k);
    set("min_p", sampling.min_p);
    set("repetition_penalty", sampling.repetition_penalty);
    set("frequency_penalty", sampling.frequency_penalty);
    set("presence_penalty", sampling.presence_penalty);
    // A text from a file need not be UTF-8.
    return body.dump(-1, ' ', false, JsonValue::error_handler_t::replace);
  }

  const TargetOptions options_;
  const bool chat_;
  std::vector<std::string> headers_;
  std::string url_;
  std::string model_;  // written by Connect(), before any request
  HttpClient http_;    // the last member: its thread uses the others
};

}  // namespace

std::unique_ptr<BenchTarget> MakeHttpTarget(const TargetOptions& options) {
  return std::make_unique<HttpTarget>(options);
}

}  // namespace baton::cli
