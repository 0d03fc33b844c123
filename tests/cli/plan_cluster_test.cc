#include "cli/plan_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/cluster_costs.h"
#include "common/base/exit_code.h"
#include "tests/cli/qwen05.h"
#include "tests/testing/fake_cluster.h"
#include "tests/testing/model_dir.h"

namespace baton::cli {
namespace {

using ::baton::testing::ModelDir;
using ::testing::HasSubstr;
using Json = nlohmann::json;

ClusterCosts SomeCosts() {
  ClusterCosts costs;
  costs.source = "a test";
  costs.prefill = {1000, 100, 0.001};
  costs.prefill_kv_tokens = 1 << 20;
  costs.decode = {10'000, 500, 0.1};
  costs.decode.expert_us = 3;
  costs.decode.experts = {64, 4};
  costs.decode_kv_tokens = 1 << 19;
  costs.decode_max_num_seqs = 32;
  costs.kv_bytes_per_token = 12'288;
  return costs;
}

class ClusterPlanCommandTest : public ::testing::Test {
 protected:
  ClusterPlanCommandTest() {
    dir_.Write("costs.json", CostsJson(SomeCosts()));
    options_.wanted = true;
    options_.costs_file = dir_.PathOf("costs.json");
    options_.rate = 6;
    options_.requests = 200;
    options_.slo_ttft_ms = 500;
    options_.slo_inter_token_ms = 60;
    options_.most_prefill = options_.most_decode = 8;
  }
  int Run(bool json = false) {
    out_.str("");
    err_.str("");
    return RunClusterPlan(options_, {}, json, out_, err_);
  }

  const ModelDir dir_;
  ClusterPlanOptions options_;
  std::ostringstream out_, err_;
};

TEST_F(ClusterPlanCommandTest, ATableAndOneObjectSayTheSame) {
  ASSERT_EQ(Run(), 0) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("simulated size 1: 0 prefill and 1 decode workers"));
  const std::string table = out_.str();
  for (const char* part :
       {"load: 200 requests in ", "costs: ", "costs.json: a test",
        "prefill step of up to 2048 tokens: 1 ms + 100 us a token + 0.001 us a pair of tokens; "
        "pool of 1048576 tokens",
        "decode step of up to 32 sequences: 10 ms + 500 us a sequence + 0.1 us a token of context "
        "+ 3 us an expert of 64, 4 a token; pool of 524288 tokens",
        "links of 10 Gbit/s (as stated or assumed), 12288 bytes of KV a token",
        "99 % of first tokens within 500 ms", "(the cheapest)", "\ncheapest: "}) {
    EXPECT_THAT(table, HasSubstr(part));
  }
  ASSERT_EQ(Run(/*json=*/true), 0) << err_.str();
  const Json json = Json::parse(out_.str());
  const Json& best = json["cheapest"];
  EXPECT_THAT(table,
              HasSubstr(absl::StrCat("cheapest: ", best["prefill"].get<int>(), " prefill and ",
                                     best["decode"].get<int>(), " decode workers")));
  EXPECT_EQ(best["price"], best["prefill"].get<int>() + best["decode"].get<int>());
  bool found = false;
  for (const Json& size : json["sizes"]) {
    const bool fits = size["ttft_p99_ms"] <= 500 && size["inter_token_p99_ms"] <= 60;
    EXPECT_EQ(size["holds"], fits);
    EXPECT_EQ(size["fails_by"] == "", fits);
    found = found || (size["prefill"] == best["prefill"] && size["decode"] == best["decode"]);
  }
  EXPECT_TRUE(found);
  EXPECT_GE(best["prefill"], json["least_prefill"]);
  // The same arguments have the same output.
  const std::string first = out_.str();
  ASSERT_EQ(Run(/*json=*/true), 0);
  EXPECT_EQ(out_.str(), first);
}

TEST_F(ClusterPlanCommandTest, NoSizeKeepsImpossibleObjectives) {
  options_.slo_inter_token_ms = 1;
  options_.most_prefill = options_.most_decode = 2;
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(out_.str(), HasSubstr("no size of up to 2 prefill and 2 decode workers"));
  EXPECT_THAT(out_.str(), HasSubstr("inter-token: steps of decode workers"));
  EXPECT_THAT(err_.str(), HasSubstr("no size keeps the objectives"));
}

TEST_F(ClusterPlanCommandTest, TracesAreReadAndErrorsNameTheLine) {
  options_.rate = 0;
  options_.requests = 0;
  const std::string path = dir_.PathOf("trace.jsonl");
  options_.trace = path;
  dir_.Write("trace.jsonl",
             "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 9}\n"
             "{\"timestamp\": 100, \"input_length\": 1100, \"hash_ids\": [3, 4, 5]}\n");
  EXPECT_EQ(Run(), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("request 2 of " + path + " has no output_length"));
  options_.answer_tokens = 20;
  const auto load = LoadOf(options_);
  ASSERT_TRUE(load.ok()) << load.status();
  ASSERT_EQ(load->requests.size(), 2u);
  EXPECT_EQ(load->requests[0].output_tokens, 9);
  EXPECT_EQ(load->requests[1].output_tokens, 20);
  EXPECT_EQ(load->requests[1].blocks.size(), 2u);
  EXPECT_EQ(Run(), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("load: 2 requests"));
  options_.requests = 1;
  EXPECT_EQ(LoadOf(options_)->requests.size(), 1u);
  dir_.Write("trace.jsonl", "{\"timestamp\": 0, \"input_length\": 600}\nnonsense\n");
  EXPECT_EQ(Run(), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("trace.jsonl:2: expected"));
  dir_.Write("trace.jsonl", "");
  EXPECT_EQ(Run(), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("has no request"));
  dir_.Write("trace.jsonl",
             "{\"timestamp\": 0, \"input_length\": 16000000, \"output_length\": 9}\n");
  EXPECT_EQ(Run(), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("request 1 of " + path +
                                    " has a prompt of 16000000 tokens, "
                                    "but a prefill worker's pool"));
  options_.trace = dir_.PathOf("none.jsonl");
  EXPECT_EQ(Run(), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("cannot open"));
}

TEST_F(ClusterPlanCommandTest, TheFirstRequestComesAtOnce) {
  options_.rate = 0;
  options_.requests = 0;
  options_.trace = dir_.PathOf("late.jsonl");
  dir_.Write("late.jsonl",
             "{\"timestamp\": 900000000000, \"input_length\": 600, \"output_length\": 9}\n"
             "{\"timestamp\": 900000000100, \"input_length\": 600, \"output_length\": 9}\n");
  const auto load = LoadOf(options_);
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_EQ(load->requests[0].at_us, 0);
  EXPECT_EQ(load->requests[1].at_us, 100'000);
  EXPECT_EQ(Run(), 0) << err_.str();
}

TEST_F(ClusterPlanCommandTest, LoadsOfMoreThanAWeekAreRefused) {
  options_.rate = 1e-6;
  options_.requests = 10'000'000;
  EXPECT_EQ(Run(), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("10000000 requests at --rate 1e-06 take about 10000000000000 s "
                                    "at --speed 1, expected at most 604800 s"));
  options_.rate = 0;
  options_.requests = 0;
  options_.trace = dir_.PathOf("long.jsonl");
  dir_.Write("long.jsonl",
             "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 9}\n"
             "{\"timestamp\": 1000000000, \"input_length\": 600, \"output_length\": 9}\n");
  EXPECT_EQ(Run(), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("long.jsonl takes 1000000 s at speed 1, expected at most"));
}

TEST_F(ClusterPlanCommandTest, TheExitCodeSaysWhetherToRepeat) {
  options_.costs_file = "";
  options_.costs_of = "127.0.0.1:1";
  EXPECT_EQ(Run(), kExitUnavailable) << err_.str();
  options_.costs_of = "";
  dir_.Write("config.json", kQwen05);
  engine::ServingQuestion question;
  question.engine.model_dir = dir_.path();
  question.gpu = *engine::FindGpu("t4");
  question.gpu.memory_bytes = 1 << 20;
  EXPECT_EQ(RunClusterPlan(options_, question, /*json=*/false, out_, err_), kExitFailure)
      << "a model that does not fit now will not fit later";
}

TEST_F(ClusterPlanCommandTest, NamesThatAreNoUtf8AreReplaced) {
  ClusterCosts costs = SomeCosts();
  costs.source = "\xff.json";
  const Json json = Json::parse(CostsJson(costs));
  EXPECT_EQ(json["source"], "\xEF\xBF\xBD.json");
  const auto load = LoadOf(options_);
  ASSERT_TRUE(load.ok()) << load.status();
  const Json plan = Json::parse(ClusterPlanJson({}, *load, QuestionOf(options_, costs), costs));
  EXPECT_EQ(plan["costs"], json);
}

TEST_F(ClusterPlanCommandTest, CostsGoThroughAFile) {
  const absl::StatusOr<ClusterCosts> read = ReadCosts(options_.costs_file);
  ASSERT_TRUE(read.ok()) << read.status();
  ClusterCosts expected = SomeCosts();
  expected.source = read->source;
  EXPECT_EQ(CostsJson(*read), CostsJson(expected));
  options_.save_costs = dir_.PathOf("again.json");
  ASSERT_EQ(Run(), 0) << err_.str();
  EXPECT_TRUE(ReadCosts(options_.save_costs).ok());
  options_.save_costs = dir_.PathOf("no/such/folder.json");
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(err_.str(), HasSubstr("cannot write"));
}

TEST_F(ClusterPlanCommandTest, WrongCostsNameTheField) {
  Json good = Json::parse(CostsJson(SomeCosts()));
  const auto error = [this](const std::string& text) {
    dir_.Write("bad.json", text);
    const absl::StatusOr<ClusterCosts> read = ReadCosts(dir_.PathOf("bad.json"));
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(read.status().message());
  };
  EXPECT_THAT(error("[]"), HasSubstr("bad.json is no JSON object"));
  EXPECT_THAT(error("{"), HasSubstr("is no JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("prefill is missing or wrong, expected an object"));
  for (const auto& [object, field, value] :
       {std::tuple("prefill", "fixed_us", Json("x")), std::tuple("prefill", "token_us", Json(-1)),
        std::tuple("prefill", "kv_tokens", Json(0)), std::tuple("decode", "max_num_seqs", Json(0)),
        std::tuple("decode", "experts", Json(1e9)),
        std::tuple("kv", "bytes_per_token", Json(-1))}) {
    Json bad = good;
    bad[object][field] = value;
    EXPECT_THAT(error(bad.dump()), HasSubstr(absl::StrCat(object, ".", field))) << field;
    bad[object].erase(field);
    EXPECT_THAT(error(bad.dump()), HasSubstr(absl::StrCat(object, ".", field))) << field;
  }
  Json many = good;
  many["decode"]["experts_per_token"] = 65;
  EXPECT_THAT(error(many.dump()), HasSubstr("decode.experts_per_token is missing or wrong, "
                                            "expected at most the experts, which are 64, got 65"));
  Json free = good;
  free["prefill"]["fixed_us"] = free["prefill"]["token_us"] = 0;
  EXPECT_THAT(error(free.dump()), HasSubstr("takes no time"));
  EXPECT_EQ(ReadCosts(dir_.PathOf("none")).status().code(), absl::StatusCode::kNotFound);
}

TEST(ClusterCostsTest, ARouterTellsWhatItsWorkersHaveMeasured) {
  testing::FakeCluster cluster(/*prefill_count=*/2, /*decode_count=*/2);
  const std::string router = cluster.server().address();
  const auto fetch = [&] { return FetchCosts(router, {}, absl::Seconds(30)); };
  EXPECT_EQ(fetch().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(fetch().status().message()),
              HasSubstr("of the 2 prefill workers of " + router + ", none has measured"));
  internal::v1::WatchResponse event;
  event.mutable_load()->mutable_prefill_cost()->set_token_us(100);
  cluster.prefill(0)->Tell(event);
  event.mutable_load()->mutable_prefill_cost()->set_token_us(300);
  cluster.prefill(1)->Tell(event);
  event.Clear();
  event.mutable_load()->mutable_decode_cost()->set_fixed_us(7000);
  event.mutable_load()->add_links()->set_bytes_per_second(5e8);
  cluster.decode(0)->Tell(event);
  // What the router knows comes through its streams, whose arrival nothing else announces.
  const absl::Time end = absl::Now() + testing::kPatience;
  absl::StatusOr<ClusterCosts> costs = fetch();
  while (absl::Now() < end &&
         !(costs.ok() && costs->prefill.token_us == 200 && costs->link_bytes_per_second > 0)) {
    absl::SleepFor(absl::Milliseconds(2));
    costs = fetch();
  }
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->prefill.token_us, 200) << "the mean";
  EXPECT_EQ(costs->decode.fixed_us, 7000) << "of those that have measured";
  EXPECT_DOUBLE_EQ(costs->link_bytes_per_second, 5e8);
  EXPECT_THAT(costs->source, HasSubstr("of " + router + ", 2 for prompts and 1 for answers"));
  EXPECT_GT(costs->decode_kv_tokens, 0);
  const absl::StatusOr<ClusterCosts> none = FetchCosts("127.0.0.1:1", {}, absl::Milliseconds(200));
  EXPECT_FALSE(none.ok());
}

TEST(ClusterCostsTest, WhatLoadsLackOrHaveWrongIsSaid) {
  const auto error = [](const v1::GetLoadsResponse& loads, absl::StatusCode code) {
    const absl::Status status = CostsOfLoads(loads, "r").status();
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  };
  v1::GetLoadsResponse loads;
  v1::WorkerLoad& worker = *loads.add_workers();
  worker.set_role(v1::WORKER_ROLE_DECODE);
  worker.set_age_ms(1);
  EXPECT_THAT(error(loads, absl::StatusCode::kFailedPrecondition),
              HasSubstr("r does not tell what its workers' steps take, as its version knows no "
                        "costs"));
  v1::WorkerCosts& costs = *worker.mutable_costs();
  costs.set_max_num_seqs(8);
  costs.set_kv_blocks(64);
  costs.set_block_tokens(16);
  costs.mutable_decode_step()->set_fixed_us(5000);
  EXPECT_THAT(error(loads, absl::StatusCode::kFailedPrecondition),
              HasSubstr("of the 1 decode workers of r, none has measured its steps of prompts"));
  costs.mutable_prompt_step()->set_token_us(50);
  const absl::StatusOr<ClusterCosts> of_decode = CostsOfLoads(loads, "r");
  ASSERT_TRUE(of_decode.ok()) << of_decode.status();
  EXPECT_EQ(of_decode->prefill.token_us, 50);
  EXPECT_EQ(of_decode->prefill_step_tokens, ClusterCosts().prefill_step_tokens)
      << "an earlier version does not tell it";
  costs.mutable_decode_step()->set_experts(8);
  costs.mutable_decode_step()->set_experts_per_token(9);
  EXPECT_THAT(error(loads, absl::StatusCode::kInvalidArgument),
              HasSubstr("r: decode.experts_per_token is missing or wrong"));
  costs.mutable_decode_step()->set_experts_per_token(8);
  costs.mutable_decode_step()->set_sequence_us(std::nan(""));
  EXPECT_THAT(error(loads, absl::StatusCode::kInvalidArgument), HasSubstr("decode.sequence_us"));
  costs.mutable_decode_step()->set_sequence_us(1);
  costs.set_kv_blocks(0);
  EXPECT_THAT(error(loads, absl::StatusCode::kInvalidArgument), HasSubstr("prefill.kv_tokens"));
}

TEST(ClusterCostsTest, PoolsOfWindowsAreCountedAsIfAllLayersKeptAllTokens) {
  const ModelDir dir;
  Json config = Json::parse(kQwen05);
  config["use_sliding_window"] = true;
  config["sliding_window"] = 1024;
  config["max_window_layers"] = 12;
  dir.Write("config.json", config.dump());
  engine::ServingQuestion question;
  question.engine.model_dir = dir.path();
  question.gpu = *engine::FindGpu("t4");
  question.batches = {8};
  question.prompts = {512};
  const absl::StatusOr<ClusterCosts> costs = FloorCosts(question, 1);
  ASSERT_TRUE(costs.ok()) << costs.status();
  const auto plan = engine::PlanServing(question);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->memory.shape.windowed());
  const double pool_bytes = static_cast<double>(plan->memory.kv_bytes());
  EXPECT_NEAR(static_cast<double>(costs->decode_kv_tokens) * costs->kv_bytes_per_token, pool_bytes,
              pool_bytes * 1e-3);
  EXPECT_EQ(costs->prefill_kv_tokens, costs->decode_kv_tokens);
  EXPECT_LT(costs->decode_kv_tokens, plan->memory.kv_tokens());
}

TEST(ClusterCostsTest, FloorsAreThoseOfThePlanDividedByTheEfficiency) {
  const ModelDir dir;
  dir.Write("config.json", kQwen05);
  engine::ServingQuestion question;
  question.engine.model_dir = dir.path();
  question.gpu = *engine::FindGpu("t4");
  const absl::StatusOr<ClusterCosts> whole = FloorCosts(question, 1);
  ASSERT_TRUE(whole.ok()) << whole.status();
  question.batches = {8};
  question.prompts = {512, 2048};
  const auto plan = engine::PlanServing(question);
  ASSERT_TRUE(plan.ok());
  // The sums are those of the plan's floors, which are the longer of two parts.
  for (const engine::PrefillFloor& floor : plan->prefill) {
    const double us = whole->prefill.token_us * floor.tokens +
                      whole->prefill.pair_us * floor.tokens * floor.tokens / 2;
    EXPECT_NEAR(us, floor.matrix_ms * 1e3, floor.matrix_ms * 20) << floor.tokens;
    EXPECT_NEAR(whole->prefill.fixed_us, floor.memory_ms * 1e3, floor.memory_ms * 20);
  }
  const engine::DecodeFloor& floor = plan->decode[0];
  EXPECT_NEAR(whole->decode.fixed_us + whole->decode.context_token_us * 8 * plan->context,
              floor.memory_ms * 1e3, floor.memory_ms * 10);
  EXPECT_EQ(whole->kv_bytes_per_token, 12'288);
  EXPECT_EQ(whole->decode_kv_tokens, plan->memory.kv_tokens());
  const absl::StatusOr<ClusterCosts> half = FloorCosts(question, 0.5);
  ASSERT_TRUE(half.ok());
  EXPECT_DOUBLE_EQ(half->prefill.token_us, 2 * whole->prefill.token_us);
  EXPECT_DOUBLE_EQ(half->decode.fixed_us, 2 * whole->decode.fixed_us);
  EXPECT_DOUBLE_EQ(half->decode.context_token_us, 2 * whole->decode.context_token_us);
  EXPECT_THAT(half->source, HasSubstr("efficiency 0.5"));
  question.gpu.memory_bytes = 1 << 20;
  EXPECT_FALSE(FloorCosts(question, 1).ok()) << "the plan's refusal";
}

}  // namespace
}  // namespace baton::cli
