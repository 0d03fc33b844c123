#include "cli/bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "absl/strings/str_split.h"
#include "cli/bench/plot.h"
#include "common/base/error.h"

namespace baton::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Its first token after half a second, ten more each a tenth later.
Outcome Sample(double start_s, double end_s) {
  Outcome outcome;
  outcome.due_s = start_s - 0.25;
  outcome.sent_s = start_s;
  outcome.ended_s = end_s;
  outcome.usage.set_prompt_tokens(100);
  outcome.usage.set_cached_prompt_tokens(25);
  outcome.usage.set_generated_tokens(11);
  for (int i = 0; i < 11; ++i) outcome.token_s.push_back(start_s + 0.5 + 0.1 * i);
  return outcome;
}

BenchResult Result() {
  BenchResult result;
  result.backend = "baton";
  result.model = "tiny";
  result.num_prompts = 3;
  result.max_concurrency = 4;
  result.request_rate = 1.5;
  result.duration_s = 2;
  result.outcomes = {Sample(0, 2), Sample(0, 2)};
  result.outcomes.emplace_back().status =
      MakeError(absl::StatusCode::kResourceExhausted, "KV_FULL", "no blocks");
  return result;
}

// Expected values: numpy.mean, median, std and percentile of the same list.
TEST(BenchReportTest, SummariesAreNumpys) {
  const std::vector<double> values = {12.5, 3.25,   99.0, 7.0, 7.0, 41.75,
                                      0.5,  18.125, 64.0, 2.0, 33.3};
  const Summary s = Summarize(values);
  EXPECT_NEAR(s.mean, 26.220454545454547, 1e-12);
  EXPECT_EQ(s.median, 12.5);
  EXPECT_NEAR(s.std, 29.823566067377097, 1e-12);
  const std::pair<double, double> percentiles[] = {{0, 0.5},   {1, 0.65},     {25, 5.125},
                                                   {50, 12.5}, {90, 64.0},    {95, 81.5},
                                                   {99, 95.5}, {99.9, 98.65}, {100, 99.0}};
  for (const auto& [p, expected] : percentiles) {
    EXPECT_NEAR(Percentile(values, p), expected, 1e-9) << p;
  }
  EXPECT_EQ(Percentile({}, 99), 0);
  EXPECT_EQ(Percentile({7}, 99), 7);
  EXPECT_EQ(Summarize({}).std, 0);
}

TEST(BenchReportTest, PeakConcurrencyCountsOverlap) {
  EXPECT_EQ(PeakConcurrency({Sample(0, 2), Sample(1, 3), Sample(2, 4)}), 2);
  EXPECT_EQ(PeakConcurrency({}), 0);
}

TEST(BenchReportTest, CountsTokensOfEachSecond) {
  EXPECT_THAT(TokensPerSecond({Sample(10, 12), Sample(10.75, 13)}, 10), ElementsAre(5, 14, 3));
  EXPECT_THAT(TokensPerSecond({}, 10), ElementsAre());
}

// As scripts around vLLM's benchmark read it: "label: number" by column, sections between rules.
TEST(BenchReportTest, HasTheLayoutThatScriptsRead) {
  ReportOptions options;
  options.percentiles = {50, 99.9};
  options.goodput_ms = {{"ttft", 500.1}};
  const std::string report = FormatReport(Result(), options);
  std::vector<std::string> labels;
  const std::regex line(R"((\S.{38,})\s(-?\d+(?:\.\d\d)?) *)");
  const std::vector<std::string> lines = absl::StrSplit(report, '\n');
  for (const std::string& text : lines) {
    std::smatch found;
    if (!std::regex_match(text, found, line)) continue;
    EXPECT_GE(text.size(), 51u) << text;
    EXPECT_NE(text[41], ' ') << text;
    labels.push_back(std::string(absl::StripAsciiWhitespace(found[1].str())));
  }
  const std::vector<std::string> expected = {"Successful requests:",
                                             "Failed requests:",
                                             "Maximum request concurrency:",
                                             "Request rate configured (RPS):",
                                             "Benchmark duration (s):",
                                             "Total input tokens:",
                                             "Total generated tokens:",
                                             "Request throughput (req/s):",
                                             "Request goodput (req/s):",
                                             "Output token throughput (tok/s):",
                                             "Peak output token throughput (tok/s):",
                                             "Peak concurrent requests:",
                                             "Total Token throughput (tok/s):",
                                             "Mean TTFT (ms):",
                                             "Median TTFT (ms):",
                                             "P50 TTFT (ms):",
                                             "P99.9 TTFT (ms):",
                                             "Mean TPOT (ms):"};
  ASSERT_GE(labels.size(), expected.size());
  labels.resize(expected.size());
  EXPECT_EQ(labels, expected);
  EXPECT_THAT(report,
              ::testing::StartsWith("============ Serving Benchmark Result ============\n"));
  EXPECT_THAT(report, ::testing::EndsWith("\n" + std::string(50, '=') + "\n"));
  for (const char* section : {"---------------Time to First Token----------------\n",
                              "-----Time per Output Token (excl. 1st token)------\n",
                              "---------------Inter-token Latency----------------\n",
                              "----------------End-to-end Latency----------------\n"}) {
    EXPECT_THAT(report, HasSubstr(section));
  }
  for (const char* text :
       {"Successful requests: +2 ", "Failed requests: +1 ", "Benchmark duration \\(s\\): +2\\.00",
        "Total input tokens: +200 ", "Total generated tokens: +22 ",
        "Request throughput \\(req/s\\): +1\\.00", "Request goodput \\(req/s\\): +1\\.00",
        "Output token throughput \\(tok/s\\): +11\\.00",
        "Total Token throughput \\(tok/s\\): +111\\.00", "Mean TTFT \\(ms\\): +500\\.00",
        "Mean TPOT \\(ms\\): +100\\.00", "Median ITL \\(ms\\): +100\\.00",
        "P99.9 E2EL \\(ms\\): +1500\\.00", "Prefix cache hit rate \\(%\\): +25\\.00",
        "KV_FULL: +1 "}) {
    EXPECT_THAT(report, ContainsRegex(text));
  }
}

TEST(BenchReportTest, ShowsOnlyWhatIsChosen) {
  BenchResult result = Result();
  result.request_rate = std::numeric_limits<double>::infinity();
  result.max_concurrency.reset();
  ReportOptions options;
  options.metrics = {"client_queue_time", "e2el_including_client_queue"};
  const std::string report = FormatReport(result, options);
  EXPECT_THAT(report, Not(HasSubstr("TTFT")));
  EXPECT_THAT(report, Not(HasSubstr("Request rate configured")));
  EXPECT_THAT(report, Not(HasSubstr("Maximum request concurrency")));
  EXPECT_THAT(report, Not(HasSubstr("goodput")));
  EXPECT_THAT(report, ContainsRegex("Mean Client Queue Time \\(ms\\): +250\\.00"));
  EXPECT_THAT(report, ContainsRegex("Mean E2EL incl. Client Queue \\(ms\\): +1750\\.00"));
}

TEST(BenchReportTest, GoodputNeedsEveryGoal) {
  ReportOptions options;
  const auto goodput = [&](std::map<std::string, double> goals_ms) {
    options.goodput_ms = std::move(goals_ms);
    return nlohmann::json::parse(ReportJson(Result(), options))["request_goodput"];
  };
  EXPECT_EQ(goodput({{"ttft", 500.1}, {"tpot", 100.1}, {"e2el", 1500.1}}), 1);
  EXPECT_EQ(goodput({{"ttft", 500.1}, {"tpot", 99}}), 0);
  EXPECT_EQ(goodput({{"e2el", 1499}}), 0);
  EXPECT_TRUE(goodput({}).is_null());
}

TEST(BenchReportTest, JsonHasTheKeysThatScriptsRead) {
  ReportOptions options;
  options.percentiles = {99, 99.5};
  BenchResult result = Result();
  result.metadata = {{"gpu", "t4"}};
  auto json = nlohmann::json::parse(ReportJson(result, options));
  for (const char* key : {"date",
                          "endpoint_type",
                          "backend",
                          "label",
                          "model_id",
                          "tokenizer_id",
                          "num_prompts",
                          "request_rate",
                          "burstiness",
                          "max_concurrency",
                          "duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "max_output_tokens_per_s",
                          "max_concurrent_requests",
                          "mean_ttft_ms",
                          "median_ttft_ms",
                          "std_ttft_ms",
                          "p99_ttft_ms",
                          "p99.5_ttft_ms",
                          "mean_tpot_ms",
                          "std_itl_ms",
                          "p99_e2el_ms"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["mean_ttft_ms"], 500);
  EXPECT_EQ(json["prefix_cache_hit_rate"], 0.25);
  EXPECT_EQ(json["failures"]["KV_FULL"], 1);
  EXPECT_EQ(json["request_rate"], 1.5);
  EXPECT_EQ(json["gpu"], "t4");
  EXPECT_FALSE(json.contains("ttfts"));
  result.request_rate = std::numeric_limits<double>::infinity();
  options.detailed = true;
  json = nlohmann::json::parse(ReportJson(result, options));
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_EQ(json["input_lens"], nlohmann::json({100, 100, 0}));
  EXPECT_EQ(json["output_lens"], nlohmann::json({11, 11, 0}));
  EXPECT_EQ(json["ttfts"], nlohmann::json({0.5, 0.5, 0}));
  ASSERT_EQ(json["itls"][0].size(), 10u);
  EXPECT_THAT(json["itls"][0][9].get<double>(), DoubleNear(0.1, 1e-9));
  EXPECT_EQ(json["errors"], nlohmann::json({"", "", "KV_FULL: no blocks"}));
  for (const char* key : {"latencies", "start_times", "queue_times", "generated_texts"}) {
    EXPECT_EQ(json[key].size(), 3u) << key;
  }
}

TEST(BenchReportTest, TokensOfOneMessageShareItsGap) {
  Outcome outcome;
  outcome.token_s = {1, 1, 4, 4, 4, 5};
  const RequestTimes times = TimesOf(outcome);
  EXPECT_THAT(times.itl_ms, ElementsAre(1000, 1000, 1000, 1000));
  EXPECT_EQ(times.ttft_ms, 1000);
  EXPECT_EQ(times.tpot_ms, 800);
  EXPECT_EQ(times.e2el_ms, 5000);
}

TEST(BenchPlotTest, HasACurveForEachChart) {
  BenchResult result = Result();
  const std::string svg = BenchPlot(result);
  EXPECT_THAT(svg, HasSubstr("Output token throughput"));
  size_t paths = 0;
  for (size_t at = 0; (at = svg.find("<path", at)) != std::string::npos; ++at) ++paths;
  EXPECT_EQ(paths, 4u);
  result.outcomes.clear();
  EXPECT_THAT(BenchPlot(result), Not(HasSubstr("<path")));
}

}  // namespace
}  // namespace baton::cli
