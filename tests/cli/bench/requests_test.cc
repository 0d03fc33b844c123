// What the benchmarks ask a router for, as a scripted one sees it.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/inference.grpc.pb.h"
#include "cli/bench/agent.h"
#include "cli/bench/judge.h"
#include "cli/bench/score.h"
#include "common/base/error.h"
#include "common/base/exit_code.h"

namespace baton::cli {
namespace {

// Every answer is as long as was asked for.
class ScriptedRouter : public v1::InferenceService::Service {
 public:
  ScriptedRouter() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  std::vector<v1::GenerateRequest> generated() {
    absl::MutexLock lock(&mutex_);
    return generated_;
  }

  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    response->add_models()->set_id("scripted");
    response->mutable_models(0)->set_vocab_size(100);
    return grpc::Status::OK;
  }

  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* stream) override {
    {
      absl::MutexLock lock(&mutex_);
      generated_.push_back(*request);
    }
    v1::GenerateResponse response;
    for (int i = 0; i < request->stop().max_tokens(); ++i) response.add_token_ids(7);
    response.mutable_usage()->set_prompt_tokens(request->token_ids().ids_size());
    response.mutable_usage()->set_generated_tokens(request->stop().max_tokens());
    response.set_finish_reason(v1::FINISH_REASON_LENGTH);
    stream->Write(response);
    return grpc::Status::OK;
  }

  // A token is a byte.
  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    for (const char c : request->text()) response->add_token_ids(c);
    return grpc::Status::OK;
  }

  // The last item first. Items that begin with "bad" fail, those that begin with "gone" have no
  // result.
  grpc::Status ScoreStream(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ScoreStreamResponse, v1::ScoreStreamRequest>* stream) override {
    v1::ScoreStreamRequest request;
    std::vector<v1::ScoreItem> items;
    while (stream->Read(&request)) {
      absl::MutexLock lock(&mutex_);
      if (request.has_settings()) settings_.push_back(request.settings());
      for (const v1::ScoreItem& item : request.items()) items.push_back(item);
    }
    {
      absl::MutexLock lock(&mutex_);
      for (const v1::ScoreItem& item : items) scored_.push_back(item.text());
    }
    for (auto item = items.rbegin(); item != items.rend(); ++item) {
      if (item->text().starts_with("gone")) continue;
      v1::ScoreStreamResponse response;
      v1::ItemScore* result = response.add_items();
      result->set_id(item->id());
      if (item->text().starts_with("bad")) {
        result->mutable_error()->set_code(grpc::StatusCode::RESOURCE_EXHAUSTED);
        result->mutable_error()->set_reason("KV_FULL");
      } else {
        result->set_prompt_tokens(static_cast<int>(item->text().size()));
        result->set_cached_prompt_tokens(2);
      }
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

  std::vector<v1::ScoreRequest> settings() {
    absl::MutexLock lock(&mutex_);
    return settings_;
  }
  std::vector<std::string> scored() {
    absl::MutexLock lock(&mutex_);
    return scored_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<v1::ScoreRequest> settings_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> scored_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::GenerateRequest> generated_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;  // the last member: its threads use the others
};

TEST(BenchRequestsTest, AnAgentAsksForTheRetentionOfEachPass) {
  ScriptedRouter router;
  AgentOptions options;
  options.target.address = router.address();
  options.conversations.conversations = 2;
  options.conversations.turns = 2;
  options.conversations.tools_tokens = 30;
  options.conversations.think_s = 0;
  options.retentions = {"off", "tools", "prompts"};
  options.retention_priority = 9;
  options.retention_ttl_ms = 1234;
  options.output.json = true;
  std::ostringstream out, err;
  ASSERT_EQ(RunAgent(options, out, err), kExitOk) << err.str();
  const auto results = nlohmann::json::parse(out.str())["results"];
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[1]["retention"], "tools");
  EXPECT_EQ(results[1]["prompt_tokens"], results[0]["prompt_tokens"]);
  const std::vector<v1::GenerateRequest> sent = router.generated();
  ASSERT_EQ(sent.size(), 12u);
  for (size_t i = 0; i < sent.size(); ++i) {
    const v1::GenerateRequest& request = sent[i];
    // Those of a pass share a salt that the other passes do not have.
    EXPECT_EQ(request.cache_salt() == sent.front().cache_salt(), i < 4);
    EXPECT_EQ(request.cache_salt() == sent.back().cache_salt(), i >= 8);
    ASSERT_EQ(request.has_retention(), i >= 4);
    if (i < 4) continue;
    EXPECT_EQ(request.retention().priority(), 9);
    EXPECT_EQ(request.retention().ttl_ms(), 1234);
    EXPECT_EQ(request.retention().has_until_token(), i < 8);
    EXPECT_EQ(request.retention().until_token(), i < 8 ? 30 : 0);
  }
}

TEST(BenchRequestsTest, ScoredItemsAreOutcomesInTheirOrder) {
  ScriptedRouter router;
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateChannel(router.address(), grpc::InsecureChannelCredentials()));
  ScoreCall call;
  call.model = "m";
  call.prefix = "rubric\n";
  call.labels = {"A", "B"};
  for (int i = 0; i < 200; ++i) call.items.push_back(std::string(i + 3, 'x'));  // several messages
  call.items[5] = "bad";
  call.items[6] = "gone";
  const std::vector<Outcome> outcomes = ScoreItems(stub.get(), call);
  ASSERT_EQ(outcomes.size(), 200u);
  for (int i = 0; i < 200; ++i) {
    const Outcome& outcome = outcomes[i];
    EXPECT_EQ(outcome.kind, i);
    EXPECT_GE(outcome.ended_s, outcome.sent_s);
    ASSERT_EQ(outcome.status.ok(), i != 5 && i != 6) << i << outcome.status;
    EXPECT_EQ(outcome.has_first(), outcome.status.ok());
    if (!outcome.status.ok()) continue;
    EXPECT_EQ(outcome.usage.prompt_tokens(), i + 3);
    EXPECT_EQ(outcome.usage.cached_prompt_tokens(), 2);
  }
  EXPECT_EQ(ReasonOf(outcomes[5].status), "RESOURCE_EXHAUSTED KV_FULL");
  EXPECT_TRUE(absl::IsInternal(outcomes[6].status));
  EXPECT_EQ(router.scored(), call.items);
  ASSERT_EQ(router.settings().size(), 1u);
  EXPECT_EQ(router.settings()[0].prefix(), "rubric\n");
  EXPECT_EQ(router.settings()[0].model(), "m");
  EXPECT_EQ(router.settings()[0].labels_size(), 2);
  const auto nowhere = v1::InferenceService::NewStub(
      grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials()));
  for (const Outcome& outcome : ScoreItems(nowhere.get(), call)) {
    EXPECT_TRUE(absl::IsUnavailable(outcome.status)) << outcome.status;
  }
}

TEST(BenchRequestsTest, AJudgeScoresAllWarmItemsInOneCall) {
  ScriptedRouter router;
  JudgeOptions options;
  options.target.address = router.address();
  options.shape = {30, 10, true};
  options.verdicts = {"score"};
  options.items = 6;
  options.cold_items = 2;
  options.rounds = 1;
  options.output.json = true;
  std::ostringstream out, err;
  ASSERT_EQ(RunJudge(options, out, err), kExitOk) << err.str();
  const auto results = nlohmann::json::parse(out.str())["results"];
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[2]["prefix"], "warm");
  EXPECT_EQ(results[2]["completed"], 6);
  // Two items and two rubrics, the primer, and all warm ones.
  const std::vector<v1::ScoreRequest> settings = router.settings();
  ASSERT_EQ(settings.size(), 6u);
  for (const v1::ScoreRequest& request : settings) EXPECT_EQ(request.prefix().size(), 30u);
  EXPECT_EQ(settings[4].prefix(), settings[5].prefix());
  EXPECT_NE(settings[0].prefix(), settings[2].prefix());
  const std::vector<std::string> scored = router.scored();
  ASSERT_EQ(scored.size(), 2u + 2 + 1 + 6);
  for (size_t i = 0; i < scored.size(); ++i) {
    EXPECT_EQ(scored[i].size(), i == 1 || i == 3 ? 0u : 10u) << "a rubric alone has an empty item";
  }
}

}  // namespace
}  // namespace baton::cli
