#include "cli/commands.h"

#include <CLI/CLI.hpp>
#include <map>

#include "absl/strings/str_cat.h"

namespace baton::cli {
namespace {

constexpr int kMaxWorkers = 64;

// Flags that `up` hands to the workers as they are: ranges are theirs to check where they know
// more.
struct WorkerFlags {
  std::map<std::string, std::string> values;
  bool no_prefix_caching = false;
};

void AddUp(CLI::App* app, UpOptions* up, WorkerFlags* worker) {
  app->add_option("--model", up->model_dir, "Hugging Face directory of the model")
      ->required()
      ->check(CLI::ExistingDirectory);
  app->add_option("--prefill", up->prefill_workers, "Prefill workers")
      ->check(CLI::Range(1, kMaxWorkers));
  app->add_option("--decode", up->decode_workers, "Decode workers")
      ->check(CLI::Range(1, kMaxWorkers));
  app->add_option("--listen", up->listen, "host:port of the router");
  app->add_option("--metrics-listen", up->metrics_listen, "host:port of the router's /metrics");
  app->add_option("--log-dir", up->log_dir, "Also write one log file per process here");
  app->add_option("--ready-file", up->ready_file,
                  "Write the router's addresses here once the cluster is ready");
  app->add_option("--log-level", up->log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  const CLI::Range count(int64_t{1}, int64_t{1} << 40);
  for (const char* flag : {"--block-size", "--num-blocks", "--max-model-len", "--max-num-seqs",
                           "--max-num-batched-tokens", "--threads"}) {
    app->add_option(flag, worker->values[flag], "For every worker")->check(count);
  }
  app->add_option("--kv-cache-memory", worker->values["--kv-cache-memory"], "For every worker");
  app->add_option("--dtype", worker->values["--dtype"], "For every worker");
  app->add_flag("--no-enable-prefix-caching,!--enable-prefix-caching", worker->no_prefix_caching,
                "For every worker");
}

void AddGenerate(CLI::App* app, GenerateOptions* options, bool* no_stream) {
  client::GenerateRequest& request = options->request;
  app->add_option("text", request.text, "The prompt")->required();
  app->add_option("--address", options->address, "host:port of the router");
  app->add_option("--model", request.model, "Which model, if the router serves several");
  app->add_option("--max-tokens", request.max_tokens, "At most this many");
  app->add_option("--temperature", request.sampling.temperature, "0 to 2; 0 is greedy");
  app->add_option("--top-p", request.sampling.top_p, "Above 0, at most 1");
  app->add_option("--top-k", request.sampling.top_k, "-1 and 0: no limit");
  app->add_option("--min-p", request.sampling.min_p, "0 to 1");
  app->add_option("--seed", request.sampling.seed, "Equal seeds give equal tokens");
  app->add_option("--stop", request.stop, "Stop before this text; may be repeated")
      ->allow_extra_args(false);  // the prompt may follow it
  app->add_flag("--ignore-eos", request.ignore_eos, "Do not stop at the end-of-sequence token");
  app->add_option("--request-id", request.request_id, "For logs on every hop");
  app->add_option("--timeout-ms", options->timeout_ms, "Of the whole request")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}));
  app->add_flag("--json", options->json, "One JSON object instead of text");
  app->add_flag("--no-stream", *no_stream, "Print the text at the end, in one piece");
}

void AddBench(CLI::App* app, BenchOptions* bench) {
  const CLI::Range count(1, 1 << 24);
  app->add_option("--address", bench->address, "host:port of the router");
  app->add_option("--num-prompts", bench->num_prompts, "Requests in all")->check(count);
  app->add_option("--concurrency,--max-concurrency", bench->concurrency, "Requests at a time")
      ->check(CLI::Range(1, 1024));
  app->add_option("--prompt-tokens", bench->prompt_tokens, "Of each prompt, the prefix included")
      ->check(count);
  app->add_option("--shared-prefix-tokens", bench->shared_prefix_tokens, "Equal in all prompts")
      ->check(CLI::Range(0, 1 << 24));
  app->add_option("--max-tokens", bench->max_tokens, "Generated for each prompt")->check(count);
  app->add_option("--seed", bench->seed, "Of the prompts and of sampling");
  app->add_flag("--ignore-eos,!--no-ignore-eos", bench->ignore_eos,
                "Generate --max-tokens whatever the model says (default)");
  app->add_option("--save-result", bench->save_result, "Also write the figures here, as JSON");
}

void CheckTogether(const Commands& commands) {
  if (commands.chosen == "bench" &&
      commands.bench.shared_prefix_tokens > commands.bench.prompt_tokens) {
    throw CLI::ValidationError("--shared-prefix-tokens", "more than --prompt-tokens");
  }
}

}  // namespace

ParsedCommands ParseCommands(int argc, const char* const* argv) {
  ParsedCommands parsed;
  Commands& commands = parsed.commands;
  WorkerFlags worker;
  bool no_stream = false;
  CLI::App app("Baton: large language models on a cluster of small GPUs");
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();  // --help shows defaults
  CLI::App* up = app.add_subcommand("up", "Start a cluster on this machine");
  CLI::App* generate = app.add_subcommand("generate", "Send one prompt");
  CLI::App* bench = app.add_subcommand("bench", "Drive a load and print its figures");
  AddUp(up, &commands.up, &worker);
  AddGenerate(generate, &commands.generate, &no_stream);
  AddBench(bench, &commands.bench);
  // CLI11 speaks in exceptions; they end here.
  try {
    app.parse(argc, argv);
    commands.chosen = app.get_subcommands().front()->get_name();
    CheckTogether(commands);
  } catch (const CLI::ParseError& error) {
    parsed.exit_now = true;
    parsed.exit_code = app.exit(error);
    return parsed;
  }
  commands.generate.stream = !no_stream;
  for (const auto& [flag, value] : worker.values) {
    if (value.empty()) continue;
    commands.up.worker_flags.push_back(flag);
    commands.up.worker_flags.push_back(value);
  }
  if (worker.no_prefix_caching) commands.up.worker_flags.push_back("--no-enable-prefix-caching");
  return parsed;
}

}  // namespace baton::cli
