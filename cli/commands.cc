#include "cli/commands.h"

#include <CLI/CLI.hpp>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/plan_flags.h"

namespace baton::cli {
namespace {

constexpr int kMaxWorkers = 64;

// Flags that `up` hands to the workers as they are: ranges are theirs to check where they know
// more.
struct WorkerFlags {
  std::map<std::string, std::string> values;
  bool no_prefix_caching = false;
  bool deterministic = false;
};

void AddUp(CLI::App* app, UpOptions* up, WorkerFlags* worker) {
  app->add_option("--model", up->cluster.model_dir, "Hugging Face directory of the model")
      ->required()
      ->check(CLI::ExistingDirectory);
  app->add_option("--prefill", up->cluster.prefill_workers, "Prefill workers")
      ->check(CLI::Range(1, kMaxWorkers));
  app->add_option("--decode", up->cluster.decode_workers, "Decode workers")
      ->check(CLI::Range(1, kMaxWorkers));
  app->add_option("--listen", up->cluster.listen, "host:port of the router");
  app->add_option("--metrics-listen", up->cluster.metrics_listen,
                  "host:port of the router's /metrics");
  app->add_option("--log-dir", up->cluster.log_dir, "Also write one log file per process here");
  app->add_option("--ready-file", up->ready_file,
                  "Write the router's addresses here once the cluster is ready");
  app->add_option("--log-level", up->cluster.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  const CLI::Range count(int64_t{1}, int64_t{1} << 40);
  for (const char* flag : {"--block-size", "--num-blocks", "--max-model-len", "--max-num-seqs",
                           "--max-num-batched-tokens", "--threads"}) {
    app->add_option(flag, worker->values[flag], "For every worker")->check(count);
  }
  for (const char* flag : {"--kv-cache-memory", "--dtype", "--device", "--gpu-memory-utilization",
                           "--cublas-algorithms"}) {
    app->add_option(flag, worker->values[flag], "For every worker");
  }
  app->add_flag("--deterministic", worker->deterministic, "For every worker");
  app->add_flag("--no-enable-prefix-caching,!--enable-prefix-caching", worker->no_prefix_caching,
                "For every worker");
}

// "ID=BIAS", each id once.
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
      throw CLI::ValidationError("--logit-bias", absl::StrCat("id ", id, " is given twice"));
    }
  }
}

void AddSampling(CLI::App* app, client::GenerateRequest* request) {
  client::Sampling& sampling = request->sampling;
  app->add_option("--temperature", sampling.temperature, "0 to 2; 0 is greedy");
  app->add_option("--top-p", sampling.top_p, "Above 0, at most 1");
  app->add_option("--top-k", sampling.top_k, "-1 and 0: no limit");
  app->add_option("--min-p", sampling.min_p, "0 to 1");
  app->add_option("--seed", sampling.seed, "Equal seeds give equal tokens");
  app->add_option("--repetition-penalty", sampling.repetition_penalty,
                  "Above 0, at most 2: against tokens of prompt and answer; 1 is none");
  app->add_option("--frequency-penalty", sampling.frequency_penalty,
                  "-2 to 2: for each time the answer has the token");
  app->add_option("--presence-penalty", sampling.presence_penalty,
                  "-2 to 2: for tokens that the answer has");
  app->add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&sampling](const std::vector<std::string>& flags) {
           ParseLogitBias(flags, &sampling.logit_bias);
         },
         "ID=BIAS, -100 to 100, added to that token's logit; may be repeated")
      ->allow_extra_args(false);
  app->add_option("-n,--n", request->n, "Answers to draw, 1 to 16");
  CLI::Option* beams = app->add_option("--beam-width", request->beam_width,
                                       "Beam search instead of sampling, 2 to 16");
  app->add_option("--length-penalty", request->length_penalty,
                  "A beam's log probability is divided by its length to this power")
      ->needs(beams);
}

void AddGenerate(CLI::App* app, GenerateOptions* options, bool* no_stream) {
  client::GenerateRequest& request = options->request;
  app->add_option("text", request.text, "The prompt")->required();
  app->add_option("--address", options->address, "host:port of the router");
  app->add_option("--model", request.model, "Which model, if the router serves several");
  app->add_option("--max-tokens", request.max_tokens, "At most this many");
  app->add_option("--min-tokens", request.min_tokens, "No stop before so many");
  AddSampling(app, &request);
  app->add_option("--stop", request.stop, "Stop before this text; may be repeated")
      ->allow_extra_args(false);  // the prompt may follow it
  app->add_flag("--ignore-eos", request.ignore_eos, "Do not stop at the end-of-sequence token");
  app->add_option("--request-id", request.request_id, "For logs on every hop");
  app->add_option("--timeout-ms", options->timeout_ms, "Of the whole request")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}));
  CLI::Option* json = app->add_flag("--json", options->json, "One JSON object instead of text");
  app->add_option("--logprobs", request.logprobs,
                  "Log probabilities beside so many of the most probable tokens, 0 to 20")
      ->needs(json);
  app->add_option("--prompt-logprobs", request.prompt_logprobs, "The same of the prompt's tokens")
      ->needs(json);
  app->add_option("--priority", request.priority, "low, normal or high")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, client::Priority>{{"low", client::Priority::kLow},
                                                  {"normal", client::Priority::kNormal},
                                                  {"high", client::Priority::kHigh}}));
  app->add_option("--tenant", request.tenant, "For fair shares and limits");
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

void AddExplain(CLI::App* app, ExplainOptions* explain) {
  CLI::Option* text =
      app->add_option("text", explain->text, "A prompt: where would it go? Nothing is sent");
  app->add_option("--address", explain->address, "host:port of the router");
  app->add_option("--model", explain->model, "Which model, if the router serves several")
      ->needs(text);
  app->add_option("--cache-salt", explain->cache_salt, "As in the request")->needs(text);
  app->add_option("--request-id", explain->request_id, "Where did this request go?")
      ->excludes(text);
  app->add_option("--last", explain->last, "Without a prompt: so many of the last decisions")
      ->check(CLI::Range(1, 1024))
      ->excludes(text);
  app->add_flag("--json", explain->json, "One JSON object a line");
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
  AddExplain(app.add_subcommand("explain", "Say where the router sends prompts, and why"),
             &commands.explain);
  PlanFlags plan;
  AddPlan(app.add_subcommand("plan", "Say what a model takes of a GPU, and its floors there"),
          &commands.plan, &plan);
  // CLI11 speaks in exceptions; they end here.
  try {
    app.parse(argc, argv);
    commands.chosen = app.get_subcommands().front()->get_name();
    CheckTogether(commands);
    if (commands.chosen == "plan") FinishPlan(plan, &commands.plan);
  } catch (const CLI::ParseError& error) {
    parsed.exit_now = true;
    parsed.exit_code = app.exit(error);
    return parsed;
  }
  commands.generate.stream = !no_stream;
  std::vector<std::string>& worker_flags = commands.up.cluster.worker_flags;
  for (const auto& [flag, value] : worker.values) {
    if (up->count(flag) == 0) continue;  // "" is a value, too
    worker_flags.push_back(flag);
    worker_flags.push_back(value);
  }
  if (worker.deterministic) worker_flags.push_back("--deterministic");
  if (worker.no_prefix_caching) worker_flags.push_back("--no-enable-prefix-caching");
  return parsed;
}

}  // namespace baton::cli
