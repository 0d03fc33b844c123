#include "cli/argument_names.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"

namespace baton::cli {
namespace {

// These are the fields of the requests of generate, chat, score, explain and prefix warm, and those
// of client::ClientOptions and client::GenerateRequest, whose names the SDK gives in errors of
// generate and chat. Fields of the same name have the same flag.
constexpr std::pair<absl::string_view, absl::string_view> kFlags[] = {
    {"model", "--model"},
    {"address", "--address"},
    {"api_key", "--api-key or BATON_API_KEY"},
    {"sampling.temperature", "--temperature"},
    {"sampling.top_p", "--top-p"},
    {"sampling.top_k", "--top-k"},
    {"sampling.min_p", "--min-p"},
    {"sampling.seed", "--seed"},
    {"sampling.repetition_penalty", "--repetition-penalty"},
    {"sampling.frequency_penalty", "--frequency-penalty"},
    {"sampling.presence_penalty", "--presence-penalty"},
    {"sampling.logit_bias", "--logit-bias"},
    {"stop.max_tokens", "--max-tokens"},
    {"stop.min_tokens", "--min-tokens"},
    {"stop.stop", "--stop"},
    {"stop.ignore_eos", "--ignore-eos"},
    {"request_id", "--request-id"},
    {"n", "--n"},
    {"beam_width", "--beam-width"},
    {"length_penalty", "--length-penalty"},
    {"logprobs", "--logprobs"},
    {"prompt_logprobs", "--prompt-logprobs"},
    {"priority", "--priority"},
    {"tenant", "--tenant"},
    {"cache_salt", "--cache-salt"},
    {"structured_output", "--json-object, --json-schema, --regex or --choice"},
    {"structured_output.json_object", "--json-object"},
    {"structured_output.json_schema", "--json-schema"},
    {"structured_output.regex", "--regex"},
    {"structured_output.choices", "--choice"},
    {"structured_output.any_whitespace", "--any-whitespace"},
    {"max_tokens", "--max-tokens"},
    {"min_tokens", "--min-tokens"},
    {"stop", "--stop"},
    {"ignore_eos", "--ignore-eos"},
    {"json_object", "--json-object"},
    {"json_schema", "--json-schema"},
    {"regex", "--regex"},
    {"answer_texts", "--choice"},
    {"any_whitespace", "--any-whitespace"},
    {"explain_cache", "--cache"},
    {"speculation", "--no-speculation"},
    {"max_decisions", "--last"},
    {"prefix", "--prefix"},
    {"items", "--items"},
    {"labels", "--labels"},
    {"replicas", "--replicas"},
    {"retention.until_token", "--until-token"},
    {"retention.priority", "--priority"},
    {"retention.ttl_ms", "--ttl-ms"},
};

}  // namespace

std::string ArgumentOf(absl::string_view field, ArgumentStyle style) {
  if (style == ArgumentStyle::kParameter) {
    absl::string_view name = field;
    if (absl::ConsumePrefix(&name, "sampling.") || absl::ConsumePrefix(&name, "stop.")) {
      return std::string(name);
    }
    return std::string(field);
  }
  // An element of a list has its index behind the list's name.
  const absl::string_view list = field.substr(0, field.find('['));
  const absl::string_view index = field.substr(list.size());
  const bool is_element = absl::EndsWith(index, "]");
  for (const auto& [known, flag] : kFlags) {
    if (field == known) return std::string(flag);
    if (is_element && list == known) return absl::StrCat(flag, index);
  }
  return std::string(field);
}

std::string MessageWithArgument(const absl::Status& error, ArgumentStyle style) {
  const std::string field = ErrorField(error);
  absl::string_view message = error.message();
  if (field.empty() || !absl::ConsumePrefix(&message, field) || !absl::StartsWith(message, ": ")) {
    return std::string(error.message());
  }
  return absl::StrCat(ArgumentOf(field, style), message);
}

}  // namespace baton::cli
