#include "cli/bench/workload_flags.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <random>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/shared_flags.h"

namespace baton::cli {
namespace {

const auto kPromptTokens = CLI::Range(1, 1 << 24);
const auto kCount = CLI::Range(1, 1 << 20);

void AddWorkload(CLI::App* app, const std::string& plot, TargetOptions* target, int* vocab_size,
                 OutputOptions* output, WorkloadFlags* flags) {
  target->address = "127.0.0.1:50051";
  AddAddress(app, &target->address, &target->access);
  app->add_option("--model", target->model,
                  "Name of the model; empty: the first that the router serves");
  app->add_option("--vocab-size", *vocab_size,
                  "Random token ids are below it; 0: as the router reports")
      ->check(CLI::Range(0, 1 << 24));
  app->add_option("--seed", flags->seed,
                  "Seed of lengths and tokens; absent: a new one. The prefixes of a seed that a "
                  "server has seen may still be cached");
  app->add_option("--metric-percentiles", flags->metric_percentiles,
                  "Percentiles to report, e.g. 50,90,99.9");
  AddOutput(app, plot, output, &flags->output);
}

// The parts of `text`, each one of `known` and given once.
std::vector<std::string> ParseChoices(const std::string& flag, const std::string& text,
                                      const std::vector<std::string>& known) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    if (!absl::c_linear_search(known, part) || absl::c_count(parts, part) > 1) {
      throw CLI::ValidationError(flag, absl::StrCat("\"", part, "\": expected some of ",
                                                    absl::StrJoin(known, ","), ", each once"));
    }
  }
  return parts;
}

uint64_t SeedOf(const WorkloadFlags& flags) { return flags.seed.value_or(std::random_device{}()); }

}  // namespace

void AddJudge(CLI::App* app, JudgeOptions* judge, JudgeFlags* flags) {
  AddWorkload(app, "items a second by round, distributions of latencies", &judge->target,
              &judge->vocab_size, &judge->output, &flags->workload);
  app->add_option("--peer", judge->peer,
                  "URL of a server of OpenAI's API, http://host:port, with the same model: it gets "
                  "the same items in turn");
  app->add_option("--peer-model", judge->peer_model,
                  "Name of the peer's model; empty: the first that the peer lists");
  app->add_option("--shared-tokens", judge->shape.shared_tokens,
                  "Tokens of a rubric, which all warm items of a round share")
      ->check(kPromptTokens);
  app->add_option("--own-tokens", judge->shape.own_tokens, "Tokens of an item, behind the rubric")
      ->check(kPromptTokens);
  app->add_flag("--texts,!--token-ids", judge->shape.texts,
                "Prompts are texts, or token ids; a peer gets token ids");
  app->add_option("--verdicts", flags->verdicts,
                  "Which verdicts: score (Score with two labels), token (one token), text "
                  "(--verdict-tokens); empty: all, but score with --token-ids");
  app->add_option("--verdict-tokens", judge->verdict_tokens, "Tokens of the verdict text")
      ->check(kPromptTokens);
  app->add_option("--items", judge->items, "Warm items of a round and verdict")->check(kCount);
  app->add_option("--cold-items", judge->cold_items,
                  "Cold items of a round and verdict, one at a time, each behind a new rubric")
      ->check(kCount);
  app->add_option("--rounds", judge->rounds, "Rounds, each with new rubrics and items")
      ->check(kCount);
  app->add_option("--concurrency", judge->concurrency, "Warm items that run at once")
      ->check(kCount);
}

void FinishJudge(const JudgeFlags& flags, JudgeOptions* judge) {
  judge->seed = SeedOf(flags.workload);
  judge->percentiles = ParsePercentiles(flags.workload.metric_percentiles);
  if (!flags.verdicts.empty()) {
    judge->verdicts = ParseChoices("--verdicts", flags.verdicts, kJudgeVerdicts);
  } else if (!judge->shape.texts) {
    judge->verdicts = {"token", "text"};
  }
  if (!judge->shape.texts && absl::c_linear_search(judge->verdicts, "score")) {
    throw CLI::ValidationError("--verdicts", "score takes texts: expected without --token-ids");
  }
  if (!judge->peer.empty() && !absl::StartsWith(judge->peer, "http://") &&
      !absl::StartsWith(judge->peer, "https://")) {
    throw CLI::ValidationError("--peer", "expected http://host:port");
  }
  FinishOutput(flags.workload.output, &judge->output);
}

void AddAgent(CLI::App* app, AgentOptions* agent, AgentFlags* flags) {
  ConversationOptions& options = agent->conversations;
  AddWorkload(app, "time to first token and hit rate by turn", &agent->target, &agent->vocab_size,
              &agent->output, &flags->workload);
  app->add_option("--conversations", options.conversations,
                  "Number of conversations; with --trace, at most")
      ->check(kCount);
  app->add_option("--turns", options.turns, "Turns of a conversation; with --trace, at most")
      ->check(kCount);
  app->add_option("--request-rate", options.rate,
                  "New conversations a second, as a Poisson process; inf: all at once, or with "
                  "--trace at its times");
  app->add_option("--max-concurrency", agent->max_concurrency,
                  "Conversations that run at once; more begin later")
      ->check(CLI::Range(1, 4096));
  app->add_option("--retention", flags->retention,
                  "What caches are asked to retain: off, tools (the shared tokens) or prompts; of "
                  "several, e.g. off,tools, all conversations run once for each");
  app->add_option("--retention-priority", agent->retention_priority, "Priority of what is retained")
      ->check(CLI::Range(1, 100));
  app->add_option("--retention-ttl", flags->retention_ttl_s,
                  "Seconds after the last use for which it is retained")
      ->check(CLI::Range(0.001, 604'800.0));
  CLI::Option* trace = app->add_option(
      "--trace", options.trace,
      "File of conversations instead of random ones: lines as of bench serve's dataset trace");
  for (CLI::Option* option :
       {app->add_option("--tools-tokens", options.tools_tokens,
                        "Tokens at the beginning of all conversations")
            ->check(CLI::Range(0, 1 << 24)),
        app->add_option("--user-tokens", options.user_tokens, "New tokens of a turn")
            ->check(kPromptTokens),
        app->add_option("--answer-tokens", options.answer_tokens, "Tokens of an answer")
            ->check(kPromptTokens),
        app->add_option("--range-ratio", options.range_ratio,
                        "Lengths of turns and answers are uniform within length * (1 +- ratio)")
            ->check(CLI::Range(0.0, 0.999999)),
        app->add_option("--think-time", options.think_s,
                        "Mean seconds from an answer to the next turn; exponential")
            ->check(CLI::Range(0.0, 86'400.0))}) {
    option->excludes(trace);
  }
  for (CLI::Option* option :
       {app->add_option("--trace-sec-multiplier", options.trace_seconds,
                        "Seconds of a unit of timestamp")
            ->check(CLI::Range(1e-9, 1e9)),
        app->add_option("--trace-chunk-hash-size", options.trace_block_tokens,
                        "Tokens of an entry of hash_ids")
            ->check(CLI::Range(1, 1 << 20)),
        app->add_option("--trace-length-divisor", options.length_divisor,
                        "All lengths are divided by it, for models of a short context")
            ->check(kCount),
        app->add_option("--min-turns", options.min_turns,
                        "Conversations of fewer turns are left out")
            ->check(kCount)}) {
    option->needs(trace);
  }
}

void FinishAgent(const CLI::App& app, const AgentFlags& flags, AgentOptions* agent) {
  ConversationOptions& options = agent->conversations;
  options.seed = SeedOf(flags.workload);
  agent->percentiles = ParsePercentiles(flags.workload.metric_percentiles);
  agent->retentions = ParseChoices("--retention", flags.retention, kAgentRetentions);
  agent->retention_ttl_ms = std::llround(flags.retention_ttl_s * 1000);
  if (absl::c_linear_search(agent->retentions, "tools") &&
      (!options.trace.empty() || options.tools_tokens == 0)) {
    throw CLI::ValidationError("--retention",
                               "tools: expected --tools-tokens above 0, and no --trace");
  }
  if (!(options.rate > 0)) throw CLI::ValidationError("--request-rate", "expected above 0");
  if (!options.trace.empty() && app.count("--turns") == 0) {
    options.turns = std::numeric_limits<int>::max();
  }
  if (options.turns < options.min_turns && !options.trace.empty()) {
    throw CLI::ValidationError("--turns", "expected at least --min-turns");
  }
  FinishOutput(flags.workload.output, &agent->output);
}

}  // namespace baton::cli
