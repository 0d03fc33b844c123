#include "cli/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"
#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Before any thread, as in main().
const ShutdownSignal signals(BrokenPipe::kDefault);

// Its first token after half a second, ten more each a tenth later.
Outcome Sample(double start_s, double end_s) {
  Outcome outcome;
  outcome.sent_s = start_s;
  outcome.ended_s = end_s;
  outcome.usage.set_prompt_tokens(100);
  outcome.usage.set_generated_tokens(11);
  for (int i = 0; i < 11; ++i) outcome.token_s.push_back(start_s + 0.5 + 0.1 * i);
  return outcome;
}

TEST(BenchReportTest, PercentilesInterpolate) {
  const Summary s = Summarize({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(s.mean, 2.5);
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_NEAR(s.p99, 3.97, 1e-9);
  EXPECT_EQ(Summarize({}).p99, 0);
}

TEST(BenchReportTest, PeakConcurrencyCountsOverlap) {
  EXPECT_EQ(PeakConcurrency({Sample(0, 2), Sample(1, 3), Sample(2, 4)}), 2);
  EXPECT_EQ(PeakConcurrency({}), 0);
}

TEST(BenchReportTest, HasTheLinesThatScriptsLookFor) {
  BenchResult result;
  result.duration_s = 2;
  result.outcomes = {Sample(0, 2), Sample(0, 2)};
  result.outcomes.emplace_back().status =
      MakeError(absl::StatusCode::kResourceExhausted, "KV_FULL", "no blocks");
  const std::string report = FormatReport(result);
  EXPECT_THAT(report, HasSubstr("============ Serving Benchmark Result ============\n"));
  for (const char* line :
       {"Successful requests: +2 ", "Failed requests: +1 ", "Benchmark duration \\(s\\): +2\\.00",
        "Total input tokens: +200 ", "Total generated tokens: +22 ",
        "Request throughput \\(req/s\\): +1\\.00", "Output token throughput \\(tok/s\\): +11\\.00",
        "Total Token throughput \\(tok/s\\): +111\\.00", "Mean TTFT \\(ms\\): +500\\.00",
        "P99 TTFT \\(ms\\): +500\\.00", "Mean TPOT \\(ms\\): +100\\.00",
        "Median ITL \\(ms\\): +100\\.00", "P99 E2EL \\(ms\\): +1500\\.00", "KV_FULL: +1 "}) {
    EXPECT_THAT(report, ContainsRegex(line));
  }
  EXPECT_THAT(report, HasSubstr("---------------Time to First Token----------------\n"));
  EXPECT_THAT(report, HasSubstr("-----Time per Output Token (excl. 1st token)------\n"));
  const auto json = nlohmann::json::parse(ReportJson(result));
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["mean_ttft_ms"], 500);
  EXPECT_EQ(json["failures"]["KV_FULL"], 1);
}

TEST(BenchReportTest, TokensOfOneMessageShareItsGap) {
  BenchResult result;
  Outcome& outcome = result.outcomes.emplace_back();
  outcome.token_s = {1, 1, 4, 4, 4, 5};
  const auto json = nlohmann::json::parse(ReportJson(result));
  EXPECT_EQ(json["mean_itl_ms"], 1000);
  EXPECT_EQ(json["p99_itl_ms"], 1000);
  EXPECT_EQ(json["mean_ttft_ms"], 1000);
  EXPECT_EQ(json["mean_e2el_ms"], 5000);
}

TEST(BenchTest, PromptsShareTheirPrefixOnlyAndRepeat) {
  BenchOptions options;
  options.num_prompts = 3;
  options.prompt_tokens = 40;
  options.shared_prefix_tokens = 30;
  const auto prompts = BenchPrompts(options, 50'000);
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts, BenchPrompts(options, 50'000));
  EXPECT_EQ(prompts[0].size(), 40u);
  EXPECT_TRUE(std::equal(prompts[0].begin(), prompts[0].begin() + 30, prompts[1].begin()));
  EXPECT_FALSE(std::equal(prompts[0].begin() + 30, prompts[0].end(), prompts[1].begin() + 30));
  options.seed = 1;
  EXPECT_NE(prompts, BenchPrompts(options, 50'000));
}

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::baton::testing::Ids;

TEST(BenchTest, RunsAgainstARouter) {
  FakeCluster cluster;
  cluster.decode(0)->SetReply([](DecodeCall call) {
    if (call.request.sampling().seed() == 3) return call.Fail({grpc::StatusCode::INTERNAL, ""});
    call.SendTokens({'a'});
    call.Finish({'b', 'c'}, internal::v1::DecodeResponse::FINISH_LENGTH);
  });
  BenchOptions options;
  options.address = cluster.server().address();
  options.num_prompts = 10;
  options.prompt_tokens = 20;
  options.max_tokens = 3;
  options.save_result = ::testing::TempDir() + "/bench.json";
  std::ostringstream out, err;
  EXPECT_EQ(RunBench(options, out, err), 0) << err.str();
  EXPECT_THAT(out.str(), ContainsRegex("Successful requests: +9 "));
  EXPECT_THAT(out.str(), ContainsRegex("Total generated tokens: +27 "));
  EXPECT_THAT(out.str(), ContainsRegex("WORKER_LOST: +1 "));
  out.str("");
  options.json = true;
  EXPECT_EQ(RunBench(options, out, err), 0) << err.str();
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["completed"], 9);
  EXPECT_EQ(json["failed"], 1);
  options.address = "127.0.0.1:1";
  EXPECT_EQ(RunBench(options, out, err), kExitUnavailable);
  EXPECT_THAT(err.str(), HasSubstr("UNAVAILABLE"));
}

TEST(BenchTest, CtrlCLeavesNoRequestThatWasNeverSentInTheReport) {
  FakeCluster cluster;
  std::atomic<int> sent{0};
  cluster.decode(0)->SetReply([&sent](DecodeCall call) {
    if (++sent == 20) kill(getpid(), SIGINT);
    call.Finish({'b', 'c'}, internal::v1::DecodeResponse::FINISH_LENGTH);
  });
  BenchOptions options;
  options.address = cluster.server().address();
  options.num_prompts = 100'000;
  options.prompt_tokens = 20;
  options.max_tokens = 2;
  options.concurrency = 8;
  std::ostringstream out, err;
  EXPECT_EQ(RunBench(options, out, err), 0) << err.str();
  EXPECT_THAT(out.str(), ContainsRegex(absl::StrCat("Successful requests: +", sent.load(), " ")));
  EXPECT_THAT(out.str(), ContainsRegex("Failed requests: +0 "));
}

}  // namespace
}  // namespace baton::cli
