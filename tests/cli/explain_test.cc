#include "cli/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::baton::testing::FakeCluster;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ExplainCommandTest, AsksWithoutSendingAndTellsAPlainError) {
  FakeCluster cluster;
  ExplainOptions options;
  options.address = cluster.server().address();
  options.text = "0123456789";
  std::ostringstream out, err;
  ASSERT_EQ(RunExplain(options, out, err), 0) << err.str();
  EXPECT_THAT(out.str(), HasSubstr("10 prompt tokens"));
  EXPECT_THAT(out.str(), HasSubstr("* prefill  " + cluster.prefill(0)->address()));
  EXPECT_THAT(out.str(), HasSubstr("* decode   " + cluster.decode(0)->address()));
  EXPECT_EQ(cluster.decode(0)->decode_count(), 0);
  out.str("");
  options.json = true;
  ASSERT_EQ(RunExplain(options, out, err), 0);
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["prompt_tokens"], 10);
  EXPECT_EQ(json["computes_address"], cluster.prefill(0)->address());
  options.model = "another";
  EXPECT_EQ(RunExplain(options, out, err), 1);
  EXPECT_THAT(err.str(), HasSubstr("[MODEL_NOT_FOUND]"));
}

TEST(ExplainCommandTest, ShowsTheLastDecisions) {
  FakeCluster cluster;
  ExplainOptions options;
  options.address = cluster.server().address();
  options.last = 10;
  std::ostringstream out, err;
  ASSERT_EQ(RunExplain(options, out, err), 0) << err.str();
  EXPECT_EQ(out.str(), "") << "nothing has been decided";
}

TEST(ExplainCommandTest, TableShowsOnlyWhatIsKnown) {
  v1::Decision decision;
  decision.set_request_id("r1");
  decision.set_prompt_tokens(100);
  decision.set_decision("prefix");
  decision.set_policy("priced");
  decision.set_computes_address("d:1");
  decision.set_answers_address("d:1");
  decision.set_predicted_cached_tokens(64);
  decision.set_decode_candidates(9);
  v1::DecisionCandidate& c = *decision.add_candidates();
  c.set_role(v1::WORKER_ROLE_DECODE);
  c.set_address("d:1");
  c.set_queue_seconds(0.25);
  c.set_excluded("no room");
  std::string table = DecisionTable(decision);
  EXPECT_THAT(table, HasSubstr("request r1, 100 prompt tokens: prefix, policy priced\n"));
  EXPECT_THAT(table, HasSubstr("cached: 64 tokens predicted\n"));
  EXPECT_THAT(table, HasSubstr(" 0 tokens       250 ms "));
  EXPECT_THAT(table, HasSubstr("no room"));
  EXPECT_THAT(table, Not(HasSubstr("KV")));
  EXPECT_THAT(table, HasSubstr("and 8 more workers\n"));
  EXPECT_THAT(table, HasSubstr("* decode   d:1"));
  EXPECT_THAT(table, HasSubstr("one worker computes the prompt and answers"));
  EXPECT_THAT(table, Not(HasSubstr("found")));
  decision.set_actual_cached_tokens(48);
  decision.set_predicted_ttft_seconds(0.5);
  decision.set_actual_ttft_seconds(0.75);
  decision.set_kappa(2);
  decision.set_kv_holder_address("p:2");
  decision.set_kv_holder_tokens(96);
  table = DecisionTable(decision);
  EXPECT_THAT(table, HasSubstr("750 ms measured; 96 tokens may be fetched from p:2\n"));
  EXPECT_THAT(table, HasSubstr("priced (kappa 2 s per s of service)"));
  EXPECT_THAT(
      table,
      HasSubstr("64 tokens predicted, 48 tokens found; time to first token: 500 ms predicted, "
                "750 ms measured"));
}

// Each number of a row that has all of them.
TEST(ExplainCommandTest, EveryNumberHasItsUnit) {
  v1::Decision decision;
  decision.set_prompt_tokens(100);
  decision.set_decision("load");
  decision.set_policy("priced");
  decision.set_prefill_candidates(1);
  v1::DecisionCandidate& c = *decision.add_candidates();
  c.set_role(v1::WORKER_ROLE_PREFILL);
  c.set_address("p");
  c.set_cached_tokens(16);
  c.set_queue_seconds(0.012345);
  c.set_service_seconds(0.00025);
  c.set_cost(12.3456);
  c.set_tier_tokens(32);
  c.set_transfer_seconds(0.5);
  EXPECT_THAT(DecisionTable(decision),
              ::testing::ContainsRegex("prefill +p +16 tokens +12.35 ms +0.25 ms +12346 ms  32 "
                                       "tokens from tiers  KV 500 ms\n"));
}

}  // namespace
}  // namespace baton::cli
