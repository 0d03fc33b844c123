#include "cli/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/security/api_keys.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/test_certificates.h"

namespace baton::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

ParsedCommands Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "baton");
  CaptureStdout();
  CaptureStderr();
  ParsedCommands parsed = ParseCommands(static_cast<int>(arguments.size()), arguments.data());
  GetCapturedStdout();
  GetCapturedStderr();
  return parsed;
}

TEST(CommandsTest, Generate) {
  const ParsedCommands parsed =
      Parse({"generate", "hello there", "--max-tokens", "5", "--temperature", "0", "--seed",
             "18446744073709551615", "--stop", "a", "--stop", "b", "--top-k", "-1", "--json"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.chosen, "generate");
  const GenerateOptions& options = parsed.commands.generate;
  EXPECT_EQ(options.request.text, "hello there");
  EXPECT_EQ(options.request.max_tokens, 5);
  EXPECT_EQ(options.request.sampling.temperature, 0.0f);
  EXPECT_EQ(options.request.sampling.seed, 18446744073709551615u);
  EXPECT_EQ(options.request.sampling.top_k, -1);
  EXPECT_FALSE(options.request.sampling.top_p.has_value());
  EXPECT_THAT(options.request.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(options.json);
  EXPECT_TRUE(options.stream);
}

TEST(CommandsTest, AccessToTheRouter) {
  for (const char* command : {"generate", "bench", "chat", "workers", "explain", "top"}) {
    std::vector<const char*> arguments = {command,    "--api-key", "k",
                                          "--tls-ca", "ca.pem",    "--tls-cert",
                                          "c.pem",    "--tls-key", "c.key"};
    if (std::string(command) == "generate") arguments.push_back("hello");
    if (std::string(command) == "bench") arguments.insert(arguments.begin() + 1, "serve");
    const ParsedCommands parsed = Parse(arguments);
    ASSERT_FALSE(parsed.exit_now) << command;
    const Commands& commands = parsed.commands;
    const RouterAccess& access = commands.chosen == "generate" ? commands.generate.access
                                 : commands.chosen == "bench"  ? commands.bench.target.access
                                 : commands.chosen == "chat"   ? commands.chat.access
                                 : commands.chosen == "top"    ? commands.top.access
                                 : commands.is_admin           ? commands.admin.access
                                                               : commands.explain.access;
    EXPECT_EQ(access.api_key, "k") << command;
    EXPECT_TRUE(access.tls.on());
    EXPECT_EQ(access.tls.ca, "ca.pem");
    EXPECT_EQ(access.tls.cert, "c.pem");
    EXPECT_EQ(access.tls.key, "c.key");
  }
}

// The key of the environment does not show in --help.
TEST(CommandsTest, TheApiKeyMayComeFromTheEnvironment) {
  setenv("BATON_API_KEY", "a-secret-key", 1);
  EXPECT_EQ(Parse({"generate", "hello"}).commands.generate.access.api_key, "a-secret-key");
  CaptureStdout();
  const char* help[] = {"baton", "generate", "--help"};
  ParseCommands(3, help);
  EXPECT_THAT(GetCapturedStdout(), ::testing::Not(::testing::HasSubstr("a-secret-key")));
  unsetenv("BATON_API_KEY");
}

TEST(CommandsTest, KeysNewPrintsAKeyAndItsLine) {
  const ParsedCommands parsed = Parse({"keys", "new", "--tenant", "a", "--admin", "--json"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.chosen, "keys");
  std::ostringstream out, err;
  EXPECT_EQ(RunNewKey(parsed.commands.keys, out, err), 0);
  const nlohmann::json made = nlohmann::json::parse(out.str());
  const std::string key = made["key"], line = made["line"];
  const auto table = security::ParseApiKeys(line + "\n");
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_TRUE(table->contains(security::Sha256(key)));
  EXPECT_EQ(table->at(security::Sha256(key)).tenant, "a");
  EXPECT_TRUE(table->at(security::Sha256(key)).admin);
  EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr(key)));
  EXPECT_NE(RunNewKey({"new", "two words", false, false}, out, err), 0);
  EXPECT_NE(Parse({"keys", "new"}).exit_code, 0);
  EXPECT_NE(Parse({"keys", "old", "--tenant", "a"}).exit_code, 0);
}

TEST(CommandsTest, ExplainTakesAPromptOrAsksForThePast) {
  const ParsedCommands prompt = Parse({"explain", "hello", "--cache-salt", "s", "--json"});
  ASSERT_FALSE(prompt.exit_now);
  EXPECT_EQ(prompt.commands.chosen, "explain");
  EXPECT_EQ(prompt.commands.explain.text, "hello");
  EXPECT_EQ(prompt.commands.explain.cache_salt, "s");
  EXPECT_TRUE(prompt.commands.explain.json);
  const ParsedCommands past = Parse({"explain", "--last", "7", "--request-id", "r"});
  ASSERT_FALSE(past.exit_now);
  EXPECT_EQ(past.commands.explain.last, 7);
  EXPECT_EQ(past.commands.explain.request_id, "r");
  EXPECT_NE(Parse({"explain", "hello", "--last", "7"}).exit_code, 0);
  EXPECT_NE(Parse({"explain", "--cache-salt", "s"}).exit_code, 0);
  EXPECT_NE(Parse({"explain", "--last", "0"}).exit_code, 0);
}

TEST(CommandsTest, GenerateTakesEverySamplingFlag) {
  const ParsedCommands parsed = Parse({"generate",
                                       "--logit-bias",
                                       "5=-100",
                                       "--logit-bias",
                                       "7=2.5",
                                       "hello",
                                       "--repetition-penalty",
                                       "1.5",
                                       "--frequency-penalty",
                                       "-2",
                                       "--presence-penalty",
                                       "0.5",
                                       "-n",
                                       "3",
                                       "--min-tokens",
                                       "4",
                                       "--logprobs",
                                       "0",
                                       "--prompt-logprobs",
                                       "20",
                                       "--priority",
                                       "high",
                                       "--tenant",
                                       "t",
                                       "--json"});
  ASSERT_FALSE(parsed.exit_now);
  const client::GenerateRequest& request = parsed.commands.generate.request;
  EXPECT_EQ(request.text, "hello");
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.sampling.frequency_penalty, -2.0f);
  EXPECT_EQ(request.sampling.presence_penalty, 0.5f);
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(Pair(5, -100.0f), Pair(7, 2.5f)));
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(request.min_tokens, 4);
  EXPECT_EQ(request.logprobs, 0);
  EXPECT_EQ(request.prompt_logprobs, 20);
  EXPECT_EQ(request.priority, client::Priority::kHigh);
  EXPECT_EQ(request.tenant, "t");
  EXPECT_FALSE(request.beam_width.has_value());
}

TEST(CommandsTest, GenerateTakesBeams) {
  const ParsedCommands parsed =
      Parse({"generate", "hello", "--beam-width", "4", "--length-penalty", "0.5"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.generate.request.beam_width, 4);
  EXPECT_EQ(parsed.commands.generate.request.length_penalty, 0.5f);
  EXPECT_EQ(parsed.commands.generate.request.priority, client::Priority::kDefault);
}

TEST(CommandsTest, GenerateTurnsSpeculationOff) {
  EXPECT_FALSE(Parse({"generate", "hello"}).commands.generate.request.speculation.has_value());
  const ParsedCommands parsed = Parse({"generate", "hello", "--no-speculation"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.generate.request.speculation, false);
}

TEST(CommandsTest, GenerateTakesOneKindOfStructuredOutput) {
  const std::string path = ::testing::TempDir() + "/commands_test_schema.json";
  std::ofstream(path) << R"({"type": "null"})";
  EXPECT_EQ(
      Parse({"generate", "a", "--json-schema", path.c_str()}).commands.generate.request.json_schema,
      R"({"type": "null"})");
  EXPECT_EQ(Parse({"generate", "a", "--regex", "b+"}).commands.generate.request.regex, "b+");
  EXPECT_TRUE(Parse({"generate", "a", "--json-object"}).commands.generate.request.json_object);
  const ParsedCommands choices = Parse({"generate", "--choice", "yes", "--choice", "no", "a"});
  EXPECT_THAT(choices.commands.generate.request.answer_texts, ElementsAre("yes", "no"));
  EXPECT_EQ(choices.commands.generate.request.text, "a");
}

TEST(CommandsTest, ChatTakesTheParametersOfEachTurn) {
  const ParsedCommands parsed = Parse({"chat", "--address", "a:1", "--system", "Be kind.",
                                       "--temperature", "0.5", "--max-tokens", "9"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.chosen, "chat");
  const ChatOptions& chat = parsed.commands.chat;
  EXPECT_EQ(chat.address, "a:1");
  EXPECT_EQ(chat.system, "Be kind.");
  EXPECT_EQ(chat.request.sampling.temperature, 0.5f);
  EXPECT_EQ(chat.request.max_tokens, 9);
  EXPECT_TRUE(Parse({"chat", "--n", "2"}).exit_now) << "a turn has one answer";
}

TEST(CommandsTest, AStopStringDoesNotEatThePrompt) {
  const ParsedCommands parsed = Parse({"generate", "--stop", "x", "prompt", "--no-stream"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.generate.request.text, "prompt");
  EXPECT_FALSE(parsed.commands.generate.stream);
}

TEST(CommandsTest, UpHandsWorkerFlagsOn) {
  const ParsedCommands parsed = Parse({"up",
                                       "--model",
                                       "/tmp",
                                       "--prefill",
                                       "2",
                                       "--decode",
                                       "3",
                                       "--block-size",
                                       "32",
                                       "--kv-cache-memory",
                                       "1GiB",
                                       "--no-enable-prefix-caching",
                                       "--device",
                                       "cuda:0",
                                       "--gpu-memory-utilization",
                                       "0.4",
                                       "--no-deterministic",
                                       "--cublas-algorithms",
                                       "/x",
                                       "--weights",
                                       "int4",
                                       "--experts-on-host",
                                       "auto",
                                       "--dequantize-weights"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.up.cluster.prefill_workers, 2);
  EXPECT_EQ(parsed.commands.up.cluster.decode_workers, 3);
  EXPECT_THAT(parsed.commands.up.cluster.worker_flags,
              ElementsAre("--block-size", "32", "--cublas-algorithms", "/x", "--device", "cuda:0",
                          "--experts-on-host", "auto", "--gpu-memory-utilization", "0.4",
                          "--kv-cache-memory", "1GiB", "--weights", "int4", "--dequantize-weights",
                          "--no-deterministic", "--no-enable-prefix-caching"));
}

TEST(CommandsTest, UpKnowsWhereTheNumberOfPrefillWorkersIsFrom) {
  using Prefill = UpOptions::Prefill;
  UpOptions up = Parse({"up", "--model", "/tmp"}).commands.up;
  EXPECT_EQ(up.prefill, Prefill::kDefault);
  EXPECT_EQ(up.cluster.prefill_workers, 1);
  for (const char* number : {"0", "1", "64"}) {
    up = Parse({"up", "--model", "/tmp", "--prefill", number}).commands.up;
    EXPECT_EQ(up.prefill, Prefill::kGiven);
    EXPECT_EQ(absl::StrCat(up.cluster.prefill_workers), number);
  }
  up = Parse({"up", "--model", "/tmp", "--prefill", "auto", "--decode", "2"}).commands.up;
  EXPECT_EQ(up.prefill, Prefill::kAuto);
  EXPECT_EQ(up.cluster.decode_workers, 2);
}

TEST(CommandsTest, UpHandsRouterFlagsOn) {
  const baton::testing::ModelDir dir;
  const baton::testing::TestCa ca(dir.path(), "ca");
  const baton::testing::CertificateFiles server = ca.Issue("server");
  const std::string client_ca = ca.ca();
  ParsedCommands parsed =
      Parse({"up", "--model", "/tmp", "--api-keys", "keys", "--ssl-certfile", server.cert.c_str(),
             "--ssl-keyfile", server.key.c_str(), "--tls-client-ca", client_ca.c_str(),
             "--insecure", "--no-split-special-tokens", "--http-cors-origins",
             "https://a,https://b", "--max-local-prefill-tokens", "0"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_THAT(parsed.commands.up.cluster.router_flags,
              ElementsAre("--api-keys", "keys", "--tls-cert", server.cert, "--tls-key", server.key,
                          "--tls-client-ca", client_ca, "--insecure", "--no-split-special-tokens",
                          "--http-cors-origins", "https://a", "--http-cors-origins", "https://b",
                          "--max-local-prefill-tokens", "0"));
  EXPECT_TRUE(parsed.commands.up.cluster.router_tls);
  parsed = Parse({"up", "--model", "/tmp"});
  EXPECT_THAT(parsed.commands.up.cluster.router_flags, ElementsAre());
  EXPECT_FALSE(parsed.commands.up.cluster.router_tls);
}

// Before any process starts: the router comes last.
TEST(CommandsTest, UpChecksTheFilesOfTls) {
  EXPECT_EQ(Parse({"up", "--model", "/tmp", "--tls-cert", "/no.pem"}).exit_code, kExitUsage);
  EXPECT_EQ(Parse({"up", "--model", "/tmp", "--tls-client-ca", "/no.pem"}).exit_code, kExitUsage);
}

TEST(CommandsTest, DeterministicIsTheDefault) {
  ParsedCommands parsed = Parse({"up", "--model", "/tmp", "--deterministic"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_TRUE(parsed.commands.up.cluster.worker_flags.empty());
  parsed = Parse({"plan", "--model", "/tmp", "--gpu", "t4"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_TRUE(parsed.commands.plan.question.engine.backend.deterministic);
  parsed = Parse({"plan", "--model", "/tmp", "--gpu", "t4", "--no-deterministic"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_FALSE(parsed.commands.plan.question.engine.backend.deterministic);
}

TEST(CommandsTest, UpHandsSpeculationToDecodeWorkers) {
  ParsedCommands parsed = Parse({"up", "--model", "/tmp", "--speculative", "ngram:5,2,4",
                                 "--speculative-priorities", "low,high", "--kv-write-back"});
  ASSERT_FALSE(parsed.exit_now);
  const ClusterOptions& cluster = parsed.commands.up.cluster;
  EXPECT_THAT(cluster.decode_flags,
              ElementsAre("--speculative", "ngram:5,2,4", "--speculative-priorities", "low,high",
                          "--kv-write-back"));
  EXPECT_TRUE(cluster.prefill_flags.empty());
  EXPECT_TRUE(cluster.worker_flags.empty());
  parsed = Parse({"up", "--model", "/tmp", "--speculative", "draft:/small,4", "--draft-kv-memory",
                  "1GB", "--draft-gpu-memory-utilization", "0.2"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_THAT(parsed.commands.up.cluster.decode_flags,
              UnorderedElementsAre("--speculative", "draft:/small,4", "--draft-kv-memory", "1GB",
                                   "--draft-gpu-memory-utilization", "0.2"));
  parsed = Parse({"up", "--model", "/tmp"});
  EXPECT_TRUE(parsed.commands.up.cluster.decode_flags.empty());
}

TEST(CommandsTest, UpHandsGenerationDefaultsOn) {
  const char* defaults = R"({"temperature": 0.2, "top_p": 0.9})";
  const ParsedCommands parsed =
      Parse({"up", "--model", "/tmp", "--override-generation-config", defaults});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_THAT(parsed.commands.up.cluster.worker_flags,
              ElementsAre("--override-generation-config", defaults));
}

TEST(CommandsTest, UpHandsAnEmptyValueOn) {
  const ParsedCommands parsed = Parse({"up", "--model", "/tmp", "--cublas-algorithms", ""});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_THAT(parsed.commands.up.cluster.worker_flags, ElementsAre("--cublas-algorithms", ""));
}

TEST(CommandsTest, Plan) {
  const ParsedCommands parsed = Parse({"plan",     "--model",
                                       "/tmp",     "--gpu",
                                       "t4",       "--context",
                                       "8192",     "--batch",
                                       "1,64",     "--dtype",
                                       "float16",  "--weights",
                                       "int4",     "--group-size",
                                       "64",       "--gpu-memory-utilization",
                                       "0.8",      "--max-num-seqs",
                                       "16",       "--kv-cache-memory",
                                       "1GiB",     "--bandwidth-gbs",
                                       "320",      "--kv-cache-dtype",
                                       "bfloat16", "--experts-on-host",
                                       "3",        "--host-gbs",
                                       "9",        "--json"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.chosen, "plan");
  EXPECT_TRUE(parsed.commands.plan.json);
  const engine::ServingQuestion& question = parsed.commands.plan.question;
  EXPECT_EQ(question.engine.model_dir, "/tmp");
  EXPECT_EQ(question.gpu.name, "t4");
  EXPECT_EQ(question.gpu.memory_bytes, int64_t{14'930} << 20);
  EXPECT_EQ(question.gpu.bytes_per_second, 320e9);
  EXPECT_EQ(question.gpu.flops_per_second, 24e12);
  EXPECT_EQ(question.gpu.host_link_bytes_per_second, 9e9);
  EXPECT_EQ(question.engine.experts_on_host, 3);
  EXPECT_EQ(question.gpu.rate_source, "given");
  EXPECT_EQ(question.context, 8192);
  EXPECT_THAT(question.batches, ElementsAre(1, 64));
  EXPECT_THAT(question.prompts, ElementsAre(512, 2048, 8192));
  EXPECT_EQ(question.engine.backend.compute, backend::BackendOptions::Compute::kF16);
  EXPECT_EQ(question.engine.backend.gpu_memory_utilization, 0.8);
  EXPECT_EQ(question.engine.max_num_seqs, 16);
  EXPECT_EQ(question.engine.kv_cache_bytes, int64_t{1} << 30);
  EXPECT_EQ(question.engine.kv_dtype, kv::KvDtype::kBF16);
  ASSERT_TRUE(question.weights.has_value());
  EXPECT_EQ(question.weights->bits, 4);
  EXPECT_EQ(question.weights->group_size, 64);
}

TEST(CommandsTest, PlanForAGpuOfOnesOwn) {
  const ParsedCommands parsed = Parse({"plan", "--model", "/tmp", "--gpu", "mine", "--memory-gib",
                                       "1.5", "--bandwidth-gbs", "100", "--tflops", "10"});
  ASSERT_FALSE(parsed.exit_now);
  const engine::ServingQuestion& question = parsed.commands.plan.question;
  EXPECT_EQ(question.gpu.name, "mine");
  EXPECT_EQ(question.gpu.memory_bytes, int64_t{3} << 29);
  EXPECT_EQ(question.gpu.flops_per_second, 10e12);
  EXPECT_FALSE(question.weights.has_value());
}

TEST(CommandsTest, PlanOfACluster) {
  ParsedCommands parsed = Parse({"plan",
                                 "--cluster",
                                 "--rate",
                                 "2.5",
                                 "--prompt-lengths",
                                 "100,200",
                                 "--answer-lengths",
                                 "8,8",
                                 "--requests",
                                 "50",
                                 "--speed",
                                 "2",
                                 "--seed",
                                 "7",
                                 "--slo-ttft-ms",
                                 "300",
                                 "--slo-inter-token-ms",
                                 "40",
                                 "--costs",
                                 "c.json",
                                 "--link-gbits",
                                 "25",
                                 "--prefill-price",
                                 "2",
                                 "--decode-price",
                                 "3",
                                 "--most-prefill",
                                 "5",
                                 "--most-decode",
                                 "6",
                                 "--routers",
                                 "2",
                                 "--max-local-prefill-tokens",
                                 "0",
                                 "--json"});
  ASSERT_FALSE(parsed.exit_now) << "a cluster with measured costs needs neither model nor GPU";
  EXPECT_TRUE(parsed.commands.plan.json);
  const ClusterPlanOptions& options = parsed.commands.plan.cluster;
  EXPECT_TRUE(options.wanted);
  EXPECT_EQ(options.rate, 2.5);
  EXPECT_EQ(options.shape.least_prompt, 100);
  EXPECT_EQ(options.shape.prompt_end, 201);
  EXPECT_EQ(options.shape.least_answer, 8);
  EXPECT_EQ(options.shape.answer_end, 9);
  EXPECT_EQ(options.shape.seed, 7u);
  EXPECT_EQ(options.requests, 50);
  EXPECT_EQ(options.speed, 2);
  EXPECT_EQ(options.slo_ttft_ms, 300);
  EXPECT_EQ(options.slo_inter_token_ms, 40);
  EXPECT_EQ(options.costs_file, "c.json");
  EXPECT_EQ(options.link_gbits, 25);
  EXPECT_EQ(options.prefill_price, 2);
  EXPECT_EQ(options.decode_price, 3);
  EXPECT_EQ(options.most_prefill, 5);
  EXPECT_EQ(options.most_decode, 6);
  EXPECT_EQ(options.routers, 2);
  EXPECT_EQ(options.max_local_prefill_tokens, 0);
  parsed = Parse({"plan", "--cluster", "--trace", "t.jsonl", "--slo-ttft-ms", "300",
                  "--slo-inter-token-ms", "40", "--model", "/tmp", "--gpu", "t4", "--efficiency",
                  "0.5"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.plan.cluster.trace, "t.jsonl");
  EXPECT_EQ(parsed.commands.plan.cluster.efficiency, 0.5);
  EXPECT_EQ(parsed.commands.plan.question.gpu.name, "t4");
}

TEST(CommandsTest, FlagsOfAClusterNeedIt) {
  for (const std::vector<const char*>& flag :
       std::vector<std::vector<const char*>>{{"--rate", "1"},
                                             {"--trace", "t.jsonl"},
                                             {"--costs", "c.json"},
                                             {"--costs-of", "a:1"},
                                             {"--tls"},
                                             {"--seed", "1"},
                                             {"--slo-ttft-ms", "9"},
                                             {"--most-decode", "4"},
                                             {"--routers", "1"}}) {
    std::vector<const char*> line = {"plan", "--model", "/tmp", "--gpu", "t4"};
    EXPECT_FALSE(Parse(line).exit_now);
    line.insert(line.end(), flag.begin(), flag.end());
    EXPECT_EQ(Parse(line).exit_code, kExitUsage) << flag[0];
  }
  // The variable is that of other commands, too.
  setenv("BATON_API_KEY", "a-secret-key", 1);
  EXPECT_FALSE(Parse({"plan", "--model", "/tmp", "--gpu", "t4"}).exit_now);
  unsetenv("BATON_API_KEY");
}

TEST(CommandsTest, Top) {
  const ParsedCommands parsed =
      Parse({"top", "--address", "a:1", "--interval", "0.5", "-n", "7", "--json"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_EQ(parsed.commands.chosen, "top");
  EXPECT_FALSE(parsed.commands.is_admin);
  const TopOptions& top = parsed.commands.top;
  EXPECT_EQ(top.address, "a:1");
  EXPECT_EQ(top.interval_s, 0.5);
  EXPECT_EQ(top.frames, 7);
  EXPECT_TRUE(top.json);
  EXPECT_FALSE(top.once);
  EXPECT_TRUE(Parse({"top", "--once"}).commands.top.once);
}

TEST(CommandsTest, BadCommandLinesAreRefused) {
  const std::vector<std::vector<const char*>> rows = {
      {},
      {"fly"},
      {"generate"},
      {"generate", "a", "b"},
      {"generate", "a", "--max-tokens", "many"},
      {"plan", "--model", "/tmp"},
      {"plan", "--gpu", "t4"},
      {"plan", "--model", "/no/such/folder", "--gpu", "t4"},
      {"plan", "--model", "/tmp", "--gpu", "unheard-of"},
      {"plan", "--model", "/tmp", "--gpu", "mine", "--memory-gib", "1", "--tflops", "10"},
      {"plan", "--model", "/tmp", "--gpu", "t4", "--context", "0"},
      {"plan", "--model", "/tmp", "--gpu", "t4", "--batch", "1,0"},
      {"plan", "--model", "/tmp", "--gpu", "t4", "--block-size", "17"},
      {"plan", "--model", "/tmp", "--gpu", "t4", "--gpu-memory-utilization", "0"},
      {"plan", "--model", "/tmp", "--gpu", "t4", "--gpu-memory-utilization", "nan"},
      {"plan", "--model", "/tmp", "--gpu", "t4", "--memory-gib", "nan"},
      {"plan", "--model", "/tmp", "--gpu", "t4", "--bandwidth-gbs", "nan"},
      {"plan", "--model", "/tmp", "--gpu", "t4", "--weights", "int3"},
      {"plan", "--model", "/tmp", "--gpu", "t4", "--experts-on-host", "-1"},
      {"plan", "--cluster", "--rate", "1", "--slo-ttft-ms", "9", "--slo-inter-token-ms", "9"},
      {"plan", "--cluster", "--costs", "c", "--slo-ttft-ms", "9", "--slo-inter-token-ms", "9"},
      {"plan", "--cluster", "--costs", "c", "--rate", "1", "--slo-ttft-ms", "9"},
      {"plan", "--cluster", "--costs", "c", "--rate", "nan", "--slo-ttft-ms", "9",
       "--slo-inter-token-ms", "9"},
      {"plan", "--cluster", "--costs", "c", "--rate", "1", "--trace", "t", "--slo-ttft-ms", "9",
       "--slo-inter-token-ms", "9"},
      {"plan", "--cluster", "--costs", "c", "--costs-of", "a:1", "--rate", "1", "--slo-ttft-ms",
       "9", "--slo-inter-token-ms", "9"},
      {"plan", "--cluster", "--costs", "c", "--rate", "1", "--prompt-lengths", "9,8",
       "--slo-ttft-ms", "9", "--slo-inter-token-ms", "9"},
      {"generate", "a", "--logit-bias", "5"},
      {"generate", "a", "--logit-bias", "x=1"},
      {"generate", "a", "--logit-bias", "5=y"},
      {"generate", "a", "--logit-bias", "5=1", "--logit-bias", "5=2"},
      {"generate", "a", "--priority", "highest"},
      {"generate", "a", "--json-schema", "/no/such/file"},
      {"generate", "a", "--regex", "a", "--choice", "b"},
      {"generate", "a", "--logprobs", "1"},
      {"generate", "a", "--length-penalty", "1"},
      {"up", "--model", "/no/such/dir"},
      {"top", "--interval", "0"},
      {"top", "--interval", "nan"},
      {"top", "-n", "-1"},
      {"top", "--once", "-n", "2"},
      {"up", "--model", "/tmp", "--prefill", "-1"},
      {"up", "--model", "/tmp", "--prefill", "65"},
      {"up", "--model", "/tmp", "--prefill", "1.5"},
      {"up", "--model", "/tmp", "--prefill", "automatic"},
      {"up", "--model", "/tmp", "--prefill", "auto", "--prefill", "1"},
      {"up", "--model", "/tmp", "--block-size", "-1"},
  };
  for (const auto& row : rows) {
    const ParsedCommands parsed = Parse(row);
    EXPECT_TRUE(parsed.exit_now);
    EXPECT_EQ(parsed.exit_code, kExitUsage);
  }
  EXPECT_EQ(Parse({"--help"}).exit_code, kExitOk);
  EXPECT_EQ(Parse({"--version"}).exit_code, kExitOk);
}

TEST(CommandsTest, TheEnvironmentSetsTheAddressUnlessAFlagDoes) {
  setenv("BATON_ADDRESS", "router:7", 1);
  const ParsedCommands generate = Parse({"generate", "hello"});
  const ParsedCommands bench = Parse({"bench", "serve"});
  const ParsedCommands explain = Parse({"explain"});
  const ParsedCommands flag = Parse({"generate", "hello", "--address", "other:8"});
  unsetenv("BATON_ADDRESS");
  EXPECT_EQ(generate.commands.generate.address, "router:7");
  EXPECT_EQ(bench.commands.bench.target.address, "router:7");
  EXPECT_EQ(explain.commands.explain.address, "router:7");
  EXPECT_EQ(flag.commands.generate.address, "other:8");
  EXPECT_EQ(Parse({"explain"}).commands.explain.address, "127.0.0.1:50051");
}

TEST(CommandsTest, CommandsForOperatorsShareTheirFlags) {
  const ParsedCommands drain = Parse({"drain", "d:1", "--wait", "--json", "--timeout-ms", "70"});
  ASSERT_FALSE(drain.exit_now);
  EXPECT_TRUE(drain.commands.is_admin);
  EXPECT_EQ(drain.commands.chosen, "drain");
  EXPECT_EQ(drain.commands.admin.worker, "d:1");
  EXPECT_TRUE(drain.commands.admin.wait && drain.commands.admin.json);
  EXPECT_EQ(drain.commands.admin.timeout_ms, 70);
  const ParsedCommands cancel = Parse({"cancel", "r1", "--tenant", "t"});
  ASSERT_FALSE(cancel.exit_now);
  EXPECT_EQ(cancel.commands.admin.request_id, "r1");
  EXPECT_EQ(cancel.commands.admin.tenant, "t");
  for (const char* command : {"workers", "loads", "flush-cache"}) {
    EXPECT_TRUE(Parse({command}).commands.is_admin) << command;
  }
  EXPECT_FALSE(Parse({"explain"}).commands.is_admin);
  for (const char* command : {"drain", "undrain", "cancel"}) {
    EXPECT_EQ(Parse({command}).exit_code, kExitUsage) << command << " lacks its argument";
  }
  EXPECT_EQ(Parse({"undrain", "d:1", "--wait"}).exit_code, kExitUsage);
  setenv("BATON_ADDRESS", "router:7", 1);
  EXPECT_EQ(Parse({"workers"}).commands.admin.address, "router:7");
  EXPECT_EQ(Parse({"drain", "d:1", "--address", "other:8"}).commands.admin.address, "other:8");
  unsetenv("BATON_ADDRESS");
}

TEST(CommandsTest, CompletionTakesAShell) {
  const ParsedCommands parsed = Parse({"completion", "bash"});
  ASSERT_FALSE(parsed.exit_now);
  EXPECT_THAT(parsed.commands.completion, HasSubstr("complete -o default -F _baton baton"));
  EXPECT_EQ(Parse({"completion", "tcsh"}).exit_code, kExitUsage);
  EXPECT_EQ(Parse({"completion"}).exit_code, kExitUsage);
}

}  // namespace
}  // namespace baton::cli
