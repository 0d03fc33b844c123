#include "cli/commands.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/bench_flags.h"
#include "cli/bench_workload_flags.h"
#include "cli/completion.h"
#include "cli/plan_flags.h"
#include "cli/shared_flags.h"
#include "common/base/exit_code.h"
#include "common/base/model_directory.h"
#include "common/base/version.h"
#include "common/security/flags.h"
#include "common/security/tls_check.h"

namespace baton::cli {
namespace {

constexpr int kMaxWorkers = 64;

// Flags that `up` passes on to the workers, which check them further.
struct WorkerFlags {
  std::map<std::string, std::string> values;
  bool no_prefix_caching = false;
  bool no_deterministic = false;
  bool kv_fetch = false, kv_write_back = false;
  std::map<std::string, std::string> prefill_values;  // for prefill workers only
};

// And on to the router.
struct RouterFlags {
  std::string api_keys;
  ServerTls tls;
  bool insecure = false;
};

void AddUp(CLI::App* app, UpOptions* up, RouterFlags* router, WorkerFlags* worker) {
  app->add_option(
         "--model", up->cluster.model_dir,
         "Hugging Face directory or GGUF file of the model, or its id in the local Hugging Face "
         "cache")
      ->required()
      ->type_name("PATH");
  app->add_option("--prefill", up->cluster.prefill_workers,
                  "Number of prefill workers; 0: decode workers compute the prompts")
      ->check(CLI::Range(0, kMaxWorkers));
  app->add_option("--decode", up->cluster.decode_workers, "Number of decode workers")
      ->check(CLI::Range(1, kMaxWorkers));
  app->add_option("--listen", up->cluster.listen, "Address of the router, host:port");
  up->cluster.http_listen = "127.0.0.1:8000";
  app->add_option("--http-listen", up->cluster.http_listen,
                  "Address of the OpenAI-compatible HTTP endpoints, host:port; empty: none");
  app->add_option("--api-keys", router->api_keys, "Passed to the router: file of API keys");
  security::AddServerTls(*app, router->tls);
  app->add_flag("--insecure", router->insecure,
                "Passed to the router: it may listen beyond loopback without API keys");
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
    app->add_option(flag, worker->values[flag], "Passed to every worker")->check(count);
  }
  for (const char* flag :
       {"--kv-cache-memory", "--dtype", "--weights", "--device", "--gpu-memory-utilization",
        "--cublas-algorithms", "--max-retained-share", "--kv-transport", "--kv-cache-dtype"}) {
    app->add_option(flag, worker->values[flag], "Passed to every worker");
  }
  for (const char* flag : {"--kv-tier", "--kv-tier-segment", "--kv-tier-least-uses",
                           "--kv-tier-redis-password-file"}) {
    app->add_option(flag, worker->prefill_values[flag], "Passed to prefill workers");
  }
  app->add_flag("--kv-fetch", worker->kv_fetch, "Passed to every process");
  app->add_flag("--kv-write-back", worker->kv_write_back, "Passed to decode workers");
  app->add_flag("--no-deterministic,!--deterministic", worker->no_deterministic,
                "Passed to every worker");
  app->add_flag("--no-enable-prefix-caching,!--enable-prefix-caching", worker->no_prefix_caching,
                "Passed to every worker");
}

void AddKeys(CLI::App* app, KeysOptions* keys) {
  app->add_option("action", keys->action, "new: make a key")
      ->required()
      ->check(CLI::IsMember({"new"}));
  app->add_option("--tenant", keys->tenant, "Tenant whose requests have this key")->required();
  app->add_flag("--admin", keys->admin, "The key may also call the admin RPCs");
  app->add_flag("--json", keys->json, "Print one JSON object");
}

// Parses "ID=BIAS" flags, each id at most once.
void ParseLogitBias(const std::vector<std::string>& flags, std::map<int32_t, float>* biases) {
  for (const std::string& flag : flags) {
    const std::vector<std::string> parts = absl::StrSplit(flag, absl::MaxSplits('=', 1));
    int32_t id = 0;
    float bias = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &id) ||
        !absl::SimpleAtof(parts[1], &bias)) {
      throw CLI::ValidationError("--logit-bias", absl::StrCat("\"", flag, "\" is not ID=BIAS"));
    }
    if (!biases->emplace(id, bias).second) {
      throw CLI::ValidationError("--logit-bias", absl::StrCat("token id ", id, " is given twice"));
    }
  }
}

// The sampling of `generate` and `chat` beyond AddSampling().
void AddDrawing(CLI::App* app, client::Sampling* sampling) {
  app->add_option("--seed", sampling->seed, "Equal seeds give equal answers");
  app->add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [sampling](const std::vector<std::string>& flags) {
           ParseLogitBias(flags, &sampling->logit_bias);
         },
         "ID=BIAS: adds BIAS, -100 to 100, to the logit of token ID; may be repeated")
      ->allow_extra_args(false);
}

void AddChoices(CLI::App* app, client::GenerateRequest* request) {
  app->add_option("-n,--n", request->n, "Number of answers, 1 to 16");
  CLI::Option* beams = app->add_option("--beam-width", request->beam_width,
                                       "Beam search instead of sampling, with 2 to 16 beams");
  app->add_option("--length-penalty", request->length_penalty,
                  "Exponent of the length by which a beam's log probability is divided")
      ->needs(beams);
}

// The whole file, at most what a schema may have and a byte.
std::string ReadSchema(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(size_t{1} << 20, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.gcount() == 0) throw CLI::ValidationError("--json-schema", path + " cannot be read");
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

void AddStructuredOutput(CLI::App* app, client::GenerateRequest* request) {
  CLI::Option* object =
      app->add_flag("--json-object", request->json_object, "The answer is a JSON object");
  CLI::Option* schema = app->add_option_function<std::string>(
      "--json-schema",
      [request](const std::string& path) { request->json_schema = ReadSchema(path); },
      "FILE: the answer is JSON that is valid against the JSON schema in it");
  CLI::Option* regex = app->add_option("--regex", request->regex,
                                       "The answer is a text that this regular expression matches");
  CLI::Option* choice = app->add_option("--choice", request->answer_texts,
                                        "The answer is this text, or another one given so")
                            ->allow_extra_args(false);
  object->excludes(schema)->excludes(regex)->excludes(choice);
  schema->excludes(regex)->excludes(choice);
  regex->excludes(choice);
}

void AddTimeout(CLI::App* app, int64_t* timeout_ms, const char* description) {
  app->add_option("--timeout-ms", *timeout_ms, description)
      ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}));
}

// What every turn of a conversation takes.
void AddChat(CLI::App* app, ChatOptions* options) {
  AddAddress(app, &options->address, &options->access);
  app->add_option("--model", options->request.model,
                  "Name of the model; empty: the one that the router serves");
  app->add_option("--system", options->system, "The system prompt");
  app->add_option("--max-tokens", options->request.max_tokens,
                  "Largest number of tokens of an answer");
  AddSampling(app, &options->request.sampling);
  AddDrawing(app, &options->request.sampling);
  AddTimeout(app, &options->timeout_ms, "Limit for each answer");
}

void AddPriority(CLI::App* app, client::Priority* priority) {
  app->add_option("--priority", *priority, "low, normal or high")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, client::Priority>{{"low", client::Priority::kLow},
                                                  {"normal", client::Priority::kNormal},
                                                  {"high", client::Priority::kHigh}}));
}

void AddGenerate(CLI::App* app, GenerateOptions* options, bool* no_stream) {
  client::GenerateRequest& request = options->request;
  app->add_option("text", request.text, "The prompt")->required();
  AddAddress(app, &options->address, &options->access);
  app->add_option("--model", request.model,
                  "Name of the model; empty: the one that the router serves");
  app->add_option("--max-tokens", request.max_tokens, "Largest number of tokens to generate");
  app->add_option("--min-tokens", request.min_tokens, "Smallest number of tokens to generate");
  AddSampling(app, &request.sampling);
  AddDrawing(app, &request.sampling);
  AddChoices(app, &request);
  AddStructuredOutput(app, &request);
  app->add_option("--stop", request.stop,
                  "Text that ends the answer and is not printed; may be repeated")
      ->allow_extra_args(false);  // the prompt may follow it
  app->add_flag("--ignore-eos", request.ignore_eos, "Continue after the end-of-sequence token");
  app->add_option("--request-id", request.request_id,
                  "Id of the request in all logs; empty: generated");
  AddTimeout(app, &options->timeout_ms, "Limit for the whole request");
  CLI::Option* json =
      app->add_flag("--json", options->json, "Print one JSON object instead of text");
  app->add_option("--logprobs", request.logprobs,
                  "Log probabilities, with this many of the most probable tokens, 0 to 20")
      ->needs(json);
  app->add_option("--prompt-logprobs", request.prompt_logprobs,
                  "The same for the tokens of the prompt")
      ->needs(json);
  AddPriority(app, &request.priority);
  app->add_option("--tenant", request.tenant, "Tenant, for fair shares");
  app->add_flag("--no-stream", *no_stream, "Print the text once it is complete");
}

void AddScore(CLI::App* app, ScoreOptions* options) {
  client::ScoreRequest& request = options->request;
  AddAddress(app, &options->address, &options->access);
  app->add_option("--model", request.model,
                  "Name of the model; empty: the one that the router serves");
  app->add_option("--prefix", options->prefix_file, "File with the text before every item");
  app->add_option("--items", options->items_file,
                  "File with one item per line, a JSON string or an object with \"text\" and "
                  "perhaps \"id\"; -: the standard input")
      ->required();
  app->add_option("--labels", request.labels,
                  "Texts whose log probabilities after prefix and item are printed, with commas "
                  "between them; may be repeated")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_flag("!--no-in-order", options->in_order,
                "Print results as they are ready, not in the order of the items");
  app->add_option("--request-id", request.request_id,
                  "Id of the call in all logs; empty: generated");
  AddPriority(app, &request.priority);
  app->add_option("--tenant", request.tenant, "Tenant, for fair shares");
  app->add_option("--cache-salt", request.cache_salt,
                  "Only calls with the same salt share cached prefixes");
  AddTimeout(app, &options->timeout_ms, "Limit for the whole call");
}

void AddExplain(CLI::App* app, ExplainOptions* explain) {
  CLI::Option* text =
      app->add_option("text", explain->text, "Prompt to explain; it is not sent to a worker");
  AddAddress(app, &explain->address, &explain->access);
  app->add_option("--model", explain->model,
                  "Name of the model; empty: the one that the router serves")
      ->needs(text);
  app->add_option("--cache-salt", explain->cache_salt, "Cache salt of the request")->needs(text);
  app->add_flag("--cache", explain->cache,
                "Show why less is cached than an earlier prompt would have allowed")
      ->needs(text);
  app->add_option("--tenant", explain->tenant, "Tenant of the request")->needs(text);
  app->add_option("--request-id", explain->request_id, "Show the past decisions for this request")
      ->excludes(text);
  app->add_option("--last", explain->last, "Number of past decisions to show, without a prompt")
      ->check(CLI::Range(1, 1024))
      ->excludes(text);
  app->add_flag("--json", explain->json, "Print one JSON object per line");
}

void AddPull(CLI::App* app, PullOptions* pull) {
  app->add_option("model", pull->model, "Id of the model on the Hugging Face Hub, ORG/NAME")
      ->required();
  app->add_option("--revision", pull->revision, "Branch, tag or commit");
  app->add_option("--include", pull->include,
                  "Pattern of files to download, such as '*.json', instead of those that Baton "
                  "reads; may be repeated")
      ->allow_extra_args(false);
  app->add_flag("--json", pull->json, "Print one JSON object instead of the directory");
}

void AddHealth(CLI::App* app, HealthOptions* health) {
  AddAddress(app, &health->address, &health->access);
  app->add_option("--service", health->service,
                  "Service whose readiness is asked for, such as baton.v1.InferenceService; empty: "
                  "whether the process lives");
  app->add_option("--timeout-ms", health->timeout_ms, "Limit for the call")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}));
}

// The commands of admin.h, each with its options: CLI11 applies the environment to all of them.
void AddAdmin(CLI::App* app, std::map<std::string, AdminOptions>* admin) {
  const std::pair<std::string, std::string> commands[] = {
      {"workers", "List the workers and their states"},
      {"loads", "Show the work of each worker and of the router"},
      {"drain", "Let a worker finish its requests and take no new ones; its process stays"},
      {"undrain", "Let a drained worker take requests again"},
      {"flush-cache", "Drop the cached prefixes that no request uses"},
      {"cancel", "Cancel running requests by their id"}};
  for (const auto& [name, description] : commands) {
    CLI::App* command = app->add_subcommand(name, description);
    AdminOptions& options = (*admin)[name];
    if (name == "drain" || name == "undrain") {
      command->add_option("worker", options.worker, "Address or id of the worker")->required();
    } else if (name == "flush-cache") {
      command->add_option("worker", options.worker,
                          "Address or id of a worker; empty: all workers");
    } else if (name == "cancel") {
      command->add_option("id", options.request_id, "Id of the requests")->required();
      command->add_option("--tenant", options.tenant, "Tenant of the requests");
    }
    if (name == "drain") {
      command->add_flag("--wait", options.wait, "Return when the worker is drained");
    }
    AddAddress(command, &options.address, &options.access);
    command->add_option("--timeout-ms", options.timeout_ms, "Limit for the call")
        ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}));
    command->add_flag("--json", options.json, "Print one JSON object instead of text");
  }
}

void AddTop(CLI::App* app, TopOptions* top) {
  AddAddress(app, &top->address, &top->access);
  app->add_option("--interval", top->interval_s, "Seconds between two frames")
      ->check(CLI::Range(0.1, 3600.0));
  CLI::Option* count =
      app->add_option("-n,--count", top->frames, "Number of frames; 0: until q or Ctrl-C")
          ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  app->add_flag("--once", top->once, "Print one frame and leave the screen as it is")
      ->excludes(count);
  app->add_flag("--json", top->json, "Print one JSON object per frame");
  AddTimeout(app, &top->timeout_ms, "Limit for each call");
}

struct BenchFlags {
  ServeFlags serve;
  JudgeFlags judge;
  AgentFlags agent;
};

void AddBench(CLI::App* app, Commands* commands, BenchFlags* flags) {
  app->require_subcommand(1);
  AddServe(
      app->add_subcommand("serve", "Any prompts: the flags and the report of `vllm bench serve`"),
      &commands->bench, &flags->serve);
  AddJudge(app->add_subcommand(
               "judge", "Many items behind one long prefix, with verdicts of one or many tokens"),
           &commands->judge, &flags->judge);
  AddAgent(app->add_subcommand(
               "agent", "Long conversations behind one long prefix, each turn after the last"),
           &commands->agent, &flags->agent);
}

void FinishBench(const CLI::App& app, const BenchFlags& flags, Commands* commands) {
  const CLI::App& chosen = *app.get_subcommands().front();
  commands->benchmark = chosen.get_name();
  if (commands->benchmark == "serve") FinishServe(chosen, flags.serve, &commands->bench);
  if (commands->benchmark == "judge") FinishJudge(flags.judge, &commands->judge);
  if (commands->benchmark == "agent") FinishAgent(chosen, flags.agent, &commands->agent);
}

// What CLI11 cannot check of one flag.
void CheckCommand(const Commands& commands, const RouterFlags& router) {
  if (commands.chosen == "up") {
    const absl::Status found = FindModel(commands.up.cluster.model_dir).status();
    if (!found.ok()) throw CLI::ValidationError("--model", std::string(found.message()));
    // The router starts last, after the workers have loaded the model.
    const absl::Status tls = security::CheckTls(router.tls);
    if (!tls.ok()) throw CLI::ValidationError("--tls-cert", std::string(tls.message()));
  }
  if (commands.chosen == "top" && std::isnan(commands.top.interval_s)) {
    throw CLI::ValidationError("--interval", "not a number");
  }
}

// The flags of the router that `up` starts.
std::vector<std::string> FlagsOf(const RouterFlags& router) {
  std::vector<std::string> flags;
  for (const auto& [flag, path] :
       {std::pair("--api-keys", router.api_keys), std::pair("--tls-cert", router.tls.cert),
        std::pair("--tls-key", router.tls.key),
        std::pair("--tls-client-ca", router.tls.client_ca)}) {
    if (!path.empty()) flags.insert(flags.end(), {flag, path});
  }
  if (router.insecure) flags.push_back("--insecure");
  return flags;
}

}  // namespace

ParsedCommands ParseCommands(int argc, const char* const* argv) {
  ParsedCommands parsed;
  Commands& commands = parsed.commands;
  RouterFlags router;
  WorkerFlags worker;
  bool no_stream = false;
  CLI::App app("Baton: serves large language models on a cluster of small GPUs");
  app.set_version_flag("--version", VersionLine("baton"));
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();  // --help shows defaults
  CLI::App* up = app.add_subcommand("up", "Start a cluster on this machine");
  CLI::App* generate = app.add_subcommand("generate", "Send one prompt and print the answer");
  CLI::App* bench = app.add_subcommand(
      "bench", "Send many requests to a server and print throughput and latency");
  AddUp(up, &commands.up, &router, &worker);
  AddGenerate(generate, &commands.generate, &no_stream);
  AddChat(app.add_subcommand("chat", "Hold a conversation with the model"), &commands.chat);
  BenchFlags bench_flags;
  AddBench(bench, &commands, &bench_flags);
  AddExplain(
      app.add_subcommand("explain", "Show which workers the router chooses for prompts, and why"),
      &commands.explain);
  AddKeys(app.add_subcommand("keys", "Make API keys for a router"), &commands.keys);
  PlanFlags plan;
  AddPlan(
      app.add_subcommand(
          "plan", "Report memory, sequences that fit and best-case latency of a model on a GPU"),
      &commands.plan, &plan);
  AddPull(
      app.add_subcommand("pull", "Download a model from the Hugging Face Hub into the local cache"),
      &commands.pull);
  AddScore(app.add_subcommand("score", "Print how likely labels are after each line of a file"),
           &commands.score);
  AddHealth(app.add_subcommand("health", "Ask a router or a worker whether it lives or is ready"),
            &commands.health);
  CLI::App* prefix = app.add_subcommand(
      "prefix", "Keep prefixes in the caches of prefill workers; find what makes them change");
  PrefixCommands prefixes;
  AddPrefix(prefix, &prefixes);
  std::map<std::string, AdminOptions> admin;
  AddAdmin(&app, &admin);
  AddTop(app.add_subcommand(
             "top", "Show workers, tokens per second, latencies and refusals, again and again"),
         &commands.top);
  std::string shell;
  app.add_subcommand("completion", "Print a script that completes commands and flags in a shell")
      ->add_option("shell", shell, "The shell")
      ->required()
      ->check(CLI::IsMember(kShells));
  // CLI11 reports errors as exceptions.
  try {
    app.parse(argc, argv);
    commands.chosen = app.get_subcommands().front()->get_name();
    commands.is_admin = admin.count(commands.chosen) > 0;
    if (commands.is_admin) commands.admin = admin[commands.chosen];
    if (commands.chosen == "prefix") {
      commands.prefix_command = prefix->get_subcommands().front()->get_name();
      commands.prefix = prefixes[commands.prefix_command];
    }
    CheckCommand(commands, router);
    if (commands.chosen == "bench") FinishBench(*bench, bench_flags, &commands);
    if (commands.chosen == "plan") FinishPlan(plan, &commands.plan);
  } catch (const CLI::ParseError& error) {
    parsed.exit_now = true;
    parsed.exit_code = ExitCodeOfParse(app.exit(error));
    return parsed;
  }
  if (commands.chosen == "completion") commands.completion = CompletionScript(app, shell);
  commands.pull.hub = HubOptionsFromEnvironment();
  commands.pull.progress = commands.score.progress = isatty(STDERR_FILENO) == 1;
  commands.generate.stream = !no_stream;
  commands.up.cluster.router_flags = FlagsOf(router);
  commands.up.cluster.router_tls = router.tls.on();
  std::vector<std::string>& worker_flags = commands.up.cluster.worker_flags;
  for (const auto& [flag, value] : worker.values) {
    if (up->count(flag) == 0) continue;  // an empty value may be meant
    worker_flags.push_back(flag);
    worker_flags.push_back(value);
  }
  for (const auto& [flag, value] : worker.prefill_values) {
    if (up->count(flag) == 0) continue;
    commands.up.cluster.prefill_flags.push_back(flag);
    commands.up.cluster.prefill_flags.push_back(value);
  }
  if (worker.kv_fetch) {
    worker_flags.push_back("--kv-fetch");
    commands.up.cluster.router_flags.push_back("--kv-fetch");
  }
  if (worker.kv_write_back) commands.up.cluster.decode_flags.push_back("--kv-write-back");
  if (worker.no_deterministic) worker_flags.push_back("--no-deterministic");
  if (worker.no_prefix_caching) worker_flags.push_back("--no-enable-prefix-caching");
  return parsed;
}

}  // namespace baton::cli
