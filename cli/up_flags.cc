#include "cli/up_flags.h"

#include <CLI/CLI.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/base/model_directory.h"
#include "common/security/flags.h"
#include "common/security/tls_check.h"

namespace baton::cli {
namespace {

constexpr int kMaxWorkers = 64;

std::vector<std::string> RouterFlagsOf(const UpFlags& flags) {
  std::vector<std::string> passed;
  for (const auto& [flag, path] :
       {std::pair("--api-keys", flags.api_keys), std::pair("--tls-cert", flags.tls.cert),
        std::pair("--tls-key", flags.tls.key), std::pair("--tls-client-ca", flags.tls.client_ca)}) {
    if (!path.empty()) passed.insert(passed.end(), {flag, path});
  }
  if (flags.insecure) passed.push_back("--insecure");
  if (flags.no_split_special_tokens) passed.push_back("--no-split-special-tokens");
  if (flags.strict_fields) passed.push_back("--strict-fields");
  if (!flags.rerank_template.empty()) {
    passed.insert(passed.end(), {"--rerank-template", flags.rerank_template});
  }
  if (!flags.rerank_labels.empty()) {
    passed.insert(passed.end(), {"--rerank-labels", flags.rerank_labels});
  }
  for (const std::string& origin : flags.http_cors_origins) {
    passed.insert(passed.end(), {"--http-cors-origins", origin});
  }
  if (flags.kv_fetch) passed.push_back("--kv-fetch");
  if (!flags.max_local_prefill_tokens.empty()) {
    passed.insert(passed.end(), {"--max-local-prefill-tokens", flags.max_local_prefill_tokens});
  }
  return passed;
}

// Those of `values` that the command line has: an empty value may be meant.
std::vector<std::string> GivenFlags(const CLI::App& app,
                                    const std::map<std::string, std::string>& values) {
  std::vector<std::string> given;
  for (const auto& [flag, value] : values) {
    if (app.count(flag) > 0) given.insert(given.end(), {flag, value});
  }
  return given;
}

}  // namespace

void AddUp(CLI::App* app, UpOptions* up, UpFlags* flags) {
  app->add_option(
         "--model", up->cluster.model_dir,
         "Hugging Face directory or GGUF file of the model, or its id, or ORG/NAME/FILE.gguf, in "
         "the local Hugging Face cache")
      ->required()
      ->type_name("PATH");
  app->add_option("--prefill", flags->prefill,
                  "Number of prefill workers; 0: decode workers compute the prompts; auto: 0 or 1, "
                  "whichever this machine serves better")
      ->check(CLI::Range(0, kMaxWorkers) | CLI::IsMember({"auto"}));
  app->add_option("--decode", up->cluster.decode_workers, "Number of decode workers")
      ->check(CLI::Range(1, kMaxWorkers));
  app->add_option("--listen", up->cluster.listen, "Address of the router, host:port");
  up->cluster.http_listen = "127.0.0.1:8000";
  app->add_option("--http-listen", up->cluster.http_listen,
                  "Address of the OpenAI-compatible HTTP endpoints, host:port; empty: none");
  app->add_option("--api-keys", flags->api_keys, "Passed to the router: file of API keys");
  security::AddServerTls(*app, flags->tls);
  app->add_flag("--insecure", flags->insecure,
                "Passed to the router: it may listen beyond loopback without API keys");
  app->add_flag("--no-split-special-tokens,!--split-special-tokens", flags->no_split_special_tokens,
                "Passed to the router: messages of chats may spell special tokens");
  app->add_flag("--strict-fields", flags->strict_fields,
                "Passed to the router: HTTP fields without effect are refused");
  app->add_option("--rerank-template", flags->rerank_template,
                  "Passed to the router: the prompt of /v1/rerank, qwen3 or a file");
  app->add_option("--rerank-labels", flags->rerank_labels,
                  "Passed to the router: the two answers of a model that ranks");
  app->add_option("--http-cors-origins", flags->http_cors_origins,
                  "Passed to the router: origins whose pages may call it from a browser")
      ->delimiter(',');
  app->add_option("--max-local-prefill-tokens", flags->max_local_prefill_tokens,
                  "Passed to the router: the longest part of a prompt that decode workers compute")
      ->check(CLI::Range(0, 1 << 30));
  app->add_option("--metrics-listen", up->cluster.metrics_listen,
                  "Address of the router's /metrics, host:port");
  app->add_option("--log-dir", up->cluster.log_dir, "Directory for one log file per process");
  app->add_option(
      "--ready-file", up->ready_file,
      "File for the router's addresses (gRPC, metrics), written once the cluster is ready");
  app->add_flag("--json", up->json,
                "Print one JSON object with the addresses once the cluster is ready; logs go to "
                "stderr");
  app->add_option("--log-level", up->cluster.log_level,
                  "Least severe level to log: debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app->add_option("--log-format", up->cluster.log_format,
                  "Log lines as text, or as json: one object a line")
      ->check(CLI::IsMember({"text", "json"}));
  app->add_option("--otlp-traces-endpoint", up->cluster.otlp_traces_endpoint,
                  "Passed to every process: URL of a collector for traces by OTLP/HTTP");
  const CLI::Range count(int64_t{1}, int64_t{1} << 40);
  for (const char* flag : {"--block-size", "--num-blocks", "--max-model-len", "--max-num-seqs",
                           "--max-num-batched-tokens", "--threads"}) {
    app->add_option(flag, flags->values[flag], "Passed to every worker")->check(count);
  }
  for (const char* flag :
       {"--kv-cache-memory", "--dtype", "--weights", "--device", "--gpu-memory-utilization",
        "--experts-on-host", "--cublas-algorithms", "--max-retained-share", "--max-snapshot-share",
        "--kv-transport", "--kv-cache-dtype", "--override-generation-config"}) {
    app->add_option(flag, flags->values[flag], "Passed to every worker");
  }
  for (const char* flag : {"--kv-tier", "--kv-tier-segment", "--kv-tier-least-uses",
                           "--kv-tier-redis-password-file"}) {
    app->add_option(flag, flags->tier_values[flag], "Passed to every worker");
  }
  app->add_flag("--dequantize-weights", flags->dequantize_weights, "Passed to every worker");
  app->add_flag("--kv-fetch", flags->kv_fetch, "Passed to every process");
  app->add_flag("--kv-write-back", flags->kv_write_back, "Passed to decode workers");
  for (const char* flag : {"--speculative", "--speculative-priorities", "--draft-kv-memory",
                           "--draft-gpu-memory-utilization"}) {
    app->add_option(flag, flags->decode_values[flag], "Passed to decode workers");
  }
  app->add_flag("--no-deterministic,!--deterministic", flags->no_deterministic,
                "Passed to every worker");
  app->add_flag("--no-enable-prefix-caching,!--enable-prefix-caching", flags->no_prefix_caching,
                "Passed to every worker");
}

void FinishUp(const CLI::App& app, const UpFlags& flags, UpOptions* up) {
  ClusterOptions& cluster = up->cluster;
  const absl::Status found = FindModel(cluster.model_dir).status();
  if (!found.ok()) throw CLI::ValidationError("--model", std::string(found.message()));
  // The router starts last, after the workers have loaded the model.
  const absl::Status tls = security::CheckTls(flags.tls);
  if (!tls.ok()) throw CLI::ValidationError("--tls-cert", std::string(tls.message()));
  up->prefill = flags.prefill == "auto"       ? UpOptions::Prefill::kAuto
                : app.count("--prefill") == 0 ? UpOptions::Prefill::kDefault
                                              : UpOptions::Prefill::kGiven;
  if (up->prefill != UpOptions::Prefill::kAuto) {
    (void)absl::SimpleAtoi(flags.prefill, &cluster.prefill_workers);
  }
  cluster.router_flags = RouterFlagsOf(flags);
  cluster.router_tls = flags.tls.on();
  // Not among worker_flags: prompts that `--prefill auto` measures with must not get into KV tiers.
  cluster.prefill_flags = cluster.decode_flags = GivenFlags(app, flags.tier_values);
  for (std::string& flag : GivenFlags(app, flags.decode_values)) {
    cluster.decode_flags.push_back(std::move(flag));
  }
  if (flags.kv_write_back) cluster.decode_flags.push_back("--kv-write-back");
  cluster.worker_flags = GivenFlags(app, flags.values);
  for (const auto& [flag, given] :
       {std::pair("--dequantize-weights", flags.dequantize_weights),
        std::pair("--kv-fetch", flags.kv_fetch),
        std::pair("--no-deterministic", flags.no_deterministic),
        std::pair("--no-enable-prefix-caching", flags.no_prefix_caching)}) {
    if (given) cluster.worker_flags.push_back(flag);
  }
}

}  // namespace baton::cli
