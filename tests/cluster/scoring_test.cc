// Scoring in a whole cluster: every log probability is that of Generate, computed on another way
// (as a prompt's, without a cache); decode workers take no part; a prefix is computed once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cluster/whole_cluster.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

using baton::v1::ItemScore;
using baton::v1::ScoreRequest;
using baton::v1::ScoreResponse;

// Of the demo model's kind: a rubric, and mails as items.
std::string Rubric() {
  return "Rubric:\n ticket = escalate\n payroll = reject\n invoice = reject\n survey = forward\n"
         " storage = reject\n security = approve\n feedback = escalate\n phone = reject\n";
}
std::string Mail(int number) {
  const char* topics[] = {"ticket", "payroll", "invoice", "survey", "storage", "security"};
  return absl::StrCat("Mail from fu", number, ":\nThe courier repaired ",
                      std::string(static_cast<size_t>(number % 5), 'x'), " I write about the ",
                      topics[number % 6], ".\nVerdict ?");
}

class ScoringTest : public WholeClusterTest {
 protected:
  ScoreRequest Request(int items) {
    ScoreRequest request;
    request.set_prefix(Rubric());
    for (int i = 0; i < items; ++i) request.add_items(Mail(i));
    request.add_labels(" escalate");
    request.add_labels(" reject");
    return request;
  }
  absl::StatusOr<ScoreResponse> Score(const ScoreRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    ScoreResponse response;
    const grpc::Status status =
        baton::v1::InferenceService::NewStub(channel_)->Score(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }
  // By one process that computes one token at a time, without a cache.
  void ExpectScoresOfOracle(const ScoreRequest& request, const ItemScore& item,
                            const std::string& text) {
    const std::string prompt = request.prefix() + text;
    ASSERT_EQ(item.labels_size(), request.labels_size()) << item.ShortDebugString();
    for (int l = 0; l < item.labels_size(); ++l) {
      const auto tokens = tokenizer_->Encode(prompt + request.labels(l), true);
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      const auto& label = item.labels(l);
      ASSERT_TRUE(
          std::equal(label.token_ids().rbegin(), label.token_ids().rend(), tokens->rbegin()));
      const std::vector<model::SampledToken> expected = oracle_->PromptLogprobs(*tokens, 0);
      const size_t first = expected.size() - static_cast<size_t>(label.token_logprobs_size());
      for (int i = 0; i < label.token_logprobs_size(); ++i) {
        EXPECT_EQ(label.token_logprobs(i), expected[first + static_cast<size_t>(i)].logprob)
            << text << request.labels(l) << " token " << i;
      }
    }
  }
  // The log probabilities of a text's last tokens as Generate returns them with prompt_logprobs.
  std::vector<float> LastPromptLogprobs(const std::string& text, int count) {
    GenerateRequest request;
    request.set_text(text);
    request.set_prompt_logprobs(0);
    request.mutable_stop()->set_max_tokens(2);  // by a decode worker
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    auto reader = baton::v1::InferenceService::NewStub(channel_)->Generate(&context, request);
    GenerateResponse response;
    std::vector<float> all;
    while (reader->Read(&response)) {
      for (const auto& token : response.prompt_logprobs()) all.push_back(token.logprob());
    }
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_GE(all.size(), static_cast<size_t>(count));
    return {all.end() - count, all.end()};
  }
  void ExpectScoresOfGenerate(const ScoreRequest& request, const ItemScore& item,
                              const std::string& text) {
    ASSERT_FALSE(item.has_error()) << item.ShortDebugString();
    ASSERT_EQ(item.labels_size(), request.labels_size());
    for (int l = 0; l < item.labels_size(); ++l) {
      const auto& label = item.labels(l);
      const std::vector<float> expected = LastPromptLogprobs(
          request.prefix() + text + request.labels(l), label.token_logprobs_size());
      double sum = 0;
      for (int i = 0; i < label.token_logprobs_size(); ++i) {
        EXPECT_EQ(label.token_logprobs(i), expected[static_cast<size_t>(i)])
            << text << request.labels(l) << " token " << i;
        sum += static_cast<double>(expected[static_cast<size_t>(i)]);
      }
      EXPECT_EQ(label.logprob(), sum);
    }
  }
  const std::unique_ptr<tokenizer::Tokenizer> tokenizer_ = *tokenizer::Tokenizer::Load(kModelDir);
  double SumOf(const std::string& metric) {
    double sum = 0;
    for (const auto& worker : prefill_) {
      sum += testing::MetricSum(worker->metrics_address(), metric);
    }
    return sum;
  }
  // No decode worker has held, received or computed anything.
  void ExpectOnlyPrefill() {
    for (const auto& worker : decode_) {
      const auto counts = BlockCounts(worker->address());
      EXPECT_EQ(counts.free(), counts.total());
    }
    EXPECT_EQ(SumOf("baton_kv_transfer_bytes_total"), 0);
  }
};

TEST_F(ScoringTest, ScoresAreThoseOfGenerateInAnyOrderAndCacheState) {
  for (const bool caching : {true, false}) {
    worker::WorkerOptions options = WorkerOptions();
    options.enable_prefix_caching = caching;
    router_.reset();
    decode_.clear();
    prefill_.clear();
    StartCluster(options);
    ScoreRequest request = Request(24);
    // Of several tokens, one of them the beginning of another.
    request.add_labels(" escalate the ticket and reject the invoice of the courier");
    request.add_labels(" escalate the");
    const auto first = Score(request);
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_EQ(first->items_size(), 24);
    EXPECT_GT(first->items(0).labels(2).token_logprobs_size(), 3);
    ExpectOnlyPrefill();
    // Again, warm, with the items in another order.
    ScoreRequest shuffled = request;
    std::mt19937 random(testing::TestSeed(7));
    std::shuffle(shuffled.mutable_items()->begin(), shuffled.mutable_items()->end(), random);
    const auto second = Score(shuffled);
    ASSERT_TRUE(second.ok()) << second.status();
    std::map<std::string, const ItemScore*> by_text;
    for (int i = 0; i < 24; ++i) by_text[request.items(i)] = &first->items(i);
    for (int i = 0; i < 24; ++i) {
      EXPECT_EQ(second->items(i).id(), static_cast<uint64_t>(i));
      const ItemScore& before = *by_text[shuffled.items(i)];
      for (int l = 0; l < 4; ++l) {
        EXPECT_EQ(second->items(i).labels(l).SerializeAsString(),
                  before.labels(l).SerializeAsString());
      }
    }
    EXPECT_EQ(second->usage().cached_prompt_tokens() > 0, caching);
    EXPECT_EQ(second->usage().items(), 24);
    EXPECT_EQ(second->usage().failed_items(), 0);
    ExpectOnlyPrefill();
    for (const int i : {0, 5, 11})
      ExpectScoresOfGenerate(request, first->items(i), request.items(i));
    for (const int i : {3, 23}) ExpectScoresOfOracle(request, first->items(i), request.items(i));
    // Two labels have a probability, four have none.
    EXPECT_FALSE(first->items(0).has_probability());
    const auto pair = Score(Request(1));
    ASSERT_TRUE(pair.ok()) << pair.status();
    const double p0 = std::exp(pair->items(0).labels(0).logprob());
    const double p1 = std::exp(pair->items(0).labels(1).logprob());
    EXPECT_NEAR(pair->items(0).probability(), p0 / (p0 + p1), 1e-12);
    ExpectIdle();
  }
}

TEST_F(ScoringTest, AThousandItemsComputeTheirPrefixOnceAndKeepNoTails) {
  StartCluster(WorkerOptions());
  ScoreRequest request = Request(0);
  std::string prefix;
  for (int i = 0; i < 4; ++i) prefix += Rubric();
  request.set_prefix(prefix);
  for (int i = 0; i < 1000; ++i) request.add_items(absl::StrCat("Mail ", i, " ?"));
  const auto response = Score(request);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->usage().failed_items(), 0);
  const int64_t computed =
      response->usage().prompt_tokens() - response->usage().cached_prompt_tokens();
  int64_t tails = 0, prefix_tokens = 1 << 20;
  for (const ItemScore& item : response->items()) {
    prefix_tokens = std::min<int64_t>(prefix_tokens, item.prompt_tokens());
  }
  ASSERT_GT(prefix_tokens, 100);
  for (const ItemScore& item : response->items())
    tails += item.prompt_tokens() - prefix_tokens + 32;
  // Each of the two workers at most once.
  EXPECT_LE(computed, 2 * prefix_tokens + tails);
  int64_t cached_blocks = 0;
  for (const auto& worker : prefill_) cached_blocks += BlockCounts(worker->address()).cached();
  EXPECT_LE(cached_blocks, 2 * (prefix_tokens / 16));
  EXPECT_EQ(SumOf("baton_scored_items_total"), 1000);
  ExpectOnlyPrefill();
  ExpectIdle();
}

TEST_F(ScoringTest, APrefillWorkerThatStopsLosesNoItem) {
  StartCluster(WorkerOptions());
  constexpr int kItems = 600;
  const auto expected = Score(Request(kItems));
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const int i : {0, 300, kItems - 1}) {
    ExpectScoresOfOracle(Request(kItems), expected->items(i), Mail(i));
  }
  for (const bool in_order : {true, false}) {
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    auto stub = baton::v1::InferenceService::NewStub(channel_);
    auto stream = stub->ScoreStream(&context);
    baton::v1::ScoreStreamRequest message;
    *message.mutable_settings() = Request(0);
    message.set_in_order(in_order);
    ASSERT_TRUE(stream->Write(message));
    std::thread writer([&] {
      for (int i = 0; i < kItems; ++i) {
        baton::v1::ScoreStreamRequest more;
        more.add_items()->set_id(static_cast<uint64_t>(i) + 1000);
        more.mutable_items(0)->set_text(Mail(i));
        if (!stream->Write(more)) break;
      }
      stream->WritesDone();
    });
    baton::v1::ScoreStreamResponse response;
    std::vector<uint64_t> order;
    while (stream->Read(&response)) {
      for (const ItemScore& item : response.items()) {
        EXPECT_FALSE(item.has_error()) << item.ShortDebugString();
        order.push_back(item.id() - 1000);
        const ItemScore& before = expected->items(static_cast<int>(order.back()));
        EXPECT_EQ(item.labels(0).SerializeAsString(), before.labels(0).SerializeAsString());
        EXPECT_EQ(item.labels(1).SerializeAsString(), before.labels(1).SerializeAsString());
      }
      // The busier one ends; the other has to do the rest.
      if (order.size() > 50 && prefill_.size() == 2) {
        const auto scored = [](const auto& worker) {
          return testing::MetricSum(worker->metrics_address(), "baton_scored_items_total");
        };
        prefill_.erase(prefill_.begin() + (scored(prefill_[0]) < scored(prefill_[1]) ? 1 : 0));
      }
    }
    writer.join();
    const grpc::Status status = stream->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(prefill_.size(), 1u) << "it was stopped while items were at work";
    EXPECT_EQ(response.usage().items(), kItems);
    ASSERT_EQ(order.size(), static_cast<size_t>(kItems));
    if (in_order) {
      EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    }
    EXPECT_EQ(std::set<uint64_t>(order.begin(), order.end()).size(), static_cast<size_t>(kItems));
  }
  ExpectIdle();
}

TEST_F(ScoringTest, ABadItemFailsAlone) {
  StartCluster(WorkerOptions());
  ScoreRequest request = Request(3);
  request.set_items(1, std::string(40'000, 'x'));
  request.add_items("");
  request.add_items(std::string("Mail\0 7 ?", 9));
  auto response = Score(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->items(1).error().reason(), "PROMPT_TOO_LONG");
  EXPECT_EQ(response->items(1).error().code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(response->usage().failed_items(), 1);
  // An empty item is the prefix alone.
  for (const int good : {0, 2, 3, 4}) EXPECT_FALSE(response->items(good).has_error()) << good;
  // A label that continues the item's last token.
  request = Request(2);
  request.set_items(1, "Mail ?\nVerdict ? esc");
  request.set_labels(0, "alate");
  response = Score(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_FALSE(response->items(0).has_error()) << response->items(0).ShortDebugString();
  EXPECT_EQ(response->items(1).error().reason(), "LABEL_NOT_SEPARATE");
  struct Bad {
    std::function<void(ScoreRequest&)> change;
    const char* reason;
  };
  const std::vector<Bad> cases = {
      {[](ScoreRequest& r) { r.clear_labels(); }, "OUT_OF_RANGE"},
      {[](ScoreRequest& r) { r.clear_items(); }, "OUT_OF_RANGE"},
      {[](ScoreRequest& r) { r.set_labels(0, ""); }, "EMPTY_LABEL"},
      {[](ScoreRequest& r) { r.set_labels(1, r.labels(0)); }, "DUPLICATE_LABEL"},
      {[](ScoreRequest& r) { r.set_labels(1, "\xff"); }, "NOT_UTF8"},
      {[](ScoreRequest& r) { r.set_labels(0, std::string(2000, 'a')); }, "OUT_OF_RANGE"},
      {[](ScoreRequest& r) { r.set_model("another"); }, "MODEL_NOT_FOUND"},
      {[](ScoreRequest& r) { r.set_priority(static_cast<v1::Priority>(9)); }, "OUT_OF_RANGE"},
      {[](ScoreRequest& r) {
         for (int i = 0; i < 10'000; ++i) r.add_labels(absl::StrCat(" ", i));
       },
       "OUT_OF_RANGE"},
  };
  for (const Bad& bad : cases) {
    ScoreRequest wrong = Request(2);
    bad.change(wrong);
    const auto refused = Score(wrong);
    EXPECT_EQ(ErrorReason(refused.status()), bad.reason) << refused.status();
  }
  ExpectIdle();
}

// Answers of one token come from the prefill worker alone, and are what they were.
TEST_F(ScoringTest, AnAnswerOfOneTokenTakesNoDecodeWorker) {
  StartCluster(WorkerOptions());
  std::vector<baton::v1::GenerateOnceRequest> requests;
  for (int i = 0; i < 8; ++i) {
    GenerateRequest& request = *requests.emplace_back().mutable_request();
    request.set_text(Rubric() + Mail(i));
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(i) + 1);
    request.mutable_sampling()->set_temperature(i % 2 == 0 ? 0.0f : 1.5f);
    request.mutable_sampling()->set_repetition_penalty(i % 3 == 0 ? 1.3f : 1.0f);
    request.set_logprobs(3);
    if (i % 4 == 0) request.set_prompt_logprobs(1);
    if (i % 4 == 2) request.mutable_stop()->set_min_tokens(1);
    request.set_return_token_ids(true);
    request.mutable_stop()->set_max_tokens(1);
  }
  auto stub = baton::v1::InferenceService::NewStub(channel_);
  const auto ask = [&](const baton::v1::GenerateOnceRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    baton::v1::GenerateOnceResponse response;
    const grpc::Status status = stub->GenerateOnce(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  };
  std::vector<baton::v1::GenerateOnceResponse> answers;
  for (const auto& request : requests) answers.push_back(ask(request));
  ExpectOnlyPrefill();
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& one = answers[i];
    ASSERT_EQ(one.token_ids_size(), 1);
    EXPECT_EQ(one.usage().generated_tokens(), 1);
    EXPECT_EQ(one.usage().kv_bytes(), 0);
    EXPECT_EQ(one.seed(), i + 1);
    // The same on the way through a decode worker, which two tokens take.
    baton::v1::GenerateOnceRequest two = requests[i];
    two.mutable_request()->mutable_stop()->set_max_tokens(2);
    two.mutable_request()->mutable_stop()->set_ignore_eos(true);
    baton::v1::GenerateOnceRequest here = requests[i];
    here.mutable_request()->mutable_stop()->set_ignore_eos(true);
    const auto both = ask(two);
    const auto alone = ask(here);
    ASSERT_EQ(both.token_ids_size(), 2);
    EXPECT_EQ(alone.token_ids(0), both.token_ids(0));
    EXPECT_EQ(alone.choices(0).logprobs(0).SerializeAsString(),
              both.choices(0).logprobs(0).SerializeAsString());
    EXPECT_EQ(alone.usage().prompt_tokens(), both.usage().prompt_tokens());
    EXPECT_EQ(alone.finish_reason(), baton::v1::FINISH_REASON_LENGTH);
    ASSERT_EQ(alone.prompt_logprobs_size(), both.prompt_logprobs_size());
    for (int p = 0; p < both.prompt_logprobs_size(); ++p) {
      EXPECT_EQ(alone.prompt_logprobs(p).SerializeAsString(),
                both.prompt_logprobs(p).SerializeAsString());
    }
    // A stop token ends it, and is no part of the text.
    here.mutable_request()->mutable_stop()->clear_min_tokens();
    here.mutable_request()->mutable_stop()->add_stop_token_ids(alone.token_ids(0));
    const auto stopped = ask(here);
    EXPECT_EQ(stopped.finish_reason(), baton::v1::FINISH_REASON_STOP);
  }
  ExpectIdle();
}

}  // namespace
}  // namespace baton
