// No feature depends on the topology: what docs/operations.md says of pairs, of several workers of
// each role, and of decode workers alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cluster/whole_cluster.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

struct Topology {
  const char* name;
  int prefill;
  int decode;
};

class TopologyTest : public WholeClusterTest, public ::testing::WithParamInterface<Topology> {
 protected:
  void SetUp() override {
    prefill_count_ = GetParam().prefill;
    decode_count_ = GetParam().decode;
  }
  std::vector<worker::Worker*> Workers() const {
    std::vector<worker::Worker*> workers;
    for (const auto& worker : prefill_) workers.push_back(worker.get());
    for (const auto& worker : decode_) workers.push_back(worker.get());
    return workers;
  }
  double SumOf(const std::string& metric, const std::string& label = "") const {
    double sum = 0;
    for (const worker::Worker* worker : Workers()) {
      sum += testing::MetricSum(worker->metrics_address(), metric, label);
    }
    return sum;
  }
  // By the number of the case, so many at a time.
  void ExpectAnswers(const std::vector<Case>& cases, int clients) {
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < clients; ++i) {
      threads.emplace_back([&] {
        for (size_t at; (at = next.fetch_add(1)) < cases.size();) {
          ExpectAnswer(Generate(cases[at].request), cases[at], at);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void FlushAll() {
    auto admin = baton::v1::AdminService::NewStub(channel_);
    for (const worker::Worker* worker : Workers()) {
      grpc::ClientContext context;
      context.set_deadline(testing::TestDeadline());
      baton::v1::FlushCacheRequest flush;
      flush.set_worker(worker->address());
      baton::v1::FlushCacheResponse flushed;
      const grpc::Status status = admin->FlushCache(&context, flush, &flushed);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Clusters, TopologyTest,
                         ::testing::Values(Topology{"a_pair", 1, 1},
                                           Topology{"two_of_each_role", 2, 2},
                                           Topology{"a_decode_worker_alone", 0, 1},
                                           Topology{"two_decode_workers_alone", 0, 2}),
                         [](const auto& info) { return info.param.name; });

TEST_P(TopologyTest, AnswersAreTheOracles) {
  worker::WorkerOptions options = WorkerOptions();
  options.num_blocks = 160;  // too few for all: they wait, and the cache is evicted
  options.kv_fetch = true;
  router::Options router;
  router.kv_fetch = true;
  StartCluster(options, {}, router);
  std::vector<Case> cases = MakeCases(*oracle_, 100, testing::TestSeed(81));
  for (size_t i = 0; i < cases.size(); ++i) {
    cases[i].request.set_tenant(absl::StrCat("tenant ", i % 3));
    cases[i].request.set_priority(i % 4 == 0 ? baton::v1::PRIORITY_HIGH
                                             : baton::v1::PRIORITY_NORMAL);
  }
  ExpectAnswers(cases, 12);
  ExpectAnswers(cases, 12);
  ExpectIdle();
}

TEST_P(TopologyTest, ItemsAreScored) {
  StartCluster(WorkerOptions());
  const auto tokenizer = tokenizer::Tokenizer::Load(kModelDir);
  ASSERT_TRUE(tokenizer.ok());
  baton::v1::ScoreRequest request;
  request.set_prefix("Rubric:\n ticket = escalate\n payroll = reject\n invoice = reject\n");
  for (int i = 0; i < 60; ++i) request.add_items(absl::StrCat("Mail ", i, ":\nVerdict ?"));
  request.add_labels(" escalate");
  request.add_labels(" reject the invoice");
  // While answers run.
  std::thread answers([this] { ExpectAnswers(MakeCases(*oracle_, 20, testing::TestSeed(82)), 4); });
  grpc::ClientContext context;
  context.set_deadline(testing::TestDeadline());
  baton::v1::ScoreResponse response;
  const grpc::Status status =
      baton::v1::InferenceService::NewStub(channel_)->Score(&context, request, &response);
  answers.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.items_size(), 60);
  EXPECT_EQ(response.usage().failed_items(), 0);
  EXPECT_EQ(SumOf("baton_scored_items_total"), 60);
  for (const int i : {0, 17, 59}) {
    for (int l = 0; l < 2; ++l) {
      const auto& label = response.items(i).labels(l);
      const auto tokens =
          (*tokenizer)->Encode(request.prefix() + request.items(i) + request.labels(l), true);
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      const std::vector<model::SampledToken> expected = oracle_->PromptLogprobs(*tokens, 0);
      const size_t first = expected.size() - static_cast<size_t>(label.token_logprobs_size());
      for (int t = 0; t < label.token_logprobs_size(); ++t) {
        EXPECT_EQ(label.token_logprobs(t), expected[first + static_cast<size_t>(t)].logprob);
      }
    }
  }
  ExpectIdle();
}

TEST_P(TopologyTest, AWarmPrefixIsCachedAndRetained) {
  worker::WorkerOptions options = WorkerOptions();
  options.num_blocks = 64;
  StartCluster(options);
  std::mt19937 random(testing::TestSeed(83));
  const auto tokens = [&random](int count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocabulary);
    return ids;
  };
  const std::vector<int32_t> rubric = tokens(160);
  auto admin = baton::v1::AdminService::NewStub(channel_);
  baton::v1::WarmPrefixRequest warm;
  warm.mutable_token_ids()->mutable_ids()->Assign(rubric.begin(), rubric.end());
  warm.mutable_retention()->set_priority(50);
  warm.mutable_retention()->set_ttl_ms(3'600'000);
  baton::v1::WarmPrefixResponse warmed;
  {
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    const grpc::Status status = admin->WarmPrefix(&context, warm, &warmed);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  const Topology& topology = GetParam();
  ASSERT_EQ(warmed.prefix().workers_size(),
            topology.prefill > 0 ? topology.prefill : topology.decode);
  for (const auto& worker : warmed.prefix().workers()) EXPECT_EQ(worker.error(), "");
  // A flood of four times the pools.
  for (int i = 0; i < 4 * 64 * 16 / 300 * (topology.prefill + topology.decode); ++i) {
    GenerateRequest request;
    const std::vector<int32_t> other = tokens(300);
    request.mutable_token_ids()->mutable_ids()->Assign(other.begin(), other.end());
    request.mutable_stop()->set_max_tokens(1);
    ASSERT_TRUE(Generate(request).status.ok());
  }
  GenerateRequest request;
  std::vector<int32_t> prompt = rubric;
  for (const int32_t token : tokens(10)) prompt.push_back(token);
  request.mutable_token_ids()->mutable_ids()->Assign(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(6);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.usage.cached_prompt_tokens(), 160);
  EXPECT_EQ(answer.token_ids, oracle_->Generate(prompt, {.temperature = 0}, 6));
  ExpectIdle();
}

TEST_P(TopologyTest, TiersKeepWhatThePoolsEvict) {
  decode_worker::DecodeOptions decode_only;
  decode_only.tiers.tiers = "host:64MB";
  decode_only.tiers.segment = 32;
  decode_only.tiers.least_uses = 1;
  prefill_worker::PrefillOptions prefill_only;
  prefill_only.tiers = decode_only.tiers;
  worker::WorkerOptions options = WorkerOptions();
  options.num_blocks = 160;
  StartCluster(options, decode_only, {}, prefill_only);
  const std::vector<Case> cases = MakeCases(*oracle_, 60, testing::TestSeed(84));
  // Each answer of the workers is the event waited for: segments are written beside answers.
  for (int round = 0;
       round < 100 && SumOf("baton_kv_tier_segments_total", "operation=\"load\"") == 0; ++round) {
    ExpectAnswers(cases, 4);
    FlushAll();
  }
  EXPECT_GT(SumOf("baton_kv_tier_segments_total", "operation=\"load\""), 0);
  ExpectIdle();
}

TEST_P(TopologyTest, AnAnswerOfOneTokenIsTheOracles) {
  StartCluster(WorkerOptions());
  std::vector<Case> cases = MakeCases(*oracle_, 40, testing::TestSeed(85), /*max_tokens_bound=*/1);
  ExpectAnswers(cases, 4);
  ExpectIdle();
}

}  // namespace
}  // namespace baton
