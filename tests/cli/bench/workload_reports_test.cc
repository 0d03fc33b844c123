// The figures of `baton bench judge` and `baton bench agent`, of outcomes that are made here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/bench/agent_report.h"
#include "cli/bench/judge_report.h"
#include "common/base/error.h"

namespace baton::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Sent at `sent_s`, with its token after 4/5 of the time.
Outcome Ended(double sent_s, double latency_s, int prompt = 200, int cached = 0) {
  Outcome outcome;
  outcome.sent_s = outcome.due_s = sent_s;
  outcome.ended_s = sent_s + latency_s;
  outcome.token_s = {sent_s + 0.8 * latency_s};
  outcome.usage.set_prompt_tokens(prompt);
  outcome.usage.set_cached_prompt_tokens(cached);
  outcome.usage.set_generated_tokens(1);
  return outcome;
}

Outcome Failed() {
  Outcome outcome;
  outcome.status = MakeError(absl::StatusCode::kUnavailable, "WORKER_LOST", "gone");
  return outcome;
}

// Two rounds: Baton computes an item in 0.1 s, the peer in 0.4 s.
JudgeResult Rounds() {
  JudgeResult result;
  result.model = "m";
  result.peer_model = "p";
  result.peer_version = "b77";
  for (int round = 0; round < 2; ++round) {
    for (const auto& [server, factor] : {std::pair("baton", 1.0), {"peer", 4.0}}) {
      Outcome staged = Ended(0, 0.2 * factor, 200, 144);
      staged.timings.set_queue_ms(20);
      staged.timings.set_prefill_ms(100);
      staged.timings.set_kv_transfer_ms(10);
      staged.timings.set_decode_ms(30);
      const double later = 0.01 * round;  // what makes the rounds differ
      result.phases.push_back(
          {server,
           "token",
           "cold",
           round,
           1.2 * factor,
           {Ended(0, 0.4 * factor), Ended(1, (0.5 + later) * factor), Failed(), Ended(2, 0.3)}});
      result.phases.push_back(
          {server,
           "token",
           "rubric",
           round,
           0.7 * factor,
           {Ended(0, 0.3 * factor), Ended(1, 0.4 * factor), Ended(2, 9), Failed()}});
      result.phases.push_back(
          {server, "token", "warm", round, (0.3 + later) * factor, {staged, staged, Failed()}});
    }
  }
  return result;
}

TEST(BenchJudgeReportTest, FiguresAreThoseOfTheSuccessfulRequestsOfAllRounds) {
  const std::vector<JudgeFigures> all = CollectJudge(Rounds());
  ASSERT_EQ(all.size(), 6u);
  const JudgeFigures& warm = all[2];
  EXPECT_EQ(warm.server + warm.verdict + warm.prefix, "batontokenwarm");
  EXPECT_EQ(warm.tally.completed, 4);
  EXPECT_EQ(warm.tally.failed, 2);
  EXPECT_THAT(warm.tally.failures, ElementsAre(Pair("WORKER_LOST", 2)));
  EXPECT_THAT(warm.item_ms,
              ElementsAre(Pair(0, DoubleNear(150, 1e-9)), Pair(1, DoubleNear(155, 1e-9))));
  EXPECT_EQ(warm.tally.prompt_tokens, 800);
  EXPECT_EQ(warm.tally.cached_tokens, 576);
  EXPECT_THAT(warm.ttft_ms[0], DoubleNear(160, 1e-9));
  // Of 200 ms each.
  EXPECT_THAT(warm.queue_ms, DoubleNear(80, 1e-9));
  EXPECT_THAT(warm.prefill_ms, DoubleNear(400, 1e-9));
  EXPECT_THAT(warm.other_ms, DoubleNear(160, 1e-9));
}

TEST(BenchJudgeReportTest, DerivedFigures) {
  const JudgeResult result = Rounds();
  // Pairs of which both succeeded: 100, 100, 100 and 110 ms.
  EXPECT_THAT(*ComputeItemMs(result, "baton"), DoubleNear(100, 1e-9));
  EXPECT_THAT(*ComputeItemMs(result, "peer"), DoubleNear(400, 1e-9));
  EXPECT_FALSE(ComputeItemMs(result, "other"));
  EXPECT_THAT(PeerRatios(CollectJudge(result), "token", "warm"),
              ElementsAre(DoubleNear(4, 1e-9), DoubleNear(4, 1e-9)));
  EXPECT_THAT(PeerRatios(CollectJudge(result), "text", "warm"), ElementsAre());
  JudgeOptions options;
  options.verdicts = {"token"};
  options.percentiles = {50};
  options.peer = "http://p";
  options.output.metadata = {{"machine", "mine"}};
  const auto json = nlohmann::json::parse(JudgeJson(result, options));
  EXPECT_EQ(json["machine"], "mine");
  EXPECT_EQ(json["peer"]["version"], "b77");
  EXPECT_FALSE(json["baton_version"].get<std::string>().empty());
  EXPECT_NEAR(json["compute_item_ms"]["baton"].get<double>(), 100, 1e-9);
  EXPECT_EQ(json["results"].size(), 6u);
  const auto& warm = json["results"][2];
  EXPECT_NEAR(warm["warm_item_to_compute"].get<double>(), 1.525, 1e-9);
  EXPECT_NEAR(warm["items_per_s"].get<double>(), 1e3 / 152.5, 1e-9);
  EXPECT_NEAR(warm["stage_shares"]["prefill"].get<double>(), 0.5, 1e-9);
  EXPECT_EQ(warm["computed_tokens"], 224);
  EXPECT_TRUE(json["results"][0]["warm_item_to_compute"].is_null());
  EXPECT_FALSE(json["results"][5].contains("stage_shares")) << "a peer reports none";
  EXPECT_EQ(json["peer_to_baton"].size(), 2u) << "cold and warm";
  const std::string lines = FormatJudge(result, options);
  EXPECT_THAT(lines, HasSubstr("a warm item (token) takes 1.52 times that"));
  EXPECT_THAT(lines, ContainsRegex("verdict token, warm prefix: median 4.00"));
  EXPECT_THAT(lines, HasSubstr("\npeer, verdict token, warm prefix: 2 failed with WORKER_LOST, "));
  EXPECT_THAT(JudgePlot(result, options), HasSubstr("peer, warm"));
}

TEST(BenchJudgeReportTest, NoiseIsNoTimeToCompute) {
  JudgeResult result;
  result.phases.push_back({"baton", "token", "cold", 0, 1, {Ended(0, 0.3)}});
  result.phases.push_back({"baton", "token", "rubric", 0, 1, {Ended(0, 0.4)}});
  EXPECT_FALSE(ComputeItemMs(result, "baton"));
  JudgeOptions options;
  EXPECT_TRUE(
      nlohmann::json::parse(JudgeJson(result, options))["compute_item_ms"]["baton"].is_null());
  EXPECT_THAT(FormatJudge({}, options), HasSubstr("Judge benchmark"));
}

AgentResult TwoTurns() {
  AgentResult result;
  result.model = "m";
  result.conversations = 3;
  result.shared_tokens = 100;
  AgentPass pass;
  pass.retention = "tools";
  pass.duration_s = 2;
  pass.turns_skipped = 1;
  pass.turns = {{0, 0, Ended(0, 1, 200, 0)},
                {0, 100, Ended(1, 0.5, 200, 96)},
                {0, 100, Failed()},
                {1, 210, Ended(2, 0.25, 250, 160)},
                {1, 210, Ended(2, 0.75, 250, 240)}};  // more than is known: of another turn
  result.passes.push_back(pass);
  return result;
}

TEST(BenchAgentReportTest, FiguresByTurn) {
  const AgentPass pass = TwoTurns().passes[0];
  const AgentFigures all = CollectAgent(pass);
  EXPECT_EQ(all.tally.completed, 4);
  EXPECT_EQ(all.tally.failed, 1);
  EXPECT_EQ(all.tally.prompt_tokens, 900);
  EXPECT_NEAR(all.tally.hit_rate(), 496.0 / 900, 1e-12);
  EXPECT_EQ(all.recomputed_tokens, 4 + 50);
  const auto turns = CollectTurns(pass);
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns.at(0).tally.failed, 1);
  EXPECT_THAT(turns.at(1).ttft_ms, ElementsAre(DoubleNear(200, 1e-9), DoubleNear(600, 1e-9)));
  EXPECT_EQ(turns.at(1).recomputed_tokens, 50);
  EXPECT_EQ(Tally().hit_rate(), 0);
}

TEST(BenchAgentReportTest, JsonLinesAndPlot) {
  AgentOptions options;
  options.percentiles = {50};
  options.conversations.seed = 77;
  const AgentResult result = TwoTurns();
  const auto json = nlohmann::json::parse(AgentJson(result, options));
  EXPECT_EQ(json["benchmark"], "agent");
  EXPECT_EQ(json["seed"], 77);
  EXPECT_EQ(json["tools_tokens"], 2000);
  EXPECT_EQ(json["request_rate"], "inf");
  const auto& pass = json["results"][0];
  EXPECT_EQ(pass["retention"], "tools");
  EXPECT_EQ(pass["turns_skipped"], 1);
  EXPECT_EQ(pass["computed_tokens"], 404);
  EXPECT_EQ(pass["turns"][1]["turn"], 2);
  EXPECT_NEAR(pass["turns"][1]["ttft_ms"]["p50"].get<double>(), 400, 1e-9);
  options.conversations.trace = "some/file";
  const auto traced = nlohmann::json::parse(AgentJson(result, options));
  EXPECT_EQ(traced["trace"], "some/file");
  EXPECT_FALSE(traced.contains("tools_tokens"));
  EXPECT_THAT(FormatAgent(result, options), ContainsRegex("2 +2 +0 +500 +400 +80.0 +50 +400.0"));
  EXPECT_THAT(AgentPlot(result, options), HasSubstr("hit rate, retention tools"));
}

}  // namespace
}  // namespace baton::cli
