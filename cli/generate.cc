#include "cli/generate.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/error.h"
#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"

namespace baton::cli {

namespace {

nlohmann::ordered_json Json(const std::vector<client::TokenLogprobs>& logprobs) {
  auto array = nlohmann::ordered_json::array();
  for (const client::TokenLogprobs& token : logprobs) {
    auto top = nlohmann::ordered_json::array();
    for (const client::TokenLogprob& other : token.top) {
      top.push_back({{"token_id", other.token_id}, {"logprob", other.logprob}});
    }
    array.push_back({{"token_id", token.token_id}, {"logprob", token.logprob}, {"top", top}});
  }
  return array;
}

nlohmann::ordered_json Json(const client::Choice& choice) {
  return {{"text", choice.text},
          {"token_ids", choice.token_ids},
          {"finish_reason", client::FinishReasonName(choice.finish_reason)},
          {"matched_stop", choice.matched_stop},
          {"logprobs", Json(choice.logprobs)},
          {"beam_score", choice.beam_score}};
}

// Several choices are printed with a line of their index before each.
void PrintTexts(const client::Completion& completion, std::ostream& out) {
  if (completion.choices.size() <= 1) {
    out << completion.text() << std::endl;
    return;
  }
  for (size_t i = 0; i < completion.choices.size(); ++i) {
    out << "[" << i << "]\n" << completion.choices[i].text << std::endl;
  }
}

}  // namespace

std::string ToJson(const client::Completion& completion) {
  auto choices = nlohmann::ordered_json::array();
  for (const client::Choice& choice : completion.choices) choices.push_back(Json(choice));
  const client::Usage& usage = completion.usage;
  const client::Timings& timings = completion.timings;
  const nlohmann::ordered_json json = {
      {"text", completion.text()},
      {"token_ids", completion.token_ids()},
      {"finish_reason", client::FinishReasonName(completion.finish_reason())},
      {"matched_stop", completion.choices.front().matched_stop},
      {"seed", completion.seed},
      {"request_id", completion.request_id},
      {"usage",
       {{"prompt_tokens", usage.prompt_tokens},
        {"cached_prompt_tokens", usage.cached_prompt_tokens},
        {"generated_tokens", usage.generated_tokens},
        {"kv_bytes", usage.kv_bytes},
        {"draft_tokens", usage.draft_tokens},
        {"accepted_draft_tokens", usage.accepted_draft_tokens}}},
      {"timings",
       {{"queue_ms", timings.queue_ms},
        {"prefill_ms", timings.prefill_ms},
        {"kv_transfer_ms", timings.kv_transfer_ms},
        {"decode_ms", timings.decode_ms},
        {"ttft_ms", timings.ttft_ms}}},
      {"choices", choices},
      {"prompt_logprobs", Json(completion.prompt_logprobs)},
  };
  return json.dump(2);
}

std::string Describe(const absl::Status& status, ArgumentStyle style) {
  std::string line = absl::StrCat(absl::StatusCodeToString(status.code()), ": ",
                                  MessageWithArgument(status, style));
  if (const std::string reason = ErrorReason(status); !reason.empty()) {
    absl::StrAppend(&line, " [", reason, "]");
  }
  if (const auto retry_after = ErrorRetryAfter(status)) {
    absl::StrAppend(&line, " (retry after ", absl::FormatDuration(*retry_after), ")");
  }
  if (const std::string id = ErrorRequestId(status); !id.empty()) {
    absl::StrAppend(&line, " (request ", id, ")");
  }
  return line;
}

int RunGenerate(const GenerateOptions& options, std::ostream& out, std::ostream& err) {
  client::ClientOptions client_options;
  client_options.timeout = absl::Milliseconds(options.timeout_ms);
  // A script decides by the exit code whether and when to retry.
  client_options.max_retries = 0;
  client_options.wait_for_ready = false;
  auto client = RouterClient(options.address, options.access, client_options);
  if (!client.ok()) {
    err << "baton generate: " << Describe(client.status()) << std::endl;
    return ExitCode(client.status());
  }
  client::GenerateRequest request = options.request;
  request.return_token_ids = options.json;
  const auto stream = (*client)->Generate(request);
  // The deltas of several choices are interleaved.
  const bool live = options.stream && !options.json && request.n.value_or(1) == 1;
  {
    ShutdownWatch ctrl_c([&stream] { stream->Cancel(); });
    for (const client::Delta& delta : *stream) {
      if (live) out << delta.text << std::flush;
    }
  }
  const client::Completion& completion = stream->completion();
  if (live) {
    if (stream->status().ok() || !completion.text().empty()) out << std::endl;
  } else if (stream->status().ok() && options.json) {
    out << ToJson(completion) << std::endl;
  } else if (stream->status().ok()) {
    PrintTexts(completion, out);
  }
  if (stream->status().ok()) return kExitOk;
  err << "baton generate: " << Describe(stream->status()) << std::endl;
  return ExitCode(stream->status());
}

}  // namespace baton::cli
