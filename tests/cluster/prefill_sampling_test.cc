// What a prefill worker draws and says beside the KV: every sampling parameter, resumed answers,
// log probabilities, over real gRPC and against the oracle.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/rpc/channel.h"
#include "common/transfer/checksum.h"
#include "common/transfer/prefill_call.h"
#include "common/worker/token_sampling.h"
#include "prefill_worker/worker.h"
#include "tests/testing/oracle.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

using internal::v1::PrefillRequest;

constexpr char kSampledModel[] = BATON_CHECKPOINT_DIR "/tiny-qwen3";

struct Outcome {
  absl::Status status;
  transfer::FirstToken first;
  transfer::TransferSummary summary;
};

class PrefillSamplingTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { oracle_ = new testing::Oracle(kSampledModel); }
  static void TearDownTestSuite() { delete oracle_; }

  void SetUp() override {
    worker::WorkerOptions options;
    options.model_dir = kSampledModel;
    options.num_blocks = 256;
    options.max_num_batched_tokens = 64;  // long prompts take several chunks
    options.max_num_seqs = 8;             // fewer than a chunk's rows
    options.threads = 1;
    auto worker = prefill_worker::PrefillWorker::Start(options);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    channel_ = MakeChannel(worker_->address());
  }

  std::vector<int32_t> RandomTokens(int count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_() % 352);
    return tokens;
  }

  PrefillRequest Request(const std::vector<int32_t>& tokens, int prompt_tokens,
                         const model::SamplingParams& sampling) const {
    PrefillRequest request;
    request.set_request_id("test");
    request.set_transfer_id(17);
    request.set_model_fingerprint(worker_->card().model_fingerprint());
    request.set_kv_layout_fingerprint(oracle_->engine().kv_layout().Fingerprint());
    request.set_prefill_epoch(worker_->card().epoch());
    request.mutable_tokens()->Add(tokens.begin(), tokens.end());
    request.set_prompt_tokens(prompt_tokens);
    *request.mutable_sampling() = worker::ToProto(sampling);
    return request;
  }

  // As a decode worker asks, into a pool of its own.
  Outcome Prefill(PrefillRequest request) {
    request.set_checksum(transfer::RequestChecksum(request));
    transfer::TransferPlan plan;
    plan.transfer_id = request.transfer_id();
    plan.sender_epoch = request.prefill_epoch();
    plan.layout = oracle_->engine().kv_layout();
    plan.pool = oracle_->engine().kv_pool();
    plan.blocks.resize((request.tokens_size() + 15) / 16);
    std::iota(plan.blocks.begin(), plan.blocks.end(), 0);
    std::vector<std::byte> memory(plan.blocks.size() * plan.layout.BlockBytes());
    plan.pool.base = memory.data();
    plan.token_count = oracle_->engine().config().token_count;
    if (request.sampling().has_logprobs()) plan.logprobs = request.sampling().logprobs();
    if (request.has_prompt_logprobs()) {
      plan.prompt_logprobs = request.prompt_logprobs();
      plan.prompt_targets.assign(request.tokens().begin() + 1,
                                 request.tokens().begin() + worker::PromptTokens(request));
    }
    Outcome outcome;
    absl::Notification closed;
    transfer::PrefillEvents events;
    events.on_first_token = [&](transfer::FirstToken first) { outcome.first = std::move(first); };
    events.on_end = [&](absl::Status status, const transfer::TransferSummary& summary) {
      outcome.status = std::move(status);
      outcome.summary = summary;
    };
    events.on_closed = [&] { closed.Notify(); };
    const auto call = transfer::PrefillCall::Start(
        channel_, request, absl::Now() + absl::Seconds(120), std::move(plan), std::move(events));
    closed.WaitForNotification();
    return outcome;
  }

  static void ExpectEqual(const v1::TokenLogprobs& found, const model::SampledToken& expected) {
    EXPECT_EQ(found.SerializeAsString(), worker::ToProto(expected).SerializeAsString());
  }

  static testing::Oracle* oracle_;
  std::mt19937 random_{testing::TestSeed(5)};
  std::unique_ptr<prefill_worker::PrefillWorker> worker_;
  std::shared_ptr<grpc::Channel> channel_;
};

testing::Oracle* PrefillSamplingTest::oracle_ = nullptr;

TEST_F(PrefillSamplingTest, AResumedAnswerGoesOnAsIfNothingHadHappened) {
  const std::vector<int32_t> prompt = RandomTokens(40);
  const model::SamplingParams cases[] = {
      {.temperature = 0, .repetition_penalty = 1.3f, .logprobs = 4},
      {.temperature = 0, .frequency_penalty = 1.5f, .presence_penalty = 0.5f, .logprobs = 0},
      {.temperature = 1.2f,
       .top_p = 0.9f,
       .seed = 3,
       .choice = 2,
       .repetition_penalty = 0.9f,
       .frequency_penalty = -0.5f,
       .logit_bias = {{3, 4}, {80, -100}}},
  };
  for (const model::SamplingParams& sampling : cases) {
    const std::vector<model::SampledToken> answer = oracle_->GenerateTokens(prompt, sampling, 30);
    std::vector<int32_t> tokens = prompt;
    for (size_t i = 0; i < answer.size(); ++i) {
      const Outcome outcome = Prefill(Request(tokens, 40, sampling));
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      ASSERT_EQ(outcome.first.token_id, answer[i].token_id) << "token " << i;
      if (sampling.logprobs) {
        ExpectEqual(outcome.first.logprobs, answer[i]);
      } else {
        EXPECT_EQ(outcome.first.logprobs.ByteSizeLong(), 0u);
      }
      tokens.push_back(answer[i].token_id);
    }
  }
}

TEST_F(PrefillSamplingTest, SuppressedTokensAreNotTheFirst) {
  const std::vector<int32_t> prompt = RandomTokens(20);
  const model::SamplingParams greedy = {.temperature = 0};
  PrefillRequest request = Request(prompt, 20, greedy);
  for (int i = 0; i < 5; ++i) {
    const Outcome outcome = Prefill(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    for (const int32_t id : request.suppressed_token_ids()) EXPECT_NE(outcome.first.token_id, id);
    request.add_suppressed_token_ids(outcome.first.token_id);
  }
}

TEST_F(PrefillSamplingTest, PromptLogprobsOfLongPromptsWarmAndResumed) {
  const model::SamplingParams greedy = {.temperature = 0, .logprobs = 2};
  const std::vector<int32_t> prompt = RandomTokens(150);
  ASSERT_TRUE(Prefill(Request(prompt, 150, greedy)).status.ok());
  // Warm now, and yet computed whole.
  for (const int prompt_tokens : {150, 64, 65, 1}) {
    PrefillRequest request = Request(prompt, prompt_tokens, greedy);
    request.set_prompt_logprobs(20);
    const Outcome outcome = Prefill(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.summary.cached_prompt_tokens, 0);
    const std::vector<model::SampledToken> expected =
        oracle_->PromptLogprobs({prompt.begin(), prompt.begin() + prompt_tokens}, 20);
    ASSERT_EQ(outcome.first.prompt_logprobs.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ExpectEqual(outcome.first.prompt_logprobs[i], expected[i]);
    }
    ExpectEqual(outcome.first.logprobs, oracle_->GenerateTokens(prompt, greedy, 1)[0]);
  }
}

TEST_F(PrefillSamplingTest, BadFieldsAreRefusedByName) {
  const model::SamplingParams greedy = {.temperature = 0};
  PrefillRequest request = Request(RandomTokens(20), 20, greedy);
  request.mutable_sampling()->set_repetition_penalty(3);
  Outcome outcome = Prefill(request);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorField(outcome.status), "sampling.repetition_penalty");
  request = Request(RandomTokens(20), 20, greedy);
  for (int id = 0; id < oracle_->engine().config().token_count; ++id) {
    request.add_suppressed_token_ids(id);
  }
  outcome = Prefill(request);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(outcome.status), "NO_TOKEN_LEFT");
}

}  // namespace
}  // namespace baton
