#include "cli/generate.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/signal_watch.h"
#include "common/base/error.h"

namespace baton::cli {

std::string ToJson(const client::Completion& completion) {
  const client::Usage& usage = completion.usage;
  const client::Timings& timings = completion.timings;
  const nlohmann::ordered_json json = {
      {"text", completion.text},
      {"token_ids", completion.token_ids},
      {"finish_reason", client::FinishReasonName(completion.finish_reason)},
      {"matched_stop", completion.matched_stop},
      {"seed", completion.seed},
      {"request_id", completion.request_id},
      {"usage",
       {{"prompt_tokens", usage.prompt_tokens},
        {"cached_prompt_tokens", usage.cached_prompt_tokens},
        {"generated_tokens", usage.generated_tokens},
        {"kv_bytes", usage.kv_bytes}}},
      {"timings",
       {{"queue_ms", timings.queue_ms},
        {"prefill_ms", timings.prefill_ms},
        {"kv_transfer_ms", timings.kv_transfer_ms},
        {"decode_ms", timings.decode_ms},
        {"ttft_ms", timings.ttft_ms}}},
  };
  return json.dump(2);
}

std::string Describe(const absl::Status& status) {
  std::string line = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  if (const std::string reason = ErrorReason(status); !reason.empty()) {
    absl::StrAppend(&line, " [", reason, "]");
  }
  if (const auto retry_after = ErrorRetryAfter(status)) {
    absl::StrAppend(&line, " (try again in ", absl::FormatDuration(*retry_after), ")");
  }
  return line;
}

int RunGenerate(const GenerateOptions& options, std::ostream& out, std::ostream& err) {
  auto client = client::Client::Create(options.address, {absl::Milliseconds(options.timeout_ms)});
  if (!client.ok()) {
    err << "baton generate: " << Describe(client.status()) << std::endl;
    return 1;
  }
  client::GenerateRequest request = options.request;
  request.return_token_ids = options.json;
  const auto stream = (*client)->Generate(request);
  const bool live = options.stream && !options.json;
  {
    SignalWatch ctrl_c([&stream] { stream->Cancel(); });
    while (auto delta = stream->Next()) {
      if (live) out << delta->text << std::flush;
    }
  }
  const client::Completion& completion = stream->completion();
  if (live) {
    out << std::endl;
  } else if (stream->status().ok()) {
    out << (options.json ? ToJson(completion) : completion.text) << std::endl;
  }
  if (stream->status().ok()) return 0;
  err << "baton generate: " << Describe(stream->status()) << std::endl;
  return 1;
}

}  // namespace baton::cli
