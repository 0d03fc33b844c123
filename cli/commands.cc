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
#include "cli/bench/flags.h"
#include "cli/bench/workload_flags.h"
#include "cli/completion.h"
#include "cli/plan_flags.h"
#include "cli/shared_flags.h"
#include "cli/up_flags.h"
#include "common/base/command_line.h"
#include "common/base/utf8.h"
#include "common/base/version.h"

namespace baton::cli {
namespace {

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
  return std::string(WithoutByteOrderMark(text));
}

void AddStructuredOutput(CLI::App* app, client::GenerateRequest* request) {
  CLI::Option* object =
      app->add_flag("--json-object", request->json_object, "The answer is a JSON object");
  CLI::Option* schema = app->add_option_function<std::string>(
      "--json-schema",
      [request](const std::string& path) { request->json_schema = ReadSchema(path); },
      "FILE: the answer is JSON that is valid against the JSON schema in it");
  app->add_flag("--any-whitespace", request->any_whitespace,
                "Any white space may stand between tokens of JSON, not 16 characters at most");
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
  app->add_flag_callback(
      "--no-speculation", [&request] { request.speculation = false; },
      "Draft no tokens for this request; the answer is the same");
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

}  // namespace

ParsedCommands ParseCommands(int argc, const char* const* argv) {
  ParsedCommands parsed;
  Commands& commands = parsed.commands;
  UpFlags up_flags;
  bool no_stream = false;
  CLI::App app(
      "Baton serves large language models on a cluster of small machines. It is for teams that "
      "serve "
      "open models on several CPU machines or small GPUs over ordinary networks, and need answers "
      "that repeat exactly and survive lost machines.");
  app.set_version_flag("--version", VersionLine("baton"));
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();  // --help shows defaults
  CLI::App* up = app.add_subcommand("up", "Start a cluster on this machine");
  CLI::App* generate = app.add_subcommand("generate", "Send one prompt and print the answer");
  CLI::App* bench = app.add_subcommand(
      "bench", "Send many requests to a server and print throughput and latency");
  AddUp(up, &commands.up, &up_flags);
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
    if (commands.chosen == "top" && std::isnan(commands.top.interval_s)) {
      throw CLI::ValidationError("--interval", "not a number");
    }
    if (commands.chosen == "up") FinishUp(*up, up_flags, &commands.up);
    if (commands.chosen == "bench") FinishBench(*bench, bench_flags, &commands);
    if (commands.chosen == "plan") FinishPlan(plan, &commands.plan);
  } catch (const CLI::ParseError& error) {
    parsed.exit_now = true;
    parsed.exit_code = ReportParseError(app, error);
    return parsed;
  }
  if (commands.chosen == "completion") commands.completion = CompletionScript(app, shell);
  commands.pull.hub = HubOptionsFromEnvironment();
  commands.pull.progress = commands.score.progress = isatty(STDERR_FILENO) == 1;
  commands.generate.stream = !no_stream;
  return parsed;
}

}  // namespace baton::cli
