// What does structured output cost other requests, and the constrained one? Times between the
// tokens of streams on one decode worker, in turns:
//
//   streams alone
//   + schemas    beside a client that sends new schemas, one after another
//   + requests   beside a client that sends as many such requests, of one schema that is compiled
//   constrained  alone, each with a schema that is compiled
//
//   structured_output_bench --model DIR [--streams 2] [--rounds 5] [--phase-s 4]
//
// The goal: + schemas <= 1.05 x streams alone.
//
// And what do tool calls cost the requests that have them? Answers of the same number of tokens, as
// many at once as there are streams, in turns:
//
//   unconstrained
//   strict tools  a text in which a call may begin at every token (tool_choice auto)
//   forced call   a call of a named tool
//
//   structured_output_bench --model DIR --calls [--answer-tokens 128]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "benchmarks/serving/cluster_flags.h"
#include "benchmarks/serving/load_report.h"
#include "benchmarks/serving/traffic.h"
#include "common/chat/tool_call_syntax.h"

namespace baton::benchmarks {
namespace {

constexpr int kPromptTokens = 32;
// More than a stream has time for.
constexpr char kEndless[] = R"({"type": "array", "items": {"type": "string"}, "minItems": 4096})";

struct Options {
  ClusterOptions cluster;
  int streams = 2, stream_tokens = 2000;
  int properties = 12;
  int rounds = 5;
  bool calls = false;
  int answer_tokens = 128;
  double phase_s = 4;
  uint64_t seed = 1;
};

struct Condition {
  const char* name;
  enum class Client { kNone, kNewSchemas, kKnownSchema } client;
  bool constrained;
  // One of each round.
  std::vector<double> p50_ms = {}, p99_ms = {}, client_ttft_ms = {};
  int client_requests = 0;
};

LoadRequest Constrained(const std::vector<int32_t>& prompt, const std::string& schema, int tokens) {
  LoadRequest load = MakeRequest(prompt, tokens);
  load.request.mutable_stop()->clear_ignore_eos();
  load.request.mutable_structured_output()->set_json_schema(schema);
  return load;
}

// Of names that no other has, so no worker has compiled it.
std::string NewSchema(int properties, Random* random) {
  const std::string name = absl::StrCat("p", random->Next(), "_");
  std::string schema = R"({"type": "object", "additionalProperties": false, "properties": {)";
  for (int i = 0; i < properties; ++i) {
    absl::StrAppend(&schema, i > 0 ? ", \"" : "\"", name, i,
                    R"(": {"type": "string", "pattern": "[a-z]{1,40}[0-9]{0,9}"})");
  }
  return absl::StrCat(schema, "}}");
}

// Sends requests for one token each until `end_s`, `interval_s` apart or, if that is 0, each when
// the one before has ended. Without `known`, each has a new schema. Returns the times to the first
// token.
std::vector<double> RunClient(const Options& options, const std::optional<std::string>& known,
                              double interval_s, double end_s, int vocab_size, Random* random,
                              LoadGenerator* generator) {
  const std::vector<int32_t> prompt = random->Tokens(kPromptTokens, vocab_size);
  std::vector<double> ttft_ms;
  for (double due_s = NowSeconds(); due_s < end_s;
       due_s = std::max(due_s + interval_s, NowSeconds())) {
    absl::SleepFor(absl::Seconds(due_s - NowSeconds()));
    const std::string schema = known ? *known : NewSchema(options.properties, random);
    const Outcome outcome = generator->SendAndWait(Constrained(prompt, schema, 1));
    if (!outcome.status.ok()) Die(outcome.status);
    ttft_ms.push_back(outcome.ttft_s() * 1e3);
  }
  return ttft_ms;
}

void RunPhase(const Options& options, const std::string& known_schema, double interval_s,
              int vocab_size, uint64_t seed, LoadGenerator* generator, Condition* condition) {
  const double end_s = NowSeconds() + options.phase_s;
  std::vector<double> ttft_ms;
  std::thread client([&] {
    if (condition->client == Condition::Client::kNone) return;
    Random random(seed);
    const bool known = condition->client == Condition::Client::kKnownSchema;
    ttft_ms = RunClient(options, known ? std::optional(known_schema) : std::nullopt, interval_s,
                        end_s, vocab_size, &random, generator);
  });
  Random random(seed + 1);
  std::vector<LoadRequest> streams;
  for (int i = 0; i < options.streams; ++i) {
    const std::vector<int32_t> prompt = random.Tokens(kPromptTokens, vocab_size);
    streams.push_back(condition->constrained ? Constrained(prompt, kEndless, options.stream_tokens)
                                             : MakeRequest(prompt, options.stream_tokens));
    streams.back().on_tokens = [end_s](int) { return NowSeconds() < end_s; };
  }
  std::vector<double> all;
  for (const Outcome& outcome : generator->SendAll(streams)) {
    if (outcome.status.ok()) Die(absl::OutOfRangeError("a stream ended: raise --stream-tokens"));
    if (!absl::IsCancelled(outcome.status)) Die(outcome.status);
    const std::vector<double> gaps = GapsMs(outcome);
    all.insert(all.end(), gaps.begin(), gaps.end());
  }
  client.join();
  condition->p50_ms.push_back(Percentile(all, 0.5));
  condition->p99_ms.push_back(Percentile(all, 0.99));
  condition->client_requests += static_cast<int>(ttft_ms.size());
  if (!ttft_ms.empty()) condition->client_ttft_ms.push_back(Percentile(ttft_ms, 0.5));
}

// The median of each round's ratio.
double Ratio(const std::vector<double>& values, const std::vector<double>& base) {
  std::vector<double> ratios;
  for (size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / base[i]);
  return Percentile(ratios, 0.5);
}

// --- Tool calls.

struct CallsCondition {
  const char* name;
  enum class Tools { kNone, kStrict, kForced } tools;
  // Medians of the requests, one of each round.
  std::vector<double> answer_ms = {}, ttft_ms = {}, gap_ms = {};
};

// This is what the router makes of a chat, for a model that writes calls as Hermes does.
v1::StructuredOutput::ToolCalls ToolCallsOf(CallsCondition::Tools tools) {
  const chat::ToolCallSyntax& syntax = chat::SyntaxesOf(chat::ToolCallFormat::kHermes)[0];
  v1::StructuredOutput::ToolCalls calls;
  auto& tool = *calls.add_tools();
  tool.set_name("write_values");
  tool.set_parameters(absl::StrCat(R"({"type": "object", "properties": {"values": )", kEndless,
                                   R"(}, "required": ["values"], "additionalProperties": false})"));
  calls.set_opening(std::string(syntax.opening));
  calls.set_before_name(std::string(syntax.before_name));
  calls.set_before_arguments(std::string(syntax.before_arguments));
  calls.set_after_arguments(std::string(syntax.after_arguments));
  calls.set_separator(std::string(syntax.separator));
  calls.set_closing(std::string(syntax.closing));
  calls.set_single(true);
  calls.set_required(tools == CallsCondition::Tools::kForced);
  if (calls.required()) return calls;
  calls.set_trigger(std::string(syntax.trigger));
  for (const absl::string_view text : syntax.excluded) calls.add_excluded(std::string(text));
  return calls;
}

void RunAnswers(const Options& options, int vocab_size, uint64_t seed, LoadGenerator* generator,
                CallsCondition* condition) {
  Random random(seed);
  std::vector<LoadRequest> requests;
  for (int i = 0; i < options.streams; ++i) {
    requests.push_back(
        MakeRequest(random.Tokens(kPromptTokens, vocab_size), options.answer_tokens));
    if (condition->tools == CallsCondition::Tools::kNone) continue;
    v1::GenerateRequest& request = requests.back().request;
    request.mutable_stop()->clear_ignore_eos();
    *request.mutable_structured_output()->mutable_tool_calls() = ToolCallsOf(condition->tools);
  }
  std::vector<double> answer_ms, ttft_ms, gap_ms;
  for (const Outcome& outcome : generator->SendAll(requests)) {
    if (!outcome.status.ok()) Die(outcome.status);
    if (outcome.usage.generated_tokens() != options.answer_tokens) {
      Die(absl::InternalError(absl::StrCat(condition->name, ": an answer has ",
                                           outcome.usage.generated_tokens(), " tokens, ",
                                           options.answer_tokens, " expected")));
    }
    answer_ms.push_back(outcome.elapsed_s() * 1e3);
    ttft_ms.push_back(outcome.ttft_s() * 1e3);
    gap_ms.push_back(Percentile(GapsMs(outcome), 0.5));
  }
  condition->answer_ms.push_back(Percentile(answer_ms, 0.5));
  condition->ttft_ms.push_back(Percentile(ttft_ms, 0.5));
  condition->gap_ms.push_back(Percentile(gap_ms, 0.5));
}

void RunCalls(const Options& options, LoadGenerator* generator, int vocab_size) {
  using Tools = CallsCondition::Tools;
  CallsCondition conditions[] = {{"unconstrained", Tools::kNone},
                                 {"strict tools, `auto`", Tools::kStrict},
                                 {"forced call", Tools::kForced}};
  uint64_t seed = options.seed;
  std::vector<CallsCondition*> order;
  for (CallsCondition& condition : conditions) {
    CallsCondition compiles = condition;
    RunAnswers(options, vocab_size, seed += 1'000, generator, &compiles);
    order.push_back(&condition);
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (CallsCondition* condition : order) {
      RunAnswers(options, vocab_size, seed += 1'000, generator, condition);
    }
    std::reverse(order.begin(), order.end());
  }
  std::printf(
      "%d answers of %d tokens at once, %d rounds; medians of the rounds, in ms; in brackets the "
      "median of each round's ratio to its first line.\n\n"
      "| | whole answer | time to first token | inter-token p50 |\n|---|---|---|---|\n",
      options.streams, options.answer_tokens, options.rounds);
  for (const CallsCondition& c : conditions) {
    std::printf("| %s | %.1f (%.2f) | %.1f (%.2f) | %.2f (%.2f) |\n", c.name,
                Percentile(c.answer_ms, 0.5), Ratio(c.answer_ms, conditions[0].answer_ms),
                Percentile(c.ttft_ms, 0.5), Ratio(c.ttft_ms, conditions[0].ttft_ms),
                Percentile(c.gap_ms, 0.5), Ratio(c.gap_ms, conditions[0].gap_ms));
  }
}

// --- Schemas.

void RunSchemas(const Options& options, LoadGenerator* generator, int vocab_size) {
  using Client = Condition::Client;
  Condition conditions[] = {{"streams alone", Client::kNone, false},
                            {"+ schemas", Client::kNewSchemas, false},
                            {"+ requests", Client::kKnownSchema, false},
                            {"constrained", Client::kNone, true}};
  // Starts the grammar processes, and shows how often the client sends.
  Random random(options.seed);
  const std::string known = NewSchema(options.properties, &random);
  for (const std::string& schema : {known, std::string(kEndless)}) {
    const Outcome outcome =
        generator->SendAndWait(Constrained(random.Tokens(kPromptTokens, vocab_size), schema, 1));
    if (!outcome.status.ok()) Die(outcome.status);
  }
  Condition warm_up = conditions[1];
  RunPhase(options, known, 0, vocab_size, options.seed, generator, &warm_up);
  const double interval_s = options.phase_s / std::max(1, warm_up.client_requests);
  std::vector<Condition*> order;
  for (Condition& condition : conditions) order.push_back(&condition);
  uint64_t seed = options.seed;
  for (int round = 0; round < options.rounds; ++round) {
    for (Condition* condition : order) {
      RunPhase(options, known, condition->client == Client::kKnownSchema ? interval_s : 0,
               vocab_size, seed += 1'000, generator, condition);
    }
    std::reverse(order.begin(), order.end());
  }
  std::printf(
      "%d stream(s), %d rounds of %g s a line; medians of the rounds, in ms; in brackets the "
      "median of each round's ratio to its first line.\n\n"
      "| | inter-token p50 | p99 | the client's requests | their TTFT |\n|---|---|---|---|---|\n",
      options.streams, options.rounds, options.phase_s);
  for (const Condition& c : conditions) {
    std::printf("| %s | %.2f (%.2f) | %.2f (%.2f) |", c.name, Percentile(c.p50_ms, 0.5),
                Ratio(c.p50_ms, conditions[0].p50_ms), Percentile(c.p99_ms, 0.5),
                Ratio(c.p99_ms, conditions[0].p99_ms));
    if (c.client == Client::kNone) {
      std::printf(" | |\n");
    } else {
      std::printf(" %d | %.0f |\n", c.client_requests, Percentile(c.client_ttft_ms, 0.5));
    }
  }
}

int Run(const Options& options) {
  const std::unique_ptr<LocalCluster> cluster = StartCluster(options.cluster);
  LoadGenerator generator({cluster->address("router")});
  const int vocab_size = VocabSizeOf(&generator);
  (options.calls ? RunCalls : RunSchemas)(options, &generator, vocab_size);
  if (absl::Status status = cluster->CheckAlive(); !status.ok()) Die(status);
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("Inter-token times beside schemas that compile, and of constrained streams");
  app.option_defaults()->always_capture_default();
  Options options;
  options.cluster.worker_flags = {"--threads", "1"};
  AddClusterFlags(&app, &options.cluster);
  app.get_option("--model")->required();
  app.add_option("--streams", options.streams)->check(CLI::Range(1, 256));
  app.add_option("--stream-tokens", options.stream_tokens)->check(CLI::Range(2, 1 << 20));
  app.add_option("--properties", options.properties, "Of each new schema")
      ->check(CLI::Range(1, 512));
  app.add_flag("--calls", options.calls, "Measure answers with tools, not schemas");
  app.add_option("--answer-tokens", options.answer_tokens, "Of each answer of --calls")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--phase-s", options.phase_s)->check(CLI::Range(0.1, 86'400.0));
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  return Run(options);
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) { return baton::benchmarks::Main(argc, argv); }
