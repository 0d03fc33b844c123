// Router, two prefill and two decode workers over real gRPC, with the demo model: every answer
// equals the oracle's, cold and warm, alone and in company, and afterwards every block is back.
#include "tests/cluster/whole_cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "tests/testing/http_client.h"
#include "tests/testing/ipv6.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

TEST_F(WholeClusterTest, FiveHundredPromptsAloneColdThenWarm) {
  StartCluster(WorkerOptions());
  const std::vector<Case> cases = MakeCases(*oracle_, 500, testing::TestSeed(41));
  int64_t cached[2] = {0, 0};
  for (const int warm : {0, 1}) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const Answer answer = Generate(cases[i].request);
      ExpectAnswer(answer, cases[i], i);
      if (HasFatalFailure()) return;
      cached[warm] += answer.usage.cached_prompt_tokens();
    }
  }
  EXPECT_GT(cached[1], cached[0]) << "the second round found nothing cached";
  ExpectIdle();
}

// Decode workers report what prompts cost there only once they have computed some.
TEST_F(WholeClusterTest, OnAnIdleClusterShortPromptsAreComputedWhereTheyAreAnswered) {
  StartCluster(WorkerOptions());
  std::mt19937 random(testing::TestSeed(49));
  const auto ask = [&] {
    GenerateRequest request;
    auto* ids = request.mutable_token_ids()->mutable_ids();
    for (int i = 0; i < 30; ++i) ids->Add(static_cast<int32_t>(random() % kVocabulary));
    request.mutable_stop()->set_max_tokens(2);
    const Answer answer = Generate(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
  };
  const auto local = [this] {
    return testing::MetricSum(router_->metrics_address(), "baton_route_decisions_total",
                              "decision=\"local\"");
  };
  // Until a prefill worker has reported its cost, prompts go there.
  for (int asked = 0; local() == 0; ++asked) {
    ASSERT_LT(asked, 2000) << "no decode worker was tried";
    ask();
  }
  const double before = local();
  for (int i = 0; i < 40; ++i) ask();
  // The router decides by measured times, so on a busy machine some go elsewhere.
  EXPECT_GE(local() - before, 20) << "of 40";
  ExpectIdle();
}

// Every hop uses IPv6: clients, routers, workers, KV that is sent and KV that is fetched, probes
// and metrics.
TEST_F(WholeClusterTest, OverIpv6) {
  if (!testing::HasIpv6()) GTEST_SKIP() << "this machine has no ::1";
  host_ = "[::1]";
  worker::WorkerOptions options = WorkerOptions();
  options.listen = options.metrics_listen = "[::1]:0";
  options.kv_fetch = true;
  options.kv_transport = "grpc";
  router::Options router = AllPromptsMove();
  router.http_listen = "[::1]:0";
  router.kv_fetch = true;
  StartCluster(options, {}, router);
  const std::vector<Case> cases = MakeCases(*oracle_, 40, 6);
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < cases.size(); ++i) ExpectAnswer(Generate(cases[i].request), cases[i], i);
  }
  ExpectIdle();
  EXPECT_NE(testing::HttpGet(router_->http_address(), "/readyz").find(" 200 "), std::string::npos);
  for (const std::string& address : {router_->metrics_address(), prefill_[0]->metrics_address(),
                                     decode_[0]->metrics_address()}) {
    EXPECT_NE(testing::HttpGet(address, "/metrics").find("baton_build_info"), std::string::npos)
        << address;
  }
}

// The oracle has the directory that the file was made of.
TEST_F(WholeClusterTest, AGgufFileAnswersLikeItsDirectory) {
  worker::WorkerOptions options = WorkerOptions();
  options.model_dir = BATON_CHECKPOINT_DIR "/demo.gguf";
  StartCluster(options);
  const std::vector<Case> cases = MakeCases(*oracle_, 60, testing::TestSeed(45));
  for (size_t i = 0; i < cases.size(); ++i) ExpectAnswer(Generate(cases[i].request), cases[i], i);
  // Through the file's tokenizer.
  GenerateRequest request;
  request.set_text("Table:\n deha = 9194\nQ deha ?");
  request.mutable_stop()->set_max_tokens(8);
  request.set_return_token_ids(true);
  const auto tokenizer = tokenizer::Tokenizer::Load(kModelDir);
  const auto prompt = (*tokenizer)->Encode(request.text(), /*add_special_tokens=*/true);
  EXPECT_EQ(Generate(request).token_ids, oracle_->Generate(*prompt, {.temperature = 0}, 8, {1021}));
  ExpectIdle();
}

TEST_F(WholeClusterTest, FiveHundredPromptsSixteenAtATimeColdThenWarm) {
  worker::WorkerOptions options = WorkerOptions();
  options.num_blocks = 160;  // too few for sixteen: they wait, and the cache is evicted
  StartCluster(options);
  const std::vector<Case> cases = MakeCases(*oracle_, 500, testing::TestSeed(42));
  for (int round = 0; round < 2; ++round) {
    std::atomic<size_t> next{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 16; ++i) {
      clients.emplace_back([&] {
        for (size_t at; (at = next.fetch_add(1)) < cases.size();) {
          ExpectAnswer(Generate(cases[at].request), cases[at], at);
        }
      });
    }
    for (std::thread& client : clients) client.join();
  }
  ExpectIdle();
}

// The KV that the pools have no room for comes back from host memory, and routers know where it is.
TEST_F(WholeClusterTest, TwoHundredPromptsWithKvTiersBehindSmallPools) {
  worker::WorkerOptions options = WorkerOptions();
  options.num_blocks = 160;
  prefill_worker::PrefillOptions prefill_only;
  prefill_only.tiers.tiers = "host:64MB";
  prefill_only.tiers.segment = 32;
  prefill_only.tiers.least_uses = 1;
  StartCluster(options, {}, AllPromptsMove(), prefill_only);
  const std::vector<Case> cases = MakeCases(*oracle_, 200, testing::TestSeed(43));
  for (int round = 0; round < 2; ++round) {
    std::atomic<size_t> next{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 8; ++i) {
      clients.emplace_back([&] {
        for (size_t at; (at = next.fetch_add(1)) < cases.size();) {
          ExpectAnswer(Generate(cases[at].request), cases[at], at);
        }
      });
    }
    for (std::thread& client : clients) client.join();
  }
  ExpectIdle();
  auto admin = baton::v1::AdminService::NewStub(channel_);
  for (const auto& worker : prefill_) {
    ASSERT_EQ(worker->card().kv_tier_segment_tokens(), 32);
    grpc::ClientContext flushing;
    flushing.set_deadline(testing::TestDeadline());
    baton::v1::FlushCacheRequest flush;
    flush.set_worker(worker->address());
    baton::v1::FlushCacheResponse flushed;
    const grpc::Status status = admin->FlushCache(&flushing, flush, &flushed);
    ASSERT_TRUE(status.ok()) << status.error_message();
    // The pool is empty: what the router knows of is in the tier. Segments are written beside the
    // answers, so their number may still grow; each answer of the router is the event waited for.
    double segments = 0;
    int64_t indexed = -1;
    for (int attempt = 0; attempt < 100'000; ++attempt) {
      segments = testing::MetricSum(worker->metrics_address(), "baton_kv_tier_held_segments", "");
      if (segments > 0 && indexed == static_cast<int64_t>(segments)) break;
      grpc::ClientContext context;
      context.set_deadline(testing::TestDeadline());
      baton::v1::ListWorkersResponse response;
      ASSERT_TRUE(admin->ListWorkers(&context, {}, &response).ok());
      for (const auto& listed : response.workers()) {
        if (listed.address() == worker->address()) indexed = listed.indexed_blocks();
      }
    }
    EXPECT_EQ(indexed, static_cast<int64_t>(segments));
  }
}

// What the demo shows, as a test: text in, the right text out. The prompts and answers were drawn
// by models/demo/generate_data.py from a seed that training never saw.
TEST_F(WholeClusterTest, TheDemoModelRemembersWhatItRead) {
  StartCluster(WorkerOptions());
  std::ifstream file(std::string(kModelDir) + "/prompts.json");
  const nlohmann::json prompts = nlohmann::json::parse(file);
  int right = 0, asked = 0;
  for (const auto& prompt : prompts) {
    if (prompt.at("task") == "judge") continue;
    GenerateRequest request;
    request.set_text(prompt.at("prompt").get<std::string>());
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stop()->set_max_tokens(16);
    request.mutable_stop()->add_stop("\n");
    const Answer answer = Generate(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    right += answer.text == prompt.at("answer").get<std::string>();
    ++asked;
  }
  // A wrong KV block shows here: without the table, one answer in 10,000 is right.
  EXPECT_GE(right, asked * 8 / 10) << "of " << asked;
  ExpectIdle();
}

TEST_F(WholeClusterTest, AnOperatorsDefaultsHoldForWhatARequestLeavesOpen) {
  worker::WorkerOptions options = WorkerOptions();
  options.override_generation_config = R"({"temperature": 0, "max_new_tokens": 12})";
  StartCluster(options);
  for (Case& c : MakeCases(*oracle_, 8, testing::TestSeed(47))) {
    const auto& ids = c.request.token_ids().ids();
    const std::vector<int32_t> prompt(ids.begin(), ids.end());
    v1::SamplingParams& sampling = *c.request.mutable_sampling();
    const auto oracle = [&](float temperature, int max_tokens) {
      return oracle_->Generate(prompt, {.temperature = temperature, .seed = sampling.seed()},
                               max_tokens);
    };
    sampling.clear_temperature(), sampling.clear_top_p(), sampling.clear_top_k();
    sampling.clear_min_p();
    c.request.mutable_stop()->clear_max_tokens();
    EXPECT_EQ(Generate(c.request).token_ids, oracle(0, 12));
    sampling.set_temperature(1.9f);
    EXPECT_EQ(Generate(c.request).token_ids, oracle(1.9f, 12)) << "the request's";
    c.request.mutable_stop()->set_max_tokens(14);
    EXPECT_EQ(Generate(c.request).token_ids, oracle(1.9f, 14)) << "a default is no ceiling";
  }
  ExpectIdle();
}

// The context has 1,024 tokens, the pools 320.
TEST_F(WholeClusterTest, AnAnswerWithoutALimitFillsTheKvPool) {
  worker::WorkerOptions options = WorkerOptions();
  options.num_blocks = 20;
  StartCluster(options);
  for (Case& c : MakeCases(*oracle_, 4, testing::TestSeed(48))) {
    const auto& ids = c.request.token_ids().ids();
    const std::vector<int32_t> prompt(ids.begin(), ids.begin() + std::min(ids.size(), 100));
    c.request.mutable_token_ids()->mutable_ids()->Assign(prompt.begin(), prompt.end());
    *c.request.mutable_sampling() = {};
    c.request.mutable_sampling()->set_temperature(0);
    c.request.mutable_stop()->clear_max_tokens();
    const int most = 320 - static_cast<int>(prompt.size()) + 1;
    c.expected = oracle_->Generate(prompt, {.temperature = 0}, most);
    ExpectAnswer(Generate(c.request), c, prompt.size());
    c.request.set_n(3);  // they run one after another where they do not fit together
    EXPECT_EQ(Generate(c.request).usage.generated_tokens(), 3 * most);
    c.request.clear_n();
    c.request.mutable_stop()->set_max_tokens(most + 1);
    EXPECT_EQ(ErrorReason(Generate(c.request).status), "KV_POOL_TOO_SMALL") << "the client's";
  }
  GenerateRequest search;
  search.set_text("Table:\n deha = 9194\nQ deha ?");
  search.set_beam_width(4);
  search.mutable_stop()->set_ignore_eos(true);
  const Answer found = Generate(search);
  EXPECT_TRUE(found.status.ok()) << found.status;
  EXPECT_EQ(found.finish, v1::FINISH_REASON_LENGTH);
  ExpectIdle();
}

TEST_F(WholeClusterTest, BadInputIsNamedAndBlocksAreAsBefore) {
  StartCluster(WorkerOptions());
  using Code = absl::StatusCode;
  struct Bad {
    std::function<void(GenerateRequest&)> change;
    Code code;
    std::string field;
  };
  const std::vector<Bad> cases = {
      {[](auto& r) { r.set_text(""); }, Code::kInvalidArgument, "text"},
      {[](auto& r) { r.clear_prompt(); }, Code::kInvalidArgument, "prompt"},
      {[](auto& r) { r.set_text(std::string(20'000, 'a')); }, Code::kInvalidArgument, ""},
      {[](auto& r) { r.set_text(std::string(10 << 20, 'a')); }, Code::kInvalidArgument, ""},
      {[](auto& r) { r.set_model("another"); }, Code::kNotFound, ""},
      {[](auto& r) { r.mutable_sampling()->set_temperature(-1); }, Code::kInvalidArgument,
       "sampling.temperature"},
      {[](auto& r) { r.mutable_sampling()->set_top_p(0); }, Code::kInvalidArgument,
       "sampling.top_p"},
      {[](auto& r) { r.mutable_sampling()->set_top_p(1.5); }, Code::kInvalidArgument,
       "sampling.top_p"},
      {[](auto& r) { r.mutable_stop()->set_max_tokens(0); }, Code::kInvalidArgument,
       "stop.max_tokens"},
  };
  for (const Bad& bad : cases) {
    GenerateRequest request;
    request.set_text("Q buko ?");
    bad.change(request);
    const Answer answer = Generate(request);
    EXPECT_EQ(answer.status.code(), bad.code) << answer.status;
    EXPECT_FALSE(ErrorReason(answer.status).empty()) << answer.status;
    if (!bad.field.empty()) {
      EXPECT_EQ(ErrorField(answer.status), bad.field) << answer.status;
    }
    EXPECT_GT(answer.status.message().size(), 10u);
  }
  ExpectIdle();
}

TEST_F(WholeClusterTest, CancelsAndDeadlinesPassThroughAllHops) {
  StartCluster(WorkerOptions(), {}, AllPromptsMove());
  auto stub = baton::v1::InferenceService::NewStub(channel_);
  const std::vector<Case> cases = MakeCases(*oracle_, 40, testing::TestSeed(43));
  for (size_t i = 0; i < cases.size(); ++i) {
    GenerateRequest request = cases[i].request;
    request.mutable_stop()->set_max_tokens(400);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(i % 2 == 0 ? 120'000 : 1 + i));
    auto reader = stub->Generate(&context, request);
    GenerateResponse response;
    for (size_t read = 0; read < i % 4 && reader->Read(&response); ++read) {
    }
    if (i % 2 == 0) context.TryCancel();
    while (reader->Read(&response)) {
    }
    const grpc::StatusCode code = reader->Finish().error_code();
    EXPECT_TRUE(code == grpc::StatusCode::CANCELLED || code == grpc::StatusCode::OK ||
                code == grpc::StatusCode::DEADLINE_EXCEEDED)
        << code;
  }
  ExpectIdle();
}

}  // namespace
}  // namespace baton
