#include "cli/bench/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cli/commands.h"
#include "common/base/exit_code.h"

namespace baton::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

ParsedCommands ParseBench(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"baton", "bench"});
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  ParsedCommands parsed = ParseCommands(static_cast<int>(arguments.size()), arguments.data());
  ::testing::internal::GetCapturedStdout();
  ::testing::internal::GetCapturedStderr();
  return parsed;
}

TEST(BenchFlagsTest, ServeTakesTheFlagsOfVllm) {
  const ParsedCommands parsed = ParseBench({"serve",
                                            "--endpoint-type",
                                            "vllm",
                                            "--base-url",
                                            "http://h:1",
                                            "--header",
                                            "A=b=c",
                                            "--dataset-name",
                                            "timed_trace",
                                            "--dataset-path",
                                            "f",
                                            "--no-self-timed",
                                            "--request-rate",
                                            "2.5",
                                            "--burstiness",
                                            "0.5",
                                            "--max-concurrency",
                                            "7",
                                            "--goodput",
                                            "ttft:200",
                                            "tpot:50",
                                            "--percentile-metrics",
                                            "ttft,e2el",
                                            "--metric-percentiles",
                                            "50,99.9",
                                            "--metadata",
                                            "a=1",
                                            "b=2",
                                            "--temperature",
                                            "0",
                                            "--seed",
                                            "9",
                                            "--output-len",
                                            "33",
                                            "--save-detailed"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.benchmark, "serve");
  const BenchOptions& bench = parsed.commands.bench;
  EXPECT_EQ(bench.target.backend, "vllm");
  EXPECT_EQ(bench.target.base_url, "http://h:1");
  EXPECT_THAT(bench.target.headers, ElementsAre("A: b=c"));
  EXPECT_EQ(bench.target.sampling.temperature, 0.0f);
  EXPECT_EQ(bench.target.sampling.seed, 9u);
  EXPECT_TRUE(bench.target.ignore_eos);
  EXPECT_TRUE(bench.target.keep_text);
  EXPECT_EQ(bench.dataset.name, "trace");
  EXPECT_EQ(bench.dataset.random_output_len, 33);
  EXPECT_FALSE(bench.self_timed);
  EXPECT_EQ(bench.request_rate, 2.5);
  EXPECT_EQ(bench.burstiness, 0.5);
  EXPECT_EQ(bench.max_concurrency, 7);
  EXPECT_THAT(bench.report.goodput_ms, ElementsAre(Pair("tpot", 50), Pair("ttft", 200)));
  EXPECT_THAT(bench.report.metrics, ElementsAre("ttft", "e2el"));
  EXPECT_THAT(bench.report.percentiles, ElementsAre(50, 99.9));
  EXPECT_THAT(bench.output.metadata, ElementsAre(Pair("a", "1"), Pair("b", "2")));
  const ParsedCommands custom = ParseBench(
      {"serve", "--dataset-name", "custom", "--dataset-path", "f", "--request-rate", "inf"});
  ASSERT_FALSE(custom.exit_now);
  EXPECT_FALSE(custom.commands.bench.target.ignore_eos) << "texts have an end";
  EXPECT_TRUE(std::isinf(custom.commands.bench.request_rate));
}

TEST(BenchFlagsTest, Judge) {
  const ParsedCommands parsed = ParseBench({"judge",
                                            "--peer",
                                            "http://peer:8080",
                                            "--shared-tokens",
                                            "30",
                                            "--own-tokens",
                                            "7",
                                            "--token-ids",
                                            "--verdicts",
                                            "text",
                                            "--verdict-tokens",
                                            "5",
                                            "--items",
                                            "9",
                                            "--cold-items",
                                            "3",
                                            "--rounds",
                                            "2",
                                            "--concurrency",
                                            "4",
                                            "--seed",
                                            "11",
                                            "--metric-percentiles",
                                            "50,95",
                                            "--plot",
                                            "p.svg",
                                            "--label",
                                            "mine",
                                            "--api-key",
                                            "k"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.benchmark, "judge");
  const JudgeOptions& judge = parsed.commands.judge;
  EXPECT_EQ(judge.target.access.api_key, "k");
  EXPECT_EQ(judge.peer, "http://peer:8080");
  EXPECT_EQ(judge.shape.shared_tokens, 30);
  EXPECT_EQ(judge.shape.own_tokens, 7);
  EXPECT_FALSE(judge.shape.texts);
  EXPECT_THAT(judge.verdicts, ElementsAre("text"));
  EXPECT_EQ(judge.verdict_tokens, 5);
  EXPECT_EQ(judge.items, 9);
  EXPECT_EQ(judge.cold_items, 3);
  EXPECT_EQ(judge.rounds, 2);
  EXPECT_EQ(judge.concurrency, 4);
  EXPECT_EQ(judge.seed, 11u);
  EXPECT_THAT(judge.percentiles, ElementsAre(50, 95));
  EXPECT_EQ(judge.output.plot, "p.svg");
  EXPECT_EQ(judge.output.label, "mine");
  EXPECT_THAT(ParseBench({"judge", "--token-ids"}).commands.judge.verdicts,
              ElementsAre("token", "text"));
  const JudgeOptions defaults = ParseBench({"judge"}).commands.judge;
  EXPECT_THAT(defaults.verdicts, ElementsAre("score", "token", "text"));
  EXPECT_EQ(defaults.shape.shared_tokens, 1500);
  EXPECT_EQ(defaults.shape.own_tokens, 500);
  EXPECT_EQ(defaults.verdict_tokens, 100);
  EXPECT_NE(defaults.seed, ParseBench({"judge"}).commands.judge.seed) << "a new one each time";
}

TEST(BenchFlagsTest, Agent) {
  const ParsedCommands parsed =
      ParseBench({"agent", "--conversations", "5",    "--turns",         "3", "--tools-tokens",
                  "40",    "--user-tokens",   "6",    "--answer-tokens", "4", "--range-ratio",
                  "0.5",   "--think-time",    "0.25", "--request-rate",  "2", "--max-concurrency",
                  "8",     "--seed",          "12",   "--json"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.benchmark, "agent");
  const AgentOptions& agent = parsed.commands.agent;
  EXPECT_EQ(agent.conversations.conversations, 5);
  EXPECT_EQ(agent.conversations.turns, 3);
  EXPECT_EQ(agent.conversations.tools_tokens, 40);
  EXPECT_EQ(agent.conversations.user_tokens, 6);
  EXPECT_EQ(agent.conversations.answer_tokens, 4);
  EXPECT_EQ(agent.conversations.range_ratio, 0.5);
  EXPECT_EQ(agent.conversations.think_s, 0.25);
  EXPECT_EQ(agent.conversations.rate, 2);
  EXPECT_EQ(agent.conversations.seed, 12u);
  EXPECT_EQ(agent.max_concurrency, 8);
  EXPECT_TRUE(agent.output.json);
  EXPECT_THAT(agent.retentions, ElementsAre("off"));
  const AgentOptions retained = ParseBench({"agent", "--retention", "off,prompts",
                                            "--retention-priority", "7", "--retention-ttl", "1.5"})
                                    .commands.agent;
  EXPECT_THAT(retained.retentions, ElementsAre("off", "prompts"));
  EXPECT_EQ(retained.retention_priority, 7);
  EXPECT_EQ(retained.retention_ttl_ms, 1500);
  const ConversationOptions trace =
      ParseBench({"agent", "--trace", "f", "--trace-length-divisor", "16", "--min-turns", "4"})
          .commands.agent.conversations;
  EXPECT_EQ(trace.trace, "f");
  EXPECT_EQ(trace.length_divisor, 16);
  EXPECT_EQ(trace.min_turns, 4);
  EXPECT_EQ(trace.turns, std::numeric_limits<int>::max()) << "all of the file";
}

TEST(BenchFlagsTest, WrongFlagsAreUsageErrors) {
  const std::vector<std::vector<const char*>> rows = {
      {},
      {"serve", "--num-prompts", "0"},
      {"serve", "--request-rate", "0"},
      {"serve", "--request-rate", "nan"},
      {"serve", "--burstiness", "-1"},
      {"serve", "--random-range-ratio", "1"},
      {"serve", "--dataset-name", "sonnet"},
      {"serve", "--dataset-name", "custom"},
      {"serve", "--dataset-path", "a"},
      {"serve", "--self-timed"},
      {"serve", "--goodput", "itl:3"},
      {"serve", "--goodput", "ttft:-3"},
      {"serve", "--metric-percentiles", "101"},
      {"serve", "--percentile-metrics", "ttft,no"},
      {"serve", "--metadata", "no"},
      {"serve", "--port", "8000"},
      {"serve", "--backend", "openai-chat", "--vocab-size", "32000"},
      {"serve", "--backend", "openai", "--dataset-name", "sharegpt", "--dataset-path", "a"},
      {"judge", "--shared-tokens", "0"},
      {"judge", "--own-tokens", "-1"},
      {"judge", "--items", "0"},
      {"judge", "--cold-items", "0"},
      {"judge", "--rounds", "0"},
      {"judge", "--concurrency", "0"},
      {"judge", "--verdicts", "token,score", "--token-ids"},
      {"judge", "--verdicts", "token,maybe"},
      {"judge", "--verdicts", "token,token"},
      {"judge", "--verdict-tokens", "0"},
      {"judge", "--peer", "localhost:8080"},
      {"judge", "--metric-percentiles", "101"},
      {"judge", "--metadata", "no"},
      {"judge", "--request-rate", "3"},
      {"agent", "--conversations", "0"},
      {"agent", "--turns", "0"},
      {"agent", "--request-rate", "0"},
      {"agent", "--request-rate", "nan"},
      {"agent", "--think-time", "-1"},
      {"agent", "--range-ratio", "1"},
      {"agent", "--trace", "f", "--tools-tokens", "3"},
      {"agent", "--trace", "f", "--turns", "1"},
      {"agent", "--trace-length-divisor", "2"},
      {"agent", "--min-turns", "2"},
      {"agent", "--max-concurrency", "0"},
      {"agent", "--retention", "on"},
      {"agent", "--retention", "off,off"},
      {"agent", "--retention", "tools", "--trace", "f"},
      {"agent", "--retention", "tools", "--tools-tokens", "0"},
      {"agent", "--retention-priority", "101"},
      {"agent", "--retention-ttl", "0"},
  };
  for (const auto& row : rows) {
    const ParsedCommands parsed = ParseBench(row);
    EXPECT_TRUE(parsed.exit_now) << ::testing::PrintToString(row);
    EXPECT_EQ(parsed.exit_code, kExitUsage) << ::testing::PrintToString(row);
  }
}

}  // namespace
}  // namespace baton::cli
