// baton-router: flags to Options, then a RouterServer until SIGTERM or SIGINT.
#include <google/protobuf/stubs/logging.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "router/server.h"

namespace {

using baton::router::Options;
using baton::router::RouterServer;

void AddFlags(CLI::App* app, Options* options, std::string* log_level) {
  app->option_defaults()->always_capture_default();  // --help shows defaults
  app->add_option("--model", options->model_dir, "Directory with the model's tokenizer.json")
      ->required()
      ->check(CLI::ExistingDirectory);
  app->add_option("--served-model-name", options->served_model_name,
                  "What clients call the model; its directory's name if not given");
  app->add_option("--listen", options->listen, "host:port for clients; port 0: any free one");
  app->add_option("--metrics-listen", options->metrics_listen, "host:port for /metrics");
  app->add_option("--address-file", options->address_file,
                  "Write the bound addresses here once listening: gRPC, then metrics");
  app->add_option("--prefill-workers", options->prefill_workers,
                  "host:port,host:port,...; none: the decode workers compute the prompts, too")
      ->delimiter(',');
  app->add_option("--decode-workers", options->decode_workers, "host:port,host:port,...")
      ->delimiter(',');
  app->add_option(
      "--workers-file", options->workers_file,
      "Lines of \"prefill host:port\" and \"decode host:port\"; followed as it changes");
  app->add_option(
      "--prefill-dns", options->prefill_dns,
      "host:port; each address of the host is a prefill worker, resolved again and again");
  app->add_option("--decode-dns", options->decode_dns, "host:port; the same for decode workers");
  app->add_option("--dns-refresh-ms", options->dns_refresh_ms, "Between two resolutions")
      ->check(CLI::Range(int64_t{100}, int64_t{3'600'000}));
  app->add_option("--dns-answer-life-ms", options->dns_answer_life_ms,
                  "How long the last good answer stands while a name has no addresses; while no "
                  "name server answers it stands anyway")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}));
  app->add_option("--max-inflight-requests", options->max_inflight_requests,
                  "Requests at a time; more are refused")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--max-inflight-prompt-tokens", options->max_inflight_prompt_tokens,
                  "Of the prompts of all requests inside; more are refused")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app->add_option("--max-queued-prompts", options->max_queued_prompts,
                  "Prompts waiting to be tokenized; more are refused")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--max-prompt-bytes", options->max_prompt_bytes, "Of a prompt given as text")
      ->check(CLI::Range(int64_t{1}, int64_t{16} << 20));
  app->add_option("--tokenizer-threads", options->tokenizer_threads)->check(CLI::Range(1, 256));
  app->add_option("--default-deadline-ms", options->default_deadline_ms,
                  "Of calls whose client sets none")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}));
  app->add_option("--explain-log-every", options->explain_log_every,
                  "Log each so-many-th routing decision in full; 0: none")
      ->check(CLI::Range(0, 1 << 30));
  app->add_option("--stall-timeout-ms", options->stall_timeout_ms,
                  "A stream of a worker that is silent for longer is continued on another pair")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}));
  app->add_option("--failover-wait-ms", options->failover_wait_ms,
                  "How long a request whose worker was lost waits while no other one is ready")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}));
  app->add_option(
         "--retry-budget-percent", options->retry_budget_percent,
         "Retries, of the requests that come, in the long run; what dead workers had is no retry")
      ->check(CLI::Range(0, 100));
  app->add_option("--retry-budget-reserve", options->retry_budget_reserve,
                  "Retries beyond that, right after the start")
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--retry-budget-capacity", options->retry_budget_capacity,
                  "Retries that a time without any can save up")
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--routing-policy", options->routing_policy,
                  "priced: by expected time, computing dearer the busier the fleet is; "
                  "prefix_then_load: longest cached prefix, then least load; "
                  "round_robin: workers in turn, to measure the others by")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(baton::router::kRoutingPolicies),
                                                     std::end(baton::router::kRoutingPolicies))));
  app->add_option("--ttft-slo-ms", options->ttft_slo_ms,
                  "Refuse requests whose first token is expected later; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}));
  app->add_option("--max-local-prefill-tokens", options->max_local_prefill_tokens,
                  "Tokens of a prompt that a decode worker may be left to compute itself, where "
                  "that is cheaper; 0: none")
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--kv-bytes-per-second", options->kv_bytes_per_second,
                  "Of KV from a prefill to a decode worker, as expected")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 50));
  app->add_option("--drain-grace-ms", options->drain_grace_ms, "For running streams after SIGTERM")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}));
  app->add_option("--log-level", *log_level)
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Baton's router: tokenizes requests and sends them to pairs of workers");
  Options options;
  std::string log_level = "info";
  AddFlags(&app, &options, &log_level);
  CLI11_PARSE(app, argc, argv);
  baton::LogLevel level;
  if (baton::ParseLogLevel(log_level, &level)) baton::SetLogLevel(level);
  baton::SetLogComponent("router");
  // Clients are told what is wrong with their bytes; they must not fill the log with it.
  google::protobuf::SetLogHandler(nullptr);

  // Blocked in all threads, which inherit the mask, and awaited in this one.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);  // whoever read our stderr may be gone: no reason to go, too
  const absl::Duration grace = absl::Milliseconds(options.drain_grace_ms);
  auto server = RouterServer::Start(std::move(options));
  if (!server.ok()) {
    std::fprintf(stderr, "baton-router: %s\n", std::string(server.status().message()).c_str());
    return 1;
  }
  int received = 0;
  sigwait(&signals, &received);
  BATON_LOG(Info) << "stopping on signal " << received << "; running requests have " << grace;
  // A second signal ends the process at once, as signals do by default.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  (*server)->Drain(grace);
  BATON_LOG(Info) << "stopped";
  return 0;
}
