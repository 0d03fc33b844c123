// baton-router: parses flags and runs a RouterServer until SIGTERM or SIGINT.
#include <google/protobuf/stubs/logging.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/base/command_line.h"
#include "common/base/exit_code.h"
#include "common/base/file_limit.h"
#include "common/base/log.h"
#include "common/base/malloc_settings.h"
#include "common/base/model_directory.h"
#include "common/base/shutdown_signal.h"
#include "common/base/version.h"
#include "common/security/flags.h"
#include "router/server.h"

namespace {

using baton::router::Options;
using baton::router::RouterServer;

struct LogFlags {
  std::string level = "info";
  std::string format = "text";
};

void AddFlags(CLI::App* app, Options* options, LogFlags* log) {
  app->option_defaults()->always_capture_default();  // --help shows defaults
  app->add_option("--model", options->model_dir,
                  "Directory of the model, with tokenizer.json, or its GGUF file, or its id, or "
                  "ORG/NAME/FILE.gguf, in the local Hugging Face cache")
      ->required();
  app->add_option("--served-model-name", options->served_model_name,
                  "Name of the model for clients; default: its id, or the name of its directory");
  app->add_option("--listen", options->listen,
                  "Address for clients, host:port; port 0: any free port");
  app->add_option("--listen-socket", options->listen_socket,
                  "Path of a Unix domain socket that serves gRPC, too, without TLS; empty: none");
  app->add_option("--http-listen", options->http_listen,
                  "Address of the OpenAI-compatible HTTP endpoints, host:port; empty: none");
  app->add_option("--http-cors-origins", options->http_cors_origins,
                  "Origins whose pages may call these endpoints from a browser, "
                  "https://host,https://host:port,..., or * for all; may be repeated")
      ->delimiter(',');
  app->add_option("--http-threads", options->http_threads,
                  "Threads that serve HTTP connections; 0: one for each core")
      ->check(CLI::Range(0, 256));
  app->add_option("--max-http-connections", options->max_http_connections,
                  "Limit for open HTTP connections; further ones are closed at once")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--metrics-listen", options->metrics_listen,
                  "Address of /metrics, host:port; empty: none");
  app->add_option(
      "--address-file", options->address_file,
      "File for the bound addresses (gRPC, metrics, HTTP), written once the router listens");
  app->add_option("--api-keys", options->api_keys,
                  "File with the hashes of API keys, which calls then need; read again when it "
                  "changes; see `baton keys new`");
  baton::security::AddWorkerSecret(*app, options->worker_secret_file);
  baton::security::AddServerTls(*app, options->tls);
  baton::security::AddWorkerTls(*app, options->worker_tls);
  app->add_flag("--insecure", options->insecure,
                "Serve callers of other machines without API keys");
  app->add_option(
         "--prefill-workers", options->prefill_workers,
         "Addresses, host:port,host:port,...; without any, decode workers compute prompts, too")
      ->delimiter(',');
  app->add_option("--decode-workers", options->decode_workers, "Addresses, host:port,host:port,...")
      ->delimiter(',');
  app->add_option(
      "--workers-file", options->workers_file,
      "File with lines \"prefill host:port\" and \"decode host:port\"; read again when it changes");
  app->add_option("--prefill-dns", options->prefill_dns,
                  "host:port; each address of the host is a prefill worker, resolved periodically");
  app->add_option("--decode-dns", options->decode_dns, "host:port; the same for decode workers");
  app->add_option("--dns-refresh-ms", options->dns_refresh_ms,
                  "Interval between two resolutions of a DNS name")
      ->check(CLI::Range(int64_t{100}, int64_t{3'600'000}));
  app->add_option("--dns-answer-life-ms", options->dns_answer_life_ms,
                  "How long the last addresses of a DNS name remain valid once it has none; they "
                  "always do while no name server answers")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}));
  app->add_option("--max-inflight-requests", options->max_inflight_requests,
                  "Limit for concurrent requests; more are refused")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--max-inflight-prompt-tokens", options->max_inflight_prompt_tokens,
                  "Limit for prompt tokens of all concurrent requests; more are refused")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app->add_option("--max-inflight-request-bytes", options->max_inflight_request_bytes,
                  "Limit for the bytes of all requests that the router has taken in, those that "
                  "are still arriving over HTTP included; more are refused")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 50));
  app->add_option("--default-max-tokens", options->default_max_tokens,
                  "Limit for the answers to requests that set none; 0: max_new_tokens of the "
                  "model's generation_config.json, else what its context and the KV pools hold")
      ->check(CLI::Range(0, 1 << 30));
  app->add_option("--max-output-tokens", options->max_output_tokens,
                  "Requests for longer answers are refused; 0: none are")
      ->check(CLI::Range(0, 1 << 30));
  app->add_option("--classes", options->classes,
                  "JSON file with the limits, priorities and pools of tenants; read again when it "
                  "changes");
  app->add_option("--max-queued-prompts", options->max_queued_prompts,
                  "Limit for prompts that wait to be tokenized; more are refused")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--max-prompt-bytes", options->max_prompt_bytes,
                  "Limit for a prompt that is sent as text")
      ->check(CLI::Range(int64_t{1}, int64_t{16} << 20));
  app->add_option("--tokenizer-threads", options->tokenizer_threads, "Number of tokenizer threads")
      ->check(CLI::Range(1, 256));
  app->add_flag("--split-special-tokens,!--no-split-special-tokens", options->split_special_tokens,
                "Text of chat messages that spells special tokens stays text, unless their request "
                "says otherwise (default on)");
  app->add_flag("--strict-fields", options->strict_fields,
                "Refuse HTTP requests with fields that have no effect, which are else accepted and "
                "named in the header x-baton-ignored");
  app->add_option("--rerank-template", options->rerank_template,
                  "The prompt of /v1/rerank for a model that is made for ranking: qwen3, or a file "
                  "with {query}, {document} and maybe {instruction}");
  app->add_option("--rerank-labels", options->rerank_labels,
                  "The two answers, with a comma between, of which a document's score is the share "
                  "of the first one");
  app->add_option("--reasoning-parser", options->reasoning_parser,
                  "auto: what a model writes before it answers leaves the content of chats' "
                  "answers and becomes reasoning_content; none: it stays in the content")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(baton::router::kReasoningParsers),
                                                     std::end(baton::router::kReasoningParsers))));
  app->add_option("--default-deadline-ms", options->default_deadline_ms,
                  "Deadline of calls whose client sets none")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}));
  app->add_option("--write-stall-timeout-ms", options->write_stall_timeout_ms,
                  "Give up an answer of which the client reads nothing for longer")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}));
  app->add_option("--unread-answer-memory", options->unread_answer_bytes,
                  "Bytes of one streamed answer that may wait for its client; beyond, it ends")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app->add_option("--unread-memory", options->unread_bytes,
                  "Bytes of all answers that may wait for clients; beyond, the least read one ends")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app->add_option("--tokenized-text-memory", options->tokenized_text_bytes,
                  "Bytes of recent chats with their tokens, so that a chat that goes on is not "
                  "tokenized again; 0: none")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app->add_option("--prompt-history-memory", options->prompt_history_bytes,
                  "Bytes for the tokens of recent prompts, which explain cache misses; 0: none")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app->add_option(
         "--response-store-bytes", options->response_store_bytes,
         "Bytes for the responses of /v1/responses that clients may continue by their ids; "
         "beyond, those not used for longest go; 0: none are stored")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50));
  app->add_option("--response-store-ttl-ms", options->response_store_ttl_ms,
                  "How long a stored response remains that is not used")
      ->check(CLI::Range(int64_t{1}, int64_t{30} * 86'400'000));
  app->add_option("--max-warm-prefixes", options->max_warm_prefixes,
                  "Limit for the prefixes that are kept warm; more are refused")
      ->check(CLI::Range(0, 1 << 16));
  app->add_option("--explain-log-every", options->explain_log_every,
                  "Log every n-th routing decision in full; 0: none")
      ->check(CLI::Range(0, 1 << 30));
  app->add_option(
         "--stall-timeout-ms", options->stall_timeout_ms,
         "Continue a request on other workers if its decode worker sends nothing for longer")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}));
  app->add_option("--failover-wait-ms", options->failover_wait_ms,
                  "How long a request that lost its worker waits for a ready one")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}));
  app->add_option(
         "--retry-budget-percent", options->retry_budget_percent,
         "Retries as a share of new requests, on average; requests of dead workers do not count")
      ->check(CLI::Range(0, 100));
  app->add_option("--retry-budget-reserve", options->retry_budget_reserve,
                  "Retries available at the start")
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--retry-budget-capacity", options->retry_budget_capacity,
                  "Largest number of retries that can accumulate")
      ->check(CLI::Range(0, 1 << 20));
  app->add_option(
         "--routing-policy", options->routing_policy,
         "priced: least expected time, with a price on recomputation that grows with load; "
         "prefix_then_load: longest cached prefix, then least load; "
         "round_robin: workers in turn, as a baseline")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(baton::router::kRoutingPolicies),
                                                     std::end(baton::router::kRoutingPolicies))));
  app->add_flag(
      "--kv-fetch,!--no-kv-fetch", options->kv_fetch,
      "tell the worker that computes which other one has a prompt's KV cached; workers with "
      "--kv-fetch send and fetch it (default off)");
  app->add_option("--kv-fetch-bytes-per-second", options->kv_fetch_bytes_per_second,
                  "rate of such a fetch, by which it is priced; 0: it is not")
      ->check(CLI::Range(0.0, 1e12))
      ->capture_default_str();
  app->add_option("--ttft-slo-ms", options->ttft_slo_ms,
                  "Refuse requests whose expected time to first token is longer; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}));
  app->add_option(
         "--max-local-prefill-tokens", options->max_local_prefill_tokens,
         "Largest number of missing prompt tokens that a decode worker may compute itself, "
         "if that is cheaper; 0: none")
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--long-prompt-tokens", options->long_prompt_tokens,
                  "Prompts of at least so many tokens go to workers of --long-pool; 0: none do")
      ->check(CLI::Range(0, 1 << 30));
  app->add_option("--long-pool", options->long_pool, "Pool of workers for long prompts");
  app->add_flag("--pool-spill,!--no-pool-spill", options->pool_spill,
                "Without room in their pool, requests go to other workers, unless their class says "
                "otherwise (default on)");
  app->add_option("--kv-bytes-per-second", options->kv_bytes_per_second,
                  "Expected bandwidth for KV from a prefill to a decode worker")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 50));
  app->add_option("--scaling-ttft-ms", options->scaling_ttft_ms,
                  "baton_desired_workers: prompts that wait are to be computed within this time")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}))
      ->capture_default_str();
  app->add_option("--scaling-inter-token-ms", options->scaling_inter_token_ms,
                  "baton_desired_workers: longest step of a batch of answers")
      ->check(CLI::Range(0.01, 86'400'000.0))
      ->capture_default_str();
  app->add_option("--scaling-prefill-busy", options->scaling_prefill_busy,
                  "baton_desired_workers: share of the time in which a worker computes prompts")
      ->check(CLI::Range(0.05, 1.0))
      ->capture_default_str();
  app->add_option("--scaling-decode-fill", options->scaling_decode_fill,
                  "baton_desired_workers: share of a worker's KV pool and batch that is taken")
      ->check(CLI::Range(0.05, 1.0))
      ->capture_default_str();
  app->add_option("--drain-grace-ms", options->drain_grace_ms,
                  "How long running requests may continue after the first SIGTERM or SIGINT")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}));
  baton::tracing::AddTracingFlags(*app, options->tracing);
  app->add_option("--log-level", log->level, "Least severe level to log")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app->add_option("--log-format", log->format, "text, or json: one object a line")
      ->check(CLI::IsMember({"text", "json"}));
}

}  // namespace

int main(int argc, char** argv) {
  // A long prompt's text and tokens are buffers of hundreds of KB each.
  baton::KeepFreedMemory();
  baton::RaiseFileLimit();
  baton::ShutdownSignal signals;  // before any thread
  // An Abseil that was built with assertions, as distributions ship it, looks for cycles in the
  // order of locks whenever one is taken, in gRPC as here: a twentieth of the router's time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  CLI::App app("Baton's router: tokenizes requests and sends them to pairs of workers");
  Options options;
  LogFlags log;
  app.set_version_flag("--version", baton::VersionLine("baton-router"));
  AddFlags(&app, &options, &log);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return baton::ReportParseError(app, error);
  }
  baton::LogLevel level;
  if (baton::ParseLogLevel(log.level, &level)) baton::SetLogLevel(level);
  baton::LogFormat format;
  if (baton::ParseLogFormat(log.format, &format)) baton::SetLogFormat(format);
  baton::SetLogComponent("router");
  // Protobuf logs each malformed message; clients, which get an error, must not fill the log.
  google::protobuf::SetLogHandler(nullptr);

  const auto model = baton::FindModel(options.model_dir);
  if (!model.ok()) {
    std::fprintf(stderr, "baton-router: --model: %s\n",
                 std::string(model.status().message()).c_str());
    return baton::kExitUsage;
  }
  options.model_dir = model->path;
  if (options.served_model_name.empty()) options.served_model_name = model->id;

  const absl::Duration grace = absl::Milliseconds(options.drain_grace_ms);
  auto server = RouterServer::Start(std::move(options));
  if (!server.ok()) {
    std::fprintf(stderr, "baton-router: %s\n", std::string(server.status().message()).c_str());
    return baton::ExitCodeOfStart(server.status());
  }
  signals.DrainOnSignal(
      [&] {
        BATON_LOG(Info) << "draining for up to " << grace << "; a second signal stops at once";
        (*server)->Drain(grace);
      },
      [&] { (*server)->Stop(); });
  BATON_LOG(Info) << "stopped";
  return baton::kExitOk;
}
