// A router and workers, by default two of each role, over real gRPC with the demo model, in this
// process.
#ifndef BATON_TESTS_CLUSTER_WHOLE_CLUSTER_H_
#define BATON_TESTS_CLUSTER_WHOLE_CLUSTER_H_

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "baton/v1/admin.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/error.h"
#include "common/base/rpc/channel.h"
#include "common/tokenizer/tokenizer.h"
#include "decode_worker/worker.h"
#include "prefill_worker/worker.h"
#include "router/server.h"
#include "tests/testing/oracle.h"
#include "tests/testing/worker_client.h"

namespace baton {

using baton::v1::GenerateRequest;
using baton::v1::GenerateResponse;
using testing::BlockCounts;
using testing::WaitUntilIdle;

constexpr char kModelDir[] = "models/demo";
constexpr int kVocabulary = 1020;  // without the special tokens

inline worker::WorkerOptions WorkerOptions() {
  worker::WorkerOptions options;
  options.model_dir = kModelDir;
  options.num_blocks = 512;
  options.max_num_batched_tokens = 128;
  options.max_num_seqs = 16;
  options.threads = 1;
  return options;
}

// Prefill workers compute all prompts, so KV moves with each of them.
inline router::Options AllPromptsMove() {
  router::Options options;
  options.max_local_prefill_tokens = 0;
  return options;
}

struct Answer {
  absl::Status status;
  std::string text;
  std::vector<int32_t> token_ids;
  baton::v1::Usage usage;
  baton::v1::FinishReason finish = baton::v1::FINISH_REASON_UNSPECIFIED;
};

class WholeClusterTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { oracle_ = new testing::Oracle(kModelDir); }
  static void TearDownTestSuite() {
    delete oracle_;
    oracle_ = nullptr;
  }

  void StartCluster(const worker::WorkerOptions& options,
                    const decode_worker::DecodeOptions& decode_only = {},
                    router::Options router = {},
                    const prefill_worker::PrefillOptions& prefill_only = {}) {
    router.model_dir = options.model_dir;
    router.listen = router.metrics_listen = host_ + ":0";
    for (int i = 0; i < prefill_count_; ++i) {
      auto prefill = prefill_worker::PrefillWorker::Start(options, prefill_only);
      ASSERT_TRUE(prefill.ok()) << prefill.status();
      prefill_.push_back(*std::move(prefill));
      router.prefill_workers.push_back(prefill_.back()->address());
    }
    for (int i = 0; i < decode_count_; ++i) {
      auto decode = decode_worker::DecodeWorker::Start(options, decode_only);
      ASSERT_TRUE(decode.ok()) << decode.status();
      decode_.push_back(*std::move(decode));
      router.decode_workers.push_back(decode_.back()->address());
    }
    auto server = router::RouterServer::Start(std::move(router));
    ASSERT_TRUE(server.ok()) << server.status();
    router_ = *std::move(server);
    channel_ = MakeChannel(router_->address(), kClientChannel);
    WaitUntilReady();
  }

  // Until the router has met all workers; each answer of the router is the event waited for.
  void WaitUntilReady() {
    auto stub = baton::v1::AdminService::NewStub(channel_);
    for (int attempt = 0; attempt < 100'000; ++attempt) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      context.set_deadline(testing::TestDeadline());
      baton::v1::ListWorkersResponse response;
      const grpc::Status status = stub->ListWorkers(&context, {}, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      int ready = 0;
      for (const auto& worker : response.workers()) {
        ready += worker.state() == baton::v1::WORKER_STATE_READY;
      }
      if (ready == prefill_count_ + decode_count_) return;
      std::this_thread::yield();
    }
    FAIL() << "the router never met its workers";
  }

  Answer Generate(const GenerateRequest& request) {
    auto stub = baton::v1::InferenceService::NewStub(channel_);
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    auto reader = stub->Generate(&context, request);
    Answer answer;
    GenerateResponse response;
    while (reader->Read(&response)) {
      answer.text += response.text();
      answer.token_ids.insert(answer.token_ids.end(), response.token_ids().begin(),
                              response.token_ids().end());
      if (response.has_usage()) answer.usage = response.usage();
      if (response.finish_reason() != 0) answer.finish = response.finish_reason();
    }
    answer.status = FromGrpcStatus(reader->Finish());
    return answer;
  }

  void ExpectIdle() {
    for (const auto& worker : prefill_) {
      ASSERT_TRUE(WaitUntilIdle(worker->address()).ok());
      const auto counts = BlockCounts(worker->address());
      EXPECT_EQ(counts.free() + counts.cached(), counts.total());
    }
    for (const auto& worker : decode_) {
      ASSERT_TRUE(WaitUntilIdle(worker->address()).ok());
      const auto counts = BlockCounts(worker->address());
      EXPECT_EQ(counts.free() + counts.cached(), counts.total());
    }
  }

  // Set them before StartCluster.
  std::string host_ = "127.0.0.1";  // the router's
  int prefill_count_ = 2;
  int decode_count_ = 2;
  inline static testing::Oracle* oracle_ = nullptr;
  std::vector<std::unique_ptr<prefill_worker::PrefillWorker>> prefill_;
  std::vector<std::unique_ptr<decode_worker::DecodeWorker>> decode_;
  std::unique_ptr<router::RouterServer> router_;
  std::shared_ptr<grpc::Channel> channel_;
};

struct Case {
  GenerateRequest request;
  std::vector<int32_t> expected;
};

// Prompts of 1 to 400 tokens, half of them behind one of eight shared prefixes; greedy and seeded.
inline std::vector<Case> MakeCases(testing::Oracle& oracle, int count, uint32_t seed,
                                   int max_tokens_bound = 20) {
  std::mt19937 random(seed);
  const auto tokens = [&random](int n) {
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocabulary);
    return ids;
  };
  std::vector<std::vector<int32_t>> prefixes;
  for (int i = 0; i < 8; ++i) prefixes.push_back(tokens(30 + static_cast<int>(random() % 200)));
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t> prompt;
    if (i % 2 == 0) prompt = prefixes[random() % prefixes.size()];
    const std::vector<int32_t> tail = tokens(1 + static_cast<int>(random() % 170));
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    model::SamplingParams sampling;
    sampling.temperature = i % 3 == 0 ? 0.0f : 0.5f + static_cast<float>(random() % 10) / 10;
    sampling.top_p = i % 4 == 0 ? 0.9f : 1.0f;
    sampling.top_k = i % 5 == 0 ? 20 : 0;
    sampling.min_p = i % 7 == 0 ? 0.05f : 0.0f;
    sampling.seed = random();
    Case c;
    const int max_tokens = 1 + static_cast<int>(random() % static_cast<uint32_t>(max_tokens_bound));
    c.expected = oracle.Generate(prompt, sampling, max_tokens);
    c.request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
    c.request.mutable_sampling()->set_temperature(sampling.temperature);
    c.request.mutable_sampling()->set_top_p(sampling.top_p);
    c.request.mutable_sampling()->set_top_k(sampling.top_k);
    c.request.mutable_sampling()->set_min_p(sampling.min_p);
    c.request.mutable_sampling()->set_seed(sampling.seed);
    c.request.mutable_stop()->set_max_tokens(max_tokens);
    c.request.mutable_stop()->set_ignore_eos(true);
    c.request.set_return_token_ids(true);
    cases.push_back(std::move(c));
  }
  return cases;
}

inline void ExpectAnswer(const Answer& answer, const Case& c, size_t index) {
  ASSERT_TRUE(answer.status.ok()) << "case " << index << ": " << answer.status;
  EXPECT_EQ(answer.token_ids, c.expected) << "case " << index;
  EXPECT_EQ(answer.finish, baton::v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.usage.prompt_tokens(), c.request.token_ids().ids_size());
  EXPECT_EQ(answer.usage.generated_tokens(), static_cast<int>(c.expected.size()));
}

}  // namespace baton

#endif  // BATON_TESTS_CLUSTER_WHOLE_CLUSTER_H_
